"""Draws structure.png: how few samples are enough where models share a subspace.

    python docs/pictures/structure.py        half a minute

Linear regression of 200 clients in 30 dimensions, models in a subspace of 3; every
point is measured, mean squared errors of models.
"""

from __future__ import annotations

import plotly.graph_objects as go
import torch
from canvas import SIZE, photograph
from plotly.subplots import make_subplots

from coterie_theory.structure import (
    burer_monteiro,
    few_shot_head,
    fista,
    fit_alone,
    fit_single,
    nuclear_radius,
    tasks,
)

N, D, R, NOISE = 200, 30, 3, 0.5
SAMPLES = (4, 6, 8, 10, 14, 20, 28, 40, 56, 80)
REAL = torch.float64
COLOURS = {
    "alone": "#999999",
    "one model": "#E69F00",
    "nuclear norm": "#56B4E9",
    "low rank": "#0072B2",
    "head on the subspace": "#0072B2",
    "told the subspace": "#009E73",
}


def models(basis: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
    """Models of norm 1 in a subspace."""
    heads = torch.randn(N, R, generator=rng, dtype=REAL)
    return heads / heads.norm(dim=1, keepdim=True) @ basis.T


def sampled(x: torch.Tensor, m: int, rng: torch.Generator):
    """Responses of these models."""
    features = torch.randn(N, m, D, generator=rng, dtype=REAL)
    z = (features @ x[:, :, None])[:, :, 0]
    return tasks(features, z + NOISE * torch.randn(N, m, generator=rng, dtype=REAL))


def measured() -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Errors of those who train, and of newcomers, against samples."""
    rng = torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(torch.randn(D, R, generator=rng, dtype=REAL))[0]
    x, late = models(basis, rng), models(basis, rng)
    found = burer_monteiro(sampled(x, 20, rng), rank=R, cap=1.0).basis
    here: dict[str, list[float]] = {}
    there: dict[str, list[float]] = {}
    for m in SAMPLES:
        data, few = sampled(x, m, rng), sampled(late, m, rng)
        relaxed = fista(data, radius=nuclear_radius(1.0, N, R), tolerance=1e-2)
        errors = {
            "alone": fit_alone(data, cap=1.0),
            "one model": fit_single(data, cap=1.0),
            "nuclear norm": relaxed.x,
            "low rank": burer_monteiro(data, rank=R, cap=1.0).x,
        }
        newcomers = {
            "alone": fit_alone(few, cap=1.0),
            "head on the subspace": few_shot_head(found, few, cap=1.0),
            "told the subspace": few_shot_head(basis, few, cap=1.0),
        }
        for name, w in errors.items():
            here.setdefault(name, []).append(float((w - x).square().sum(1).mean()))
        for name, w in newcomers.items():
            there.setdefault(name, []).append(float((w - late).square().sum(1).mean()))
    return here, there


def main() -> None:
    """Measures and draws."""
    titles = ["those who train", "newcomers"]
    figure = make_subplots(cols=2, subplot_titles=titles, shared_yaxes=True)
    for column, lines in enumerate(measured(), start=1):
        for name, errors in lines.items():
            line = go.Scatter(
                x=SAMPLES,
                y=errors,
                name=name,
                showlegend=column == 1 or name != "alone",
                line={"color": COLOURS[name], "width": 2.5},
                mode="lines+markers",
            )
            if column == 2 and name != "alone":
                line.line.dash = "dot"
            figure.add_trace(line, 1, column)
        figure.add_vline(x=D, line={"color": "#bbb", "dash": "dash"}, row=1, col=column)
    ticks = {"tickvals": [5, 10, 20, 40, 80], "ticktext": ["5", "10", "20", "40", "80"]}
    figure.update_xaxes(type="log", title_text="samples of a client", **ticks)
    figure.update_yaxes(type="log")
    figure.update_yaxes(title_text="squared error of models", row=1, col=1)
    legend = {"orientation": "h", "y": -0.2}
    layout = {"width": SIZE[0], "height": SIZE[1], "font": {"size": 15}}
    figure.update_layout(template="plotly_white", legend=legend, **layout)
    photograph(figure, __file__)


if __name__ == "__main__":
    main()
