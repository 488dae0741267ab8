"""The choice between several models of a client, by its held-out samples.

Client i evaluates K models on the same n_i samples. No model was trained on these
samples. The losses are bounded, so that no single sample decides. Some samples are hard
for all models; in the difference of two models' losses, this effect cancels.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from ..checks import number


def bound_losses(losses: Tensor, most: Tensor) -> Tensor:
    """`c (1 - exp(-loss / c))`, with c = `most`: small losses hardly change.

    No loss exceeds c. Take two models that are wrong about a few samples, and one of
    them is very sure. Its loss is hardly larger than the loss of the other model.
    Models trained on few samples are often wrong and very sure.

    A loss below 0 has noise for privacy (`coterie.privacy`). If a client has such a
    loss, all its losses are returned unchanged: the client bounded them before it added
    noise, and noise of both signs must cancel.
    """
    most = most.clamp(min=torch.finfo(losses.dtype).tiny)
    noisy = (losses < 0).flatten(1).any(1).view(-1, *[1] * (losses.dim() - 1))
    return torch.where(noisy, losses, -most * torch.expm1(-losses / most))


TEMPERATURES = (1.0, *(2 ** (k / 2) for k in (-3, -2, -1, 1, 2, 3, 4)))
"""The temperatures that we try; 1 leaves losses as they are."""


def temper_losses(losses: Tensor, temperature: float) -> Tensor:
    """Losses of the model at a temperature; above 1, the model is less sure.

    A loss -log p means odds p : (1 - p) for the right answer. The odds are taken to the
    power 1 / temperature.

    >>> losses = -torch.tensor([0.25]).log()  # odds 1 : 3
    >>> torch.exp(-temper_losses(losses, 0.5))  # odds 1 : 9
    tensor([0.1000])
    """
    against = losses + torch.log1p(-torch.exp(-losses))
    return torch.nn.functional.softplus(against / temperature)


CAP = 0.5
"""The largest loss of one sample in a choice, in units of a usual loss.

With a larger cap, noisy labels hide which models help.
"""


def calibrate_losses(
    losses: Float[Tensor, "n k b"], usual: Tensor
) -> Float[Tensor, "n k b"]:
    """Bounded losses, with each model at its best temperature.

    Without these temperatures, a model that is wrong less often, but is also less sure,
    would seem worse. Client i finds the temperature T of model k with its own n_i
    held-out samples. T minimises the mean bounded loss plus (log T)^2 / n_i. Losses
    with noise (below 0) stay as they are.

    Args:
        losses: the losses of n clients, k models and b samples; NaN if a client has
            fewer samples.
        usual: the usual loss, which is the unit of `CAP`.
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
    """By how many standard errors means are above 0, corrected for few samples.

    We cannot estimate a standard deviation well from few samples. So a t-statistic of m
    samples counts as

        (8 k + 1) / (8 k + 3) sqrt(k log(1 + t^2 / k)),   k = m - 1

    standard errors with a known standard deviation (Wallace, 1959). The result is 0 if
    there are fewer than two samples, or if all samples are 0.

    Args:
        samples: m, the number of samples; it may be an average over rounds.
        total: the sums of the samples.
        squares: the sums of the samples' squares.
    """
    k = (samples - 1).clamp(min=1)
    around = squares - total**2 / (k + 1)
    # The variance is at least the rounding error of the squares.
    around = around.maximum(torch.finfo(torch.float32).eps ** 2 * squares)
    t2 = total**2 * k / (k + 1) / torch.where(around > 0, around, 1)
    z = (8 * k + 1) / (8 * k + 3) * (k * torch.log1p(t2 / k)).sqrt()
    return torch.where(samples > 1, z * total.sign(), 0)


PRIOR = 30.0
"""In a choice, the mean over all clients counts as this number of held-out samples.

A client has about ten samples of its own. With a number below 30, these samples decide
too often by chance. With 60 instead of 30, nothing changes.
"""


def choices(
    losses: Float[Tensor, "n k"],
    samples: Float[Tensor, " n"],
    everybody: Float[Tensor, "n k"],
) -> Int[Tensor, " n"]:
    """Which of K models each client should use, by its losses and the means over all.

    Client i uses the model k with the smallest n_i L_ik + PRIOR M_k. So a client with
    few samples uses the model that is best for all clients on average. A client with
    many samples uses the model that is best for itself. Clients send nothing to make
    this choice.

    >>> losses = torch.tensor([[1.5, 1.0]])
    >>> everybody = torch.tensor([[1.2, 1.6]])
    >>> choices(losses, torch.tensor([9.0]), everybody)
    tensor([0])
    >>> choices(losses, torch.tensor([90.0]), everybody)
    tensor([1])

    Args:
        losses: L, mean held-out losses of each client; they may be averages over
            rounds.
        samples: n, the number of samples in each mean.
        everybody: M, means over clients, as each client received them.
    """
    own = torch.where(samples[:, None] > 0, losses, 0).double()
    return (samples.double()[:, None] * own + PRIOR * everybody.double()).argmin(1)


def most_above_own(deviation: float, samples: float, *, others: float = 0.0) -> float:
    """A bound on how much worse than training alone a client may expect to be.

    A client compares a shared model with its own model on n held-out samples. The
    paired differences of their losses have the true mean delta and the standard
    deviation s. So the mean difference is nearly normal, with the standard error e = s
    / sqrt(n). By `choices`, the client uses the shared model if the mean difference is
    below PRIOR g / n. Here g is the mean amount by which the shared model lowers the
    other clients' losses. If the client's own model is better (delta > 0), the expected
    loss exceeds the loss of training alone by

        delta P(the client uses the shared model) = delta Phi(c - delta / e)

    with c = PRIOR g / (n e). For any delta, this is at most e max_z z Phi(c - z), and
    so at most 0.17 e + PRIOR g / n. If the others lose (g < 0), it is less than 0.17 e.

    >>> round(most_above_own(1.0, 100), 4)  # 0.17 standard errors
    0.017

    Args:
        deviation: s, the standard deviation of differences of losses on single samples.
        samples: n, the number of held-out samples.
        others: g, the mean gain of the other clients.
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
