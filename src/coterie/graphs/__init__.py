"""Who meets whom: graphs, matrices to gossip with, matchings, and busy networks."""

from .capacities import RingTimes, loss_rates, met
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
    among_present,
    circles,
    gossip_matrix,
    joined,
    laplacian_matrix,
    lazy,
    max_degree,
    neighbouring,
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
    "among_present",
    "chebyshev_factor",
    "circles",
    "colouring",
    "contraction",
    "degrees",
    "delayed_gains",
    "delayed_gap",
    "delayed_shares",
    "edges_of",
    "eigengap",
    "fastest_mixing",
    "gossip_matrix",
    "hitting_time",
    "hitting_time_of",
    "hitting_times",
    "joined",
    "laplacian_matrix",
    "lazy",
    "loss_rates",
    "matchings",
    "max_degree",
    "met",
    "neighbouring",
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
