"""How much one algorithm is better than another, with intervals.

Algorithms are paired by seed, client and test sample (see `intervals`). Some records
lack the values of samples: records of a run that did not end, and records of older
versions (for measures of a client as a whole, such as AUC). Then only seeds count, and
`samples` is 0.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from ..models import step_of
from ..records import Outcomes, Records
from .caching import cached
from .failures import failures
from .finals import (
    difference_of,
    final_scores,
    mean_over_clients,
    mean_over_seeds,
    newcomer_scores,
    require_local,
    score_of,
    without_rounding,
)
from .intervals import (
    Estimate,
    Observations,
    client_estimates,
    mean_estimate,
    newcomer_estimate,
    seeds_alone,
)
from .ranges import difference_interval, is_skew, score_interval

VERDICTS = ("gains", "loses", "cannot tell")


class Gain(NamedTuple):
    """The mean gain over clients with its 95 % interval, and each client's gain."""

    mean: float
    error: float  # standard error
    low: float
    high: float
    seeds: int
    samples: int  # test samples of all clients that count; 0: only seeds count
    # By client: mean, error, low, high, and the verdict ("" if the mean is NaN)
    clients: pd.DataFrame

    @property
    def verdict(self) -> str:
        """One of VERDICTS: "cannot tell" if the interval contains 0."""
        return _verdict(self.low, self.high)

    def clients_with(self, verdict: str) -> list[int]:
        """The clients with this verdict."""
        return self.clients.index[self.clients["verdict"] == verdict].tolist()

    def counts(self) -> dict[str, int]:
        """The number of clients with each verdict."""
        found = self.clients["verdict"].value_counts()
        return {verdict: int(found.get(verdict, 0)) for verdict in VERDICTS}


@cached
def gain_of(records: Records, label: str, over: str | None = None) -> Gain:
    """How much better an algorithm is than another, by default training alone.

    Positive is better, also for scores where lower is better. If the training of one of
    the two failed, all numbers are NaN and no client has a verdict.

    Raises:
        InputError: if `over` is None and `local` has no results.
    """
    over = require_local(records) if over is None else over
    gained = difference_of(records, label, over, final_scores)
    if {label, over} & failures(records).keys():
        return _no_gain(gained)
    trials = _trials(records, [label, over], gained)
    by_client, whole = _gains(records, [label, over], gained, trials)
    alone = mean_over_seeds(records, final_scores(records, over).loc[gained.index])
    table = pd.DataFrame(by_client._asdict(), index=gained.columns)
    table["mean"] = without_rounding(table["mean"], alone.reindex(table.index))
    judged = zip(table["mean"], table["low"], table["high"], strict=True)
    table["verdict"] = [
        "" if np.isnan(mean) else "cannot tell" if mean == 0 else _verdict(low, high)
        for mean, low, high in judged
    ]
    mean, error, low, high = (float(value) for value in whole)
    return Gain(mean, error, low, high, len(gained), _sample_count(trials), table)


def _no_gain(gained: pd.DataFrame) -> Gain:
    """The gain where clients cannot be compared."""
    numbers = dict.fromkeys(Estimate._fields, np.nan)
    table = pd.DataFrame({**numbers, "verdict": ""}, index=gained.columns)
    return Gain(np.nan, np.nan, np.nan, np.nan, len(gained), 0, table)


@cached
def client_scores(
    records: Records, label: str, seed: int | None = None
) -> pd.DataFrame:
    """Final test scores of clients with 95 % intervals: mean, error, low, high.

    Scores are means over all seeds. With `seed`, scores are of this seed only, and
    intervals are only for new test samples.
    """
    scores = final_scores(records, label)
    if seed is not None:
        scores = scores[scores.index == seed].dropna(axis=1)
    found, _ = _estimates(records, scores, _trials(records, [label], scores))
    found = score_interval(records.score, found)
    return pd.DataFrame(found._asdict(), index=scores.columns)


@cached
def score_error(records: Records, label: str) -> float:
    """The standard error of the mean score, which counts seeds and test samples."""
    return float(score_estimate(records, label)[0].error)


@cached
def score_estimate(records: Records, label: str) -> tuple[Estimate, int]:
    """The estimate of the mean score over clients, inside the range of its measure.

    The second result is the number of test samples that count (0: only seeds count).
    """
    scores = final_scores(records, label)
    trials = _trials(records, [label], scores)
    _, whole = _estimates(records, scores, trials)
    return score_interval(records.score, whole), _sample_count(trials)


def _verdict(low: float, high: float) -> str:
    return "gains" if low > 0 else "loses" if high < 0 else "cannot tell"


def _gains(
    records: Records,
    labels: list[str],
    gained: pd.DataFrame,
    trials: Observations | None,
) -> tuple[Estimate, Estimate]:
    """The estimates of clients' gains, in the table's order, and of the mean gain."""
    found = [_estimates(records, gained, trials)]
    for label in _own_needed(records, labels):
        scores = final_scores(records, label).reindex_like(gained)
        mine = None if trials is None else _trials(records, [label], scores)
        found.append(_estimates(records, scores, mine))
    by_client, whole = zip(*found, strict=True)
    return (
        difference_interval(records.score, *by_client),
        difference_interval(records.score, *whole),
    )


def _own_needed(records: Records, labels: list[str]) -> list[str]:
    """Both algorithms for a skewed measure, because its gain needs their intervals.

    The gain is the score of the first minus the score of the second.
    """
    return labels[:: score_of(records).sign] if is_skew(records.score) else []


def _estimates(
    records: Records, table: pd.DataFrame, trials: Observations | None
) -> tuple[Estimate, Estimate]:
    """The estimates of each client, in the order of the table, and of the mean."""
    if trials is not None:
        _, found = client_estimates(trials)
        return found, mean_estimate(trials)
    found = seeds_alone(table.to_numpy())
    # A client that diverged with one seed has no mean. One that was held out has.
    mean = mean_over_seeds(records, table).to_numpy()
    found = Estimate(mean, *(np.where(np.isnan(mean), np.nan, v) for v in found[1:]))
    by_seed = mean_over_clients(records, table).to_numpy()[:, None]
    whole = Estimate(*(value[0] for value in seeds_alone(by_seed)))
    centre = float(pd.Series(mean).mean(skipna=False))
    low, high = whole.low + centre - whole.mean, whole.high + centre - whole.mean
    return found, Estimate(np.array(centre), whole.error, low, high)


def _trials(
    records: Records, labels: list[str], table: pd.DataFrame
) -> Observations | None:
    """The outcomes of every seed (row) and client (column), None if some are missing.

    Two labels give the differences of the first and the second.
    """
    trials = _collect_observations(
        records, records.outcomes, labels, table.index, table.columns
    )
    if trials is None or set(np.unique(trials.client)) != set(table.columns):
        return None
    return trials


def _collect_observations(
    records: Records,
    outcomes: dict[tuple[str, int], Outcomes],
    labels: list[str],
    seeds: pd.Index,
    clients: pd.Index,
) -> Observations | None:
    """The outcomes of some clients with some seeds, None if there are none."""
    pieces, counted = [], True
    sign = score_of(records).sign if len(labels) > 1 else 1
    for seed in seeds:
        found = [outcomes.get((label, seed)) for label in labels]
        kept = [o for o in found if o is not None and records.score in o.measures]
        if len(kept) < len(labels):
            return None
        values = [o.measures[records.score] for o in kept]
        client, sample, measures = kept[0]
        used = np.isin(client, clients)
        step = measures.get(step_of(records.score))
        counted &= step is not None or all(v.dtype.kind == "u" for v in values)
        if step is None:
            step = 1 / np.bincount(client)[client]
        first, *others = (v.astype(float) for v in values)
        with np.errstate(invalid="ignore"):
            d = sign * (first - others[0] if others else first)
        row = (d, np.full(len(d), seed), client, sample, step)
        pieces.append([part[used] for part in row])
    if not sum(len(piece[0]) for piece in pieces):
        return None
    d, seed, client, sample, step = map(np.concatenate, zip(*pieces, strict=True))
    return Observations(d, seed, client, sample, counted, step)


def newcomers_estimate(
    records: Records, label: str, over: str | None = None
) -> tuple[Estimate, int]:
    """The estimate of newcomers' mean score, or of their gain over another algorithm.

    Returns:
        The estimate, NaN if the training of one of the two failed, and the number of
        test samples that count (0: only seeds count).
    """
    if {label, over} & failures(records).keys():
        return Estimate(*(np.array(np.nan) for _ in Estimate._fields)), 0
    if over is None:
        found, samples = _newcomers(records, [label], newcomer_scores(records, label))
        return score_interval(records.score, found), samples
    values = difference_of(records, label, over, newcomer_scores)
    found, samples = _newcomers(records, [label, over], values)
    own = [
        _newcomers(records, [one], newcomer_scores(records, one).loc[values.index])[0]
        for one in _own_needed(records, [label, over])
    ]
    return difference_interval(records.score, found, *own), samples


def _newcomers(
    records: Records, labels: list[str], values: pd.Series
) -> tuple[Estimate, int]:
    """The estimate and the number of samples for these values by seed and client."""
    by_seed = values.groupby("seed").agg(lambda v: v.mean(skipna=False))
    seeds, clients = by_seed.index, values.index.unique("client")
    trials = _collect_observations(
        records, records.newcomer_outcomes, labels, seeds, clients
    )
    if trials is not None:
        there = pd.MultiIndex.from_arrays([trials.seed, trials.client])
        used = there.isin(values.index)  # without clients whose score is undefined
        trials = trials._replace(
            **{k: v[used] for k, v in trials._asdict().items() if k != "proportion"}
        )
        return newcomer_estimate(trials), _sample_count(trials)
    found = seeds_alone(by_seed.to_numpy()[:, None])
    return Estimate(*(value[0] for value in found)), 0


def newcomer_score(records: Records, label: str, seed: int, client: int) -> Estimate:
    """The final test score of one newcomer, with arrays of shape ()."""
    score = np.array(newcomer_scores(records, label).get((seed, client), np.nan))
    places = (pd.Index([seed]), pd.Index([client]))
    trials = _collect_observations(records, records.newcomer_outcomes, [label], *places)
    if trials is None:
        return Estimate(score, np.array(np.nan), np.array(-np.inf), np.array(np.inf))
    return score_interval(records.score, mean_estimate(trials))


def _sample_count(trials: Observations | None) -> int:
    """The number of test samples. A sample that seeds share counts once."""
    return 0 if trials is None else len(np.unique(trials.sample))
