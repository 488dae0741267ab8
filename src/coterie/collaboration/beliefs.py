"""Beliefs of clients about each other, from comparisons of their gradients.

A belief holds two running averages: of the estimated squared distance |grad R_k(x_i) -
grad R_i(x_i)|^2, and of the squared norm |grad R_i(x_i)|^2 of client i's own gradient.
The two are averaged separately, because the mean of a quotient is not the quotient of
means. The belief also holds the ratio from which weights are computed,

    r_ik = clip(1 - distance_ik / own_i, 0, 1).

The gradients a and b on two halves of the data also show how precise an average is. Let
mu be the mean of such a gradient, and S its covariance. Then <a, b> has variance 2 mu'S
mu + tr(S^2), at most 2 |mu|^2 s + s^2 for s^2 = tr(S^2). For two clients, <a_i - b_i,
a_k - b_k> has mean zero and variance 4 tr(S_i S_k). So its mean square over k measures
s^2 if all clients are equally noisy. If they are not, the estimated error is only an
order of magnitude, not a bound. If the number m of samples is odd, the halves differ by
one sample, and s^2 is too large by a factor m^2 / (m^2 - 1).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Real
from torch import Tensor

from ..checks import one_of
from ..options import BelowOne, NotNegative
from ..types import Comparison
from .weights import (
    Criterion,
    binary,
    collaboration_weights,
    continuous,
    normalised,
    similarity_ratio,
    valid_criterion,
)


class Belief(NamedTuple):
    """Weighted sums over past comparisons, sums of weights, and the ratios in use."""

    distance: Float[Tensor, "n n"]  # sums of estimates times their weights
    own: Float[Tensor, " n"]
    noise: Float[Tensor, " n"]  # of s^2
    variance: Float[Tensor, " n"]  # of the gradient noise of one sample
    mass: Float[Tensor, "n n"]  # sum of the weights
    squares: Float[Tensor, "n n"]  # sum of their squares
    ratio: Float[Tensor, "n n"]


def first_half(samples: Real[Tensor, " n"]) -> Real[Tensor, " n"]:
    """The number of samples in the first half; the second half has the rest."""
    return samples // 2


def pooled_gradients(
    a: Float[Tensor, "n d"], b: Float[Tensor, "n d"], samples: Float[Tensor, " n"]
) -> Float[Tensor, "n d"]:
    """Gradients on all samples: means of those on both halves, weighted by size."""
    return torch.lerp(b, a, (first_half(samples) / samples)[:, None])


Halves = tuple[Tensor, Tensor, Tensor]
"""Gradients (n, D) of the first and the second half of each client's samples, and the
number of samples (n,) in both."""


def pair_statistics(reader: Halves, other: Halves) -> Float[Tensor, "3 n"]:
    """Fields `cross`, `pooled` and `noise` of a `Comparison`; each column is a pair.

    Args:
        reader: halves of clients i at their own models.
        other: halves of clients k at the same models.
    """
    (a, b, _), (c, d, _) = reader, other
    cross = ((a - c) * (b - d)).sum(1)
    noise = ((a - b) * (c - d)).sum(1)
    return torch.stack(
        [
            cross,
            (pooled_gradients(*reader) - pooled_gradients(*other)).square().sum(1),
            noise,
        ]
    )


def own_statistics(own: Halves) -> Float[Tensor, "3 n"]:
    """`own`, `own_pooled` and `variance` of a `Comparison`, for each client."""
    a, b, samples = own
    first = first_half(samples)
    # |a - b|^2 has the mean (1 / h + 1 / (m - h)) sigma^2 for halves of h and m - h.
    scale = first * (samples - first) / samples
    products, norms = (a * b).sum(1), pooled_gradients(*own).square().sum(1)
    return torch.stack([products, norms, scale * (a - b).square().sum(1)])


def no_belief(x: Float[Tensor, "n d"]) -> Belief:
    """The belief before any comparison: every client is alone."""
    pair, single = x.new_zeros(len(x), len(x)), x.new_zeros(len(x))
    return Belief(pair, single, single, single, pair, pair, torch.eye(len(x)).to(x))


def learn(
    belief: Belief, seen: Comparison, *, split: bool, memory: float, confidence: float
) -> Belief:
    """The belief after one more comparison.

    Args:
        belief: the belief so far.
        seen: the new comparison; pairs that it does not contain keep their belief.
        split: whether to use the unbiased products of halves, instead of squared norms
            of the pooled gradients.
        memory: weight of the average so far; the new comparison has the weight 1 -
            memory.
        confidence: a new ratio replaces the old one only if the two differ by more than
            this number of standard errors; with 0, it always does.
    """
    distance = seen.cross if split else seen.pooled
    own = seen.own if split else seen.own_pooled
    others = seen.known & ~torch.eye(len(own), dtype=torch.bool, device=own.device)
    pairs = others.sum(1).clamp(min=1)
    noise = (seen.noise.square() * others).sum(1) / pairs / 4
    alone = seen.known.diagonal()

    def average(old: Tensor, new: Tensor | float, known: Tensor) -> Tensor:
        return torch.where(known, memory * old + (1 - memory) * new, old)

    now = Belief(
        average(belief.distance, distance, seen.known),
        average(belief.own, own, alone),
        average(belief.noise, noise, alone),
        average(belief.variance, seen.variance, alone),
        average(belief.mass, 1.0, seen.known),
        torch.where(
            seen.known, memory**2 * belief.squares + (1 - memory) ** 2, belief.squares
        ),
        belief.ratio,
    )
    ratio, error = estimate(now)
    new = (ratio - belief.ratio).abs() > confidence * error
    # These need their own condition, because 0 times an infinite error is NaN.
    new |= (belief.mass == 0) | (confidence == 0)
    ratio = similarity_ratio(
        _mean(now.distance, now.mass), _mean(now.own, now.mass.diagonal())
    )
    return now._replace(ratio=torch.where(seen.known & new, ratio, belief.ratio))


def estimate(belief: Belief) -> tuple[Float[Tensor, "n n"], Float[Tensor, "n n"]]:
    """Ratios 1 - distance / own before clipping, and upper bounds of their errors.

    The error is infinite if the client's own squared norm is not positive.
    """
    once = belief.mass.diagonal()
    distance = _mean(belief.distance, belief.mass)
    own = _mean(belief.own, once)[:, None]
    s = _mean(belief.noise, once).sqrt()[:, None]
    counted = _mean(belief.squares, belief.mass.square())  # 1 / comparisons in effect
    own_variance = (2 * own.clamp(min=0) * s + s.square()) * counted.diagonal()[:, None]
    # The difference of two gradients has twice the covariance of one.
    variance = (2 * distance.clamp(min=0) * (2 * s) + (2 * s).square()) * counted
    positive = torch.where(own > 0, own, 1)
    slope = distance / positive
    error = (variance + slope.square() * own_variance).sqrt() / positive
    return 1 - slope, torch.where(own > 0, error, torch.inf)


def estimated_precision(belief: Belief) -> Float[Tensor, " n"]:
    """Estimates of sigma_k^-2, the inverse variance of the gradient of one sample.

    A client that has not been compared yet gets the mean over the others.
    """
    seen = belief.mass.diagonal() > 0
    variance = _mean(belief.variance, belief.mass.diagonal())
    # Only ratios matter, so precisions are relative to that of the noisiest client. At
    # most they are a million times as large: halves that agree exactly show no noise.
    largest = torch.where(seen, variance, 0).max()
    relative = variance / torch.where(largest > 0, largest, 1)
    precision = 1 / torch.where(seen, relative, 1).clamp(min=1e-6)
    mean = (precision * seen).sum() / seen.sum().clamp(min=1)
    return torch.where(seen, precision, torch.where(mean > 0, mean, 1))


class Trust(NamedTuple):
    """How a method estimates whether others help, and weighs them.

    The fields are options of `adaptive_all_for_one`, which describes them.
    """

    estimator: Literal["split", "plain"] = "split"
    memory: BelowOne = 0.8
    confidence: NotNegative = 0.5
    criterion: str | Callable[[Tensor], Tensor] = "binary"
    lam: float = 0.1
    rule: Literal["paper", "normalised"] = "paper"
    against: Literal["gradient", "noise"] = "gradient"

    def phi(self) -> Criterion:
        """The criterion phi of Definition 1."""
        if callable(self.criterion):
            return valid_criterion(self.criterion)
        one_of("criterion", self.criterion, ("binary", "continuous"))
        return binary(self.lam) if self.criterion == "binary" else continuous

    def learn(self, belief: Belief, seen: Comparison) -> Belief:
        """The belief after one more comparison."""
        if self.against == "noise":
            # Then the common part of all gradients, which is large at the start, has no
            # effect.
            noise = seen.variance / seen.samples.clamp(min=1)
            seen = seen._replace(own=noise, own_pooled=noise)
        how = {"memory": self.memory, "confidence": self.confidence}
        return learn(belief, seen, split=self.estimator == "split", **how)

    def weights(
        self, belief: Belief, precision: Tensor | None, phi: Criterion
    ) -> tuple[Float[Tensor, "n n"], Float[Tensor, " n"]]:
        """The weights that follow from a belief, and the precisions behind them.

        Args:
            belief: the belief about n clients.
            precision: (m,) precisions of at least these n clients, in this order; None:
                estimated.
            phi: the criterion.
        """
        s = estimated_precision(belief) if precision is None else precision
        s = s[: len(belief.ratio)].to(belief.ratio)
        alpha = collaboration_weights(belief.ratio, s, phi)
        return alpha if self.rule == "paper" else normalised(alpha), s


def _mean(total: Tensor, mass: Tensor) -> Tensor:
    """The weighted mean, 0 where nothing was seen."""
    return total / torch.where(mass > 0, mass, 1)
