"""Estimators of models in a common subspace or with few centres, and their rates.

Models are linear or generalised linear; W has a row for each client. Rates and
thresholds are in `rates`, `one_sample_rates` and `shells`. For networks there are the
methods `fedrep`, `shared_subspace`, `nuclear_norm` and `low_rank_corrections`.
"""

from coterie.names import publish

from . import one_sample_rates as one_sample_rates
from . import rates as rates
from . import shells as shells
from .clusters import ClusteredModels as ClusteredModels
from .clusters import fit_clusters as fit_clusters
from .few_shot import few_shot_head as few_shot_head
from .low_rank import LowRankModels as LowRankModels
from .low_rank import burer_monteiro as burer_monteiro
from .low_rank import hard_thresholding as hard_thresholding
from .nuclear import NuclearModels as NuclearModels
from .nuclear import duality_gap as duality_gap
from .nuclear import fista as fista
from .nuclear import nuclear_radius as nuclear_radius
from .nuclear import onto_nuclear_ball as onto_nuclear_ball
from .one_sample import Subspace as Subspace
from .one_sample import admissibility as admissibility
from .one_sample import one_sample_subspace as one_sample_subspace
from .subspaces import cut_to_rank as cut_to_rank
from .subspaces import principal_sines as principal_sines
from .subspaces import squared_distance as squared_distance
from .subspaces import top_subspace as top_subspace
from .tasks import FewSamplesWarning as FewSamplesWarning
from .tasks import Tasks as Tasks
from .tasks import fit_alone as fit_alone
from .tasks import fit_single as fit_single
from .tasks import gradients as gradients
from .tasks import loss as loss
from .tasks import tasks as tasks

publish(__name__)
