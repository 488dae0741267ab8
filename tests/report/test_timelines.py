"""Numbers, figures and words of studies in virtual time."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from html import unescape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import pytest

from coterie import report
from coterie.records import Records
from coterie.report import waiting as waits
from support.made_records import make_records, make_timed, usual_page, written

LABELS = ("local", "fedavg", "asgd")


def words_of(page: str) -> str:
    """What a person reads, without scripts and styles."""
    page = re.sub(r"<(script|style).*?</\1>", "", page, flags=re.DOTALL)
    return unescape(re.sub(r"<[^>]*>", " ", page))


@cache
def usual_words() -> tuple[str, str]:
    """The page of usual records in virtual time, and what a person reads of it."""
    with TemporaryDirectory() as folder:
        page = written(make_timed(labels=LABELS), Path(folder))
    return page, words_of(page)


def test_curves_begin_with_virtual_time_and_do_not_offer_rounds() -> None:
    records = make_timed(labels=LABELS)
    figure = report.curves(records)
    menu = figure.layout.updatemenus[0]
    names = [button.label for button in menu.buttons]
    assert names == ["by time", "by updates", "by gradients", "by bytes"]
    assert menu.active == 0
    line = next(t for t in figure.data if t.name == "asgd")
    assert list(line.x) == [0, 4, 8, 12, 16]
    assert figure.layout.xaxis2.title.text == "virtual seconds"
    by_updates = next(
        t for t in report.curves(records, "updates").data if t.name == "asgd"
    )
    assert list(by_updates.x) == [0, 45, 90, 135, 180]
    with pytest.raises(ValueError, match="must be one of"):
        report.curves(records, "round")
    with pytest.raises(ValueError, match="must be one of"):
        report.curves(make_records(n=2), "time")


def test_a_timeline_has_a_bar_where_a_client_computed() -> None:
    figure = report.timeline(make_timed(labels=LABELS))
    back, *bars = figure.data
    assert list(back.x) == [16] * 12
    labels = [button.label for button in figure.layout.updatemenus[0].buttons]
    assert labels == list(LABELS)
    fedavg = bars[1]
    assert fedavg.visible  # the most idle
    assert not bars[0].visible
    assert figure.layout.title.text == "<b>fedavg: idle 68.8 % of the time</b>"
    found = {
        (y, b, b + x) for y, b, x in zip(fedavg.y, fedavg.base, fedavg.x, strict=True)
    }
    expected = {(0, 4.0 * k, 4.0 * k + 4) for k in range(4)}
    expected |= {(row, 4.0 * k, 4.0 * k + 1) for row in range(1, 12) for k in range(4)}
    assert found == expected
    assert list(figure.layout.yaxis.ticktext)[:2] == ["11", "0"]
    assert list(figure.layout.xaxis.range) == [0, 16]


def with_delays(counts: dict[int, int]) -> Records:
    """Records of a seed, in which so many answers have each of these delays."""
    table = pd.DataFrame({"delay": list(counts), "count": list(counts.values())})
    records = make_timed(labels=LABELS, seeds=1)
    return replace(records, delays=table.assign(algorithm="asgd", seed=0))


def test_delays_are_shares_of_answers_with_mean_and_number_of_clients() -> None:
    records = with_delays({1: 1, 3: 2, 5: 1})
    figure = report.delays(records)
    bars, clients, mean = figure.data
    shares = [0.25, 0, 0.5, 0, 0.25] + [0] * 7
    np.testing.assert_allclose(np.nan_to_num(bars.y), shares)
    assert list(bars.x + bars.width / 2) == list(range(1, 13))
    assert list(clients.x) == [12, 12]
    assert list(mean.x) == [3]
    with pytest.raises(ValueError, match="no algorithm takes late answers"):
        report.delays(replace(records, delays=pd.DataFrame()))


def test_far_delays_are_on_logarithmic_axes_and_no_answer_is_lost() -> None:
    records = with_delays({1: 900, 10: 90, 5000: 10})
    figure = report.delays(records)
    bars = figure.data[0]
    assert figure.layout.xaxis.type == figure.layout.yaxis.type == "log"
    assert np.nansum(bars.y) == pytest.approx(1)
    for delay, share in ((1, 0.9), (10, 0.09), (5000, 0.01)):
        inside = (bars.x < delay) & (delay < bars.x + bars.width)
        assert bars.y[inside].tolist() == pytest.approx([share])


def test_the_number_of_clients_is_in_sight_where_delays_are_small() -> None:
    records = with_delays({1: 4})
    low, high = report.delays(records).layout.xaxis.range
    assert low < 1 < 12 < high


def test_slider_and_partners_are_in_virtual_time() -> None:
    records = make_timed(labels=LABELS, period=2.5)
    slider = report.collaboration(records, "fedavg").layout.sliders[0]
    assert [step.label for step in slider.steps] == [
        "0 s",
        "2.5 s",
        "5 s",
        "7.5 s",
        "10 s",
    ]
    figure = report.partners(records)
    assert list(figure.data[0].x) == [0, 2.5, 5, 7.5, 10]
    assert figure.layout.xaxis.title.text == "virtual seconds"


def test_the_page_says_what_waiting_cost() -> None:
    page, text = usual_words()
    assert '<h2 id="time">' in page
    assert "idle for 68.8 % of their time with fedavg and for 0.0 % with local" in text
    assert "updates per virtual second, and fedavg 3." in text
    assert (
        "Test accuracy at the end, after 16 virtual seconds, mean over seeds (higher"
        in text
    )
    assert "mean delay is at most the number of clients" in text
    assert '<h2 id="time">' not in usual_page()


def test_a_page_in_virtual_time_does_not_speak_of_rounds() -> None:
    before, configuration = usual_words()[1].split("coterie run study.toml")
    assert "round" not in before
    assert "rounds = 4" in configuration


def test_an_interrupted_study_says_so_in_virtual_time(tmp_path: Path) -> None:
    records = make_timed(labels=LABELS, seeds=1, durations=(1.0, 4.0))
    late = (records.metrics["algorithm"] == "asgd") & (records.metrics["round"] > 1)
    partial = replace(records, metrics=records.metrics[~late])
    text = words_of(written(partial, tmp_path))
    assert "some runs ended before virtual time 16 s" in text
    assert "asgd, seed 0: up to virtual time 4 s" in text
    assert "at the end of each run" in text
    assert "round" not in text.split("coterie run study.toml")[0]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"durations": (1.0,), "clusters": 0, "rounds": 1}, "idle for 0.0 % of"),
        ({"rounds": 1}, "after 4 virtual seconds"),
        ({"labels": ("fedavg", "ditto")}, "takes late answers, so there are no delays"),
        ({"labels": ("asgd",)}, "idle for 0.0 % of their time with asgd"),
        (
            {"durations": [1 + i / 500 for i in range(500)], "weights": False},
            "30 of 500 clients are shown",
        ),
        ({"task": "regression"}, "best mean test loss that all algorithms reach is"),
        ({"period": 0.001, "durations": (0.0005,) * 3}, "after 0.004 virtual seconds"),
    ],
)
def test_unusual_studies_in_virtual_time_are_reported(
    options: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    usual: dict[str, Any] = {"labels": LABELS[1:], "rounds": 4, "seeds": 1}
    assert sentence in words_of(written(make_timed(**usual | options), tmp_path))


@pytest.mark.parametrize("missing", ["spans", "work", "delays", "rounds"])
def test_what_was_not_recorded_is_called_unknown(missing: str, tmp_path: Path) -> None:
    records = make_timed(labels=LABELS[1:], seeds=1, durations=(1.0, 4.0))
    sentences = {
        "spans": "do not say when clients computed",
        "work": "do not say for how long clients were idle",
        "delays": "takes late answers, so there are no delays",
        "rounds": "unknown",
    }
    bare = records.rounds.drop(columns=["time", "updates"])
    table = bare if missing == "rounds" else pd.DataFrame()
    text = words_of(written(replace(records, **{missing: table}), tmp_path))
    assert sentences[missing] in text


def test_a_crowd_makes_a_small_page(tmp_path: Path) -> None:
    durations = np.random.default_rng(0).lognormal(0, 1, 500).tolist()
    records = make_timed(durations=durations, labels=LABELS, weights=False, seeds=1)
    page = written(records, tmp_path)
    assert len(page) < 1_000_000
    drawn = waits.timeline_of(records)
    assert len(drawn.clients) == 30


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
    assert drawn.until == 16
    # Client 11 takes longest; others are equal, and then their names count.
    assert drawn.clients == [11, *range(11)]
    assert drawn.spans["begin"].max() < 16
    short = waits.timeline_of(make_timed(labels=LABELS, rounds=2))
    assert short.until == 8  # all that there was


def test_a_timeline_shows_nothing_after_what_is_known_of_every_algorithm() -> None:
    records = make_timed(labels=LABELS, rounds=20, most=30, seeds=1)
    drawn = waits.timeline_of(records)
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
    assert drawn.until == 4


def test_who_never_computed_has_a_row_without_bars() -> None:
    records = make_timed(labels=("asgd",), durations=(1.0, 2.0, 3.0), seeds=1)
    # Client 2 was never asked.
    work = records.work.copy()
    work.loc[work["client"] == 2, ["busy", "idle", "tasks"]] = [0.0, 16.0, 0]
    spans = records.spans[records.spans["client"] != 2]
    drawn = waits.timeline_of(replace(records, spans=spans, work=work))
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
    assert 2000 < len(drawn.spans) <= 3000


def test_without_spans_there_is_no_timeline() -> None:
    records = make_timed(labels=LABELS)
    assert waits.timeline_of(replace(records, spans=pd.DataFrame())) is None
