"""Graphs of clients, gossip matrices, matchings, walks, and rates of edges."""

from ..names import publish
from .capacities import RingTimes as RingTimes
from .capacities import exchange_rate_bounds as exchange_rate_bounds
from .capacities import exchange_rates as exchange_rates
from .capacities import loss_rates as loss_rates
from .chains import hitting_time as hitting_time
from .chains import hitting_time_of as hitting_time_of
from .chains import hitting_times as hitting_times
from .chains import stationary_law as stationary_law
from .colourings import colouring as colouring
from .families import GRAPHS as GRAPHS
from .families import degrees as degrees
from .families import edges_of as edges_of
from .families import matchings as matchings
from .families import refuse_apart as refuse_apart
from .fastest import MIXINGS as MIXINGS
from .fastest import fastest_mixing as fastest_mixing
from .intensities import delayed_gains as delayed_gains
from .intensities import delayed_gap as delayed_gap
from .intensities import delayed_shares as delayed_shares
from .intensities import tuned_rates as tuned_rates
from .layouts import places as places
from .matrices import DoublyStochastic as DoublyStochastic
from .matrices import Gossip as Gossip
from .matrices import Mixing as Mixing
from .matrices import adjacency as adjacency
from .matrices import among_present as among_present
from .matrices import gossip_matrix as gossip_matrix
from .matrices import laplacian_matrix as laplacian_matrix
from .matrices import lazy as lazy
from .matrices import linked_pairs as linked_pairs
from .matrices import max_degree as max_degree
from .matrices import neighbourhoods as neighbourhoods
from .resistances import resistances as resistances
from .spectra import chebyshev_factor as chebyshev_factor
from .spectra import contraction as contraction
from .spectra import eigengap as eigengap
from .spectra import spectral_gap as spectral_gap
from .walks import WALKS as WALKS
from .walks import Visits as Visits
from .walks import oldest as oldest
from .walks import oldest_by_epochs as oldest_by_epochs
from .walks import transition as transition
from .walks import walk_on as walk_on

publish(__name__)
