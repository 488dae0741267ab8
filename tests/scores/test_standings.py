"""Claims about ranks: which algorithms are best, and which are like the best."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from coterie.checks import InputError
from coterie.scores.finals import by_measure
from coterie.scores.summaries import standings
from support.made_records import make_records, right_samples, with_outcomes
from support.seed_records import records_of_seeds


def test_a_mean_has_students_interval_over_seeds_where_samples_are_not_known():
    records = records_of_seeds(local=[0.6, 0.6, 0.6], fedavg=[0.70, 0.72, 0.74])
    row = standings(records).loc["fedavg"]
    half = 4.302653 * 0.02 / np.sqrt(3)  # t of two degrees of freedom
    assert row["mean"] == pytest.approx(0.72)
    assert row["low"] == pytest.approx(0.72 - half, abs=1e-7)
    assert row["high"] == pytest.approx(0.72 + half, abs=1e-7)
    assert (row["seeds"], row["samples"]) == (3, 0)


def test_pairs_decide_and_not_overlapping_intervals():
    """Both scores vary by seed, but the difference is always the same."""
    records = records_of_seeds(local=[0.5, 0.6, 0.7], fedavg=[0.52, 0.62, 0.72])
    table = standings(records)
    assert table.loc["local", "high"] > table.loc["fedavg", "low"]
    assert table["best"].to_dict() == {"local": False, "fedavg": True}
    assert not table["like_best"].any()


def test_equal_means_are_both_best_and_a_difference_that_may_be_zero_is_like_it():
    records = records_of_seeds(
        local=[0.70, 0.72, 0.74], fedavg=[0.74, 0.70, 0.72], ditto=[0.69, 0.72, 0.71]
    )
    table = standings(records)
    assert table["best"].tolist() == [True, True, False]
    assert table["like_best"].tolist() == [False, False, True]


def test_with_one_seed_and_no_samples_nothing_can_be_told_from_the_best():
    table = standings(records_of_seeds(local=[0.5], fedavg=[0.9]))
    assert table["best"].tolist() == [False, True]
    assert table["like_best"].tolist() == [True, False]
    assert np.isinf(table["low"]).all()


def test_outcomes_of_samples_tell_methods_apart_with_one_seed():
    records = make_records(n=4, seeds=1, labels=("local", "fedavg"))
    measured = {
        "local": right_samples(samples=200)[:1],
        "fedavg": right_samples(40, 40, 40, 40, samples=200)[:1],
    }
    table = standings(with_outcomes(records, measured))
    assert table["best"].tolist() == [False, True]
    assert not table["like_best"].any()
    assert table["samples"].tolist() == [800, 800]


def test_oracles_failed_training_and_unfinished_algorithms_have_no_rank():
    records = records_of_seeds(
        local=[0.5, 0.5], told=[0.9, 0.9], broken=[0.8, 0.8], early=[0.7, 0.7]
    )
    metrics = records.metrics
    of = metrics["algorithm"]
    last = metrics["round"] == metrics["round"].max()
    metrics.loc[(of == "broken") & last, "train_loss"] = 99.0
    records = replace(
        records, metrics=metrics[~((of == "early") & last)], oracles=("told",)
    )
    table = standings(records)
    assert table["ranked"].to_dict() == {
        "local": True,
        "told": False,
        "broken": False,
        "early": False,
    }
    assert table["best"].tolist() == [True, False, False, False]
    assert np.isinf(table.loc["broken", "high"])


def test_a_missing_seed_leaves_the_pairs_of_the_others():
    records = records_of_seeds(local=[0.5, 0.6, 0.7], fedavg=[0.52, 0.62, 0.9])
    gone = (records.metrics["algorithm"] == "fedavg") & (records.metrics["seed"] == 2)
    table = standings(replace(records, metrics=records.metrics[~gone]))
    assert table["seeds"].tolist() == [3, 2]
    # The mean of its two seeds is lower, but with these it was ahead.
    assert table.loc["local", "best"]
    assert table.loc["fedavg", "like_best"]


def test_another_measure_ranks_by_its_own_direction():
    records = make_records()
    other = by_measure(records, "loss")
    assert (other.score, other.higher_is_better) == ("loss", False)
    means = standings(other)
    assert means.loc[means["best"], "mean"].iloc[0] == means["mean"].min()
    assert by_measure(records, "accuracy") is records


def test_a_measure_that_is_not_there_or_has_no_direction_is_refused():
    records = make_records()
    with pytest.raises(InputError, match=r"`measure` must be one of accuracy, loss, g"):
        by_measure(records, "auc")
    own = replace(records, metrics=records.metrics.assign(test_cost=1.0))
    with pytest.raises(InputError, match="'cost' is a measure of your own"):
        by_measure(own, "cost")
