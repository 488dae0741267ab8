from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from coterie import report, tables
from coterie.record import Records, Snapshots

ALGORITHMS = ("local", "fedavg", "ditto")


def make_records(
    *,
    n: int = 12,
    clusters: int = 2,
    labels: tuple[str, ...] = ALGORITHMS,
    seeds: int = 3,
    rounds: int = 4,
    task: str = "classification",
    weights: bool = True,
    spread: float = 0.05,
) -> Records:
    rng = np.random.default_rng(7)
    client = np.arange(n)
    cluster = client % clusters if clusters else np.full(n, -1)
    # Clients of a bad cluster for averaging lose with the later algorithms.
    level = 0.6 + 0.1 * rng.random(n)
    sizes = rng.integers(20, 80, n)
    metrics, costs, matrices = [], [], {}
    for a, label in enumerate(labels):
        shift = 0.05 * a * np.where(cluster == 0, 1, -0.5)
        for seed in range(seeds):
            for t in range(rounds + 1):
                progress = 1 - 0.6**t
                noise = spread * rng.standard_normal(n)
                score = np.clip((level + shift) * progress + noise, 0, 1)
                table = {"algorithm": label, "seed": seed, "round": t, "client": client}
                table |= {"test_loss": 2 - 1.5 * score, "train_loss": 1.9 - 1.5 * score}
                if task != "regression":
                    table["test_accuracy"] = score
                metrics.append(pd.DataFrame(table))
                cost = {"algorithm": label, "seed": seed, "round": t}
                cost |= {"gradients": 160 * n * t, "bytes": 4000 * a * n * t}
                costs.append(cost | {"seconds": 0.1 * t})
            if weights:
                kept = (cluster[:, None] == cluster) | (a < 2)
                start = np.full((n, n), 1 / n)
                end = kept / kept.sum(1, keepdims=True)
                end = np.eye(n) if label == "local" else end
                steps = np.linspace(0, 1, 5)[:, None, None]
                matrix = (1 - steps) * start + steps * end
                when = np.linspace(0, rounds, 5).astype(int)
                matrices[label, seed] = Snapshots(when, matrix)
    study = {
        "name": "A study",
        "data": {"name": "digits", "note": "Handwritten digits, bundled."},
        "split": {"name": "clusters", "clients": n},
        "model": {"name": "mlp", "hidden": [32]},
        "run": {"rounds": rounds, "seeds": list(range(seeds)), "device": None},
        "algorithm": [{"name": x, "label": x, "lr": 0.1} for x in labels],
    }
    clients = pd.DataFrame({"client": client, "cluster": cluster, "train": sizes})
    clients["validation"], clients["test"] = sizes // 4, sizes // 3
    clients = pd.concat([clients.assign(seed=s) for s in range(seeds)])
    return Records(
        study=study,
        versions={"coterie": "0.1.0", "torch": "2.6"},
        task=task,
        clients=clients.reset_index(drop=True),
        metrics=pd.concat(metrics, ignore_index=True),
        rounds=pd.DataFrame(costs),
        weights=matrices,
    )


def written(records: Records, folder: Path) -> str:
    """The page without plotly.js, which names addresses that it does not fetch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "get_plotlyjs", str)
        path = report.write_report(records, folder / "report.html")
    return path.read_text("utf-8")


class Fetches(HTMLParser):
    """Everything that a browser would load or follow by itself."""

    def __init__(self) -> None:
        HTMLParser.__init__(self)
        self.found: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.found += [v or "" for k, v in attrs if k in ("src", "href", "srcset")]


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


def test_share_of_clients_better_than_local_counts_strict_gains_only() -> None:
    records = make_records(n=4, seeds=1, spread=0.0)
    last = records.metrics["round"] == 4
    for label, values in {
        "local": [0.5, 0.5, 0.5, 0.5],
        "fedavg": [0.6, 0.5, 0.5 + 1e-12, 0.4],
        "ditto": [0.6, 0.7, 0.8, 0.4],
    }.items():
        mine = last & (records.metrics["algorithm"] == label)
        records.metrics.loc[mine, "test_accuracy"] = values
    share = report.summary(records)["better_than_local"]
    assert np.isnan(share["local"])
    assert share["fedavg"] == 0.25
    assert share["ditto"] == 0.75
    titles = [
        button.args[1]["title.text"]
        for button in report.gains(records).layout.updatemenus[0].buttons
    ]
    assert "fedavg: 1 gain, 1 lose, 2 equal" in titles[0]
    assert "ditto: 3 gain, 1 lose, 0 equal" in titles[1]


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
    share = report.summary(records)["better_than_local"]
    assert share["ditto"] == (table["ditto"] < table["local"]).mean() == 0.5


def test_clear_lead_is_marked_and_noise_is_not(tmp_path: Path) -> None:
    records = make_records(labels=("local", "ditto"), spread=0.0)
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


def test_the_page_fetches_nothing(tmp_path: Path) -> None:
    page = written(make_records(), tmp_path)
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


def test_gains_are_differences_to_local_sorted_inside_clusters() -> None:
    records = make_records()
    last = records.metrics[records.metrics["round"] == 4]
    table = last.pivot_table("test_accuracy", "client", "algorithm")
    expected = 100 * (table["ditto"] - table["local"])
    figure = report.gains(records)
    bars = next(trace for trace in figure.data if trace.name == "ditto")
    for cluster, half in ((0, slice(0, 6)), (1, slice(6, 12))):
        mine = expected[np.arange(12) % 2 == cluster]
        np.testing.assert_allclose(bars.y[half], sorted(mine, reverse=True))
    labels = [button.label for button in figure.layout.updatemenus[0].buttons]
    assert labels == ["fedavg", "ditto"]


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


def test_the_report_shows_scores_at_equal_cost(tmp_path: Path) -> None:
    page = written(make_records(), tmp_path)
    assert "at equal cost" in page
    assert "after 192 kB" in page


@pytest.mark.parametrize("against", ["round", "gradients", "bytes"])
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


def test_partners_are_counted_inside_and_outside_the_cluster() -> None:
    figure = report.partners(make_records())
    lines = {trace.name: list(trace.y) for trace in figure.data}
    assert lines["ditto, inside"] == [5] * 5
    assert lines["ditto, outside"] == [6] * 4 + [0]
    assert lines["local, inside"][-1] == lines["local, outside"][-1] == 0


def test_an_algorithm_keeps_its_colour_in_every_figure() -> None:
    records = make_records()
    bars = {t.name: t.marker.color for t in report.gains(records).data}
    lines = {t.name: t.line.color for t in report.curves(records).data if t.showlegend}
    dots = {t.name: t.marker.color for t in report.clients(records).data}
    assert bars["ditto"] == lines["ditto"] == dots["ditto"]
    assert len(set(lines.values())) == len(ALGORITHMS)


def test_without_local_the_report_says_so(tmp_path: Path) -> None:
    records = make_records(labels=("fedavg", "ditto"))
    assert report.summary(records)["better_than_local"].isna().all()
    assert "No local baseline was run" in written(records, tmp_path)
    with pytest.raises(ValueError, match="named 'local'"):
        report.gains(records)


def test_an_interrupted_study_uses_what_is_there(tmp_path: Path) -> None:
    records = make_records()
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
    assert "not complete" not in written(records, tmp_path)


def test_nothing_recorded_is_refused(tmp_path: Path) -> None:
    records = make_records(n=2)
    empty = replace(records, metrics=records.metrics.iloc[:0])
    with pytest.raises(ValueError, match="nothing to report"):
        report.write_report(empty, tmp_path / "report.html")


def test_a_diverged_client_is_not_averaged_away(tmp_path: Path) -> None:
    records = make_records(task="regression")
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


def rendered(page: Path, folder: Path) -> tuple[str, str]:
    """The document after its scripts ran, and what the browser logged."""
    names = ("chromium", "chromium-browser", "google-chrome")
    browser = next(filter(None, map(shutil.which, names)), None)
    if browser is None:
        pytest.skip("no Chromium is installed")
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    flags += "--disable-background-networking --disable-component-update "
    flags += "--disable-sync --enable-logging=stderr --window-size=1280,2000 "
    flags += f"--virtual-time-budget=20000 --user-data-dir={folder} --dump-dom"
    command = [browser, *flags.split(), page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.browser
def test_a_browser_draws_every_figure(tmp_path: Path) -> None:
    evil = "<script>document.title='owned'</script><b>x</b>"
    records = make_records(labels=("local", "fedavg", evil))
    page = report.write_report(records, tmp_path / "report.html")
    document, log = rendered(page, tmp_path / "profile")
    body = document[document.index("<body>") :]
    # The instructions of a drawing are no drawing.
    body = re.sub(r"<script.*?</script>", "", body, flags=re.DOTALL)
    figures = {
        part.split('"', 1)[0]: part for part in re.split(r'<figure id="', body)[1:]
    }
    plots = ["gains", "curves", "spread", "partners", "clients"]
    matrices = [f"collaboration-{number}" for number in range(3)]
    assert set(figures) == {*(f"{plot}-figure" for plot in plots), *matrices}
    for name, drawn in figures.items():
        assert 'class="main-svg"' in drawn, name
        assert "gtitle" in drawn, name
    titles = {
        "gains-figure": " equal",
        "curves-figure": "Mean over clients during training",
        "spread-figure": "Final scores of the clients",
        "collaboration-0": "Who learns from whom: fedavg, seed 0",
        "partners-figure": "Number of partners",
        "clients-figure": "Data and final score of each client",
    }
    for name, title in titles.items():
        assert title in figures[name], name
    assert figures["gains-figure"].count('class="point"') == 12
    # Line and band of three algorithms in each of two panels.
    assert len(re.findall(r'class="trace scatter', figures["curves-figure"])) == 12
    assert figures["spread-figure"].count('class="trace boxes"') == 3
    assert all('class="hm"' in figures[name] for name in matrices)
    assert figures["clients-figure"].count('class="trace bars"') == 3
    assert 'class="notice script-error"' not in document
    assert "CONSOLE" not in log
    assert "<title>A study: coterie report</title>" in document


@pytest.mark.browser
def test_menus_and_slider_change_what_is_drawn(tmp_path: Path) -> None:
    records = make_records()
    path = report.write_report(records, tmp_path / "report.html")
    act = """<script>
    const plot = (key) => document.getElementById(key + "-plot");
    const say = (key, value) => { document.body.dataset[key] = JSON.stringify(value); };
    const press = (key, number) => {
      const button = plot(key).layout.updatemenus[0].buttons[number];
      return Plotly.update(plot(key), button.args[0], button.args[1]);
    };
    const select = document.querySelector("select");
    select.value = "collaboration-1";
    select.dispatchEvent(new Event("change"));
    (async () => {
      await press("curves-figure", 2);
      say("bytes", Array.from(plot("curves-figure").data.at(-1).x));
      await press("gains-figure", 1);
      say("gain", plot("gains-figure").layout.title.text);
      const step = plot("collaboration-1").layout.sliders[0].steps[0];
      await Plotly.animate(plot("collaboration-1"), step.args[0], step.args[1]);
      say("first", plot("collaboration-1")._fullData[0].z[0][1]);
      say("width", plot("collaboration-1").clientWidth);
    })();
    </script></body>"""
    path.write_text(path.read_text("utf-8").replace("</body>\n", act), "utf-8")
    document, log = rendered(path, tmp_path / "profile")
    found = dict(re.findall(r'data-(\w+)="([^"]*)"', document))
    assert "CONSOLE" not in log, log
    assert found["bytes"] == "[0,96000,192000,288000,384000]"
    assert "ditto: " in found["gain"]
    assert float(found["first"]) == pytest.approx(1 / 12)
    assert int(found["width"]) > 500
    shown = re.findall(r'<figure id="collaboration-(\d)"[^>]*?( hidden="")?>', document)
    assert [bool(hidden) for _, hidden in shown] == [True, False, True]


@pytest.mark.browser
def test_a_browser_draws_the_edge_cases(tmp_path: Path) -> None:
    options = {"n": 1, "clusters": 0, "seeds": 1, "rounds": 1, "task": "regression"}
    page = report.write_report(make_records(**options), tmp_path / "report.html")
    document, log = rendered(page, tmp_path / "profile")
    assert 'class="notice script-error"' not in document
    assert "CONSOLE" not in log
    assert document.count("plotly-graph-div") >= 8


def test_every_figure_function_returns_a_figure_with_a_title() -> None:
    records = make_records()
    for draw in (
        report.gains,
        report.curves,
        report.spread,
        report.collaboration,
        report.partners,
        report.clients,
    ):
        figure = draw(records)
        assert isinstance(figure, go.Figure)
        assert figure.layout.title.text
