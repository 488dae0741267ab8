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
    """`c (1 - exp(-loss / c))`: small losses as they are, none above c.

    So a model that is surely wrong about a few samples, as one is that has seen little,
    loses little more by them than one that is just wrong. Numbers below 0 are no losses
    but have noise on them (`coterie.privacy`): those of such a client stay as they are,
    since it had bounded them before, and noise of both signs must cancel.
    """
    most = most.clamp(min=torch.finfo(losses.dtype).tiny)
    noisy = (losses < 0).flatten(1).any(1).view(-1, *[1] * (losses.dim() - 1))
    return torch.where(noisy, losses, -most * torch.expm1(-losses / most))


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


def choices(
    losses: Float[Tensor, "n k"],
    of: Moments,
    *,
    alone: Bool[Tensor, " n"] | None = None,
    caution: float = 1.0,
) -> Int[Tensor, " n"]:
    """Which of K models each client should use, by empirical Bayes; the first is alone.

    Client i's difference d_i between a model and the best shared one r has variance
    s^2 / n_i, and the true ones are spread over clients with variance tau^2 around m;
    s^2, m and tau^2 are estimated from all clients (DerSimonian and Laird, 1986). Then

        E d_i = m + b_i (d_i - m),   Var d_i = b_i s^2 / n_i + (1 - b_i)^2 Var m,
        b_i = tau^2 / (tau^2 + s^2 / n_i),

    and a client leaves r for the model of least E d_i + `caution` sqrt(Var d_i), where
    that is below 0. So a client with little evidence of its own does as most do, and
    nobody leaves the others by chance. Who shares its model with nobody stays with its
    own one while E d_i - `caution` sqrt(Var d_i) is at most 0.

    Args:
        losses: held-out losses, which may be averages over rounds.
        of: the moments of the last round, for s^2.
        alone: who shares with nobody; None: all share.
        caution: standard errors by which a model must be better.
    """
    r = 1 + int((losses[:, 1:] * of.samples[:, None]).sum(0).argmin())
    mean = torch.zeros_like(losses, dtype=torch.float64)
    error = torch.zeros_like(mean)
    for k in range(losses.shape[1]):
        if k != r:
            difference = (losses[:, k] - losses[:, r]).double()
            found = _shrunk(difference, of.samples, differences(of, k, r)[1])
            mean[:, k], error[:, k] = found[0], caution * found[1].sqrt()
    most = mean + error
    best = torch.where(most.amin(1) < 0, most.argmin(1), r)
    if alone is None:
        return best
    return torch.where(alone & (mean[:, 0] <= error[:, 0]), 0, best)


def _shrunk(d: Tensor, n: Tensor, around: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of every client's true difference, given what all observed."""
    known = n > 0
    d = torch.where(known, d, 0)
    noise = _noise(d, n, around)
    weight = n / noise
    total = weight.sum()
    mean = weight @ d / total
    spread = weight @ (d - mean) ** 2 - (known.sum() - 1)
    room = total - (weight**2).sum() / total  # 0 where only one has samples
    tau2 = torch.where(room > 0, spread / room, 0).clamp(min=0)
    own = noise / n.clamp(min=1)
    weight = known / (own + tau2)
    mean = weight @ d / weight.sum()
    share = torch.where(known, tau2 / (tau2 + own), 0)
    variance = share * own + (1 - share) ** 2 / weight.sum()
    variance = variance + torch.where(known, 0, tau2)  # nothing is known of these
    return mean + share * (d - mean), variance


def _noise(d: Tensor, n: Tensor, around: Tensor) -> Tensor:
    """The variance of one sample's difference, at least what rounding makes of it.

    No client counts for more than four times what the others have on average: one whose
    samples vary wildly must not make everybody's evidence worthless. Where nobody has
    two samples, all that clients differ by is taken for noise.
    """
    freedom = (n - 1).clamp(min=0)
    if bool((freedom > 0).any()):
        others = freedom.sum() - freedom
        limit = 4 * freedom * (around.sum() - around) / others.clamp(min=1)
        used = torch.where(others > 0, around.minimum(limit), around)
        found = used.sum() / freedom.sum()
    else:
        found = n @ (d - n @ d / n.sum()) ** 2 / (n.sum() - 1).clamp(min=1)
    return found.clamp(min=torch.finfo(torch.float32).eps ** 2)


def most_above_own(deviation: float, samples: float, *, caution: float = 1.0) -> float:
    """By how much the expected loss can exceed that of training alone, at most.

    A client compares a shared model with its own on n held-out samples. The paired
    differences of their losses have mean delta, the truth, and standard deviation s; so
    the mean difference has standard error e = s / sqrt(n), and is nearly normal. It
    uses its own model only where that is better by `caution` standard errors. Where its
    own is the better one, delta > 0, the expected loss above that of training alone is

        delta P(it uses the shared one) = delta Phi(caution - delta / e),

    at most e max_z z Phi(caution - z), whatever delta is: about half a standard error.
    With N clients that are alike, e is that of all their samples together.

    >>> round(most_above_own(1.0, 100, caution=0.0), 4)  # 0.17 standard errors
    0.017

    Args:
        deviation: s, of the differences of losses on single samples.
        samples: n, that are held out.
        caution: standard errors by which one's own model must be better to be used;
            negative, it is about who leaves a shared model by chance.
    """
    from scipy.optimize import minimize_scalar
    from scipy.special import ndtr

    number("deviation", deviation, at_least=0)
    number("samples", samples, above=0)
    found = minimize_scalar(
        lambda z: -z * ndtr(caution - z),
        bounds=(0, 10 + abs(caution)),
        method="bounded",
    )
    return float(-found.fun) * deviation / samples**0.5
