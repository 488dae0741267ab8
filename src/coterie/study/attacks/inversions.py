"""Samples rebuilt from the releases of a training, with a study's noise and without.

Every client gets a single training sample, which is the best case for an attacker. The
study's first round is trained with the study's own noise. The attacker records the
releases of each client in this round (`privacy.attacks.Listener`), and rebuilds the
client's sample. A second training, without noise, shows what kind of release there is:
a gradient at the first model, or a difference of models after a step, which is c times
this gradient. The attacker knows c, so it knows how much clipping has removed. If the
attacker sees only sums, we assume that it knows the data of all other clients. The
attacker then subtracts the rows that these clients would send without noise.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ... import seeds
from ...clients.kernels import Kernel
from ...clients.samples import Batch
from ...data.federation import part
from ...engine.rounds import participants, run_rounds
from ...privacy.attacks import (
    FirstRows,
    Listener,
    OverheardClients,
    inputs_of_layer,
    rebuilt,
)
from ...types import ClientsInRounds
from ..config import Entry
from ..private import guard_of
from ..setup import Setup, simulation_of

_SAMPLES = 11
"""The number of samples; it is odd, so that the median is one of them."""

_LONGEST = 20_000
"""The most parameters of a model for which a search for features takes only seconds."""

_ALONG = 0.9
"""A release counts as made from a gradient if their cosine is above this."""


class Inversion(NamedTuple):
    """The median error of rebuilt samples, |rebuilt - sample| / |sample|."""

    label: str
    error: float | None  # with the noise of the study; None: it has none
    without: float  # without noise


class _Victims(NamedTuple):
    """Clients whose releases are gradients, or a step along one."""

    who: Int[Tensor, " k"]
    samples: Int[Tensor, " k"]  # the only one of each
    scale: Float[Tensor, " k"]  # of the release, in gradients
    of_rows: bool  # rows are gradients themselves, not changes of a model


def inversion_of(setup: Setup, entry: Entry) -> Inversion | None:
    """How well samples of a study are rebuilt; None if no attack here fits.

    A linear first layer with a bias reveals its inputs. For other small models, an
    optimiser searches for the features, if features are quantities.
    """
    if setup.simulation.home is not None or setup.study.time is not None:
        return None  # no attack on personal columns, or without rounds
    kernel, index = setup.simulation.kernel, setup.federation.train.index
    features = kernel.data(index[:1])[0]
    quick = _first_layer(setup.module) is not None
    small = kernel.parameters <= _LONGEST and features.is_floating_point()
    if not quick and not small:
        return None
    alone, privacy = _with_one_sample(setup), setup.study.privacy
    quiet = _record_releases(_with_noise(alone, 0.0), entry)
    victims = None if quiet is None else _victims(alone, quiet)
    if quiet is None or victims is None:
        return None
    clean = _of_victims(quiet, victims)
    without = _error(alone, victims, clean[victims.who])
    if privacy is None:
        return Inversion(entry.label, None, without)
    mechanism = guard_of(setup, entry).mechanism
    # For the unit sample, noise is already in units of the clipping length.
    noise = mechanism.noise / (mechanism.clip if privacy.unit == "client" else 1.0)
    recorded = _record_releases(_with_noise(alone, noise), entry)
    assert recorded is not None  # as without noise
    z = _of_victims(recorded, victims)
    if privacy.secure:  # the mean of all that take part, with a sample each
        many = int(_active(alone).sum())
        z = clean + many * (z - clean.sum(0) / many)
    return Inversion(entry.label, _error(alone, victims, z[victims.who]), without)


def _with_one_sample(setup: Setup) -> Setup:
    """The setup in which every client keeps only one of its training samples."""
    federation, train = setup.federation, setup.federation.train
    rng = seeds.generator(setup.seed, "audit", "inversion")
    draws = torch.rand(len(federation), generator=rng).to(train.size.device)
    some = (train.size > 0).nonzero()[:, 0]
    chosen = train.start[some] + (draws[some] * train.size[some]).long()
    alone = part(train.index[chosen], some, len(federation))
    federation = replace(federation, train=alone)
    given = setup.study, federation, setup.module, setup.seed
    simulation = simulation_of(*given)
    simulation.kernel = setup.simulation.kernel  # which may be compiled
    return replace(setup, federation=federation, simulation=simulation)


def _with_noise(setup: Setup, noise: float) -> Setup:
    """The setup with this noise, in clips, if there is privacy."""
    privacy = setup.study.privacy
    if privacy is None:
        return setup
    privacy = replace(privacy, noise=noise, epsilon=None, budget=None)
    # Without noise, the attacker knows what each client adds to a sum.
    aggregation = privacy.aggregation if noise else "local"
    privacy = replace(privacy, aggregation=aggregation)
    return replace(setup, study=replace(setup.study, privacy=privacy))


def _active(setup: Setup) -> Bool[Tensor, " n"]:
    """(N,) which clients take part in the first round."""
    share = setup.study.run.participation
    return participants(len(setup.federation), share, setup.seed, 1)


def _record_releases(setup: Setup, entry: Entry) -> FirstRows | None:
    """What clients release first, in the first round; None: nothing."""
    study, method = setup.study, setup.algorithm(entry)
    asked: ClientsInRounds = setup.asked_by(entry)
    if study.privacy is not None:
        guard = guard_of(setup, entry)
        method, asked = guard.method, guard.clients or asked
    nobody = torch.zeros(0, dtype=torch.long, device=setup.x.device)
    secure = study.privacy is not None and study.privacy.secure
    heard = Listener(nobody, setup.x[:0], setup.x, summed=secure)
    for _ in run_rounds(
        method,
        OverheardClients(asked, heard),
        setup.x,
        rounds=1,
        seed=setup.seed,
        participation=study.run.participation,
    ):
        pass
    return heard.first_rows


def _victims(setup: Setup, quiet: FirstRows) -> _Victims | None:
    """Clients whose releases are made of gradients at the first model, if any."""
    train = setup.federation.train
    who = ((train.size > 0) & _active(setup).to(train.size.device)).nonzero()[:, 0]
    samples = train.index[train.start[who]]
    weight = torch.ones(len(who), 1).to(setup.x)
    g = setup.simulation.kernel.grad(setup.x[who], Batch(samples[:, None], weight))

    def along(z: Tensor) -> Tensor:
        return torch.cosine_similarity(z[who], g, dim=1).abs()

    of_rows = bool(along(quiet.rows).sum() > along(quiet.changes).sum())
    z = quiet.rows if of_rows else quiet.changes
    fit = (along(z) > _ALONG).nonzero()[:_SAMPLES, 0]
    if not len(fit):
        return None
    who, samples, g = who[fit], samples[fit], g[fit]
    scale = (z[who] * g).sum(1) / g.square().sum(1)
    return _Victims(who, samples, scale, of_rows)


def _of_victims(recorded: FirstRows, victims: _Victims) -> Float[Tensor, "n d"]:
    return recorded.rows if victims.of_rows else recorded.changes


def _error(setup: Setup, victims: _Victims, z: Float[Tensor, "k d"]) -> float:
    """The median error of the samples that are rebuilt from these releases."""
    kernel, found = setup.simulation.kernel, []
    gradients = z / victims.scale[:, None]
    given = zip(victims.who, victims.samples, gradients, strict=True)
    for client, sample, gradient in given:
        features, target = kernel.data(sample.reshape(1))
        like, point = features[0], setup.x[client]
        made = _rebuild(setup, kernel, point, gradient, like, target)
        found.append(float((made - like).norm() / like.norm().clamp(min=1e-12)))
    return median(found)


def _rebuild(
    setup: Setup,
    kernel: Kernel,
    point: Tensor,
    gradient: Tensor,
    like: Tensor,
    target: Tensor,
) -> Tensor:
    first = _first_layer(setup.module)
    if first is not None:
        parts = kernel.layout.unravel(gradient)
        weight, bias = parts[f"{first}.weight"], parts[f"{first}.bias"]
        if bool(bias.any()):
            return inputs_of_layer(weight, bias).reshape(like.shape)
    objective = setup.simulation.objective
    return rebuilt(kernel.module, objective, point, gradient, target, like=like)


def _first_layer(module: nn.Module) -> str | None:
    """The name of the first layer with parameters, if it is linear with a bias."""
    for name, layer in module.named_modules():
        if any(True for _ in layer.parameters(recurse=False)):
            linear = isinstance(layer, nn.Linear) and layer.bias is not None
            return name if linear else None
    return None
