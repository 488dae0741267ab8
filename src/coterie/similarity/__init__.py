"""Measures before training how similar clients are, from their data.

`distances`, `projected` and `transport` estimate distances between clients' data.
`partners` turns distances into pairs and weights, and `samples` chooses the samples.
"""

from ..names import publish
from .distances import Distances as Distances
from .distances import mmd_distances as mmd_distances
from .distances import moment_distances as moment_distances
from .partners import classify_pairs as classify_pairs
from .partners import gap_threshold as gap_threshold
from .partners import weights_from as weights_from
from .projected import fourier_distances as fourier_distances
from .projected import sliced_distances as sliced_distances
from .samples import Samples as Samples
from .samples import deal_samples as deal_samples
from .samples import samples_of as samples_of
from .samples import split_for_partners as split_for_partners
from .transport import dissimilarities as dissimilarities

publish(__name__)
