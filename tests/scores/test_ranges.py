"""Intervals end where measures end, and are longer where these are skew."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coterie.models import MEASURES, RANGES
from coterie.records import Records
from coterie.scores import client_scores, gain_of
from coterie.scores.gains import newcomers_estimate
from coterie.scores.intervals import Estimate
from coterie.scores.ranges import difference_interval, is_skew, score_interval
from coterie.study.experiment import run_study
from support.made_records import make_records, with_outcomes
from support.tiny_studies import LINEAR, made


def about(mean: float, half: float) -> Estimate:
    return Estimate(
        *(np.array([v]) for v in (mean, half / 2, mean - half, mean + half))
    )


def ends(found: Estimate) -> tuple[float, float]:
    return float(found.low[0]), float(found.high[0])


def test_every_measure_of_ours_has_a_range() -> None:
    assert RANGES.keys() == MEASURES.keys()
    assert {name for name in RANGES if is_skew(name)} == {"mae", "r2", "rmse"}


def test_shares_and_their_differences_end_where_they_can() -> None:
    assert ends(score_interval("accuracy", about(0.9, 0.3))) == (pytest.approx(0.6), 1)
    assert ends(score_interval("auc", about(0.1, 0.3))) == (0, pytest.approx(0.4))
    assert ends(difference_interval("f1", about(0.5, 4.0))) == (-1, 1)
    assert ends(difference_interval("f1", about(0.5, 0.3))) == pytest.approx((0.2, 0.8))
    for free in ("loss", "mine"):
        assert ends(difference_interval(free, about(0.5, 4.0))) == (-3.5, 4.5)


def test_what_is_unknown_stays_unknown() -> None:
    unknown = about(0.5, math.inf)
    score = about(0.25, math.inf)
    for measure in ("accuracy", "r2", "rmse", "loss"):
        assert ends(score_interval(measure, unknown)) == (-math.inf, math.inf)
        own = (score, score) if is_skew(measure) else ()
        found = difference_interval(measure, unknown, *own)
        assert ends(found) == (-math.inf, math.inf)


def test_a_measure_of_ones_own_with_our_name_may_be_what_ours_cannot() -> None:
    found = score_interval("accuracy", about(90.0, 2.0))  # in per cent
    assert found.low[0] <= 90 <= found.high[0]


def test_errors_are_less_sure_the_larger_they_are() -> None:
    """The error at the far end is larger as the distance from the best value is."""
    assert ends(score_interval("rmse", about(2.0, 1.0))) == pytest.approx(
        (1, 2 + 1 * 3 / 2)
    )
    assert ends(score_interval("rmse", about(2.0, 3.0))) == pytest.approx(
        (0, 2 + 3 * 5 / 2)
    )
    # R2 of 0.6 is 0.4 from its best value.
    assert ends(score_interval("r2", about(0.6, 0.1))) == pytest.approx((0.475, 0.7))
    assert ends(score_interval("r2", about(0.6, 0.8))) == pytest.approx((-1.8, 1))


def test_a_difference_is_skew_as_its_parts_are() -> None:
    first, second, gap = about(2.0, 0.6), about(1.0, 0.8), about(1.0, 0.5)
    a, b = 0.5 * 0.6, 0.5 * 0.8  # of the difference's own width
    low = 1 - math.hypot(a, b * (1 + b / 1))
    high = 1 + math.hypot(a * (1 + a / 2), b)
    assert ends(difference_interval("mae", gap, first, second)) == pytest.approx(
        (low, high)
    )
    # R2 that are as far below 1 as these are above 0.
    first, second, gap = about(-1.0, 0.6), about(0.0, 0.8), about(-1.0, 0.5)
    found = difference_interval("r2", gap, first, second)
    assert ends(found) == pytest.approx((-high, -low))


def test_what_two_models_have_in_common_makes_no_difference_less_sure() -> None:
    """Errors of both are known badly, and their difference is known well."""
    both, gap = about(1.0, 0.9), about(0.0, 0.01)
    low, high = ends(difference_interval("rmse", gap, both, both))
    assert high == -low == pytest.approx(0.01, rel=0.01)
    assert ends(difference_interval("rmse", about(0.0, 0.0), both, both)) == (0, 0)


def test_models_without_errors_are_known_exactly() -> None:
    none = about(0.0, 0.0)
    assert ends(score_interval("rmse", none)) == (0, 0)
    assert ends(difference_interval("rmse", none, none, none)) == (0, 0)
    some = about(1.0, 0.5)
    assert ends(difference_interval("rmse", some, some, none)) == pytest.approx(
        (0.5, 1.75)
    )


def scored_by(measure: str, *, higher_is_better: bool) -> Records:
    """Two seeds, and values of samples that differ much."""
    records = make_records(n=4, seeds=2)
    metrics = records.metrics.rename(columns={"test_accuracy": f"test_{measure}"})
    records = replace(
        records, score=measure, higher_is_better=higher_is_better, metrics=metrics
    )
    rng = np.random.default_rng(0)
    values = {
        label: rng.uniform(0, 1, (2, 4, 1)) + 0.1 * rng.normal(size=(2, 4, 6))
        for label in ("local", "fedavg", "ditto")
    }
    return with_outcomes(records, values)


def test_reported_shares_end_where_they_can() -> None:
    records = scored_by("accuracy", higher_is_better=True)
    for some in (records, replace(records, outcomes={})):
        gain = gain_of(some, "ditto")
        assert gain.clients["low"].min() == -1 and gain.clients["high"].max() == 1
        assert gain.low >= -1 and gain.high <= 1
        scores = client_scores(some, "ditto")
        assert scores["low"].min() == 0 and scores["high"].max() == 1


@pytest.mark.parametrize("samples", [True, False], ids=["samples", "seeds"])
@pytest.mark.parametrize("measure", ["rmse", "r2"])
def test_reported_gains_are_skew_in_the_direction_of_errors(
    measure: str, samples: bool
) -> None:
    records = scored_by(measure, higher_is_better=measure == "r2")
    if not samples:
        records = replace(records, outcomes={})
    plain = replace(
        records,
        score="mine",
        metrics=records.metrics.rename(columns={f"test_{measure}": "test_mine"}),
        outcomes={
            key: o._replace(measures={"mine": o.measures[measure]})
            for key, o in records.outcomes.items()
        },
    )
    local, ours, gain = (
        client_scores(plain, "local"),
        client_scores(plain, "ditto"),
        gain_of(plain, "ditto").clients,
    )
    found = gain_of(records, "ditto").clients
    for i in found.index:
        distance = [
            t.loc[i, "mean"] if measure == "rmse" else 1 - t.loc[i, "mean"]
            for t in (local, ours)
        ]
        own = [t.loc[i, "high"] - t.loc[i, "mean"] for t in (local, ours)]
        half = gain.loc[i, "high"] - gain.loc[i, "mean"]
        # A gain is the error of training alone less ours.
        a, b = (half * one / math.hypot(*own) for one in own)
        high = math.hypot(a * (1 + a / distance[0]), b)
        low = math.hypot(a, b * (1 + b / distance[1]))
        assert found.loc[i, "high"] - found.loc[i, "mean"] == pytest.approx(high)
        assert found.loc[i, "mean"] - found.loc[i, "low"] == pytest.approx(low)
    assert found["mean"].to_numpy() == pytest.approx(gain["mean"].to_numpy())


def test_intervals_of_newcomers_know_where_r2_ends(tmp_path: Path) -> None:
    """With two seeds they are wide, and all the width is below."""
    methods = [{"name": name, "lr": 0.1} for name in ("local", "fedavg_finetune")]
    model = {**LINEAR["model"], "measures": ["r2"], "score": "r2"}
    study = made(
        LINEAR, model=model, algorithm=methods, newcomers=1, seeds=[0, 1], rounds=2
    )
    records = run_study(study, runs=tmp_path).records
    for some in (records, replace(records, newcomer_outcomes={})):
        found, _ = newcomers_estimate(some, "local")
        assert found.low < found.mean <= found.high <= 1
        assert found.mean - found.low > found.high - found.mean
        gain, samples = newcomers_estimate(some, "fedavg_finetune", "local")
        assert gain.low < gain.mean < gain.high
        assert (samples > 0) is (some is records)
