"""Samples rebuilt from gradients, with the noise of a study and without.

The release is the best that an attacker can get: the gradient of a single sample at the
first model, as long as clipping allows, with the noise that the study adds to it once.
"""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ... import seeds
from ...clients.kernels import Kernel
from ...clients.samples import Batch
from ...privacy.audits import inputs_of_layer, rebuilt
from ..config import Entry
from ..private import guard_of
from ..setup import Setup

_SAMPLES = 11
"""An odd number, of which the median is one."""

_LONGEST = 20_000
"""Parameters of a model through which features are sought, which takes seconds."""


class Inversion(NamedTuple):
    """How well samples are rebuilt: |rebuilt - sample| / |sample|, the median."""

    label: str
    error: float | None  # with the noise of the study; None: it has none
    without: float  # without noise


def inversion_of(setup: Setup, entry: Entry) -> Inversion | None:
    """How well samples of a study are rebuilt; None where no attack here fits.

    A first layer with a bias gives its inputs away; through other small models features
    are sought by steps, where they are quantities.
    """
    kernel, index = setup.simulation.kernel, setup.federation.train.index
    features = kernel.data(index[:1])[0]
    quick = _first_layer(setup.module) is not None
    small = kernel.parameters <= _LONGEST and features.is_floating_point()
    if not quick and not small:
        return None
    rng = seeds.generator(setup.seed, "audit", "inversion")
    samples = index[torch.randperm(len(index), generator=rng)[:_SAMPLES]]
    without = median(_error(setup, kernel, one, 0.0) for one in samples)
    if setup.study.privacy is None:
        return Inversion(entry.label, None, without)
    mechanism, unit = guard_of(setup, entry).mechanism, setup.study.privacy.unit
    # Of single samples, noise is in clips already.
    noise = mechanism.noise / (mechanism.clip if unit == "client" else 1.0)
    error = median(_error(setup, kernel, one, noise) for one in samples)
    return Inversion(entry.label, error, without)


def _error(setup: Setup, kernel: Kernel, sample: Tensor, noise: float) -> float:
    point = setup.x[:1]
    weight = torch.ones(1, 1).to(point)
    g = kernel.grad(point, Batch(sample.reshape(1, 1), weight))[0]
    length = g.norm()
    rng = seeds.generator(setup.seed, "audit", "noise", int(sample))
    z = g + noise * length * torch.randn(g.shape, generator=rng).to(g)
    features, target = kernel.data(sample.reshape(1))
    found = _rebuilt(setup, kernel, point[0], z, features[0], target)
    return float((found - features[0]).norm() / features[0].norm().clamp(min=1e-12))


def _rebuilt(
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
