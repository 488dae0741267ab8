"""What a client of `neighbours` computes: local steps, and whether others help."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..collaboration.evidence import bounded
from ..collaboration.links import MEMORY
from ..optim.steps import LocalDescent, sgd
from ..types import Clients, Rows

MODELS = 4
"""Those among which a client chooses: v, w, u and (v + w) / 2."""

BEGIN = 3
"""The first round, from 0, whose models say something about a link: before, whoever has
other classes looks like a stranger."""

CAP = 1.0
"""What a sample's loss counts for at most, in units of the first model's mean loss."""

NO_DATA = (
    "neighbours choose by validation data, but no client that takes part has any: give "
    "a `validation` share above 0, or another method."
)


class Ballot(NamedTuple):
    """What a client knows of the models it may use.

    Its own losses never leave it. It tells a mix of these and what it was told.
    """

    losses: Rows  # (n, 4) of the client, means over the last rounds
    told: Rows  # (n, 4) means over those who are joined by links, too
    samples: Rows  # (n,) held-out samples of the client
    cap: Rows  # (n,) of a sample's loss, 0 before the first round


def empty_ballot(x: Float[Tensor, "n d"]) -> Ballot:
    """Nothing is known."""
    zero, losses = x.new_zeros(len(x)), x.new_zeros(len(x), MODELS)
    return Ballot(losses, losses, zero, zero)


def candidates(own: Tensor, shared: Tensor, tuned: Tensor) -> tuple[Tensor, ...]:
    """The models among which a client chooses."""
    return own, shared, tuned, (own + shared) / 2


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
    """A client program: held-out losses of all models, then local steps of two."""
    held = clients.validation()
    found = torch.stack([held.losses(x) for x in candidates(own, shared, tuned)], 1)
    samples = (~found[:, 0].isnan()).sum(1).to(samples)
    # The first losses count in full; who has no samples passes on what it was told.
    rate = torch.where(cap > 0, 1 - MEMORY, 1.0).to(losses) * (samples > 0)
    cap = torch.where(cap > 0, cap, CAP * found[:, 0].nanmean(1).nan_to_num())
    now = bounded(found, cap[:, None, None]).nanmean(2).nan_to_num()
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
    """A client program: held-out samples, sums of d_ik and of d_ik^2."""
    held = clients.validation()
    before, half = (
        bounded(held.losses(model), cap[:, None]) for model in (u, (u + theirs) / 2)
    )
    d, samples = half - before, (~before.isnan()).sum(1)
    return torch.stack([samples.to(d), d.nansum(1), d.square().nansum(1)], 1).to(said)
