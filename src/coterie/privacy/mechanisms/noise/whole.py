"""Whole-number noise for sums of whole numbers: exact draws, and what they promise.

Members send rows of whole numbers under masks, and others see only the sum modulo 2^b
(`coterie.deploy.sites.masks`). Real noise cannot be added to such rows, so we add noise
that is a whole number: the discrete Gaussian

    N_Z(s^2):   P(x) = exp(-x^2 / (2 s^2)) / sum_j exp(-j^2 / (2 s^2))

**Draws** are exact, given random bits. With t a power of 2 near s, we draw y with
P(y) ~ exp(-|y| / t), and keep it with chance exp(-(|y| - s^2 / t)^2 / (2 s^2)) (Canonne
et al., algorithms 2 and 3, which are right for every t). They need events of chance
exp(-g), g rational: is U < exp(-g), for U uniform in [0, 1)? We compare the first 64
bits of U with exp(-g) in double precision, whose relative error is below 2^-38. In the
few cases that this does not decide, we compute more digits of exp(-g), draw more bits
of U, and compare again. So no draw depends on rounding.

**What a sum promises.** Let honest members k in H draw n_k from N_Z(s_k^2), where s_k
is a whole number. Let z = sum_k (y_k + n_k), where y_i = rint(u_i) is the row of member
i, d whole numbers. Let u_i, computed exactly, move by at most D in L2. Then y_i moves
by at most D + e sqrt(d) with e = 1 + 2^-50 r. This covers rounding to the grid, and
three operations in double precision before it, on numbers up to r. Let s_H^2 be the sum
of s_k^2 over H. For the rounded Gaussian R = rint(s_H W), y + R = rint(y + s_H W) is
computed from a Gaussian release, so it is (D + e sqrt(d)) / s_H-Gaussian private. The
sum of the n_k is nearly R:

1.  *Sums are discrete Gaussians.* Let X and Y be from N_Z(a^2) and N_Z(b^2). Then
    P(X + Y = z) is exp(-z^2 / (2 (a^2 + b^2))) times
    sum_j exp(-(j - z a^2 / (a^2 + b^2))^2 / (2 v^2)), 1 / v^2 = 1 / a^2 + 1 / b^2.
    By Poisson's formula this second sum is sqrt(2 pi) v (1 +- c), where
    c = 2 sum_{j > 0} q^(j^2), q = exp(-2 pi^2 v^2). So
    |ln P(X + Y = z) / P(Z = z)| <= ln((1 + c) / (1 - c)) <= 5 q for Z from
    N_Z(a^2 + b^2) and q <= 1/100. (Kairouz et al. prove the same bound.) Since
    v^2 >= min(a, b)^2 / 2, all |H| - 1 additions together change ln P by at most
    k1 = 5 (|H| - 1) exp(-pi^2 min_k s_k^2).
2.  *A discrete Gaussian is nearly a rounded one.* With s = s_H and |x| <= 14 s + 1/2,

        P(R = x) / P(Z = x) = (1 + c') int_{-1/2}^{1/2} e^(-u^2 / 2 s^2) cosh(x u / s^2)

    where c' <= 3 exp(-2 pi^2 s^2), again by Poisson's formula. The integral is at least
    1 - 1 / (24 s^2), and at most sinh(v) / v <= exp(v^2 / 6), v = x / (2 s^2). So
    |ln| <= 9 / s^2 for s >= 4.
3.  So |ln| <= eta = 9 / s_H^2 + k1 + 3 exp(-2 pi^2 s_H^2) in each coordinate, except
    with a chance of 2^-140 that it lies further out. As in `secret`, d coordinates are
    then sqrt(d pi / 2) eta-Gaussian private from d of R, and the release is

        (D + e sqrt(d)) / s_H + 2 sqrt(d pi / 2) eta

    Gaussian private. We draw with s_k >= (1 + m) times what we charge for, m = 2^-10.
    So the charge is at least (1 + m) D / s_H, and it covers the release if

        sqrt(d) (e + sqrt(2 pi) s_H eta) <= m D.

    `refuse_coarse` refuses anything else: a grid must have many steps in D.

This holds for every set H that has member i, whatever the others add. So it holds
against members who know their own noise, and against members who add none, if H leaves
them out. The chances of 2^-140, and the difference between AES and random bits, are
below `LEAST_DELTA` in total.

References:
    Canonne, Kamath, Steinke, "The discrete Gaussian for differential privacy",
    NeurIPS 2020, arXiv 2004.00010.
    Kairouz, Liu, Steinke, "The distributed discrete Gaussian mechanism for federated
    learning with secure aggregation", ICML 2021, arXiv 2102.06387. They account by
    concentrated differential privacy, which is a bound on what we charge.
    Dong, Roth, Su, "Gaussian differential privacy", JRSS B 2022.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ....checks import InputError, integer
from .secret import MARGIN, SecretStream

Whole = NDArray[np.int64]

_LEAST, _MOST = 4, 2**54
"""Standard deviations that can be drawn. A draw y is below 64 t, which has 61 bits; a
larger one has a chance below 2^-90, and ends the program."""

_SLACK = 2.0**-38
"""More than the relative error of exp(-g) in double precision, for g up to 700.

There, |y| / s is below 39, so (|y| / s - s / t)^2 / 2 has an error below 2^-40. Above,
the chance is below 2^-900, and only words 0, 1 and 2 are not decided at once."""

_AT_ONCE = 2**16


def discrete_gaussian(stream: SecretStream, deviation: int, size: int) -> Whole:
    """Independent draws from N_Z(deviation^2), exact if the bits are random.

    Args:
        stream: of random bits.
        deviation: s, a whole number.
        size: how many.
    """
    integer("deviation", deviation, at_least=_LEAST, at_most=_MOST)
    found = [np.empty(0, np.int64)]
    left = size
    while left:
        drawn = _candidates(stream, deviation, min(_AT_ONCE, left + left // 2 + 16))
        found.append(drawn[:left])
        left -= len(found[-1])
    return np.concatenate(found)


def refuse_coarse(
    columns: int, sensitivity: float, deviations: Sequence[int], reach: float
) -> None:
    """Refuses a grid on which noise cannot promise what we charge for.

    Args:
        columns: d, of a row.
        sensitivity: D, how far the row of a member may move, in steps of the grid.
        deviations: s_k of all members that may be in a sum.
        reach: r, the largest value in a row, in steps of the grid.
    """
    least, together = min(deviations), math.hypot(*deviations)
    sums = 5 * (len(deviations) - 1) * math.exp(-((math.pi * least) ** 2))
    other = (sums + 3 * math.exp(-2 * (math.pi * least) ** 2)) * together
    rounding, nearly = (
        1 + 2.0**-50 * reach,
        math.sqrt(2 * math.pi) * (9 / least + other),
    )
    needed = math.sqrt(columns) * (rounding + nearly)
    if least < _LEAST or not needed <= MARGIN * sensitivity:
        most = needed / MARGIN
        raise InputError(
            f"noise on a grid needs rows that may move by {most:,.0f} steps of it, but "
            f"with this `sites.scale` they move by {sensitivity:,.0f}: set a scale "
            f"{math.ceil(most / sensitivity) if sensitivity else 2:,} times as large."
        )


def deviation_for(charged: float, scale: float) -> int:
    """The s_k to draw with, in steps of the grid, for noise that we charge for.

    >>> deviation_for(1.0, 2.0**20)
    1049600

    Args:
        charged: standard deviation of the noise in what the member sends.
        scale: steps of the grid in 1.
    """
    return max(_LEAST, math.ceil(charged * scale * (1 + MARGIN)))


def _candidates(stream: SecretStream, s: int, size: int) -> Whole:
    """Exact draws, fewer than `size`: those of the candidates that are kept."""
    t = 1 << round(math.log2(s))
    y = _two_sided(stream, t, size)
    away = np.abs(y) / s - s / t

    def exact(j: int) -> tuple[int, int]:
        return (abs(int(y[j])) * t - s * s) ** 2, 2 * s * s * t * t

    return y[_chances(stream, away * away / 2, exact)]


def _two_sided(stream: SecretStream, t: int, size: int) -> Whole:
    """Exact draws with P(y) ~ exp(-|y| / t), t a power of 2, fewer than `size`."""
    bits = _words(stream, size)
    u = (bits >> np.uint64(1)).astype(np.int64) & (t - 1)
    negative = (bits & np.uint64(1)).astype(bool)
    kept = _chances(stream, u / t, lambda j: (int(u[j]), t))
    u, negative = u[kept], negative[kept]
    v = np.zeros(len(u), np.int64)
    alive = np.arange(len(u))
    while len(alive):
        again = _chances(stream, np.ones(len(alive)), lambda j: (1, 1))
        alive = alive[again]
        v[alive] += 1
    if len(v) and int(v.max()) >= 64:
        raise RuntimeError("a chance below 2^-92 came true: the bits are not random.")
    x = u + t * v
    found = np.where(negative, -x, x)
    return found[~(negative & (x == 0))]  # 0 would come twice as often


def _chances(
    stream: SecretStream,
    g: NDArray[np.float64],
    exact: Callable[[int], tuple[int, int]],
) -> NDArray[np.bool_]:
    """Independent events of chance exp(-g), each decided exactly.

    Args:
        stream: of random bits.
        g: (n,) in double precision; see `_SLACK`.
        exact: numerator and denominator of g[j].
    """
    words = _words(stream, len(g))
    u, chance = words.astype(np.float64), np.ldexp(np.exp(-g), 64)
    happens = u < chance * (1 - _SLACK) - 2
    unsure = ~happens & (u <= chance * (1 + _SLACK) + 2)
    for j in unsure.nonzero()[0].tolist():
        happens[j] = _exactly(stream, int(words[j]), *exact(j))
    return happens


def _exactly(stream: SecretStream, first: int, top: int, bottom: int) -> bool:
    """Whether U < exp(-top / bottom), where `first` holds the first 64 bits of U."""
    u, bits, digits = first, 64, 40
    while True:
        low, high = _exp_bounds(top, bottom, digits)
        with decimal.localcontext(_context(digits + bits)):
            unit = decimal.Decimal(2) ** bits  # exact, as is its product with u
            if u + 1 <= low * unit:
                return True
            if u >= high * unit:
                return False
        u, bits, digits = (u << 64) + int(_words(stream, 1)[0]), bits + 64, digits + 40


def _exp_bounds(
    top: int, bottom: int, digits: int
) -> tuple[decimal.Decimal, decimal.Decimal]:
    """Numbers below and above exp(-top / bottom), which differ by little."""
    with decimal.localcontext(_context(digits)):
        g = decimal.Decimal(top) / decimal.Decimal(bottom)
        # Division and exp round correctly, so an error of 1 in the last digit is more
        # than theirs.
        off = decimal.Decimal(10) ** (3 - digits)
        low = (-g * (1 + off)).exp() * (1 - off)
        return low, (-g * (1 - off)).exp() * (1 + off)


def _context(digits: int) -> decimal.Context:
    return decimal.Context(
        prec=digits, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX, traps=[]
    )


def _words(stream: SecretStream, size: int) -> NDArray[np.uint64]:
    drawn = torch.empty(size, dtype=torch.int64)
    stream.fill(drawn)
    words: NDArray[Any] = drawn.numpy().view(np.uint64)
    return words
