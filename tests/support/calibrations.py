"""Held-out losses as clients choose by them, in NumPy, from the formula of the page."""

from __future__ import annotations

import numpy as np


def calibrated_mean(losses, usual):
    """The mean of c (1 - exp(-l / c)), c = usual / 2, at the best temperature.

    The odds exp(l) - 1 against the right answer are taken to the power 1 / T, for the T
    with the least mean + (log T)^2 / n.
    """
    losses, c = np.asarray(losses), float(usual) / 2

    def at(temperature):
        milder = np.log1p(np.expm1(losses) ** (1 / temperature))
        mean = (c * (1 - np.exp(-milder / c))).mean()
        return mean + np.log(temperature) ** 2 / len(losses), mean

    return min(at(2 ** (k / 2)) for k in range(-3, 5))[1]
