"""Who meets whom: graphs, matrices to gossip with, matchings, and busy networks."""

from .capacities import RingTimes, admitted, thinned
from .colourings import colouring
from .families import (
    GRAPHS,
    degrees,
    edges_of,
    matchings,
    nodes_of,
    refuse_apart,
)
from .matrices import circles, gossip_matrix, joined, neighbouring
from .spectra import contraction, eigengap

__all__ = [
    "GRAPHS",
    "RingTimes",
    "admitted",
    "circles",
    "colouring",
    "contraction",
    "degrees",
    "edges_of",
    "eigengap",
    "gossip_matrix",
    "joined",
    "matchings",
    "neighbouring",
    "nodes_of",
    "refuse_apart",
    "thinned",
]
