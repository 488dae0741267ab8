"""Decisions of a coordinator: groups divide if held-out data support it.

All clients begin in one group, and all groups go through phases together:

    REST      members train the group's model, and send their mean updates
    TRIAL     two halves of the group compete: a member trains the one that fits its
              training data better, and may change its mind
    CONTEST   halves and whole are trained side by side, and only members that missed
              the trial choose a half
    PIECES    a contest of more than two pieces, which members do not choose

`coterie.collaboration.pieces` proposes halves or pieces from the members' updates,
added up since the beginning. Held-out losses decide. A *look* is a round in which
clients send updates or evidence, and the coordinator decides:

- The first look compares halves with the whole before anybody has trained the halves.
  Halves are dropped if they are not better; pieces are dropped if they are not better
  by `sure`. The contest of halves begins at once if they are better by twice `sure`.
  After a division has passed a contest once, later halves or pieces need no contest if
  they are better by `sure` at their first look.
- After a trial, halves get a contest if they are better by one standard error.
- After a contest, halves or pieces become groups if they are surely better than the
  whole, and also better than the whole with the offset of each client (`BetterBy`).
- Otherwise all clients continue with the whole. After pieces, two halves are tried
  next, and no pieces until a group divides. After halves, the next trial is 1.5 times
  as long, and the next rest 3 times.

Every look adds the share of clients that took part to a sum. A phase is over when the
sum reaches the length of the phase. So a look with few clients counts less.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from ..types import Told
from .pieces import BUCKETS, pieces, sides, sketch_rows

REST, TRIAL, CONTEST, PIECES = range(4)

_FIRST_TRIAL, _CONTEST = 3.0, 2.0
"""Lengths of phases, as sums of the share of clients that took part in each look."""

_LONGER_REST, _LONGER_TRIAL = 3.0, 1.5
"""Factors of the next lengths if halves did not become groups."""

_HOPE = 1.0
"""After a trial, halves that are better by this many standard errors get a contest."""

_MOST = 3.0
"""The largest length of an update, in units of the median length of all updates."""

_NEARLY = 1e-9
"""Rounding may make a sum of shares smaller by this."""

PAIRS = 2
"""The number of comparisons: half with whole, and half with whole plus offset."""


class PhaseClock(NamedTuple):
    """The current phase, how long it has lasted, and the results of earlier trials."""

    phase: int = REST
    heard: float = 0.0  # share of clients that took part, summed over looks
    rest: float = 1.0
    trial: float = _FIRST_TRIAL
    settled: bool = False  # whether a division has passed a contest
    deep: bool = True  # whether more than two pieces may be tried

    @property
    def length(self) -> float:
        """The length of this phase."""
        return (self.rest, self.trial, _CONTEST, _CONTEST)[self.phase]

    @property
    def is_over(self) -> bool:
        """Whether the phase has reached its length."""
        return self.heard >= self.length - _NEARLY

    @property
    def asks(self) -> bool:
        """Whether the evidence of the next look can lead to a decision."""
        begins = self.phase in (TRIAL, PIECES) and self.heard == 0
        ends = self.heard >= self.length - 1 - _NEARLY
        return self.phase != REST and (begins or ends)


class Evidence(NamedTuple):
    """Loss of the whole minus loss of the half, on the held-out samples of each client.

    The first column is for the whole as it is, and the second for the whole plus the
    client's offset.
    """

    total: Float[Tensor, "n 2"]  # sums over samples
    around: Float[Tensor, "n 2"]  # sums of squares around the client's own mean


class Coordinator(NamedTuple):
    """What a coordinator remembers about all N clients."""

    member: Tensor  # (N,) the group of each client, a whole number
    pair: Tensor  # (N,) the pair of halves, or the piece, of each client
    pick: Tensor  # (N,) the half that each client takes; 0 for pieces
    shares: Tensor  # (N,) weights of clients in averages
    samples: Tensor  # (N,) numbers of held-out samples
    sketch: Tensor  # (N, S) sketches of the sums of updates
    evidence: Evidence
    clock: PhaseClock

    @property
    def groups(self) -> int:
        """The number of groups; they are numbered from 0."""
        return int(self.member.max()) + 1


class Places(NamedTuple):
    """What clients receive; the last four are the same for all clients."""

    member: Told  # (n,)
    pair: Told  # (n,)
    together: Told  # (n,) the number of clients in the group of each client
    second: Told  # (n,) the share of the client's pair that takes the second half
    phase: Told  # (n,)
    groups: Told  # (n,)
    pairs: Told  # (n,)
    asks: Told  # (n,) whether clients must send evidence


def one_group(
    shares: Float[Tensor, " n"], samples: Float[Tensor, " n"], columns: int
) -> Coordinator:
    """The coordinator at the start: one group of all clients, without any updates.

    Args:
        shares: weights of clients in averages.
        samples: number of held-out samples of each client.
        columns: number of columns of a model.
    """
    zero = torch.zeros(len(shares), dtype=torch.long, device=shares.device)
    sketch = shares.new_zeros(len(shares), min(columns, BUCKETS))
    told = samples.to(shares), sketch, _nothing(shares), PhaseClock()
    return Coordinator(zero, zero, zero, shares, *told)


def places(of: Coordinator) -> Places:
    """The group, the pair and the phase of each client, as it receives them."""
    together = torch.bincount(of.member, minlength=len(of.member))[of.member]
    pairs = int(of.pair.max()) + 1
    total = _totals(of.shares, of.pair, pairs)
    second = _totals(of.shares * of.pick, of.pair, pairs) / total
    common = of.clock.phase, of.groups, pairs, int(of.clock.asks)
    same = [torch.full_like(of.member, number) for number in common]
    return Places(of.member, of.pair, together, second[of.pair], *same)


def with_directions(
    old: Coordinator,
    who: Int[Tensor, " p"],
    update: Float[Tensor, "p d"],
    rounds: Float[Tensor, " p"],
) -> tuple[Coordinator, Float[Tensor, ""]]:
    """The coordinator after a look in a rest, and the largest length of an update.

    If the rest is over and some group has two sides, halves or pieces are tried next.

    Args:
        old: the coordinator before the look.
        who: clients that take part.
        update: for each of these clients, the change of the shared model by its local
            steps: a mean over the rounds since the client last sent one.
        rounds: the number of rounds in each mean.
    """
    length = torch.linalg.vector_norm(update, dim=1, dtype=torch.float64)
    finite = length.isfinite()
    known = length[finite & (length > 0)]
    most = _MOST * known.median() if len(known) else length.new_tensor(torch.inf)
    # A sketch is linear, so all that follows can use the few numbers of the sketch.
    few = sketch_rows(update).double() * (most / length).clamp(max=1)[:, None]
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
    pair, phase = old.member, TRIAL
    piece = pieces(sketch, old.member, side) if clock.deep else None
    if piece is not None:
        pair, side, phase = piece, torch.zeros_like(side), PIECES
    new = new._replace(pair=pair, pick=side, evidence=_nothing(old.shares))
    return new._replace(clock=clock._replace(phase=phase)), most


def with_evidence(
    old: Coordinator,
    who: Int[Tensor, " p"],
    pick: Int[Tensor, " p"],
    told: Float64[Tensor, "p 4"] | None,
    *,
    sure: float,
) -> tuple[Coordinator, Bool[Tensor, " n"]]:
    """The coordinator after a look at halves or pieces, and which clients moved.

    A client has moved if its half or piece became a group.

    Args:
        old: the coordinator before the look.
        who: clients that take part.
        pick: the halves that they take.
        told: the `Evidence` of these clients, field by field; None if nobody asked for
            it.
        sure: standard errors by which halves must be better.
    """
    begins, clock = old.clock.heard == 0, old.clock
    clock = clock._replace(heard=clock.heard + len(who) / len(old.member))
    new = old._replace(pick=old.pick.index_copy(0, who, pick), clock=clock)
    if told is not None:
        parts = told.to(old.evidence.total).split(PAIRS, 1)
        pairs = zip(old.evidence, parts, strict=True)
        kept = Evidence(*(a.index_copy(0, who, b) for a, b in pairs))
        new = new._replace(evidence=kept)
    nobody = torch.zeros_like(old.member, dtype=torch.bool)
    better = better_by(new)
    if clock.phase in (TRIAL, PIECES) and begins:
        if clock.settled and bool((better.plain > sure).any()):
            return _divide_groups(new, better.plain > sure)
        if bool((better.plain <= (sure if clock.phase == PIECES else 0)).all()):
            return _begin_rest(new), nobody
        if clock.phase == TRIAL and bool((better.plain > 2 * sure).any()):
            clock = clock._replace(phase=CONTEST, heard=0.0)
            return new._replace(clock=clock), nobody
    if not clock.is_over:
        return new, nobody
    if clock.phase != TRIAL:
        return _divide_groups(new, better.surely(sure))
    if bool((better.plain > _HOPE).any()):
        # After a trial, offsets come from halves. So only the whole as it is counts.
        return new._replace(clock=clock._replace(phase=CONTEST, heard=0.0)), nobody
    return _begin_rest(new), nobody


def _divide_groups(
    old: Coordinator, becomes: Bool[Tensor, " c"]
) -> tuple[Coordinator, Bool[Tensor, " n"]]:
    """The coordinator after these groups divide, and which clients moved.

    If no group divides, a rest begins.
    """
    member, free = old.member.clone(), old.groups
    piece = 2 * old.pair + old.pick
    for group in becomes.nonzero()[:, 0].tolist():
        _, *others = piece[old.member == group].unique().tolist()
        for one in others:  # the first keeps the number of the group
            here = (old.member == group) & (piece == one)
            member[here], free = free, free + 1
    if free == old.groups:
        return _begin_rest(old), torch.zeros_like(member, dtype=torch.bool)
    size = torch.bincount(old.member, minlength=len(member))
    moved = torch.bincount(member, minlength=len(member))[member] < size[old.member]
    clock = PhaseClock(settled=True)
    return old._replace(member=member, pair=member, clock=clock), moved


def _begin_rest(old: Coordinator) -> Coordinator:
    """The coordinator if halves or pieces do not become groups."""
    clock = old.clock
    if clock.phase == PIECES:
        # Two halves may be enough, so they are tried after the next look.
        clock = clock._replace(phase=REST, heard=max(0.0, clock.rest - 1), deep=False)
    else:
        rest = clock.rest * _LONGER_REST
        trial = clock.trial * _LONGER_TRIAL
        clock = clock._replace(phase=REST, heard=0.0, rest=rest, trial=trial)
    return old._replace(pair=old.member, clock=clock)


class BetterBy(NamedTuple):
    """By how many standard errors the halves of each group are better than the whole.

    The tuned whole is the whole plus the offset of each client.
    """

    plain: Float64[Tensor, " c"]  # than the whole
    tuned: Float64[Tensor, " c"]  # than the tuned whole

    def surely(self, sure: float) -> Bool[Tensor, " c"]:
        """Which groups divide, after halves and whole were trained side by side.

        If labels are skewed, halves are better than the whole, but they are not better
        than the tuned whole.
        """
        return (self.plain > sure) & (self.tuned > 0)


def better_by(of: Coordinator) -> BetterBy:
    """By how much the halves or pieces of each group are better than the group.

    Standard errors come from the samples within each client. So one client that gains
    much is still visible among many clients that gain nothing.
    """
    count, n = of.groups, of.samples.double()
    total, around = (part.double() for part in of.evidence)
    spread = around * (n / (n - 1).clamp(min=1))[:, None]
    few = _totals((n > 1).double(), of.member, count) == 0
    spread = torch.where(few[of.member][:, None], total**2, spread)
    error = _totals(spread, of.member, count).clamp(min=1e-300).sqrt()
    return BetterBy(*(_totals(total, of.member, count) / error).unbind(1))


def _nothing(shares: Tensor) -> Evidence:
    pairs = shares.new_zeros(len(shares), PAIRS)
    return Evidence(pairs, pairs)


def _totals(rows: Tensor, member: Int[Tensor, " n"], count: int) -> Tensor:
    """Sums of rows over the members of each group."""
    return rows.new_zeros(count, *rows.shape[1:]).index_add_(0, member, rows)


def _group_means(
    rows: Float64[Tensor, "p d"], member: Int[Tensor, " p"], shares: Float[Tensor, " p"]
) -> Float64[Tensor, "p d"]:
    """For each row, the mean of the rows of its group."""
    names, place = member.unique(return_inverse=True)
    weight = shares.double()
    total = _totals(weight[:, None] * rows, place, len(names))
    return (total / _totals(weight, place, len(names)).clamp(min=1e-300)[:, None])[
        place
    ]
