"""Charges the rounds of private training, and records this, before anything leaves.

If no seed repeats the noise, a round that is trained again is another release. So
rounds are reserved in the run folder before they begin. One reservation covers the
rounds of about one second. When a run is killed and goes on from a checkpoint, all
rounds that were reserved after that checkpoint are charged once more. With seeded noise
a repeated round releases the same bits, and costs nothing again.

What is spent also goes into the ledger of the data (`records.ledgers`), which all
studies of a runs folder share.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ....clients.groups import Group
from ....engine.rounds import Round
from ....privacy.accounting.accounts import epsilons
from ....privacy.accounting.subsampled import Step, quick_epsilons
from ....privacy.mechanisms.noise import simulated_text
from ....records import Cell
from ....records.ledgers import (
    DataLedger,
    LedgerEntry,
    Reservations,
    ReservedRounds,
    read_reserved,
    reserved_file,
    write_reserved,
)
from ....types import State
from ...config import Entry, Study
from ...division import from_first
from ...setup import Setup
from ..mechanisms.guards import guard_of
from ..mechanisms.partners import partner_releases
from .charges import charge, cost_of, spent_in, without_partners, worst_of

_AHEAD = 1.0
"""Seconds of rounds that are reserved at once."""

PARTNERS = "choice of partners"
"""The label, in the ledger of the data, of what clients release before training."""


def lost_rounds(kept: Sequence[ReservedRounds], cell: Cell) -> list[ReservedRounds]:
    """The reserved rounds that may have left and that a checkpoint does not have."""
    begins = not cell.rounds  # no checkpoint: the beginning may be lost, too
    found = []
    for each in kept:
        if each.attempt == cell.attempt and not begins:
            each = each._replace(first=max(each.first, cell.t + 1))
        if (begins or each.attempt >= cell.attempt) and each.first <= each.last:
            found.append(each)
    return found


def _is_latest(cell: Cell, kept: Reservations, known: Sequence[LedgerEntry]) -> bool:
    """Whether a run folder is as recent as its entries in the ledger.

    A folder that was restored from a copy is older, and is charged as a new beginning.
    """
    if not kept.rounds:
        return True
    # With an older checkpoint, or none, the rounds before `first` are not known.
    reached = cell.t + 1 if cell.rounds else 0
    if max(kept.rounds).first > reached:
        return False
    ends = [(each.attempt, each.last) for each in kept.rounds]
    latest = max((cell.attempt, cell.t), *ends)
    mine = [entry for entry in known if entry.number == kept.entry]
    return all((entry.attempt, entry.round) <= latest for entry in mine)


class CellAccount:
    """What an algorithm on a seed has reserved and spent; nothing without [privacy]."""

    def __init__(
        self,
        setup: Setup,
        entry: Entry,
        cell: Cell,
        folder: Path,
        ledger: DataLedger | None,
    ) -> None:
        """Finds the rounds that may have left and that the cell does not have."""
        privacy = setup.study.privacy
        self.lost: list[ReservedRounds] = []
        self.attempt, self._ledger = 0, ledger
        self._begun = 0  # the last round that has begun
        if privacy is None or ledger is None:
            return
        self._setup, self._entry = setup, entry
        self._run, self._unit = folder.name, privacy.unit
        self._rounds = setup.study.run.rounds
        self._group: Group = setup.simulation.group
        self._fresh = privacy.noise_source != "seed"
        self._file = reserved_file(folder, entry.label, setup.seed)
        kept = Reservations()
        if self._fresh:
            kept = from_first(self._group, lambda: read_reserved(self._file))
        attempts = [cell.attempt, *(each.attempt for each in kept.rounds)]
        known = self._entries()
        latest = _is_latest(cell, kept, known)
        # What an older folder does not have stays charged where it was.
        self.lost = lost_rounds(kept.rounds, cell) if latest else []
        number = kept.entry if latest else 0
        attempts += [each.attempt for each in known]
        self.attempt = 1 + max(attempts) if self._fresh else 0
        numbers = [entry.number for entry in known]
        self._number = (number or 1 + max(numbers, default=0)) * self._fresh
        self._kept = -1 if self._fresh else max((e.round for e in known), default=-1)
        self._next = cell.t + 1 if cell.rounds else 0  # that no checkpoint has
        self._last = self._next - 1  # that is reserved
        self._since, self._block = time.monotonic(), 1

    def _entries(self) -> list[LedgerEntry]:
        """The entries of this algorithm and seed in the ledger of the data."""
        assert self._ledger is not None  # only called with [privacy]
        every = from_first(self._group, self._ledger.entries)
        name = self._run, self._entry.label, self._setup.seed
        return [each for each in every if (each.run, each.label, each.seed) == name]

    def reserve(self, t: int, state: State = None) -> None:
        """Makes sure that round t is charged before it begins; 0 is the beginning."""
        if self._ledger is None or t <= self._last or t > self._rounds:
            return
        now = time.monotonic()
        if t > self._next and now > self._since:
            pace = self._block / (now - self._since)  # rounds in a second
            self._block = max(1, min(int(_AHEAD * pace), 2 * self._block))
        self._block = self._group.gather(self._block)[0]
        self._since = now
        self._last = min(t + self._block - 1, self._rounds)
        self._keep()
        self._charge(state, range(t, self._last + 1), self._last)

    def _keep(self) -> None:
        """Writes reserved rounds into the run folder."""
        if self._fresh:
            mine = ReservedRounds(self.attempt, self._next, self._last)
            kept = Reservations(self._number, (*self.lost, mine))
            from_first(self._group, lambda: write_reserved(self._file, kept))

    def _charge(self, state: State, more: Sequence[int], t: int) -> None:
        """Writes to the ledger of the data what is spent, and what `more` may cost.

        The last round that is charged is t; the state is None if there is none yet.
        """
        ledger = self._ledger
        assert ledger is not None  # only called with [privacy]
        if t < self._kept:  # the same bits were released, and more, by an earlier run
            return
        setup, entry, unit = self._setup, self._entry, self._unit
        spent = spent_in(state)
        lost = [] if spent is not None else [*self._lost_numbers()]
        spent_text: Any = 0.0 if unit == "client" else []
        if spent is not None:
            spent_text = worst_of(without_partners(spent, setup, entry))
        reserved: Any = 0.0 if unit == "client" else []
        if more or lost:
            cost = cost_of(setup, entry, [*lost, *more], quick=True)
            reserved = None
            if cost is not None:
                told = 0 in more  # the beginning includes the choice of partners
                cost = without_partners(cost, setup, entry) if told else cost
                reserved = worst_of(cost)
        name = self._run, entry.label, setup.seed, unit
        kept = self._number, self.attempt
        written = LedgerEntry(*name, t, spent_text, reserved, *kept)
        from_first(self._group, lambda: ledger.write(written))

    def _lost_numbers(self) -> Iterator[int]:
        for each in self.lost:
            yield from range(each.first, each.last + 1)

    def begin(self, cell: Cell) -> Cell:
        """The cell after paying for lost rounds, too."""
        rounds = [*self._lost_numbers()]
        if rounds:
            cost = cost_of(self._setup, self._entry, rounds)
            assert cost is not None  # not asked to be quick
            guard = guard_of(self._setup, self._entry)
            state = charge(cell.state, cost, guard, cell.t)
            cell = replace(cell, state=state, repeated=cell.repeated + len(rounds))
        return replace(cell, attempt=self.attempt)

    def rounds(self, rounds: Iterator[Round], start: Cell) -> Iterator[Round]:
        """The rounds; each is charged before it begins."""
        t, state = start.t, start.state
        while True:
            self.reserve(t + 1, state)
            self._begun = t + 1
            r = next(rounds, None)
            if r is None:
                return
            t, state = r.t, r.state
            yield r

    def on_saved(self, cell: Cell) -> None:
        """Notes that a checkpoint has what was spent until then."""
        self._next, self.lost = cell.t + 1, []

    def on_interrupted(self, cell: Cell) -> None:
        """Notes that the cell was saved after an interruption.

        In one process, at most one round has begun since then. Several processes notice
        a failure only when they add up their counts. They then go back to the state
        when they last did so. The rounds in between may have been sent, and are charged
        when the run goes on.
        """
        if self._ledger is None:
            return
        self.on_saved(cell)
        self._last = min(self._last, max(self._begun, cell.t + 1))
        self._keep()
        self._charge(cell.state, range(cell.t + 1, self._last + 1), self._last)

    def on_finished(self, cell: Cell) -> None:
        """Notes that all rounds were trained."""
        if self._ledger is not None:
            self.on_saved(cell)
            self._charge(cell.state, (), cell.t)


def charge_partners(setup: Setup, run: str, ledger: DataLedger) -> None:
    """Charges what clients release to choose partners, before they release it."""
    telling, privacy = partner_releases(setup), setup.study.privacy
    if telling and privacy is not None:
        client = privacy.unit == "client"
        cost: Any = sum((r.sensitivity / (r.noise or math.nan)) ** 2 for r in telling)
        if not client:
            steps = Counter((r.noise / r.sensitivity, 1.0, False) for r in telling)
            cost = [[*kind, count] for kind, count in steps.items()]
        elif math.isnan(cost):
            cost = math.inf
        name = run, PARTNERS, setup.seed, privacy.unit
        entry = LedgerEntry(*name, 0, cost, 0.0 if client else [])
        from_first(setup.simulation.group, lambda: ledger.write(entry))


def total_epsilon(
    entries: Iterable[LedgerEntry], unit: str, delta: float
) -> tuple[float, bool]:
    """The epsilon for somebody who sees all entries, and whether all costs are known.

    For each entry, we add the cost of the client that pays most, so the epsilon is a
    bound. Noise that hides a whole client also hides each of its samples. Entries of
    the unit sample promise nothing about whole clients, so they do not count for the
    unit client.
    """
    square, steps, complete = 0.0, Counter[Step](), True
    for entry in entries:
        for cost in (entry.spent, entry.reserved):
            if cost is None:
                complete = False
            elif isinstance(cost, list):
                steps += Counter({(s, q, bool(h)): k for s, q, h, k in cost})
            else:
                square += cost
    if unit == "client":
        found = epsilons(torch.tensor([square], dtype=torch.float64), delta)
        return float(found[0]), complete
    if math.isinf(square):
        return math.inf, complete
    if square:
        noise = 1 / math.sqrt(square)
        steps += Counter({(noise, 1.0, False): 1, (noise, 1.0, True): 1})
    return float(quick_epsilons([steps], delta)[0]), complete


def summary_of(
    study: Study, run: str, ledger: DataLedger, others: Collection[tuple[Any, ...]] = ()
) -> dict[str, Any]:
    """What a study, and all studies on its data so far, have spent in total.

    The study may also use cells of other runs. For each such cell, `others` has the
    run, the label and the seed.
    """
    privacy = study.privacy
    assert privacy is not None  # only called with [privacy]
    unit, delta, every = privacy.unit, privacy.delta, ledger.entries()
    own = [e for e in every if e.run == run or (e.run, e.label, e.seed) in others]
    mine, own_complete = total_epsilon(own, unit, delta)
    everything, complete = total_epsilon(every, unit, delta)
    left_out = {e.run for e in every if unit == "client" and e.unit == "sample"}
    return {
        "unit": unit,
        "delta": delta,
        "study": mine,
        "all": everything,
        "studies": len({run, *(entry.run for entry in every)} - left_out),
        "complete": own_complete and complete,
        "left_out": len(left_out),
        "noise_source": privacy.noise_source,
    }


def summary_line(found: dict[str, Any]) -> str:
    """The summary in one or two sentences."""
    most = "at most" if found["complete"] else "at least"
    others = found["studies"] - 1
    text = (
        f"privacy: epsilon {most} {found['study']:.3g} for one {found['unit']} (delta "
        f"{found['delta']:g}), if somebody sees all algorithms and seeds of this "
        f"study; {most} {found['all']:.3g} together with {others} other private "
        f"{'study' if others == 1 else 'studies'} on these data."
    )
    if found["left_out"]:
        text += (
            f" {found['left_out']} more hid single samples only, and promise nothing "
            "about a whole client."
        )
    return f"{text} {simulated_text(found['noise_source'])}".rstrip()
