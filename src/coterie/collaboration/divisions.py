"""Groups that divide where held-out data say so: what a coordinator decides.

All clients begin in one group, and all groups go through phases together:

    REST      members train the group's model, and tell in which direction they would go
    TRIAL     two halves of the group compete: a member trains the one that fits its
              training data better, and may change its mind
    CONTEST   halves and whole are trained side by side, and only members that were away
              in the trial choose a half
    PIECES    the same for more than two pieces, between which nobody chooses

`coterie.collaboration.pieces` proposes halves or pieces from the members' updates,
added up since the beginning. Held-out losses decide:

- Before anybody has trained halves, they are compared with the whole. They are given up
  if they are not better, and their contest begins at once if they are better by twice
  `sure`. After one division has passed a contest, later ones need none if they are
  better by `sure`.
- After a trial, halves have a contest if they are better by one standard error.
- After a contest, halves or pieces become groups if they are surely better than the
  whole, and also better than the whole with what each client differs by (`BetterBy`).
- Otherwise all go on with the whole. After pieces, two halves are tried next. After
  halves, the next trial is 1.5 times as long, and the next rest 3 times.

Phases last until the shares of clients that were heard add up to their length, so
rounds in which few take part count less.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from ..types import Rows
from .pieces import BUCKETS, pieces, sides, sketched

REST, TRIAL, CONTEST, PIECES = range(4)

_FIRST_TRIAL, _CONTEST, _PIECES = 3.0, 2.0, 3.0
"""Lengths of phases, in shares of the clients that were heard."""

_LONGER_REST, _LONGER_TRIAL = 3.0, 1.5
"""Factors of the next lengths, where halves did not become groups."""

_HOPE = 1.0
"""Standard errors by which halves must be better after a trial to get a contest."""

_MOST = 3.0
"""An update counts for at most this many times the median length of all."""

_NEARLY = 1e-9
"""What rounding may take from a sum of shares."""

PAIRS = 2
"""The half against the whole as it is, and against the whole with the offset."""


class PhaseClock(NamedTuple):
    """Which phase it is, for how long, and what earlier trials found."""

    phase: int = REST
    heard: float = 0.0  # shares of the clients, added up over looks of this phase
    rest: float = 1.0
    trial: float = _FIRST_TRIAL
    settled: bool = False  # whether a division has passed a contest
    deep: bool = True  # whether more than two pieces may be tried

    @property
    def length(self) -> float:
        """How long this phase lasts."""
        return (self.rest, self.trial, _CONTEST, _PIECES)[self.phase]

    @property
    def is_over(self) -> bool:
        """Whether the phase has lasted as long as it should."""
        return self.heard >= self.length - _NEARLY

    @property
    def asks(self) -> bool:
        """Whether evidence of the next look may decide something."""
        begins = self.phase in (TRIAL, PIECES) and self.heard == 0
        ends = self.heard >= self.length - 1 - _NEARLY
        return self.phase != REST and (begins or ends)


class Evidence(NamedTuple):
    """Held-out losses of wholes minus halves, in pairs, of each client."""

    total: Float[Tensor, "n 2"]
    around: Float[Tensor, "n 2"]  # squares around the client's own mean


class Coordinator(NamedTuple):
    """What a coordinator remembers of all N clients."""

    member: Tensor  # (N,) the group of each, a whole number
    pair: Tensor  # (N,) the pair of halves, or the piece, that each belongs to
    pick: Tensor  # (N,) the half that each takes; 0 of pieces
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
    """What clients are told; the last four are the same for everybody."""

    member: Rows  # (n,)
    pair: Rows  # (n,)
    together: Rows  # (n,) the number of clients in its group
    second: Rows  # (n,) the share of its pair that takes the second half
    phase: Rows  # (n,)
    groups: Rows  # (n,)
    pairs: Rows  # (n,)
    asks: Rows  # (n,) whether evidence is wanted


def one_group(
    shares: Float[Tensor, " n"], samples: Float[Tensor, " n"], columns: int
) -> Coordinator:
    """Everybody together, and nothing known of models with this number of columns.

    Args:
        shares: of clients in averages.
        samples: that each holds out.
        columns: of a model.
    """
    zero = torch.zeros(len(shares), dtype=torch.long, device=shares.device)
    sketch = shares.new_zeros(len(shares), min(columns, BUCKETS))
    told = samples.to(shares), sketch, _nothing(shares), PhaseClock()
    return Coordinator(zero, zero, zero, shares, *told)


def places(of: Coordinator) -> Places:
    """What clients are told of where they stand."""
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
    """After a look in a rest, and the length beyond which an update is cut.

    If the rest is over, halves or pieces are tried where some group has two sides.

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
    """After a look where halves or pieces are tried, and for whom they became a group.

    Args:
        old: what is known so far.
        who: takes part.
        pick: the halves that these take.
        told: their evidence, in the order of its fields, where it was asked for.
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
            return _divided(new, better.plain > sure)
        if bool((better.plain <= (sure if clock.phase == PIECES else 0)).all()):
            return _rested(new), nobody
        if clock.phase == TRIAL and bool((better.plain > 2 * sure).any()):
            clock = clock._replace(phase=CONTEST, heard=0.0)
            return new._replace(clock=clock), nobody
    if not clock.is_over:
        return new, nobody
    if clock.phase != TRIAL:
        return _divided(new, better.surely(sure))
    if bool((better.plain > _HOPE).any()):
        # What clients differ from the whole by comes from their halves here, so
        # halves and whole are compared as they are.
        return new._replace(clock=clock._replace(phase=CONTEST, heard=0.0)), nobody
    return _rested(new), nobody


def _divided(
    old: Coordinator, becomes: Bool[Tensor, " c"]
) -> tuple[Coordinator, Bool[Tensor, " n"]]:
    """After the halves or pieces of these groups became groups; a rest, if of none."""
    member, free = old.member.clone(), old.groups
    piece = 2 * old.pair + old.pick
    for group in becomes.nonzero()[:, 0].tolist():
        _, *others = piece[old.member == group].unique().tolist()
        for one in others:  # the first keeps the name
            here = (old.member == group) & (piece == one)
            member[here], free = free, free + 1
    if free == old.groups:
        return _rested(old), torch.zeros_like(member, dtype=torch.bool)
    size = torch.bincount(old.member, minlength=len(member))
    moved = torch.bincount(member, minlength=len(member))[member] < size[old.member]
    clock = PhaseClock(settled=True)
    return old._replace(member=member, pair=member, clock=clock), moved


def _rested(old: Coordinator) -> Coordinator:
    """After halves or pieces that did not become groups: what comes next."""
    clock = old.clock
    if clock.phase == PIECES:
        # Perhaps two are enough: they are tried after the next look.
        clock = clock._replace(phase=REST, heard=max(0.0, clock.rest - 1), deep=False)
    else:
        rest = clock.rest * _LONGER_REST
        trial = clock.trial * _LONGER_TRIAL
        clock = PhaseClock(REST, 0.0, rest, trial, settled=clock.settled)
    return old._replace(pair=old.member, clock=clock)


class BetterBy(NamedTuple):
    """By how many standard errors the halves of each group are better than the whole.

    The tuned whole is the whole with what each client differs from it by.
    """

    plain: Float64[Tensor, " c"]  # than the whole
    tuned: Float64[Tensor, " c"]  # than the tuned whole

    def surely(self, sure: float) -> Bool[Tensor, " c"]:
        """Halves that become groups, after both they and the whole were trained.

        Where labels are skewed, halves are better than the whole, but not than the
        tuned whole.
        """
        return (self.plain > sure) & (self.tuned > 0)


def better_by(of: Coordinator) -> BetterBy:
    """By how much the halves or pieces of each group are better than it.

    Standard errors are of samples within clients, so that one client with much to gain
    is seen among many who gain nothing.
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
