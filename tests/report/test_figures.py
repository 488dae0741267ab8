"""Figures show the numbers of the records."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from coterie import report
from coterie.checks import InputError
from coterie.records import Records
from support.made_records import ALGORITHMS, make_records, make_trials


def gained_by(records: Records, label: str) -> np.ndarray:
    """What each client of the made records gains, in points."""
    last = records.metrics[records.metrics["round"] == 4]
    table = last.pivot_table("test_accuracy", "client", "algorithm")
    return 100 * (table[label] - table["local"]).to_numpy()


def test_gains_are_differences_to_local_sorted_inside_clusters() -> None:
    records = make_records()
    expected = gained_by(records, "ditto")
    figure = report.gains(records)
    bars = next(trace for trace in figure.data if trace.name == "ditto")
    for cluster, half in ((0, slice(0, 6)), (1, slice(6, 12))):
        mine = expected[np.arange(12) % 2 == cluster]
        np.testing.assert_allclose(bars.y[half], sorted(mine, reverse=True))
    labels = [button.label for button in figure.layout.updatemenus[0].buttons]
    assert labels == ["fedavg", "ditto"]


def test_clients_keep_their_places_when_the_algorithm_is_changed() -> None:
    records = make_records()
    figure = report.gains(records)
    order = [int(name) for name in figure.layout.xaxis.ticktext]
    for label in ("fedavg", "ditto"):
        bars = next(trace for trace in figure.data if trace.name == label)
        np.testing.assert_allclose(bars.y, gained_by(records, label)[order])
        said = [text.split(",")[0] for text in bars.hovertext]
        assert said == [f"client {client}" for client in order]
    buttons = figure.layout.updatemenus[0].buttons
    assert [set(button.args[1]) for button in buttons] == [{"title.text"}] * 2


def shown_first(records: Records) -> str:
    """The algorithm whose bars, title and menu entry a reader of `gains` sees."""
    figure = report.gains(records)
    (shown,) = [trace.name for trace in figure.data if trace.visible]
    menu = figure.layout.updatemenus[0]
    assert menu.buttons[menu.active].label == shown
    assert figure.layout.title.text == menu.buttons[menu.active].args[1]["title.text"]
    assert shown in figure.layout.title.text
    return shown


@pytest.mark.parametrize(
    ("task", "column", "values", "first"),
    [
        ("classification", "validation_accuracy", (0.9, 0.5, 0.4), "fedavg"),
        ("classification", "validation_accuracy", (0.9, 0.4, 0.5), "ditto"),
        ("regression", "validation_loss", (0.1, 0.4, 0.5), "fedavg"),
        ("classification", "validation_accuracy", (0.9, 0.5, np.nan), "fedavg"),
        ("classification", "validation_accuracy", (np.nan,) * 3, "ditto"),
    ],
)
def test_gains_begin_with_the_best_on_validation_data(
    task: str, column: str, values: tuple[float, ...], first: str
) -> None:
    records = make_records(task=task)
    given = dict(zip(ALGORITHMS, values, strict=True))
    metrics = records.metrics.assign(
        **{column: records.metrics["algorithm"].map(given)}
    )
    # What came before the last round does not count.
    metrics.loc[metrics["round"] < 4, column] = 0.0
    assert shown_first(replace(records, metrics=metrics)) == first


def test_gains_begin_with_the_last_listed_where_no_validation_was_recorded() -> None:
    assert shown_first(make_records()) == "ditto"
    assert shown_first(make_records(labels=("ditto", "fedavg", "local"))) == "fedavg"


def test_clients_without_validation_samples_do_not_choose_what_gains_show() -> None:
    records = make_records()
    scores = records.metrics["algorithm"].map({"local": 0.9, "fedavg": 0.5})
    metrics = records.metrics.assign(validation_accuracy=scores.fillna(0.4))
    metrics.loc[metrics["client"] == 5, "validation_accuracy"] = np.nan
    clients = records.clients.copy()
    clients.loc[clients["client"] == 5, "validation"] = 0
    assert shown_first(replace(records, metrics=metrics, clients=clients)) == "fedavg"


@pytest.mark.parametrize("against", ["round", "gradients"])
def test_curves_are_means_over_clients_and_seeds(against: str) -> None:
    records = make_records()
    figure = report.curves(records, against)
    line = next(t for t in figure.data if t.name == "ditto")
    mine = records.metrics[records.metrics["algorithm"] == "ditto"]
    np.testing.assert_allclose(line.y, mine.groupby("round")["test_accuracy"].mean())
    costs = records.rounds[records.rounds["algorithm"] == "ditto"]
    np.testing.assert_allclose(
        line.x,
        costs.groupby("round")[against].mean().index
        if against == "round"
        else costs.groupby("round")[against].mean(),
    )
    band = next(t for t in figure.data if t.name == "ditto, range of seeds")
    seeds = mine.groupby(["round", "seed"])["test_accuracy"].mean().unstack()
    np.testing.assert_allclose(band.y[:5], seeds.max(axis=1))
    np.testing.assert_allclose(band.y[:4:-1], seeds.min(axis=1))


def test_bytes_are_on_a_logarithmic_axis_that_begins_with_zero() -> None:
    records = make_records()
    figure = report.curves(records, "bytes")
    axis = figure.layout.xaxis2
    assert (axis.type, axis.ticktext[0]) == ("log", "0")
    zero = axis.tickvals[0]
    ditto = next(t for t in figure.data if t.name == "ditto")
    # 4,000 bytes for each of 12 clients and every round with fedavg, 8,000 with ditto.
    assert list(ditto.x) == [zero, 96_000, 192_000, 288_000, 384_000]
    assert list(ditto.hovertext[:2]) == ["0 B", "96 kB"]
    assert zero < 48_000
    ticks = dict(zip(axis.tickvals[1:], axis.ticktext[1:], strict=True))
    assert ticks == {50_000: "50 kB", 100_000: "100 kB", 200_000: "200 kB"}


def test_who_sends_nothing_has_a_level_line_at_its_last_score() -> None:
    records = make_records()
    figure = report.curves(records, "bytes")
    local = next(t for t in figure.data if t.name == "local")
    mine = records.metrics.query("algorithm == 'local' and round == 4")
    last = mine["test_accuracy"].mean()
    assert list(local.x) == [figure.layout.xaxis.tickvals[0], 384_000]
    np.testing.assert_allclose(local.y, [last, last])
    band = next(t for t in figure.data if t.name == "local, range of seeds")
    ends = mine.groupby("seed")["test_accuracy"].mean()
    np.testing.assert_allclose(band.y, [ends.max()] * 2 + [ends.min()] * 2)
    # With another axis everything is as it was trained.
    button = figure.layout.updatemenus[0].buttons[0]
    place = [t.name for t in figure.data].index("local")
    assert list(button.args[0]["x"][place]) == [0, 1, 2, 3, 4]
    assert button.args[1]["xaxis2.type"] == "linear"


def test_where_nobody_sends_the_axis_of_bytes_is_linear() -> None:
    figure = report.curves(make_records(labels=("local",)), "bytes")
    assert figure.layout.xaxis2.type == "linear"
    assert set(figure.data[-1].x) == {0}


def test_collaboration_shows_snapshots_in_cluster_order() -> None:
    records = make_records()
    figure = report.collaboration(records, "ditto")
    order = [*range(0, 12, 2), *range(1, 12, 2)]
    assert list(figure.layout.xaxis.ticktext) == [str(client) for client in order]
    snapshots = records.weights["ditto", 0]
    assert [frame.name for frame in figure.frames] == [str(t) for t in snapshots.rounds]
    for frame, matrix in zip(figure.frames, snapshots.matrices, strict=True):
        np.testing.assert_allclose(frame.data[0].z, matrix[order][:, order], rtol=1e-6)
    assert len(figure.layout.shapes) == 2


def test_collaboration_shows_the_seed_that_is_asked_for() -> None:
    records = make_records()
    later = records.weights["ditto", 2]
    other = later._replace(matrices=later.matrices[:, ::-1])
    records = replace(records, weights={**records.weights, ("ditto", 2): other})
    figure = report.collaboration(records, "ditto", 2)
    order = [*range(0, 12, 2), *range(1, 12, 2)]
    expected = other.matrices[-1][order][:, order]
    np.testing.assert_allclose(figure.data[0].z, expected, rtol=1e-6)
    assert "ditto, seed 2" in figure.layout.title.text
    with pytest.raises(InputError, match=r"`seed` must be one of \[0, 1, 2\]"):
        report.collaboration(records, "ditto", 3)


def test_partners_are_counted_inside_and_outside_the_cluster() -> None:
    figure = report.partners(make_records())
    lines = {trace.name: list(trace.y) for trace in figure.data}
    assert lines["ditto, inside"] == [5] * 5
    assert lines["ditto, outside"] == [6] * 4 + [0]
    assert lines["local, inside"][-1] == lines["local, outside"][-1] == 0


def test_an_algorithm_keeps_its_colour_in_every_figure() -> None:
    records = make_records()
    ditto = report.gains(records).data[1]
    # Where nothing can be told, a bar has the same colour, but pale.
    sure = [c for c in ditto.marker.color if c.startswith("#")]
    pale = {c for c in ditto.marker.color if not c.startswith("#")}
    assert len(set(sure)) == 1 and len(pale) == 1
    red, green, blue = (int(sure[0][j : j + 2], 16) for j in (1, 3, 5))
    assert pale == {f"rgba({red},{green},{blue},0.35)"}
    lines = {t.name: t.line.color for t in report.curves(records).data if t.showlegend}
    dots = {t.name: t.marker.color for t in report.clients(records).data}
    assert sure[0] == lines["ditto"] == dots["ditto"]
    assert len(set(lines.values())) == len(ALGORITHMS)


def test_every_figure_function_returns_a_figure_with_a_title() -> None:
    records = make_records()
    for name in ("gains", "curves", "spread", "collaboration", "partners", "clients"):
        figure = getattr(report, name)(records)
        assert isinstance(figure, go.Figure)
        assert figure.layout.title.text


def axes_of(records: Records) -> dict[str, dict[str, Any]]:
    """The axis of each option in the figure of trials."""
    buttons = report.trials(records).layout.updatemenus[0].buttons
    return {b.label.removeprefix("by "): {**b.args[1], **b.args[0]} for b in buttons}


def test_tuned_numbers_that_differ_tenfold_are_on_a_logarithmic_axis() -> None:
    many = [0.001, 0.002, 0.005, 0.02, 0.04, 0.1, 0.3, 1.0]
    axes = axes_of(make_trials({"fedavg": {"lr": many, "steps": [1, 2, 5, 10] * 2}}))
    lr, steps = axes["lr"], axes["steps"]
    assert (lr["xaxis.type"], steps["xaxis.type"]) == ("log", "log")
    assert list(lr["xaxis.ticktext"]) == ["0.001", "0.01", "0.1", "1"]
    assert list(lr["x"][0]) == [0.001, 0.002, 0.005, 0.02, 0.04, 0.1, 0.3, 1.0]
    # Of few values each has its tick.
    assert list(steps["xaxis.ticktext"]) == ["1", "2", "5", "10"]
    assert lr["xaxis.title.text"] == "lr (logarithmic)"


def test_tuned_words_and_zeros_stand_side_by_side_and_algorithms_inside() -> None:
    words = ["mixture(0.3)", "water_filling(0.000001)", "alone", "alone"]
    lam = [1.0, 0.0, 0.01, 100.0]
    tried = {"weights": words, "lam": lam, "on": [True, False, True, True]}
    axes = axes_of(make_trials({"fedavg": tried, "ditto": tried}))
    texts = list(axes["weights"]["xaxis.ticktext"])
    assert texts == ["mixture(0.3)", "water_filling(0.0…", "alone"]
    assert list(axes["lam"]["xaxis.ticktext"]) == ["0", "0.01", "1", "100"]
    assert list(axes["on"]["xaxis.ticktext"]) == ["True", "False"]
    fedavg, ditto = axes["lam"]["x"]
    assert [round(x) for x in fedavg] == [round(x) for x in ditto] == [2, 0, 1, 3]
    assert all(a < b for a, b in zip(fedavg, ditto, strict=True))
    assert {axis["xaxis.type"] for axis in axes.values()} == {"linear"}


def test_tuned_numbers_that_are_near_each_other_are_on_a_linear_axis() -> None:
    tried = {"momentum": [0.5, 0.9], "alpha": [-1.0, 20.0]}
    axes = axes_of(make_trials({"fedavg": tried}))
    for option, values in tried.items():
        assert axes[option]["xaxis.type"] == "linear"
        assert list(axes[option]["x"][0]) == values


def test_many_options_are_chosen_from_a_menu_that_fits_a_phone() -> None:
    names = ["lr", "steps", "momentum", "tune_steps"]
    figure = report.trials(make_trials({"fedavg": {n: [0.1, 0.2] for n in names}}))
    assert figure.layout.updatemenus[0].type is None  # a list, not a row of buttons
    few = report.trials(make_trials({"fedavg": {n: [0.1, 0.2] for n in names[:2]}}))
    assert few.layout.updatemenus[0].type == "buttons"
