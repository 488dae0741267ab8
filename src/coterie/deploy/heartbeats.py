"""Heartbeats, so that no process waits for one that has stopped.

A thread of each process increases a counter in the store of torchrun, and reads the
counters of the others. A process that computes for a long time still increases its
counter. If a process was stopped, or its machine failed, its counter does not change.
After `COTERIE_PATIENCE` seconds the other processes name this process and end, because
a collective operation would wait for it forever.
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
_LEFT = 1 << 40  # a process that ends normally adds this to its counter


class Store(Protocol):
    """Named counters that all processes share, as in a store of torch.distributed."""

    def add(self, key: str, amount: int) -> int:
        """Adds the amount to the counter, which begins at 0; returns the new value."""


class Pulse:
    """Counts how many beats in a row each of the other processes has missed.

    Time is counted in this process's own beats and not in seconds. So no process counts
    as lost if all processes pause together, as on a machine that sleeps.
    """

    def __init__(self, others: Sequence[int]) -> None:
        """Begins to watch these processes; their counters are 0."""
        self._counts = dict.fromkeys(others, 0)
        self._missed = dict.fromkeys(others, 0)

    def find_lost(self, counts: dict[int, int]) -> list[int]:
        """The processes that are lost, by the present counters of all others."""
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
    """Seconds without a beat after which a process counts as lost."""
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
    """Starts the thread that counts and watches; returns a function that ends it."""
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
    """Counts and watches until this process ends or another process is lost."""
    pulse = Pulse([other for other in range(size) if other != rank])
    while True:
        leaves = ended.is_set()
        try:
            store.add(_key(rank), _LEFT if leaves else 1)
            counts = {k: store.add(_key(k), 0) for k in range(size) if k != rank}
        except RuntimeError:  # torchrun itself has stopped, so we know nothing
            counts = {}
        if leaves:
            return
        if lost := pulse.find_lost(counts):
            _leave(lost, rank, size, seconds, ended)
        ended.wait(seconds / _BEATS)


def _key(rank: int) -> str:
    return f"coterie/alive/{rank}"


def _leave(
    lost: list[int], rank: int, size: int, seconds: float, ended: threading.Event
) -> None:
    """Ends this process; before that, the lowest remaining rank prints the reason."""
    if rank == min(set(range(size)) - set(lost)):
        who = ", ".join(map(str, lost))
        sentence = (
            f"\nError: rank {who} of the {size} processes of this run gave no sign of "
            f"life for {seconds:g} seconds (`COTERIE_PATIENCE`); start the run again "
            "to continue where it stopped.\n"
        )
        os.write(2, sentence.encode())
    elif ended.wait(5.0):
        return
    os._exit(2)
