"""What the page says, of usual and of unusual studies."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from coterie import report
from coterie.checks import InputError
from coterie.records import GroupLabels, Snapshots
from coterie.scores import gain_of
from coterie.types import ALONE, EVERYBODY
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
    assert "cannot tell the two apart" in page


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
    records = make_records(labels=("fedavg", "ditto"), seeds=2)
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
    with pytest.raises(ValueError, match="no results yet"):
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


def test_a_study_without_test_samples_or_costs_is_reported(tmp_path: Path) -> None:
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
    usual = {"labels": ("local", "ditto"), "seeds": 2}
    assert sentence in written(make_records(**usual | options), tmp_path)


def test_groups_of_many_clients_are_a_table_by_size(tmp_path: Path) -> None:
    records = make_records(n=230, labels=("local", "ditto"), weights=False, rounds=1)
    member = np.minimum(np.arange(230) // 9, 24)  # 24 groups of nine, and one of 14
    uses = np.where(np.arange(230) == 0, ALONE, member)
    labels = GroupLabels(np.array([1]), member[None], uses[None], np.ones(230))
    groups = {("ditto", seed): labels for seed in range(3)}
    page = written(replace(records, groups=groups), tmp_path)
    table = page[page.index("Groups of ditto at the end, with seed 0") :]
    rows = re.findall(r'<th scope="row">([^<]*)</th>(.*?)</tr>', table)[:21]
    cells = [[name, *re.findall("<td[^>]*>([^<]*)</td>", row)] for name, row in rows]
    assert cells[0] == ["1", "14", "14", "0"]
    assert cells[1] == ["2", "9", "8", "1"]
    assert cells[-1] == ["5 more", "45", "45", "0"]
    # A member uses all others of its group, and the first one nobody.
    others = (14 * 13 + 24 * 9 * 8 - 8) / 230
    assert f"a client of ditto learns on average from {others:.1f} others" in page


@pytest.mark.parametrize("clusters", [0, 3])
def test_partners_of_labels_are_those_of_their_matrix(clusters: int) -> None:
    records = make_records(labels=("ditto",), seeds=1, clusters=clusters)
    rng = np.random.default_rng(0)
    member = rng.integers(ALONE, 3, (4, 12))
    some = rng.integers(0, 3, (4, 12))
    uses = np.where(some == 0, ALONE, np.where(some == 1, EVERYBODY, member))
    labels = GroupLabels(np.arange(4), member, uses, np.ones(12))
    matrices = np.stack([labels.weights(j) for j in range(4)])
    snapshots = {("ditto", 0): Snapshots(np.arange(4), matrices)}
    expected = report.partner_counts(replace(records, weights=snapshots))
    found = replace(records, weights={}, groups={("ditto", 0): labels})
    pd.testing.assert_frame_equal(report.partner_counts(found), expected)


@pytest.mark.parametrize("first", ["fedavg", "ditto"])
def test_the_matrix_opens_on_the_algorithm_that_is_shown_above(
    first: str, tmp_path: Path
) -> None:
    records = make_records()
    best = (records.metrics["algorithm"] == first).astype(float)
    metrics = records.metrics.assign(validation_accuracy=best)
    page = written(replace(records, metrics=metrics), tmp_path)
    (seen,) = re.findall(r'<figure id="(collaboration-\S+)"[^>]*?>(?<! hidden>)', page)
    chosen = re.findall(r"<option value=\"(\S+)\" selected>([^<]+)</option>", page)
    labels = {value: name for value, name in chosen if value.startswith("collab")}
    assert labels == {seen.removesuffix("-0"): first}
    assert ("0", "0") in chosen  # the first seed
    wanted = f"Collaboration matrix of {first}, seed 0"
    assert re.search(f'id="{seen}"[^>]*aria-label="{wanted}', page)


def test_a_seed_without_matrices_is_said_and_another_algorithm_opens(
    tmp_path: Path,
) -> None:
    records = make_records()
    kept = {key: value for key, value in records.weights.items() if key[0] != "ditto"}
    del kept["fedavg", 1]
    page = written(replace(records, weights=kept), tmp_path)
    assert '<option value="collaboration-0" selected>fedavg</option>' in page
    assert '<p id="collaboration-0-1" class="matrix" hidden>Not recorded.</p>' in page


def test_every_client_has_a_row_where_clusters_are_unknown(tmp_path: Path) -> None:
    records = replace(make_records(n=3, clusters=0), names=("Chur", "<b>", "Bern"))
    page = written(records, tmp_path)
    table = page[page.index('id="clients-2"') :]
    assert "client-table" in table and "cluster unknown" not in page
    rows = re.findall(r'<th scope="row">([^<]*)</th>(.*?)</tr>', table)
    assert [name for name, _ in rows] == ["Chur", "&lt;b&gt;", "Bern"]
    found = report.client_summary(records, "ditto").loc["Chur"]
    cells = re.findall("<td[^>]*>(.*?)</td>", rows[0][1])
    assert cells[3] == f"{100 * found['score']:.1f} %"
    assert cells[4] == f"{100 * found['gain']:+.1f} points"
    ends = f"{100 * found['low']:+.1f} to {100 * found['high']:+.1f} points"
    assert cells[5:] == [ends, found["verdict"]]


def test_the_rows_of_clients_are_their_samples_scores_and_gains() -> None:
    records = make_records(n=4, clusters=2)
    table = report.client_summary(records, "ditto")
    assert list(table.index) == ["client 0", "client 2", "client 1", "client 3"]
    last = records.metrics[records.metrics["round"] == 4]
    means = last.pivot_table("test_accuracy", "client", "algorithm")
    np.testing.assert_allclose(table["score"], means["ditto"].loc[[0, 2, 1, 3]])
    gained = (means["ditto"] - means["local"]).loc[[0, 2, 1, 3]]
    np.testing.assert_allclose(table["gain"], gained)
    own = gain_of(records, "ditto").clients.loc[[0, 2, 1, 3]]
    for name in ("low", "high", "verdict"):
        assert list(table[name]) == list(own[name])
    sizes = records.clients.query("seed == 0").set_index("client")
    assert list(table["train"]) == list(sizes["train"].loc[[0, 2, 1, 3]])
    assert "gain" not in report.client_summary(records, "local")


def test_a_client_without_a_score_has_a_row_without_it(tmp_path: Path) -> None:
    records = make_records(n=3, clusters=0, labels=("local", "ditto"), weights=False)
    clients = records.clients.assign(
        test=records.clients["test"].where(records.clients["client"] != 1, 0)
    )
    page = written(replace(records, clients=clients), tmp_path)
    *_, row = re.findall(r'<th scope="row">client 1</th>(.*?)</tr>', page)
    assert row.endswith("<td>0</td><td>–</td>" + 3 * "<td>–</td>")


def test_a_figure_is_saved_as_a_page_and_as_nothing_else(tmp_path: Path) -> None:
    figure = report.spread(make_records(n=3))
    path = report.write_figure(figure, tmp_path / "new" / "spread.html")
    text = path.read_text("utf-8")
    assert "<title>Final scores of the clients</title>" in text
    assert "default-src 'none'" in text
    with pytest.raises(InputError, match=r"must end in \.html, but is .*spread\.png"):
        report.write_figure(figure, tmp_path / "spread.png")


def test_ten_thousand_clients_make_a_small_page(tmp_path: Path) -> None:
    records = make_records(n=10_000, rounds=1, seeds=2, weights=False)
    page = written(records, tmp_path)
    assert len(page) < 200_000
    assert "client 9999" not in page
