"""Graphs of clients, gossip matrices, matchings, walks, and rates of edges."""

from .capacities import (
    RingTimes,
    exchange_rate_bounds,
    exchange_rates,
    loss_rates,
)
from .chains import (
    hitting_time,
    hitting_time_of,
    hitting_times,
    stationary_law,
)
from .colourings import colouring
from .families import (
    GRAPHS,
    degrees,
    edges_of,
    matchings,
    refuse_apart,
)
from .fastest import MIXINGS, fastest_mixing
from .intensities import delayed_gains, delayed_gap, delayed_shares, tuned_rates
from .layouts import places
from .matrices import (
    DoublyStochastic,
    Gossip,
    Mixing,
    adjacency,
    among_present,
    gossip_matrix,
    laplacian_matrix,
    lazy,
    linked_pairs,
    max_degree,
    neighbourhoods,
)
from .resistances import resistances
from .spectra import chebyshev_factor, contraction, eigengap, spectral_gap
from .walks import (
    WALKS,
    Visits,
    oldest,
    oldest_by_epochs,
    transition,
    walk_on,
)

__all__ = [
    "GRAPHS",
    "MIXINGS",
    "WALKS",
    "DoublyStochastic",
    "Gossip",
    "Mixing",
    "RingTimes",
    "Visits",
    "adjacency",
    "among_present",
    "chebyshev_factor",
    "colouring",
    "contraction",
    "degrees",
    "delayed_gains",
    "delayed_gap",
    "delayed_shares",
    "edges_of",
    "eigengap",
    "exchange_rate_bounds",
    "exchange_rates",
    "fastest_mixing",
    "gossip_matrix",
    "hitting_time",
    "hitting_time_of",
    "hitting_times",
    "laplacian_matrix",
    "lazy",
    "linked_pairs",
    "loss_rates",
    "matchings",
    "max_degree",
    "neighbourhoods",
    "oldest",
    "oldest_by_epochs",
    "places",
    "refuse_apart",
    "resistances",
    "spectral_gap",
    "stationary_law",
    "transition",
    "tuned_rates",
    "walk_on",
]
