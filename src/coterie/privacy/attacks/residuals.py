"""Tests by an auditor inside clients: is there enough noise, and are rows clipped?

The auditor knows each row x before its release, and its reference. It also knows the
clip C and the standard deviation s in the ledger. It sees the row z that leaves. Then
the residuals

    r = (z - ref - clip_C(x - ref)) / s

are N(0, 1) if the mechanism is correct. Two tests follow, each at its own level:

- noise: sum r^2 is chi-square, with one degree of freedom for each number. The sum is
  too small if the noise is too small;
- clipping: the alternative is that x leaves unclipped. The likelihood ratio is a
  function of  sum <r, e> / |e|  with e = (x - ref - clip_C(x - ref)) / s. This sum is
  N(0, 1) with clipping, and N(|e|, 1) without.

We know the power of both tests beforehand. So an audit can say which faults it would
have noticed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ... import seeds
from ..mechanisms.dry_run.foreseen import Call
from ..mechanisms.rows import Mechanism

_POWER = 0.95
"""If an audit says that it would have noticed a fault, its chance was this high."""


_PROBES, _COLUMNS, _FAR = 64, 1000, 3.0
"""The number of made-up rows, the most columns that they have, and how far they are
beyond the clip, in standard deviations of the noise."""


class NoiseCheck(NamedTuple):
    """What residuals say about noise and clipping."""

    numbers: int  # how many residuals
    measured: float  # standard deviation of the noise, in units of the promised one
    noticed: float  # we would have noticed noise below this, in the same units
    quiet: bool  # whether noise is too small
    unclipped: bool  # whether rows leave unclipped
    clips_tested: bool  # whether rows were long enough to notice that

    @property
    def broken(self) -> bool:
        """Whether noise or clipping is not as promised."""
        return self.quiet or self.unclipped

    def merge(self, other: NoiseCheck) -> NoiseCheck:
        """This check together with another one of the same mechanism."""
        return self._replace(
            quiet=self.quiet or other.quiet,
            unclipped=self.unclipped or other.unclipped,
            clips_tested=self.clips_tested or other.clips_tested,
        )


class Residuals:
    """Sums over the rows that have left so far."""

    def __init__(self) -> None:
        """Begins without any residuals."""
        self.clip, self.noise, self.secure = math.inf, 0.0, False
        self.numbers, self.squares = 0, 0.0
        self.along, self.excess = 0.0, 0.0
        self._given: tuple[Call, list[Tensor], Tensor] | None = None
        self._seen: list[Tensor] = []  # of the last round

    def expect(self, clip: float, noise: float, *, secure: bool = False) -> None:
        """Sets clip and standard deviation; for secure sums, that of the sum."""
        self.clip, self.noise, self.secure = clip, noise, secure

    def see_rows(
        self, call: Call, rows: Sequence[Tensor], refs: Float[Tensor, "n k d"]
    ) -> None:
        """Sees the rows of a verb before their release."""
        self._given = call, [row.detach().clone() for row in rows], refs.clone()

    def see_releases(self, rows: Sequence[Tensor], active: Bool[Tensor, " n"]) -> None:
        """Sees the same rows as they leave active clients."""
        if self._given is None:
            return
        (call, given, refs), self._given = self._given, None
        share = 1.0
        if self.secure and call.verb == "average":
            share = 1 / math.sqrt(max(1, int(active.sum())))
        for j, (x, z) in enumerate(zip(given, rows, strict=False)):
            if not call.fresh[j] or self._again(z[active]):
                continue
            place = call.slots[j]
            ref = refs[:, place] if place >= 0 else torch.zeros_like(x)
            self.add(x[active], ref[active], z[active], share)

    def _again(self, z: Tensor) -> bool:
        """Whether the row has left before, so that its noise must not count again."""
        again = any(z.shape == old.shape and torch.equal(z, old) for old in self._seen)
        self._seen = [*self._seen[-7:], z.detach().clone()]
        return again

    def add(
        self,
        x: Float[Tensor, "n d"],
        ref: Float[Tensor, "n d"],
        z: Float[Tensor, "n d"],
        scale: float | Float[Tensor, "n 1"] = 1.0,
    ) -> None:
        """Adds rows, their references and releases, with `scale` times the noise."""
        if not self.noise or not len(x):
            return
        x, ref, z = (rows.detach().double() for rows in (x, ref, z))
        away = x - ref
        lengths = away.norm(dim=1, keepdim=True).clamp(min=1e-300)
        clean = ref + away * (self.clip / lengths).clamp(max=1)
        self.add_clean(clean, x - clean, z, scale)

    def add_clean(
        self,
        clean: Tensor,
        excess: Tensor,
        z: Tensor,
        scale: float | Tensor = 1.0,
    ) -> None:
        """Adds clipped rows without noise, what clipping removed, and the releases."""
        if not self.noise:
            return
        deviation = self.noise * scale
        r, e = (z.double() - clean) / deviation, excess / deviation
        fine = (r.isfinite() & e.isfinite()).all(1)
        r, e = r[fine], e[fine]
        self.numbers += r.numel()
        self.squares += float(r.square().sum())
        self.along += float((r * e).sum())
        self.excess += float(e.square().sum())

    def __iadd__(self, others: Residuals) -> Residuals:
        """Adds other residuals of the same promise, perhaps with other noise."""
        for name in ("numbers", "squares", "along", "excess"):
            setattr(self, name, getattr(self, name) + getattr(others, name))
        return self

    def check(self, level: float) -> NoiseCheck | None:
        """The results of both tests; None if no row left with noise.

        Args:
            level: the chance that we accuse a correct mechanism.
        """
        from scipy.stats import chi2, norm  # takes a second to import

        if not self.numbers:
            return None
        each, k = level / 2, self.numbers
        limit = norm.isf(each)
        least = float(chi2.ppf(each, k))
        shift = math.sqrt(self.excess)
        return NoiseCheck(
            k,
            math.sqrt(self.squares / k),
            math.sqrt(least / float(chi2.ppf(_POWER, k))),
            self.squares < least,
            bool(shift and self.along / shift > limit),
            bool(shift > limit + norm.ppf(_POWER)),
        )


def probe_residuals(mechanism: Mechanism, columns: int) -> Residuals:
    """Residuals of made-up rows that are far beyond the clip of a mechanism.

    Real rows may be too short, compared with the noise, to show whether the mechanism
    clips.
    """
    found = Residuals()
    found.expect(mechanism.clip, mechanism.noise)
    rng = torch.Generator().manual_seed(0)
    x, ref = torch.randn(
        2, _PROBES, min(columns, _COLUMNS), generator=rng, dtype=torch.float64
    )
    x = x / x.norm(dim=1, keepdim=True)
    x = ref + (mechanism.clip + _FAR * mechanism.noise) * x
    stream = seeds.key(mechanism.seed, "audit", "probe")
    found.add(x, ref, mechanism.release(x, ref, stream, torch.arange(_PROBES)))
    return found
