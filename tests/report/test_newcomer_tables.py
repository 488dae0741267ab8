"""What tables, figures and pages say of newcomers."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tomli_w

from coterie import report
from coterie.records import Outcomes, Records
from coterie.report.sections import newcomers_section
from coterie.report.tables import newcomer_gains, newcomer_summary
from coterie.scores import summary
from coterie.scores.gains import newcomers_estimate
from support.called import called
from support.made_records import make_records, tags_of, usual_page, written
from support.newcomer_studies import TABLES
from support.refusals import refuses


def with_newcomers(records: Records, **scores: list[list[float]]) -> Records:
    """Records with two newcomers of each seed; scores by algorithm, seed, newcomer."""
    tables = []
    column = "test_loss" if records.task == "regression" else "test_accuracy"
    for label, by_seed in scores.items():
        for seed, values in enumerate(by_seed):
            table = pd.DataFrame({"client": [20 + seed, 30 + seed], column: values})
            table.insert(0, "seed", seed)
            table.insert(0, "algorithm", label)
            tables.append(table)
    study = {**records.study, "run": {**records.study["run"], "newcomers": 2}}
    return replace(records, newcomers=pd.concat(tables, ignore_index=True), study=study)


LOCAL = [[0.5, 0.6], [0.7, 0.8], [0.4, 0.6]]
FEDAVG = [[0.5, 0.7], [0.6, 0.8 + 1e-12], [0.9, 0.3]]


def test_the_table_of_newcomers_is_right_by_hand():
    records = with_newcomers(make_records(), local=LOCAL, fedavg=FEDAVG)
    table = newcomer_summary(records)
    assert table.index.tolist() == ["local", "fedavg"]
    assert table["newcomers"].tolist() == [6, 6]
    assert table["seeds"].tolist() == [3, 3]
    assert table.loc["fedavg", "mean"] == pytest.approx((0.6 + 0.7 + 0.6) / 3)
    assert table.loc["fedavg", "worst"] == 0.3
    spread = np.std([0.6, 0.7, 0.6], ddof=1) / 3**0.5
    assert table.loc["fedavg", "standard_error"] == pytest.approx(spread)
    # Two are better, two are equal up to rounding, two are worse.
    assert table.loc["fedavg", "better_than_local"] == pytest.approx(2 / 6)
    assert np.isnan(table.loc["local", "better_than_local"])


def test_in_regression_the_worst_newcomer_has_the_largest_loss():
    records = make_records(task="regression")
    table = newcomer_summary(with_newcomers(records, local=LOCAL, fedavg=FEDAVG))
    assert table.loc["fedavg", "worst"] == 0.9
    assert table.loc["fedavg", "better_than_local"] == pytest.approx(2 / 6)


def test_a_newcomers_score_that_is_no_number_is_not_averaged_away():
    broken = [[np.nan, 0.6], *FEDAVG[1:]]
    records = with_newcomers(make_records(), local=LOCAL, fedavg=broken)
    table = newcomer_summary(records)
    assert table.loc["fedavg", ["mean", "worst"]].isna().all()
    assert newcomer_gains(records, "fedavg").isna().sum() == 1


def test_samples_of_newcomers_count_beside_seeds():
    """Three seeds draw a client each, so that their spread has that of samples, too."""
    scores = {"local": [[0.5, 0.5]] * 3, "fedavg": [[0.75, 1.0], [0.5, 0.75], [1, 1]]}
    records = with_newcomers(make_records(), **scores)
    outcomes = {}
    for label, by_seed in scores.items():
        for seed, values in enumerate(by_seed):
            right = [np.arange(8) < 8 * value for value in values]
            outcomes[label, seed] = Outcomes(
                np.repeat([20 + seed, 30 + seed], 8),
                np.arange(16) + 16 * seed,
                {"accuracy": np.concatenate(right).astype(np.uint8)},
            )
    row = newcomer_summary(replace(records, newcomer_outcomes=outcomes)).loc["fedavg"]
    assert row["samples"] == 48
    assert row["gain"] == pytest.approx((0.375 + 0.125 + 0.5) / 3)
    means = np.array([0.875, 0.625, 1.0])
    seeds = means.var(ddof=1) / 3
    share = np.array([0.75, 1.0, 0.5, 0.75, 1, 1])
    samples = (share * (1 - share) / 7).sum() / 6**2
    assert row["standard_error"] == pytest.approx(max(seeds, samples) ** 0.5)
    alike = scores | {"fedavg": [[0.75, 0.75]] * 3}
    records = with_newcomers(make_records(), **alike)
    for seed in range(3):
        right = np.tile(np.arange(8) < 6, 2).astype(np.uint8)
        kept = outcomes["fedavg", seed]._replace(measures={"accuracy": right})
        outcomes["fedavg", seed] = kept
    row = newcomer_summary(replace(records, newcomer_outcomes=outcomes)).loc["fedavg"]
    # Seeds agree, but 48 samples were few.
    expected = 0.75 * 0.25 / 7 / 6
    assert row["standard_error"] == pytest.approx(expected**0.5)
    # An interval reaches at least as far as the error.
    assert row["gain_low"] == pytest.approx(row["gain"] - expected**0.5)


def test_without_training_alone_nobody_is_better_than_it(tmp_path):
    records = make_records(labels=("fedavg", "ditto"), weights=False)
    records = with_newcomers(records, fedavg=FEDAVG)
    assert newcomer_summary(records)["better_than_local"].isna().all()
    refuses("named 'local'", newcomer_gains, records, "fedavg")
    assert (
        report.newcomers(records).layout.title.text == "<b>Scores of the newcomers</b>"
    )
    assert "it trained by itself" not in written(records, tmp_path)


def held_out_at_random(records: Records) -> Records:
    """The records without client s of seed s, who was held out."""
    clients, metrics = records.clients, records.metrics
    return replace(
        records,
        clients=clients[clients["client"] != clients["seed"]],
        metrics=metrics[metrics["client"] != metrics["seed"]],
        weights={},
    )


def test_a_client_counts_by_the_seeds_with_which_it_trained(tmp_path):
    records = held_out_at_random(make_records())
    last = records.metrics[records.metrics["round"] == 4]
    sizes = records.clients[["seed", "client", "train"]]
    table = summary(records)
    for label in ("local", "fedavg", "ditto"):
        mine = last[last["algorithm"] == label].merge(sizes, on=["seed", "client"])
        by_client = mine.groupby("client")["test_accuracy"].mean()
        assert len(by_client) == 12
        by_seed = mine.groupby("seed")["test_accuracy"].mean()
        weighted = [
            np.average(some["test_accuracy"], weights=some["train"])
            for _, some in mine.groupby("seed")
        ]
        row = table.loc[label]
        assert row["mean"] == pytest.approx(by_client.mean())
        assert row["worst_client"] == pytest.approx(by_client.min())
        assert row["standard_error"] == pytest.approx(by_seed.std() / 3**0.5)
        assert row["weighted_mean"] == pytest.approx(np.mean(weighted))
        if label != "local":
            alone = last[last["algorithm"] == "local"].groupby("client")
            gained = by_client - alone["test_accuracy"].mean()
            assert row["gain"] == pytest.approx(gained.mean())
            assert row[["gaining", "losing", "cannot_tell"]].sum() == 12
    line = next(t for t in report.curves(records).data if t.name == "ditto")
    mine = records.metrics[records.metrics["algorithm"] == "ditto"]
    by_seed = mine.groupby(["round", "seed"])["test_accuracy"].mean()
    np.testing.assert_allclose(line.y, by_seed.groupby("round").mean())
    bars = next(t for t in report.gains(records).data if t.name == "ditto")
    assert np.isfinite(bars.y).all()
    assert "<td>not finite</td>" not in written(records, tmp_path)


def test_a_diverged_client_is_seen_also_where_others_are_held_out():
    records = held_out_at_random(make_records(task="regression"))
    table = records.metrics.copy()
    bad = (table["algorithm"] == "ditto") & (table["client"] == 1)
    table.loc[bad & (table["seed"] == 2) & (table["round"] > 1), "test_loss"] = np.nan
    row = summary(replace(records, metrics=table)).loc["ditto"]
    assert row[["mean", "weighted_mean", "worst_client", "worst_decile"]].isna().all()


def test_the_figure_has_a_dot_for_every_newcomer_at_its_gain():
    records = with_newcomers(make_records(), local=LOCAL, fedavg=FEDAVG)
    figure = report.newcomers(records)
    (dots,) = [trace for trace in figure.data if trace.type == "scatter"]
    np.testing.assert_allclose(dots.x, [0, 10, -10, 0, 50, -30], atol=1e-9)
    assert dots.hovertext[2] == "client 21, seed 1"
    assert figure.layout.title.text == "<b>Gain over training alone, per newcomer</b>"
    only = with_newcomers(make_records(), local=LOCAL)
    assert report.newcomers(only).layout.xaxis.title.text == "test accuracy"
    refuses("no newcomers", report.newcomers, make_records())


def test_the_report_says_who_was_held_out_only_where_somebody_was(tmp_path):
    usual = make_records(weights=False)
    records = with_newcomers(usual, local=LOCAL, fedavg=FEDAVG)
    page = written(records, tmp_path)
    assert "2 clients were held out with each seed and took no part in training" in page
    assert "Newcomers fare best with fedavg (mean test accuracy 63.3 %)" in page
    assert "; training alone gives 60.0 %." in page
    assert "<dd>14, of whom 2 are held out of training</dd>" in page
    section = page.split('<h2 id="newcomers">')[1].split("</section>")[0]
    row = re.search(r'<tr><th scope="row">fedavg</th>(.*?)</tr>', section)[1]
    cells = re.findall("<td>(.*?)</td>", row)
    half = 4.30265273 * 100 * np.std([0.05, -0.05, 0.1], ddof=1) / 3**0.5
    interval = f"{10 / 3 - half:+.1f} to {10 / 3 + half:+.1f} points"
    assert cells == ["63.3 %", "3.3 %", "30.0 %", "33.3 %", "+3.3 points", interval]
    assert "Standard errors and intervals count seeds alone" in section
    assert 'id="newcomers-figure"' in section
    assert "newcomer" not in usual_page().lower()


def test_labels_of_newcomers_are_escaped(tmp_path):
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    pages = []
    for label in (evil, "ditto"):
        records = make_records(labels=("local", label), weights=False)
        scores = {"local": LOCAL, label: FEDAVG}
        page = written(with_newcomers(records, **scores), tmp_path)
        pages.append(tags_of(page))
    assert pages[0] == pages[1]


@pytest.mark.browser
def test_a_browser_draws_the_newcomers(browser, tmp_path):
    usual = make_records(weights=False)
    records = with_newcomers(usual, local=LOCAL, fedavg=FEDAVG)
    page = report.write_report(records, tmp_path / "report.html")
    browser.open(page, height=2000)
    document = browser.document()
    drawn = document.split('<figure id="newcomers-figure"')[1].split("</figure>")[0]
    assert 'class="main-svg"' in drawn
    assert drawn.count('class="trace boxes"') == 1
    assert drawn.count('class="point"') == 6


def test_the_command_line_prints_a_second_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("COLUMNS", "80")
    Path("study.toml").write_text(tomli_w.dumps(TABLES))
    code, output, _ = called("run", "study.toml", "--quiet")
    assert code == 0
    first, second = output.split("2 newcomers, held out of training")
    assert "over local" in first and "worst" in second
    # One seed: test samples are counted.
    assert re.search(r"fedavg +\S+ ± \S+ % +\S+ % +\S+ % +\S+ ± \S+", second)
    (folder,) = Path("runs").glob("[!.]*")
    code, again, _ = called("report", str(folder))
    assert again.split("report:")[0] == output.split("report:")[0]


def test_newcomers_of_failed_training_are_shown_and_not_ranked():
    records = with_newcomers(make_records(), local=LOCAL, fedavg=FEDAVG)
    assert "fare best with fedavg" in newcomers_section(records)
    metrics = records.metrics.copy()
    ends = metrics["round"] == metrics["round"].max()
    mine = (metrics["algorithm"] == "fedavg") & ends
    metrics["train_loss"] = np.where(mine, 9e30, 1.0)
    records = replace(records, metrics=metrics)
    table = newcomer_summary(records)
    unsure = ["standard_error", "better_than_local", "gain", "gain_low", "gain_high"]
    assert table.loc["fedavg", unsure].isna().all()
    assert table.loc["fedavg", "mean"] == pytest.approx((0.6 + 0.7 + 0.6) / 3)
    assert np.isfinite(table.loc["local", "standard_error"])
    for over in (None, "local"):
        found, samples = newcomers_estimate(records, "fedavg", over)
        assert np.isnan([*found]).all() and samples == 0
    page = newcomers_section(records)
    assert "fare best with local" in page and "fedavg (failed)" in page
