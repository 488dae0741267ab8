"""Figures of a study, drawn from its records alone.

`scores.finals` says what "final" means, and which seeds and clients count.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import torch

from ..checks import InputError
from ..graphs.layouts import places
from ..records import Records
from ..scores.finals import (
    CROWD,
    cluster_means,
    cluster_name,
    final_scores,
    is_crowd,
    local_label,
    mean_over_seeds,
    newcomer_gains,
    newcomer_labels,
    newcomer_scores,
    population,
    score_of,
    sort_by_cluster,
    worst_decile,
)
from ..scores.gains import Gain, gain_of
from ..scores.summaries import favourite_of
from .styles import (
    LABELLED,
    PlotSpec,
    bold,
    boxes,
    button,
    client_ticks,
    cluster_bounds,
    colour_bar,
    escape,
    finish,
    heading,
    menu_of,
    merge_specs,
    panels,
    styles_of,
    tick_names,
    vertical_line,
    whiskers,
)


def gains(records: Records) -> go.Figure:
    """Every client's gain over training alone, one view per algorithm.

    The first view shows the algorithm with the best mean validation score. Inside each
    cluster, bars are sorted by the gains in this view, and clients keep these places in
    all views. Whiskers are 95 % intervals. A bar is faint if its interval contains 0.
    With more than CROWD clients, one box per algorithm shows the distribution.

    Raises:
        InputError: without results of `local`, or of anything to compare with it.
    """
    score, styles = score_of(records), styles_of(records)
    others = [label for label in styles if label != local_label(records)]
    found = {label: gain_of(records, label) for label in others}
    first = favourite_of(records)
    if is_crowd(records):
        means = {a: gain.clients["mean"] * score.unit for a, gain in found.items()}
        traces, axis = boxes(means, styles, dots=False)
        looks: PlotSpec = {
            "yaxis": axis,
            "xaxis": {"title": {"text": escape(score.gain)}},
        }
        looks["shapes"] = [vertical_line(0, _ALONE)]
        title = "Gain over training alone, per client"
        return finish(traces, looks, title, 160, others)
    return _gain_bars(records, found, first)


_ALONE = {"color": "#222222", "width": 1}
"""The line at gain 0."""


def _gain_bars(records: Records, found: dict[str, Gain], first: str) -> go.Figure:
    """A bar per client, for `first` until a reader chooses another algorithm."""
    table, styles = _sorted_inside_clusters(records, found[first]), styles_of(records)
    unit, ends = score_of(records).unit, [np.zeros(1)]
    traces, buttons, titles = [], [], {}
    for label, gain in found.items():
        gained = gain.clients.reindex(table["client"])
        numbers = ["mean", "low", "high"]
        gained[numbers] *= unit
        ends.append(gained[numbers].to_numpy().ravel())
        sure = gained["verdict"].isin(["gains", "loses"])
        style = styles[label]
        trace = {
            "type": "bar",
            "x": list(range(len(table))),
            "y": gained["mean"].to_numpy(),
            "error_y": whiskers(gained),
            "name": escape(label),
            "marker": {
                "color": [style.colour if s else style.faint(0.35) for s in sure],
                "line": {"color": style.colour, "width": int(len(table) <= LABELLED)},
            },
            "visible": label == first,
            "hoverlabel": {"bgcolor": style.colour},  # not as faint as the bar
            "hovertext": [
                escape(records.name_of(int(client)))
                + (f", {cluster_name(int(cluster))}" if cluster >= 0 else "")
                + f": {verdict}"
                for client, cluster, verdict in zip(
                    gained.index, table["cluster"], gained["verdict"], strict=True
                )
            ],
            "hovertemplate": "%{hovertext}<br>%{y:+.3g}<extra></extra>",
        }
        traces.append(trace)
        more, less, unsure = gain.counts().values()
        title = f"{heading(label)}: {more} gain, {less} lose, {unsure} not sure"
        titles[label] = bold(title)
        seen = [other == label for other in found]
        buttons.append(button(label, {"visible": seen}, {"title.text": bold(title)}))
    menu = menu_of(buttons, active=list(found).index(first))
    names = tick_names(records, table["client"])
    # All views share one scale, so that algorithms can be compared.
    finite = np.concatenate(ends)
    finite = finite[np.isfinite(finite)]
    room = 0.08 * max(float(np.ptp(finite)), 1e-9)
    down = {"title": {"text": escape(score_of(records).gain)}, "zeroline": True}
    down |= {"range": [finite.min() - room, finite.max() + room]}
    looks = cluster_bounds(table) | {"updatemenus": [menu]}
    looks |= {"xaxis": client_ticks(names, single=True)}
    looks |= {"yaxis": down | {"zerolinecolor": "#222222"}}
    return finish(traces, looks, titles[first], 480, menu=True)


def _sorted_inside_clusters(records: Records, gain: Gain) -> pd.DataFrame:
    """The clients sorted by cluster, then by gain, with the largest gain first."""
    table = sort_by_cluster(population(records))
    group = (table["cluster"] != table["cluster"].shift()).cumsum()
    gained = gain.clients["mean"].reindex(table["client"]).to_numpy()
    return table.iloc[np.lexsort((-gained, group))].reset_index(drop=True)


def spread(records: Records) -> go.Figure:
    """The clients' final test scores, one row per algorithm.

    A dot is a client (mean over seeds). The box holds the middle half of the clients,
    and whiskers reach to the extremes. The diamond is the mean of the worst tenth.
    """
    score, styles = score_of(records), styles_of(records)
    means = {a: mean_over_seeds(records, final_scores(records, a)) for a in styles}
    named = {a: values.rename(records.name_of) for a, values in means.items()}
    traces, axis = boxes(named, styles, dots=not is_crowd(records))
    worst = {
        "type": "scatter",
        "x": [worst_decile(values, score.sign) for values in means.values()],
        "y": list(range(len(means))),
        "mode": "markers",
        "name": "mean of the worst tenth",
        "marker": {"symbol": "diamond", "size": 11, "color": "#222222"},
        "hovertemplate": f"worst tenth: %{{x:{score.hover}}}",
    }
    across = {"title": {"text": escape(score.axis)}, "tickformat": score.ticks}
    looks, title = {"xaxis": across, "yaxis": axis}, "Final scores of the clients"
    return finish([*traces, worst], looks, title, 190, list(means))


def newcomers(records: Records) -> go.Figure:
    """Each newcomer's gain over training alone, one row per algorithm.

    A dot is a client that was held out of training with one seed. With more than CROWD
    dots, the figure shows only boxes. Without results of `local`, the figure shows
    scores instead of gains.

    Raises:
        InputError: if the records have no newcomers.
    """
    score, styles, local = score_of(records), styles_of(records), local_label(records)
    labels = newcomer_labels(records)
    if not labels:
        raise InputError("the records have no newcomers.")
    if local in labels and len(labels) > 1:
        labels.remove(local)
        values = {a: newcomer_gains(records, a) * score.unit for a in labels}
        title, words, ticks = "Gain over training alone, per newcomer", score.gain, ""
    else:
        values = {a: newcomer_scores(records, a) for a in labels}
        title, words, ticks = "Scores of the newcomers", score.axis, score.ticks
    # The name of a dot has the client, and the seed that held it out.
    named = {
        a: series.set_axis(
            [f"{records.name_of(c)}, seed {seed}" for seed, c in series.index]
        )
        for a, series in values.items()
    }
    crowd = max(len(series) for series in values.values()) > CROWD
    traces, axis = boxes(named, styles, dots=not crowd)
    across = {"title": {"text": escape(words)}, "tickformat": ticks}
    looks: PlotSpec = {"yaxis": axis, "xaxis": across}
    if words == score.gain:
        looks["shapes"] = [vertical_line(0, _ALONE)]
    return finish(traces, looks, title, 160, labels)


def clients(records: Records) -> go.Figure:
    """Sizes of the clients' data and their final scores, by cluster.

    With more than CROWD clients, the figure shows the means of each cluster.
    """
    score, table = score_of(records), sort_by_cluster(population(records))
    single = not is_crowd(records)
    parts = ["train", "validation", "test"]
    names = [escape(records.name_of(client)) for client in table["client"]]
    sizes = table[parts]
    if not single:
        sizes = table.groupby("cluster", sort=False)[parts].mean()
        names = [cluster_name(int(cluster)) for cluster in sizes.index]
    common, traces = {"x": list(range(len(names))), "hovertext": names}, []
    for part, colour in zip(parts, ("#4d4d4d", "#999999", "#d0d0d0"), strict=True):
        bar = {
            "type": "bar",
            "y": sizes[part].to_numpy(),
            "hovertemplate": "%{hovertext}<br>%{y:,.0f}",
            "name": f"{part} samples",
            "marker": {"color": colour},
        }
        traces.append(common | bar | {"xaxis": "x", "yaxis": "y"})
    for label, style in styles_of(records).items():
        values = mean_over_seeds(records, final_scores(records, label))
        if single:
            values = values.reindex(table["client"])
        else:
            values = cluster_means(records, values)
        dots = {
            "type": "scatter",
            "y": values.to_numpy(),
            "hovertemplate": f"%{{hovertext}}<br>%{{y:{score.hover}}}",
            "mode": "markers",
            "name": escape(label),
            "marker": {"color": style.colour, "size": 8},
        }
        traces.append(common | dots | {"xaxis": "x2", "yaxis": "y2"})
    ticks = tick_names(records, table["client"]) if single else names
    lower = {"title": {"text": escape(score.axis)}, "tickformat": score.ticks}
    own: PlotSpec = {"yaxis": {"title": {"text": "samples"}}, "yaxis2": lower}
    own |= {"xaxis2": client_ticks(ticks, single=single), "barmode": "stack"}
    looks = merge_specs(panels(2, 0.06), own)
    title = "Means over the clients of each cluster"
    if single:
        looks |= cluster_bounds(table, rows=2)
        title = "Data and final score of each client"
    return finish(traces, looks, title, 620)


def network(records: Records) -> go.Figure:
    """The graph of a study, with clients coloured by their gain over training alone.

    Without results of `local`, colours show final scores. There is one view per
    algorithm. The first view shows the algorithm with the best mean validation score.
    Some methods choose partners themselves, so a link is dotted if neither of its
    clients uses the other's model at the end. With several seeds, the figure shows the
    graph of the first seed.

    Raises:
        InputError: if the study has no [graph].
    """
    if records.graph.empty:
        raise InputError("the records have no graph, because the study has no [graph].")
    seed = int(records.graph["seed"].min())
    here = records.clients.loc[records.clients["seed"] == seed, "client"].to_numpy()
    order, joined = np.sort(here), records.graph[records.graph["seed"] == seed]
    edges = np.searchsorted(order, joined[["v", "w"]].to_numpy())
    place = places(torch.from_numpy(edges), len(order))
    dots, title, menus = _draw_clients(records, place, order)
    traces = [_links(place, edges), dots]
    traces = _tell_links_apart(traces, menus, records, place, edges, seed)
    bare: PlotSpec = {"visible": False, "showgrid": False, "zeroline": False}
    bare["range"] = [-1.15, 1.15]
    looks = {"xaxis": bare, "yaxis": bare, "updatemenus": menus}
    figure = finish(traces, looks, title, 560, menu=bool(menus))
    return figure.update_layout(margin={"l": 8, "r": 8, "b": 16})


def _links(place: np.ndarray, edges: np.ndarray, dash: str = "solid") -> PlotSpec:
    """All edges as one plotly trace: a line with a gap after each edge."""
    ends = place[edges].round(3)  # (E, 2, 2)
    broken = np.concatenate([ends, np.full((len(ends), 1, 2), np.nan)], 1)
    width = 1.5 if len(place) <= LABELLED else 0.7
    line = {"color": "#bbbbbb", "width": width, "dash": dash}
    x, y = broken.reshape(-1, 2).T
    trace = {"type": "scatter", "x": x, "y": y, "mode": "lines", "line": line}
    return trace | {"hoverinfo": "skip", "showlegend": False}


def _tell_links_apart(
    traces: list[PlotSpec],
    menus: list[PlotSpec],
    records: Records,
    place: np.ndarray,
    edges: np.ndarray,
    seed: int,
) -> list[PlotSpec]:
    """The traces, with dotted links where a button's algorithm has no weights."""
    buttons = [b for menu in menus for b in menu["buttons"]]
    labels, unused, (v, w) = list(_client_values(records)[0]), {}, edges.T
    for label in labels:
        if (label, seed) in records.weights and len(edges) <= _MOST_LINKS:
            weights = records.weights[label, seed].matrices[-1]
            unused[label] = (weights[v, w] == 0) & (weights[w, v] == 0)
    if not any(none.any() for none in unused.values()):
        return traces
    drawn, all_used = {}, np.zeros(len(edges), dtype=bool)
    for label in labels:
        none = unused.get(label, all_used)
        drawn[label] = _links(place, edges[~none]), _links(place, edges[none], "dot")
    dots = traces[1]
    for label, one in zip(labels, buttons, strict=False):
        solid, dotted = drawn[label]
        changed = {k: [solid[k], dots[k], dotted[k]] for k in ("x", "y")}
        changed["marker.color"] = [None, one["args"][0]["marker.color"][0], None]
        one["args"] = [changed, one["args"][1], [0, 1, 2]]
    solid, dotted = drawn[labels[menus[0]["active"] if buttons else 0]]
    return [solid, dots, dotted]


_MOST_LINKS = 2000
"""With more links than this, no link is dotted."""


def _draw_clients(
    records: Records, place: np.ndarray, order: np.ndarray
) -> tuple[PlotSpec, str, list[PlotSpec]]:
    """The clients, a title, and a menu that colours them by another algorithm."""
    values, words, hover = _client_values(records)
    few, names = len(order) <= LABELLED, [records.name_of(int(c)) for c in order]
    first = favourite_of(records)
    first = first if first in values else next(iter(values))
    found = {
        label: series.reindex(order).to_numpy() for label, series in values.items()
    }
    everything = np.concatenate([*found.values()])
    everything = everything[np.isfinite(everything)]
    ends = (
        (float(everything.min()), float(everything.max()))
        if len(everything)
        else (0, 1)
    )
    gains_shown = words == score_of(records).gain
    if gains_shown:  # symmetric, so that a gain of 0 is white
        most = max(map(abs, ends)) or 1.0
        ends = (-most, most)
    trace = {
        "type": "scatter",
        "x": place[:, 0].round(3),
        "y": place[:, 1].round(3),
        "mode": "markers+text" if few else "markers",
        "text": tick_names(records, order.tolist(), 16) if few else None,
        "textposition": "top center",
        "hovertext": [escape(name) for name in names],
        "hovertemplate": f"%{{hovertext}}<br>%{{marker.color:{hover}}}<extra></extra>",
        "showlegend": False,
        "marker": {
            "color": found[first],
            "cmin": ends[0],
            "cmax": ends[1],
            "colorscale": _GAINED if gains_shown else "Viridis",
            "size": 15 if few else float(np.clip(300 / len(order) ** 0.5, 4, 12)),
            "line": {"color": "#666666", "width": 1 if few else 0.3},
            "colorbar": colour_bar(escape(words)),
        },
    }
    titles = {
        label: bold(f"The graph of the clients, with {heading(label)}")
        for label in values
    }
    buttons = []
    for label in values:
        change: PlotSpec = {"marker.color": [found[label]]}
        args = [change, {"title.text": titles[label]}, [1]]
        buttons.append(button(label) | {"args": args})
    menu = menu_of(buttons, active=list(values).index(first))
    return trace, titles[first], [menu] if len(values) > 1 else []


_GAINED = [[0, "#D55E00"], [0.5, "#f2f2f2"], [1, "#0072B2"]]
"""Loss, no change, gain: distinct in the common kinds of colour blindness."""


def _client_values(records: Records) -> tuple[dict[str, pd.Series], str, str]:
    """Values of clients by algorithm, their title, and their d3 format."""
    score, local = score_of(records), local_label(records)
    labels = list(styles_of(records))
    others = [label for label in labels if label != local]
    if local is not None and others:
        found = {a: gain_of(records, a).clients["mean"] * score.unit for a in others}
        return found, score.gain, "+.3g"
    found = {a: mean_over_seeds(records, final_scores(records, a)) for a in labels}
    return found, score.axis, score.hover
