"""Estimators of models that share a subspace or centres, and their rates.

Models are linear or generalised linear, W with a row for each client. Rates and
thresholds are in `rates`, `one_sample_rates` and `shells`. The methods `fedrep`,
`shared_subspace`, `nuclear_norm` and `low_rank_corrections` do the same for networks.
"""

from .clusters import Clustered, clustered
from .few_shot import few_shot_head
from .low_rank import LowRank, burer_monteiro, hard_thresholding
from .nuclear import Nuclear, duality_gap, fista, nuclear_radius, onto_nuclear_ball
from .one_sample import Subspace, admissibility, one_sample_subspace
from .subspaces import cut, principal_sines, squared_distance, top_subspace
from .tasks import FewSamplesWarning, Tasks, alone, gradients, loss, single, tasks

__all__ = [
    "Clustered",
    "FewSamplesWarning",
    "LowRank",
    "Nuclear",
    "Subspace",
    "Tasks",
    "admissibility",
    "alone",
    "burer_monteiro",
    "clustered",
    "cut",
    "duality_gap",
    "few_shot_head",
    "fista",
    "gradients",
    "hard_thresholding",
    "loss",
    "nuclear_radius",
    "one_sample_rates",
    "one_sample_subspace",
    "onto_nuclear_ball",
    "principal_sines",
    "rates",
    "shells",
    "single",
    "squared_distance",
    "tasks",
    "top_subspace",
]
