"""Figures of a study, each drawn from its records alone.

What "final" means and which seeds and clients count is said in `tables`.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..checks import InputError
from ..models.objectives import TASKS
from ..records import Records
from .axes import course_of
from .styles import (
    LABELLED,
    Style,
    add_slider,
    bold,
    boxes,
    client_ticks,
    draw_cluster_bounds,
    draw_cluster_lines,
    escape,
    finish,
    heading,
    heat_map,
    menu_of,
    styles_of,
    thinned,
    whiskers,
)
from .tables import (
    CROWD,
    baseline_of,
    by_cluster,
    cluster_means,
    cluster_name,
    count_gains,
    favourite_of,
    final_gains,
    final_scores,
    is_crowd,
    last_trials,
    newcomer_gains,
    newcomer_labels,
    newcomer_scores,
    over_seeds,
    partner_counts,
    population,
    runs_of,
    score_of,
    seed_means,
    setting_text,
    tuned_options,
    worst_decile,
)

Axis = Literal["round", "time", "updates", "gradients", "bytes"]

_AXES = {
    "round": "round",
    "time": "virtual seconds",
    "updates": "updates: answers of clients that arrived",
    "gradients": "per-sample gradient evaluations, all clients",
    "bytes": "bytes sent, all clients",
}


def gains(records: Records) -> go.Figure:
    """Every client's test score minus that of training alone, one view per algorithm.

    The view at the start is that of the best mean validation score. Bars are sorted
    inside each cluster; whiskers reach to the lowest and the highest seed. Above CROWD
    clients, one box per algorithm shows their distribution.

    Raises:
        InputError: without results of `local`, or of anything to compare with it.
    """
    score, styles = score_of(records), styles_of(records)
    others = [label for label in styles if label != baseline_of(records)]
    tables = {label: final_gains(records, label) * score.unit for label in others}
    first = favourite_of(records)
    if is_crowd(records):
        means = {label: over_seeds(records, table) for label, table in tables.items()}
        figure = boxes(means, styles, dots=False)
        figure.add_vline(x=0, line={"color": "#222222", "width": 1})
        figure.update_xaxes(title=score.gain)
        return finish(figure, "Gain over training alone, per client", 160, others)
    return _gain_bars(records, tables, first)


def _gain_bars(
    records: Records, tables: dict[str, pd.DataFrame], first: str
) -> go.Figure:
    """A bar per client, of the algorithm `first` until another is chosen."""
    score, styles, table = (
        score_of(records),
        styles_of(records),
        by_cluster(population(records)),
    )
    figure, buttons = go.Figure(), []
    for label, gained in tables.items():
        mean = over_seeds(records, gained).reindex(table["client"])
        # Clusters keep their places for every algorithm; clients sort inside them.
        group = (table["cluster"] != table["cluster"].shift()).cumsum()
        order = np.lexsort((-mean.to_numpy(), group.to_numpy()))
        names, mean = table["client"].iloc[order], mean.iloc[order]
        clusters = table["cluster"].iloc[order]
        figure.add_bar(
            x=list(range(len(table))),
            y=mean.to_numpy(),
            error_y=whiskers(gained, mean),
            name=escape(label),
            marker={"color": styles[label].colour},
            visible=label == first,
            hovertext=[
                f"client {client}, {cluster_name(int(cluster))}"
                for client, cluster in zip(names, clusters, strict=True)
            ],
            hovertemplate="%{hovertext}<br>%{y:+.3g}<extra></extra>",
        )
        more, less, equal = count_gains(mean)
        title = f"{heading(label)}: {more} gain, {less} lose, {equal} equal"
        ticks = client_ticks([str(client) for client in names], single=True)
        layout = {f"xaxis.{key}": value for key, value in ticks.items()}
        layout = {"title.text": bold(title), **layout}
        seen = [other == label for other in tables]
        args = [{"visible": seen}, layout]
        buttons.append({"label": escape(label), "method": "update", "args": args})
    place = list(tables).index(first)
    menu = menu_of(buttons, active=place)
    figure.update_layout(buttons[place]["args"][1], updatemenus=[menu])
    figure.update_yaxes(title=score.gain, zeroline=True, zerolinecolor="#222222")
    # One scale for all, so that switching the algorithm compares like with like.
    extremes = [table.to_numpy().ravel() for table in tables.values()]
    finite = np.concatenate([[0.0], *extremes])
    finite = finite[np.isfinite(finite)]
    room = 0.08 * max(float(np.ptp(finite)), 1e-9)
    figure.update_yaxes(range=[finite.min() - room, finite.max() + room])
    draw_cluster_bounds(figure, table)
    return finish(figure, figure.layout.title.text, 480, menu=True)


def curves(records: Records, against: Axis | None = None) -> go.Figure:
    """Mean test score and loss over time, with buttons that change the horizontal axis.

    Lines are means over clients and seeds; bands reach from the lowest to the highest
    seed. Against a count, a point stands at its mean over the seeds.

    Args:
        records: of the study.
        against: an axis; None takes virtual time where there is [time], and rounds
            elsewhere. In virtual time rounds are ticks, and no axis.

    Raises:
        InputError: when the records hold no such axis.
    """
    course = course_of(records)
    counts = [a for a in ("updates", "gradients", "bytes") if a in records.rounds]
    axes = [course.axis, *counts]
    against = course.axis if against is None else against
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
    menu = menu_of(buttons, active=axes.index(against))
    if len(axes) <= 3:  # more do not fit side by side on a narrow screen
        menu |= {"type": "buttons", "direction": "right"}
    figure.update_layout(updatemenus=[menu])
    figure.update_layout(hovermode="x unified")
    figure.update_xaxes(title=_AXES[against], row=len(shown))
    figure.update_yaxes(tickformat=score.ticks, title=score.words, row=1)
    figure.update_yaxes(zeroline=False)
    if len(shown) > 1:
        figure.update_yaxes(title="test loss", row=2)
    _use_logarithm_if_wide(figure, shown)
    height = 380 + 240 * (len(shown) - 1)
    return finish(figure, "Mean over clients during training", height, menu=True)


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
    means = seed_means(runs_of(records, label), column)
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
    course = course_of(records)
    if axis == course.axis:
        return [course.place(t) for t in means.index]
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


def spread(records: Records) -> go.Figure:
    """The clients' final test scores, one row per algorithm.

    A dot is a client (mean over seeds), the box holds the middle half, whiskers reach
    to the extremes, the diamond is the mean of the worst tenth of the clients.
    """
    score, styles = score_of(records), styles_of(records)
    means = {a: over_seeds(records, final_scores(records, a)) for a in styles}
    figure = boxes(means, styles, dots=not is_crowd(records))
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
    return finish(figure, "Final scores of the clients", 190, list(means))


def newcomers(records: Records) -> go.Figure:
    """How much better than alone each newcomer is, one row per algorithm.

    A dot is a client that was held out with one seed; with more than CROWD of them
    there are only boxes. Without results of `local`, the scores themselves are shown.

    Raises:
        InputError: when the records have no newcomers.
    """
    score, styles, local = score_of(records), styles_of(records), baseline_of(records)
    labels = newcomer_labels(records)
    if not labels:
        raise InputError("the records have no newcomers.")
    if local in labels and len(labels) > 1:
        labels.remove(local)
        values = {a: newcomer_gains(records, a) * score.unit for a in labels}
        title, words, ticks = "Gain over training alone, per newcomer", score.gain, ""
    else:
        values = {a: newcomer_scores(records, a) for a in labels}
        title, words, ticks = "Scores of the newcomers", score.words, score.ticks
    # What a dot is called: the client, and the seed that held it out.
    named = {
        a: series.set_axis([f"{client}, seed {seed}" for seed, client in series.index])
        for a, series in values.items()
    }
    crowd = max(len(series) for series in values.values()) > CROWD
    figure = boxes(named, styles, dots=not crowd)
    if words == score.gain:
        figure.add_vline(x=0, line={"color": "#222222", "width": 1})
    figure.update_xaxes(title=words, tickformat=ticks)
    return finish(figure, title, 160, labels)


def trials(records: Records) -> go.Figure:
    """The validation score of every setting that was tried, against its options.

    A setting stands at its last score: a star was chosen, a hollow dot was dropped
    after fewer rounds. Settings that could not be trained are not drawn.

    Raises:
        InputError: when nothing was tried.
    """
    score, table, course = score_of(records), last_trials(records), course_of(records)
    if table.empty:
        raise InputError("the records have no trials: [tune] searches options.")
    options = [o for o in tuned_options(records) if table[o].notna().any()]
    figure, places = go.Figure(), {option: list[list[object]]() for option in options}
    for label, style in styles_of(records).items():
        mine = table[table["algorithm"] == label]
        if mine.empty:
            continue
        for option in options:
            places[option].append([_placed(value) for value in mine[option]])
        figure.add_scatter(
            y=mine["score"].to_numpy(),
            mode="markers",
            name=escape(label),
            marker={
                "color": style.colour,
                "symbol": [_SYMBOLS.get(s, "circle-open") for s in mine["status"]],
                "size": [15 if s == "chosen" else 8 for s in mine["status"]],
            },
            hovertext=[
                f"{escape(setting_text(row[options]))}<br>seed {row['seed']}, "
                f"{course.length(int(row['rounds']))}"
                for _, row in mine.iterrows()
            ],
        )
    buttons = [
        {
            "label": f"by {escape(option)}",
            "method": "update",
            "args": [{"x": x}, {"xaxis.title.text": option, "xaxis.type": _scale(x)}],
        }
        for option, x in places.items()
    ]
    for trace, x in zip(figure.data, places[options[0]], strict=True):
        trace.x = x
    figure.update_layout(buttons[0]["args"][1])
    menu = menu_of(buttons) | {"type": "buttons", "direction": "right"}
    if len(options) > 1:
        figure.update_layout(updatemenus=[menu])
    words = f"validation {TASKS[records.task].score}"
    figure.update_yaxes(title=words, tickformat=score.ticks, zeroline=False)
    title = "Validation score of every setting that was tried"
    return finish(figure, title, 420, menu=len(options) > 1)


_SYMBOLS = {"finished": "circle", "chosen": "star"}


def _placed(value: object) -> object:
    """Where a setting stands on the axis of an option, None where it has none."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value if np.isfinite(value) else None
    return str(value)


def _scale(places: list[list[object]]) -> str:
    """The type of an axis for these values: logarithmic if they differ tenfold."""
    values = [value for trace in places for value in trace if value is not None]
    numbers = [value for value in values if isinstance(value, int | float)]
    if len(numbers) < len(values):
        return "category"
    wide = min(numbers) > 0 and max(numbers) >= 10 * min(numbers)
    return "log" if wide else "linear"


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
    kept = thinned(len(records.weights[label, seed].rounds), len(clients))
    rounds = records.weights[label, seed].rounds[kept]
    matrices = records.weights[label, seed].matrices[kept][:, rows][:, :, rows]
    names = [f"client {client}" for client in clients["client"]]
    figure = heat_map(matrices, rounds, names)
    draw_cluster_lines(figure, clients)
    add_slider(figure, [frame.name for frame in figure.frames], course_of(records))
    ticks = {"showgrid": False, "zeroline": False, "constrain": "domain"}
    if len(clients) <= LABELLED:
        ticks |= {"tickvals": list(range(len(clients))), "tickfont": {"size": 10}}
        ticks |= {"ticktext": [str(client) for client in clients["client"]]}
    else:
        ticks |= {"showticklabels": False, "ticks": ""}
    figure.update_xaxes(**ticks, title="learns from", tickangle=0)
    figure.update_yaxes(**ticks, title="client", autorange="reversed", scaleanchor="x")
    title = f"Who learns from whom: {heading(label)}, seed {seed}"
    return finish(figure, title, 660, menu=True)


def partners(records: Records) -> go.Figure:
    """How many others a client learns from, over time, mean over clients and seeds.

    Where true clusters are known, solid lines count partners inside one's own cluster
    and dotted lines those outside.
    """
    table, figure, course = partner_counts(records), go.Figure(), course_of(records)
    known = bool(table["inside"].notna().any())
    kinds = {"inside": "solid", "outside": "dot"} if known else {"all": "solid"}
    for label, style in styles_of(records).items():
        mine = table[table["algorithm"] == label]
        for kind, dash in kinds.items() if len(mine) else ():
            figure.add_scatter(
                x=course.period * mine["round"].to_numpy(),
                y=mine[kind].to_numpy(),
                mode="lines+markers",
                name=escape(label) + (f", {kind}" if known else ""),
                line={"color": style.colour, "dash": dash, "width": 2},
                marker={"size": 5},
            )
    figure.update_xaxes(title=course.words)
    figure.update_yaxes(title="partners per client", rangemode="tozero")
    return finish(figure, "Number of partners", 400)


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
        values = over_seeds(records, final_scores(records, label))
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
    figure.update_xaxes(**client_ticks(ticks, single=single), row=2)
    figure.update_layout(barmode="stack")
    if single:
        draw_cluster_bounds(figure, table)
    figure.update_yaxes(title="samples", row=1)
    figure.update_yaxes(title=score.words, tickformat=score.ticks, row=2)
    title = "Data and final score of each client"
    title = title if single else "Means over the clients of each cluster"
    return finish(figure, title, 620)
