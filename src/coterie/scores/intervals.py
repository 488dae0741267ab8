"""Confidence intervals of means over seeds and test samples, per client and overall.

Let d[s, i, j] be a value, such as the difference of two algorithms, on test sample j of
client i after training with seed s. We estimate its mean over new seeds and new test
samples of these clients. With S seeds, N clients, n_i samples of client i, the mean
D_si of client i with seed s, and u_sij = (d_sij - D_si) / (N S sqrt(n_i (n_i - 1))):

    V_samples = sum_j (sum_s u_sj)^2     a sample that seeds share is one sample j
    V_seeds   = sum_s (D_s - D)^2 / (S (S - 1))     D_s and D are means over clients
    V_both    = (S sum_sj u_sj^2 - V_samples) / (S - 1)

V_samples is the variance of the mean over samples. V_seeds holds the variance over
seeds, and also V_both, which samples add to the differences between seeds. If all seeds
have the same test samples, V_both is the interaction of seeds and samples. If each seed
has its own test samples, V_both is all of V_samples. V_both must count only once, so we
subtract it. Shared samples let us estimate V_both. With few seeds, V_seeds is too often
small by chance, so we subtract less:

    V_less  = (S - 1) / (S + 1) V_both max(0, 1 - V_both / V_samples)
    V_1     = max(0, V_samples - V_both) + V_less + 1 / K^2
    V_2     = max(0, V_seeds - V_less)
    half    = (q V_1 + t_{S-1} V_2) / sqrt(V_1 + V_2)
    error^2 = V_samples + max(0, V_seeds - V_both)

`half` is half the width of the interval. It is never less than the error, because seeds
may agree by chance. This is Cochran and Cox's interval for a sum of two variances,
which weights two quantiles by the variances. For seeds, the quantile is Student's with
S - 1 degrees of freedom. q is Student's t_f, where f follows from the samples by
Satterthwaite's rule.

For outcomes that are 0 or 1, the mean determines the variance, so q is the normal
quantile. The term 1 / K^2 has the effect of two more samples: each algorithm is right
on one of them (Agresti and Min). Without this term, the difference would seem to be
known exactly for a client with at most one differing prediction. K is the number of
effectively independent samples. For other outcomes, 1 / K^2 is left out.

For one client, N = 1 and D_s is its own mean. With one seed, only samples count. If
each seed draws its own clients (newcomers), D_s is the mean over the clients of that
seed, and the weight of a sample in D is 1 / (S N_s n_i).

A measure of a client as a whole has values of samples with the same mean and variance
(`models.jackknife`). If such a measure counts only some samples, as sensitivity counts
the samples of class 1, K follows from how much each sample changes the measure (1 / n_i
for a mean). These intervals are symmetric; `ranges` accounts for the range of a
measure.

References:
    Cochran and Cox, Experimental Designs, Wiley 1950.
    Gallas, One-shot estimate of MRMC variance: AUC, Academic Radiology 13, 2006.
    Agresti and Min, Simple improved confidence intervals for comparing matched
    proportions, Statistics in Medicine 24, 2005.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import ndtri, stdtrit

_LEVEL = 0.975
"""The quantile at either end of a 95 % interval."""


class Observations(NamedTuple):
    """M values to average, with the seed, client and sample of each, all (M,)."""

    values: np.ndarray
    seed: np.ndarray
    client: np.ndarray
    sample: np.ndarray
    proportion: bool = False  # whether outcomes are 0 or 1, or differences of such
    step: np.ndarray | None = None  # change of the client's mean by each; None: 1 / n_i


class Estimate(NamedTuple):
    """Means with standard errors and the ends of 95 % intervals.

    An unknown standard error is NaN, and an unknown end is infinite.
    """

    mean: np.ndarray
    error: np.ndarray
    low: np.ndarray
    high: np.ndarray


class _Parts(NamedTuple):
    """Sums over the samples of each group of clients."""

    samples: np.ndarray  # V_samples
    alone: np.ndarray  # V_samples if seeds shared no sample
    distinct: np.ndarray  # effective number of samples: as if all weights were equal
    drawn: np.ndarray  # the same, if a sample counts once for every seed


class _Cells(NamedTuple):
    """A mean for each client and seed."""

    place: np.ndarray  # (M,) the cell of each value
    client: np.ndarray  # (C,) number of the client, 0 .. N-1
    seed: np.ndarray  # (C,)
    size: np.ndarray  # (C,)
    mean: np.ndarray  # (C,)
    seeds: np.ndarray  # (N,) number of seeds of each client


@np.errstate(invalid="ignore")  # infinite values give NaN
def client_estimates(trials: Observations) -> tuple[np.ndarray, Estimate]:
    """The clients in ascending order, and the estimate of the mean of each."""
    names, client = _factorise(trials.client)
    cells = _cells(trials, client)
    u, w = _deviations(trials, cells)
    parts = _parts(u, w, _pair_keys(client, trials.sample), client)
    mean = _sums(cells.client, cells.mean) / cells.seeds
    gaps = (cells.mean - mean[cells.client]) ** 2
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = _sums(cells.client, gaps) / (cells.seeds * (cells.seeds - 1))
    found = _estimate(
        mean, spread, cells.seeds, parts, parts.distinct - 1, trials.proportion
    )
    single = _sums(cells.client, cells.size < 2) > 0
    return names, _unknown_where(single, found)


def mean_estimate(trials: Observations) -> Estimate:
    """The estimate of the mean over clients of their means, with arrays of shape ()."""
    found = mean_estimates(trials, np.zeros(len(trials.values), dtype=int))
    return Estimate(*(value[0] for value in found))


@np.errstate(invalid="ignore")  # infinite values give NaN
def mean_estimates(trials: Observations, group: np.ndarray) -> Estimate:
    """`mean_estimate` for groups of clients; `group` (M,) has one for each value."""
    _, client = _factorise(trials.client)
    cells = _cells(trials, client)
    of = _of_each(cells.place, group)
    members = np.bincount(_of_each(cells.client, of))
    weight = 1 / (members[of] * cells.seeds[cells.client])
    means = _sums(cells.client, cells.mean) / cells.seeds
    drift, there = _seed_means(cells, of, cells.mean - means[cells.client])
    s = np.bincount(there)
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = _sums(there, drift**2) / (s * (s - 1))
    return _group_estimates(trials, client, cells, weight, of, spread, s)


@np.errstate(invalid="ignore")  # infinite values give NaN
def newcomer_estimate(trials: Observations) -> Estimate:
    """The estimate of the mean over seeds, where each seed draws its own clients.

    V_seeds includes the variance over clients, because they differ between seeds.
    """
    _, client = _factorise(trials.client)
    cells = _cells(trials, client)
    _, seed = _factorise(cells.seed)
    drawn = np.bincount(seed)
    everybody = np.zeros(len(seed), dtype=int)
    means, _ = _seed_means(cells, everybody, cells.mean)
    s = len(means)
    spread = means.var(ddof=1) / s if s > 1 else np.nan
    found = _group_estimates(
        trials,
        client,
        cells,
        1 / (s * drawn[seed]),
        everybody,
        np.array([spread]),
        np.array([s]),
    )
    return Estimate(*(value[0] for value in found))


def _seed_means(
    cells: _Cells, group: np.ndarray, values: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The mean over the cells of each group and seed, and the group of each mean."""
    _, place = _factorise(_pair_keys(group, cells.seed))
    return _sums(place, values) / np.bincount(place), _of_each(place, group)


def _group_estimates(
    trials: Observations,
    client: np.ndarray,
    cells: _Cells,
    weight: np.ndarray,
    group: np.ndarray,
    spread: np.ndarray,
    seeds: np.ndarray,
) -> Estimate:
    """The estimate of each group's weighted sum of cells.

    Args:
        trials: the values.
        client: (M,) number of the client of each value.
        cells: the cells of the values.
        weight: (C,) of each cell.
        group: (C,) of each cell.
        spread: V_seeds of each group.
        seeds: number of seeds of each group.
    """
    u, w = _deviations(trials, cells)
    share = (weight * cells.seeds[cells.client])[cells.place]
    centre, of = _sums(group, weight * cells.mean), group[cells.place]
    single = cells.size[cells.place] < 2
    # A single sample has no variance of its own: the one among clients is no smaller.
    u = np.where(single, (trials.values - centre[of]) * w, u) * share
    parts = _parts(u, w * share, _pair_keys(of, trials.sample), of)
    own = _parts(u, w, _pair_keys(client, trials.sample), client)
    whose = _of_each(client, of)
    freedom = _satterthwaite(own.samples, np.maximum(own.distinct - 1, 1), whose)
    found = _estimate(centre, spread, seeds, parts, freedom, trials.proportion)
    alone = (_sums(of, single) > 0) & (np.bincount(whose) < 2)
    return _unknown_where(alone, found)


@np.errstate(invalid="ignore")  # infinite values give NaN
def seeds_alone(table: np.ndarray) -> Estimate:
    """The estimate of each column's mean over the rows (seeds), without samples.

    NaN means that a column has no value for a seed.
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
    """The formulas above, for all groups of clients at once."""
    several = seeds > 1
    with np.errstate(invalid="ignore", divide="ignore"):
        both = np.where(several, (seeds * parts.alone - parts.samples) / (seeds - 1), 0)
        spread = np.where(several, spread, 0)
        rest = np.maximum(0, parts.samples - both)
        known = np.where(parts.samples > 0, rest / parts.samples, 0)
        told = (seeds - 1) / (seeds + 1) * both * known
        rest, left = rest + told, np.maximum(0, spread - told)
        quantile = stdtrit(np.maximum(freedom, 1), _LEVEL)
        if proportion:
            same = np.where(parts.samples > 0, parts.alone / parts.samples, np.nan)
            alike = np.where(np.isnan(same), parts.distinct, parts.drawn * same)
            rest, quantile = rest + 1 / alike**2, ndtri(_LEVEL)
        of_seeds = np.where(several, stdtrit(np.maximum(seeds - 1, 1), _LEVEL), 0)
        total = rest + left
        half = (quantile * rest + of_seeds * left) / np.sqrt(total)
        error = np.sqrt(parts.samples + np.maximum(0, spread - both))
        half = np.maximum(np.where(total == 0, 0, half), error)
    return Estimate(mean, error, mean - half, mean + half)


def _cells(trials: Observations, client: np.ndarray) -> _Cells:
    """The cell of each client and seed."""
    _, seed = _factorise(trials.seed)
    _, place = _factorise(_pair_keys(client, seed))
    size = np.bincount(place)
    mean = _sums(place, trials.values) / size
    own = _of_each(place, client)
    return _Cells(place, own, _of_each(place, seed), size, mean, np.bincount(own))


def _deviations(trials: Observations, cells: _Cells) -> tuple[np.ndarray, np.ndarray]:
    """(M,) u of every value, and its weight in the mean of its client over seeds."""
    size, seeds = cells.size[cells.place], cells.seeds[cells.client[cells.place]]
    rest = trials.values - cells.mean[cells.place]
    u = np.where(size > 1, rest, 0) / np.sqrt(size * np.maximum(size - 1, 1)) / seeds
    step = 1 / size if trials.step is None else trials.step
    return u, step / seeds


def _parts(u: np.ndarray, w: np.ndarray, key: np.ndarray, group: np.ndarray) -> _Parts:
    """Sums for each group over samples. Values with the same key are one sample."""
    _, first, place = np.unique(key, return_index=True, return_inverse=True)
    of = group[first]
    samples = _sums(of, _sums(place, u) ** 2)
    with np.errstate(invalid="ignore"):
        distinct = 1 / _sums(of, _sums(place, w) ** 2)
    return _Parts(samples, _sums(group, u**2), distinct, 1 / _sums(group, w**2))


def _satterthwaite(
    variances: np.ndarray, freedom: np.ndarray, group: np.ndarray
) -> np.ndarray:
    """Degrees of freedom of each group's sum of independent variances."""
    total = _sums(group, variances**2 / freedom)
    with np.errstate(invalid="ignore", divide="ignore"):
        found = _sums(group, variances) ** 2 / total
    return np.where(total > 0, found, _sums(group, freedom))


def _unknown_where(where: np.ndarray, found: Estimate) -> Estimate:
    """The estimate, with an unknown error and interval at these places."""
    mean, error, low, high = found
    return Estimate(
        mean,
        np.where(where, np.nan, error),
        np.where(where, -np.inf, low),
        np.where(where, np.inf, high),
    )


def _factorise(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct values in ascending order, and the index of each value among them.

    `pd.factorize` hashes, which is faster than sorting when few values are distinct.
    """
    place, names = pd.factorize(values, sort=True)
    return names, place


def _sums(place: np.ndarray, values: np.ndarray) -> np.ndarray:
    return np.bincount(place, weights=values)


def _of_each(place: np.ndarray, values: np.ndarray) -> np.ndarray:
    """For each place, the value that all entries with this place share."""
    found = np.zeros(place.max(initial=-1) + 1, dtype=values.dtype)
    found[place] = values
    return found


def _pair_keys(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """One whole number for each pair of whole numbers."""
    if not len(second):
        return first
    least = int(second.min())
    return first * (int(second.max()) - least + 1) + (second - least)
