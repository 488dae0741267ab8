"""Claims about the drawing of a study's graph."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from coterie import report
from coterie.graphs import edges_of
from coterie.records import Records, load_records
from coterie.scores.gains import gain_of
from coterie.study.config import study_of
from coterie.study.experiment import run_study
from support.made_records import make_records
from support.refusals import refuses
from support.tiny_studies import TABLES


def on_ring(**changes) -> Records:
    records = make_records(**changes)
    n = records.clients["client"].nunique()
    edges = pd.DataFrame(edges_of("ring", n).numpy(), columns=["v", "w"])
    return replace(records, graph=edges.assign(seed=0))


def test_every_edge_is_a_line_between_two_clients():
    records = on_ring(weights=False)
    lines, dots = report.network(records).data
    x = np.array(lines.x, dtype=float).reshape(-1, 3)
    y = np.array(lines.y, dtype=float).reshape(-1, 3)
    assert len(x) == 12 and np.isnan(x[:, 2]).all()
    place = np.stack([dots.x, dots.y], 1)
    for (v, w), ends in zip(
        records.graph[["v", "w"]].to_numpy(), np.stack([x, y], 2), strict=True
    ):
        np.testing.assert_allclose(ends[:2], place[[v, w]])


def test_clients_are_coloured_by_what_they_gain_over_training_alone():
    records = on_ring(weights=False)
    figure = report.network(records)
    dots, (menu,) = figure.data[1], figure.layout.updatemenus
    labels = [button.label for button in menu.buttons]
    assert labels == ["fedavg", "ditto"]
    expected = 100 * gain_of(records, labels[menu.active]).clients["mean"]
    np.testing.assert_allclose(dots.marker.color, expected.sort_index())
    assert dots.marker.cmin == -dots.marker.cmax  # white is no gain
    change, title, which = menu.buttons[0].args
    other = 100 * gain_of(records, "fedavg").clients["mean"].sort_index()
    np.testing.assert_allclose(change["marker.color"][0], other)
    assert list(which) == [1]
    assert "fedavg" in title["title.text"]


def test_links_without_weights_at_the_end_are_dotted():
    """By the algorithm of each button; in its first view, of the one that is shown."""
    records = on_ring()
    n, seed = 12, 0
    last = records.weights["ditto", seed].matrices
    last[-1] = np.eye(n)  # only the ring's edge {2, 3} is left
    last[-1][2, 3] = 0.5
    figure = report.network(records)
    solid, dots, dotted = figure.data
    (menu,) = figure.layout.updatemenus
    for label, button in zip(("fedavg", "ditto"), menu.buttons, strict=True):
        change, _, which = button.args
        assert list(which) == [0, 1, 2]
        used = 1 if label == "ditto" else n
        assert [len(x) for x in change["x"]] == [3 * used, n, 3 * (n - used)]
    change = menu.buttons[1].args[0]
    np.testing.assert_allclose(change["x"][0][:2], np.array(dots.x)[[2, 3]])
    shown = menu.buttons[menu.active].args[0]
    np.testing.assert_array_equal(solid.x, shown["x"][0])
    np.testing.assert_array_equal(dotted.x, shown["x"][2])
    assert dotted.line.dash == "dot"


def test_without_local_colours_are_scores():
    records = on_ring(labels=("fedavg",))
    figure = report.network(records)
    dots = figure.data[1]
    assert 0 <= min(dots.marker.color) and max(dots.marker.color) <= 1
    assert not figure.layout.updatemenus
    assert "accuracy" in dots.marker.colorbar.title.text


def test_clients_have_their_names_and_many_only_when_pointed_at():
    records = replace(on_ring(n=5), names=("Bern", "Chur", "Thun", "A<b", "Visp"))
    dots = report.network(records).data[1]
    assert list(dots.hovertext) == ["Bern", "Chur", "Thun", "A&lt;b", "Visp"]
    assert list(dots.text) == ["Bern", "Chur", "Thun", "A&lt;b", "Visp"]
    many = report.network(on_ring(n=60, weights=False)).data[1]
    assert many.text is None and many.mode == "markers"
    assert many.hovertext[7] == "client 7"


def test_without_a_graph_there_is_none(tmp_path: Path):
    refuses("have no graph", report.network, make_records())
    page = report.write_report(make_records(), tmp_path / "report.html").read_text()
    assert "network-figure" not in page
    page = report.write_report(on_ring(), tmp_path / "report.html").read_text()
    assert 'id="network-figure"' in page
    assert "joins 12 clients by 12 edges" in page


def test_a_run_keeps_its_graph_by_identities_of_clients(tmp_path: Path):
    tables = {**TABLES, "graph": {"edges": "ring"}, "algorithm": [{"name": "local"}]}
    tables["run"] = TABLES["run"] | {"rounds": 1}
    result = run_study(study_of(tables), runs=tmp_path)
    expected = edges_of("ring", 4).tolist()
    assert result.records.graph[["v", "w"]].to_numpy().tolist() == expected
    again = load_records(result.folder)
    pd.testing.assert_frame_equal(again.graph, result.records.graph)
    file = result.folder / "graph-0.csv"
    file.write_text(file.read_text().replace("3", "9"))
    refuses(r"graph-0\.csv is damaged", load_records, result.folder)
