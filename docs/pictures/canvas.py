"""What all pictures share: their size, their looks, and how they are taken."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

SIZE = (1100, 480)


def laid_out(figure: go.Figure, **margin: int) -> go.Figure:
    """The figure in our size and letters, without a legend: names stand at lines."""
    return figure.update_layout(
        template="none",
        width=SIZE[0],
        height=SIZE[1],
        showlegend=False,
        margin=margin,
        font={"family": "sans-serif", "size": 14, "color": "#222222"},
    )


def captioned(figure: go.Figure, text: str, *, below: int = 92) -> go.Figure:
    """The figure with a text so many pixels below its axes."""
    return figure.add_annotation(
        text=text,
        align="left",
        xref="paper",
        yref="paper",
        x=0,
        y=0,
        yshift=-below,
        xanchor="left",
        showarrow=False,
        font={"size": 13, "color": "#555555"},
    )


def named(
    figure: go.Figure, text: str, colour: str, x: float, y: float, **place: Any
) -> go.Figure:
    """The figure with the name of a line, in its colour, right of a point of it."""
    return figure.add_annotation(
        x=x,
        y=y,
        text=text,
        showarrow=False,
        xanchor="left",
        font={"color": colour, "size": 14},
        **place,
    )


def photograph(figure: go.Figure, script: str) -> None:
    """Takes a picture of the figure, beside its script, with headless Chromium."""
    path = Path(script).with_suffix(".png")
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("chromium is needed to take the picture.")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        html = figure.to_html(include_plotlyjs=True, config={"displayModeBar": False})
        page.write_text(html.replace("<body>", '<body style="margin:0">'))
        flags = (
            "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
            "--disable-background-networking --disable-component-update "
            "--disable-sync --virtual-time-budget=5000 --hide-scrollbars "
            "--force-device-scale-factor=2"
        )
        command = [browser, *flags.split(), f"--user-data-dir={folder}/user"]
        command += [f"--window-size={SIZE[0]},{SIZE[1]}", f"--screenshot={path}"]
        subprocess.run(
            [*command, page.as_uri()], check=True, capture_output=True, timeout=120
        )
    print(path)
