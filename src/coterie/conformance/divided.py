"""Runs a federation divided among threads, as processes would divide it.

Every thread holds a block of the clients and runs the same algorithm on its own rows.
If a method uses rows of other clients without calling an oracle, its results are wrong
here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..checks import InputError
from ..clients.groups import refuse_text

Found = TypeVar("Found")


class _Meeting:
    """A place where threads leave values for each other."""

    def __init__(self, size: int) -> None:
        self.left: list[Any] = [None] * size
        self.barrier = threading.Barrier(size)


class Threads:
    """One of several threads; see `coterie.clients.groups.Group`.

    `values` counts the numbers that the thread sent to others and received from a
    server. `messages` counts its exchanges with others.
    """

    def __init__(self, rank: int, meeting: _Meeting) -> None:
        self.rank, self.size = rank, len(meeting.left)
        self._meeting = meeting
        self.values = self.messages = 0

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all threads, added in their order."""
        self.values += 2 * values.numel()
        return torch.stack(self._all(values)).sum(0)

    def join(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """The rows of all threads, in their order."""
        self.values += (self.size - 1) * rows.numel()
        return torch.cat(self._all(rows))

    def exchange(self, parts: Sequence[Tensor], counts: Sequence[int]) -> list[Tensor]:
        """The parts for this thread; part j goes to thread j."""
        others = [part for j, part in enumerate(parts) if j != self.rank]
        self.values += sum(part.numel() for part in others)
        found = [given[self.rank] for given in self._all(list(parts))]
        sizes = [len(part) for part in found]
        if sizes != list(counts):
            raise InputError(
                f"process {self.rank} waits for {list(counts)} rows of the processes, "
                f"which send {sizes}: weights of the clients at hand must be mutual."
            )
        return found

    def collect(
        self, rows: Sequence[Tensor], counts: Sequence[int]
    ) -> list[Tensor] | None:
        """In thread 0, the rows of all threads; None elsewhere."""
        self.values += sum(row.numel() for row in rows)
        everything = self._all(rows)
        if self.rank:
            return None
        return [torch.cat(of) for of in zip(*everything, strict=True)]

    def hand_out(
        self, rows: Sequence[Tensor] | str | None, counts: Sequence[int]
    ) -> list[Tensor]:
        """This thread's rows of the tensors that thread 0 has."""
        given = refuse_text(self._all(rows)[0])
        own = [row.split(list(counts))[self.rank] for row in given]
        self.values += sum(row.numel() for row in own)
        return own

    def gather(self, value: Found) -> list[Found]:
        """The values of all threads."""
        return self._all(value)

    def _all(self, value: Any) -> list[Any]:
        """The values of all threads, in their order."""
        self.messages += 1
        self._meeting.left[self.rank] = value
        self._meeting.barrier.wait()
        found = list(self._meeting.left)
        self._meeting.barrier.wait()
        return found


def run_divided(work: Callable[[Threads], Found], size: int) -> list[Found]:
    """The results of the same work in `size` threads.

    Raises:
        Exception: the first error in any thread; the others then stop.
    """
    meeting = _Meeting(size)

    def run(rank: int) -> Found:
        try:
            return work(Threads(rank, meeting))
        except Exception:
            meeting.barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(run, rank) for rank in range(size)]
    errors = [f.exception() for f in futures if f.exception() is not None]
    own = [e for e in errors if not isinstance(e, threading.BrokenBarrierError)]
    for error in own or errors:
        if error is not None:
            raise error
    return [future.result() for future in futures]
