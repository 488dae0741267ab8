"""Draws privacy.png: what an epsilon costs, and what secure sums tell whom.

    python docs/pictures/privacy.py        some minutes

Left, digits of 20 clients in 20 rounds, measured. Right, what secure sums of equal
shares tell the server, with one participant and with all others, by closed forms.
"""

from __future__ import annotations

import math
import tempfile

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


def by_role(clients: list[int]) -> dict[str, list[float]]:
    """Epsilon of secure sums for each role, where the server's is 1."""
    mu = co.privacy.mu_of(1.0, 1e-5)
    left = {
        "the server": lambda n: n,
        "and one participant": lambda n: n - 1,
        "and all others": lambda n: 1,
    }
    return {
        role: [co.privacy.epsilon_of(mu * math.sqrt(n / of(n)), 1e-5) for n in clients]
        for role, of in left.items()
    }


def drawn(folder: str) -> go.Figure:
    """Runs the studies and draws them."""
    titles = ("What an epsilon costs", "Secure sums: epsilon by role")
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
    clients = [3, 5, 10, 20, 40]
    for (role, found), dash in zip(
        by_role(clients).items(), ("solid", "dash", "dot"), strict=True
    ):
        line = {"color": "#0072B2", "dash": dash}
        figure.add_scatter(x=clients, y=found, name=role, line=line, row=1, col=2)
    laid_out(figure, l=80, r=60, t=70, b=110)
    legend = {"orientation": "h", "x": 0, "y": -0.24}
    figure.update_layout(showlegend=True, legend=legend)
    ticks = {"tickvals": EPSILONS, "ticktext": [str(e) for e in EPSILONS]}
    figure.update_xaxes(type="log", title="epsilon (delta 1e-5)", **ticks, col=1)
    figure.update_yaxes(title="test accuracy (dotted: without noise)", col=1)
    figure.update_xaxes(title="clients", col=2)
    figure.update_yaxes(title="epsilon", rangemode="tozero", col=2)
    return figure


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        photograph(drawn(place), __file__)
