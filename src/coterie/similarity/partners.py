"""Finds before training which clients should learn together, from a few samples.

    1. `split_for_partners` of `samples` takes S training samples of every client;
    2. a function of `distances` or `projected` estimates distances between clients and
       their standard errors;
    3. `classify_pairs` says which pairs are near, far or undecided;
    4. `weights_from` returns weights, an ingredient of many algorithms.

References:
    Even, "Towards decentralization, asynchrony, privacy and personalization in
    federated learning", PhD thesis, 2024, section 8.6, hal tel-04877971.

Differences: we compare unbiased estimates with a threshold, so the threshold is for the
true distance. A pair is marked as undecided if there are too few samples to decide.
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
"""With more samples in total, we use random frequencies instead of pairs of samples."""


def _moments(samples: Samples) -> Distances:
    """Distances of first and second moments together, for samples with an entry 1."""
    one = samples.mask[..., None].to(samples.values)
    return moment_distances(
        samples._replace(values=torch.cat([one, samples.values], 2)), order=2
    )


def _discrepancy(samples: Samples) -> Distances:
    """Maximum mean discrepancies; if there are many samples, by random frequencies."""
    few = samples.mask.numel() <= _EXACT
    return mmd_distances(samples) if few else fourier_distances(samples)


ESTIMATES: dict[str, Callable[[Samples], Distances]] = {
    "means": moment_distances,
    "moments": _moments,
    "mmd": _discrepancy,
    "sliced": sliced_distances,
}
"""Functions from samples to distances, by the names that studies use."""


def classify_pairs(
    distances: Distances, threshold: float, *, confidence: float = 0.95
) -> Int[Tensor, "n n"]:
    """NEAR (1), FAR (-1) or UNDECIDED (0) for every pair; a client is near itself.

    A pair is near if we are sure, with this confidence, that its distance is at most
    the threshold. It is far if we are sure that its distance is larger.

    Args:
        distances: squared, with their errors.
        threshold: u, for squared distances.
        confidence: the confidence of one decision, below 1. With 0.5, the smallest,
            every pair is decided. With 0.95, about 50 of 1,000 pairs just above the
            threshold are called near by mistake.
    """
    checks.number("threshold", threshold, at_least=0)
    checks.number("confidence", confidence, at_least=0.5, below=1)
    squared, error = distances
    margin = float(torch.special.ndtri(torch.tensor(confidence, dtype=torch.float64)))
    # Infinite errors are a separate case, because 0 times infinity is NaN.
    width = torch.where(error.isinf(), torch.inf, margin * error.nan_to_num(posinf=0))
    near = squared + width <= threshold
    near |= torch.eye(len(squared), dtype=torch.bool, device=squared.device)
    far = (squared - width > threshold) & ~near
    return near.long() - far.long()


def gap_threshold(distances: Distances, *, factor: float = 1.5) -> float:
    """A threshold for squared distances, in the middle of their widest gap.

    To find the gap, we sort the distances, and look for the largest ratio of a distance
    to the next smaller one. Let q be 2.5 times the lower quartile of the standard
    errors. Distances below q are noise, and count as q.

    Raises:
        InputError: if no ratio reaches `factor`. Then there is no gap, or noise hides
            it.
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
            f"squared distances have no gap: none between {float(floor):.3g} (noise) "
            f"and {float(rising[-1]):.3g} (the largest) is {factor:g} times the next "
            "smaller one; use more samples or give a threshold."
        )
    return float(rising[place] * rising[place + 1]) ** 0.5


def weights_from(
    distances: Distances,
    threshold: float | None = None,
    *,
    confidence: float = 0.95,
    undecided_is_near: bool = False,
) -> Float[Tensor, "n n"]:
    """Uniform weights of each client over itself and all near clients; rows sum to 1.

    Args:
        distances: squared, with their errors.
        threshold: limit of squared distances; None takes `gap_threshold`.
        confidence: the confidence of one decision, see `classify_pairs`.
        undecided_is_near: whether undecided pairs learn together. If they do not,
            clients with too few samples train alone.
    """
    if threshold is None:
        threshold = gap_threshold(distances)
    verdict = classify_pairs(distances, threshold, confidence=confidence)
    least = UNDECIDED if undecided_is_near else NEAR
    return threshold_weights(-verdict.to(distances.squared), -float(least))


def estimated_weights(
    name: str, federation: Federation, samples: int, threshold: float | None = None
) -> Float[Tensor, "n n"]:
    """Weights from S training samples of every client; training uses these too.

    Args:
        name: one of `ESTIMATES`; the prefix `unlabelled_` uses features only.
        federation: the clients.
        samples: S.
        threshold: limit of squared distances; None takes `gap_threshold`.
    """
    plain = name.removeprefix("unlabelled_")
    chosen, _ = split_for_partners(federation, samples)
    known = samples_of(chosen, labelled=plain == name)
    return weights_from(ESTIMATES[plain](known), threshold)
