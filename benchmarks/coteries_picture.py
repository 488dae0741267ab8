"""Draws docs/pictures/coteries.svg: what methods gain over training alone.

    python benchmarks/coteries_picture.py        a second

Every dot is a mean over clients and twelve seeds of the bench of structures, from
`reproductions/coterie/results/structures.csv`; its command stands in the README there.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "reproductions" / "coterie" / "results" / "structures.csv"
PICTURE = ROOT / "docs" / "pictures" / "coteries.svg"

DOTS = {
    "fedavg": ("FedAvg", "#CC79A7", "square"),
    "fine-tuned": ("fine-tuned FedAvg", "#E69F00", "triangle"),
    "ditto": ("Ditto", "#009E73", "diamond"),
    "coteries": ("coteries", "#0072B2", "circle"),
}
TITLES = {
    "digits": "digits",
    "fashion_mnist": "Fashion-MNIST",
    "generated": "generated",
}
LEAST, MOST = -20, 45
WIDTH, LEFT, RIGHT, TOP, ROW = 800, 270, 24, 92, 17


def gains(runs: pd.DataFrame) -> pd.DataFrame:
    """Points above training alone, by data and family (rows) and method (columns)."""
    keys = ["data", "family"]
    means = runs.pivot_table("score", keys, "method", sort=False)
    return means.sub(means["local"], axis=0)[list(DOTS)]


def across(points: float) -> float:
    """Where on the picture a gain stands, from left to right."""
    share = (max(points, LEAST) - LEAST) / (MOST - LEAST)
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def text(x: float, y: float, words: str, *, size: int = 12, more: str = "") -> str:
    """Words that begin, or are anchored, at a point."""
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}"'
    return f"<text {place} {more}>{escape(words)}</text>"


def dot(method: str, x: float, y: float) -> str:
    """The mark of a method; all have about the same size."""
    _, colour, shape = DOTS[method]
    if shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colour}"/>'
    corners = {
        "square": [(-4, -4), (4, -4), (4, 4), (-4, 4)],
        "triangle": [(0, -5), (5, 4), (-5, 4)],
        "diamond": [(0, -5.5), (5.5, 0), (0, 5.5), (-5.5, 0)],
    }[shape]
    points = " ".join(f"{x + a:.1f},{y + b:.1f}" for a, b in corners)
    return f'<polygon points="{points}" fill="{colour}" fill-opacity="0.85"/>'


def grid(bottom: float) -> list[str]:
    """Lines at every ten points, with their numbers, and the name of the axis."""
    found = []
    for points in range(LEAST, MOST + 1, 10):
        x, colour = across(points), "#444444" if points == 0 else "#dddddd"
        found.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 12}" y2="{bottom:.1f}" '
            f'stroke="{colour}"/>'
        )
        label = f"≤ {points}" if points == LEAST else f"{points:+d}" if points else "0"
        more = 'text-anchor="middle"'
        found.append(text(x, bottom + 16, label, more=more))
    axis = "points above training alone (accuracy in %, or 100 R2); clipped at -20"
    middle = (LEFT + WIDTH - RIGHT) / 2
    return [*found, text(middle, bottom + 36, axis, more='text-anchor="middle"')]


def legend() -> list[str]:
    """The title, and the marks with their names."""
    more = 'font-weight="bold"'
    title = "Gain over training alone: 60 kinds of federations, twelve seeds each"
    found, x = [text(16, 26, title, size=16, more=more)], LEFT
    for method, (name, _, _) in DOTS.items():
        found += [dot(method, x, 50), text(x + 11, 54, name, size=13)]
        x += 36 + 7.2 * len(name)
    return found


def drawn(table: pd.DataFrame) -> str:
    """The picture, as text."""
    y, rows = float(TOP), []
    for data, title in TITLES.items():
        rows.append(text(16, y + 4, title, size=13, more='font-weight="bold"'))
        y += ROW
        part = table.loc[data]
        for family, line in part.iterrows():
            rows.append(text(LEFT - 14, y + 4, str(family), more='text-anchor="end"'))
            ends = f'x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"'
            rows.append(f'<line {ends} stroke="#f0f0f0"/>')
            rows += [dot(method, across(line[method]), y) for method in DOTS]
            y += ROW
        y += 8
    bottom = y - 8
    size = f'width="{WIDTH}" height="{bottom + 50:.0f}"'
    box = f'viewBox="0 0 {WIDTH} {bottom + 50:.0f}"'
    begin = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {box} '
        'font-family="sans-serif" fill="#222222">'
    )
    white = '<rect width="100%" height="100%" fill="white"/>'
    return "\n".join([begin, white, *legend(), *grid(bottom), *rows, "</svg>"]) + "\n"


if __name__ == "__main__":
    found = gains(pd.read_csv(RUNS))
    if found.to_numpy().max() > MOST:
        raise SystemExit(f"some gain is above {MOST}: widen the axis.")
    PICTURE.write_text(drawn(found), encoding="utf-8")
    print(PICTURE)
