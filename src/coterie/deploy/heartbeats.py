"""Signs of life: a process that stopped does not keep the others waiting.

A thread of every process counts up a number of its own in the store that torchrun
keeps, and reads those of the others. A process that only computes for a long time goes
on counting. One that was stopped, or whose machine is gone, does not: after
`COTERIE_PATIENCE` seconds the others name it and end, since nothing else ends a
collective that waits for it.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from ..checks import InputError

_BEATS = 12  # counts within the patience
_STARTING = 5  # times the patience, before a process counts for the first time
_LEFT = 1 << 40  # added by a process that ends in order


class Store(Protocol):
    """Numbers by name that all processes share, as those of torch.distributed."""

    def add(self, key: str, amount: int) -> int:
        """The number after the amount was added; 0 before the first."""


class Pulse:
    """How many times in a row each of the others was found not to have counted.

    Times are counted in one's own beats, not in seconds: where all processes are
    stopped and go on together, as in a machine that sleeps, nobody is taken for lost.
    """

    def __init__(self, others: Sequence[int]) -> None:
        """Of these processes, none of which has counted yet."""
        self._counts = dict.fromkeys(others, 0)
        self._missed = dict.fromkeys(others, 0)

    def lost(self, counts: dict[int, int]) -> list[int]:
        """Takes the numbers of the others as they are now; returns who is lost."""
        for other, count in counts.items():
            same = count == self._counts[other] and count < _LEFT
            self._missed[other] = self._missed[other] + 1 if same else 0
            self._counts[other] = count
        return [
            other
            for other, missed in self._missed.items()
            if missed >= _BEATS * (1 if self._counts[other] else _STARTING)
        ]


def patience() -> float:
    """Seconds without a sign of life after which a process is taken for stopped.

    Raises:
        InputError: where `COTERIE_PATIENCE` is not a number of seconds, at least 1.
    """
    text = os.environ.get("COTERIE_PATIENCE", "120")
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 1 <= seconds <= 86400:
        raise InputError(
            "the environment variable `COTERIE_PATIENCE` must be a number of seconds "
            f"between 1 and 86400, got {text!r}."
        )
    return seconds


def watch(store: Store, rank: int, size: int, seconds: float) -> Callable[[], None]:
    """Starts to count and to watch the others; returns what ends this in order."""
    ended = threading.Event()
    arguments = store, rank, size, seconds, ended
    thread = threading.Thread(target=_beat, args=arguments, daemon=True)
    thread.start()

    def end() -> None:
        ended.set()
        thread.join(1.0)

    return end


def _beat(
    store: Store, rank: int, size: int, seconds: float, ended: threading.Event
) -> None:
    """Counts and watches until the process ends, or another one is lost."""
    pulse = Pulse([other for other in range(size) if other != rank])
    while True:
        leaves = ended.is_set()
        try:
            store.add(_key(rank), _LEFT if leaves else 1)
            counts = {k: store.add(_key(k), 0) for k in range(size) if k != rank}
        except RuntimeError:  # torchrun itself is stopped or gone: nothing is known
            counts = {}
        if leaves:
            return
        if lost := pulse.lost(counts):
            _leave(lost, rank, size, seconds, ended)
        ended.wait(seconds / _BEATS)


def _key(rank: int) -> str:
    return f"coterie/alive/{rank}"


def _leave(
    lost: list[int], rank: int, size: int, seconds: float, ended: threading.Event
) -> None:
    """Ends this process: the first that is left says why, before the others end."""
    if rank == min(set(range(size)) - set(lost)):
        who = ", ".join(map(str, lost))
        sentence = (
            f"\nError: rank {who} of the {size} processes of this run gave no sign of "
            f"life for {seconds:g} seconds (`COTERIE_PATIENCE`); start the run again "
            "to go on where it stopped.\n"
        )
        os.write(2, sentence.encode())
    elif ended.wait(5.0):
        return
    os._exit(2)
