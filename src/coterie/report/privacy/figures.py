"""Figures of private training."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ...checks import InputError
from ...privacy.mechanisms.noise import SIMULATION_ONLY
from ...records import Records
from ...scores.finals import CROWD, is_crowd, labels_of
from ...types import SERVER
from ..styles import (
    LABELLED,
    PlotSpec,
    colour_bar,
    escape,
    finish,
    heading,
    styles_of,
    tick_names,
)


def epsilon_by_client(records: Records) -> pd.DataFrame:
    """Epsilon by algorithm, round and client, the largest over seeds."""
    if "epsilon" not in records.metrics:
        raise InputError("the records have no epsilon: a study needs [privacy].")
    keys = ["algorithm", "round", "client"]
    return records.metrics.groupby(keys)["epsilon"].max().reset_index()


def epsilon_curves(records: Records) -> go.Figure:
    """Epsilon over rounds: the largest of all clients, and the mean over clients.

    Raises:
        InputError: without [privacy].
    """
    table, styles = epsilon_by_client(records), styles_of(records)
    traces = []
    for label in labels_of(records):
        own = table[(table["algorithm"] == label) & np.isfinite(table["epsilon"])]
        by_round = own.groupby("round")["epsilon"]
        worst, mean = by_round.max(), by_round.mean()
        style = styles[label]
        for values, dash, words in ((worst, "solid", "worst"), (mean, "dot", "mean")):
            trace = {
                "type": "scatter",
                "x": values.index,
                "y": values,
                "name": escape(label),
                "legendgroup": label,
                "showlegend": words == "worst",
                "line": {"color": style.colour, "dash": dash},
                "hovertemplate": f"%{{y:.3g}} ({words} client)",
            }
            traces.append(trace)
    down = {"title": {"text": _epsilon_title(records)}, "rangemode": "tozero"}
    looks = {"xaxis": {"title": {"text": "round"}}, "yaxis": down}
    title = "Epsilon over rounds: worst client, and mean (dotted)"
    return finish(traces, looks, title, 420)


def epsilon_matrix(
    records: Records, algorithm: str, seed: int | None = None
) -> go.Figure:
    """Epsilon of each client (row) against each receiver (column).

    Raises:
        InputError: if the algorithm has released nothing, or with too many clients.
    """
    table = records.releases
    own = table[table["algorithm"] == algorithm] if len(table) else table
    if own.empty:
        raise InputError(f"there are no releases of {algorithm!r}.")
    if is_crowd(records):
        raise InputError(f"matrices of more than {CROWD} clients are not drawn.")
    seed = int(own["seed"].iloc[0]) if seed is None else seed
    own = own[own["seed"] == seed]
    clients = sorted(records.clients.query("seed == @seed")["client"])
    receivers = [*clients, SERVER] if SERVER in set(own["to"]) else list(clients)
    matrix = np.full((len(clients), len(receivers)), np.nan)
    for client, to, epsilon in own[["client", "to", "epsilon"]].to_numpy():
        matrix[clients.index(int(client)), receivers.index(int(to))] = epsilon
    names = [escape(records.name_of(client)) for client in clients]
    eyes = [*names, "the server"][: len(receivers)]
    trace = {
        "type": "heatmap",
        "z": np.where(np.isfinite(matrix), matrix, np.nan),
        "customdata": np.array([[[a, b] for b in eyes] for a in names]),
        "hovertemplate": "%{customdata[0]} to %{customdata[1]}: epsilon %{z:.3g}"
        "<extra></extra>",
        "zmin": 0,
        "zmax": max([*matrix[np.isfinite(matrix)], 1e-9]),
        "colorscale": [[0, "#ffffff"], [0.5, "#fc9272"], [1, "#67000d"]],
        "colorbar": colour_bar(_epsilon_title(records)),
    }
    texts = tick_names(records, clients, 16)
    many: PlotSpec = {"showgrid": False, "zeroline": False, "constrain": "domain"}
    across = [*texts, "server"][: len(receivers)]
    x = {"tickvals": list(range(len(across))), "ticktext": across}
    few = len(clients) <= 20
    x |= {"tickangle": (-60 if records.names else 0) if few else -90}
    if len(clients) > LABELLED:
        many |= {"showticklabels": False, "ticks": ""}
    y = {"tickvals": list(range(len(texts))), "ticktext": texts}
    y |= {"autorange": "reversed", "title": {"text": "client"}}
    x |= {"title": {"text": "what this client or the server learns"}}
    title = f"Who revealed how much to whom: {heading(algorithm)}, seed {seed}"
    looks = {"xaxis": many | x, "yaxis": many | y}
    height = 600 if few else 260 + 14 * min(len(clients), LABELLED)
    return finish([trace], looks, title, height, menu=True)


def _epsilon_title(records: Records) -> str:
    """The title of an axis of epsilon."""
    source = records.study.get("privacy", {}).get("noise_source", "seed")
    return f"epsilon ({SIMULATION_ONLY})" if source == "seed" else "epsilon"
