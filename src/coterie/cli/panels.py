"""Pictures of reproductions: panels side by side, with one legend.

A line has the same colour in all panels, which its name decides. So the legend is true
of every panel.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ..checks import InputError

if TYPE_CHECKING:
    import plotly.graph_objects as go

_COLOURS: tuple[str, ...] = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00")
_COLOURS += (
    "#56b4e9",
    "#000000",
    "#999999",
    "#7a3fbf",
    "#6b8e23",
    "#8b0000",
    "#00ced1",
)
"""The first are those of Okabe and Ito, which the colour-blind can tell apart."""

_LIMIT = 5000
"""The most points of a line; of longer ones, those between are left out."""


class Line(NamedTuple):
    """Points with a name; `markers` are not joined. None in `y` interrupts a line."""

    name: str
    x: Sequence[float | None]
    y: Sequence[float | None]
    mode: Literal["lines", "markers", "lines+markers"] = "lines"
    dashed: bool = False
    size: float = 5.0  # of markers
    width: float = 2.0


class Panel(NamedTuple):
    """Lines that share two axes."""

    lines: Sequence[Line]
    title: str = ""
    x: str = ""
    y: str = ""
    log_x: bool = False
    log_y: bool = False
    axes: bool = True  # a drawing of a graph has none
    between: tuple[float, float] | None = None  # the ends of the first axis


def colours_of(panels: Iterable[Panel]) -> dict[str, str]:
    """The colour of each name, in the order in which names appear.

    Raises:
        InputError: if there are more names than colours.
    """
    names = list(dict.fromkeys(line.name for panel in panels for line in panel.lines))
    if len(names) > len(_COLOURS):
        raise InputError(
            f"`panels` must have at most {len(_COLOURS)} names of lines, got "
            f"{len(names)}."
        )
    return dict(zip(names, _COLOURS, strict=False))


def draw_panels(
    path: Path, panels: Sequence[Panel], *, columns: int = 3, height: int = 360
) -> go.Figure:
    """The figure of all panels, which is also written to a page.

    Args:
        path: of the page.
        panels: in reading order.
        columns: panels in a row.
        height: of a row, in pixels.
    """
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    figure = make_subplots(
        rows,
        columns,
        subplot_titles=[panel.title for panel in panels],
        horizontal_spacing=0.24 / columns,
        vertical_spacing=0.3 / rows,
    )
    colours, named = colours_of(panels), set[str]()
    for place, panel in enumerate(panels):
        at = {"row": place // columns + 1, "col": place % columns + 1}
        for line in panel.lines:
            figure.add_trace(
                go.Scatter(
                    **_points(line),
                    name=line.name,
                    legendgroup=line.name,
                    showlegend=line.name not in named,
                    mode=line.mode,
                    line={
                        "color": colours[line.name],
                        "dash": "dash" if line.dashed else "solid",
                        "width": line.width,
                    },
                    marker={"color": colours[line.name], "size": line.size},
                ),
                **at,
            )
            named.add(line.name)
        figure.update_xaxes(**_axis(panel, "x", panel.x, log=panel.log_x), **at)
        if panel.between is not None:
            ends = map(math.log10, panel.between) if panel.log_x else panel.between
            figure.update_xaxes(range=list(ends), **at)
        figure.update_yaxes(**_axis(panel, "y", panel.y, log=panel.log_y), **at)
    figure.update_layout(
        template="plotly_white",
        height=height * rows + 100,
        width=max(700, 110 + 420 * columns),
        legend={"orientation": "h", "y": -0.2 / rows, "yanchor": "top", "x": 0},
        margin={"t": 50, "b": 60},
    )
    figure.write_html(path, include_plotlyjs=True, config={"displayModeBar": False})
    return figure


def _points(line: Line) -> dict[str, list[float | None]]:
    """At most `_LIMIT` points, with four digits."""
    every = max(1, -(-len(line.x) // _LIMIT))
    return {
        name: [None if v is None else float(f"{v:.4g}") for v in values[::every]]
        for name, values in (("x", line.x), ("y", line.y))
    }


def _axis(
    panel: Panel, axis: Literal["x", "y"], title: str, *, log: bool
) -> dict[str, Any]:
    if not panel.axes:
        return {"visible": False}
    if not log:
        return {"title_text": title}
    values = [v for line in panel.lines for v in getattr(line, axis) if v]
    if axis == "x" and panel.between is not None:
        values = list(panel.between)
    span = max(values) / min(values) if values else 1.0
    # Powers of ten, 1, 2 and 5 times those, or what fits.
    ticks: dict[str, Any] = {}
    if span > 8:
        ticks = {"dtick": 1 if span > 1000 else "D2"}
    elif span > 4:  # plotly would label only one or two values here
        powers = range(
            math.floor(math.log10(min(values))), math.ceil(math.log10(max(values))) + 1
        )
        marks = [digit * 10.0**power for power in powers for digit in (1, 2, 3, 5, 7)]
        ticks = {"tickvals": marks, "ticktext": [f"{mark:g}" for mark in marks]}
    kind = {"type": "log", "exponentformat": "power"}
    return {"title_text": title, **kind, **ticks}
