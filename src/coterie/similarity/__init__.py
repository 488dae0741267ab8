"""Measures before training how similar clients are, from their data.

`distances`, `projected` and `transport` estimate distances between clients' data.
`partners` turns distances into pairs and weights, and `samples` chooses the samples.
"""

from .distances import Distances, mmd_distances, moment_distances
from .partners import classify_pairs, gap_threshold, weights_from
from .projected import fourier_distances, sliced_distances
from .samples import Samples, deal_samples, samples_of, split_for_partners
from .transport import dissimilarities

__all__ = [
    "Distances",
    "Samples",
    "classify_pairs",
    "deal_samples",
    "dissimilarities",
    "fourier_distances",
    "gap_threshold",
    "mmd_distances",
    "moment_distances",
    "samples_of",
    "sliced_distances",
    "split_for_partners",
    "weights_from",
]
