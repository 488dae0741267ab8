"""Privacy at a site: noise on the grid of the masks, and the ledger of the site.

**Noise.** With `aggregation = "secure"`, the hub sees only sums of masked rows. Every
member adds whole-number noise to its row on the grid (`privacy.mechanisms.noise.whole`
has the theorem). Nobody knows in advance who will be present. So the noise is chosen
for the smallest sum that is allowed. If N - `least_members` members are absent and c
others help the hub, the remaining members' noise must still keep the promise. This is
as if c + N - `least_members` members of a sum of all N helped the hub.

**Ledger.** A site keeps one file for all its runs. Before an attempt begins, the file
has what the attempt may cost, on the disk. An attempt that was aborted has cost as much
as one that succeeded: its rows may have been seen. A site stops before an attempt that
would exceed its own budget.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...checks import InputError, TrainingError, number
from ...privacy.accounting.gaussian import epsilon_of
from ...privacy.accounting.subsampled import Step, quick_epsilons
from ...privacy.mechanisms.noise import (
    SYSTEM,
    DueNoise,
    NoiseSource,
    SecretStream,
    WholeNoise,
    deviation_for,
    discrete_gaussian,
    refuse_coarse,
)
from ...privacy.mechanisms.settings import Privacy
from .masks import Grid, Row, from_grid, to_grid


class BudgetSpent(InputError):
    """An error if a site's own budget does not allow an attempt."""


# Noise.


def with_due_noise(
    row: Row, share: float, due: DueNoise, grid: Grid, stream: SecretStream
) -> Row:
    """The row with the noise that is due; its last number, the share, has none.

    Args:
        row: of whole numbers: a row of models times the share, then the share.
        share: of this member, in the scale of the row.
        due: what was charged.
        grid: of the sum.
        stream: of secret bits.

    Raises:
        InputError: if the grid is too coarse for what was charged.
    """
    if share <= 0:
        raise InputError(f"the share of a private row must be positive, got {share:g}.")
    unit = share / due.shares[due.own]
    each = [
        deviation_for(due.deviation * unit * other, grid.scale)
        for other in due.shares
        if other > 0
    ]
    moves = due.sensitivity * share * grid.scale
    refuse_coarse(len(row) - 1, moves, each, due.reach * share * grid.scale)
    own = deviation_for(due.deviation * share, grid.scale)
    noise = discrete_gaussian(stream, own, len(row) - 1)
    found = row.copy()
    found[:-1] += noise.astype(row.dtype)
    return found


def privacy_at_site(privacy: Privacy, members: int, least: int) -> Privacy:
    """The settings with which a site plans: the smallest allowed sum decides.

    Args:
        privacy: of the study.
        members: N, all members.
        least: the fewest members of a sum.
    """
    if privacy.noise_source != SYSTEM:
        raise InputError(
            "between sites, `privacy.noise_source` must be 'system', got "
            f"{privacy.noise_source!r}: noise from a seed protects nobody."
        )
    if not privacy.secure:
        return privacy
    together = privacy.assumed_colluders + members - least
    if together > members - 1:
        raise InputError(
            f"`privacy.colluders` must be less than `sites.least_members`, {least}, "
            f"got {privacy.assumed_colluders}: nobody else's noise would be left."
        )
    return replace(privacy, colluders=together)


def with_noise(values: NDArray[Any], noise: NoiseSource, grid: Grid) -> NDArray[Any]:
    """The row of a sum with the noise that is due, if any is.

    The result lies on the grid, so that it becomes the same whole numbers again.

    Args:
        values: a row of models times the share, then the share.
        noise: of this site.
        grid: of the sum.
    """
    due = None if noise.whole is None else noise.whole.take_due()
    if due is None or noise.whole is None:
        return np.asarray(values)
    row = to_grid(values, grid)
    found = with_due_noise(row, float(values[-1]), due, grid, noise.whole.stream)
    steps = found.view(np.int32 if grid.bits == 32 else np.int64)
    if int(np.abs(steps).max()) >= 2**50:  # doubles would not hold every step
        raise InputError(
            "a row with noise has more than 2^50 steps of the grid: set a smaller "
            "`sites.scale`."
        )
    return from_grid(found, grid)


def site_noise() -> NoiseSource:
    """The noise of a site, from keys of its own that stay in memory."""
    return NoiseSource(SecretStream(), WholeNoise(SecretStream()))


# The ledger of a site.

Cost = float | Counter[Step]
"""mu^2 for the unit client, or the releases of single samples."""


class Charge(NamedTuple):
    """What an attempt may cost this site."""

    run: str
    step: int
    attempt: int
    what: str
    cost: Cost


class SiteLedger:
    """All charges of this site, in a file that only grows."""

    def __init__(self, path: Path, delta: float, budget: float | None = None) -> None:
        """Reads the charges so far.

        Args:
            path: of the file; made with its folder if it does not exist.
            delta: of the budget.
            budget: the largest epsilon of all runs together; None: no limit.
        """
        number("delta", delta, above=0, below=1)
        if budget is not None:
            number("budget", budget, above=0)
        self._path, self._delta, self._budget = path, delta, budget
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _open_ledger(path) as file:
            self.charges = _charges_in(file, path.name)

    def charge(self, new: Charge) -> None:
        """Writes a charge to the disk; afterwards the attempt may begin.

        Raises:
            BudgetSpent: if the budget does not allow it. Nothing is written then.
            TrainingError: if the file cannot be written.
        """
        line = json.dumps(_as_table(new), separators=(",", ":")) + "\n"
        try:
            with _open_ledger(self._path) as file:
                self.charges = _charges_in(file, self._path.name)  # of other runs, too
                self._refuse_beyond(new)
                _append(file, line.encode())
        except OSError as error:
            raise TrainingError(
                f"{self._path.name}, the ledger of this site, cannot be written "
                f"({error.strerror}), so nothing is sent."
            ) from None
        self.charges.append(new)

    def _refuse_beyond(self, new: Charge) -> None:
        if self._budget is None:
            return
        after = epsilon_after([*self.charges, new], self._delta)
        if after > self._budget * (1 + 1e-9):
            raise BudgetSpent(
                f"{new.what} could raise epsilon to {after:.3g}, but the budget of "
                f"this site is {self._budget:g}: nothing of it was sent."
            )

    @property
    def epsilon(self) -> float:
        """What all charges together reveal, at most."""
        return epsilon_after(self.charges, self._delta)


def epsilon_after(charges: Sequence[Charge], delta: float) -> float:
    """An upper bound on epsilon of all charges together.

    Charges for whole clients add in squares of mu. Charges for single samples have the
    quick account. If there are both, each gets half of delta, and epsilons add.
    """
    whole = math.fsum(c.cost for c in charges if isinstance(c.cost, float))
    steps: Counter[Step] = Counter()
    for one in charges:
        if not isinstance(one.cost, float):
            steps.update(one.cost)
    each = delta / 2 if whole and steps else delta
    found = epsilon_of(math.sqrt(whole), each) if whole else 0.0
    if steps:
        found += float(quick_epsilons([steps], each)[0])
    return found


def _as_table(charge: Charge) -> dict[str, Any]:
    told = charge._asdict()
    cost = told.pop("cost")
    if isinstance(cost, float):
        return {**told, "mu2": cost}
    steps = [[*kind, count] for kind, count in sorted(cost.items())]
    return {**told, "steps": steps}


def _charge_of(told: dict[str, Any]) -> Charge:
    cost: Cost
    if "mu2" in told:
        cost = float(told.pop("mu2"))
        if not cost >= 0:
            raise ValueError(cost)
    else:
        cost = Counter(
            {
                (float(noise), float(rate), bool(held)): int(count)
                for noise, rate, held, count in told.pop("steps")
            }
        )
    return Charge(**told, cost=cost)


@contextlib.contextmanager
def _open_ledger(path: Path) -> Iterator[int]:
    """The open file, which no other run of this site reads or writes meanwhile."""
    new = not path.exists()
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        if new:
            _sync_folder(path.parent)
        yield file
    finally:
        os.close(file)


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _charges_in(file: int, name: str) -> list[Charge]:
    """The charges in a file; a last line that was cut off was never acted on."""
    size = os.fstat(file).st_size
    raw = os.pread(file, size, 0)
    *lines, rest = raw.split(b"\n")
    try:
        found = [_charge_of(json.loads(line)) for line in lines]
    except (ValueError, TypeError, KeyError, AttributeError):
        raise InputError(
            f"{name}, the ledger of this site, is damaged: put a copy of it back. "
            "Without it, nobody knows what was spent."
        ) from None
    if rest:
        os.ftruncate(file, size - len(rest))
    return found


def _append(file: int, line: bytes) -> None:
    """Adds a line, and returns when it is on the disk."""
    written = os.write(file, line)
    if written != len(line):  # the disk is full
        os.ftruncate(file, os.fstat(file).st_size - written)
        raise OSError(errno.ENOSPC, "no space left on the disk")
    os.fsync(file)
