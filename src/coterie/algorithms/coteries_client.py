"""What a client of coteries computes: its own choice, evidence, and local steps.

Rounds and time also share the plan, the models of newcomers, and the labels here.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from ..checks import InputError
from ..collaboration.best_fit import best_fit
from ..collaboration.divisions import Coordinator
from ..collaboration.evidence import CAP, bound_losses, calibrate_losses
from ..collaboration.rows import change_rows
from ..optim.steps import LocalDescent, rule_in_numbers, sgd, take_steps, velocity
from ..types import ALONE, Clients, Info, Oracle, Rows

OWN, GROUP, HALFWAY, TUNED = range(4)
"""The models among which a client chooses: v, w, w + o / 2 and w + o."""

MODELS = 4

RATE = 0.25
"""Weight of a round in what a client differs by: a mean of about four rounds."""

_KNOWN = 1e-3
"""An offset that is so much smaller than the next one was nothing, but for rounding."""

_ROUNDING = 16
"""Units of rounding by which losses of equal models may differ."""

MEMORY = 0.25
"""How much of the recorded losses is kept from one look to the next."""

_RESERVE = 0.01
"""By how much one more step away from the group's model must be better, in units of the
most that a sample counts for. A model that a client shares less fits its few held-out
samples more often by chance, or by being surer."""

_COST = 0.4
"""What looking may cost in an average round, at most, as a share of a training."""


class Ballot(NamedTuple):
    """What a client knows of the models it may use.

    Its own losses never leave it. Those of everybody are means that all are told.
    """

    losses: Rows  # (n, 4) of the client, means over the last looks
    told: Rows  # (n, 4) the same, as others are told
    looks: Rows  # (n,) the discounted number of looks
    everybody: Rows  # (n, 4) the mean of what all said last: see `compared`
    noise: Rows  # (n,) variance of that mean, by what is told and is not so
    samples: Rows  # (n,) held-out samples of the client
    usual: Rows  # (n,) loss of the group's model at the first look, 0 before


def empty_ballot(x: Float[Tensor, "n d"]) -> Ballot:
    """Nothing is known."""
    zero, losses = x.new_zeros(len(x)), x.new_zeros(len(x), MODELS)
    return Ballot(losses, losses, zero, losses[:, 1:], zero, zero, zero)


def candidates(own: Tensor, group: Tensor, offset: Tensor) -> tuple[Tensor, ...]:
    """The models among which a client chooses."""
    return own, group, group + offset / 2, group + offset


def look(
    clients: Clients,
    losses: Float[Tensor, "n 4"],
    exact: Float[Tensor, "n 4"],
    samples: Float[Tensor, " n"],
    usual: Float[Tensor, " n"],
    own: Float[Tensor, "n d"],
    group: Float[Tensor, "n d"],
    offset: Float[Tensor, "n d"],
    level: Float[Tensor, " n"],
) -> tuple[Tensor, ...]:
    """A client program: mean losses of all models, for the client alone.

    They are calibrated in units of the loss of the group's model at the client's first
    look (`usual`). They are also given in the units of what others are told (`tell`).
    """
    held = clients.validation()
    found = _found(held, own, group, offset)
    usual = torch.where(usual > 0, usual, _mean(found[:, GROUP]))
    units = usual, level
    losses, exact = (
        _mean(calibrate_losses(found, unit[:, None, None])) for unit in units
    )
    return losses, exact, (~found[:, GROUP].isnan()).sum(1).to(samples), usual


def tell(
    clients: Clients,
    told: Float[Tensor, "n 4"],
    own: Float[Tensor, "n d"],
    group: Float[Tensor, "n d"],
    offset: Float[Tensor, "n d"],
    level: Float[Tensor, " n"],
) -> Float[Tensor, "n 4"]:
    """A client program: mean losses of the same models, as others are told.

    They are calibrated in units of `level`, which is the same for everybody. So a
    client whose losses are huge whatever the model says nothing about models.
    """
    found = _found(clients.validation(), own, group, offset)
    return _mean(calibrate_losses(found, level[:, None, None]))


def _found(
    held: Clients, own: Tensor, group: Tensor, offset: Tensor
) -> Float[Tensor, "n 4 b"]:
    """Losses of all models; infinite where a model alone has none, as NaN has."""
    models = candidates(own, group, offset)
    found = torch.stack([held.losses(model) for model in models], 1)
    known = ~found.isnan().all(1, keepdim=True)
    return torch.where(known & found.isnan(), torch.inf, found)


def comparison_of(told: Float[Tensor, "n 4"]) -> Float[Tensor, "n 3"]:
    """What a client says of its models: by how much the others are worse than w."""
    return (told - told[:, [GROUP]])[:, [OWN, HALFWAY, TUNED]]


def few_of(weights: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    """The sum of squares of the normalised weights: 1 / N for N equal ones."""
    total = weights.sum().clamp(min=torch.finfo(weights.dtype).tiny ** 0.5)
    return weights.square().sum() / total.square()


def prior(ballot: Ballot, level: Tensor) -> Float[Tensor, "n 4"]:
    """By how much models are worse than groups', as a mean over all clients.

    A model counts as worse by `_RESERVE` for every step that it is away from the
    group's.

    With `coterie.privacy`, what clients tell has noise, and each sees by how much its
    own numbers were changed. A mean m whose noise has variance e counts for
    max(0, 1 - 4 e / m^2) times as much. Without noise, it counts as it is.

    Args:
        ballot: what clients know.
        level: the usual loss, in whose units `CAP` is.
    """
    mean = torch.zeros_like(ballot.told)
    mean[:, [OWN, HALFWAY, TUNED]] = ballot.everybody
    error = 2 * ballot.noise[:, None]  # of a difference
    # Rounding is not noise.
    error = torch.where(error > 1e-9 * ballot.told[:, [GROUP]].square(), error, 0)
    known = mean * (1 - 4 * error / mean.square().clamp(min=1e-30)).clamp(min=0)
    # From the group's model: halfway 1, tuned 2, own 3.
    away = (torch.arange(MODELS, device=known.device) - GROUP) % MODELS
    return known + _RESERVE * CAP * level.reshape(-1, 1) * away


def first_look(
    clients: Clients, told: Float[Tensor, "n 2"], x: Float[Tensor, "n d"]
) -> Float[Tensor, "n 2"]:
    """A client program: how many held-out samples there are, and their mean loss."""
    losses = clients.validation().losses(x)
    return torch.stack([(~losses.isnan()).sum(1).to(told), _mean(losses)], 1)


def plan(
    server: Coordinator, who: Int[Tensor, " p"], told: Float[Tensor, "p 4"]
) -> tuple[Coordinator, Tensor, Tensor]:
    """A coordinator's program: what a loss counts for at most, and when to look."""
    samples, losses, work, sizes = told.double().unbind(1)
    if not bool((samples > 0).any()):
        raise InputError(
            "coteries chooses by validation data, but no client that takes part has "
            "any: give a `validation` share above 0, or another method."
        )
    held = server.samples.index_copy(0, who, samples.to(server.samples))
    level = losses[samples > 0].median()
    # A look costs about as much as a pass through all data. Where nobody counts work,
    # as before private training, clients look in every round.
    every = (sizes.mean() / (_COST * work.mean()) - 1e-6).ceil()
    every = torch.where(work.mean() > 0, every, 1).clamp(min=1).long()
    # One short round tells too little of directions for more than two pieces.
    clock = server.clock._replace(deep=int(every) == 1)
    n, server = len(held), server._replace(samples=held, clock=clock)
    return server, level.expand(n), every.expand(n)


def add_look(
    old: Ballot, losses: Float[Tensor, "n 4"], told: Float[Tensor, "n 4"]
) -> tuple[Tensor, Tensor, Tensor]:
    """The number of looks after one more, and means of what they found."""
    looks = MEMORY * old.looks + 1
    pairs = (old.losses, losses), (old.told, told)
    mean, mean_told = (mean + (new - mean) / looks[:, None] for mean, new in pairs)
    return looks, mean, mean_told


def take_half(
    clients: Clients,
    pick: Int[Tensor, " n"],
    halves: Float[Tensor, "n 2 d"],
    free: Bool[Tensor, " n"],
) -> Int[Tensor, " n"]:
    """A client program: the half that fits the training data, of clients that may move.

    It is the first where both fit alike. Clients that are not `free` keep theirs.
    """
    if not bool(free.any()):
        return pick
    data = clients.whole()
    first, second = (data.loss(one) for one in halves.unbind(1))
    # Where nobody is on the second side, halves differ by rounding alone.
    better = first - second > _ROUNDING * torch.finfo(first.dtype).eps * first
    return torch.where(free, better.to(pick), pick)


def weigh(
    clients: Clients,
    told: Float64[Tensor, "n 5"],
    group: Float[Tensor, "n d"],
    offset: Float[Tensor, "n d"],
    half: Float[Tensor, "n d"],
    most: Float[Tensor, " n"],
) -> Float64[Tensor, "n 5"]:
    """A client program: by how much its half is better than the whole.

    It tells how many held-out samples there are, and then the evidence of
    `coterie.collaboration.divisions`.
    """
    held = clients.validation()
    models = half, group, group + offset
    found = torch.stack([held.losses(model) for model in models], 1)
    bound = bound_losses(found, most[:, None, None])
    d = bound[:, 1:] - bound[:, :1]  # (n, 2, b)
    # What rounding makes of equal models is no difference.
    least = _ROUNDING * torch.finfo(d.dtype).eps * most[:, None, None]
    d = torch.where(d.abs() <= least, 0, d).double()
    known = ~d.isnan().any(1, keepdim=True)
    samples = known.sum((1, 2)).double()
    d = torch.where(known, d, 0)
    mean = d.sum(2) / samples.clamp(min=1)[:, None]
    around = torch.where(known, d - mean[:, :, None], 0).square().sum(2)
    return torch.cat([samples[:, None], d.sum(2), around], 1)


def shared_steps(
    clients: Clients,
    x: Float[Tensor, "n d"],
    v: Float[Tensor, "n v"],
    together: Int[Tensor, " n"],
    *,
    rule: LocalDescent,
    steps: int,
    t: int,
) -> tuple[Tensor, Tensor]:
    """A client program: local steps of a model that `together` clients train."""
    own = rule_in_numbers(rule, clients, x, together)
    return take_steps(clients, x, v, own, steps, t)


def _mean(losses: Float[Tensor, "n ... b"]) -> Float[Tensor, "n ..."]:
    """Means over samples; 0 where there are none."""
    return losses.nanmean(-1).nan_to_num()


def follow(
    offset: Float[Tensor, "n d"],
    end: Float[Tensor, "n d"],
    shared: Float[Tensor, "n d"],
    active: Tensor,
) -> Float[Tensor, "n d"]:
    """A client's offset: the mean of the last rounds' `end - shared`.

    At first it is all of that.

    Args:
        offset: so far; 0 where nothing is known.
        end: where local steps end.
        shared: the new shared model.
        active: who took steps.
    """
    return change_rows(active.bool(), _follow, offset, end, shared)


def _follow(offset: Tensor, end: Tensor, shared: Tensor) -> Tensor:
    apart = end - shared
    before, now = (torch.linalg.vector_norm(v, dim=1) for v in (offset, apart))
    rate = torch.where(before > _KNOWN * now, RATE, 1.0)
    return offset + rate.to(offset)[:, None] * (apart - offset)


def cut(
    end: Float[Tensor, "n d"],
    start: Float[Tensor, "n d"],
    most: Float[Tensor, " n"],
    active: Tensor,
) -> Float[Tensor, "n d"]:
    """Where local steps end, or nearer to the start, if it is farther than `most`.

    It is the start itself, where steps do not end at any distance.
    """
    return change_rows(active.bool(), _cut, end, start, most)


def _cut(end: Tensor, start: Tensor, most: Tensor) -> Tensor:
    update = end - start
    length = torch.linalg.vector_norm(update, dim=1)
    far, lost = (length > most)[:, None], ~length.isfinite()[:, None]
    nearer = torch.where(far, start + (most / length)[:, None] * update, end)
    return torch.where(lost, start, nearer)


def sharing(member: Int[Tensor, " n"], choice: Int[Tensor, " n"]) -> Info:
    """What a round tells: who learns with whom, and who uses a model of its own.

    All members contribute to a group's model, also those who use their own.
    """
    alone = choice == OWN
    uses = torch.where(alone, ALONE, member)
    return {"member": member, "uses": uses, "alone": alone.float()}


def newcomer_models(
    oracle: Oracle,
    group: Float[Tensor, "n d"],
    member: Int[Tensor, " n"],
    choice: Int[Tensor, " n"],
    *,
    rule: LocalDescent,
    steps: int,
    taken: int,
) -> Float[Tensor, "m d"]:
    """Models for newcomers: of the group that fits best, used as its members do.

    Group models, groups and choices are of those who trained, with `taken` steps so
    far.
    """
    labels = member.unique()
    of_group = (member == labels[:, None]).int()
    models = group[of_group.argmax(1)]
    best = best_fit(oracle, models.expand(len(oracle.active), -1, -1))
    w = models[best]
    of_members = [choice[part.bool()].mode().values for part in of_group]
    usual = torch.stack(of_members)[best]
    rows = w, velocity(rule, w)
    tuned = oracle.each(sgd, *rows, rule=rule, steps=steps, t=0)[0]
    alone = w
    if bool((usual == OWN).any()):
        alone = oracle.each(sgd, *rows, rule=rule, steps=taken, t=0)[0]
    found = torch.stack([alone, w, (w + tuned) / 2, tuned], 1)
    return found[torch.arange(len(usual)), usual]
