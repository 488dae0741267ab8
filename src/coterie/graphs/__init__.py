"""Who meets whom: graphs, matrices to gossip with, matchings, and busy networks."""

from .capacities import RingTimes, admitted, thinned
from .chains import (
    cover_time,
    hitting_time,
    hitting_time_of,
    hitting_times,
    mixing_time,
    paths,
    period,
    relaxation_time,
    stationary_law,
)
from .families import (
    GRAPHS,
    degrees,
    edges_of,
    matchings,
    nodes_of,
    refuse_apart,
)
from .matrices import Gossip, among_present, circles, gossip_matrix, joined
from .spectra import contraction, eigengap
from .walks import (
    WALKS,
    Visits,
    Walk,
    oldest,
    oldest_by_epochs,
    transition,
    walk_on,
)

__all__ = [
    "GRAPHS",
    "WALKS",
    "Gossip",
    "RingTimes",
    "Visits",
    "Walk",
    "admitted",
    "among_present",
    "circles",
    "contraction",
    "cover_time",
    "degrees",
    "edges_of",
    "eigengap",
    "gossip_matrix",
    "hitting_time",
    "hitting_time_of",
    "hitting_times",
    "joined",
    "matchings",
    "mixing_time",
    "nodes_of",
    "oldest",
    "oldest_by_epochs",
    "paths",
    "period",
    "refuse_apart",
    "relaxation_time",
    "stationary_law",
    "thinned",
    "transition",
    "walk_on",
]
