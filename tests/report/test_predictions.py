"""Claims about measures, calibration and confusion in reports."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from coterie import report
from coterie.checks import InputError
from coterie.cli import tables
from coterie.report.opening.verdicts import headline
from coterie.report.sections import clients_section, measures_section
from coterie.scores.finals import score_of, undefined_for
from support.browser import Browser
from support.made_records import make_records, written

LABELS = ("local", "fedavg", "<b>ditto</b>")


def counted(n: int = 3, classes: int = 2):
    """Client c confuses a + c + 1 samples with algorithm a, with each of two seeds."""
    records = make_records(n=n, seeds=2, labels=LABELS, weights=False)
    confusion, calibration = [], []
    for a, label in enumerate(LABELS):
        for seed in range(2):
            for c in range(n):
                cell = {"algorithm": label, "seed": seed, "client": c}
                confusion += [
                    {**cell, "target": 0, "predicted": 0, "count": 5},
                    {**cell, "target": 0, "predicted": classes - 1, "count": a + c + 1},
                ]
                calibration += [
                    {**cell, "bin": 5, "count": 4, "confidence": 2.4, "right": 3},
                    {**cell, "bin": 9, "count": 2, "confidence": 1.9, "right": a // 2},
                ]
    return replace(
        records,
        confusion=pd.DataFrame(confusion),
        calibration=pd.DataFrame(calibration),
    )


def test_confusions_add_up_over_seeds_and_clients():
    records = counted()
    assert report.confusion_of(records, "fedavg", 1).to_numpy().tolist() == [
        [10, 6],
        [0, 0],
    ]
    everybody = report.confusion_of(records, "fedavg").to_numpy()
    assert everybody.tolist() == [[30, 2 * (2 + 3 + 4)], [0, 0]]


def test_reliability_is_of_all_samples_together():
    bins = report.reliability_of(counted(), "local")
    expected = {"count": [24, 12], "confidence": [0.6, 0.95], "accuracy": [0.75, 0.0]}
    for name, values in expected.items():
        np.testing.assert_allclose(bins[name], values)
    drawn = report.reliability(counted())
    assert [trace.name for trace in drawn.data][:2] == ["calibrated", "local"]
    np.testing.assert_allclose(drawn.data[1].x, [0.6, 0.95])
    page = measures_section(counted())
    # (24 x 0.15 + 12 x 0.95) / 36 = 41.7 points.
    row = re.search(r'<th scope="row">local</th><td>71.7 %</td>(.*?)</tr>', page)
    assert row is not None and row[1] == "<td>50.0 %</td><td>41.7</td>"
    with pytest.raises(InputError, match="no predictions of labels"):
        report.reliability(make_records())


def with_auc(records, undefined=()):
    """The records with an AUC, which some clients do not have with seed 1."""
    metrics = records.metrics.copy()
    metrics["test_auc"] = 0.5 + metrics["client"] / 100
    without = metrics["client"].isin(undefined) & (metrics["seed"] == 1)
    metrics.loc[without, "test_auc"] = math.nan
    return replace(records, metrics=metrics)


def test_all_measures_are_means_over_the_clients_that_have_them():
    records = with_auc(make_records(n=4), undefined=[1, 3])
    table = report.measure_summary(records)
    assert list(table) == ["accuracy", "auc", "loss"]
    assert table["auc"].to_numpy() == pytest.approx(0.5 + (0 + 2) / 2 / 100)
    assert table["accuracy"].equals(report.summary(records)["mean"])
    page = measures_section(records)
    assert "auc is undefined for client 1 and client 3." in page
    for header in ("accuracy ↑", "auc ↑", "loss ↓"):
        assert header in page
    assert "reliability" not in page and "<select" not in page


def test_a_measure_of_one_class_names_it_wherever_it_is_printed():
    records = with_auc(make_records(n=4))
    records = replace(records, task="binary", classes=("Well", "Ill"))
    page = measures_section(records)
    assert ">accuracy ↑<" in page and ">auc for Ill ↑<" in page
    records = replace(records, score="auc")
    table = report.summary(records)
    assert any("test auc for Ill" in text for text in headline(records, table).values())
    assert score_of(records).heading == "Test auc for Ill"
    with tables.out.capture() as shown:
        tables.print_summary(table, score_of(records))
    assert shown.get().strip().startswith("test auc for Ill, round")
    # Of three classes, it is a mean over all of them.
    three = replace(records, task="classification", classes=("a", "b", "c"))
    assert score_of(three).words == "test auc"


def test_a_score_that_samples_leave_undefined_is_left_out_for_all_alike():
    records = replace(with_auc(make_records(n=4), undefined=[1]), score="auc")
    assert undefined_for(records) == [1]
    table = report.summary(records)
    assert table["mean"].to_numpy() == pytest.approx(0.5 + (0 + 2 + 3) / 3 / 100)
    assert "For 1, the test auc is undefined, for example" in clients_section(records)


def test_a_score_that_one_algorithm_lacks_is_not_left_out():
    records = replace(with_auc(make_records(n=4)), score="auc")
    failed = records.metrics["algorithm"].eq("ditto") & records.metrics["client"].eq(2)
    last = failed & (records.metrics["round"] == records.metrics["round"].max())
    records.metrics.loc[last, "test_auc"] = math.nan
    assert undefined_for(records) == []
    means = report.summary(records)["mean"]
    assert math.isnan(means["ditto"]) and np.isfinite(means["fedavg"])


def test_an_accuracy_that_is_no_number_is_never_left_out():
    records = make_records(n=4)
    records.metrics.loc[records.metrics["client"] == 1, "test_accuracy"] = math.nan
    assert undefined_for(records) == []
    assert report.summary(records)["mean"].isna().all()


def test_a_study_without_more_than_a_score_has_no_such_section():
    assert measures_section(make_records()) == ""
    assert measures_section(make_records(task="regression")) == ""


def test_many_classes_are_left_to_the_table(tmp_path):
    page = measures_section(counted(classes=31))
    assert "Confusions of 31 classes are in confusion.csv." in page
    assert "<select" not in page


def test_a_page_shows_counts_with_names_that_are_text(tmp_path):
    page = written(counted(), tmp_path)
    assert '<option value="2" selected>&lt;b&gt;ditto&lt;/b&gt;</option>' in page
    assert '<option value="1">client 0</option>' in page
    shown = page[page.index('<div id="counts">') : page.index("counts-data")]
    # The last algorithm, all clients together: 3 + 4 + 5 for each of two seeds.
    assert "<td>30</td><td>24</td><td>55.6 %</td>" in shown
    assert "<td>0</td><td>0</td><td>–</td>" in shown


@pytest.mark.browser
def test_lists_choose_whose_counts_are_shown(browser: Browser, tmp_path: Path) -> None:
    path = report.write_report(counted(), tmp_path / "report.html")
    probe = """
    const lists = all("select[data-counts]");
    const cells = () => all("#counts tbody tr:first-child td")
      .map((cell) => cell.textContent).join(" ");
    const before = cells();
    lists[0].value = "1"; lists[1].value = "3";
    lists[1].dispatchEvent(new Event("change"));
    return [before, cells()]"""
    assert browser.seen(path, probe) == ["30 24 55.6 %", "10 8 55.6 %"]
    assert 'id="reliability-figure"' in browser.document()
