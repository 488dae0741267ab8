"""Processes that divide a federation, connected by torch.distributed.

`torchrun --nproc-per-node 2 -m coterie run study.toml` starts them; each holds a block
of the clients (`coterie.clients.groups`) and runs the same code. Tensors on a GPU
travel by NCCL, those in memory by Gloo.
"""

from __future__ import annotations

import atexit
import os
import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from ..checks import Disconnected
from .heartbeats import patience, watch

Found = TypeVar("Found")

_LONGEST = timedelta(days=1)
"""How long a process waits for others that live (`heartbeats`) and only compute."""


class Processes:
    """All processes of `torch.distributed`; see `coterie.clients.groups.Group`."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes, the same bits in each."""
        total = values.contiguous().clone()
        _together(lambda: dist.all_reduce(total))
        return total

    def join(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """The rows of all processes, one below the other; process r has counts[r]."""
        return torch.cat(self.exchange([rows] * self.size, counts))

    def exchange(self, parts: Sequence[Tensor], counts: Sequence[int]) -> list[Tensor]:
        """Part j goes to process j; from it come counts[j] rows."""
        sent = torch.cat(list(parts))
        shape = (sum(counts), *sent.shape[1:])
        found = torch.empty(shape, dtype=sent.dtype, device=sent.device)
        sizes = [len(part) for part in parts]
        _together(
            lambda: dist.all_to_all_single(found, sent, list(counts), sizes),
        )
        return list(found.split(list(counts)))

    def collect(self, rows: Tensor, counts: Sequence[int]) -> Tensor | None:
        """The rows of all processes in process 0, None elsewhere."""
        parts = [rows if r == 0 else rows[:0] for r in range(self.size)]
        there = counts if self.rank == 0 else [0] * self.size
        found = torch.cat(self.exchange(parts, there))
        return found if self.rank == 0 else None

    def hand_out(
        self, rows: Sequence[Tensor] | None, counts: Sequence[int]
    ) -> list[Tensor]:
        """Process r gets its counts[r] rows of each tensor that process 0 has."""
        about = None
        if rows is not None:
            about = [(row.shape[1:], row.dtype, row.device.type) for row in rows]
        own = []
        for j, (shape, dtype, device) in enumerate(self.tell(about)):
            if rows is None:  # of GPUs, a process has its own as the current one
                empty = torch.empty((0, *shape), dtype=dtype, device=device)
                parts = [empty] * self.size
            else:
                parts = list(rows[j].split(list(counts)))
            mine = [counts[self.rank] if r == 0 else 0 for r in range(self.size)]
            own.append(self.exchange(parts, mine)[0])
        return own

    def tell(self, value: Any) -> Any:
        """What process 0 says."""
        values = [value]
        _together(lambda: dist.broadcast_object_list(values))
        return values[0]

    def gather(self, value: Found) -> list[Found]:
        """What every process says, in each of them; small things."""
        values: list[Any] = [None] * self.size
        _together(lambda: dist.all_gather_object(values, value))
        return values


_GONE = re.compile("connect|peer|pipe|socket|time.?out|timed out|nccl", re.IGNORECASE)
"""What torch says where another process does not answer; all else is a fault here."""


def _together(call: Callable[[], Any]) -> None:
    """Calls a collective; where another process is gone, says so in one sentence."""
    try:
        call()
    except RuntimeError as error:  # and all errors of torch.distributed
        if not isinstance(error, dist.DistError) and not _GONE.search(str(error)):
            raise
        raise Disconnected(
            "another process of this run ended or cannot be reached; start the run "
            "again to go on where it stopped."
        ) from error


def joined(device: str) -> Processes | None:
    """The group that torchrun started this process in; None where it is alone.

    Args:
        device: where tensors lie, `cpu` or `cuda`.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return None
    if not dist.is_initialized():
        on_gpu = torch.device(device).type == "cuda"
        if on_gpu:
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        # Columns are prepared in memory also where models lie on GPUs.
        backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
        seconds = patience()
        # Two connections to the store: a wait on one would hold up signs of life.
        signs, rank, size = next(rendezvous("env://", timeout=_LONGEST))
        store, *_ = next(rendezvous("env://", timeout=_LONGEST))
        end = watch(signs, rank, size, seconds)
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=size, timeout=_LONGEST
        )
        # Threads of Gloo that still wait when the interpreter ends abort the process.
        atexit.register(dist.destroy_process_group)
        atexit.register(end)
    return Processes()
