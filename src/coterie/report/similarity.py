"""Who is near whom: a picture of distances, and of how sure they are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from ..checks import InputError
from ..similarity.distances import Distances
from ..similarity.partners import NEAR, UNDECIDED, gap_threshold, supported
from .styles import client_ticks, escape, finish

_MARKS = {
    NEAR: ("near, supported by the data", "circle", "#D55E00"),
    UNDECIDED: ("undecided", "x-thin-open", "#CC79A7"),
}


def similarity_map(
    distances: Distances,
    threshold: float | None = None,
    *,
    confidence: float = 0.95,
    names: Sequence[str] | None = None,
) -> go.Figure:
    """Distances of all pairs as a heat map, with supported and open links marked.

    Pairs without a mark are far, supported by the data.

    Args:
        distances: squared, with their errors.
        threshold: for squared distances; None takes `gap_threshold`.
        confidence: see `supported`.
        names: of the clients; None numbers them.
    """
    n = len(distances.squared)
    names = [str(i) for i in range(n)] if names is None else list(names)
    if len(names) != n:
        raise InputError(f"`names` must have {n} entries, got {len(names)}.")
    if threshold is None:
        threshold = gap_threshold(distances)
    verdict = supported(distances, threshold, confidence=confidence).cpu().numpy()
    squared = distances.squared.double().cpu().numpy()
    error = distances.error.double().cpu().numpy()
    shown = [escape(name) for name in names]
    words = np.array([[(a, b) for b in shown] for a in shown], dtype=object)
    numbers = np.stack([squared, error], 2).astype(object)
    figure = go.Figure(
        go.Heatmap(
            z=np.sqrt(squared.clip(min=0)),
            zmin=0,
            colorscale=[[0, "#ffffff"], [0.5, "#6baed6"], [1, "#08306b"]],
            colorbar={"title": {"text": "distance"}, "thickness": 12, "len": 0.9},
            customdata=np.concatenate([words, numbers], 2),
            hovertemplate="%{customdata[0]} and %{customdata[1]}<br>squared distance "
            "%{customdata[2]:.3g} ± %{customdata[3]:.2g}<extra></extra>",
        )
    )
    for kind, (label, symbol, colour) in _MARKS.items():
        row, column = ((verdict == kind) & ~np.eye(n, dtype=bool)).nonzero()
        look = {"symbol": symbol, "color": colour, "size": max(3, min(9, 300 // n))}
        if symbol.endswith("open"):
            look["line"] = {"width": 1.5}
        figure.add_scatter(
            x=column,
            y=row,
            mode="markers",
            marker=look,
            name=f"{label} ({len(row) // 2} pairs)",
            hoverinfo="skip",
        )
    figure.update_xaxes(client_ticks(shown, single=True))
    figure.update_yaxes(client_ticks(shown, single=True) | {"autorange": "reversed"})
    return finish(figure, f"Distances, threshold {threshold**0.5:.3g}", 560)
