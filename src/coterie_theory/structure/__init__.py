"""Estimators of models in a common subspace or with few centres, and their rates.

Models are linear or generalised linear; W has a row for each client. Rates and
thresholds are in `rates`, `one_sample_rates` and `shells`. For networks there are the
methods `fedrep`, `shared_subspace`, `nuclear_norm` and `low_rank_corrections`.
"""

from .clusters import ClusteredModels, fit_clusters
from .few_shot import few_shot_head
from .low_rank import LowRankModels, burer_monteiro, hard_thresholding
from .nuclear import (
    NuclearModels,
    duality_gap,
    fista,
    nuclear_radius,
    onto_nuclear_ball,
)
from .one_sample import Subspace, admissibility, one_sample_subspace
from .subspaces import cut_to_rank, principal_sines, squared_distance, top_subspace
from .tasks import (
    FewSamplesWarning,
    Tasks,
    fit_alone,
    fit_single,
    gradients,
    loss,
    tasks,
)

__all__ = [
    "ClusteredModels",
    "FewSamplesWarning",
    "LowRankModels",
    "NuclearModels",
    "Subspace",
    "Tasks",
    "admissibility",
    "burer_monteiro",
    "cut_to_rank",
    "duality_gap",
    "few_shot_head",
    "fista",
    "fit_alone",
    "fit_clusters",
    "fit_single",
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
    "squared_distance",
    "tasks",
    "top_subspace",
]
