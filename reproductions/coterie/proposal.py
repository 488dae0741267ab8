"""A proposal for the next version of coteries: halves that compete before they divide.

It is a prototype for the bench: in rounds, in one process, without momentum, privacy,
newcomers or a flow. Every client i trains its own model v_i, which nobody sees, and the
model w of its group. A group goes through three phases, all groups at once:

    rest       members train w, and tell 64 numbers of v_i: a sketch of v_i - x_0
    trial      two halves of the group compete: a member trains the one that fits its
               training data better, and may change its mind in every round
    contest    halves and whole are trained side by side

The halves are the two sides of the direction in which the sketches differ most. Each
begins as w plus the mean offset of its side, where the offset o_i is the mean of what
the last local steps of i differ from w by. At the beginning of a trial, before anybody
trained them, the halves are compared with w on held-out samples, with standard errors
taken within clients. If they are no better, the trial ends. If they are better by
`SURE` standard errors, the contest begins at once; once one division has passed its
contest, later ones need none. After the contest the halves become groups if their best
use (as they are, or with offsets) beats the best use of the whole by `SURE` standard
errors. Otherwise all go on with the whole; the next rest is twice as long and the next
trial half as long again. Phases count the share of clients heard, not rounds.

Client i uses the model k of own, w, w + o_i and (v_i + w) / 2 with the least

    n_i L_ik + PRIOR mean_j L_jk,

where L_ik is its mean held-out loss over the last rounds and n_i the number of its
held-out samples. So it needs no more from the others than an average of four numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from coterie.optim import Descent, sgd
from coterie.seeds import generator
from coterie.types import Algorithm, Clients, Info, Oracle

REST, TRIAL, CONTEST = range(3)
OWN, WHOLE, TUNED, MIDDLE = range(4)
SURE, PRIOR, CAP = 2.5, 30.0, 2.0
FIRST_TRIAL, CONTEST_LENGTH = 3.0, 2.0
LONGER_TRIAL, LONGER_REST = 1.5, 2.0
MEMORY, RATE, BUCKETS = 0.8, 0.25, 64


class Clock(NamedTuple):
    """Which phase it is, for how long, and what earlier trials found."""

    phase: int = REST
    heard: float = 0.0  # share of the clients, added up over rounds of this phase
    rest: float = 1.0
    trial: float = FIRST_TRIAL
    hurried: bool = False  # whether the contest began without a trial
    settled: bool = False  # whether a division has passed a contest

    @property
    def length(self) -> float:
        """Of the present phase, in shares of the clients heard."""
        return (self.rest, self.trial, CONTEST_LENGTH)[self.phase]


class Evidence(NamedTuple):
    """Of held-out losses, whole - half, for the pairs (half, whole), tuned or not."""

    samples: Tensor  # (N,)
    total: Tensor  # (N, 2, 2)
    around: Tensor  # (N, 2, 2) squares around each client's mean
    known: Tensor  # (N,) heard in this trial or contest


class State(NamedTuple):
    """Models of N clients, and what a coordinator remembers of them."""

    own: Tensor  # (N, D)
    whole: Tensor  # (N, D) of one's group
    halves: Tensor  # (N, 2, D)
    offset: Tensor  # (N, D) from the whole
    half_offset: Tensor  # (N, D) from the half that one takes
    losses: Tensor  # (N, 4) discounted sums over rounds
    rounds: Tensor  # (N,) discounted number of them
    cap: Tensor  # (N,)
    member: Tensor  # (N,)
    pick: Tensor  # (N,)
    choice: Tensor  # (N,)
    sketch: Tensor  # (N, 64)
    evidence: Evidence
    clock: Clock
    first: Tensor  # (D,)
    t: int


def client_round(
    clients: Clients,
    own: Tensor,
    whole: Tensor,
    half: Float[Tensor, "n d"],
    losses: Float[Tensor, "n 4"],
    cap: Tensor,
    pick: Int[Tensor, " n"],
    told: Float[Tensor, "n 9"],
    halves: Float[Tensor, "n 2 d"],
    offset: Tensor,
    half_offset: Tensor,
    *,
    lr: float,
    steps: int,
    t: int,
    phase: int,
) -> tuple[Tensor, ...]:
    """A client program: held-out losses of all models, then local steps."""
    held = clients.validation()

    def train(x: Tensor) -> Tensor:
        return sgd(clients, x, x[:, :0], rule=Descent(lr), steps=steps, t=t)[0]

    def loss(x: Tensor) -> Tensor:
        return -cap[:, None] * torch.expm1(-held.losses(x) / cap[:, None])

    raw = held.losses(whole)
    cap = torch.where(cap > 0, cap, CAP * raw.nanmean(1))
    wholes = loss(whole), loss(whole + offset)
    found = [loss(own), *wholes, loss((own + whole) / 2)]
    losses = torch.stack([one.nanmean(1) for one in found], 1)
    if phase != REST:
        data = clients.whole()
        pick = torch.stack([data.loss(one) for one in halves.unbind(1)], 1).argmin(1)
        half = halves[torch.arange(len(pick)), pick]
        pairs = [w - h for h in (loss(half), loss(half + half_offset)) for w in wholes]
        d = torch.stack(pairs, 1).double()  # (n, 4, b)
        around = (d - d.nanmean(2, keepdim=True)).square().nansum(2)
        samples = (~raw.isnan()).sum(1, keepdim=True).double()
        told = torch.cat([samples, d.nansum(2), around], 1)
        half = train(half)
    if phase != TRIAL:
        whole = train(whole)
    return train(own), whole, half, losses, cap, pick, told


def sketches(v: Float[Tensor, "n d"]) -> Float[Tensor, "n s"]:
    """Directions in a few numbers: columns are added up in buckets, with signs."""
    v = torch.nn.functional.normalize(v.double())
    if v.shape[1] <= BUCKETS:
        return v
    rng = generator("sketch", v.shape[1])
    bucket = torch.randint(BUCKETS, v.shape[1:], generator=rng)
    sign = 2.0 * torch.randint(2, v.shape[1:], generator=rng) - 1
    return v.new_zeros(len(v), BUCKETS).index_add_(1, bucket, v * sign)


def sides(sketch: Float[Tensor, "n s"], member: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    """The two sides of each group, 0 and 1; those of unknown direction are 0."""
    side = torch.zeros_like(member)
    for group in member.unique():
        here = (member == group) & sketch.any(1)
        if int(here.sum()) > 1:
            apart = sketch[here] - sketch[here].mean(0)
            along = apart @ torch.linalg.eigh(apart.T @ apart).eigenvectors[:, -1]
            side[here] = (along * (along**3).sum() > 0).long()
    return side


def surely_better(
    of: Evidence, member: Int[Tensor, " n"], *, as_they_are: bool
) -> dict[int, float]:
    """By how many standard errors the halves of each group are better than it."""
    found = {}
    for group in member.unique().tolist():
        here = (member == group) & of.known
        n, total, around = of.samples[here], of.total[here], of.around[here]
        sums = total.sum(0)
        half, whole = int(sums.sum(1).argmax()), int(sums.sum(0).argmin())
        if as_they_are:
            half = whole = 0
        spread = (around[:, half, whole] * n / (n - 1).clamp(min=1)).sum()
        if not bool((n > 1).any()):
            spread = total[:, half, whole].square().sum()
        found[group] = float(sums[half, whole] / spread.clamp(min=1e-30).sqrt())
    return found


def proposal(sizes: Tensor, held: Tensor, *, lr: float, steps: int) -> Algorithm:
    """The proposal, for clients with so many training and held-out samples."""
    shares, many = sizes / sizes.sum(), len(sizes)

    def init(x: Tensor, oracle: Oracle) -> State:
        zero = torch.zeros(many, dtype=torch.long)
        columns = min(x.shape[1], BUCKETS)
        return State(
            own=x,
            whole=x,
            halves=torch.stack([x, x], 1),
            offset=torch.zeros_like(x),
            half_offset=torch.zeros_like(x),
            losses=x.new_zeros(many, 4),
            rounds=x.new_zeros(many),
            cap=x.new_zeros(many),
            member=zero,
            pick=zero,
            choice=zero + WHOLE,
            sketch=x.new_zeros(many, columns, dtype=torch.float64),
            evidence=_nothing(many),
            clock=Clock(),
            first=x[0],
            t=0,
        )

    def step(state: State, oracle: Oracle, rng: object) -> tuple[State, Info]:
        active, phase = oracle.active, state.clock.phase
        rows = state.own, state.whole, state.own, state.losses, state.cap, state.pick
        own, whole, half, losses, cap, pick, told = oracle.each(
            client_round,
            *(*rows, state.own.new_zeros(many, 9, dtype=torch.float64)),
            *(state.halves, state.offset, state.half_offset),
            **{"lr": lr, "steps": steps, "t": state.t, "phase": phase},
        )
        heard = (
            _heard(state.evidence, active, told) if phase != REST else _nothing(many)
        )
        sketch = torch.where(active[:, None], sketches(own - state.first), state.sketch)
        keep = torch.where(active, MEMORY, 1.0)
        after = state._replace(
            own=own,
            losses=torch.where(
                active[:, None], MEMORY * state.losses + losses, state.losses
            ),
            rounds=keep * state.rounds + active,
            cap=cap,
            pick=pick,
            sketch=sketch,
            evidence=heard,
            t=state.t + steps,
        )
        after = _averaged(after, state, oracle, shares, whole, half)
        after = _next_phase(after, oracle, shares)
        after = after._replace(choice=_chosen(after, active, held))
        alone = (after.choice == OWN).double()
        return after, {"groups": float(len(after.member.unique())), "alone": alone}

    return Algorithm(init, step, lambda state, oracle: in_use(state))


def in_use(state: State) -> Float[Tensor, "n d"]:
    """The model that each client uses."""
    own, whole = state.own, state.whole
    models = torch.stack([own, whole, whole + state.offset, (own + whole) / 2], 1)
    return models[torch.arange(len(own)), state.choice]


def _chosen(state: State, active: Tensor, held: Tensor) -> Int[Tensor, " n"]:
    losses = state.losses / state.rounds.clamp(min=1e-9)[:, None]
    prior = losses[active].mean(0)
    best = (held[:, None] * losses + PRIOR * prior).argmin(1)
    return torch.where(active, best, state.choice)


def _nothing(many: int) -> Evidence:
    zero = torch.zeros(many, dtype=torch.float64)
    pairs = zero[:, None, None].expand(-1, 2, 2)
    return Evidence(zero, pairs, pairs, zero.bool())


def _heard(old: Evidence, active: Bool[Tensor, " n"], told: Tensor) -> Evidence:
    def newest(new: Tensor, before: Tensor) -> Tensor:
        return torch.where(active.view(-1, *[1] * (new.dim() - 1)), new, before)

    total, around = told[:, 1:5].unflatten(1, (2, 2)), told[:, 5:].unflatten(1, (2, 2))
    return Evidence(
        newest(told[:, 0], old.samples),
        newest(total, old.total),
        newest(around, old.around),
        old.known | active,
    )


def _averaged(
    new: State, old: State, oracle: Oracle, shares: Tensor, whole: Tensor, half: Tensor
) -> State:
    """New models of groups and of halves, and offsets from them."""
    phase, active, member = old.clock.phase, oracle.active, old.member
    rows = torch.arange(len(member))

    def mean(x: Tensor, who: Tensor, before: Tensor) -> Tensor:
        part = shares * who * active
        found = oracle.average(part, x, member, count=len(member))
        return torch.where(torch.isin(member, member[part > 0])[:, None], found, before)

    def moved(offset: Tensor, apart: Tensor) -> Tensor:
        rate = torch.where(offset.any(1), RATE, 1.0) * active
        return offset + rate[:, None] * (apart - offset)

    if phase != TRIAL:
        w = mean(whole, torch.ones_like(active), old.whole)
        new = new._replace(whole=w, offset=moved(old.offset, whole - w))
    if phase == REST:
        return new
    both = [mean(half, new.pick == side, old.halves[:, side]) for side in (0, 1)]
    halves = torch.stack(both, 1)
    kept = torch.where((new.pick == old.pick)[:, None], old.half_offset, 0)
    apart = half - halves[rows, new.pick]
    new = new._replace(halves=halves, half_offset=moved(kept, apart))
    if phase == CONTEST:
        return new
    # In a trial the whole is the mean of its halves, by who takes them.
    second = shares * (new.pick == 1)
    part = torch.zeros_like(shares).index_add(0, member, second)
    part = part / torch.zeros_like(shares).index_add(0, member, shares).clamp(min=1e-30)
    w = halves[:, 0].lerp(halves[:, 1], part[member][:, None].to(halves))
    return new._replace(whole=w, offset=moved(old.offset, half - w))


def _next_phase(state: State, oracle: Oracle, shares: Tensor) -> State:
    """What follows from this round for groups, halves and the clock."""
    clock, begins = state.clock, state.clock.heard == 0
    heard = clock.heard + float(oracle.present.double().mean())
    clock = clock._replace(heard=heard)
    over = heard >= clock.length - 1e-9
    if clock.phase == TRIAL and begins:
        better = surely_better(state.evidence, state.member, as_they_are=True)
        if clock.settled and max(better.values()) > SURE:
            return _divided(state._replace(clock=clock), better)
        if not clock.settled and better[int(state.member[0])] > SURE:
            new = clock._replace(phase=CONTEST, heard=0.0, hurried=True)
            return state._replace(clock=new)
        if max(better.values()) <= 0:
            return _divided(state._replace(clock=clock), better)
    if not over:
        return state._replace(clock=clock)
    if clock.phase == REST:
        return _with_halves(state._replace(clock=clock), oracle, shares)
    if clock.phase == TRIAL:
        return state._replace(clock=clock._replace(phase=CONTEST, heard=0.0))
    better = surely_better(state.evidence, state.member, as_they_are=False)
    return _divided(state._replace(clock=clock), better)


def _with_halves(state: State, oracle: Oracle, shares: Tensor) -> State:
    """A trial begins, where some group has two members or more."""
    member, clock = state.member, state.clock._replace(heard=0.0)
    if int(torch.bincount(member).max()) < 2:
        return state._replace(clock=clock)
    side = sides(state.sketch, member)
    both = []
    for wanted in (0, 1):
        part = shares * (side == wanted) * oracle.active
        mean = oracle.average(part, state.offset, member, count=len(member))
        both.append(state.whole + mean)  # of nobody, the mean is 0
    return state._replace(
        halves=torch.stack(both, 1),
        half_offset=torch.zeros_like(state.half_offset),
        pick=side,
        evidence=_nothing(len(member)),
        clock=clock._replace(phase=TRIAL),
    )


def _divided(state: State, better: dict[int, float]) -> State:
    """After a trial: groups whose halves are surely better become two."""
    member, rows = state.member.clone(), torch.arange(len(state.member))
    whole, offset, rounds = state.whole, state.offset, state.rounds
    losses, divided = state.losses, False
    for group, gain in better.items():
        here = state.member == group
        second = here & (state.pick == 1)
        if gain <= SURE or not bool(second.any()) or bool((second == here).all()):
            continue
        member[second] = int(torch.bincount(member, minlength=len(member)).argmin())
        half = state.halves[rows, state.pick]
        whole = torch.where(here[:, None], half, whole)
        offset = torch.where(here[:, None], state.half_offset, offset)
        # All that is known of the models before counts as one round.
        mean = losses / rounds.clamp(min=1e-9)[:, None]
        losses = torch.where(here[:, None], mean, losses)
        rounds = torch.where(here, 1, rounds)
        divided = True
    clock = state.clock
    again = clock.hurried and not divided and max(better.values()) > 0
    if again:  # the halves get the time that they were not given
        clock = clock._replace(phase=TRIAL, heard=1e-6, hurried=False)
    elif divided:
        clock = Clock(settled=True)
    else:
        clock = Clock(
            rest=clock.rest * LONGER_REST,
            trial=clock.trial * LONGER_TRIAL,
            settled=clock.settled,
        )
    return state._replace(
        member=member,
        whole=whole,
        offset=offset,
        losses=losses,
        rounds=rounds,
        clock=clock,
    )
