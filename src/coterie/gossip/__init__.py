"""Averaging over a graph: in rounds, by random pairs, accelerated, or with delays."""

from ..graphs.capacities import RingTimes, accepted, truncated
from .accelerated import GossipPace, RowPairs, accelerated, moved, pace, pace_of
from .delayed import delayed, shares, trajectory_means
from .mean_paths import local_margin, mean_path, stability_margin
from .randomised import randomised
from .rings import layers, poisson_rings
from .synchronous import chebyshev, chebyshev_factor, plain, time_varying

__all__ = [
    "GossipPace",
    "RingTimes",
    "RowPairs",
    "accelerated",
    "accepted",
    "chebyshev",
    "chebyshev_factor",
    "delayed",
    "layers",
    "local_margin",
    "mean_path",
    "moved",
    "pace",
    "pace_of",
    "plain",
    "poisson_rings",
    "randomised",
    "shares",
    "stability_margin",
    "time_varying",
    "trajectory_means",
    "truncated",
]
