"""Averaging over a graph: in rounds, by random pairs, accelerated, or with delays."""

from .accelerated import GossipPace, RowPairs, accelerated, flow_shares, pace, pace_of
from .capacities import accepted_messages, admitted_rings, kept_by_truncation
from .delayed import delayed, trajectory_means
from .mean_paths import local_margin, mean_path, stability_margin
from .randomised import randomised
from .rings import layers, poisson_rings
from .synchronous import chebyshev, plain, time_varying

__all__ = [
    "GossipPace",
    "RowPairs",
    "accelerated",
    "accepted_messages",
    "admitted_rings",
    "chebyshev",
    "delayed",
    "flow_shares",
    "kept_by_truncation",
    "layers",
    "local_margin",
    "mean_path",
    "pace",
    "pace_of",
    "plain",
    "poisson_rings",
    "randomised",
    "stability_margin",
    "time_varying",
    "trajectory_means",
]
