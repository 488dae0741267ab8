"""Whom to trust: weights, what is believed of others, and whose model fits best."""

from .beliefs import (
    Halves,
    Trust,
    estimate,
    learn,
    of_pairs,
)
from .evidence import choices, most_above_own
from .rows import alike
from .weights import (
    among,
    binary,
    collaboration_weights,
    continuous,
    effective_variance,
    interpolation,
    links,
    metropolis,
    noise_variance,
    normalised,
    same_cluster,
    spectral_radius,
    water_filling,
    within,
)

__all__ = [
    "Halves",
    "Trust",
    "alike",
    "among",
    "binary",
    "choices",
    "collaboration_weights",
    "continuous",
    "effective_variance",
    "estimate",
    "interpolation",
    "learn",
    "links",
    "metropolis",
    "most_above_own",
    "noise_variance",
    "normalised",
    "of_pairs",
    "same_cluster",
    "spectral_radius",
    "water_filling",
    "within",
]
