"""What the page says, of usual and of unusual studies."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coterie import report
from support.made_records import Fetches, make_records, usual_page, written


def test_clear_lead_is_marked_and_noise_is_not(tmp_path: Path) -> None:
    records = make_records(labels=("local", "ditto"), spread=0.0, weights=False)
    ditto = records.metrics["algorithm"] == "ditto"
    clear = records.metrics.copy()
    clear.loc[ditto, "test_accuracy"] += 0.01 * (1 + clear.loc[ditto, "seed"])
    page = written(replace(records, metrics=clear), tmp_path)
    assert page.count('<td class="best">') == 1
    noisy = records.metrics.copy()
    local = noisy.loc[~ditto, "test_accuracy"].to_numpy()
    noise = np.array([0.1, -0.1, 0.001])[noisy.loc[ditto, "seed"]]
    noisy.loc[ditto, "test_accuracy"] = local + noise
    page = written(replace(records, metrics=noisy), tmp_path)
    assert '<td class="best">' not in page
    assert "cannot be told apart" in page


def test_labels_and_configuration_are_escaped(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    records = make_records(labels=("local", evil))
    study = {**records.study, "name": evil, "data": {"name": evil, "note": evil}}
    page = written(replace(records, study=study, versions={"a": evil}), tmp_path)
    assert "alert(1)</script>" not in page
    assert "<img" not in page
    parser = Fetches()
    parser.feed(page)
    plain = Fetches()
    plain.feed(written(make_records(labels=("local", "ditto")), tmp_path))
    assert parser.tags == plain.tags


def test_the_page_fetches_nothing() -> None:
    page = usual_page()
    parser = Fetches()
    parser.feed(page)
    assert parser.found
    assert all(address.startswith("#") for address in parser.found)
    assert "default-src 'none'" in page
    assert not re.search(r"https?://|@import|url\(", page)


def test_an_unfinished_write_leaves_the_old_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")

    def refuse(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="disk full"):
        report.write_report(make_records(n=2, rounds=1), path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]
    assert path.read_text() == "old"


def test_the_report_shows_scores_at_equal_cost() -> None:
    page = usual_page()
    assert "at equal cost" in page
    assert "after 192 kB" in page


def test_without_local_the_report_says_so(tmp_path: Path) -> None:
    records = make_records(labels=("fedavg", "ditto"))
    assert report.summary(records)[["gain", "gaining"]].isna().all(axis=None)
    assert "No local baseline was run" in written(records, tmp_path)
    with pytest.raises(ValueError, match="named 'local'"):
        report.gains(records)


def test_an_interrupted_study_uses_what_is_there(tmp_path: Path) -> None:
    records = make_records(weights=False)
    table = records.metrics
    late = (table["algorithm"] == "ditto") & (table["seed"] == 2)
    metrics = table[~(late & (table["round"] > 1))]
    partial = replace(records, metrics=metrics)
    page = written(partial, tmp_path)
    assert "This study is not complete" in page
    assert "ditto, seed 2: up to round 1" in page
    row = report.summary(partial).loc["ditto"]
    two = report.summary(replace(records, metrics=table[~late])).loc["ditto"]
    assert row["seeds"] == 2
    assert row["mean"] == two["mean"]
    early = report.summary(replace(records, metrics=table[table["round"] < 3]))
    assert list(early["gradients"]) == [160 * 12 * 2] * 3
    absent = replace(records, metrics=table[table["algorithm"] != "ditto"])
    assert "ditto, seed 0: not there" in written(absent, tmp_path)
    assert "not complete" not in usual_page()


def test_nothing_recorded_is_refused(tmp_path: Path) -> None:
    records = make_records(n=2)
    empty = replace(records, metrics=records.metrics.iloc[:0])
    with pytest.raises(ValueError, match="nothing to report"):
        report.write_report(empty, tmp_path / "report.html")


def test_a_diverged_client_is_not_averaged_away(tmp_path: Path) -> None:
    records = make_records(task="regression", weights=False)
    table = records.metrics.copy()
    bad = (table["algorithm"] == "ditto") & (table["client"] == 3)
    table.loc[bad & (table["round"] > 1), "test_loss"] = np.nan
    diverged = replace(records, metrics=table)
    row = report.summary(diverged).loc["ditto"]
    assert row[["mean", "weighted_mean", "worst_client", "worst_decile"]].isna().all()
    page = written(diverged, tmp_path)
    assert "Scores of ditto are not all finite numbers" in page
    assert "not comparable" in page


def test_a_study_without_test_samples_or_costs_is_still_reported(
    tmp_path: Path,
) -> None:
    records = make_records(n=3, labels=("local", "ditto"))
    clients = records.clients.assign(test=0)
    costs = records.rounds[["algorithm", "seed", "round"]]
    bare = replace(records, clients=clients, rounds=costs)
    assert report.summary(bare)[["mean", "gradients", "bytes"]].isna().all(axis=None)
    assert "No algorithm has a mean test score" in written(bare, tmp_path)
    with pytest.raises(ValueError, match=r"must be one of \['round'\]"):
        report.curves(bare, "bytes")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"weights": False}, "No algorithm of this study recorded collaboration"),
        ({"clusters": 0}, "true clusters are not known"),
        ({"seeds": 1}, "the spread over seeds is unknown"),
        ({"n": 1}, "1 client in 1 known cluster"),
        ({"n": 1, "clusters": 0, "seeds": 1, "rounds": 1}, "1 client; their true"),
        ({"task": "regression"}, "lower is better"),
        ({"labels": ("local",)}, "Only training alone was run"),
        ({"n": 201, "rounds": 1}, "Matrices of more than 200 clients are not drawn"),
        ({"clusters": 12}, "12 clients in 12 known clusters"),
        (
            {"labels": ("local", *map(str, range(9))), "n": 3, "weights": False},
            "digits",
        ),
    ],
)
def test_unusual_studies_are_reported(
    options: dict[str, object], sentence: str, tmp_path: Path
) -> None:
    usual = {"labels": ("local", "ditto")}
    assert sentence in written(make_records(**usual | options), tmp_path)


def test_ten_thousand_clients_make_a_small_page(tmp_path: Path) -> None:
    records = make_records(n=10_000, rounds=1, seeds=2, weights=False)
    page = written(records, tmp_path)
    assert len(page) < 200_000
    assert "client 9999" not in page
