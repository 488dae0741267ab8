"""Draws docs/pictures/speed.svg: our time of a round against a plain loop.

    python benchmarks/sweep.py --out sweep.json      four minutes
    python benchmarks/speed_picture.py sweep.json    a second

Every dot is one number of clients and one batch size. Right of the line is faster.
"""

from __future__ import annotations

import json
import math
import sys
from html import escape
from pathlib import Path

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "speed.svg"
SIDES = {"ours": ("coterie", "#0072B2"), "jax": ("JAX by hand", "#CC79A7")}
LEAST, MOST = 0.5, 32.0
WIDTH, LEFT, RIGHT, TOP, BOTTOM, LINE = 800, 190, 24, 74, 46, 26


def across(ratio: float) -> float:
    """Where a ratio stands, from left to right."""
    share = math.log(ratio / LEAST) / math.log(MOST / LEAST)
    return LEFT + min(1.0, max(0.0, share)) * (WIDTH - LEFT - RIGHT)


def text(x: float, y: float, words: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(words)}</text>'


def drawn(points: list[dict]) -> str:
    """The picture, as text."""
    points = [point for point in points if point["method"] == "fedavg"]
    names = list(dict.fromkeys(point["model"] for point in points))
    height = TOP + LINE * len(names) + BOTTOM
    end, bottom = 'text-anchor="end"', height - BOTTOM
    title = "How many times as fast as a plain loop over clients, on two cores"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12" '
        'fill="#222222">',
        '<rect width="100%" height="100%" fill="white"/>',
        text(16, 26, title, 'font-size="16" font-weight="bold"'),
    ]
    for number, (words, colour) in enumerate(SIDES.values()):
        x = LEFT + 130 * number
        parts.append(f'<circle cx="{x}" cy="50" r="5" fill="{colour}"/>')
        parts.append(text(x + 10, 54, words))
    for power in range(-1, 6):
        x, colour = across(2.0**power), "#444444" if power == 0 else "#dddddd"
        ends = f'x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}"'
        parts.append(f'<line {ends} stroke="{colour}"/>')
        parts.append(text(x, bottom + 18, f"{2.0**power:g}", 'text-anchor="middle"'))
    for number, name in enumerate(names):
        y = TOP + LINE * (number + 0.5)
        parts.append(text(LEFT - 12, y + 4, name, end))
        for side, (_, colour) in reversed(SIDES.items()):
            for point in points:
                if point["model"] == name and side in point:
                    place = f'cx="{across(point[side]):.1f}" cy="{y:.1f}"'
                    parts.append(
                        f'<circle {place} r="5" fill="{colour}" fill-opacity="0.6"/>'
                    )
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    found = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    PICTURE.write_text(drawn(found), encoding="utf-8")
    print(PICTURE)
