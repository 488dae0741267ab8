"""Clients find groups during training, and keep a model trained alone as insurance.

In round t every client i of group c does

    v_i <- `steps` local steps from v_i            its own model, which never leaves it
    u_i <- `steps` local steps from w_c            and then  w_c <- mean of u_i over c
    o_i <- o_i + (u_i - w_c - o_i) / 4             its offset from its group

A group divides if held-out (validation) samples show that its parts are surely better
than the whole. The parts are two halves that compete for members, or several pieces
(`coterie.collaboration.divisions`). Each client uses one of four models: w_c,
w_c + o_i / 2, w_c + o_i and v_i. It takes the model k with the least

    n_i L_ik + 30 M_k,    M_k = mean_j L_jk + 0.01 c (0, 1, 2 or 3, in that order).

L_ik is the mean calibrated loss (`coterie.collaboration.evidence`) of model k on the
n_i held-out samples of client i, and c is the most that one sample counts for. Each
client chooses by itself. Its exact losses stay at home, and it receives the means over
all clients.

So this is local training if nobody helps, and FedAvg if all are alike. It is
personalised FedAvg if labels are skewed, and FedAvg in each group if there are groups.

References:
    Sattler, Müller, Samek, "Clustered federated learning: model-agnostic distributed
    multitask optimization under privacy constraints", IEEE TNNLS, 2020, arXiv
    1910.01991, for halves by directions of updates. Ghosh, Chung, Yin, Ramchandran, "An
    efficient framework for clustered federated learning", NeurIPS, 2020, arXiv
    2006.04088, for models that compete for clients. The rest is ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from ..collaboration.divisions import (
    CONTEST,
    PAIRS,
    PIECES,
    REST,
    TRIAL,
    Coordinator,
    Places,
    one_group,
    places,
    with_directions,
    with_evidence,
)
from ..collaboration.evidence import choices
from ..collaboration.rows import change_rows, mean_of_all
from ..collaboration.shared import Models, first_of_each, models_of
from ..collaboration.weights import shares_of
from ..optim.steps import LocalDecay, LocalDescent, LocalLr, Schedule, sgd, velocity
from ..options import BelowOne, Count, Positive, Sizes, method
from ..types import (
    Algorithm,
    Info,
    LateRows,
    Numbers,
    Options,
    Oracle,
    OwnRows,
    Releases,
    SameRow,
    Server,
    Shared,
    Told,
    fetch,
)
from .coteries_client import (
    CHOICES,
    GROUP,
    HALFWAY,
    OWN,
    TUNED,
    Ballot,
    add_look,
    comparison_of,
    empty_ballot,
    few_of,
    first_look,
    follow,
    limit_update,
    look,
    newcomer_models,
    plan,
    prior,
    shared_steps,
    sharing,
    take_half,
    tell,
    weigh,
)
from .coteries_in_time import flow_of_coteries


class State(NamedTuple):
    """Models, momentum, what clients know and have received, and steps taken.

    Halves are used only while they compete. If pieces compete, a client has only its
    own piece.
    """

    own: OwnRows  # (n, D)
    group: Shared  # (C, D) the models from which groups start the next round
    averaged: bool  # whether all clients are one group, whose model is an average
    offset: LateRows  # (n, D) the difference of each client from its group
    lost: OwnRows  # (n,) whether the offset is from a group that has divided
    halves: Shared  # (C, 2, D), or (C, 1, D) for pieces
    drift: LateRows  # (n, D) mean update of shared models since the client sent it last
    drifts: OwnRows  # (n,) the number of rounds in that mean
    own_velocity: OwnRows  # (n, D), or (n, 0) without momentum
    group_velocity: OwnRows
    half_velocity: OwnRows
    ballot: Ballot
    most: SameRow  # (n, 2) the usual loss, and the largest length of an update
    place: Places
    pick: Told  # (n,) the half that the client takes
    free: OwnRows  # (n,) whether it has not chosen yet since halves began to compete
    choice: OwnRows  # (n,)
    position: OwnRows  # (n,) of each client, if columns are personal; otherwise -1
    server: Server
    every: int  # rounds from one look to the next, 0 before the first
    t: int


@method(in_rounds=("momentum", "schedule"))
def coteries(
    sizes: Sizes,
    *,
    lr: LocalLr = 0.1,
    momentum: BelowOne = 0.0,
    weight_decay: LocalDecay = 0.0,
    schedule: Schedule = "constant",
    steps: Count = 1,
    weighting: str = "samples",
    sure: Positive = 2.5,
) -> Algorithm:
    """Coteries: groups that divide on evidence, with training alone as insurance.

    A round costs two local trainings, and a third one in contests. The method needs
    validation data, to choose groups and models. A newcomer gets the group model that
    fits its training data best, and uses it as most members of that group do.

    Args:
        sizes: (N,) training samples of each client.
        lr: step size of all local steps; also `curvature(c)` or `adam(c)`.
        momentum: factor of the running sum of gradients.
        weight_decay: factor of the model in its gradient; also `samples(k)`.
        schedule: `constant`, `step(k, f)`, `inverse(k)` or `cosine(k)`; see `Descent`.
        steps: local gradient steps in one round, for each model.
        weighting: `samples` or `uniform` weights of the averages.
        sure: standard errors by which groups must be better than their union.
    """
    rule = LocalDescent(lr, momentum, weight_decay, schedule)
    shares = shares_of(sizes, weighting)

    def init(x: Tensor, oracle: Oracle) -> State:
        w, v = mean_of_all(oracle, x), velocity(rule, x)
        told = Numbers(shares.to(x)[oracle.mine])
        columns = x.shape[1] if oracle.home is None else int((~oracle.home).sum())
        server, *place = oracle.central(_begin, None, told, columns=columns)
        zero, of = x.new_zeros(len(x)), Places(*place)
        nobody = torch.zeros_like(of.member, dtype=torch.bool)
        position = torch.full_like(of.member, -1)
        if oracle.home is not None:
            everybody = torch.arange(len(oracle.present), device=x.device)
            position = everybody[oracle.mine]
        number = _numbers(position, of.member)
        return State(
            own=x,
            group=models_of(number, w),
            averaged=oracle.home is None,
            offset=torch.zeros_like(x),
            lost=nobody,
            halves=models_of(number, w[:, None]),
            drift=torch.zeros_like(x),
            drifts=zero,
            own_velocity=v,
            group_velocity=v,
            half_velocity=v,
            ballot=empty_ballot(x),
            most=x.new_zeros(len(x), 2),
            place=of,
            pick=torch.zeros_like(of.member),
            free=nobody,
            choice=torch.full_like(of.member, GROUP),
            position=position,
            server=server,
            every=0,
            t=0,
        )

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        share = shares.to(state.own)[oracle.mine]
        work: Options = {"rule": rule, "steps": steps, "t": state.t}
        number, every, before = state.t // steps, state.every, None
        state = _without_lost(state, oracle.active)
        # The first choice is at the third look.
        if every and (number + every) % (CHOICES * every) == 0:
            before = state.own
        # Own models come first, so that they take the same steps as `local`.
        own, v = oracle.each(sgd, state.own, state.own_velocity, **work)
        state = state._replace(own=own, own_velocity=v)
        del own, v  # rows of models are large, so we free them as soon as we can
        if not every:
            state = _first_round(state, oracle, sizes)
        looks = number % state.every == 0
        if before is not None:
            state = _choose(state, oracle, before, shares.to(share))
            before = None
        evidence = None
        if looks:
            state, evidence = _compete(state, oracle)
        state, ends = _train(state, oracle, work)
        place = state.place
        if looks:
            state, place = _decide(state, oracle, evidence, sure)
        state = _average_models(state, oracle, share, ends, place.second)
        state = _place(state, oracle, share, place)._replace(t=state.t + steps)
        return state, info(state)

    def welcome(state: State, oracle: Oracle) -> Tensor:
        of = state.place.member, state.choice
        work: Options = {"steps": steps, "taken": state.t}
        return newcomer_models(oracle, group_of(state), *of, rule=rule, **work)

    def info(state: State) -> Info:
        return sharing(state.place.member, state.choice)

    flow = flow_of_coteries(sizes, shares, rule, steps, sure)
    sent = Releases(average=3, central=1, losses=True)
    made = Algorithm(init, step, lambda state, oracle: in_use(state), welcome, flow)
    return made._replace(releases=sent, info=info, away=_away)


def in_use(state: State) -> Float[Tensor, "n d"]:
    """The model that each client uses."""
    found, offset = group_of(state).clone(), state.offset
    for choice, share in ((HALFWAY, 0.5), (TUNED, 1.0)):
        here = (state.choice == choice) & ~state.lost
        found[here] += share * offset[here]
    alone = state.choice == OWN
    found[alone] = state.own[alone]
    return found


def group_of(state: State) -> Float[Tensor, "n d"]:
    """The model of each client's group; an average of all is one row in memory."""
    if state.averaged:
        return state.group.rows.expand(len(state.position), -1)
    return state.group.of(_numbers(state.position, state.place.member))


def halves_of(state: State) -> Float[Tensor, "n h d"]:
    """The halves of each client's pair, if halves compete."""
    return state.halves.of(_numbers(state.position, state.place.pair))


def _numbers(
    position: Int[Tensor, " n"], numbers: Int[Tensor, " n"]
) -> Int[Tensor, " n"]:
    """The numbers of models; with personal columns, each client has its own model."""
    return torch.where(position < 0, numbers, position)


def _without_lost(state: State, active: Tensor) -> State:
    """The state in which no active client has an offset from a group that divided."""
    lost = state.lost & active
    if not bool(lost.any()):
        return state
    offset = fetch(state.offset).masked_fill(lost[:, None], 0)
    return state._replace(offset=offset, lost=state.lost & ~lost)


def _begin(
    server: None, who: Tensor, shares: Float[Tensor, " n"], *, columns: int
) -> tuple[Coordinator | Tensor, ...]:
    """A coordinator's program: one group of all clients, before the first round."""
    new = one_group(shares, torch.zeros_like(shares), columns)
    return new, *places(new)


def _first_round(state: State, oracle: Oracle, sizes: Tensor) -> State:
    """The state after the coordinator has planned, before the first shared steps.

    All models are still the same, so clients have nothing to choose.
    """
    nothing = state.own.new_zeros(len(state.own), 2)
    told = oracle.each(first_look, nothing, group_of(state))[0]
    # The number of sample gradients that own models took, and of training samples.
    work = torch.stack([oracle.gradients.to(told), sizes.to(told)[oracle.mine]], 1)
    told = torch.cat([told, work], 1)
    server, level, every = oracle.central(plan, state.server, Numbers(told))
    most = torch.stack([level.to(state.most), state.most[:, 1]], 1)
    return state._replace(server=server, most=most, every=int(every[0]))


def _choose(
    state: State,
    oracle: Oracle,
    own: Tensor,
    shares: Float[Tensor, " N"],
) -> State:
    """The state after clients evaluated all models, sent mean losses, and chose."""
    old, most = state.ballot, state.most[:, 0]
    models = own, group_of(state), fetch(state.offset)
    few = few_of(shares * oracle.present)
    rows = torch.zeros_like(old.losses), torch.zeros_like(old.losses)
    losses, exact, samples, usual = oracle.each(
        look, *rows, old.samples, old.usual, *models, most, at_home=True
    )
    told = oracle.each(tell, rows[0], *models, most)[0]
    looks, losses, mean = add_look(old, losses, told)
    new = Ballot(
        losses=losses,
        told=mean,
        looks=looks,
        everybody=oracle.average(shares[oracle.mine], Numbers(comparison_of(mean))),
        noise=(told - exact).square().mean(1) * few,
        samples=samples,
        usual=usual,
    )
    # An absent client keeps its ballot.
    pairs = zip(new, old, strict=True)
    new = Ballot(*[_where(oracle.active, a, b) for a, b in pairs])
    choice = choices(new.losses, new.samples, prior(new, most))
    choice = _where(oracle.active, choice, state.choice)
    return state._replace(ballot=new, choice=choice)


def _where(active: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """The new rows of active clients, and the old rows of the others."""
    if bool(active.all()):
        return new
    return torch.where(active.view(-1, *[1] * (new.dim() - 1)), new, old)


def _compete(
    state: State, oracle: Oracle
) -> tuple[State, Float64[Tensor, "n 5"] | None]:
    """The state with the halves that clients take, and the evidence about them."""
    place, before = state.place, state.pick
    phase = int(place.phase[0])
    if phase in (TRIAL, CONTEST):
        # In a contest only clients that missed the trial choose.
        free = state.free | (phase == TRIAL)
        pick = oracle.each(take_half, before, halves_of(state), free)[0]
        state = state._replace(pick=pick, free=state.free & ~oracle.active)
    if not bool(place.asks[0]):
        return state, None
    half = _half_of(state)
    told = oracle.each(
        weigh,
        half.new_zeros(len(half), 1 + 2 * PAIRS, dtype=torch.float64),
        *(group_of(state), fetch(state.offset), half, state.most[:, 0]),
    )[0]
    return state, told


def _train(state: State, oracle: Oracle, work: Options) -> tuple[State, list[Tensor]]:
    """The state after local steps of shared models, and the models after them."""
    place, ends = state.place, list[Tensor]()
    active, starts = oracle.active, _starts(int(place.phase[0]))
    for start in starts:
        half = start is _half_of
        v = state.half_velocity if half else state.group_velocity
        end, v = oracle.each(shared_steps, start(state), v, place.together, **work)
        if half:
            state = state._replace(half_velocity=v)
        else:
            state = state._replace(group_velocity=v)
        ends.append(end)
        del end
    drifts = state.drifts + active.to(state.drifts)
    rows = fetch(state.drift), ends[0], starts[0](state), drifts
    drift = change_rows(active, _add_update, *rows)
    del rows
    state = state._replace(drift=drift, drifts=drifts)
    return state, ends


def _add_update(mean: Tensor, end: Tensor, start: Tensor, n: Tensor) -> Tensor:
    return mean + (end - start - mean) / n[:, None]


def _starts(phase: int) -> list[Callable[[State], Tensor]]:
    """The models that clients train together: first the whole, and then the half.

    There is no half in a rest, and no whole in a trial.
    """
    whole: list[Callable[[State], Tensor]] = [] if phase == TRIAL else [group_of]
    return whole if phase == REST else [*whole, _half_of]


def _half_of(state: State) -> Float[Tensor, "n d"]:
    """The half that each client takes."""
    numbers = _numbers(state.position, state.place.pair)
    return state.halves.parts_of(numbers, state.pick)


def _decide(
    state: State, oracle: Oracle, evidence: Tensor | None, sure: float
) -> tuple[State, Places]:
    """The state and the places after a decision of the coordinator.

    It decides by directions in a rest, and by evidence in other phases.
    """
    if int(state.place.phase[0]) != REST:
        told = [Numbers(state.pick)] + ([] if evidence is None else [Numbers(evidence)])
        server, *place = oracle.central(_judgement, state.server, *told, sure=sure)
        return state._replace(server=server), Places(*place)
    # The answer is not a model. So it must not take the place of the model, which would
    # keep personal columns.
    rounds = Numbers(state.drifts)
    drift = fetch(state.drift)
    server, found = oracle.central(_directions, state.server, rounds, drift)
    pick, most, *few = found.unbind(1)
    heard = oracle.active
    state = state._replace(
        server=server,
        pick=pick.long(),
        most=torch.stack([state.most[:, 0], most.to(state.most)], 1),
        drift=drift.masked_fill(heard[:, None], 0),
        drifts=state.drifts.masked_fill(heard, 0),
    )
    pair, second, phase, pairs = few
    return state, state.place._replace(
        pair=pair.long(),
        second=second.to(state.place.second),
        phase=phase.long(),
        pairs=pairs.long(),
        asks=(phase != REST).long(),
    )


def _directions(
    server: Coordinator,
    who: Int[Tensor, " p"],
    rounds: Float[Tensor, " p"],
    update: Float[Tensor, "p d"],
) -> tuple[Coordinator, Float64[Tensor, "n 6"]]:
    """A coordinator's program: places after a look in a rest, and a length.

    The columns are the half that a client takes, the largest length of an update, and
    the places that a rest may change: pair, second, phase and pairs. `asks` is not
    sent, because every trial begins with evidence.
    """
    new, most = with_directions(server, who, update, rounds)
    found = places(new)
    mine = new.pick, most.expand(len(new.member))
    columns = *mine, found.pair, found.second, found.phase, found.pairs
    return new, torch.stack([column.double() for column in columns], 1)


def _judgement(
    server: Coordinator,
    who: Int[Tensor, " p"],
    pick: Int[Tensor, " p"],
    told: Float64[Tensor, "p 5"] | None = None,
    *,
    sure: float,
) -> tuple[Coordinator | Tensor, ...]:
    """A coordinator's program: places after a look while halves or pieces compete.

    Clients send their number of held-out samples again, because some were absent at
    first.
    """
    if told is not None:
        held = server.samples.index_copy(0, who, told[:, 0].to(server.samples))
        server, told = server._replace(samples=held), told[:, 1:]
    new, _ = with_evidence(server, who, pick, told, sure=sure)
    return new, *places(new)


def _average_models(
    state: State, oracle: Oracle, share: Tensor, ends: list[Tensor], second: Tensor
) -> State:
    """The state with new models of halves and groups.

    Args:
        state: the state before.
        oracle: sends the models.
        share: weights of the clients at hand.
        ends: their models after local steps; the list becomes empty, to free memory.
        second: the share of each client's pair that takes the second half.
    """
    phase = int(state.place.phase[0])
    for j, start in enumerate(_starts(phase)):
        rows = ends[j], start(state), state.most[:, 1]
        ends[j] = limit_update(*rows, oracle.active)
        del rows
    if phase != REST:
        end = ends.pop()
        state = _average_halves(state, oracle, share, end, second)
        ends = ends or [end]
        del end
    return _average_group(state, oracle, share, ends.pop(), second)


def _average_halves(
    state: State, oracle: Oracle, share: Tensor, end: Tensor, second: Tensor
) -> State:
    """The state with new models of halves."""
    place, known = state.place, state.halves
    of, count = place.pair, int(place.pairs[0])
    number = _numbers(state.position, of)
    numbers, first = first_of_each(number)
    halves, row = known.of(numbers), torch.searchsorted(numbers, number)
    for j, part in zip(range(halves.shape[1]), (1 - second, second), strict=False):
        taken = share * (state.pick == j)
        mean = oracle.average(taken, end, of, count=count)[first]
        if not bool(oracle.present.all()):
            part = _part_heard(oracle, taken, of, count)
        # A half that nobody trained stays as it was.
        heard = torch.zeros_like(numbers).index_add_(0, row, (part > 0).long()) > 0
        halves[:, j] = torch.where(heard[:, None], mean, halves[:, j])
    return state._replace(halves=known.with_models(numbers, halves))


def _average_group(
    state: State, oracle: Oracle, share: Tensor, end: Tensor, second: Tensor
) -> State:
    """The state with new models of groups, and new offsets of clients from them."""
    place, known = state.place, state.group
    numbers, first = first_of_each(_numbers(state.position, place.member))
    averaged = len(numbers) == 1 and int(place.phase[0]) != TRIAL
    if int(place.phase[0]) == TRIAL:
        # The whole is the mean of its halves, weighted by the clients that take them.
        one, two = state.halves.of(numbers).unbind(1)
        group = one.lerp(two, second[first, None])
    else:
        of, count = place.member, int(place.groups[0])
        group = oracle.average(share, end, of, count=count)[first]
        if not bool(oracle.present.all()):
            heard = _part_heard(oracle, share, of, count)[first] > 0
            group = torch.where(heard[:, None], group, known.of(numbers))
    group = known.with_models(numbers, group)
    state = state._replace(group=group, averaged=averaged and len(group.numbers) == 1)
    rows = fetch(state.offset), end, group_of(state)
    return state._replace(offset=follow(*rows, oracle.active))


def _part_heard(
    oracle: Oracle, share: Tensor, of: Int[Tensor, " n"], count: int
) -> Float[Tensor, " n"]:
    """The fraction of present clients in each group that have a share above 0."""
    told = Numbers((share > 0).to(share)[:, None])
    return oracle.average(torch.ones_like(share), told, of, count=count)[:, 0]


def _place(state: State, oracle: Oracle, share: Tensor, new: Places) -> State:
    """The state in the next phase, with halves if they compete, or with new groups."""
    phase, old = int(new.phase[0]), state.place
    if int(new.groups[0]) > int(old.groups[0]):
        # A group becomes smaller only if its halves or pieces became groups.
        moved = new.together < old.together
        # All earlier looks count as one.
        ballot = state.ballot
        looks = _where(moved, ballot.looks.clamp(max=1), ballot.looks)
        velocity = _where(moved, state.half_velocity, state.group_velocity)
        numbers = _numbers(state.position, new.member)
        numbers, halves = numbers[moved], _half_of(state)[moved]
        state = state._replace(
            group=state.group.with_models(numbers, halves),
            averaged=False,
            group_velocity=velocity,
            ballot=ballot._replace(looks=looks),
            lost=state.lost | moved,
        )
    if phase != REST and int(old.phase[0]) == REST:
        of, count = new.pair, int(new.pairs[0])
        numbers, first = first_of_each(_numbers(state.position, of))
        start = state.group.of(_numbers(state.position, new.member)[first])
        places = (0,) if phase == PIECES else (0, 1)
        halves = start[:, None].repeat(1, len(places), 1)
        offset = fetch(state.offset)
        for j in places:
            taken = share * (state.pick == j)
            halves[:, j] += oracle.average(taken, offset, of, count=count)[first]
        state = state._replace(
            halves=Models(numbers, halves),
            half_velocity=state.group_velocity,
            free=torch.ones_like(state.free),
        )
    return state._replace(place=new)


def _away(before: State, after: State, active: Tensor) -> State:
    """The state after a round in place, also of clients and groups that were away.

    They receive what the coordinator tells them, as they would if they were at hand.
    """
    old, gone = before.place, ~active
    new, pick = Places(*places(after.server)), after.server.pick
    after = after._replace(place=new, pick=pick)
    if int(old.phase[0]) == TRIAL:
        i = _nobody_of(old.member, gone)
        one, two = after.halves.of(old.member[i]).unbind(1)
        group = one.lerp(two, new.second[i, None])
        after = after._replace(group=after.group.with_models(old.member[i], group))
    if int(new.groups[0]) > int(old.groups[0]):
        moved = gone & (new.together < old.together)
        i = _nobody_of(new.member, gone)
        i = i[moved[i]]
        halves, ballot = after.halves.parts_of(old.pair[i], pick[i]), after.ballot
        looks = _where(moved, ballot.looks.clamp(max=1), ballot.looks)
        after = after._replace(
            group=after.group.with_models(new.member[i], halves),
            group_velocity=_where(moved, after.half_velocity, after.group_velocity),
            ballot=ballot._replace(looks=looks),
            lost=after.lost | moved,
        )
    if int(new.phase[0]) != REST and int(old.phase[0]) == REST:
        i, parts = _nobody_of(new.pair, gone), after.halves.rows.shape[1]
        halves = after.group.of(new.member[i])[:, None].repeat(1, parts, 1)
        after = after._replace(
            halves=after.halves.with_models(new.pair[i], halves),
            half_velocity=_where(gone, after.group_velocity, after.half_velocity),
            free=after.free | gone,
        )
    return after


def _nobody_of(group: Int[Tensor, " n"], gone: Bool[Tensor, " n"]) -> Tensor:
    """The position of one client of each group whose clients were all away."""
    lost = gone & ~torch.isin(group, group[~gone])
    return lost.nonzero()[first_of_each(group[lost])[1], 0]
