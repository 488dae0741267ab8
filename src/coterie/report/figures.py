"""Figures of a study, each drawn from its records alone.

What "final" means and which seeds and clients count is said in `tables`.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..checks import InputError
from ..records import Records
from ..scores.axes import axis_of
from ..scores.finals import (
    CROWD,
    baseline_of,
    by_cluster,
    cluster_means,
    cluster_name,
    final_scores,
    is_crowd,
    newcomer_gains,
    newcomer_labels,
    newcomer_scores,
    over_seeds,
    population,
    runs_of,
    score_of,
    seed_means,
    worst_decile,
)
from ..scores.gains import Gain, gain_of
from .styles import (
    Style,
    bold,
    boxes,
    button,
    client_ticks,
    draw_cluster_bounds,
    escape,
    finish,
    heading,
    menu_of,
    row_of,
    styles_of,
    tick_names,
    whiskers,
)
from .tables import favourite_of, reliability_of

_COUNTS = {
    "updates": "updates: answers of clients that arrived",
    "gradients": "per-sample gradient evaluations, all clients",
    "bytes": "bytes sent, all clients",
}


def gains(records: Records) -> go.Figure:
    """Every client's test score minus that of training alone, one view per algorithm.

    The view at the start is that of the best mean validation score. Bars are sorted
    inside each cluster; whiskers are 95 per cent intervals, and bars are pale where
    these reach over zero: nothing can be told. Above CROWD clients, one box per
    algorithm shows their distribution.

    Raises:
        InputError: without results of `local`, or of anything to compare with it.
    """
    score, styles = score_of(records), styles_of(records)
    others = [label for label in styles if label != baseline_of(records)]
    found = {label: gain_of(records, label) for label in others}
    first = favourite_of(records)
    if is_crowd(records):
        means = {a: gain.clients["mean"] * score.unit for a, gain in found.items()}
        figure = boxes(means, styles, dots=False)
        figure.add_vline(x=0, line={"color": "#222222", "width": 1})
        figure.update_xaxes(title=score.gain)
        return finish(figure, "Gain over training alone, per client", 160, others)
    return _gain_bars(records, found, first)


def _gain_bars(records: Records, found: dict[str, Gain], first: str) -> go.Figure:
    """A bar per client, of the algorithm `first` until another is chosen."""
    table, styles = by_cluster(population(records)), styles_of(records)
    unit, ends = score_of(records).unit, [np.zeros(1)]
    figure, buttons, layouts = go.Figure(), [], {}
    for label, gain in found.items():
        gained = gain.clients.reindex(table["client"])
        numbers = ["mean", "low", "high"]
        gained[numbers] *= unit
        ends.append(gained[numbers].to_numpy().ravel())
        # Clusters keep their places for every algorithm; clients sort inside them.
        group = (table["cluster"] != table["cluster"].shift()).cumsum()
        order = np.lexsort((-gained["mean"].to_numpy(), group.to_numpy()))
        gained, clusters = gained.iloc[order], table["cluster"].iloc[order]
        sure = gained["verdict"].isin(["gains", "loses"])
        style = styles[label]
        figure.add_bar(
            x=list(range(len(table))),
            y=gained["mean"].to_numpy(),
            error_y=whiskers(gained),
            name=escape(label),
            marker={"color": [style.colour if s else style.faint(0.35) for s in sure]},
            visible=label == first,
            hovertext=[
                f"{escape(records.name_of(int(client)))}, "
                f"{cluster_name(int(cluster))}: {verdict}"
                for client, cluster, verdict in zip(
                    gained.index, clusters, gained["verdict"], strict=True
                )
            ],
            hovertemplate="%{hovertext}<br>%{y:+.3g}<extra></extra>",
        )
        more, less, unsure = gain.counts().values()
        title = f"{heading(label)}: {more} gain, {less} lose, {unsure} cannot tell"
        ticks = client_ticks(tick_names(records, gained.index), single=True)
        layout = {f"xaxis.{key}": value for key, value in ticks.items()}
        layouts[label] = {"title.text": bold(title), **layout}
        seen = [other == label for other in found]
        buttons.append(button(label, {"visible": seen}, layouts[label]))
    menu = menu_of(buttons, active=list(found).index(first))
    figure.update_layout(layouts[first], updatemenus=[menu])
    title = score_of(records).gain
    figure.update_yaxes(title=title, zeroline=True, zerolinecolor="#222222")
    # One scale for all, so that switching the algorithm compares like with like.
    finite = np.concatenate(ends)
    finite = finite[np.isfinite(finite)]
    room = 0.08 * max(float(np.ptp(finite)), 1e-9)
    figure.update_yaxes(range=[finite.min() - room, finite.max() + room])
    draw_cluster_bounds(figure, table)
    return finish(figure, figure.layout.title.text, 480, menu=True)


def curves(records: Records, against: str | None = None) -> go.Figure:
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
    score, own = score_of(records), axis_of(records)
    counts = {name: words for name, words in _COUNTS.items() if name in records.rounds}
    titles = {own.name: own.title} | counts
    axes = list(titles)
    against = own.name if against is None else against
    if against not in axes:
        raise InputError(f"`against` must be one of {axes}, but is {against!r}.")
    columns = dict.fromkeys([score.column, "test_loss"])
    shown = [column for column in columns if column in records.metrics]
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
        button(f"by {axis}", {"x": places[axis]}, {bottom: title})
        for axis, title in titles.items()
    ]
    # More than three do not fit side by side on a narrow screen.
    menu = row_of if len(axes) <= 3 else menu_of
    menus = [menu(buttons, active=axes.index(against))]
    figure.update_layout(updatemenus=menus, hovermode="x unified")
    figure.update_xaxes(title=titles[against], row=len(shown))
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
    own = axis_of(records)
    if axis == own.name:
        return [own.place(t) for t in means.index]
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
    named = {a: values.rename(records.name_of) for a, values in means.items()}
    figure = boxes(named, styles, dots=not is_crowd(records))
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
        a: series.set_axis(
            [f"{records.name_of(c)}, seed {seed}" for seed, c in series.index]
        )
        for a, series in values.items()
    }
    crowd = max(len(series) for series in values.values()) > CROWD
    figure = boxes(named, styles, dots=not crowd)
    if words == score.gain:
        figure.add_vline(x=0, line={"color": "#222222", "width": 1})
    figure.update_xaxes(title=words, tickformat=ticks)
    return finish(figure, title, 160, labels)


def clients(records: Records) -> go.Figure:
    """Sizes of the clients' data and their final scores, by cluster.

    Above CROWD clients, means of each cluster stand for its clients.
    """
    score, table = score_of(records), by_cluster(population(records))
    single = not is_crowd(records)
    parts = ["train", "validation", "test"]
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.06)
    names = [escape(records.name_of(client)) for client in table["client"]]
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
    ticks = tick_names(records, table["client"]) if single else names
    figure.update_xaxes(**client_ticks(ticks, single=single), row=2)
    figure.update_layout(barmode="stack")
    if single:
        draw_cluster_bounds(figure, table)
    figure.update_yaxes(title="samples", row=1)
    figure.update_yaxes(title=score.words, tickformat=score.ticks, row=2)
    title = "Data and final score of each client"
    title = title if single else "Means over the clients of each cluster"
    return finish(figure, title, 620)


def reliability(records: Records) -> go.Figure:
    """How often final models are right against how sure they are, on test samples.

    Raises:
        InputError: where no labels were predicted.
    """
    if records.calibration.empty:
        raise InputError("the records have no predictions of labels.")
    figure = go.Figure()
    line = {"color": "#222222", "width": 1, "dash": "dot"}
    figure.add_scatter(x=[0, 1], y=[0, 1], mode="lines", line=line, name="calibrated")
    for label, style in styles_of(records).items():
        bins = reliability_of(records, label)
        figure.add_scatter(
            x=bins["confidence"],
            y=bins["accuracy"],
            customdata=bins["count"],
            mode="lines+markers",
            line={"color": style.colour, "dash": style.dash},
            name=escape(label),
            hovertemplate="sure of %{x:.1%}, right in %{y:.1%}, of %{customdata}",
        )
    share = {"tickformat": "~%", "range": [0, 1.02]}
    figure.update_xaxes(title="confidence in the predicted class", **share)
    figure.update_yaxes(title="share that is right", **share)
    return finish(figure, "How sure, and how often right", 460)
