"""Pictures of chapter 6 of Even's thesis, from what its claims were made of."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from coterie.cli import Line, Panel, draw_panels
from coterie.graphs import places
from coterie_theory.privacy import by_distance

from .communities import Friends
from .dropouts import Run
from .gossip_losses import Profile

LEAST = 1e-6
"""Smaller losses are left out of pictures."""


def _short(values: Tensor) -> list[float]:
    return [float(f"{value:.4g}") for value in values.tolist()]


def draw_profiles(folder: Path, found: list[Profile]) -> None:
    """Figure 6.1a: the loss against steps, by the formula and exactly.

    The formula is drawn both ways, because the exact losses are those that node 0
    learns: only the second curve of the formula is about the same observer.
    """
    panels = []
    for each in found:
        lines = []
        for name, values in (
            ("formula (6.6): what others learn of node 0", each.printed),
            ("formula (6.6): what node 0 learns of others", each.told),
            ("exact: what node 0 learns of others", each.exact),
        ):
            rows = by_distance(values, each.steps)
            steps = [row.steps for row in rows]
            for dashed, losses in (
                (False, [row.mean for row in rows]),
                (True, [row.most for row in rows]),
                (True, [row.least for row in rows]),
            ):
                y = [loss if loss >= LEAST else None for loss in losses]
                lines.append(
                    Line(name, steps, y, dashed=dashed, width=1 + (not dashed))
                )
        title = f"{each.graph.name}, {each.graph.n} nodes"
        panels.append(Panel(lines, title, "steps away", "loss", log_y=True))
    draw_panels(folder / "figure61a.html", panels, columns=2)


def draw_nodes(folder: Path, found: list[Profile], friends: list[Friends]) -> None:
    """Figures 6.1b, 6.2 and 6.5: nodes coloured by what they learn of one."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    parts = [
        (f"{each.graph.name}, {each.graph.n} nodes", each.graph, each.printed, 0)
        for each in found
        if each.graph.n <= 2100
    ]
    for group in friends:
        node = group.nodes[0]
        parts.append((f"ego {group.ego}", group.graph, group.printed[0], node))
    columns, rows = min(3, len(parts)), -(-len(parts) // 3)
    titles = [part[0] for part in parts]
    figure = make_subplots(
        rows, columns, subplot_titles=titles, vertical_spacing=0.15 / rows
    )
    for place, (_, graph, losses, node) in enumerate(parts):
        at = {"row": place // 3 + 1, "col": place % 3 + 1}
        # Ranks of places, because some nodes with one edge are far from all others.
        where = torch.as_tensor(places(graph.edges, graph.n)).argsort(0).argsort(0)
        marks = {
            "color": _short(losses.clamp(1e-5, 1).log10()),
            "coloraxis": "coloraxis",
        }
        x, y = _short(where[:, 0]), _short(where[:, 1])
        dots = go.Scatter(x=x, y=y, mode="markers", marker={**marks, "size": 4})
        star = {"color": "#d55e00", "size": 12, "symbol": "star"}
        itself = go.Scatter(x=x[node:][:1], y=y[node:][:1], mode="markers", marker=star)
        figure.add_traces([dots, itself], rows=[at["row"]] * 2, cols=[at["col"]] * 2)
    bar = {"title": "loss", "tickvals": list(range(-5, 1)), "len": 0.5}
    bar["ticktext"] = [f"10<sup>{k}</sup>" for k in range(-5, 0)] + ["1"]
    scale = {"colorscale": "Viridis", "cmin": -5, "cmax": 0, "colorbar": bar}
    figure.update_xaxes(visible=False).update_yaxes(visible=False)
    figure.update_layout(
        template="plotly_white",
        coloraxis=scale,
        showlegend=False,
        height=360 * rows + 60,
        width=1370,
        margin={"t": 50, "b": 20},
    )
    page = folder / "nodes.html"
    figure.write_html(page, include_plotlyjs=True, config={"displayModeBar": False})


def draw_curves(
    folder: Path,
    cubes: dict[int, list[float]],
    by_place: tuple[Tensor, Tensor],
    ratios: dict[int, Tensor],
    accuracies: dict[int, Tensor],
    runs: dict[float, Run],
) -> None:
    """Figures 6.3, 6.4, 6.1c and 6.6."""
    lines = [
        Line(f"{2**m} nodes", range(1, len(values) + 1), values)
        for m, values in cubes.items()
    ]
    labels = "Figure 6.3: hypercubes", "steps away", "loss"
    far, share = by_place
    dots = [Line("one of the places", _short(far), _short(share), "markers", size=3)]
    panels = [
        Panel(lines, *labels, log_y=True),
        Panel(dots, "Figure 6.4: places", "distance", "loss", log_y=True),
    ]
    draw_panels(folder / "figure63.html", panels, columns=2)

    lines = []
    for n, values in ratios.items():
        counts, edges = torch.histogram(values.double(), 40)
        shares = (counts / len(values) / edges.diff()).tolist()
        middle = ((edges[1:] + edges[:-1]) / 2).tolist()
        lines.append(Line(f"Muffliato, {n} nodes", middle, shares))
    panels = [Panel(lines, "Figure 6.1c: losses", "loss / local loss", "density")]
    lines = []
    for n, curves in accuracies.items():
        for name, curve in zip(("Muffliato", "server"), curves.mean(0), strict=True):
            label = f"{name}, {n} nodes"
            # At step 0, the model is 0, and predicts no class.
            steps, values = range(1, len(curve)), curve[1:].tolist()
            lines.append(Line(label, steps, values, dashed=name == "server"))
    panels.append(Panel(lines, "Figure 6.1c: accuracy", "gradient steps", "accuracy"))
    draw_panels(folder / "figure61c.html", panels, columns=2)

    both = []
    for title, field, label in (
        ("Figure 6.6: mean loss so far", "losses", "loss"),
        ("Figure 6.6: deviation over its threshold", "errors", "deviation"),
    ):
        lines = []
        for dropout, run in runs.items():
            values = getattr(run, field)[1:]  # from the first round on
            name = f"{dropout:.0%} away"
            lines.append(Line(name, range(1, len(values) + 1), values))
        both.append(Panel(lines, title, "rounds", label, log_x=True, log_y=True))
    draw_panels(folder / "figure66.html", both, columns=2)
