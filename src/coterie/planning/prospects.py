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
from jaxtyping import Float
from scipy.optimize import nnls

_MARGIN = 1.2
"""Directions count that are so much longer than the longest of noise."""

NORMAL = 1.6449
"""The 95 per cent point of the normal law: intervals hold 90 per cent."""


class Findings(NamedTuple):
    """What a pilot found out about N clients."""

    squared: Float[np.ndarray, "n n"]  # distances of gradients: unbiased, symmetric
    floor: Float[np.ndarray, " n"]  # standard error of |g_i|^2 where g_i is 0
    variance: Float[np.ndarray, " n"]  # of a gradient of one sample
    dimension: float  # (tr S)^2 / tr S^2 for the covariance S of a gradient
    sizes: Float[np.ndarray, " n"]  # training samples


class Structure(NamedTuple):
    """Where the gradients of clients lie, as far as noise lets us see."""

    place: Float[np.ndarray, "n r"]  # p_i, up to a rotation
    own: Float[np.ndarray, " n"]  # mean square of t_i
    own_error: float  # standard error of its mean over clients
    seen: Float[np.ndarray, " n"]  # what each client by itself says about its t_i
    seen_error: Float[np.ndarray, " n"]


class Prospect(NamedTuple):
    """What one way of looking at the findings promises to every client."""

    gain: Float[np.ndarray, " n"]  # times one's own samples
    weights: Float[np.ndarray, "n n"]  # rows sum to 1
    share: Float[np.ndarray, " n"]  # of everyone's samples that equals training alone


class Prospects(NamedTuple):
    """The likely prospect, and those at either end of what the pilot allows."""

    likely: Prospect
    least: Prospect
    most: Prospect
    mean: tuple[float, float, float]  # least, likely and most gain of all on average


def prospects_of(found: Findings) -> Prospects:
    """What the findings promise, with 90 per cent intervals.

    The likely prospect takes all clients to be alike in how much they differ from
    the rest; the interval of a client does not, and is as wide as its own data leave
    it. The interval of the mean over clients rests on all of them.
    """
    shape = structure_of(found)
    noise = found.variance / found.sizes

    def prospect(others: float, mine: Float[np.ndarray, " n"]) -> Prospect:
        return _prospect(shape.place, np.maximum(shape.own + others, 0), mine, noise)

    spread = NORMAL * shape.own_error
    alike = [np.maximum(shape.own + s, 0) for s in (spread, 0.0, -spread)]
    by_itself = [
        np.maximum(shape.seen + s * shape.seen_error, 0) for s in (NORMAL, -NORMAL)
    ]
    likely = prospect(0.0, alike[1])
    least = prospect(spread, np.maximum(by_itself[0], alike[1]))
    most = prospect(-spread, np.minimum(by_itself[1], alike[1]))
    low, high = (
        float(_gains(shape.place, own, own, noise)[0].mean()) for own in alike[::2]
    )
    return Prospects(likely, least, most, (low, float(likely.gain.mean()), high))


def structure_of(found: Findings) -> Structure:
    """Common directions and what is left, from noisy squared distances.

    The matrix C of products of gradients, less a mean, follows from their distances.
    With f = `floor`, noise has standard deviation f_i on its diagonal and sqrt(f_i f_j
    / 2) off it, so that eigenvalues of C_ij / sqrt(f_i f_j) that are noise reach
    sqrt(2 n) and no further. What lies above stands out; the diagonal of the rest is
    what each client says about |t_i|^2.
    """
    n = len(found.squared)
    root = np.sqrt(found.floor)
    sure = (1 / found.floor) / (1 / found.floor).sum()
    centre = np.eye(n) - sure  # the mean of the surest counts most
    products = -centre @ found.squared @ centre.T / 2
    value, vector = np.linalg.eigh(products / np.outer(root, root))
    kept = value > _MARGIN * math.sqrt(2 * n)
    length, along = value[kept], vector[:, kept] * root[:, None]
    count = int(kept.sum())
    # Every direction that is kept has taken its share of noise with it.
    taken = count * found.floor / (2 * math.sqrt(found.dimension))
    seen = (products - (along * length) @ along.T).diagonal() + taken
    seen = seen * n / max(1, n - 1 - count)
    trust = 1 / found.floor**2
    own = max(0.0, float((trust * seen).sum() / trust.sum()))
    length = np.maximum(length - own * float((1 / found.floor).mean()), 0)
    return Structure(
        along * np.sqrt(length),
        np.full(n, own),
        1 / math.sqrt(float(trust.sum())),
        seen,
        found.floor,
    )


def _prospect(
    place: Float[np.ndarray, "n r"],
    own: Float[np.ndarray, " n"],
    mine: Float[np.ndarray, " n"],
    noise: Float[np.ndarray, " n"],
) -> Prospect:
    """Gains, weights, and the share of samples with which they equal training alone.

    Args:
        place: p.
        own: mean square of t_j, as others see it.
        mine: mean square of t_i, for client i itself.
        noise: sigma_i^2 / m_i.
    """
    share = [
        _Risk(place - place[i], own, float(mine[i]), noise, i).share_for(noise[i])
        for i in range(len(noise))
    ]
    gain, weights = _gains(place, own, mine, noise)
    return Prospect(gain, weights, np.array(share))


def _gains(
    place: Float[np.ndarray, "n r"],
    own: Float[np.ndarray, " n"],
    mine: Float[np.ndarray, " n"],
    noise: Float[np.ndarray, " n"],
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "n n"]]:
    """By what the least risks are below those of training alone, and their weights."""
    n = len(noise)
    gain, weights = np.ones(n), np.eye(n)
    for i in range(n):
        risk = _Risk(place - place[i], own, float(mine[i]), noise, i)
        least, weights[i] = risk.least(1.0)
        gain[i] = noise[i] / least
    return gain, weights


class _Risk(NamedTuple):
    """The risk of one client."""

    towards: Float[np.ndarray, "n r"]  # p_j - p_i
    own: Float[np.ndarray, " n"]
    mine: float
    noise: Float[np.ndarray, " n"]
    i: int

    def least(self, share: float) -> tuple[float, Float[np.ndarray, " n"]]:
        """The least risk with a share of all samples, and its weights.

        On weights that sum to 1 the risk is l'Ml. If u >= 0 minimises u'Mu / 2 - sum u,
        then u / sum u minimises it, and the risk there is 1 / sum u.
        """
        n = len(self.noise)
        alone = self.noise / share + np.where(np.arange(n) == self.i, 0.0, self.own)
        others = math.sqrt(self.mine) * (np.arange(n) != self.i)
        root = np.sqrt(alone)
        rows = np.vstack([self.towards.T, others[None], np.diag(root)])
        goal = np.concatenate([np.zeros(len(rows) - n), 1 / root])
        u, _ = nnls(rows, goal)
        total = float(u.sum())
        return 1 / total, u / total

    def share_for(self, target: float) -> float:
        """The share of all samples with which the least risk is the target.

        Without any bias, the variance of all together would be the least risk.
        """
        low, high = 1 / float((target / self.noise).sum()), 1.0
        for _ in range(10):  # to the 1,024th part of their ratio, on a log scale
            middle = math.sqrt(low * high)
            if self.least(middle)[0] > target:
                low = middle
            else:
                high = middle
        return high
