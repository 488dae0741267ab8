"""The gain of each client from learning with others, given noise and biases.

Client i estimates its gradient from m_i samples of variance sigma_i^2. With weights l
on all clients, which sum to 1, the squared error of the blend is

    risk_i(l) = |sum_j l_j (g_j - g_i)|^2 + sum_j l_j^2 sigma_j^2 / m_j,

the sum of its squared bias and its variance. (In Theorem 8.2 of the thesis, the bias is
then bounded by sum_j l_j |g_j - g_i|^2.) Alone, the risk is sigma_i^2 / m_i. The `gain`
is this risk divided by the least risk: learning with others is worth as much as `gain`
times the client's own samples.

We know the vectors g_i only by noisy squared distances. `structure_of` models them as
g_i = p_i + t_i. The p_i lie in the few directions that stand out from the noise. The
t_i are different in every client and have the same mean square `own`.

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
"""A direction counts if it is this many times as long as noise alone can make one."""

_LEVERAGE = 0.5
"""A client with a larger share in the directions that count is explained by them."""


class PilotFindings(NamedTuple):
    """What a pilot found out about N clients."""

    squared: Float[np.ndarray, "n n"]  # squared distances of gradients: unbiased
    floor: Float[np.ndarray, " n"]  # standard error of |g_i|^2 if g_i is 0
    variance: Float[np.ndarray, " n"]  # of a gradient of one sample
    dimension: float  # (tr S)^2 / tr S^2 for the covariance S of a gradient
    sizes: Float[np.ndarray, " n"]  # training samples


class Structure(NamedTuple):
    """The positions of clients' gradients, as far as the noise shows them."""

    place: Float[np.ndarray, "n r"]  # p_i, up to a rotation
    own: Float[np.ndarray, " n"]  # mean square of t_i, and of the error of p_i
    own_error: float  # standard error of the mean square of t_i


class Prospect(NamedTuple):
    """The gain of every client, and the weights that reach it."""

    gain: Float[np.ndarray, " n"]  # as a multiple of the client's own samples
    weights: Float[np.ndarray, "n n"]  # rows sum to 1


class Prospects(NamedTuple):
    """The likely prospect, and 90 % intervals of gains."""

    likely: Prospect
    least: Float[np.ndarray, " n"]
    most: Float[np.ndarray, " n"]
    mean: tuple[float, float, float]  # least, likely and most mean gain


def prospects_of(found: PilotFindings) -> Prospects:
    """The gains and weights that follow from the findings, with 90 % intervals.

    We assume that every client differs by the same amount, on average, from all others.
    """
    noise, shape = found.variance / found.sizes, structure_of(found)
    n = len(noise)
    # The degrees of freedom are the products of two clients' noise, in two looks.
    spread = float(student.ppf(0.95, n * (n - 1))) * shape.own_error
    likely = _gains(shape.place, shape.own, noise)
    least, most = (
        _gains(shape.place, np.maximum(shape.own + s, 0), noise).gain
        for s in (spread, -spread)
    )
    least, most = np.minimum(least, likely.gain), np.maximum(most, likely.gain)
    means = float(least.mean()), float(likely.gain.mean()), float(most.mean())
    return Prospects(likely, least, most, means)


def structure_of(found: PilotFindings) -> Structure:
    """Estimates from noisy distances the directions p, and the mean square of the t_i.

    The distances give the matrix C of products of gradients minus a mean. With f =
    `floor`, its noise has standard deviation f_i on the diagonal and sqrt(f_i f_j / 2)
    off it. So eigenvalues of C_ij / sqrt(f_i f_j) that are noise reach at most sqrt(2
    n). Larger eigenvalues stand out. The rest R is A T A' for the products T of the t_i
    and the projection A. On average, R_ii + R_jj - 2 R_ij is sum_k (A_ik - A_jk)^2
    |t_k|^2, which gives the mean square of the t_i.
    """
    n, f = len(found.squared), found.floor
    root = np.sqrt(f)
    sure = (1 / f) / (1 / f).sum()
    centre = np.eye(n) - sure  # minus a mean with more weight on surer clients
    products = -centre @ found.squared @ centre.T / 2
    value, vector = np.linalg.eigh(products / np.outer(root, root))
    kept = value > _MARGIN * math.sqrt(2 * n)
    length, axes = value[kept], vector[:, kept]
    along = axes * root[:, None]
    # Every direction that is kept contains its share of the noise.
    taken = len(length) * f / (2 * math.sqrt(found.dimension))
    rest = products - (along * length) @ along.T + np.diag(taken)
    away = root[:, None] * (np.eye(n) - axes @ axes.T) / root @ centre  # A
    explained = (axes**2).sum(1)
    own, own_error = _mean_square(rest, away, f, explained < _LEVERAGE)
    length = np.maximum(length - own * (axes**2 / f[:, None]).sum(0), 0)
    # Weights that fit the positions also fit their noise, so that counts as a bias.
    return Structure(along * np.sqrt(length), own + taken, own_error)


def _mean_square(
    rest: Float[np.ndarray, "n n"],
    away: Float[np.ndarray, "n n"],
    floor: Float[np.ndarray, " n"],
    used: Bool[np.ndarray, " n"],
) -> tuple[float, float]:
    """The mean of |t_i|^2 from the rest A T A', at least 0, and its error.

    It is a mean over pairs of clients that no direction explains. The weights
    1 / (f_i + f_j)^2 follow from the noise of a distance.
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
    """Each client's risk alone over its least risk, and the weights of the least.

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
    """The least risk of client i and its weights, given the positions relative to it.

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
