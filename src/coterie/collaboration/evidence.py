"""What held-out samples say about several models, and which of them a client uses.

Client i evaluates K models on the same n_i samples that none of them was trained on.
The losses are bounded, so that no sample decides alone. What makes a sample hard for
two models cancels in the difference of their losses.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from ..checks import number


def bound_losses(losses: Tensor, most: Tensor) -> Tensor:
    """`c (1 - exp(-loss / c))`: small losses as they are, none above c.

    So a model that is surely wrong about a few samples, as one is that has seen little,
    loses little more by them than one that is just wrong. Numbers below 0 have noise on
    them (`coterie.privacy`). Those of such a client stay as they are, since it had
    bounded them before, and noise of both signs must cancel.
    """
    most = most.clamp(min=torch.finfo(losses.dtype).tiny)
    noisy = (losses < 0).flatten(1).any(1).view(-1, *[1] * (losses.dim() - 1))
    return torch.where(noisy, losses, -most * torch.expm1(-losses / most))


TEMPERATURES = (1.0, *(2 ** (k / 2) for k in (-3, -2, -1, 1, 2, 3, 4)))
"""How much less sure a model is made; 1 leaves its losses as they are."""


def temper_losses(losses: Tensor, temperature: float) -> Tensor:
    """Losses of a model that is less sure, or surer below 1.

    A loss -log p is that of the odds p : (1 - p) for the right answer. The odds are
    taken to the power 1 / temperature.

    >>> losses = -torch.tensor([0.25]).log()  # odds 1 : 3
    >>> torch.exp(-temper_losses(losses, 0.5))  # odds 1 : 9
    tensor([0.1000])
    """
    against = losses + torch.log1p(-torch.exp(-losses))
    return torch.nn.functional.softplus(against / temperature)


CAP = 0.5
"""The most that a sample's loss counts for in a choice, in units of a usual loss. With
more, noisy labels hide what helps."""


def calibrate_losses(
    losses: Float[Tensor, "n k b"], usual: Tensor
) -> Float[Tensor, "n k b"]:
    """Bounded losses, each model at the temperature that suits it best.

    A model that errs less often, but says so less surely, would otherwise seem worse.
    Client i finds the temperature T of model k by its own n_i held-out samples, as the
    least mean of bounded losses + (log T)^2 / n_i. Losses with noise (below 0) stay as
    they are.

    Args:
        losses: of n clients, k models and b samples; NaN where a client has fewer.
        usual: the loss in whose units `CAP` is.
    """
    most = CAP * usual
    samples = (~losses.isnan()).sum(-1).clamp(min=1)
    noisy = (losses < 0).flatten(1).any(1)[:, None]
    best = bound_losses(losses, most)
    least = best.nanmean(-1)
    for temperature in TEMPERATURES[1:]:
        found = bound_losses(temper_losses(losses, temperature), most)
        total = found.nanmean(-1) + math.log(temperature) ** 2 / samples
        better = (total < least) & ~noisy
        least = torch.where(better, total, least)
        best = torch.where(better[..., None], found, best)
    return best


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


PRIOR = 30.0
"""How many held-out samples the mean over all clients counts for in a choice.

A client has about ten samples of its own. With fewer than 30, those decide too often by
chance; with 60 nothing changes.
"""


def choices(
    losses: Float[Tensor, "n k"],
    samples: Float[Tensor, " n"],
    everybody: Float[Tensor, "n k"],
) -> Int[Tensor, " n"]:
    """Which of K models each client should use, by its own losses and everybody's.

    It is the model of least n_i L_ik + PRIOR M_k. So a client with little evidence of
    its own does as is best on the whole, and one with much does as is best for itself.
    Nothing leaves the client for that.

    >>> losses = torch.tensor([[1.5, 1.0]])
    >>> everybody = torch.tensor([[1.2, 1.6]])
    >>> choices(losses, torch.tensor([9.0]), everybody)
    tensor([0])
    >>> choices(losses, torch.tensor([90.0]), everybody)
    tensor([1])

    Args:
        losses: L, held-out losses of each client, which may be averages over rounds.
        samples: n, how many samples they are of.
        everybody: M, means over clients, as each of them was told.
    """
    own = torch.where(samples[:, None] > 0, losses, 0).double()
    return (samples.double()[:, None] * own + PRIOR * everybody.double()).argmin(1)


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
