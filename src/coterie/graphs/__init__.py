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
from .fastest import MIXINGS, fastest_mixing
from .intensities import delayed_gains, delayed_gap, tuned_rates
from .layouts import places
from .matrices import (
    circles,
    gossip_matrix,
    joined,
    laplacian_matrix,
    lazy,
    max_degree,
)
from .resistances import resistances
from .spectra import contraction, eigengap, spectral_gap

__all__ = [
    "GRAPHS",
    "MIXINGS",
    "RingTimes",
    "admitted",
    "circles",
    "contraction",
    "degrees",
    "delayed_gains",
    "delayed_gap",
    "edges_of",
    "eigengap",
    "fastest_mixing",
    "gossip_matrix",
    "joined",
    "laplacian_matrix",
    "lazy",
    "matchings",
    "max_degree",
    "nodes_of",
    "places",
    "refuse_apart",
    "resistances",
    "spectral_gap",
    "thinned",
    "tuned_rates",
]
