"""How sure a mean over seeds and test samples is, for each client and for all of them.

d[s, i, j] is what is averaged, such as the difference of two algorithms on test sample
j of client i after training with seed s. Wanted is its mean over new seeds and new test
samples of these clients. With S seeds, N clients, n_i samples of client i, D_si the
mean of client i with seed s, and u_sij = (d_sij - D_si) / (N S sqrt(n_i (n_i - 1))):

    V_samples = sum_j (sum_s u_sj)^2     where seeds share sample j, it is one sample
    V_seeds   = sum_s (D_s - D)^2 / (S (S - 1))     D_s and D are means over clients
    V_both    = (S sum_sj u_sj^2 - V_samples) / (S - 1)

V_samples is the variance of the mean over samples. V_seeds has the variance over seeds,
and as much as samples make seeds differ, which is V_both: the interaction of both where
all seeds have the same test samples, all of V_samples where each has its own. So

    error^2 = V_samples + max(0, V_seeds - V_both)
    half^2  = t_f^2 (V_samples + 1 / K^2)
              + t_{S-1}^2 max(0, V_seeds - (1 - 1 / S) V_both)

where half is half the width of the interval, and t_f the quantile of Student's
distribution with f degrees of freedom, those of the samples, by Satterthwaite's rule.
Each part has its own quantile, and a part of V_both stays in, since with few seeds
V_seeds is small by chance too often. 1 / K^2, of outcomes that are 0 or 1 alone, is a
pair of samples of which each algorithm is right on one, half a pair each way (Agresti
and Min, 2005): without it a client of whom no prediction differs, or one, would seem to
be known exactly. K is the number of samples that are as good as independent.

For one client, N = 1 and D_s is its own. With one seed only samples count. Where each
seed draws other clients (newcomers), D_s is the mean over those of the seed, and the
weight of a sample in D is 1 / (S N_s n_i).

A measure of a client as a whole has values of samples with its mean and its variance
(`models.jackknife`). Where it counts samples, as sensitivity does those of class 1, K
and f are by what each sample changes, 1 / n_i for a mean.

References:
    Gallas, One-shot estimate of MRMC variance: AUC, Academic Radiology 13, 2006.
    Agresti and Min, Simple improved confidence intervals for comparing matched
    proportions, Statistics in Medicine 24, 2005.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

_LEVEL = 0.975
"""On either side: intervals of 95 per cent."""


class Trials(NamedTuple):
    """What is averaged, with seed, client and sample of each, (M,) all of them."""

    values: np.ndarray
    seed: np.ndarray
    client: np.ndarray
    sample: np.ndarray
    proportion: bool = False  # of outcomes, or differences of them, that are 0 or 1
    step: np.ndarray | None = None  # what each changes its client's mean; None: 1 / n_i


class Estimate(NamedTuple):
    """Means with standard errors and the ends of 95 per cent intervals.

    NaN stands for a standard error, and infinity for an end, that is not known.
    """

    mean: np.ndarray
    error: np.ndarray
    low: np.ndarray
    high: np.ndarray


class _Parts(NamedTuple):
    """Sums over the samples of each group of clients."""

    samples: np.ndarray  # V_samples
    alone: np.ndarray  # the same if no sample were shared by seeds
    distinct: np.ndarray  # how many samples there are, if they had equal weights
    drawn: np.ndarray  # the same, where a sample counts anew with every seed


class _Cells(NamedTuple):
    """A mean for each client and seed."""

    place: np.ndarray  # (M,) which cell each value is of
    client: np.ndarray  # (C,) number of the client, 0 .. N-1
    seed: np.ndarray  # (C,)
    size: np.ndarray  # (C,)
    mean: np.ndarray  # (C,)
    seeds: np.ndarray  # (N,) how many a client has


@np.errstate(invalid="ignore")  # of infinite ones nothing can be told
def client_estimates(trials: Trials) -> tuple[np.ndarray, Estimate]:
    """The clients, in rising order, and how sure the mean of each one is."""
    names, client = np.unique(trials.client, return_inverse=True)
    cells = _cells(trials, client)
    u, w = _weighed(trials, cells)
    parts = _parts(u, w, _paired(client, trials.sample), client)
    mean = _sums(cells.client, cells.mean) / cells.seeds
    gaps = (cells.mean - mean[cells.client]) ** 2
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = _sums(cells.client, gaps) / (cells.seeds * (cells.seeds - 1))
    found = _estimate(
        mean, spread, cells.seeds, parts, parts.distinct - 1, trials.proportion
    )
    single = _sums(cells.client, cells.size < 2) > 0
    return names, _unknown_where(single, found)


@np.errstate(invalid="ignore")  # of infinite ones nothing can be told
def mean_estimate(trials: Trials) -> Estimate:
    """How sure the mean over clients of their means is; each number is an array ()."""
    _, client = np.unique(trials.client, return_inverse=True)
    cells = _cells(trials, client)
    weight = 1 / (len(cells.seeds) * cells.seeds[cells.client])
    means = _sums(cells.client, cells.mean) / cells.seeds
    drift = _seed_means(cells, cells.mean - means[cells.client])
    return _whole(trials, client, cells, weight, drift)


@np.errstate(invalid="ignore")  # of infinite ones nothing can be told
def newcomer_estimate(trials: Trials) -> Estimate:
    """How sure the mean over seeds is, where each seed draws its clients.

    Other clients are drawn with other seeds, so that V_seeds has what is due to them.
    """
    _, client = np.unique(trials.client, return_inverse=True)
    cells = _cells(trials, client)
    _, seed = np.unique(cells.seed, return_inverse=True)
    drawn = np.bincount(seed)
    means = _seed_means(cells, cells.mean)
    weight = 1 / (len(drawn) * drawn[seed])
    return _whole(trials, client, cells, weight, means - means.mean())


def _seed_means(cells: _Cells, values: np.ndarray) -> np.ndarray:
    """The mean of the values of each seed's clients."""
    _, seed = np.unique(cells.seed, return_inverse=True)
    return _sums(seed, values) / np.bincount(seed)


def _whole(
    trials: Trials,
    client: np.ndarray,
    cells: _Cells,
    weight: np.ndarray,
    drift: np.ndarray,
) -> Estimate:
    """The estimate of a sum of cells with these weights, whose seeds drift so far."""
    u, w = _weighed(trials, cells)
    share = (weight * cells.seeds[cells.client])[cells.place]
    centre = (weight * cells.mean).sum()
    single = cells.size[cells.place] < 2
    # One sample has no spread of its own: that among clients is no smaller.
    u = np.where(single, (trials.values - centre) * w, u) * share
    everybody = np.zeros(len(client), dtype=int)
    parts = _parts(u, w * share, trials.sample, everybody)
    s = len(drift)
    spread = (drift**2).sum() / (s * (s - 1)) if s > 1 else np.nan
    own = _parts(u, w, _paired(client, trials.sample), client)
    freedom = _satterthwaite(own.samples, np.maximum(own.distinct - 1, 1))
    found = _estimate(
        np.array([centre]),
        np.array([spread]),
        np.array([s]),
        parts,
        np.array([freedom]),
        trials.proportion,
    )
    alone = bool(single.any() and len(cells.seeds) < 2)
    found = _unknown_where(np.array([alone]), found)
    return Estimate(*(value[0] for value in found))


@np.errstate(invalid="ignore")  # of infinite ones nothing can be told
def seeds_alone(table: np.ndarray) -> Estimate:
    """Of each column's mean over the rows, which are seeds; samples are not counted.

    NaN stands for a seed that a column does not have.
    """
    there = ~np.isnan(table)
    s, filled = there.sum(0), np.where(there, table, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = filled.sum(0) / s
        squares = np.where(there, (filled - mean) ** 2, 0).sum(0)
        error = np.sqrt(squares / (s * (s - 1)))
        half = stdtrit(s - 1, _LEVEL) * error
    found = Estimate(mean, error, mean - half, mean + half)
    return _unknown_where(s < 2, found)


def _estimate(
    mean: np.ndarray,
    spread: np.ndarray,
    seeds: np.ndarray,
    parts: _Parts,
    freedom: np.ndarray,
    proportion: bool,
) -> Estimate:
    """The formulas above, for every group of clients at once."""
    with np.errstate(invalid="ignore", divide="ignore"):
        both = (seeds * parts.alone - parts.samples) / (seeds - 1)
        several = seeds > 1
        beyond = np.where(several, np.maximum(0, spread - both), 0)
        kept = spread - (1 - 1 / seeds) * both
        careful = np.where(several, np.maximum(0, kept), 0)
        quantile = np.where(several, stdtrit(seeds - 1, _LEVEL), 0)
        same = np.where(parts.samples > 0, parts.alone / parts.samples, np.nan)
        independent = np.where(np.isnan(same), parts.distinct, parts.drawn * same)
        more = 1 / independent**2 if proportion else 0.0
        wide = stdtrit(np.maximum(freedom, 1), _LEVEL) ** 2 * (parts.samples + more)
        half = np.sqrt(wide + quantile**2 * careful)
    return Estimate(mean, np.sqrt(parts.samples + beyond), mean - half, mean + half)


def _cells(trials: Trials, client: np.ndarray) -> _Cells:
    """Groups what is averaged by client and seed."""
    _, seed = np.unique(trials.seed, return_inverse=True)
    pairs, place = np.unique(_paired(client, seed), return_inverse=True)
    first = np.zeros(len(pairs), dtype=int)
    first[place] = np.arange(len(place))
    size = np.bincount(place)
    mean = _sums(place, trials.values) / size
    own = client[first]
    return _Cells(place, own, seed[first], size, mean, np.bincount(own))


def _weighed(trials: Trials, cells: _Cells) -> tuple[np.ndarray, np.ndarray]:
    """U of every value for its own client, and the weight of the value in its mean."""
    size, seeds = cells.size[cells.place], cells.seeds[cells.client[cells.place]]
    rest = trials.values - cells.mean[cells.place]
    u = np.where(size > 1, rest, 0) / np.sqrt(size * np.maximum(size - 1, 1)) / seeds
    step = 1 / size if trials.step is None else trials.step
    return u, step / seeds


def _parts(u: np.ndarray, w: np.ndarray, key: np.ndarray, group: np.ndarray) -> _Parts:
    """Sums over samples, which are one where their key is, for each group."""
    _, first, place = np.unique(key, return_index=True, return_inverse=True)
    of = group[first]
    samples = _sums(of, _sums(place, u) ** 2)
    with np.errstate(invalid="ignore"):
        distinct = 1 / _sums(of, _sums(place, w) ** 2)
    return _Parts(samples, _sums(group, u**2), distinct, 1 / _sums(group, w**2))


def _satterthwaite(variances: np.ndarray, freedom: np.ndarray) -> float:
    """Degrees of freedom of a sum of independent variances."""
    total = (variances**2 / freedom).sum()
    return float(variances.sum() ** 2 / total) if total > 0 else float(freedom.sum())


def _unknown_where(where: np.ndarray, found: Estimate) -> Estimate:
    """The same without error and with an endless interval at some places."""
    mean, error, low, high = found
    return Estimate(
        mean,
        np.where(where, np.nan, error),
        np.where(where, -np.inf, low),
        np.where(where, np.inf, high),
    )


def _sums(place: np.ndarray, values: np.ndarray) -> np.ndarray:
    return np.bincount(place, weights=values)


def _paired(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """One number for each pair of whole numbers."""
    _, second = np.unique(second, return_inverse=True)
    return first * (second.max(initial=0) + 1) + second
