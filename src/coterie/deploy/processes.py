"""Processes that divide a federation, connected by torch.distributed.

`torchrun --nproc-per-node 2 -m coterie run study.toml` starts them. Each process holds
a block of the clients (`coterie.clients.groups`) and runs the same code. NCCL sends
tensors that are on GPUs, and Gloo sends tensors in memory.
"""

from __future__ import annotations

import atexit
import os
import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from ..checks import DisconnectedError
from ..clients.groups import refuse_text
from .heartbeats import patience, watch
from .messages import RowType, as_bytes, decode, encode, from_bytes, size_of

Found = TypeVar("Found")

_LONGEST = timedelta(days=1)
"""How long a process waits for other processes that compute (see `heartbeats`)."""


class Processes:
    """All processes of `torch.distributed`; see `coterie.clients.groups.Group`."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        # Maps the kinds of rows that process 0 collected to the kinds of its answer, or
        # to None if the answer's kinds vary. It is the same in all processes.
        self._answers: dict[tuple[RowType, ...], _Answer | None] = {}
        self._collected: tuple[RowType, ...] = ()

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes, with the same bits in each."""
        total = values.contiguous().clone()
        _call_collective(lambda: dist.all_reduce(total))
        return total

    def join(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """The rows of all processes, in order; counts[r] are from process r."""
        return torch.cat(self.exchange([rows] * self.size, counts))

    def exchange(self, parts: Sequence[Tensor], counts: Sequence[int]) -> list[Tensor]:
        """The rows that this process receives; it sends part j to process j.

        counts[j] is the number of rows that come from process j.
        """
        sent = torch.cat(list(parts))
        shape = (sum(counts), *sent.shape[1:])
        found = torch.empty(shape, dtype=sent.dtype, device=sent.device)
        sizes = [len(part) for part in parts]
        _call_collective(
            lambda: dist.all_to_all_single(found, sent, list(counts), sizes)
        )
        return list(found.split(list(counts)))

    def collect(
        self, rows: Sequence[Tensor], counts: Sequence[int]
    ) -> list[Tensor] | None:
        """In process 0, the rows of all processes; None in other processes."""
        kinds = [(tuple(row.shape[1:]), row.dtype) for row in rows]
        self._collected = tuple(kinds)
        sent, first = as_bytes(rows), self.rank == 0
        parts = [sent if r == 0 else sent[:0] for r in range(self.size)]
        sizes = [size_of(kinds, count) if first else 0 for count in counts]
        found = self.exchange(parts, sizes)
        if not first:
            return None
        pieces = [
            from_bytes(part, kinds, count)
            for part, count in zip(found, counts, strict=True)
        ]
        return [torch.cat(of) for of in zip(*pieces, strict=True)]

    def hand_out(
        self, rows: Sequence[Tensor] | str | None, counts: Sequence[int]
    ) -> Sequence[Tensor]:
        """The rows that process 0 gives to this process r: counts[r] of each tensor.

        If shapes and types are the same as in the last call, this takes one message.
        Otherwise process 0 first sends the new shapes and types to the others.
        """
        about: str | _Answer | None = rows if isinstance(rows, str) else None
        if rows is not None and not isinstance(rows, str):
            kinds = tuple((tuple(row.shape[1:]), row.dtype) for row in rows)
            about = _Answer(rows[0].device.type if rows else "cpu", kinds)
        expected = self._answers.get(self._collected)
        if expected is not None:
            found = self._receive_rows(
                rows if about == expected else None, expected, counts
            )
            if found is not None:
                return found
        message = self.tell(_plain(about))
        if isinstance(message, str):
            return refuse_text(message)
        now = _answer(*message)
        known = self._collected in self._answers
        self._answers[self._collected] = None if known else now
        found = self._receive_rows(rows, now, counts)
        assert found is not None  # process 0 has rows now
        return found

    def _receive_rows(
        self, rows: Any, answer: _Answer, counts: Sequence[int]
    ) -> list[Tensor] | None:
        """This process's rows of an answer; None if the answer's shapes are new."""
        # On GPUs, the current device of a process is its own.
        flag = torch.empty(1, dtype=torch.uint8, device=answer.device)
        parts = [flag[:0]] * self.size
        if self.rank == 0 and rows is None:
            sizes = [size_of(answer.kinds, count) for count in counts]
            parts = [flag.new_zeros(1 + size) for size in sizes]
        elif self.rank == 0:
            split = [row.split(list(counts)) for row in rows]
            own = [as_bytes([of[r] for of in split]) for r in range(self.size)]
            parts = [torch.cat([flag.fill_(1), part.to(flag.device)]) for part in own]
        size = 1 + size_of(answer.kinds, counts[self.rank])
        found = self.exchange(parts, [size] + [0] * (self.size - 1))[0]
        if not bool(found[0]):
            return None
        return from_bytes(found[1:], answer.kinds, counts[self.rank])

    def tell(self, value: Any) -> Any:
        """The value of process 0, in all processes."""
        blob = encode(value) if self.rank == 0 else b""
        frame = _frame_of(blob)
        _call_collective(lambda: dist.broadcast(frame, 0))
        return decode(self._whole(frame, blob, 0))

    def gather(self, value: Found) -> list[Found]:
        """The values of all processes, in all processes."""
        blob = encode(value)
        frames = [torch.empty(_FRAME, dtype=torch.uint8) for _ in range(self.size)]
        _call_collective(lambda: dist.all_gather(frames, _frame_of(blob)))
        return [
            decode(self._whole(frame, blob, rank)) for rank, frame in enumerate(frames)
        ]

    def _whole(self, frame: Tensor, blob: bytes, rank: int) -> bytes:
        """The bytes of a message; a longer one needs a second transfer."""
        length = int.from_bytes(bytes(frame[:8].tolist()), "little")
        if length <= _FRAME - 8:
            return bytes(frame[8 : 8 + length].numpy())
        rest = torch.empty(length, dtype=torch.uint8)
        if rank == self.rank:
            rest = torch.frombuffer(bytearray(blob), dtype=torch.uint8)
        _call_collective(lambda: dist.broadcast(rest, rank))
        return bytes(rest.numpy())


class _Answer(NamedTuple):
    """The device and the kinds of the rows that process 0 hands out."""

    device: str
    kinds: tuple[RowType, ...]


def _plain(answer: str | _Answer | None) -> Any:
    """The answer of process 0 as a text or as plain values that can be sent."""
    if not isinstance(answer, _Answer):
        return answer
    return answer.device, [([*shape], str(kind)[6:]) for shape, kind in answer.kinds]


def _answer(device: str, kinds: list[tuple[list[int], str]]) -> _Answer:
    """The answer that was sent as plain values."""
    found = tuple((tuple(shape), getattr(torch, name)) for shape, name in kinds)
    return _Answer(device, found)


_FRAME = 4096
"""The number of bytes in the first part of a message, which begins with its length."""


def _frame_of(blob: bytes) -> Tensor:
    """The length of a message, followed by as many of its bytes as fit."""
    found = torch.zeros(_FRAME, dtype=torch.uint8)
    head = len(blob).to_bytes(8, "little") + blob[: _FRAME - 8]
    found[: len(head)] = torch.frombuffer(bytearray(head), dtype=torch.uint8)
    return found


_GONE = re.compile("connect|peer|pipe|socket|time.?out|timed out|nccl", re.IGNORECASE)
"""Words in torch's errors that mean that another process does not answer."""


def _call_collective(call: Callable[[], Any]) -> None:
    """Calls a collective operation; if a process is gone, the error says so."""
    try:
        call()
    except RuntimeError as error:  # this includes all errors of torch.distributed
        if not isinstance(error, dist.DistError) and not _GONE.search(str(error)):
            raise
        raise DisconnectedError(
            "another process of this run ended or cannot be reached; start the run "
            "again to continue where it stopped."
        ) from error


def join_processes(device: str) -> Processes | None:
    """The group of processes that torchrun started; None if there is only this one."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return None
    if not dist.is_initialized():
        on_gpu = torch.device(device).type == "cuda"
        if on_gpu:
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        # The columns of data are prepared in memory, even if models are on GPUs.
        backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
        seconds = patience()
        # Two connections to the store, so that waiting on one does not delay
        # heartbeats.
        signs, rank, size = next(rendezvous("env://", timeout=_LONGEST))
        store, *_ = next(rendezvous("env://", timeout=_LONGEST))
        end = watch(signs, rank, size, seconds)
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=size, timeout=_LONGEST
        )
        # Otherwise threads of Gloo that still wait at the end abort the process.
        atexit.register(dist.destroy_process_group)
        atexit.register(end)
    return Processes()
