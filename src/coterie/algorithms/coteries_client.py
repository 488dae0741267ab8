"""The computations of a client of coteries: local steps, evidence, and its choice.

Coteries in rounds and coteries in time both use this module. It also has the
coordinator's plan and the models of newcomers. A *look* is one evaluation of models on
the held-out samples of a client.
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
from ..types import ALONE, Clients, Info, Oracle, OwnRows

OWN, GROUP, HALFWAY, TUNED = range(4)
"""The models from which a client chooses: v, w, w + o / 2 and w + o."""

MODELS = 4

RATE = 0.25
"""Weight of the last round in an offset, which averages about four rounds."""

_KNOWN = 1e-3
"""An offset below this share of the next one counts as 0: it is only rounding."""

_ROUNDING = 16
"""Losses of equal models may differ by this many machine epsilons."""

MEMORY = 0.25
"""Factor of earlier looks in the running mean of losses, at each new look."""

_RESERVE = 0.01
"""How much better a model must be for each step that it is away from the group's model.

The unit is the most that one sample counts for. A model that a client shares less fits
its few held-out samples more often by chance, or because it is more confident.
"""

CHOICES = 3
"""Clients choose a model at every third look: the third, the sixth, and so on.

Four models are much to evaluate.
"""

_COST = 0.4
"""The most that looks may cost per round, as a share of one local training."""


class Ballot(NamedTuple):
    """What a client knows about the models that it may use.

    Its exact losses never leave it. It sends mean losses, and receives their mean over
    all clients.
    """

    losses: OwnRows  # (n, 4) exact losses of the client, means over its last looks
    told: OwnRows  # (n, 4) the same losses, as the client sends them
    looks: OwnRows  # (n,) the number of looks, with less weight for earlier ones
    everybody: OwnRows  # (n, 3) the mean over all clients of `comparison_of(told)`
    noise: OwnRows  # (n,) estimate of the client: variance of noise in that mean
    samples: OwnRows  # (n,) the number of held-out samples of the client
    usual: OwnRows  # (n,) loss of the group's model at the first look, 0 before


def empty_ballot(x: Float[Tensor, "n d"]) -> Ballot:
    """A ballot without losses."""
    zero, losses = x.new_zeros(len(x)), x.new_zeros(len(x), MODELS)
    return Ballot(losses, losses, zero, losses[:, 1:], zero, zero, zero)


def candidates(own: Tensor, group: Tensor, offset: Tensor) -> tuple[Tensor, ...]:
    """The models from which a client chooses."""
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
    """A client program: the mean losses of all models, which stay at the client.

    Every loss is given in two units. The first unit is `usual`, the loss of the group's
    model at the client's first look. The second is `level`, in which `tell` sends
    losses. The number of held-out samples and `usual` come last.
    """
    held = clients.validation()
    found = _held_out_losses(held, own, group, offset)
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
    """A client program: the mean losses of all models, as clients send them.

    Their unit is `level`, which is the same for all clients. So a client with huge
    losses for every model has no influence: all its losses are at the cap.
    """
    found = _held_out_losses(clients.validation(), own, group, offset)
    return _mean(calibrate_losses(found, level[:, None, None]))


def _held_out_losses(
    held: Clients, own: Tensor, group: Tensor, offset: Tensor
) -> Float[Tensor, "n 4 b"]:
    """Losses of all models on held-out samples; NaN if there is no such sample.

    If only some models have NaN for a sample, the NaN becomes infinite.
    """
    models = candidates(own, group, offset)
    found = torch.stack([held.losses(model) for model in models], 1)
    known = ~found.isnan().all(1, keepdim=True)
    return torch.where(known & found.isnan(), torch.inf, found)


def comparison_of(told: Float[Tensor, "n 4"]) -> Float[Tensor, "n 3"]:
    """How much worse than w each other model is, by the losses that a client sends."""
    return (told - told[:, [GROUP]])[:, [OWN, HALFWAY, TUNED]]


def few_of(weights: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    """The sum of squares of the normalised weights: 1 / N for N equal weights."""
    total = weights.sum().clamp(min=torch.finfo(weights.dtype).tiny ** 0.5)
    return weights.square().sum() / total.square()


def prior(ballot: Ballot, level: Tensor) -> Float[Tensor, "n 4"]:
    """How much worse than the group's model each model is, on average over all clients.

    `_RESERVE` is added for every step that a model is away from the group's model.

    With `coterie.privacy`, the losses that clients send have noise. Each client knows
    how much the noise changed its own losses, and so estimates the variance e of the
    noise in a mean m. The mean is multiplied by max(0, 1 - 4 e / m^2). Without noise,
    it stays as it is.

    Args:
        ballot: what clients know.
        level: the usual loss, which is the unit of `CAP`.
    """
    mean = torch.zeros_like(ballot.told)
    mean[:, [OWN, HALFWAY, TUNED]] = ballot.everybody
    error = 2 * ballot.noise[:, None]  # the variance of a difference
    # Rounding is not noise.
    error = torch.where(error > 1e-9 * ballot.told[:, [GROUP]].square(), error, 0)
    known = mean * (1 - 4 * error / mean.square().clamp(min=1e-30)).clamp(min=0)
    # Steps away from the group's model: halfway 1, tuned 2, own 3.
    away = (torch.arange(MODELS, device=known.device) - GROUP) % MODELS
    return known + _RESERVE * CAP * level.reshape(-1, 1) * away


def first_look(
    clients: Clients, told: Float[Tensor, "n 2"], x: Float[Tensor, "n d"]
) -> Float[Tensor, "n 2"]:
    """A client program: the number of held-out samples, and their mean loss."""
    losses = clients.validation().losses(x)
    return torch.stack([(~losses.isnan()).sum(1).to(told), _mean(losses)], 1)


def plan(
    server: Coordinator, who: Int[Tensor, " p"], told: Float[Tensor, "p 4"]
) -> tuple[Coordinator, Tensor, Tensor]:
    """A coordinator's program: the usual loss, and the rounds from look to look."""
    samples, losses, work, sizes = told.double().unbind(1)
    if not bool((samples > 0).any()):
        raise InputError(
            "coteries needs validation data, but no client that takes part has any: "
            "set `validation` above 0, or use another method."
        )
    held = server.samples.index_copy(0, who, samples.to(server.samples))
    level = losses[samples > 0].median()
    # A look costs about as much as a pass through all data. If gradients are not
    # counted, as in the dry run of private training, clients look in every round.
    every = (sizes.mean() / (_COST * work.mean()) - 1e-6).ceil()
    every = torch.where(work.mean() > 0, every, 1).clamp(min=1).long()
    # Rounds are short if looks are rare. The updates of one short round are too noisy
    # to find more than two pieces.
    clock = server.clock._replace(deep=int(every) == 1)
    n, server = len(held), server._replace(samples=held, clock=clock)
    return server, level.expand(n), every.expand(n)


def add_look(
    old: Ballot, losses: Float[Tensor, "n 4"], told: Float[Tensor, "n 4"]
) -> tuple[Tensor, Tensor, Tensor]:
    """The number of looks after one more, and the mean losses that they found."""
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
    """A client program: the half that fits the training data better.

    It is the first half if both fit equally well. Clients that are not `free` keep
    their half.
    """
    if not bool(free.any()):
        return pick
    data = clients.whole()
    first, second = (data.loss(one) for one in halves.unbind(1))
    # If nobody takes the second half, the halves differ only by rounding.
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
    """A client program: by how much the client's half is better than the whole group.

    The columns are the number of held-out samples, and then the `Evidence` of
    `coterie.collaboration.divisions`.
    """
    held = clients.validation()
    models = half, group, group + offset
    found = torch.stack([held.losses(model) for model in models], 1)
    bound = bound_losses(found, most[:, None, None])
    d = bound[:, 1:] - bound[:, :1]  # (n, 2, b)
    # A difference that rounding alone can make counts as 0.
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
    """A client program: local steps from a model that `together` clients train."""
    own = rule_in_numbers(rule, clients, x, together)
    return take_steps(clients, x, v, own, steps, t)


def _mean(losses: Float[Tensor, "n ... b"]) -> Float[Tensor, "n ..."]:
    """Means over samples; 0 if there are no samples."""
    return losses.nanmean(-1).nan_to_num()


def follow(
    offset: Float[Tensor, "n d"],
    end: Float[Tensor, "n d"],
    shared: Float[Tensor, "n d"],
    active: Tensor,
) -> Float[Tensor, "n d"]:
    """A client's offset after a round: the running mean of `end - shared`.

    The first difference counts in full.

    Args:
        offset: the mean of earlier rounds; 0 before the first.
        end: the models after local steps.
        shared: the new shared models.
        active: which clients took steps.
    """
    return change_rows(active.bool(), _follow, offset, end, shared)


def _follow(offset: Tensor, end: Tensor, shared: Tensor) -> Tensor:
    apart = end - shared
    before, now = (torch.linalg.vector_norm(v, dim=1) for v in (offset, apart))
    rate = torch.where(before > _KNOWN * now, RATE, 1.0)
    return offset + rate.to(offset)[:, None] * (apart - offset)


def limit_update(
    end: Float[Tensor, "n d"],
    start: Float[Tensor, "n d"],
    most: Float[Tensor, " n"],
    active: Tensor,
) -> Float[Tensor, "n d"]:
    """The models after local steps, moved to within the distance `most` of the start.

    A model that diverged is replaced by its start.
    """
    return change_rows(active.bool(), _limit_update, end, start, most)


def _limit_update(end: Tensor, start: Tensor, most: Tensor) -> Tensor:
    update = end - start
    length = torch.linalg.vector_norm(update, dim=1)
    far, lost = (length > most)[:, None], ~length.isfinite()[:, None]
    nearer = torch.where(far, start + (most / length)[:, None] * update, end)
    return torch.where(lost, start, nearer)


def sharing(member: Int[Tensor, " n"], choice: Int[Tensor, " n"]) -> Info:
    """The `info` of a round: the group of each client, and who uses its own model.

    All members contribute to the group's model, also those that use their own.
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
    """Models for newcomers, from the group whose model fits their data best.

    A newcomer gets the one of four models that most members of that group use.
    `group`, `member` and `choice` are those of the clients that trained. Each of them
    has taken `taken` steps.
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
