"""Who meets whom: graphs, matrices to gossip with, matchings, and busy networks."""

from .capacities import RingTimes, admitted, thinned
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

__all__ = [
    "GRAPHS",
    "Gossip",
    "RingTimes",
    "admitted",
    "among_present",
    "circles",
    "contraction",
    "degrees",
    "edges_of",
    "eigengap",
    "gossip_matrix",
    "joined",
    "matchings",
    "nodes_of",
    "refuse_apart",
    "thinned",
]
