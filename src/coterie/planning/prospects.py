"""What each client can expect from learning with others, given noise and biases.

Client i estimates its gradient from m_i samples of variance sigma_i^2. With weights l
on all clients, which sum to 1, the squared error of the blend is

    risk_i(l) = |sum_j l_j (g_j - g_i)|^2 + sum_j l_j^2 sigma_j^2 / m_j,

its bias and its variance (Theorem 8.2 of the thesis, before its bias is bounded by
sum_j l_j |g_j - g_i|^2). Alone it is sigma_i^2 / m_i; the least risk divides it by the
`gain`: learning with others is worth so many times one's own samples.

The vectors g_i are known by noisy squared distances alone. `structure_of` takes them to
be g_i = p_i + t_i, where the p_i lie in the few directions that stand out of the noise,
and the t_i are different in every client and of the same mean square `own`.

References:
    Even, "Towards decentralization, asynchrony, privacy and personalization in
    federated learning", PhD thesis, 2024, chapter 8, hal tel-04877971.
    Wigner, "On the distribution of the roots of certain symmetric matrices", Annals of
    Mathematics, 1958: how large the eigenvalues of noise become.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy.optimize import nnls
from scipy.stats import t as student

_MARGIN = 1.2
"""Directions count that are so much longer than the longest of noise."""

_LEVERAGE = 0.5
"""Whose share in the directions that count is larger is explained by them."""


class PilotFindings(NamedTuple):
    """What a pilot found out about N clients."""

    squared: Float[np.ndarray, "n n"]  # distances of gradients: unbiased, symmetric
    floor: Float[np.ndarray, " n"]  # standard error of |g_i|^2 where g_i is 0
    variance: Float[np.ndarray, " n"]  # of a gradient of one sample
    dimension: float  # (tr S)^2 / tr S^2 for the covariance S of a gradient
    sizes: Float[np.ndarray, " n"]  # training samples


class Structure(NamedTuple):
    """Where the gradients of clients lie, as far as noise lets us see."""

    place: Float[np.ndarray, "n r"]  # p_i, up to a rotation
    own: Float[np.ndarray, " n"]  # mean square of t_i, and of the error of p_i
    own_error: float  # standard error of the mean square of t_i


class Prospect(NamedTuple):
    """What one way of looking at the findings promises to every client."""

    gain: Float[np.ndarray, " n"]  # times one's own samples
    weights: Float[np.ndarray, "n n"]  # rows sum to 1


class Prospects(NamedTuple):
    """The likely prospect, and the ends of 90 per cent intervals of gains."""

    likely: Prospect
    least: Float[np.ndarray, " n"]
    most: Float[np.ndarray, " n"]
    mean: tuple[float, float, float]  # least, likely and most gain of all on average


def prospects_of(found: PilotFindings) -> Prospects:
    """What the findings promise, with 90 per cent intervals.

    All clients are taken to be alike in how much they differ from the rest.
    """
    noise, shape = found.variance / found.sizes, structure_of(found)
    n = len(noise)
    # Of so many products of two clients' noise, in two looks, errors are known.
    spread = float(student.ppf(0.95, n * (n - 1))) * shape.own_error
    made = _gains(shape.place, shape.own, noise)
    least, most = (
        _gains(shape.place, np.maximum(shape.own + s, 0), noise).gain
        for s in (spread, -spread)
    )
    least, most = np.minimum(least, made.gain), np.maximum(most, made.gain)
    means = (float(gain.mean()) for gain in (least, made.gain, most))
    low, likely, high = means
    return Prospects(made, least, most, (low, likely, high))


def structure_of(found: PilotFindings) -> Structure:
    """Common directions and what is left, from noisy squared distances.

    The matrix C of products of gradients, less a mean, follows from their distances.
    With f = `floor`, noise has standard deviation f_i on its diagonal and sqrt(f_i f_j
    / 2) off it, so that eigenvalues of C_ij / sqrt(f_i f_j) that are noise reach
    sqrt(2 n) and no further. What lies above stands out. The rest R is A T A' for the
    products T of the t_i and the projection A, so that R_ii + R_jj - 2 R_ij is
    sum_k (A_ik - A_jk)^2 |t_k|^2 on average, which gives their mean square.
    """
    n, f = len(found.squared), found.floor
    root = np.sqrt(f)
    sure = (1 / f) / (1 / f).sum()
    centre = np.eye(n) - sure  # the mean of the surest counts most
    products = -centre @ found.squared @ centre.T / 2
    value, vector = np.linalg.eigh(products / np.outer(root, root))
    kept = value > _MARGIN * math.sqrt(2 * n)
    length, axes = value[kept], vector[:, kept]
    along = axes * root[:, None]
    # Every direction that is kept has taken its share of noise with it.
    taken = len(length) * f / (2 * math.sqrt(found.dimension))
    rest = products - (along * length) @ along.T + np.diag(taken)
    away = root[:, None] * (np.eye(n) - axes @ axes.T) / root @ centre  # A
    explained = (axes**2).sum(1)
    own, own_error = _mean_square(rest, away, f, explained < _LEVERAGE)
    length = np.maximum(length - own * (axes**2 / f[:, None]).sum(0), 0)
    # Weights that fit the places fit their noise too, which helps nobody.
    return Structure(along * np.sqrt(length), own + taken, own_error)


def _mean_square(
    rest: Float[np.ndarray, "n n"],
    away: Float[np.ndarray, "n n"],
    floor: Float[np.ndarray, " n"],
    used: Bool[np.ndarray, " n"],
) -> tuple[float, float]:
    """The mean of |t_i|^2 from the rest A T A', and its error; 0 if it seems negative.

    A mean over pairs of clients that no direction explains, with weights 1 / (f_i +
    f_j)^2, since that is the noise of a distance.
    """
    if used.sum() < 2:
        used = np.ones_like(used)
    weight = np.outer(used, used) / (floor[:, None] + floor) ** 2
    np.fill_diagonal(weight, 0)
    form = np.diag(weight.sum(1)) - weight  # sum_ij w_ij (r_i - r_j)^2 / 2 = r' form r
    seen = away.T @ form @ away
    total = float(seen.trace())
    root = np.sqrt(floor)
    error = float(np.linalg.norm(root[:, None] * seen * root)) / total
    return max(0.0, float((form * rest).sum()) / total), error


def _gains(
    place: Float[np.ndarray, "n r"],
    own: Float[np.ndarray, " n"],
    noise: Float[np.ndarray, " n"],
) -> Prospect:
    """By what the least risks are below those of training alone, and their weights.

    Args:
        place: p.
        own: mean square of t.
        noise: sigma_i^2 / m_i.
    """
    n = len(noise)
    gain, weights = np.ones(n), np.eye(n)
    for i in range(n):
        least, weights[i] = _least_risk(place - place[i], own, noise, i)
        gain[i] = noise[i] / least
    return Prospect(gain, weights)


def _least_risk(
    towards: Float[np.ndarray, "n r"],
    own: Float[np.ndarray, " n"],
    noise: Float[np.ndarray, " n"],
    i: int,
) -> tuple[float, Float[np.ndarray, " n"]]:
    """The least risk of client i, who sees the others in these directions.

    On weights that sum to 1 the risk is l'Ml. If u >= 0 minimises u'Mu / 2 - sum u,
    then u / sum u minimises it, and the risk there is 1 / sum u.
    """
    n = len(noise)
    others = np.arange(n) != i
    root = np.sqrt(noise + np.where(others, own, 0.0))
    rows = np.vstack([towards.T, math.sqrt(own[i]) * others[None], np.diag(root)])
    goal = np.concatenate([np.zeros(len(rows) - n), 1 / root])
    u, _ = nnls(rows, goal)
    total = float(u.sum())
    return 1 / total, u / total
