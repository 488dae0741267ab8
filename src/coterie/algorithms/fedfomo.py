"""Every client mixes the models of others that do better on its validation data.

    y_i <- x_i, then `steps` times  y_i <- y_i - lr g_i(y_i)
    w_k = max(0, L_i(x_i) - L_i(y_k)) / |y_k - x_i|    for k = i and partners k of i
    x_i <- x_i + sum_k w_k (y_k - x_i) / sum_k w_k

L_i is the loss on all validation data of client i. If no model does better than x_i,
client i keeps x_i. In every round, the clients meet `models` times in random pairs, and
the two clients of a pair send each other their y.

References:
    Zhang, Sapra, Fidler, Yeung, Alvarez, "Personalized federated learning with first
    order model optimization", ICLR 2021, arXiv 2012.08565.

Differences: pairs are random, and both clients of a pair get a model. In the paper a
server sends models, mostly of clients that have helped before. A client without
validation data takes y_i. With momentum, every client keeps its buffer between rounds.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ..graphs.families import matchings
from ..optim.steps import LocalDecay, LocalDescent, LocalLr, Schedule, sgd, velocity
from ..options import BelowOne, Count, method
from ..types import Algorithm, Clients, Info, Oracle, Releases
from .local import State


def held_out_loss(
    clients: Clients, loss: Float[Tensor, "n 1"], x: Float[Tensor, "n d"]
) -> Float[Tensor, "n 1"]:
    """A client program: the loss of a model on all of the validation data."""
    del loss  # the place for the result
    return clients.validation().loss(x)[:, None]


@method()
def fedfomo(
    *,
    lr: LocalLr = 0.1,
    momentum: BelowOne = 0.0,
    weight_decay: LocalDecay = 0.0,
    schedule: Schedule = "constant",
    steps: Count = 1,
    models: Count = 5,
) -> Algorithm:
    """FedFomo: every client mixes the models that do better on its validation data.

    A newcomer gets the model that fits its training data best.

    Args:
        lr: step size of the local steps; also `curvature(c)` or `adam(c)`.
        momentum: factor of the running sum of gradients.
        weight_decay: adds this number times the model to each gradient; also
            `samples(k)`.
        schedule: `constant`, `step(k, f)`, `inverse(k)` or `cosine(k)`; see `Descent`.
        steps: local gradient steps in one round.
        models: the number of other clients from which a client gets a model in a round;
            with N - 1 or more, it gets a model from every client.
    """
    rule = LocalDescent(lr, momentum, weight_decay, schedule)

    def init(x: Tensor, oracle: Oracle) -> State:
        return State(x, velocity(rule, x), 0)

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        x, v, t = state
        y, v = oracle.each(sgd, x, v, rule=rule, steps=steps, t=t)
        n, here = len(oracle.present), torch.arange(len(x), device=x.device)
        own = torch.eye(n, dtype=x.dtype, device=x.device)
        unknown = x.new_full((len(x), 1), torch.nan)
        before = oracle.each(held_out_loss, unknown, x)[0]

        def weigh(z: Tensor) -> Tensor:
            """The weight (n,) of a model for each client, 0 if it is not better."""
            gain = before - oracle.each(held_out_loss, unknown, z)[0]
            far = (z - x).norm(dim=1, keepdim=True)
            return torch.where((gain > 0) & (far > 0), gain / far, 0)[:, 0]

        def way(w: Tensor, z: Tensor) -> Tensor:
            """The move w (z - x) of each client, 0 if w is 0, whatever z is."""
            return torch.where(w[:, None] > 0, w[:, None] * (z - x), 0)

        weights, w = x.new_zeros(len(x), n), weigh(y)
        weights[here, here + oracle.mine.start] = w
        moved = way(w, y)
        for partner in matchings(oracle.present, models, rng):
            z, met = oracle.mix(own[partner], y), partner[oracle.mine]
            # A client without a partner was paired with itself.
            w = torch.where(met == here + oracle.mine.start, 0, weigh(z))
            weights[here, met] += w
            moved += way(w, z)
        total = weights.sum(1, keepdim=True)
        new = x + moved / torch.where(total > 0, total, 1)
        new = torch.where(oracle.active[:, None] & before.isnan(), y, new)
        mixing = torch.where(total > 0, weights / total, own[oracle.mine])
        return State(new, v, t + steps), {"weights": mixing}

    # All pairs of an odd number of clients meet in one matching more.
    return Algorithm(init, step, releases=Releases(mix=models + 1))
