"""Numbers from records equal plain loops."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from coterie import report
from coterie.records import Records
from coterie.report import tables
from coterie.scores import gain_of
from support.made_records import ALGORITHMS, make_records, with_outcomes, written


def looped(records: Records, label: str) -> dict[str, float]:
    """The summary of one algorithm, written with plain loops."""
    table = records.metrics
    table = table[(table["algorithm"] == label) & (table["round"] == 4)]
    by_client: dict[int, list[float]] = {}
    by_seed: dict[int, list[float]] = {}
    for row in table.itertuples():
        by_client.setdefault(row.client, []).append(row.test_accuracy)
        by_seed.setdefault(row.seed, []).append(row.test_accuracy)
    means = {client: sum(v) / len(v) for client, v in by_client.items()}
    seed_means = [sum(v) / len(v) for v in by_seed.values()]
    one = records.clients[records.clients["seed"] == 0]
    size = dict(zip(one["client"], one["train"], strict=True))
    weighted = sum(size[c] * m for c, m in means.items()) / sum(size.values())
    centre = sum(seed_means) / len(seed_means)
    variance = sum((m - centre) ** 2 for m in seed_means) / (len(seed_means) - 1)
    ranked = sorted(means.values())
    return {
        "mean": sum(means.values()) / len(means),
        "standard_error": (variance / len(seed_means)) ** 0.5,
        "weighted_mean": weighted,
        "worst_client": ranked[0],
        "worst_decile": (ranked[0] + ranked[1]) / 2,
    }


def test_summary_equals_a_plain_loop() -> None:
    records = make_records()
    table = report.summary(records)
    assert list(table.index) == list(ALGORITHMS)
    for label in ALGORITHMS:
        for name, value in looped(records, label).items():
            assert table.loc[label, name] == pytest.approx(value), (label, name)
    assert list(table["gradients"]) == [160 * 12 * 4] * 3
    assert list(table["bytes"]) == [0, 4000 * 12 * 4, 2 * 4000 * 12 * 4]


def test_a_client_gains_or_loses_beyond_its_interval_only() -> None:
    records = make_records(n=4, seeds=3)
    right = np.zeros((3, 4, 17))
    right[..., :8] = 1
    more = right.copy()
    more[:, 0, 8:] = 1  # nine of seventeen patients
    more[:, 1, 8] = 1  # one
    more[:, 2, :7] = 0  # seven are lost
    records = with_outcomes(records, {"local": right, "fedavg": right, "ditto": more})
    gain = gain_of(records, "ditto")
    assert list(gain.clients["verdict"]) == [
        "gains",
        "cannot tell",
        "loses",
        "cannot tell",
    ]
    assert gain.clients["mean"].to_numpy() == pytest.approx(
        [9 / 17, 1 / 17, -7 / 17, 0]
    )
    assert gain.samples == 4 * 17
    row = report.summary(records).loc["ditto"]
    assert list(row[["gaining", "losing", "cannot_tell"]]) == [1, 1, 2]
    assert row["gain"] == pytest.approx(3 / 68)
    titles = [
        button.args[1]["title.text"]
        for button in report.gains(records).layout.updatemenus[0].buttons
    ]
    assert "fedavg: 0 gain, 0 lose, 4 not sure" in titles[0]
    assert "ditto: 1 gain, 1 lose, 2 not sure" in titles[1]
    same = gain_of(records, "fedavg")
    assert (same.mean, same.verdict) == (0, "cannot tell")


def test_seeds_that_share_patients_do_not_make_them_more() -> None:
    """Five seeds agree; only the patients say how sure the gain is."""
    rng = np.random.default_rng(0)
    right = (rng.random((1, 4, 17)) < 0.5).repeat(5, 0).astype(float)
    more = np.where(rng.random((1, 4, 17)) < 0.08, 1.0, right)
    records = make_records(n=4, seeds=5)
    records = with_outcomes(records, {"local": right, "fedavg": right, "ditto": more})
    d = (more - right)[0]
    by_hand = (d.var(1, ddof=1) / 17).sum() ** 0.5 / 4
    gain = gain_of(records, "ditto")
    assert gain.error == pytest.approx(by_hand)
    bare = replace(records, outcomes={})
    assert gain_of(bare, "ditto").error == pytest.approx(0)
    assert gain_of(bare, "ditto").samples == 0


def test_the_last_round_counts_and_not_the_best() -> None:
    records = make_records()
    better = records.metrics.copy()
    better.loc[better["round"] == 2, "test_accuracy"] = 1.0
    changed = report.summary(replace(records, metrics=better))
    pd.testing.assert_frame_equal(changed, report.summary(records))


def test_worst_decile_of_21_clients_is_the_mean_of_the_worst_three() -> None:
    records = make_records(n=21, task="regression")
    last = records.metrics[records.metrics["round"] == 4]
    loss = last[last["algorithm"] == "ditto"].groupby("client")["test_loss"].mean()
    row = report.summary(records).loc["ditto"]
    assert row["worst_decile"] == pytest.approx(loss.nlargest(3).mean())
    assert row["worst_client"] == pytest.approx(loss.max())


def test_a_lower_loss_is_a_gain_in_regression() -> None:
    records = make_records(task="regression", spread=0.0)
    last = records.metrics[records.metrics["round"] == 4]
    table = last.pivot_table("test_loss", "client", "algorithm")
    gain = gain_of(records, "ditto")
    better = table["ditto"] < table["local"]
    assert better.mean() == 0.5
    assert list(gain.clients["verdict"]) == [
        "gains" if more else "loses" for more in better
    ]


def test_splits_drawn_anew_count_with_the_sizes_and_clusters_of_their_seed(
    tmp_path: Path,
) -> None:
    records = make_records(seeds=2)
    clients = records.clients.copy()
    second = clients["seed"] == 1
    clients.loc[second, "train"] = np.arange(1, 13)
    clients.loc[second, "cluster"] = 1 - clients.loc[second, "cluster"]
    anew = replace(records, clients=clients)
    last = records.metrics[records.metrics["round"] == 4]
    last = last[last["algorithm"] == "ditto"].merge(clients, on=["seed", "client"])
    means = [
        np.average(mine["test_accuracy"], weights=mine["train"])
        for _, mine in last.groupby("seed")
    ]
    row = report.summary(anew).loc["ditto"]
    assert row["weighted_mean"] == pytest.approx(np.mean(means))
    lines = {trace.name: list(trace.y) for trace in report.partners(anew).data}
    assert lines["ditto, inside"] == [5] * 5
    assert "split anew for every seed" in written(anew, tmp_path)


def test_scores_at_equal_cost_are_those_before_the_budget_is_spent() -> None:
    records = make_records()
    # With 12 clients and 4 rounds fedavg sends 192,000 bytes and ditto twice as many,
    # so ditto counts with round 2; gradients are equal for all.
    budget, scores = tables.at_equal_cost(records, "bytes")
    assert budget == 192_000
    table = records.metrics
    for label, t in (("local", 4), ("fedavg", 4), ("ditto", 2)):
        mine = table[(table["algorithm"] == label) & (table["round"] == t)]
        assert scores[label] == pytest.approx(mine["test_accuracy"].mean())
    budget, scores = tables.at_equal_cost(records, "gradients")
    assert budget == 160 * 12 * 4
    assert scores.to_dict() == pytest.approx(report.summary(records)["mean"].to_dict())


def test_clients_without_test_samples_are_left_out() -> None:
    records = make_records()
    clients, table = records.clients.copy(), records.metrics.copy()
    clients.loc[clients["client"] == 5, "test"] = 0
    table.loc[table["client"] == 5, "test_accuracy"] = np.nan
    result = report.summary(replace(records, clients=clients, metrics=table))
    last = table[(table["round"] == 4) & (table["client"] != 5)]
    expected = last.groupby("algorithm")["test_accuracy"].mean()
    for label in ALGORITHMS:
        assert result.loc[label, "mean"] == pytest.approx(expected[label])
