"""Averaging over a graph: in rounds, by random pairs, accelerated, or with delays."""

from coterie.names import publish

from .accelerated import GossipPace as GossipPace
from .accelerated import RowPairs as RowPairs
from .accelerated import accelerated as accelerated
from .accelerated import flow_shares as flow_shares
from .accelerated import pace as pace
from .accelerated import pace_of as pace_of
from .capacities import accepted_messages as accepted_messages
from .capacities import admitted_rings as admitted_rings
from .capacities import kept_by_truncation as kept_by_truncation
from .delayed import delayed as delayed
from .delayed import trajectory_means as trajectory_means
from .mean_paths import local_margin as local_margin
from .mean_paths import mean_path as mean_path
from .mean_paths import stability_margin as stability_margin
from .randomised import randomised as randomised
from .rings import layers as layers
from .rings import poisson_rings as poisson_rings
from .synchronous import chebyshev as chebyshev
from .synchronous import plain as plain
from .synchronous import time_varying as time_varying

publish(__name__)
