"""Who was in the data? Attacks on what clients released.

In one run (`canaries`): m samples are put into a client's data, each with chance 1/2,
and the attacker, who knows everything else, guesses which. What a canary j adds to a
release is its clipped gradient, so the attacker projects releases g_1 .. g_T on its
direction u_j and looks at

    sums      sum_t <g_t, u_j>                  which grow where j takes part;
    changes   sum_t <g_(t+1) - g_t, u_j>^2      in which noise that is the same again
                                                cancels, and taking part does not;
    first     <g_1 - g_2, u_j>                  the same, where who takes part always
                                                does, and its gradient soon changes.

With shadow models (Carlini et al. 2022, LiRA): many models, each trained on a random
half of the samples, show how sure a model is of a sample that it has seen, and of one
that it has not; the likelihood of both Gaussians decides about the model in question.

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
    """What an attack has proved, beside what the accountant promises."""

    lower: float  # epsilon is larger than this, with the confidence asked for
    upper: float  # what the accountant says
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
    """The same, of releases that were projected on the canaries' directions."""
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
    """The best bound of several attacks, all of which hold with the confidence.

    Args:
        scores: of each attack, larger for members.
        members: who was in.
        upper: the accountant's epsilon.
        delta: of both.
        confidence: that the lower bound holds.
        abstain: share of the canaries about which the attacker says nothing: those with
            scores in the middle.
    """
    number("abstain", abstain, at_least=0, below=1)
    if not scores or members.dim() != 1 or len(members) < 2:
        raise InputError("an audit needs scores of at least two canaries.")
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
    """Right guesses and all: that the largest are in, and as many smallest out."""
    m = len(values)
    half = max(1, round(m * (1 - abstain) / 2))
    order = values.argsort(descending=True)
    called_in, called_out = order[:half], order[m - half :]
    right = members[called_in].sum() + (~members[called_out]).sum()
    return int(right), 2 * half


# Shadow models.


def confidence_of(losses: Float[Tensor, "*k m"]) -> Float64[Tensor, "*k m"]:
    """Logit of the probability of the right class, from the cross-entropy.

    It is about Gaussian over models, as the loss is not.
    """
    losses = losses.double().clamp(min=1e-12)
    return -losses - torch.log(-torch.expm1(-losses))


def likelihood_scores(
    target: Float64[Tensor, " m"],
    shadows: Float64[Tensor, "k m"],
    members: Bool[Tensor, "k m"],
) -> Float64[Tensor, " m"]:
    """Log-likelihood ratio of in and out for each sample of the model in question.

    Both laws have the variance of all samples together, as few shadow models tell
    little about that of one.

    Args:
        target: confidence of the audited model in each sample.
        shadows: that of each shadow model.
        members: which samples each shadow model has seen.
    """
    if not bool((members.any(0) & ~members.all(0)).all()):
        raise InputError(
            "every sample must be in the data of some shadow model, and not in all."
        )

    def law(seen: Tensor) -> tuple[Tensor, Tensor]:
        many = seen.sum(0)
        mean = (shadows * seen).sum(0) / many
        spread = ((shadows - mean).square() * seen).sum() / (many.sum() - len(many))
        return mean, spread.clamp(min=1e-12)

    (inside, vary_in), (outside, vary_out) = law(members), law(~members)
    near_in = -(target - inside).square() / (2 * vary_in) - vary_in.log() / 2
    return near_in + (target - outside).square() / (2 * vary_out) + vary_out.log() / 2
