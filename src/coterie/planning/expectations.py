"""What a client can expect after a trial: scores with intervals, and their worth.

A trial gives four values per client, one for each held-out quarter. The error of their
mean follows from how the quarters of all clients differ. We model clients' true values
as draws from a normal law (random effects). So the values of other clients say
something about a client with few samples. We choose the variance of the law such that
the observed sum of squared deviations is the median of its distribution.

Our model: if a client trains alone on m samples, its cost is c / m above its limit.
Models from one quarter and from three quarters of the samples give c. If m is three
quarters of the samples, a client can gain at most E = c / m. If learning together gains
D, it is worth g = 1 / (1 - D / E) times the client's own samples. The interval of g
contains all values for which D - (1 - 1 / g) E may be zero (Fieller's interval of a
ratio).

References:
    DerSimonian, Laird, "Meta-analysis in clinical trials", Controlled Clinical Trials,
    1986.
    Viechtbauer, "Confidence intervals for the amount of heterogeneity in
    meta-analysis", Statistics in Medicine, 2007: the law of the sum of squares.
    Fieller, "Some problems in interval estimation", Journal of the Royal Statistical
    Society B, 1954.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy.optimize import brentq
from scipy.special import chdtri
from scipy.stats import t as student

from .prospects import Prospects
from .trials import FEW, SHARE, Trial

WORTHWHILE = 1.5
"""Collaboration helps a client if it is worth this number of times its own samples."""

_PARTS = np.linspace(-3.0, 0.99, 31)
"""The values of D / E that are tried: worths of 1 / 4 to 100."""

Values = Float[np.ndarray, " n"]


class Expectation(NamedTuple):
    """A value per client and their mean, with standard errors."""

    value: Values
    error: Values
    mean: float
    mean_error: float

    @property
    def with_mean(self) -> tuple[Float[np.ndarray, " c"], Float[np.ndarray, " c"]]:
        """Values and errors of all clients; at the end, the mean with its error."""
        return np.append(self.value, self.mean), np.append(self.error, self.mean_error)


def errors_of(values: Float[np.ndarray, "4 n"], sizes: Values) -> Values:
    """Standard errors of the means of four quarters.

    Four values say little about a variance. So we take the mean of two variances: the
    client's own, and a common one, which is in proportion to 1 / samples.
    """
    own = values.var(0, ddof=1)
    common = float((own * sizes).mean()) / sizes
    return np.sqrt(np.maximum((own + common) / 2 / len(values), 1e-24))


def pool_values(values: Values, errors: Values) -> Expectation:
    """Values of clients, shrunk to their mean as far as errors explain differences."""
    middle_of_law = float(chdtri(len(values) - 1, 0.5))

    def excess(between: float) -> float:
        weight = 1 / (errors**2 + between)
        middle = float((weight * values).sum() / weight.sum())
        return float((weight * (values - middle) ** 2).sum()) - middle_of_law

    between, most = 0.0, 10 * float(np.ptp(values)) ** 2 + 1e-24
    if excess(0.0) > 0:
        between = (
            most
            if excess(most) > 0
            else float(brentq(excess, 0.0, most, xtol=1e-6 * most, rtol=1e-4))
        )
    weight = 1 / (errors**2 + between)
    mean = float((weight * values).sum() / weight.sum())
    own = between / (between + errors**2)
    # The error of the mean counts in proportion to how far a client is shrunk to it.
    variance = own * errors**2 + (1 - own) ** 2 / weight.sum()
    return Expectation(
        mean + own * (values - mean),
        np.sqrt(variance),
        mean,
        float(1 / np.sqrt(weight.sum())),
    )


class Outlook(NamedTuple):
    """Scores and worth that clients can expect with the planned samples.

    The last entry is the mean over clients. Scores are costs: lower is better.
    """

    alone: Float[np.ndarray, "3 c"]  # low end, value, high end
    together: Float[np.ndarray, "3 c"]
    worth: Float[np.ndarray, "3 c"]  # as a multiple of the client's own samples
    chance: Float[np.ndarray, " c"]  # probability of WORTHWHILE, by the trial alone
    times: Float[np.ndarray, " c"]  # times the pilot's samples for a clear verdict
    helped: Bool[np.ndarray, " n"]  # which clients were better together in the trial


def outlook_of(
    cost: Trial,
    loss: Trial,
    sizes: Values,
    planned: Values,
    now: Prospects,
    then: Prospects,
) -> Outlook:
    """Expected scores and worth, from a trial and from the prospects of gradients.

    Args:
        cost: the cost of the trial's models, in the measure by which people decide.
        loss: the loss of the trial's models.
        sizes: training samples of the pilot.
        planned: training samples that are planned for.
        now: prospects with the trial's samples.
        then: prospects with the planned samples.
    """
    better = cost.alone - cost.together
    left = (cost.few - cost.alone) / (SHARE / FEW - 1)  # E
    width = float(student.ppf(0.95, 3 * len(sizes)))
    gain, gain_error = _estimate(better, sizes).with_mean
    low, high = _ratio(better, left, sizes, width)
    loss_gain, loss_error = _estimate(loss.alone - loss.together, sizes).with_mean
    clear = (gain > width * gain_error) | (loss_gain > width * loss_error)
    clear &= gain > 0
    helped = clear | ((gain > gain_error) & (loss_gain > -width * loss_error))
    low, high = _narrow_interval(low, high, clear, now)
    before, after = _share_of(now), _share_of(then)
    ratio = np.where(before > after, after / np.maximum(before, 1e-9), 1.0)
    most = np.append(sizes.sum() / sizes, len(sizes))
    middle = _worth(gain, _estimate(left, sizes).with_mean[0], most)
    worth = np.stack([low, np.clip(middle, low, high), high])
    part = (1 - 1 / worth) * np.where(worth > 1, ratio, 1)
    worth = 1 / (1 - np.minimum(part, 1 - 1 / most))
    share = np.append(planned / sizes, (planned / sizes).mean())
    alone, together = (
        np.stack([value - width * error, value, value + width * error])
        for value, error in _scores(cost, sizes, share, helped, ratio)
    )
    value, error = _estimate(better - (1 - 1 / WORTHWHILE) * left, sizes).with_mean
    times = (width * error / np.maximum(np.abs(value), 1e-24)) ** 2
    chance = student.cdf(value / error, 3 * len(sizes))
    return Outlook(alone, together, worth, chance, np.maximum(times, 1.2), helped[:-1])


def _estimate(values: Float[np.ndarray, "4 n"], sizes: Values) -> Expectation:
    return pool_values(values.mean(0), errors_of(values, sizes))


def _ratio(
    better: Float[np.ndarray, "4 n"],
    left: Float[np.ndarray, "4 n"],
    sizes: Values,
    width: float,
) -> tuple[Float[np.ndarray, " c"], Float[np.ndarray, " c"]]:
    """The interval of what joining is worth, for each client and on average."""
    found = [_estimate(better - part * left, sizes).with_mean for part in _PARTS]
    value, error = np.moveaxis(np.array(found), 1, 0)
    least = _first_zero(_PARTS, value - width * error)
    greatest = _first_zero(_PARTS[::-1], -(value + width * error)[::-1])
    most = np.append(sizes.sum() / sizes, len(sizes))
    low = np.minimum(1 / (1 - least), most)
    return low, np.maximum(np.minimum(1 / (1 - greatest), most), low)


def _first_zero(
    at: Float[np.ndarray, " k"], values: Float[np.ndarray, "k c"]
) -> Float[np.ndarray, " c"]:
    """(C,) where each column first reaches zero, by linear interpolation."""
    last = len(at) - 1
    k = np.where((values > 0).all(0), last, np.argmin(values > 0, axis=0))
    before, column = np.maximum(k - 1, 0), np.arange(values.shape[1])
    above, below = values[before, column], np.minimum(values[k, column], 0)
    step = np.where(k > 0, above / np.maximum(above - below, 1e-300), 0)
    return at[before] + step * (at[k] - at[before])


def _worth(
    gain: Float[np.ndarray, " c"],
    left: Float[np.ndarray, " c"],
    most: Float[np.ndarray, " c"],
) -> Float[np.ndarray, " c"]:
    """The likely worth, at most the worth of all clients' samples without any bias."""
    part = gain / np.where(left > 0, left, 1e-24)
    return 1 / (1 - np.minimum(part, 1 - 1 / most))


def _narrow_interval(
    low: Float[np.ndarray, " c"],
    high: Float[np.ndarray, " c"],
    clear: np.ndarray,
    found: Prospects,
) -> tuple[Float[np.ndarray, " c"], Float[np.ndarray, " c"]]:
    """The interval of the trial, narrowed by gradients if the gain is clear.

    Gradients alone do not count: unrelated clients may have similar gradients.
    """
    least, _, most = found.mean
    bottom, top = np.append(found.least, least), np.append(found.most, most)
    both = clear & (bottom <= high) & (top >= low)
    return (
        np.where(both, np.maximum(low, bottom), low),
        np.where(both, np.minimum(high, top), high),
    )


def _share_of(found: Prospects) -> Float[np.ndarray, " c"]:
    """1 - 1 / g for the gain g of every client, and for the mean gain."""
    gain = np.append(found.likely.gain, found.mean[1])
    return 1 - 1 / np.maximum(gain, 1)


def _scores(
    cost: Trial,
    sizes: Values,
    share: Float[np.ndarray, " c"],
    helped: np.ndarray,
    ratio: Float[np.ndarray, " c"],
) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Costs and errors, alone and together, with a share of the pilot's samples.

    Let r = (1 / SHARE - 1 / share) / (1 / FEW - 1 / SHARE). From the trial to the
    share, c / m falls by r times its difference between one and three quarters.
    Learning together gains the same fraction of c / m as in the trial, times the ratio
    that gradients predict.
    """
    further = (1 / SHARE - 1 / share) / (1 / FEW - 1 / SHARE)
    slope, slope_error = _estimate(cost.few - cost.alone, sizes).with_mean
    alone, alone_error = _estimate(cost.alone, sizes).with_mean
    gain, _ = _estimate(cost.alone - cost.together, sizes).with_mean
    together, together_error = _estimate(cost.together, sizes).with_mean
    value, spread = alone - further * slope, further * slope_error
    lost = gain * (1 - ratio * SHARE / share)  # of the gain, with more samples
    mixed = np.minimum(together - further * slope + lost, value)
    return (
        (value, np.hypot(alone_error, spread)),
        (
            np.where(helped, mixed, value),
            np.hypot(np.where(helped, together_error, alone_error), spread),
        ),
    )
