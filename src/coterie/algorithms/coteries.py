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

from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int
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
from ..collaboration.weights import shares_of
from ..optim.steps import LocalDecay, LocalDescent, LocalLr, Schedule, sgd, velocity
from ..options import BelowOne, Count, Positive, Sizes, method
from ..types import Algorithm, Info, Numbers, Options, Oracle, Releases, Rows, Server
from .coteries_client import (
    CHOICES,
    GROUP,
    Ballot,
    add_look,
    candidates,
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

    There are no halves in a rest. If pieces compete, a client has only its own piece.
    """

    own: Rows  # (n, D)
    group: Rows  # (n, D) the model from which the group starts the next round
    offset: Rows  # (n, D) the difference of each client from its group
    halves: Rows  # (n, 2, D); (n, 1, D) for pieces; (n, 0, D) in a rest
    drift: Rows  # (n, D) mean update of shared models since the client sent it last
    drifts: Rows  # (n,) the number of rounds in that mean
    own_velocity: Rows  # (n, D), or (n, 0) without momentum
    group_velocity: Rows
    half_velocity: Rows
    ballot: Ballot
    most: Rows  # (n, 2) the usual loss, and the largest length of an update
    place: Places
    pick: Rows  # (n,) the half that the client takes
    free: Rows  # (n,) whether it has not chosen yet since halves began to compete
    choice: Rows  # (n,)
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
        zero = x.new_zeros(len(x))
        return State(
            own=x,
            group=w,
            offset=torch.zeros_like(x),
            halves=x.new_empty(len(x), 0, x.shape[1]),
            drift=torch.zeros_like(x),
            drifts=zero,
            own_velocity=v,
            group_velocity=v,
            half_velocity=v[:, :0],
            ballot=empty_ballot(x),
            most=x.new_zeros(len(x), 2),
            place=Places(*place),
            pick=torch.zeros_like(place[0]),
            free=torch.zeros_like(place[0], dtype=torch.bool),
            choice=torch.full_like(place[0], GROUP),
            server=server,
            every=0,
            t=0,
        )

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        share = shares.to(state.own)[oracle.mine]
        work: Options = {"rule": rule, "steps": steps, "t": state.t}
        number, models = state.t // steps, (state.own, state.group, state.offset)
        # Own models come first, so that they take the same steps as `local`.
        own = oracle.each(sgd, state.own, state.own_velocity, **work)
        if not state.every:
            state = _first_round(state, oracle, sizes)
        looks = number % state.every == 0
        if (number + state.every) % (CHOICES * state.every) == 0:
            state = _choose(state, oracle, models, shares.to(share))
        state = state._replace(own=own[0], own_velocity=own[1])
        evidence = None
        if looks:
            state, evidence = _compete(state, oracle)
        state, ends = _train(state, oracle, work)
        phase, place = int(state.place.phase[0]), state.place
        if looks:
            state, place = _decide(state, oracle, evidence, sure)
        near = [limit_update(*rows, state.most[:, 1], oracle.active) for rows in ends]
        # Rows of models are large, so we free them as soon as we can.
        ends.clear()
        if phase != REST:
            state = _average_halves(state, oracle, share, near[-1], place.second)
        del near[1:]
        state = _place(
            _average_group(state, oracle, share, near.pop(), place.second),
            *(oracle, share, place),
        )
        state = state._replace(t=state.t + steps)
        return state, sharing(state.place.member, state.choice)

    def welcome(state: State, oracle: Oracle) -> Tensor:
        of = state.place.member, state.choice
        work: Options = {"steps": steps, "taken": state.t}
        return newcomer_models(oracle, state.group, *of, rule=rule, **work)

    flow = flow_of_coteries(sizes, shares, rule, steps, sure)
    sent = Releases(average=3, central=1, losses=True)
    return Algorithm(
        init, step, lambda state, oracle: in_use(state), welcome, flow, releases=sent
    )


def in_use(state: State) -> Float[Tensor, "n d"]:
    """The model that each client uses."""
    models = torch.stack(candidates(state.own, state.group, state.offset), 1)
    return models[torch.arange(len(models), device=models.device), state.choice]


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
    told = oracle.each(first_look, nothing, state.group)[0]
    # The number of sample gradients that own models took, and of training samples.
    work = torch.stack([oracle.gradients.to(told), sizes.to(told)[oracle.mine]], 1)
    told = torch.cat([told, work], 1)
    server, level, every = oracle.central(plan, state.server, Numbers(told))
    most = torch.stack([level.to(state.most), state.most[:, 1]], 1)
    return state._replace(server=server, most=most, every=int(every[0]))


def _choose(
    state: State,
    oracle: Oracle,
    models: tuple[Tensor, ...],
    shares: Float[Tensor, " N"],
) -> State:
    """The state after clients evaluated all models, sent mean losses, and chose."""
    old, most = state.ballot, state.most[:, 0]
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
        pick = oracle.each(take_half, before, state.halves, free)[0]
        state = state._replace(pick=pick, free=state.free & ~oracle.active)
    if not bool(place.asks[0]):
        return state, None
    half = _half_of(state.halves, state.pick)
    told = oracle.each(
        weigh,
        half.new_zeros(len(half), 1 + 2 * PAIRS, dtype=torch.float64),
        *(state.group, state.offset, half, state.most[:, 0]),
    )[0]
    return state, told


def _train(
    state: State, oracle: Oracle, work: Options
) -> tuple[State, list[tuple[Tensor, Tensor]]]:
    """The state after local steps of shared models, and (end, start) of these steps.

    The whole comes first, and then the half. There is no half in a rest, and no whole
    in a trial.
    """
    place, found = state.place, []
    phase = int(place.phase[0])
    if phase != TRIAL:
        rows = state.group, state.group_velocity, place.together
        end, v = oracle.each(shared_steps, *rows, **work)
        state = state._replace(group_velocity=v)
        found.append((end, state.group))
    if phase != REST:
        rows = _half_of(state.halves, state.pick), state.half_velocity, place.together
        end, v = oracle.each(shared_steps, *rows, **work)
        state = state._replace(half_velocity=v)
        found.append((end, rows[0]))
    drifts = state.drifts + oracle.active.to(state.drifts)
    drift = change_rows(
        oracle.active,
        lambda mean, end, start, n: mean + (end - start - mean) / n[:, None],
        *(state.drift, *found[0], drifts),
    )
    return state._replace(drift=drift, drifts=drifts), found


def _half_of(halves: Float[Tensor, "n h d"], pick: Int[Tensor, " n"]) -> Tensor:
    """The half that each client takes."""
    place = torch.arange(len(pick), device=pick.device) * halves.shape[1] + pick
    return halves.flatten(0, 1).index_select(0, place)


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
    server, found = oracle.central(_directions, state.server, rounds, state.drift)
    pick, most, *few = found.unbind(1)
    heard = oracle.active
    state = state._replace(
        server=server,
        pick=pick.long(),
        most=torch.stack([state.most[:, 0], most.to(state.most)], 1),
        drift=state.drift.masked_fill(heard[:, None], 0),
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


def _average_halves(
    state: State, oracle: Oracle, share: Tensor, end: Tensor, second: Tensor
) -> State:
    """The state with new models of halves.

    `second` is the share of each client's pair that takes the second half.
    """
    place, halves = state.place, torch.empty_like(state.halves)
    of, count = place.pair, int(place.pairs[0])
    for j, part in zip(range(halves.shape[1]), (1 - second, second), strict=False):
        taken = share * (state.pick == j)
        mean = oracle.average(taken, end, of, count=count)
        if not bool(oracle.present.all()):
            part = _part_heard(oracle, taken, of, count)
        # A half that nobody trained stays as it was.
        halves[:, j] = _where(part > 0, mean, state.halves[:, j])
        del mean  # make room for the next mean
    return state._replace(halves=halves)


def _average_group(
    state: State, oracle: Oracle, share: Tensor, end: Tensor, second: Tensor
) -> State:
    """The state with new models of groups, and new offsets of clients from them."""
    place = state.place
    if int(place.phase[0]) == TRIAL:
        # The whole is the mean of its halves, weighted by the clients that take them.
        one, two = state.halves.unbind(1)
        group = one.lerp(two, second[:, None])
    else:
        of, count = place.member, int(place.groups[0])
        group = oracle.average(share, end, of, count=count)
        if not bool(oracle.present.all()):
            heard = _part_heard(oracle, share, of, count) > 0
            group = _where(heard, group, state.group)
    offset = follow(state.offset, end, group, oracle.active)
    return state._replace(group=group, offset=offset)


def _part_heard(
    oracle: Oracle, share: Tensor, of: Int[Tensor, " n"], count: int
) -> Float[Tensor, " n"]:
    """The fraction of present clients in each group that have a share above 0."""
    told = Numbers((share > 0).to(share)[:, None])
    return oracle.average(torch.ones_like(share), told, of, count=count)[:, 0]


def _place(state: State, oracle: Oracle, share: Tensor, new: Places) -> State:
    """The state in the next phase, with halves if they compete, or with new groups."""
    phase = int(new.phase[0])
    if int(new.groups[0]) > int(state.place.groups[0]):
        # A group becomes smaller only if its halves or pieces became groups.
        moved = new.together < state.place.together
        # All earlier looks count as one.
        ballot = state.ballot
        looks = _where(moved, ballot.looks.clamp(max=1), ballot.looks)
        velocity = _where(moved, state.half_velocity, state.group_velocity)
        group = _where(moved, _half_of(state.halves, state.pick), state.group)
        state = state._replace(
            group=group, group_velocity=velocity, ballot=ballot._replace(looks=looks)
        )
        offset = torch.where(moved[:, None], 0, state.offset)
        state = state._replace(offset=offset)
    if phase == REST and state.halves.shape[1]:
        state = state._replace(
            halves=state.halves[:, :0], half_velocity=state.half_velocity[:, :0]
        )
    if phase != REST and not state.halves.shape[1]:
        of, count = new.pair, int(new.pairs[0])
        places = (0,) if phase == PIECES else (0, 1)
        halves = state.group.new_empty(len(of), len(places), state.group.shape[1])
        for j in places:
            taken = share * (state.pick == j)
            mean = oracle.average(taken, state.offset, of, count=count)
            torch.add(state.group, mean, out=halves[:, j])
            del mean  # make room for the next mean
        state = state._replace(
            halves=halves,
            half_velocity=state.group_velocity,
            free=torch.ones_like(state.free),
        )
    return state._replace(place=new)
