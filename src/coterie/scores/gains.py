"""How much one algorithm is better than another, and how sure that is.

Algorithms are paired by seed, client and test sample; `intervals` has the method. Where
the score has no outcome of single samples (a measure of a client as a whole), or where
a run did not end, seeds alone count, and `samples` is 0.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from ..records import Records
from .finals import (
    alone_of,
    difference_of,
    final_scores,
    over_clients,
    over_seeds,
    score_of,
    without_rounding,
)
from .intervals import Estimate, Trials, client_estimates, mean_estimate, seeds_alone

VERDICTS = ("gains", "loses", "cannot tell")


class Gain(NamedTuple):
    """The mean over clients with its 95 per cent interval, and each client's own."""

    mean: float
    error: float  # standard error
    low: float
    high: float
    seeds: int
    samples: int  # test samples that are counted, of all clients; 0: seeds alone
    # By client: mean, error, low, high and verdict, which is none where it is no number
    clients: pd.DataFrame

    @property
    def verdict(self) -> str:
        """Whether the mean is above 0, below 0, or neither beyond its interval."""
        return _verdict(self.low, self.high)

    def who(self, verdict: str) -> list[int]:
        """The clients that have this verdict."""
        return self.clients.index[self.clients["verdict"] == verdict].tolist()

    def counts(self) -> dict[str, int]:
        """How many clients have each verdict."""
        found = self.clients["verdict"].value_counts()
        return {verdict: int(found.get(verdict, 0)) for verdict in VERDICTS}


def gain_of(records: Records, label: str, over: str | None = None) -> Gain:
    """How much better an algorithm is than another, by default training alone.

    Positive is better, whichever way the score points.

    Raises:
        InputError: where there is no `local` to compare with.
    """
    over = alone_of(records) if over is None else over
    gained = difference_of(records, label, over, final_scores)
    trials = _trials(records, [label, over], gained)
    by_client, whole = _estimates(records, gained, trials)
    alone = over_seeds(records, final_scores(records, over).loc[gained.index])
    table = pd.DataFrame(by_client._asdict(), index=gained.columns)
    table["mean"] = without_rounding(table["mean"], alone.reindex(table.index))
    judged = zip(table["mean"], table["low"], table["high"], strict=True)
    table["verdict"] = [
        "" if np.isnan(mean) else "cannot tell" if mean == 0 else _verdict(low, high)
        for mean, low, high in judged
    ]
    mean, error, low, high = (float(value) for value in whole)
    return Gain(mean, error, low, high, len(gained), _counted(trials), table)


def client_scores(
    records: Records, label: str, seed: int | None = None
) -> pd.DataFrame:
    """Final test scores of clients with 95 per cent intervals: mean, error, low, high.

    Args:
        records: of the study.
        label: of the algorithm.
        seed: None takes means over all seeds; of one seed, test samples alone count.
    """
    scores = final_scores(records, label)
    if seed is not None:
        scores = scores[scores.index == seed].dropna(axis=1)
    found, _ = _estimates(records, scores, _trials(records, [label], scores))
    return pd.DataFrame(found._asdict(), index=scores.columns)


def score_error(records: Records, label: str) -> float:
    """The standard error of the mean score over clients, of seeds and test samples."""
    scores = final_scores(records, label)
    _, whole = _estimates(records, scores, _trials(records, [label], scores))
    return float(whole.error)


def _verdict(low: float, high: float) -> str:
    return "gains" if low > 0 else "loses" if high < 0 else "cannot tell"


def _estimates(
    records: Records, table: pd.DataFrame, trials: Trials | None
) -> tuple[Estimate, Estimate]:
    """How sure each client's mean is, in the order of the table, and that of all."""
    if trials is not None:
        _, found = client_estimates(trials)
        return found, mean_estimate(trials)
    found = seeds_alone(table.to_numpy())
    # A client that diverged with one seed has no mean, one that was held out has.
    mean = over_seeds(records, table).to_numpy()
    found = Estimate(mean, *(np.where(np.isnan(mean), np.nan, v) for v in found[1:]))
    by_seed = over_clients(records, table).to_numpy()[:, None]
    whole = Estimate(*(value[0] for value in seeds_alone(by_seed)))
    centre = float(pd.Series(mean).mean(skipna=False))
    low, high = whole.low + centre - whole.mean, whole.high + centre - whole.mean
    return found, Estimate(np.array(centre), whole.error, low, high)


def _trials(records: Records, labels: list[str], table: pd.DataFrame) -> Trials | None:
    """The outcomes of every seed and client of a table; None where some are missing.

    Args:
        records: of the study.
        labels: one algorithm, or two whose difference is taken.
        table: one row per seed, one column per client.
    """
    if table.empty:
        return None
    pieces, proportion = [], True
    sign = score_of(records).sign if len(labels) > 1 else 1
    for seed in table.index:
        found = [records.outcomes.get((label, seed)) for label in labels]
        if any(o is None or records.score not in o.measures for o in found):
            return None
        kept = [o for o in found if o is not None]
        values = [o.measures[records.score] for o in kept]
        proportion &= all(v.dtype.kind == "u" for v in values)
        first, *others = (v.astype(float) for v in values)
        client, sample = kept[0].client, kept[0].sample
        used = np.isin(client, table.columns)
        with np.errstate(invalid="ignore"):
            d = sign * (first - others[0] if others else first)
        row = (d, np.full(len(d), seed), client, sample)
        pieces.append([part[used] for part in row])
    d, seed, client, sample = (np.concatenate(p) for p in zip(*pieces, strict=True))
    if set(np.unique(client)) != set(table.columns):
        return None
    return Trials(d, seed, client, sample, proportion)


def _counted(trials: Trials | None) -> int:
    """How many test samples there are; one that seeds share counts once."""
    return 0 if trials is None else len(np.unique(trials.sample))
