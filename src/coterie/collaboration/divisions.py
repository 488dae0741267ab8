"""Groups that divide where held-out data say so: what a coordinator decides.

All clients begin in one group, and all groups go through three phases together:

    REST      members train the group's model, and tell in which direction they would go
    TRIAL     two halves of the group compete: a member trains the one that fits its
              training data better, and may change its mind
    CONTEST   halves and whole are trained side by side, and only who was not there in
              the trial chooses a half

Halves are the two sides of the direction in which the members' updates, added up since
the beginning, differ most. Before anybody has trained them, the halves are compared
with the whole on held-out samples. If they are no better, the trial ends. If they are
better by twice `sure` standard errors, the contest begins at once. After one division
has passed its contest, later ones need none, if halves are better by `sure` standard
errors at once. After the contest, halves become groups if they are better by `sure`
standard errors. Otherwise all go on with the whole, and both
the next rest and the next trial are longer. Phases last until the shares of clients
that were heard add up to their length, so rounds in which few take part count less.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from ..seeds import generator
from ..types import Rows

REST, TRIAL, CONTEST = range(3)

_FIRST_TRIAL, _CONTEST = 3.0, 2.0
"""Lengths of phases, in shares of the clients that were heard."""

_LONGER_REST, _LONGER_TRIAL = 3.0, 1.5
"""Factors of the next lengths, where halves did not become groups."""

_BUCKETS = 64
"""Numbers by which a coordinator remembers a direction."""

_MOST = 3.0
"""An update counts for at most so many times the median length of all."""

_ALIKE = 1e-6
"""Sum of cubes of a unit vector below which rounding may have made its sign."""

PAIRS = 4
"""Of a half and a whole, each as it is and with what the client differs by."""


class PhaseClock(NamedTuple):
    """Which phase it is, for how long, and what earlier trials found."""

    phase: int = REST
    heard: float = 0.0  # shares of the clients, added up over looks of this phase
    rest: float = 1.0
    trial: float = _FIRST_TRIAL
    hurried: bool = False  # whether the contest began without a trial
    settled: bool = False  # whether a division has passed a contest

    @property
    def is_over(self) -> bool:
        """Whether the phase has lasted as long as it should."""
        length = (self.rest, self.trial, _CONTEST)[self.phase]
        return self.heard >= length - 1e-9


class Evidence(NamedTuple):
    """Held-out losses of wholes minus halves, in pairs, of each client."""

    total: Float[Tensor, "n 4"]
    around: Float[Tensor, "n 4"]  # squares around the client's own mean


class Coordinator(NamedTuple):
    """What a coordinator remembers of all N clients."""

    member: Tensor  # (N,) the group of each, a whole number
    pick: Tensor  # (N,) the half that each takes
    shares: Tensor  # (N,) in averages
    samples: Tensor  # (N,) that each holds out
    sketch: Tensor  # (N, S) sums of updates, in few numbers
    evidence: Evidence
    clock: PhaseClock

    @property
    def groups(self) -> int:
        """How many there are; their names are below it."""
        return int(self.member.max()) + 1


class Places(NamedTuple):
    """What clients are told; the last two are the same for everybody."""

    member: Rows  # (n,)
    moved: Rows  # (n,) whether its half has become its group
    together: Rows  # (n,) how many clients its group has
    second: Rows  # (n,) the share of its group that takes the second half
    phase: Rows  # (n,)
    groups: Rows  # (n,)


def one_group(
    shares: Float[Tensor, " n"], samples: Float[Tensor, " n"], columns: int
) -> Coordinator:
    """Everybody together, and nothing known of models with so many columns.

    Args:
        shares: of clients in averages.
        samples: that each holds out.
        columns: of a model.
    """
    zero = torch.zeros(len(shares), dtype=torch.long, device=shares.device)
    sketch = shares.new_zeros(len(shares), min(columns, _BUCKETS))
    held = samples.to(shares)
    return Coordinator(zero, zero, shares, held, sketch, _nothing(shares), PhaseClock())


def places(of: Coordinator, moved: Bool[Tensor, " n"] | None = None) -> Places:
    """What clients are told of where they stand."""
    moved = torch.zeros_like(of.member, dtype=torch.bool) if moved is None else moved
    together = torch.bincount(of.member, minlength=len(of.member))[of.member]
    total = _totals(of.shares, of.member, of.groups)
    second = _totals(of.shares * of.pick, of.member, of.groups) / total
    same = [torch.full_like(of.member, k) for k in (of.clock.phase, of.groups)]
    return Places(of.member, moved, together, second[of.member], *same)


def with_directions(
    old: Coordinator,
    who: Int[Tensor, " p"],
    update: Float[Tensor, "p d"],
    rounds: Float[Tensor, " p"],
) -> tuple[Coordinator, Float[Tensor, ""]]:
    """After a look in a rest, and the length beyond which an update is cut.

    If the rest is over, a trial begins where some group has two sides.

    Args:
        old: what is known so far.
        who: takes part.
        update: of these, what local steps of a round added to models, on average since
            they were heard last.
        rounds: of how many rounds that is the mean.
    """
    length = torch.linalg.vector_norm(update, dim=1, dtype=torch.float64)
    finite = length.isfinite()  # a direction of nothing is none
    known = length[finite & (length > 0)]
    most = _MOST * known.median() if len(known) else length.new_tensor(torch.inf)
    # A sketch is linear, so that nothing else needs all columns.
    few = sketched(update).double() * (most / length).clamp(max=1)[:, None]
    few = torch.where(finite[:, None], few * rounds[:, None], 0)
    apart = few - _group_means(few, old.member[who], old.shares[who])
    sketch = old.sketch.index_add(0, who, apart.to(old.sketch))
    clock = old.clock._replace(heard=old.clock.heard + len(who) / len(old.member))
    new = old._replace(sketch=sketch, clock=clock)
    if not clock.is_over:
        return new, most
    clock = clock._replace(heard=0.0)
    side = sides(sketch, old.member)
    if not bool(side.any()):
        return new._replace(clock=clock), most
    clock = clock._replace(phase=TRIAL)
    return new._replace(pick=side, evidence=_nothing(old.shares), clock=clock), most


def with_evidence(
    old: Coordinator,
    who: Int[Tensor, " p"],
    pick: Int[Tensor, " p"],
    told: Float64[Tensor, "p 8"],
    *,
    sure: float,
) -> tuple[Coordinator, Bool[Tensor, " n"]]:
    """After a look in a trial or a contest, and whose half has become its group.

    Args:
        old: what is known so far.
        who: takes part.
        pick: the halves that these take.
        told: their evidence, in the order of its fields.
        sure: standard errors by which halves must be better.
    """
    begins, clock = old.clock.heard == 0, old.clock
    clock = clock._replace(heard=clock.heard + len(who) / len(old.member))
    told = told.to(old.evidence.total)
    parts = told[:, :PAIRS], told[:, PAIRS:]
    new = old._replace(
        pick=old.pick.index_copy(0, who, pick),
        evidence=Evidence(
            *(a.index_copy(0, who, b) for a, b in zip(old.evidence, parts, strict=True))
        ),
        clock=clock,
    )
    nobody = torch.zeros_like(old.member, dtype=torch.bool)
    if clock.phase == TRIAL and begins:
        better = surely_better(new, as_they_are=True)
        if bool((better <= 0).all()) or (clock.settled and bool((better > sure).any())):
            return _divided(new, better, sure)
        if not clock.settled and bool((better > 2 * sure).any()):
            clock = clock._replace(phase=CONTEST, heard=0.0, hurried=True)
            return new._replace(clock=clock), nobody
    if not clock.is_over:
        return new, nobody
    if clock.phase == TRIAL:
        return new._replace(clock=clock._replace(phase=CONTEST, heard=0.0)), nobody
    return _divided(new, surely_better(new), sure)


def _divided(
    old: Coordinator, better: Float64[Tensor, " c"], sure: float
) -> tuple[Coordinator, Bool[Tensor, " n"]]:
    """After a trial: groups whose halves are surely better become two."""
    clock, count = old.clock, old.groups
    second = _totals(old.pick.double(), old.member, count)
    size = _totals(torch.ones_like(second[old.member]), old.member, count)
    divides = (better > sure) & (second > 0) & (second < size)
    if not bool(divides.any()):
        if clock.hurried and bool((better > 1).any()):
            # The halves get the time that they were not given.
            clock = clock._replace(phase=TRIAL, heard=1e-6, hurried=False)
        else:
            longer = clock.rest * _LONGER_REST, clock.trial * _LONGER_TRIAL
            clock = PhaseClock(REST, 0.0, *longer, settled=clock.settled)
        return old._replace(clock=clock), torch.zeros_like(old.member).bool()
    moved = divides[old.member]
    name = count - 1 + divides.long().cumsum(0)  # of the second half of each
    member = torch.where(moved & (old.pick == 1), name[old.member], old.member)
    return old._replace(member=member, clock=PhaseClock(settled=True)), moved


def surely_better(
    of: Coordinator, *, as_they_are: bool = False
) -> Float64[Tensor, " c"]:
    """By how many standard errors the halves of each group are better than it.

    Halves and wholes are compared as they are best used, that is as they are or with
    what a client differs by. Standard errors are of samples within clients, so that one
    client with much to gain is seen among many who gain nothing.

    Args:
        of: what is known.
        as_they_are: whether nobody uses what a client differs by.
    """
    count, n = of.groups, of.samples.double()
    total, around = (part.double() for part in of.evidence)
    spread = around * (n / (n - 1).clamp(min=1))[:, None]
    few = _totals((n > 1).double(), of.member, count) == 0
    spread = torch.where(few[of.member][:, None], total**2, spread)
    sums = _totals(total, of.member, count).unflatten(1, (2, 2))  # (C, half, whole)
    spread = _totals(spread, of.member, count)
    half, whole = sums.sum(2).argmax(1), sums.sum(1).argmin(1)
    if as_they_are:
        half, whole = torch.zeros_like(half), torch.zeros_like(whole)
    pair = (2 * half + whole)[:, None]
    gain = sums.flatten(1).gather(1, pair)[:, 0]
    error = spread.gather(1, pair)[:, 0].clamp(min=1e-300).sqrt()
    return gain / error


def sketched(v: Float[Tensor, "n d"]) -> Float[Tensor, "n s"]:
    """Vectors in a few numbers, which nearly keep products and lengths.

    Columns are added up in buckets, with random signs (Charikar, Chen, Farach-Colton,
    "Finding frequent items in data streams", ICALP, 2002).
    """
    if v.shape[1] <= _BUCKETS:
        return v
    bucket, sign = _hashes(v.shape[1])
    found = v.new_zeros(len(v), _BUCKETS)
    return found.index_add_(1, bucket.to(v.device), v * sign.to(v))


@functools.lru_cache(maxsize=8)
def _hashes(columns: int) -> tuple[Tensor, Tensor]:
    rng = generator("sketch", columns)
    bucket = torch.randint(_BUCKETS, (columns,), generator=rng)
    return bucket, 2.0 * torch.randint(2, (columns,), generator=rng) - 1


def sides(sketch: Float[Tensor, "n s"], member: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    """The two sides of each group, 0 and 1; who has no direction is on side 0.

    They are those of the direction in which normalised rows differ most.
    """
    side = torch.zeros_like(member)
    unit = torch.nn.functional.normalize(sketch.double())
    for group in member.unique():
        here = ((member == group) & sketch.any(1)).nonzero()[:, 0]
        apart = unit[here] - unit[here].mean(0)
        values, vectors = torch.linalg.eigh(apart.T @ apart)
        if len(here) < 2 or values[-1] < len(here) * 1e-8:
            continue
        along = apart @ vectors[:, -1]
        # The sign of an eigenvector means nothing. Where both sides are alike, as those
        # of two clients are, its largest entry decides, and not rounding.
        sign = (along**3).sum() / along.norm() ** 3
        if abs(sign) < _ALIKE:
            entries = vectors[:, -1]
            sign = entries[(entries.abs() > entries.abs().max() / 2).int().argmax()]
        side[here] = (along * sign > 0).long()
    return side


def _nothing(shares: Tensor) -> Evidence:
    pairs = shares.new_zeros(len(shares), PAIRS)
    return Evidence(pairs, pairs)


def _totals(rows: Tensor, member: Int[Tensor, " n"], count: int) -> Tensor:
    """Sums of rows over the members of each group."""
    return rows.new_zeros(count, *rows.shape[1:]).index_add_(0, member, rows)


def _group_means(
    rows: Float64[Tensor, "p d"], member: Int[Tensor, " p"], shares: Float[Tensor, " p"]
) -> Float64[Tensor, "p d"]:
    """Of each row, the mean of those of its group."""
    names, place = member.unique(return_inverse=True)
    weight = shares.double()
    total = _totals(weight[:, None] * rows, place, len(names))
    return (total / _totals(weight, place, len(names)).clamp(min=1e-300)[:, None])[
        place
    ]
