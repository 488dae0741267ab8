"""Who should learn with whom, found before training from a few samples of each client.

    1. `split_for_partners` of `samples` takes S training samples of every client;
    2. a function of `distances` or `projected` says how far apart clients are, and how
       sure that is;
    3. `classify_pairs` says which pairs are near, which are far, and which are open;
    4. `weights_from` makes weights, an ingredient of many algorithms.

References:
    Even, "Towards decentralization, asynchrony, privacy and personalization in
    federated learning", PhD thesis, 2024, section 8.6, hal tel-04877971.

Differences: the noise of estimates is removed before they meet a threshold, so that the
threshold is about the distance itself; pairs that the samples cannot decide are told
apart from those that they can.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .. import checks
from ..collaboration.weights import threshold_weights
from ..data.federation import Federation
from .distances import Distances, mmd_distances, moment_distances
from .projected import fourier_distances, sliced_distances
from .samples import Samples, samples_of, split_for_partners

NEAR, UNDECIDED, FAR = 1, 0, -1

_EXACT = 10_000
"""So many samples in total are compared one by one; more go by frequencies."""


def _moments(samples: Samples) -> Distances:
    """Distances of first and second moments: those of samples with a 1 before them."""
    one = samples.mask[..., None].to(samples.values)
    return moment_distances(
        samples._replace(values=torch.cat([one, samples.values], 2)), order=2
    )


def _discrepancy(samples: Samples) -> Distances:
    """Maximum mean discrepancies, in the way that suits the number of samples."""
    few = samples.mask.numel() <= _EXACT
    return mmd_distances(samples) if few else fourier_distances(samples)


ESTIMATES: dict[str, Callable[[Samples], Distances]] = {
    "means": moment_distances,
    "moments": _moments,
    "mmd": _discrepancy,
    "sliced": sliced_distances,
}
"""Distances from samples, by the names that studies use."""


def classify_pairs(
    distances: Distances, threshold: float, *, confidence: float = 0.95
) -> Int[Tensor, "n n"]:
    """NEAR (1), FAR (-1) or UNDECIDED (0) for every pair; everybody is near to itself.

    A pair is near if its distance is at most the threshold with that confidence, far if
    it is more with that confidence.

    Args:
        distances: squared, with their errors.
        threshold: u, for squared distances.
        confidence: of one verdict, from 0.5, where nothing is open, to below 1. Among
            1,000 pairs that lie at the threshold, 0.95 leaves 50 wrong near.
    """
    checks.number("threshold", threshold, at_least=0)
    checks.number("confidence", confidence, at_least=0.5, below=1)
    squared, error = distances
    margin = float(torch.special.ndtri(torch.tensor(confidence, dtype=torch.float64)))
    # Asked for apart, since 0 times an infinite error is no number.
    width = torch.where(error.isinf(), torch.inf, margin * error.nan_to_num(posinf=0))
    near = squared + width <= threshold
    near |= torch.eye(len(squared), dtype=torch.bool, device=squared.device)
    far = (squared - width > threshold) & ~near
    return near.long() - far.long()


def gap_threshold(distances: Distances, *, factor: float = 1.5) -> float:
    """A threshold for squared distances, in the middle of the widest gap among them.

    Distances below 2.5 standard errors of the surest pairs are noise and count as this
    floor; the gap is then the largest ratio of neighbours.

    Raises:
        InputError: where distances show no gap of that factor, be it that they go on
            without one, or that all are noise, behind which smaller ones may hide.
    """
    apart = ~torch.eye(len(distances.squared), dtype=torch.bool)
    apart = apart.to(distances.squared.device) & distances.error.isfinite()
    values, errors = distances.squared[apart].double(), distances.error[apart].double()
    if not len(values):
        return 0.0
    floor = 2.5 * errors.kthvalue(1 + len(errors) // 4).values  # the lower quartile
    rising = torch.cat([floor[None], values.maximum(floor)]).sort().values
    ratio = rising[1:] / rising[:-1].clamp(min=1e-300)
    place = int(ratio.argmax())
    if float(ratio[place]) < factor:
        raise checks.InputError(
            f"squared distances have no gap: up to {float(floor):.3g} is noise, the "
            f"largest is {float(rising[-1]):.3g}, and nowhere between is one "
            f"{factor:g} times the one before; use more samples or give a threshold."
        )
    return float(rising[place] * rising[place + 1]) ** 0.5


def weights_from(
    distances: Distances,
    threshold: float | None = None,
    *,
    confidence: float = 0.95,
    undecided_is_near: bool = False,
) -> Float[Tensor, "n n"]:
    """Uniform weights over oneself and all who are near; rows sum to 1.

    Args:
        distances: squared, with their errors.
        threshold: for squared distances; None takes `gap_threshold`.
        confidence: see `classify_pairs`.
        undecided_is_near: whether open pairs learn together; if not, too few samples
            make clients train alone.
    """
    if threshold is None:
        threshold = gap_threshold(distances)
    verdict = classify_pairs(distances, threshold, confidence=confidence)
    least = UNDECIDED if undecided_is_near else NEAR
    return threshold_weights(-verdict.to(distances.squared), -float(least))


def estimated_weights(
    name: str, federation: Federation, samples: int, threshold: float | None = None
) -> Float[Tensor, "n n"]:
    """Weights from S training samples of every client, which stay in training.

    Args:
        name: one of `ESTIMATES`; with `unlabelled_` before it, from features only.
        federation: whose data.
        samples: S.
        threshold: for squared distances; None looks for a gap.
    """
    plain = name.removeprefix("unlabelled_")
    chosen, _ = split_for_partners(federation, samples)
    known = samples_of(chosen, labelled=plain == name)
    return weights_from(ESTIMATES[plain](known), threshold)
