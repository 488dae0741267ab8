"""Client programs of `neighbours`: local steps, and tests of neighbours' models."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..collaboration.evidence import bound_losses, calibrate_losses
from ..collaboration.links import MEMORY
from ..optim.steps import LocalDescent, sgd
from ..types import Clients, Rows

MODELS = 4
"""The number of models from which a client chooses: v, w, (w + u) / 2 and u."""

BEGIN = 3
"""The first round, counted from 0, in which clients judge links.

In earlier rounds, neighbours with other classes seem to do harm.
"""

NO_DATA = (
    "neighbours needs validation data, but no client that takes part has any: set "
    "`validation` above 0, or use another method."
)


class Ballot(NamedTuple):
    """Losses of the models that a client may use.

    A client's own losses never leave it. It sends means that also contain the losses of
    other clients.
    """

    losses: Rows  # (n, 4) of the client, means over the last rounds
    told: Rows  # (n, 4) means over clients that links connect
    samples: Rows  # (n,) held-out samples of the client
    cap: Rows  # (n,) largest loss of a sample, 0 before the first round


def empty_ballot(x: Float[Tensor, "n d"]) -> Ballot:
    """A ballot without losses."""
    zero, losses = x.new_zeros(len(x)), x.new_zeros(len(x), MODELS)
    return Ballot(losses, losses, zero, zero)


def candidates(own: Tensor, shared: Tensor, tuned: Tensor) -> tuple[Tensor, ...]:
    """The models from which a client chooses."""
    return own, shared, (shared + tuned) / 2, tuned


def local_steps(
    clients: Clients,
    own: Float[Tensor, "n d"],
    tuned: Float[Tensor, "n d"],
    own_velocity: Float[Tensor, "n v"],
    shared_velocity: Float[Tensor, "n v"],
    losses: Float[Tensor, "n 4"],
    told: Float[Tensor, "n 4"],
    samples: Float[Tensor, " n"],
    cap: Float[Tensor, " n"],
    shared: Float[Tensor, "n d"],
    *,
    rule: LocalDescent,
    steps: int,
    t: int,
    together: float = 1.0,
) -> tuple[Tensor, ...]:
    """A client program: held-out losses of all models, and v and u after steps."""
    held = clients.validation()
    found = torch.stack([held.losses(x) for x in candidates(own, shared, tuned)], 1)
    samples = (~found[:, 0].isnan()).sum(1).to(samples)
    # In the first round, losses have the full weight. A client without held-out samples
    # keeps the `told` that it received.
    rate = torch.where(cap > 0, 1 - MEMORY, 1.0).to(losses) * (samples > 0)
    cap = torch.where(cap > 0, cap, found[:, 0].nanmean(1).nan_to_num())
    now = calibrate_losses(found, cap[:, None, None]).nanmean(2).nan_to_num()
    losses, told = (old.lerp(now, rate[:, None]) for old in (losses, told))
    train = functools.partial(sgd, clients, rule=rule, steps=steps, t=t)
    own, own_velocity = train(own, own_velocity)
    tuned, shared_velocity = train(shared, shared_velocity, together=together)
    velocities = own_velocity, shared_velocity
    return own, tuned, *velocities, losses, told, samples, cap


def harm(
    clients: Clients,
    said: Float[Tensor, "n 3"],
    u: Float[Tensor, "n d"],
    theirs: Float[Tensor, "n d"],
    cap: Float[Tensor, " n"],
) -> Float[Tensor, "n 3"]:
    """A client program: the number of held-out samples, sums of d_ik and of d_ik^2."""
    held = clients.validation()
    before, half = (
        bound_losses(held.losses(model), cap[:, None])
        for model in (u, (u + theirs) / 2)
    )
    d, samples = half - before, (~before.isnan()).sum(1)
    return torch.stack([samples.to(d), d.nansum(1), d.square().nansum(1)], 1).to(said)
