"""Who meets whom: graphs, matrices to gossip with, matchings, and busy networks."""

from .capacities import RingTimes, admitted, thinned
from .families import (
    GRAPHS,
    degrees,
    edges_of,
    eigengap,
    gossip_matrix,
    matchings,
    neighbours,
    nodes_of,
    refuse_apart,
)

__all__ = [
    "GRAPHS",
    "RingTimes",
    "admitted",
    "degrees",
    "edges_of",
    "eigengap",
    "gossip_matrix",
    "matchings",
    "neighbours",
    "nodes_of",
    "refuse_apart",
    "thinned",
]
