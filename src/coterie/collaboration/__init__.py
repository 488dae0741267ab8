"""How clients choose from whom they learn: weights, beliefs, and the best model."""

from .beliefs import Halves, Trust, estimate, learn, pair_statistics
from .evidence import choices, most_above_own
from .rows import compute_once
from .weights import (
    binary,
    collaboration_weights,
    continuous,
    count_links,
    effective_variance,
    interpolation,
    metropolis,
    noise_variance,
    normalised,
    restrict_to_active,
    same_cluster,
    spectral_radius,
    threshold_weights,
    water_filling,
)

__all__ = [
    "Halves",
    "Trust",
    "binary",
    "choices",
    "collaboration_weights",
    "compute_once",
    "continuous",
    "count_links",
    "effective_variance",
    "estimate",
    "interpolation",
    "learn",
    "metropolis",
    "most_above_own",
    "noise_variance",
    "normalised",
    "pair_statistics",
    "restrict_to_active",
    "same_cluster",
    "spectral_radius",
    "threshold_weights",
    "water_filling",
]
