"""Attacks that guess which samples were in the data.

In one run (`canaries`), each of m samples is in a client's data with chance 1/2. The
attacker knows everything else, and guesses which samples are in. A canary j adds its
clipped gradient to a release. So the attacker projects releases g_1 .. g_T on its
direction u_j and looks at

    sums      sum_t <g_t, u_j>                  which grow where j takes part;
    changes   sum_t <g_(t+1) - g_t, u_j>^2      where repeated noise cancels, but
                                                the effect of a canary does not;
    first     <g_1 - g_2, u_j>                  the same, if samples take part in every
                                                step, and gradients soon change.

With shadow models (Carlini et al. 2022, LiRA), many models are each trained on a random
half of the samples. The shadow models show how sure a model is of a sample in two
cases: the model has seen the sample, or it has not. We fit a Gaussian to each case. For
a sample of the audited model, the ratio of the two likelihoods decides.

Reference:
    Carlini, Chien, Nasr, Song, Terzis, Tramer, "Membership inference attacks from first
    principles", S&P 2022, arXiv 2112.03570.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from ...checks import InputError, number
from .bounds import epsilon_of_one_run


class Audit(NamedTuple):
    """What an attack has proved, next to the accountant's promise."""

    lower: float  # epsilon is larger than this, with the given confidence
    upper: float  # the accountant's epsilon
    right: int
    guesses: int
    attack: str

    @property
    def broken(self) -> bool:
        """Whether the promise is disproved."""
        return self.lower > self.upper

    def __str__(self) -> str:
        verdict = "BROKEN" if self.broken else "not disproved"
        return (
            f"epsilon: at least {self.lower:.3g} ({self.right} of {self.guesses} "
            f"guesses right, {self.attack}), promised at most {self.upper:.3g}: "
            f"{verdict}"
        )


def scores_along(along: Float[Tensor, "t m"]) -> dict[str, Float[Tensor, " m"]]:
    """Scores of canaries, from releases projected on their directions."""
    steps = along.diff(dim=0)
    return {
        "sums": along.sum(0),
        "changes": steps.square().sum(0),
        "first": -steps[:1].sum(0),
    }


def audit_scores(
    scores: Mapping[str, Float[Tensor, " m"]],
    members: Bool[Tensor, " m"],
    *,
    upper: float,
    delta: float,
    confidence: float = 0.95,
    abstain: float = 0.5,
) -> Audit:
    """The best bound of several attacks; all bounds hold together with the confidence.

    Args:
        scores: the scores of each attack, larger for members.
        members: which canaries were in the data.
        upper: the accountant's epsilon.
        delta: the delta of both bounds.
        confidence: that the lower bound holds.
        abstain: the share of canaries with middle scores, which are not guessed.
    """
    number("abstain", abstain, at_least=0, below=1)
    if not scores or members.dim() != 1 or len(members) < 2:
        raise InputError("`scores` must hold an attack on at least two canaries.")
    single = 1 - (1 - confidence) / len(scores)
    found = []
    for name, values in scores.items():
        right, guesses = _count_guesses(values, members, abstain)
        lower = epsilon_of_one_run(
            right, guesses, len(members), delta=delta, confidence=single
        )
        found.append(Audit(lower, upper, right, guesses, name))
    return max(found)


def _count_guesses(values: Tensor, members: Tensor, abstain: float) -> tuple[int, int]:
    """The numbers of right guesses and of all guesses.

    The largest values count as "in", and the same number of smallest values as "out".
    """
    m = len(values)
    half = max(1, round(m * (1 - abstain) / 2))
    order = values.argsort(descending=True)
    called_in, called_out = order[:half], order[m - half :]
    right = members[called_in].sum() + (~members[called_out]).sum()
    return int(right), 2 * half


# Shadow models.


def confidence_of(losses: Float[Tensor, "*k m"]) -> Float64[Tensor, "*k m"]:
    """Logit of the probability of the right class, from the cross-entropy.

    From model to model, the logit varies nearly like a Gaussian. The loss does not.
    """
    losses = losses.double().clamp(min=1e-12)
    return -losses - torch.log(-torch.expm1(-losses))


def likelihood_scores(
    target: Float64[Tensor, " m"],
    shadows: Float64[Tensor, "k m"],
    members: Bool[Tensor, "k m"],
) -> Float64[Tensor, " m"]:
    """Log-likelihood ratios, sample by sample, of "the model has seen it" to "has not".

    For each sample, the confidence is taken as Gaussian, with one mean for models that
    have seen the sample and another for models that have not. The variance is the same
    for all samples, because a few shadow models say little about one sample.

    Args:
        target: confidence of the audited model in each sample.
        shadows: confidence of each shadow model.
        members: which samples each shadow model has seen.
    """
    if not bool((members.any(0) & ~members.all(0)).all()):
        raise InputError(
            "every sample must be in the data of some shadow models, and not of all."
        )

    def law(seen: Tensor) -> tuple[Tensor, Tensor]:
        many = seen.sum(0)
        mean = (shadows * seen).sum(0) / many
        spread = ((shadows - mean).square() * seen).sum() / (many.sum() - len(many))
        return mean, spread.clamp(min=1e-12)

    (inside, vary_in), (outside, vary_out) = law(members), law(~members)
    near_in = -(target - inside).square() / (2 * vary_in) - vary_in.log() / 2
    return near_in + (target - outside).square() / (2 * vary_out) + vary_out.log() / 2
