"""Neighbours on a graph keep the links along which learning together helps.

There is no server. K_i are the clients at the other ends of the links that client i
keeps. In a round, every client i computes

    v_i <- `steps` local steps from v_i         its own model, which it never sends
    u_i <- `steps` local steps from w_i         which it sends along its links; then
    w_i <- u_i + sum_{k in K_i} (u_k - u_i) / (1 + max(|K_i|, |K_k|))

with the Metropolis weights of the graph of kept links. These weights are doubly
stochastic. To compute them, a client needs only the number of links of each neighbour.
Client i also tests u_k on its held-out (validation) samples, to see whether the mean of
u_i and u_k would be better than u_i:

    d_ik = loss_i((u_i + u_k) / 2) - loss_i(u_i),

for each sample. The two clients of a link exchange their results, averaged over rounds.
They drop the link for good if the mean of d, over the samples of both, is more than
`sure` standard errors above 0. Each client has the models v_i, w_i, (w_i + u_i) / 2 and
u_i. It uses the model j with the least

    n_i L_ij + 30 M_ij.

L_ij is the mean held-out loss of model j at client i, and n_i is its number of held-out
samples. M_ij estimates the mean of L_kj over all clients k that kept links connect with
client i. Each client updates M_i <- 0.8 M_i + 0.2 L_i, and then mixes M in the same way
as models. A client without links uses v_i, which is local training.

This is `coteries` without a server: gossip replaces means over a group. Without
waiting, each client takes its rounds at its own pace (`neighbours_in_time`).

References:
    Ours. Xiao, Boyd, "Fast linear iterations for distributed averaging", Systems &
    Control Letters, 2004, for the weights.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..checks import InputError
from ..collaboration.evidence import choices
from ..collaboration.links import Links, all_links, exchange, judge_link
from ..graphs.colourings import colouring
from ..graphs.matrices import DoublyStochastic, linked_pairs
from ..optim.steps import LocalDecay, LocalDescent, LocalLr, Schedule, velocity
from ..options import BelowOne, Count, Positive, method
from ..types import Algorithm, Info, Numbers, Oracle, Releases, Rows
from .neighbours_client import (
    BEGIN,
    NO_DATA,
    Ballot,
    candidates,
    empty_ballot,
    harm,
    local_steps,
)
from .neighbours_in_time import in_time


class State(NamedTuple):
    """Models, momentum, held-out losses, links, and the number of gradient steps."""

    own: Rows  # (n, D) v
    shared: Rows  # (n, D) w
    tuned: Rows  # (n, D) u
    own_velocity: Rows  # (n, D), or (n, 0) without momentum
    shared_velocity: Rows
    ballot: Ballot
    choice: Rows  # (n,) the model that the client uses
    links: Links
    t: int


@method(in_rounds=("schedule",))
def neighbours(
    mixing: DoublyStochastic,
    *,
    lr: LocalLr = 0.1,
    momentum: BelowOne = 0.0,
    weight_decay: LocalDecay = 0.0,
    schedule: Schedule = "constant",
    steps: Count = 1,
    sure: Positive = 2.5,
) -> Algorithm:
    """Neighbours: gossip without a server, where clients drop links that do harm.

    In a round, each client trains two models, and sends one over each of its links. The
    method needs validation data, to choose links and models. A newcomer gets the model
    that fits its training data best.

    Args:
        mixing: (N, N) an entry that is not 0 makes two clients neighbours.
        lr: step size of all local steps; also `curvature(c)` or `adam(c)`.
        momentum: factor of the running sum of gradients.
        weight_decay: adds this number times the model to each gradient; also
            `samples(k)`.
        schedule: `constant`, `step(k, f)`, `inverse(k)` or `cosine(k)`; see `Descent`.
        steps: local gradient steps in one round, for each model.
        sure: standard errors by which a link must do harm to be dropped.
    """
    rule = LocalDescent(lr, momentum, weight_decay, schedule)
    edges, n = linked_pairs(mixing), len(mixing)
    partners = colouring(edges, n)

    def init(x: Tensor, oracle: Oracle) -> State:
        links, v = all_links(partners, oracle.mine, x), velocity(rule, x)
        choice = torch.zeros(len(x), dtype=torch.long, device=x.device)
        return State(x, x, x, v, v, empty_ballot(x), choice, links, 0)

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        other = partners.to(state.own.device)
        new = _train(state, oracle, rule, steps)
        judging = state.t // steps >= BEGIN
        new, weights = _mix(new, oracle, other, sure, judging=judging)
        kept, of = new.links.kept, new.ballot
        choice = choices(of.losses, of.samples, of.told) * kept.any(1)
        choice = torch.where(oracle.active, choice, state.choice)
        # The mean of this over clients is the number of links.
        left, alone = kept.sum(1).to(weights) * (n / 2), (choice == 0).to(weights)
        info: Info = {"weights": weights, "links": left, "alone": alone}
        return new._replace(choice=choice), info

    flow = in_time(partners, rule, steps, sure)
    made = Algorithm(init, step, lambda state, oracle: models_in_use(state), flow=flow)
    # Each client sends one model to every neighbour.
    return made._replace(releases=Releases(mix=len(partners), losses=True))


def models_in_use(state: State) -> Float[Tensor, "n d"]:
    """The model that each client uses."""
    models = torch.stack(candidates(state.own, state.shared, state.tuned), 1)
    return models[torch.arange(len(models), device=models.device), state.choice]


def _train(state: State, oracle: Oracle, rule: LocalDescent, steps: int) -> State:
    """The state after local steps, with held-out losses of all models."""
    own, tuned, v, w_v, *ballot = oracle.each(
        local_steps,
        *(state.own, state.tuned, state.own_velocity, state.shared_velocity),
        *(*state.ballot, state.shared),
        rule=rule,
        steps=steps,
        t=state.t,
        together=float(len(oracle.present)),
    )
    new = Ballot(*ballot)
    if bool(oracle.active.any()) and not bool((new.samples[oracle.active] > 0).any()):
        raise InputError(NO_DATA)
    return state._replace(
        own=own,
        tuned=tuned,
        own_velocity=v,
        shared_velocity=w_v,
        ballot=new,
        t=state.t + steps,
    )


def _mix(
    state: State,
    oracle: Oracle,
    other: Int[Tensor, "m k"],
    sure: float,
    *,
    judging: bool,
) -> tuple[State, Float[Tensor, "n k"]]:
    """The state after mixing models and mean losses along kept links, and weights."""
    u, told, links = state.tuned, state.ballot.told, state.links
    active, n = oracle.active, other.shape[1]
    here = torch.arange(len(u), device=u.device)
    free = links.kept & (active & oracle.present[other][:, oracle.mine]).T
    degree = free.sum(1, keepdim=True).to(u)
    w, heard, weights = u.clone(), told.clone(), u.new_zeros(len(u), n)
    for m, partner in enumerate(other[:, oracle.mine]):
        met, oneself = free[:, m], here + oracle.mine.start
        swap = exchange(torch.where(met, partner, oneself), n, u)
        theirs = oracle.mix(swap, u)  # of one neighbour at a time
        said = u.new_zeros(len(u), 3)
        if judging:
            said = oracle.each(harm, said, u, theirs, state.ballot.cap)[0]
        there = oracle.mix(swap, Numbers(torch.cat([degree, said, told], 1)))
        links = judge_link(links, m, met, said + there[:, 1:4], sure)
        met = (met & links.kept[:, m])[:, None]
        weight = met / (1 + torch.maximum(degree, there[:, :1]))
        w += weight * (theirs - u)
        heard += weight * (there[:, 4:] - told)
        weights[here, partner] += weight[:, 0]
    weights[here, here + oracle.mine.start] += 1 - weights.sum(1)
    shared = torch.where(active[:, None], w, state.shared)
    ballot = state.ballot._replace(told=heard)
    return state._replace(shared=shared, ballot=ballot, links=links), weights
