"""Figures of a study, each drawn from its records alone.

Everywhere, "final" means the last recorded round, never the best one, and only seeds
that got as far as the furthest seed of the same algorithm are used. Clients without
test samples are left out. A score that is not a number stays one: it is never skipped.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from .checks import InputError
from .metrics import TASKS
from .record import Records

CROWD = 200
"""Above this number of clients, figures show groups in place of single clients."""

Axis = Literal["round", "gradients", "bytes"]

_AXES = {
    "round": "round",
    "gradients": "per-sample gradient evaluations, all clients",
    "bytes": "bytes sent, all clients",
}
# Okabe and Ito's colours without yellow and black, then two of Tol's: distinct in
# the common kinds of colour blindness, and dark enough on white.
_COLOURS = "#0072B2 #D55E00 #009E73 #CC79A7 #E69F00 #56B4E9 #882255 #999933".split()
_GREY = "#666666"
_DASHES = ("solid", "dash", "dot", "dashdot")
_LABELLED = 40  # so many clients still fit as tick labels
_PIXELS = 400_000  # entries of all shown snapshots of one algorithm


class Score(NamedTuple):
    """The measure by which a task compares models, and how it is written."""

    column: str  # of Records.metrics
    words: str
    sign: int  # 1 where higher is better, -1 where lower is
    unit: float  # what a difference is multiplied by before it is shown
    gain: str  # what a positive difference means, with its unit
    ticks: str  # d3 format of an axis

    def show(self, value: float) -> str:
        """The value as text."""
        if not np.isfinite(value):
            return "not finite"
        return f"{100 * value:.1f} %" if self.ticks else f"{value:.4g}"

    def show_gain(self, value: float) -> str:
        """A difference as text."""
        if not np.isfinite(value):
            return "not finite"
        text = f"{self.unit * value:+.1f}" if self.ticks else f"{value:+.3g}"
        return text + (" points" if self.ticks else "")


class Style(NamedTuple):
    """How an algorithm is drawn, the same in every figure."""

    colour: str
    dash: str

    def faint(self, opacity: float) -> str:
        """The colour with an opacity, as CSS."""
        red, green, blue = (int(self.colour[j : j + 2], 16) for j in (1, 3, 5))
        return f"rgba({red},{green},{blue},{opacity})"


def score_of(records: Records) -> Score:
    """How the study's task is scored."""
    task = TASKS[records.task]
    words, column = f"test {task.score}", f"test_{task.score}"
    if column not in records.metrics:
        raise InputError(f"the records have no column {column!r}.")
    if task.score == "accuracy":
        gain = "gain (percentage points)"
        return Score(column, words, 1, 100.0, gain, "~%")
    if task.higher_is_better:
        return Score(column, words, 1, 1.0, f"gain in {words}", "")
    return Score(column, words, -1, 1.0, f"reduction of {words}", "")


def labels_of(records: Records) -> list[str]:
    """The algorithms that have results, in the order of the study."""
    there = [str(label) for label in records.metrics["algorithm"].unique()]
    planned = [name for name, _ in planned_algorithms(records)]
    return [a for a in planned if a in there] + [a for a in there if a not in planned]


def planned_algorithms(records: Records) -> list[tuple[str, str]]:
    """Label and name of every algorithm that the study asks for."""
    entries = records.study.get("algorithm", [])
    return [(str(e.get("label", e["name"])), str(e["name"])) for e in entries]


def baseline_of(records: Records) -> str | None:
    """The label of training alone, or None if the study has no results of it."""
    there = labels_of(records)
    planned = planned_algorithms(records)
    return next((a for a, name in planned if name == "local" and a in there), None)


def styles_of(records: Records) -> dict[str, Style]:
    """A style for every algorithm; training alone is grey."""
    local, styles, used = baseline_of(records), {}, 0
    for label in labels_of(records):
        if label == local:
            styles[label] = Style(_GREY, "dash")
            continue
        lap, place = divmod(used, len(_COLOURS))
        styles[label] = Style(_COLOURS[place], _DASHES[lap % len(_DASHES)])
        used += 1
    return styles


def population(records: Records) -> pd.DataFrame:
    """One row per client, over seeds: sizes are means, a cluster that varies is -1.

    A client is `tested` if it has test samples in every seed.
    """
    groups = records.clients.groupby("client")
    table = groups[["train", "validation", "test"]].mean()
    steady = groups["cluster"].nunique() == 1
    table["cluster"] = groups["cluster"].first().where(steady, -1)
    table["tested"] = groups["test"].min() > 0
    return table.reset_index()


def by_cluster(clients: pd.DataFrame) -> pd.DataFrame:
    """The clients by true cluster, those of unknown cluster last."""
    unknown = clients["cluster"] < 0
    order = np.lexsort((clients["client"], clients["cluster"], unknown))
    return clients.iloc[order].reset_index(drop=True)


def is_crowd(records: Records) -> bool:
    """Whether there are too many clients to show each."""
    return records.clients["client"].nunique() > CROWD


def runs_of(records: Records, label: str) -> pd.DataFrame:
    """Metrics of the seeds that got as far as any seed of this algorithm."""
    mine = records.metrics[records.metrics["algorithm"] == label]
    reached = mine.groupby("seed")["round"].transform("max")
    table = population(records)
    tested = table.loc[table["tested"], "client"]
    return mine[(reached == mine["round"].max()) & mine["client"].isin(tested)]


def final_scores(records: Records, label: str) -> pd.DataFrame:
    """Test scores at the last round: one row per seed, one column per client."""
    runs = runs_of(records, label)
    last = runs[runs["round"] == runs["round"].max()]
    table = last.set_index(["seed", "client"])[score_of(records).column]
    return table.unstack("client").astype(float)


def final_gains(records: Records, label: str) -> pd.DataFrame:
    """How much better than training alone, by seed (those of both) and client.

    A positive entry is better, whichever way the score points; differences below a
    millionth of the score are rounding and count as none.
    """
    local = baseline_of(records)
    if local is None:
        raise InputError("the study has no results of an algorithm named 'local'.")
    ours, alone = final_scores(records, label), final_scores(records, local)
    seeds = ours.index.intersection(alone.index)
    ours, alone = ours.loc[seeds], alone.loc[seeds]
    gains = score_of(records).sign * (ours - alone)
    return gains.mask(gains.abs() <= 1e-6 * alone.abs(), 0.0)


def partner_counts(records: Records) -> pd.DataFrame:
    """How many others a client uses, by algorithm and round, over clients and seeds.

    Columns `all`, `inside`, `outside`: contributors k != i with a positive weight, and
    those of the same and of another true cluster (NaN where no cluster is known).
    """
    rows = []
    for (label, seed), snapshots in records.weights.items():
        clients = records.clients[records.clients["seed"] == seed]
        cluster = clients.sort_values("client")["cluster"].to_numpy()
        known = cluster >= 0
        same = (cluster[:, None] == cluster[None, :]) & known[:, None]
        for t, matrix in zip(snapshots.rounds, snapshots.matrices, strict=True):
            used = (np.asarray(matrix) > 0) & ~np.eye(len(cluster), dtype=bool)
            row = {"algorithm": label, "round": int(t), "all": used.sum(1).mean()}
            inside, outside = (used & same)[known], (used & ~same)[known]
            row["inside"] = inside.sum(1).mean() if known.any() else np.nan
            row["outside"] = outside.sum(1).mean() if known.any() else np.nan
            rows.append(row)
    columns = ["algorithm", "round", "all", "inside", "outside"]
    table = pd.DataFrame(rows, columns=columns)
    return table.groupby(["algorithm", "round"], sort=True).mean().reset_index()


def escape(text: object) -> str:
    """The text as a figure shows it: plotly reads names and titles as HTML."""
    return html.escape(str(text), quote=False)


def _heading(label: str) -> str:
    """The label as a title has room for it."""
    return escape(label if len(label) <= 32 else label[:31] + "…")


def gains(records: Records) -> go.Figure:
    """Every client's test score minus that of training alone, one view per algorithm.

    Bars are sorted inside each cluster; whiskers reach to the lowest and the highest
    seed. Above CROWD clients, one box per algorithm shows their distribution.

    Raises:
        InputError: without results of `local`, or of anything to compare with it.
    """
    score, styles = score_of(records), styles_of(records)
    others = [label for label in styles if label != baseline_of(records)]
    tables = {label: final_gains(records, label) * score.unit for label in others}
    if not others:
        raise InputError("there is nothing to compare with training alone.")
    if is_crowd(records):
        means = {label: table.mean(skipna=False) for label, table in tables.items()}
        figure = _boxes(means, styles, dots=False)
        figure.add_vline(x=0, line={"color": "#222222", "width": 1})
        figure.update_xaxes(title=score.gain)
        return _finish(figure, "Gain over training alone, per client", 160, others)
    return _gain_bars(records, tables)


def curves(records: Records, against: Axis = "round") -> go.Figure:
    """Mean test score and loss over time, with buttons that change the horizontal axis.

    Lines are means over clients and seeds; bands reach from the lowest to the highest
    seed. Against gradients or bytes, a point stands at the mean count of the seeds.

    Raises:
        InputError: when the records hold no such axis.
    """
    axes = [a for a in get_args(Axis) if a == "round" or a in records.rounds]
    if against not in axes:
        raise InputError(f"`against` must be one of {axes}, but is {against!r}.")
    score = score_of(records)
    shown = [c for c in dict.fromkeys([score.column, "test_loss"])]
    shown = [c for c in shown if c in records.metrics]
    figure = make_subplots(
        rows=len(shown), cols=1, shared_xaxes=True, vertical_spacing=0.06
    )
    places: dict[str, list[list[float | None]]] = {axis: [] for axis in axes}
    for label, style in styles_of(records).items():
        for row, column in enumerate(shown, start=1):
            _add_curve(figure, records, label, style, column, row, places)
    for trace, x in zip(figure.data, places[against], strict=True):
        trace.x = x
    bottom = f"xaxis{len(shown)}.title.text" if len(shown) > 1 else "xaxis.title.text"
    buttons = [
        {
            "label": f"by {axis}",
            "method": "update",
            "args": [{"x": places[axis]}, {bottom: _AXES[axis]}],
        }
        for axis in axes
    ]
    menu = _menu(buttons, active=axes.index(against))
    figure.update_layout(updatemenus=[menu | {"type": "buttons", "direction": "right"}])
    figure.update_layout(hovermode="x unified")
    figure.update_xaxes(title=_AXES[against], row=len(shown))
    figure.update_yaxes(tickformat=score.ticks, title=score.words, row=1)
    figure.update_yaxes(zeroline=False)
    if len(shown) > 1:
        figure.update_yaxes(title="test loss", row=2)
    _use_logarithm_if_wide(figure, shown)
    height = 380 + 240 * (len(shown) - 1)
    return _finish(figure, "Mean over clients during training", height, menu=True)


def spread(records: Records) -> go.Figure:
    """The clients' final test scores, one row per algorithm.

    A dot is a client (mean over seeds), the box holds the middle half, whiskers reach
    to the extremes, the diamond is the mean of the worst tenth of the clients.
    """
    score, styles = score_of(records), styles_of(records)
    means = {label: final_scores(records, label).mean(skipna=False) for label in styles}
    figure = _boxes(means, styles, dots=not is_crowd(records))
    worst = [worst_decile(values, score.sign) for values in means.values()]
    figure.add_scatter(
        x=worst,
        y=list(range(len(means))),
        mode="markers",
        name="mean of the worst tenth",
        marker={"symbol": "diamond", "size": 11, "color": "#222222"},
        hovertemplate=f"worst tenth: %{{x:{'.1%' if score.ticks else '.4g'}}}",
    )
    figure.update_xaxes(title=score.words, tickformat=score.ticks)
    return _finish(figure, "Final scores of the clients", 190, list(means))


def worst_decile(values: pd.Series, sign: int) -> float:
    """The mean of the worst ceil(N / 10) values; sign is 1 where higher is better."""
    if values.isna().any() or values.empty:
        return float("nan")
    ranked = np.sort(sign * values.to_numpy())
    return float(sign * ranked[: -(-len(ranked) // 10)].mean())


def collaboration(records: Records, algorithm: str | None = None) -> go.Figure:
    """One algorithm's collaboration matrix over time, with a slider and a play button.

    Row i shows whom client i learns from. The first seed with snapshots is shown, at
    evenly spaced rounds where there are too many. The colour scale ends at the largest
    weight that anybody gives to somebody else, so that a heavy diagonal hides nothing.

    Args:
        records: of the study.
        algorithm: a label; None takes the first with snapshots.

    Raises:
        InputError: without snapshots, or with more than CROWD clients.
    """
    keys = [key for key in records.weights if algorithm in (None, key[0])]
    if not keys:
        raise InputError(f"there are no collaboration matrices of {algorithm!r}.")
    if is_crowd(records):
        raise InputError(f"matrices of more than {CROWD} clients are not drawn.")
    label, seed = keys[0]
    clients = by_cluster(records.clients[records.clients["seed"] == seed])
    rows = np.searchsorted(np.sort(clients["client"]), clients["client"])
    kept = _thinned(len(records.weights[label, seed].rounds), len(clients))
    rounds = records.weights[label, seed].rounds[kept]
    matrices = records.weights[label, seed].matrices[kept][:, rows][:, :, rows]
    names = [f"client {client}" for client in clients["client"]]
    figure = _heat_map(matrices, rounds, names)
    _draw_cluster_lines(figure, clients)
    _add_slider(figure, [frame.name for frame in figure.frames])
    ticks = {"showgrid": False, "zeroline": False, "constrain": "domain"}
    if len(clients) <= _LABELLED:
        ticks |= {"tickvals": list(range(len(clients))), "tickfont": {"size": 10}}
        ticks |= {"ticktext": [str(client) for client in clients["client"]]}
    else:
        ticks |= {"showticklabels": False, "ticks": ""}
    figure.update_xaxes(**ticks, title="learns from", tickangle=0)
    figure.update_yaxes(**ticks, title="client", autorange="reversed", scaleanchor="x")
    title = f"Who learns from whom: {_heading(label)}, seed {seed}"
    return _finish(figure, title, 660, menu=True)


def _heat_map(matrices: np.ndarray, rounds: np.ndarray, names: list[str]) -> go.Figure:
    """The last matrix, and a frame named by its round for each."""
    away = matrices[:, ~np.eye(len(names), dtype=bool)]
    largest = float(np.nanmax(away, initial=0.0))
    frames = [
        go.Frame(data=[go.Heatmap(z=matrix.astype(np.float32))], name=str(int(t)))
        for t, matrix in zip(rounds, matrices, strict=True)
    ]
    return go.Figure(
        go.Heatmap(
            z=matrices[-1].astype(np.float32),
            zmin=0,
            zmax=largest if largest > 0 else 1,
            colorscale=[[0, "#ffffff"], [0.5, "#6baed6"], [1, "#08306b"]],
            colorbar={"title": {"text": "weight"}, "thickness": 12, "len": 0.9},
            customdata=np.array([[(a, b) for b in names] for a in names]),
            hovertemplate="%{customdata[0]} learns from %{customdata[1]}<br>"
            "weight %{z:.4f}<extra></extra>",
        ),
        frames=frames,
    )


def partners(records: Records) -> go.Figure:
    """How many others a client learns from, over rounds, mean over clients and seeds.

    Where true clusters are known, solid lines count partners inside one's own cluster
    and dotted lines those outside.
    """
    table, figure = partner_counts(records), go.Figure()
    known = bool(table["inside"].notna().any())
    kinds = {"inside": "solid", "outside": "dot"} if known else {"all": "solid"}
    for label, style in styles_of(records).items():
        mine = table[table["algorithm"] == label]
        for kind, dash in kinds.items() if len(mine) else ():
            figure.add_scatter(
                x=mine["round"].to_numpy(),
                y=mine[kind].to_numpy(),
                mode="lines+markers",
                name=escape(label) + (f", {kind}" if known else ""),
                line={"color": style.colour, "dash": dash, "width": 2},
                marker={"size": 5},
            )
    figure.update_xaxes(title="round")
    figure.update_yaxes(title="partners per client", rangemode="tozero")
    return _finish(figure, "Number of partners", 400)


def clients(records: Records) -> go.Figure:
    """Sizes of the clients' data and their final scores, by cluster.

    Above CROWD clients, means of each cluster stand for its clients.
    """
    score, table = score_of(records), by_cluster(population(records))
    single = not is_crowd(records)
    parts = ["train", "validation", "test"]
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.06)
    names = [f"client {client}" for client in table["client"]]
    sizes = table[parts]
    if not single:
        sizes = table.groupby("cluster", sort=False)[parts].mean()
        names = [cluster_name(int(cluster)) for cluster in sizes.index]
    for part, colour in zip(parts, ("#4d4d4d", "#999999", "#d0d0d0"), strict=True):
        figure.add_bar(
            x=list(range(len(names))),
            y=sizes[part].to_numpy(),
            hovertext=names,
            name=f"{part} samples",
            marker={"color": colour},
            row=1,
            col=1,
        )
    for label, style in styles_of(records).items():
        values = final_scores(records, label).mean(skipna=False)
        if single:
            values = values.reindex(table["client"])
        else:
            values = cluster_means(records, values)
        figure.add_scatter(
            x=list(range(len(names))),
            y=values.to_numpy(),
            hovertext=names,
            mode="markers",
            name=escape(label),
            marker={"color": style.colour, "size": 8},
            row=2,
            col=1,
        )
    ticks = [str(c) for c in table["client"]] if single else names
    figure.update_xaxes(**_client_ticks(ticks, single=single), row=2)
    figure.update_layout(barmode="stack")
    if single:
        _draw_cluster_bounds(figure, table)
    figure.update_yaxes(title="samples", row=1)
    figure.update_yaxes(title=score.words, tickformat=score.ticks, row=2)
    title = "Data and final score of each client"
    title = title if single else "Means over the clients of each cluster"
    return _finish(figure, title, 620)


def cluster_means(records: Records, values: pd.Series) -> pd.Series:
    """The mean over each cluster's tested clients, in the order of the clusters."""
    table = by_cluster(population(records)).set_index("client")["cluster"]
    means = {
        # Unlike a group's mean, this one does not skip what is not a number.
        cluster: values.loc[values.index.isin(members.index)].mean(skipna=False)
        for cluster, members in table.groupby(table, sort=False)
    }
    return pd.Series(means, dtype=float)


def cluster_name(cluster: int) -> str:
    """What a cluster is called."""
    return f"cluster {cluster}" if cluster >= 0 else "cluster unknown"


def count_gains(table: pd.DataFrame) -> tuple[int, int, int]:
    """How many clients gain, lose and stay equal, by their mean over seeds."""
    mean = table.mean(skipna=False)
    return int((mean > 0).sum()), int((mean < 0).sum()), int((mean == 0).sum())


def _gain_bars(records: Records, tables: dict[str, pd.DataFrame]) -> go.Figure:
    score, styles, table = (
        score_of(records),
        styles_of(records),
        by_cluster(population(records)),
    )
    figure, buttons = go.Figure(), []
    for number, (label, gained) in enumerate(tables.items()):
        mean = gained.mean(skipna=False).reindex(table["client"])
        # Clusters keep their places for every algorithm; clients sort inside them.
        group = (table["cluster"] != table["cluster"].shift()).cumsum()
        order = np.lexsort((-mean.to_numpy(), group.to_numpy()))
        names, mean = table["client"].iloc[order], mean.iloc[order]
        clusters = table["cluster"].iloc[order]
        figure.add_bar(
            x=list(range(len(table))),
            y=mean.to_numpy(),
            error_y=_whiskers(gained, mean),
            name=escape(label),
            marker={"color": styles[label].colour},
            visible=number == 0,
            hovertext=[
                f"client {client}, {cluster_name(int(cluster))}"
                for client, cluster in zip(names, clusters, strict=True)
            ],
            hovertemplate="%{hovertext}<br>%{y:+.3g}<extra></extra>",
        )
        more, less, equal = count_gains(gained)
        title = f"{_heading(label)}: {more} gain, {less} lose, {equal} equal"
        ticks = _client_ticks([str(client) for client in names], single=True)
        layout = {f"xaxis.{key}": value for key, value in ticks.items()}
        layout = {"title.text": _bold(title), **layout}
        seen = [other == label for other in tables]
        args = [{"visible": seen}, layout]
        buttons.append({"label": escape(label), "method": "update", "args": args})
    figure.update_layout(buttons[0]["args"][1], updatemenus=[_menu(buttons)])
    figure.update_yaxes(title=score.gain, zeroline=True, zerolinecolor="#222222")
    # One scale for all, so that switching the algorithm compares like with like.
    extremes = [table.to_numpy().ravel() for table in tables.values()]
    finite = np.concatenate([[0.0], *extremes])
    finite = finite[np.isfinite(finite)]
    room = 0.08 * max(float(np.ptp(finite)), 1e-9)
    figure.update_yaxes(range=[finite.min() - room, finite.max() + room])
    _draw_cluster_bounds(figure, table)
    return _finish(figure, figure.layout.title.text, 480, menu=True)


def _whiskers(gained: pd.DataFrame, mean: pd.Series) -> dict[str, object] | None:
    """From the lowest to the highest seed, or nothing if there is one seed."""
    if len(gained) < 2:
        return None
    low, high = gained.min().reindex(mean.index), gained.max().reindex(mean.index)
    return {
        "array": (high - mean).to_numpy(),
        "arrayminus": (mean - low).to_numpy(),
        "color": "#444444",
        "thickness": 1,
        "width": 2 if len(mean) <= _LABELLED else 0,
    }


def _add_curve(
    figure: go.Figure,
    records: Records,
    label: str,
    style: Style,
    column: str,
    row: int,
    places: dict[str, list[list[float | None]]],
) -> None:
    """Adds the mean line and, given several seeds, their band; notes places on axes."""
    runs = runs_of(records, label)
    values = runs.set_index(["round", "seed", "client"])[column].unstack("client")
    means = values.astype(float).mean(axis=1, skipna=False).unstack("seed")
    # Rounds in which nothing was evaluated are no points at all.
    means = means.replace([np.inf, -np.inf], np.nan).dropna(how="all")
    x = {axis: _places(records, label, means, axis) for axis in places}
    common = {"legendgroup": escape(label), "row": row, "col": 1}
    if means.shape[1] > 1:
        figure.add_scatter(
            y=[*_listed(means.max(axis=1)), *_listed(means.min(axis=1))[::-1]],
            mode="lines",
            fill="toself",
            fillcolor=style.faint(0.15),
            line={"width": 0},
            hoverinfo="skip",
            showlegend=False,
            name=f"{escape(label)}, range of seeds",
            **common,
        )
        for axis in places:
            places[axis].append([*x[axis], *x[axis][::-1]])
    figure.add_scatter(
        y=_listed(means.mean(axis=1, skipna=False)),
        mode="lines+markers" if len(means) <= 30 else "lines",
        name=escape(label),
        showlegend=row == 1,
        line={"color": style.colour, "dash": style.dash, "width": 2},
        marker={"size": 4},
        **common,
    )
    for axis in places:
        places[axis].append(x[axis])


def _places(
    records: Records, label: str, means: pd.DataFrame, axis: str
) -> list[float | None]:
    if axis == "round":
        return [float(t) for t in means.index]
    mine = records.rounds[records.rounds["algorithm"] == label]
    mine = mine[mine["seed"].isin(means.columns)]
    return _listed(mine.groupby("round")[axis].mean().reindex(means.index))


def _listed(values: pd.Series) -> list[float | None]:
    """A list as JSON can hold it, with None for what is not finite."""
    return [float(v) if np.isfinite(v) else None for v in values]


def _use_logarithm_if_wide(figure: go.Figure, shown: list[str]) -> None:
    """Turns the loss axis logarithmic where losses differ a hundredfold."""
    if "test_loss" not in shown:
        return
    row = shown.index("test_loss") + 1
    panel = "y" if row == 1 else f"y{row}"
    traces = [t.y for t in figure.data if (t.yaxis or "y") == panel]
    values = np.array([v for y in traces for v in y if v is not None], dtype=float)
    if values.size and values.min() > 0 and values.max() > 100 * values.min():
        figure.update_yaxes(type="log", title="test loss (logarithmic)", row=row)


def _boxes(
    values: dict[str, pd.Series], styles: dict[str, Style], *, dots: bool
) -> go.Figure:
    """One horizontal box per algorithm, with a dot per client if asked."""
    figure = go.Figure()
    for place, (label, series) in enumerate(values.items()):
        finite = series[np.isfinite(series)]
        if finite.empty:
            continue
        low, lower, middle, upper, high = np.quantile(finite, [0, 0.25, 0.5, 0.75, 1])
        figure.add_box(
            y=[place],
            q1=[lower],
            median=[middle],
            q3=[upper],
            lowerfence=[low],
            upperfence=[high],
            orientation="h",
            width=0.6,
            name=escape(label),
            line={"color": styles[label].colour, "width": 1.5},
            fillcolor=styles[label].faint(0.12),
            showlegend=False,
        )
        if dots:
            # Spread by the golden ratio: even, and the same at every drawing.
            shift = 0.4 * (np.arange(len(finite)) * 0.618034 % 1 - 0.5)
            figure.add_scatter(
                x=finite.to_numpy(),
                y=place + shift,
                mode="markers",
                marker={"color": styles[label].colour, "size": 6, "opacity": 0.7},
                hovertext=[f"client {client}" for client in finite.index],
                hovertemplate="%{hovertext}<br>%{x:.4g}",
                name=escape(label),
                showlegend=False,
            )
    figure.update_yaxes(
        tickvals=list(range(len(values))),
        ticktext=[escape(label) for label in values],
        range=[len(values) - 0.5, -0.5],
        showgrid=False,
        zeroline=False,
    )
    return figure


def _thinned(count: int, n: int) -> np.ndarray:
    """Which of `count` snapshots of n clients to show, with the first and the last."""
    most = int(np.clip(_PIXELS // n**2, 8, 60))
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


def _cluster_runs(table: pd.DataFrame) -> list[tuple[int, int, int]]:
    """Cluster, first and last place of every cluster among ordered clients."""
    cluster = table["cluster"].to_numpy()
    return [
        (
            int(c),
            int(np.flatnonzero(cluster == c)[0]),
            int(np.flatnonzero(cluster == c)[-1]),
        )
        for c in dict.fromkeys(cluster)
    ]


def _draw_cluster_lines(figure: go.Figure, table: pd.DataFrame) -> None:
    """Draws the boundaries of clusters on a matrix."""
    for _, first, _ in _cluster_runs(table)[1:]:
        line = {"color": "#D55E00", "width": 1.5}
        figure.add_vline(x=first - 0.5, line=line)
        figure.add_hline(y=first - 0.5, line=line)


def _draw_cluster_bounds(figure: go.Figure, table: pd.DataFrame) -> None:
    """Draws the boundaries of clusters along a row of clients, and names them."""
    runs = _cluster_runs(table)
    if len(runs) == 1:
        return
    for cluster, first, last in runs:
        if first:
            line = {"color": "#999999", "width": 1, "dash": "dot"}
            figure.add_vline(x=first - 0.5, line=line)
        if len(runs) <= 12:
            name = cluster_name(cluster)
            figure.add_annotation(
                x=(first + last) / 2,
                y=1,
                yref="paper",
                yanchor="bottom",
                showarrow=False,
                text=name if len(runs) <= 4 else name.removeprefix("cluster "),
                font={"size": 12, "color": "#555555"},
            )


def _client_ticks(names: list[str], *, single: bool) -> dict[str, object]:
    if single and len(names) > _LABELLED:
        return {
            "showticklabels": False,
            "showgrid": False,
            "title": "clients, by cluster",
        }
    return {
        "tickvals": list(range(len(names))),
        "ticktext": names,
        "showgrid": False,
        "title": "client" if single else "",
    }


def _menu(buttons: Sequence[object], active: int = 0) -> dict[str, object]:
    return {
        "buttons": buttons,
        "active": active,
        "x": 0,
        "xanchor": "left",
        "y": 1,
        "yanchor": "bottom",
        "pad": {"b": 26},
        "bgcolor": "#ffffff",
        "bordercolor": "#999999",
    }


def _add_slider(figure: go.Figure, names: list[str]) -> None:
    """Adds a slider over the frames and a button that plays them."""
    if len(names) < 2:
        return
    still = {"mode": "immediate", "transition": {"duration": 0}}
    jump = still | {"frame": {"duration": 0, "redraw": True}}
    play = still | {"frame": {"duration": 400, "redraw": True}}
    steps = [
        {"label": name, "method": "animate", "args": [[name], jump]} for name in names
    ]
    buttons = [
        {"label": "Play", "method": "animate", "args": [names, play]},
        {"label": "Pause", "method": "animate", "args": [[None], jump]},
    ]
    slider = {
        "steps": steps,
        "active": len(names) - 1,
        "currentvalue": {"prefix": "round "},
        "pad": {"t": 60},
    }
    menu = _menu(buttons) | {
        "type": "buttons",
        "direction": "right",
        "pad": {"b": 6},
    }
    figure.update_layout(sliders=[slider], updatemenus=[menu | {"showactive": False}])


def _bold(text: str) -> str:
    return f"<b>{text}</b>"


def _finish(
    figure: go.Figure,
    title: str,
    height: int,
    rows: list[str] | None = None,
    *,
    menu: bool = False,
) -> go.Figure:
    """The figure with title, size and calm looks; `rows` add to the height."""
    title = title if title.startswith("<b>") else _bold(title)
    heading = {"text": title, "x": 0, "xref": "paper", "y": 0.98, "yanchor": "top"}
    legend = {"orientation": "h", "x": 0, "yref": "container", "y": 0}
    figure.update_layout(
        template="none",
        title=heading | {"font": {"size": 15}},
        height=height + 46 * len(rows or []),
        margin={"l": 64, "r": 16, "t": 110 if menu else 64, "b": 60},
        font={"family": "system-ui, sans-serif", "size": 13, "color": "#222222"},
        legend=legend | {"yanchor": "bottom", "traceorder": "normal"},
        modebar={"color": "#bbbbbb", "activecolor": "#555555"},
    )
    grid = {"gridcolor": "#e8e8e8", "title_font_size": 13, "automargin": True}
    figure.update_xaxes(**grid, zeroline=False, title_standoff=12)
    figure.update_yaxes(**grid, title_standoff=12)
    return figure
