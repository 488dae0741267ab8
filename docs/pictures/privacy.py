"""Draws privacy.png: what an epsilon costs, and who learns how much of whom.

    python docs/pictures/privacy.py        some minutes

Left, digits of 20 clients in 20 rounds. Right, 12 clients on a ring, 20 rounds of
decentralised SGD with two exchanges each. Every point is measured.
"""

from __future__ import annotations

import math
import tempfile

import numpy as np
import plotly.graph_objects as go
from canvas import laid_out, photograph
from plotly.subplots import make_subplots

import coterie as co

COLOURS = {
    "local": "#555555",
    "fedavg": "#D55E00",
    "fedavg, secure sums": "#0072B2",
    "all_for_one": "#009E73",
}
EPSILONS = [2, 4, 8, 16, 32]
METHODS = {
    "local": {"name": "local", "lr": 0.5, "steps": 5},
    "fedavg": {"name": "fedavg", "lr": 0.5, "steps": 5},
    "fedavg, secure sums": {"name": "fedavg", "lr": 0.5, "steps": 5},
    "all_for_one": {"name": "all_for_one", "lr": 0.5, "steps": 5},
}
STUDY = {
    "data": {"name": "digits"},
    "split": {"name": "iid", "clients": 20, "max_samples": 80},
    "model": {"name": "linear"},
    "run": {"rounds": 20, "seeds": [0], "batch_size": 0, "evaluate_every": 20},
}


def score(label: str, epsilon: float, folder: str) -> float:
    """The mean test accuracy of a method at an epsilon."""
    entry = METHODS[label]
    if label == "all_for_one":
        entry = {**entry, "weights": "uniform"}
    tables = {**STUDY, "algorithm": [entry]}
    if math.isfinite(epsilon):
        how = "secure" if "secure" in label else "local"
        tables["privacy"] = {"clip": 1.0, "epsilon": float(epsilon), "aggregation": how}
    return float(co.run_study(co.study_of(tables), runs=folder).table()["mean"].iloc[0])


def pairs(folder: str) -> np.ndarray:
    """Epsilon of every pair of twelve neighbours on a ring, over all rounds."""
    tables = {**STUDY, "split": {"name": "iid", "clients": 12, "max_samples": 80}}
    entry = {"name": "decentralised_sgd", "exchanges": 2, "mixing": "ring"}
    tables |= {"algorithm": [entry], "privacy": {"clip": 1.0, "epsilon": 8.0}}
    found = co.run_study(co.study_of(tables), runs=folder).records.releases
    matrix = np.zeros((12, 12))
    matrix[found["client"], found["to"]] = found["epsilon"]
    return matrix


def drawn(folder: str) -> go.Figure:
    """Runs the studies and draws them."""
    titles = ("What an epsilon costs", "Gossip on a ring: epsilon of pairs")
    figure = make_subplots(cols=2, subplot_titles=titles, column_widths=[0.58, 0.42])
    for label, colour in COLOURS.items():
        free = score(label, math.inf, folder)
        found = [free] * len(EPSILONS)
        if label != "local":
            found = [score(label, epsilon, folder) for epsilon in EPSILONS]
            line = {"color": colour, "dash": "dot", "width": 1}
            level = [free] * len(EPSILONS)
            figure.add_scatter(
                x=EPSILONS, y=level, mode="lines", line=line, showlegend=False
            )
        figure.add_scatter(x=EPSILONS, y=found, name=label, line={"color": colour})
    heat = go.Heatmap(z=pairs(folder), colorscale="Reds", zmin=0)
    figure.add_trace(heat, row=1, col=2)
    laid_out(figure, l=80, r=60, t=70, b=110)
    legend = {"orientation": "h", "x": 0, "y": -0.24}
    figure.update_layout(showlegend=True, legend=legend)
    ticks = {"tickvals": EPSILONS, "ticktext": [str(e) for e in EPSILONS]}
    figure.update_xaxes(type="log", title="epsilon (delta 1e-5)", **ticks, col=1)
    figure.update_yaxes(title="test accuracy (dotted: without noise)", col=1)
    figure.update_xaxes(title="in the eyes of client", col=2)
    figure.update_yaxes(title="client", autorange="reversed", col=2)
    return figure


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        photograph(drawn(place), __file__)
