"""How clients choose from whom they learn: weights, beliefs, and the best model."""

from ..names import publish
from .beliefs import Halves as Halves
from .beliefs import Trust as Trust
from .beliefs import estimate as estimate
from .beliefs import learn as learn
from .beliefs import pair_statistics as pair_statistics
from .evidence import choices as choices
from .evidence import most_above_own as most_above_own
from .rows import compute_once as compute_once
from .shared import Models as Models
from .weights import binary as binary
from .weights import collaboration_weights as collaboration_weights
from .weights import continuous as continuous
from .weights import count_links as count_links
from .weights import effective_variance as effective_variance
from .weights import interpolation as interpolation
from .weights import metropolis as metropolis
from .weights import noise_variance as noise_variance
from .weights import normalised as normalised
from .weights import restrict_to_active as restrict_to_active
from .weights import same_cluster as same_cluster
from .weights import spectral_radius as spectral_radius
from .weights import threshold_weights as threshold_weights
from .weights import water_filling as water_filling

publish(__name__)
