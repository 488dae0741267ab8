"""Draws docs/pictures/demo.svg: who gains against training alone in the demo.

    make demo                                        a minute
    python benchmarks/demo_picture.py runs/digits-*  a second

Every bar is one client: its test accuracy minus that of training alone, the mean of
the demo's seeds. FedAvg is one model for all; coteries finds groups.
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

import pandas as pd

from coterie.records import load_records
from coterie.scores import gain_of

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "demo.svg"
BARS = {
    "coteries": ("coteries: groups found in training", "#0072B2"),
    "fedavg": ("FedAvg: one model for all", "#CC79A7"),
}
LEAST, MOST, TICK = -70, 30, 10
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 800, 340, 56, 16, 74, 40


def points_of(folder: Path) -> pd.DataFrame:
    """Points of accuracy above training alone, by client (rows) and method (columns).

    The client that gains most with coteries comes first.
    """
    records = load_records(folder)
    found = {name: 100 * gain_of(records, name).clients["mean"] for name in BARS}
    return pd.DataFrame(found).sort_values("coteries", ascending=False)


def down(points: float) -> float:
    """Where on the picture a gain stands, from top to bottom."""
    return TOP + (MOST - points) / (MOST - LEAST) * (HEIGHT - TOP - BOTTOM)


def text(x: float, y: float, words: str, *, size: int = 12, more: str = "") -> str:
    """Words that begin, or are anchored, at a point."""
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}"'
    return f"<text {place} {more}>{escape(words)}</text>"


def box(x: float, y: float, width: float, height: float, colour: str) -> str:
    """A filled rectangle."""
    size = f'width="{width:.1f}" height="{height:.1f}"'
    return f'<rect x="{x:.1f}" y="{y:.1f}" {size} fill="{colour}"/>'


def grid() -> list[str]:
    """Lines at every twenty points, with their numbers, and the names of the axes."""
    found = []
    for points in range(LEAST + TICK, MOST + 1, 2 * TICK):
        y, colour = down(points), "#444444" if points == 0 else "#dddddd"
        ends = f'x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"'
        found.append(f'<line {ends} stroke="{colour}"/>')
        label = f"{points:+d}" if points else "0"
        found.append(text(LEFT - 8, y + 4, label, more='text-anchor="end"'))
    middle = (LEFT + WIDTH - RIGHT) / 2
    axis = "clients, from the largest gain to the smallest"
    more = 'text-anchor="middle"'
    return [*found, text(middle, HEIGHT - 14, axis, more=more)]


def legend(table: pd.DataFrame) -> list[str]:
    """The title, and what each colour is, with how many clients it serves better."""
    title = "Points of test accuracy above training alone, client by client"
    found, x = [text(16, 26, title, size=16, more='font-weight="bold"')], float(LEFT)
    for name, (words, colour) in BARS.items():
        better, worse = int((table[name] > 0).sum()), int((table[name] < 0).sum())
        count = f" ({better} better, {worse} worse)"
        found += [box(x, 43, 12, 12, colour), text(x + 18, 54, words + count, size=13)]
        x += 30 + 7.0 * len(words + count)
    return found


def drawn(table: pd.DataFrame) -> str:
    """The picture, as text."""
    place = (WIDTH - LEFT - RIGHT) / len(table)
    bars = []
    for number, (_, line) in enumerate(table.iterrows()):
        for half, (name, (_, colour)) in enumerate(BARS.items()):
            x = LEFT + place * (number + 0.12 + 0.38 * half)
            high, low = down(max(line[name], 0)), down(min(line[name], 0))
            bars.append(box(x, high, 0.36 * place, low - high, colour))
    begin = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" fill="#222222">'
    )
    white = '<rect width="100%" height="100%" fill="white"/>'
    parts = [begin, white, *legend(table), *grid(), *bars, "</svg>"]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    found = points_of(Path(sys.argv[1]))
    if found.to_numpy().max() > MOST or found.to_numpy().min() < LEAST:
        raise SystemExit(
            f"some gain is not between {LEAST} and {MOST}: widen the axis."
        )
    PICTURE.write_text(drawn(found), encoding="utf-8")
    print(PICTURE)
