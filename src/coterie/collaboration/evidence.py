"""What held-out samples say about several models: in pairs, pooled, and how surely.

Client i evaluates K models on the same n_i samples that none of them was trained on. Of
these losses only moments leave it: n_i, their sums, and for each pair of models the sum
of squared differences. The difference of any two models follows, client by client or
pooled, with its standard error, in which what makes a sample hard for both of them has
cancelled; as it has in the squares, so that single precision will do for them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from ..checks import number


class Moments(NamedTuple):
    """Samples, sums of losses, and of squared differences, of each client."""

    samples: Float64[Tensor, " n"]
    sums: Float64[Tensor, "n k"]
    squares: Float64[Tensor, "n k k"]

    def flat(self) -> Float64[Tensor, "n m"]:
        """One row of numbers for each client, m = 1 + K + K^2."""
        return torch.cat(
            [self.samples[:, None], self.sums, self.squares.flatten(1)], dim=1
        )

    def pooled(self, members: Bool[Tensor, " n"]) -> Moments:
        """Those of these clients together, as of one."""
        return Moments(*(part[members].sum(0, keepdim=True) for part in self))


def bounded(losses: Tensor, most: Tensor) -> Tensor:
    """`1 - exp(-loss / c)`: small losses in units of c, none above 1.

    So a model that is surely wrong about a few samples, as one is that has seen little,
    loses little more by them than one that is just wrong. Numbers below 0 are no losses
    but have noise on them (`coterie.privacy`): those of such a client stay as they are,
    since it had bounded them before, and noise of both signs must cancel.
    """
    losses = torch.where(most > 0, losses / most, 0)  # no unit, no evidence
    noisy = (losses < 0).flatten(1).any(1).view(-1, *[1] * (losses.dim() - 1))
    return torch.where(noisy, losses, -torch.expm1(-losses))


def moments(losses: Float[Tensor, "n k b"]) -> Moments:
    """The moments of K models' losses on b samples each, NaN where there are fewer."""
    known = ~losses.isnan().any(1, keepdim=True)
    losses = torch.where(known, losses, 0).double()
    squares = [(losses - one[:, None]).square().sum(2) for one in losses.unbind(1)]
    return Moments(known.sum((1, 2)).double(), losses.sum(2), torch.stack(squares, 1))


def unflat(rows: Float64[Tensor, "n m"], models: int) -> Moments:
    """The moments of so many models in rows of numbers."""
    sums, squares = rows[:, 1 : 1 + models], rows[:, 1 + models :]
    return Moments(rows[:, 0], sums, squares.unflatten(1, (models, models)))


def differences(of: Moments, model: int, other: int) -> tuple[Tensor, Tensor]:
    """(n,) sums of loss(model) - loss(other), and of squares around their mean."""
    total = of.sums[:, model] - of.sums[:, other]
    raw = of.squares[:, model, other]
    return total, (raw - total**2 / of.samples.clamp(min=1)).clamp(min=0)


def surely_better(of: Moments, model: int, than: int) -> float:
    """By how many standard errors a model's pooled loss is below another's.

    Zero where there are not two samples, or no differences at all.
    """
    together = of.pooled(torch.ones(len(of.samples), dtype=torch.bool))
    total, around = differences(together, than, model)
    n = float(together.samples)
    error = float(around) / max(n - 1, 1) / max(n, 1)
    return float(total) / n / error**0.5 if n > 1 and error > 0 else 0.0


def surely_above_zero(
    samples: Float64[Tensor, " n"],
    total: Float64[Tensor, " n"],
    squares: Float64[Tensor, " n"],
) -> Float64[Tensor, " n"]:
    """By how many standard errors means are above 0, as of normal variables.

    Few samples know their own spread badly: t of m samples counts for as much as

        (8 k + 1) / (8 k + 3) sqrt(k log(1 + t^2 / k)),   k = m - 1

    standard errors that are known (Wallace, 1959). Zero where there are not two
    samples, or none of them differs from 0.

    Args:
        samples: m, how many there are; may be averages over rounds.
        total: their sums.
        squares: the sums of their squares.
    """
    k = (samples - 1).clamp(min=1)
    around = squares - total**2 / (k + 1)
    # What rounding leaves of the squares is no spread.
    around = around.maximum(torch.finfo(torch.float32).eps ** 2 * squares)
    t2 = total**2 * k / (k + 1) / torch.where(around > 0, around, 1)
    z = (8 * k + 1) / (8 * k + 3) * (k * torch.log1p(t2 / k)).sqrt()
    return torch.where(samples > 1, z * total.sign(), 0)


def cautious_choices(of: Moments) -> Int[Tensor, " n"]:
    """Which model everybody should use by its own moments; the first is alone.

    The best of the others, unless the first is surely better: by a standard error.
    """
    r = 1 + of.sums[:, 1:].argmin(1)
    leave = torch.zeros_like(r, dtype=torch.bool)
    for k in range(1, of.sums.shape[1]):
        total = of.sums[:, k] - of.sums[:, 0]
        z = surely_above_zero(of.samples, total, of.squares[:, 0, k])
        leave |= (r == k) & (z > 1)
    return torch.where(leave, 0, r)


def best_on_the_whole(of: Moments, models: list[int]) -> int:
    """Which of these models has the least loss over all samples; ties: the first."""
    return models[int(of.sums[:, models].sum(0).argmin())]


PRIOR = 30.0
"""How many held-out samples the mean over all clients counts for in a choice.

A client has about ten samples of its own. With fewer than 30, those decide too often by
chance; with 60 nothing changes.
"""


def choices(
    losses: Float[Tensor, "n k"], samples: Float64[Tensor, " n"]
) -> Int[Tensor, " n"]:
    """Which of K models each client should use, by its own losses and everybody's.

    It is the model of least n_i L_ik + PRIOR mean_j L_jk. So a client with little
    evidence of its own does as is best on the whole, and one with much does as is best
    for itself. The mean is over clients with samples.

    >>> losses = torch.tensor([[1.0, 2.0], [1.0, 2.0], [1.5, 1.0]])
    >>> choices(losses, torch.tensor([9.0, 9.0, 9.0], dtype=torch.float64))
    tensor([0, 0, 0])
    >>> choices(losses, torch.tensor([9.0, 9.0, 90.0], dtype=torch.float64))
    tensor([0, 0, 1])

    Args:
        losses: L, held-out losses, which may be averages over rounds.
        samples: n, how many samples they are of.
    """
    known = samples > 0
    losses = torch.where(known[:, None], losses.double(), 0)
    mean = losses.sum(0) / known.sum().clamp(min=1)
    return (samples[:, None] * losses + PRIOR * mean).argmin(1)


def most_above_own(deviation: float, samples: float, *, others: float = 0.0) -> float:
    """By how much the expected loss can exceed that of training alone, at most.

    A client compares a shared model with its own on n held-out samples. The paired
    differences of their losses have mean delta, the truth, and standard deviation s; so
    the mean difference has standard error e = s / sqrt(n), and is nearly normal. By
    `choices`, the client uses the shared model where the mean difference is below
    PRIOR g / n, where g is what the others gain by it on average. Where its own model
    is the better one, delta > 0, the expected loss above that of training alone is

        delta P(it uses the shared one) = delta Phi(c - delta / e),   c = PRIOR g / n e,

    at most e max_z z Phi(c - z), whatever delta is. That is at most 0.17 e + PRIOR g /
    n. Where g < 0, so that the others lose, it is less than 0.17 e.

    >>> round(most_above_own(1.0, 100), 4)  # 0.17 standard errors
    0.017

    Args:
        deviation: s, of the differences of losses on single samples.
        samples: n, that are held out.
        others: g.
    """
    from scipy.optimize import minimize_scalar
    from scipy.special import ndtr

    number("deviation", deviation, at_least=0)
    number("samples", samples, above=0)
    error = deviation / samples**0.5
    if not error:
        return max(0.0, PRIOR * others / samples)
    c = PRIOR * others / samples / error
    found = minimize_scalar(
        lambda z: -z * ndtr(c - z), bounds=(0, 10 + abs(c)), method="bounded"
    )
    return float(-found.fun) * error
