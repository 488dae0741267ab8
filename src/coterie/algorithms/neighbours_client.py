"""What a client of `neighbours` computes: local steps, and whether others help."""

from __future__ import annotations

import functools

import torch
from jaxtyping import Float
from torch import Tensor

from ..collaboration.evidence import moments
from ..collaboration.links import averaged
from ..optim.steps import LocalDescent, sgd
from ..types import Clients

MODELS = 3
"""Those that a client compares: its own v, the shared w as it has it, and u."""

BEGIN = 3
"""The first round, from 0, whose models say something about a link: before, whoever has
other classes looks like a stranger."""

_AT_MOST = 1.5
"""A held-out sample counts for so many times what the first model loses on average."""

NO_DATA = (
    "neighbours choose by validation data, but no client that takes part has any: give "
    "a `validation` share above 0, or another method."
)


def local_steps(
    clients: Clients,
    own: Float[Tensor, "n d"],
    shared: Float[Tensor, "n d"],
    own_velocity: Float[Tensor, "n v"],
    shared_velocity: Float[Tensor, "n v"],
    cap: Float[Tensor, " n"],
    record: Float[Tensor, "n m"],
    *,
    rule: LocalDescent,
    steps: int,
    t: int,
    together: float = 1.0,
) -> tuple[Tensor, ...]:
    """A client program: local steps of both models, and held-out losses of all."""
    held = clients.validation()
    train = functools.partial(sgd, clients, rule=rule, steps=steps, t=t)
    raw = held.losses(shared)
    cap = torch.where(cap > 0, cap, _AT_MOST * raw.nanmean(1).nan_to_num())
    own, own_velocity = train(own, own_velocity)
    tuned, shared_velocity = train(shared, shared_velocity, together=together)
    losses = torch.stack([held.losses(own), raw, held.losses(tuned)], 1)
    report = moments(losses.minimum(cap[:, None, None])).flat().to(record)
    return own, tuned, own_velocity, shared_velocity, cap, averaged(record, report)


def harm(
    clients: Clients,
    said: Float[Tensor, "n 3"],
    u: Float[Tensor, "n d"],
    theirs: Float[Tensor, "n d"],
    cap: Float[Tensor, " n"],
) -> Float[Tensor, "n 3"]:
    """A client program: held-out samples, sums of d_ik and of d_ik^2."""
    held = clients.validation()
    losses = [held.losses(model) for model in (u, (u + theirs) / 2)]
    of = moments(torch.stack(losses, 1).minimum(cap[:, None, None]))
    harm = of.sums[:, 1] - of.sums[:, 0]
    return torch.stack([of.samples, harm, of.squares[:, 0, 1]], 1).to(said)
