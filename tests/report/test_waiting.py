"""What waiting cost equals closed forms and plain loops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from coterie import report
from coterie.records import Records
from coterie.report import waiting as waits
from support.made_records import make_records, make_timed

LABELS = ("local", "fedavg", "asgd")


def scored(
    records: Records, curves: dict[str, list[float]], column: str = "test_accuracy"
) -> Records:
    """The records with these mean scores at rounds 0, 1, ... for all clients."""
    table = records.metrics.copy()
    for label, curve in curves.items():
        mine = table["algorithm"] == label
        table.loc[mine, column] = np.array(curve)[table.loc[mine, "round"]]
    return replace(records, metrics=table)


def test_idle_shares_and_paces_are_those_of_constant_durations() -> None:
    # Eleven clients take 1 s and one takes 4 s: rounds that wait take 4 s, and of their
    # 48 client seconds 11 + 4 are spent computing. Without waiting, 11 + 1/4 a second.
    table = report.wait_summary(make_timed(labels=LABELS))
    np.testing.assert_allclose(table["idle"], [0, 1 - 15 / 48, 0], rtol=1e-12)
    np.testing.assert_allclose(table["pace"], [11.25, 3, 11.25], rtol=1e-12)
    assert list(table["updates"]) == [180, 48, 180]
    assert list(table["time"]) == [16, 16, 16]


def test_delays_equal_a_plain_loop_and_their_mean_is_at_most_the_clients() -> None:
    records = make_timed(labels=LABELS, seeds=1)
    tasks = sorted(
        (4.0 * (k + 1) if i == 11 else k + 1.0, i, 4.0 * k if i == 11 else float(k))
        for i in range(12)
        for k in range(4 if i == 11 else 16)
    )
    delays = [
        1 + sum(begin < end for end, _, _ in tasks[:place])
        for place, (_, _, begin) in enumerate(tasks)
    ]
    row = report.wait_summary(records).loc["asgd"]
    assert row["mean_delay"] == pytest.approx(np.mean(delays), rel=1e-12)
    assert row["largest_delay"] == max(delays)
    assert row["mean_delay"] <= 12
    assert waits.delayed_labels(records) == ["asgd"]
    assert report.wait_summary(records).loc["fedavg", ["mean_delay"]].isna().all()


def test_time_to_the_best_score_that_all_reach() -> None:
    curves = {
        "local": [0.1, 0.2, 0.3, 0.4, 0.5],
        "fedavg": [0.1, 0.3, 0.6, 0.7, 0.7],
        "asgd": [0.1, 0.5, 0.6, 0.8, 0.4],
    }
    records = scored(make_timed(labels=LABELS), curves)
    assert waits.common_score(records) == pytest.approx(0.5)
    table = report.wait_summary(records)
    assert list(table["reached"]) == [16, 8, 4]
    assert list(table["speed_up"]) == [1, 2, 4]


def test_of_a_loss_the_lowest_that_all_reach_counts() -> None:
    records = make_timed(labels=("fedavg", "asgd"), task="regression", seeds=2)
    losses = {"fedavg": [2.0, 1.5, 1.0, 0.9, 0.8], "asgd": [2.0, 0.7, 0.6, 0.5, 0.5]}
    records = scored(records, losses, "test_loss")
    assert waits.common_score(records) == pytest.approx(0.8)
    assert list(report.wait_summary(records)["reached"]) == [16, 4]


def test_an_algorithm_without_a_score_reaches_nothing_and_sets_no_goal() -> None:
    curves = {"fedavg": [0.1, 0.2, 0.3, 0.4, 0.5], "asgd": [np.nan] * 5}
    table = report.wait_summary(scored(make_timed(labels=LABELS[1:]), curves))
    assert table.loc["fedavg", "reached"] == 16
    assert table.loc["asgd", ["reached", "speed_up"]].isna().all()


def test_who_is_as_good_at_the_start_has_no_speed_up() -> None:
    curves = {"fedavg": [0.5, 0.4, 0.4, 0.4, 0.4], "asgd": [0.1, 0.2, 0.5, 0.6, 0.6]}
    table = report.wait_summary(scored(make_timed(labels=LABELS[1:]), curves))
    assert list(table["reached"]) == [0, 8]
    assert np.isnan(table.loc["fedavg", "speed_up"])
    assert table.loc["asgd", "speed_up"] == 1


def test_seeds_that_were_interrupted_do_not_count() -> None:
    records = make_timed(labels=LABELS, seeds=2)
    late = (records.metrics["seed"] == 1) & (records.metrics["round"] > 2)
    late &= records.metrics["algorithm"] == "fedavg"
    work = records.work.copy()
    work.loc[(work["seed"] == 1) & (work["algorithm"] == "fedavg"), "idle"] *= 7
    partial = replace(records, metrics=records.metrics[~late], work=work)
    np.testing.assert_allclose(
        report.wait_summary(partial)["idle"], [0, 1 - 15 / 48, 0], rtol=1e-12
    )


def test_studies_of_rounds_have_no_time() -> None:
    records = make_records(n=2)
    assert not waits.is_timed(records)
    with pytest.raises(ValueError, match=r"needs \[time\]"):
        report.wait_summary(records)
    assert not {"time", "updates"} & set(report.summary(records).columns)


def test_the_summary_has_time_and_updates_where_they_were_recorded() -> None:
    table = report.summary(make_timed(labels=LABELS))
    assert list(table["time"]) == [16, 16, 16]
    assert list(table["updates"]) == [180, 48, 180]


def test_a_timeline_lasts_four_turns_of_the_slowest_client() -> None:
    drawn = waits.timeline_of(make_timed(labels=LABELS, rounds=20))
    assert drawn is not None
    assert drawn.until == 16
    # Client 11 takes longest; others are equal, and then their names count.
    assert drawn.clients == [11, *range(11)]
    assert drawn.spans["begin"].max() < 16
    short = waits.timeline_of(make_timed(labels=LABELS, rounds=2))
    assert short is not None
    assert short.until == 8  # all that there was


def test_a_timeline_shows_nothing_after_what_is_known_of_every_algorithm() -> None:
    records = make_timed(labels=LABELS, rounds=20, most=30, seeds=1)
    drawn = waits.timeline_of(records)
    assert drawn is not None
    # 12 tasks begin at 0 and 11 at each of 1 and 2: the 30th of those that do not wait
    # begins at 2.
    assert drawn.until == 2
    counts = drawn.spans.groupby("algorithm").size()
    assert counts.to_dict() == {"local": 23, "fedavg": 12, "asgd": 23}


def test_of_a_round_under_way_nothing_is_recorded_and_nothing_drawn() -> None:
    # Rounds take 4 s and the study ends after 5: the second round has begun.
    records = make_timed(labels=("fedavg",), rounds=5, period=1.0, seeds=1)
    assert len(records.spans) == 12
    assert records.work["busy"].sum() == 15 + 12
    drawn = waits.timeline_of(records)
    assert drawn is not None
    assert drawn.until == 4


def test_who_never_computed_has_a_row_without_bars() -> None:
    records = make_timed(labels=("asgd",), durations=(1.0, 2.0, 3.0), seeds=1)
    # Client 2 was never asked.
    work = records.work.copy()
    work.loc[work["client"] == 2, ["busy", "idle", "tasks"]] = [0.0, 16.0, 0]
    spans = records.spans[records.spans["client"] != 2]
    drawn = waits.timeline_of(replace(records, spans=spans, work=work))
    assert drawn is not None
    assert drawn.clients == [1, 0, 2]


def test_training_alone_has_no_delays() -> None:
    records = make_timed(labels=LABELS, seeds=1)
    also = records.delays.assign(algorithm="local")
    table = report.wait_summary(
        replace(records, delays=pd.concat([records.delays, also]))
    )
    assert np.isnan(table.loc["local", "mean_delay"])
    assert table.loc["asgd", "mean_delay"] > 1


def test_of_a_crowd_a_timeline_shows_30_from_the_slowest_to_the_fastest() -> None:
    durations = [1 + ((7 * i) % 100) / 100 for i in range(100)]
    records = make_timed(durations=durations, labels=("asgd",), weights=False, seeds=1)
    drawn = waits.timeline_of(records)
    assert drawn is not None
    shown = [durations[client] for client in drawn.clients]
    assert len(shown) == 30
    assert drawn.total == 100
    assert shown == sorted(shown, reverse=True)
    assert (shown[0], shown[-1]) == (max(durations), min(durations))


def test_a_timeline_of_very_unequal_clients_has_a_bounded_number_of_bars() -> None:
    # Twenty that would make 4000 bars each while the slowest makes four.
    records = make_timed(
        durations=(0.01,) * 20 + (10.0,),
        labels=("local",),
        period=10.0,
        most=100_000,
        seeds=1,
        waiting=(),
    )
    drawn = waits.timeline_of(records)
    assert drawn is not None
    assert 2000 < len(drawn.spans) <= 3000


def test_without_spans_there_is_no_timeline() -> None:
    records = make_timed(labels=LABELS)
    assert waits.timeline_of(replace(records, spans=pd.DataFrame())) is None
