"""Training that failed is said, and is not compared, whatever its test scores are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from coterie.report import headline
from coterie.report.headlines import best_of
from coterie.scores import favourite_of, gain_of, summary
from coterie.scores.failures import failures
from support.made_records import make_records, written

LAST = 4


def ended(label: str, loss: float, seeds=(0, 1, 2)):
    """Records in which the training loss of an algorithm, the best one, ends so."""
    records = make_records(rounds=LAST)
    metrics = records.metrics.copy()
    metrics["validation_accuracy"] = metrics["test_accuracy"]
    metrics.loc[metrics["round"] == 0, "train_loss"] = 1.5
    there = (metrics["algorithm"] == label) & (metrics["round"] == LAST)
    metrics.loc[there, ["test_accuracy", "validation_accuracy"]] = 1.0
    metrics.loc[there & metrics["seed"].isin(seeds), "train_loss"] = loss
    return replace(records, metrics=metrics)


@pytest.mark.parametrize("loss", [1.6, 9e30, np.inf, np.nan])
@pytest.mark.parametrize("seeds", [(0, 1, 2), (1,)])
def test_a_loss_above_that_of_the_start_is_a_failure_which_is_not_ranked(loss, seeds):
    records = ended("ditto", loss, seeds)
    assert set(failures(records)) == {"ditto"}
    sentence = failures(records)["ditto"]
    assert f"Training of ditto failed: with seed {seeds[0]}" in sentence
    table = summary(records)
    assert table["failed"].to_dict() == {"local": False, "fedavg": False, "ditto": True}
    unsure = ["standard_error", "gain", "gain_low", "gain_high", "gaining", "losing"]
    assert table.loc["ditto", unsure].isna().all()
    assert table.loc["fedavg", unsure].notna().all()
    assert favourite_of(records) == "fedavg"  # though ditto has the best scores
    assert "ditto" not in best_of(records, table)[0]
    verdict = headline(records, table)["Verdict"]
    assert verdict.endswith(sentence)
    assert "ditto" not in verdict.removesuffix(sentence)
    gain = gain_of(records, "ditto")
    assert gain.counts() == {"gains": 0, "loses": 0, "cannot tell": 0}


@pytest.mark.parametrize("loss", [1.5, 1.5 * (1 + 1e-8), 0.1])
def test_a_loss_that_did_not_grow_is_no_failure(loss):
    records = ended("ditto", loss)
    assert failures(records) == {} and not summary(records)["failed"].any()
    assert "failed" not in headline(records, summary(records))["Verdict"]


def test_nothing_is_compared_with_training_alone_where_that_failed():
    records = ended("local", 9e30)
    table = summary(records)
    assert table["gain"].isna().all()
    answers = headline(records, table)
    assert answers["Verdict"].startswith(
        "We cannot compare anything with training alone: training alone failed."
    )
    assert "local" not in best_of(records, table)[0]


def test_a_page_says_what_failed_and_draws_no_gains_of_it(tmp_path):
    text = written(ended("ditto", 9e30), tmp_path)
    assert "ditto (failed)" in text
    assert "went from 1.5 at the start to 9e+30 at the end" in text
    everybody = written(ended("local", 9e30), tmp_path)
    assert "Training failed, so there is nothing to compare." in everybody


def test_a_method_that_finished_no_round_in_time_is_not_compared():
    records = make_records()
    rounds = records.rounds.assign(updates=12.0 * records.rounds["round"])
    rounds.loc[rounds["algorithm"] == "ditto", "updates"] = 0.0
    records = replace(records, rounds=rounds)
    assert set(failures(records)) == {"ditto"}
    assert failures(records)["ditto"].startswith("ditto finished no round")
    assert summary(records).loc["ditto", "failed"]
