"""Pictures of chapter 6 of Even's thesis, from what its claims were made of."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from coterie.graphs import places
from coterie_theory.privacy import by_distance

from .communities import Friends
from .dropouts import Run
from .gossip_losses import Profile

BLUE, RED = "#27a", "#d55"


def _short(values: Tensor | list[float]) -> list[float]:
    numbers = values.tolist() if isinstance(values, Tensor) else values
    return [float(f"{value:.4g}") for value in numbers]


def draw_profiles(folder: Path, found: list[Profile]) -> None:
    """Figure 6.1a: the loss against steps, by the formula and exactly."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    titles = [f"{each.graph.name} {each.graph.n}" for each in found]
    figure = make_subplots(rows=2, cols=2, subplot_titles=titles)
    for place, each in enumerate(found):
        for name, colour, values in (
            ("thesis's formula", RED, each.printed),
            ("exact", BLUE, each.exact),
        ):
            rows = by_distance(values, each.steps)
            line = go.Scatter(
                x=[row.steps for row in rows],
                y=_short([row.mean for row in rows]),
                name=name,
                legendgroup=name,
                showlegend=place == 0,
                line={"color": colour},
            )
            figure.add_trace(line, row=place // 2 + 1, col=place % 2 + 1)
    figure.update_yaxes(type="log", range=[-5, 1.5], title_text="loss")
    figure.update_xaxes(title_text="steps")
    figure.update_layout(template="plotly_white", height=800)
    figure.write_html(folder / "figure61a.html")


def _nodes(where: Tensor, values: Tensor, title: str):  # type: ignore[no-untyped-def]
    import plotly.graph_objects as go

    marks = {"color": _short(values.clamp(1e-5, 1).log10()), "colorscale": "Viridis"}
    marks |= {"size": 5, "cmin": -5, "cmax": 0, "colorbar": {"title": "log10 S"}}
    figure = go.Figure(
        go.Scatter(
            x=_short(where[:, 0]), y=_short(where[:, 1]), mode="markers", marker=marks
        )
    )
    return figure.update_layout(template="plotly_white", title=title)


def draw_nodes(folder: Path, found: list[Profile], friends: list[Friends]) -> None:
    """Figures 6.1b, 6.2 and 6.5: nodes coloured by what they learn of one."""
    parts = []
    for each in found:
        if each.graph.n <= 2100:
            where = places(each.graph.edges, each.graph.n)
            title = f"{each.graph.name} {each.graph.n}, node 0"
            parts.append(_nodes(where, each.printed, title))
    for group in friends:
        where = places(group.graph.edges, group.graph.n)
        title = f"ego {group.ego}, node {group.nodes[0]}"
        parts.append(_nodes(where, group.printed[0], title))
    pages = [
        part.to_html(full_html=False, include_plotlyjs=i == 0)
        for i, part in enumerate(parts)
    ]
    head = '<!doctype html><meta charset="utf-8"><title>Losses of one node</title>'
    (folder / "nodes.html").write_text(head + "\n".join(pages), encoding="utf-8")


DROPOUTS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#000000")
"""Colours of the rates of dropout, the same in both panels."""


def draw_curves(
    folder: Path,
    cubes: dict[int, list[float]],
    by_place: tuple[Tensor, Tensor],
    ratios: dict[int, Tensor],
    accuracies: dict[int, Tensor],
    runs: dict[float, Run],
) -> None:
    """Figures 6.3, 6.4, 6.1c and 6.6."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    titles = ("6.3: hypercubes", "6.4: places", "6.1c: losses", "6.1c: accuracy")
    titles += ("6.6: loss", "6.6: deviation")
    figure = make_subplots(rows=3, cols=2, subplot_titles=titles)
    for m, values in cubes.items():
        steps = list(range(1, len(values) + 1))
        figure.add_trace(go.Scatter(x=steps, y=_short(values), name=f"2^{m}"), 1, 1)
    far, share = by_place
    dots = go.Scatter(x=_short(far), y=_short(share), mode="markers", name="places")
    figure.add_trace(dots, 1, 2)
    for n, values in ratios.items():
        figure.add_trace(go.Histogram(x=_short(values), name=f"{n} nodes"), 2, 1)
    for n, curves in accuracies.items():
        for name, curve in zip(("Muffliato", "server"), curves.mean(0), strict=True):
            line = go.Scatter(y=_short(curve), name=f"{name}, {n} nodes")
            figure.add_trace(line, 2, 2)
    for colour, (dropout, run) in zip(DROPOUTS, runs.items(), strict=False):
        named = {"name": f"dropout {dropout:.0%}", "line": {"color": colour}}
        named["legendgroup"] = named["name"]
        figure.add_trace(go.Scatter(y=_short(run.losses), **named), 3, 1)
        again = go.Scatter(y=_short(run.errors), **named, showlegend=False)
        figure.add_trace(again, 3, 2)
    for row, col in ((1, 1), (1, 2), (3, 1), (3, 2)):
        figure.update_yaxes(type="log", row=row, col=col)
    figure.update_xaxes(type="log", row=3)
    figure.update_layout(template="plotly_white", height=1300, barmode="overlay")
    figure.write_html(folder / "chapter6.html")
