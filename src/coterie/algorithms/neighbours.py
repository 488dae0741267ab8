"""Neighbours on a graph keep the links along which learning together helps.

There is no server. In a round every client i, whose kept links go to k in K_i,

    v_i <- `steps` local steps from v_i         its own model, that nobody else sees
    u_i <- `steps` local steps from w_i         which it sends along its links; then
    w_i <- u_i + sum_{k in K_i} (u_k - u_i) / (1 + max(|K_i|, |K_k|))

with the Metropolis weights of the graph that is left: doubly stochastic, and neighbours
need to know of each other only how many links they have. Having u_k, client i also asks
its held-out (validation) samples whether meeting half-way would help it,

    d_ik = loss_i((u_i + u_k) / 2) - loss_i(u_i),

sample by sample. The two ends of a link exchange what they found, averaged over rounds,
and drop it for good where both together are `sure` that it does harm. In the end each
uses that of v_i, w_i and u_i which does best by its own samples and its neighbours';
who has no link left uses v_i, which is local training. This is `coteries` for those who
have nobody to report to, and the means of a group become gossip along kept links.
Without waiting, each takes its rounds at its own pace (`neighbours_in_time`).

References:
    Ours. Xiao, Boyd, "Fast linear iterations for distributed averaging", Systems &
    Control Letters, 2004, for the weights.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..checks import InputError
from ..collaboration.evidence import cautious_choices, unflat
from ..collaboration.links import Links, all_links, exchange, judged
from ..graphs.colourings import colouring
from ..graphs.matrices import DoublyStochastic, joined
from ..optim.steps import LocalDescent, velocity
from ..options import Count, Positive, method
from ..types import Algorithm, Info, Numbers, Oracle, Rows
from .neighbours_client import BEGIN, MODELS, NO_DATA, harm, local_steps
from .neighbours_in_time import in_time


class State(NamedTuple):
    """Models, momentum, held-out losses, links, and gradient steps taken."""

    own: Rows  # (n, D) v
    shared: Rows  # (n, D) w
    tuned: Rows  # (n, D) u
    own_velocity: Rows  # (n, D), or (n, 0) without momentum
    shared_velocity: Rows
    cap: Rows  # (n,) of a sample's loss, 0 before the first
    record: Rows  # (n, 13) moments of held-out losses of the three models
    choice: Rows  # (n,) which of them is used
    links: Links
    t: int


@method(in_rounds=("schedule",))
def neighbours(
    mixing: DoublyStochastic,
    *,
    rule: LocalDescent = LocalDescent(),
    steps: Count = 1,
    sure: Positive = 2.5,
) -> Algorithm:
    """Neighbours: gossip along links that are kept while they help, without a server.

    It costs two local trainings and a model each way over every link, and chooses by
    validation data, which it therefore needs. A newcomer gets the model that fits its
    training data best.

    Args:
        mixing: (N, N) an entry that is not 0 makes two clients neighbours.
        rule: of all local steps.
        steps: local gradient steps in one round, of each model.
        sure: standard errors by which a link must do harm to be dropped.
    """
    edges, n = joined(mixing), len(mixing)
    partners = colouring(edges, n)

    def init(x: Tensor, oracle: Oracle) -> State:
        links, v = all_links(partners, oracle.mine, x), velocity(rule, x)
        record = x.new_zeros(len(x), 1 + MODELS + MODELS**2)
        choice = torch.zeros(len(x), dtype=torch.long, device=x.device)
        return State(x, x, x, v, v, x.new_zeros(len(x)), record, choice, links, 0)

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        active, other = oracle.active, partners.to(state.own.device)
        judging = state.t // steps >= BEGIN
        new = _trained(state, oracle, rule, steps)
        u, links, here = new.tuned, new.links, torch.arange(len(active)).to(other)
        free = links.kept & (active & oracle.present[other][:, oracle.mine]).T
        degree = free.sum(1, keepdim=True).to(u)
        w, around, weights = u.clone(), new.record.clone(), u.new_zeros(len(u), n)
        for m, partner in enumerate(other[:, oracle.mine]):
            met, oneself = free[:, m], here + oracle.mine.start
            swap = exchange(torch.where(met, partner, oneself), n, u)
            theirs = oracle.mix(swap, u)  # of one neighbour at a time
            said = u.new_zeros(len(u), 3)
            if judging:
                said = oracle.each(harm, said, u, theirs, new.cap)[0]
            numbers = torch.cat([degree, said, new.record], 1)
            there = oracle.mix(swap, Numbers(numbers))
            links = judged(links, m, met, said + there[:, 1:4], sure)
            met = (met & links.kept[:, m])[:, None]
            weight = met / (1 + torch.maximum(degree, there[:, :1]))
            w += weight * (theirs - u)
            weights[here, partner] += weight[:, 0]
            around += met * there[:, 4:]
        weights[here, here + oracle.mine.start] += 1 - weights.sum(1)
        choice = cautious_choices(unflat(around.double(), MODELS)) * links.kept.any(1)
        new = new._replace(
            shared=torch.where(active[:, None], w, state.shared),
            choice=torch.where(active, choice, state.choice),
            links=links,
        )
        # The mean over clients of this is how many links there are.
        left = links.kept.sum(1).to(u) * (n / 2)
        alone = (new.choice == 0).to(u)
        return new, {"weights": weights, "links": left, "alone": alone}

    flow = in_time(partners, rule, steps, sure)
    return Algorithm(init, step, lambda state, oracle: in_use(state), flow=flow)


def in_use(state: State) -> Float[Tensor, "n d"]:
    """The model that each client uses."""
    models = torch.stack([state.own, state.shared, state.tuned], 1)
    return models[torch.arange(len(models), device=models.device), state.choice]


def _trained(state: State, oracle: Oracle, rule: LocalDescent, steps: int) -> State:
    """After the local steps, with held-out losses of all models."""
    rows = state.own, state.shared, state.own_velocity, state.shared_velocity
    own, tuned, v, w_v, cap, record = oracle.each(
        local_steps,
        *(*rows, state.cap, state.record),
        rule=rule,
        steps=steps,
        t=state.t,
        together=float(len(oracle.present)),
    )
    if bool(oracle.active.any()) and not bool((record[oracle.active, 0] > 0).any()):
        raise InputError(NO_DATA)
    return state._replace(
        own=own,
        # An inactive client has no local steps of the shared model behind it.
        tuned=torch.where(oracle.active[:, None], tuned, state.tuned),
        own_velocity=v,
        shared_velocity=w_v,
        cap=cap,
        record=record,
        t=state.t + steps,
    )
