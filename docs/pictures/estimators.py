"""Draws estimators.png: what the two similarity estimators do over time.

    python docs/pictures/estimators.py        runs examples/digits.toml: a minute or so
    python docs/pictures/estimators.py RUN    reads the records of such a run

Every point of the picture is a number of the run's records. The titles are claims, and
the script refuses to draw them over records that say otherwise.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
from canvas import captioned, laid_out, named, photograph
from plotly.subplots import make_subplots

import coterie as co
from coterie.records import Records, load_records
from coterie.report import partner_counts
from coterie.scores import mean_scores

STUDY = Path(__file__).parents[2] / "examples" / "digits.toml"
TOP_PARTNERS = 10  # upper end of the left axis
LOWEST = 0.6  # lower end of the right axis, which shows the end of training

# Okabe and Ito's colours, which differ in every common kind of colour blindness; line
# styles and the names beside the lines say the same without colour.
LINES = {
    "oracle": ("true clusters", "#009E73", "dot"),
    "split": ("ours", "#0072B2", "solid"),
    "plain": ("the paper's", "#D55E00", "dash"),
    "local": ("local", "#666666", "dashdot"),
}
LEFT = "The paper's estimator loses its partners,<br>ours keeps them"
RIGHT = "Partners kept are accuracy gained"


def labels(records: Records) -> dict[str, str]:
    """The label of each line's algorithm, found by what the study says it is."""
    found = {}
    for entry in records.study["algorithm"]:
        kind = {"local": "local", "all_for_one": "oracle"}.get(entry["name"], "")
        if entry["name"] == "adaptive_all_for_one":
            kind = entry.get("estimator", "split")
        if kind and kind not in found:
            found[kind] = entry["label"]
    missing = LINES.keys() - found.keys()
    if missing:
        raise SystemExit(f"the run has no algorithm for {', '.join(sorted(missing))}.")
    return found


def refuse_other_findings(
    partners: dict[str, pd.DataFrame], score: dict[str, pd.Series]
) -> None:
    """Raises unless the records show what the titles say."""
    inside = {kind: table["inside"] for kind, table in partners.items()}
    if not inside["plain"].iloc[-1] < inside["plain"].max() / 2:
        raise SystemExit("the plain estimator keeps its partners in these records.")
    if not inside["split"].iloc[-1] > 0.75 * inside["oracle"].iloc[-1]:
        raise SystemExit("the split-sample estimator loses partners in these records.")
    last = {kind: series.iloc[-1] for kind, series in score.items()}
    if not last["local"] < last["plain"] < last["split"]:
        raise SystemExit("the order of accuracies is another in these records.")


def drawn(records: Records) -> go.Figure:
    """The picture: partners on the left, accuracy on the right."""
    chosen, counts = labels(records), partner_counts(records)
    partners = {
        kind: counts[counts["algorithm"] == label]
        for kind, label in chosen.items()
        if kind != "local"
    }
    score = {kind: mean_scores(records, label) for kind, label in chosen.items()}
    refuse_other_findings(partners, score)
    figure = make_subplots(
        cols=2,
        subplot_titles=[f"<b>{LEFT}</b>", f"<b>{RIGHT}</b>"],
        horizontal_spacing=0.21,
    )
    for kind, table in partners.items():
        for where, symbol in (("inside", "circle"), ("outside", "x-thin")):
            _, colour, dash = LINES[kind]
            figure.add_scatter(
                x=table["round"].to_numpy(),
                y=table[where].to_numpy(),
                mode="lines+markers",
                line={"color": colour, "dash": dash, "width": 2},
                marker={
                    "size": 6,
                    "symbol": symbol,
                    "color": colour,
                    "line": {"color": colour, "width": 1.5},
                },
                row=1,
                col=1,
            )
    for kind, series in score.items():
        _, colour, dash = LINES[kind]
        figure.add_scatter(
            x=series.index.to_numpy(),
            y=series.to_numpy(),
            mode="lines",
            line={"color": colour, "dash": dash, "width": 2.5},
            row=1,
            col=2,
        )
    last = int(records.metrics["round"].max())
    ends = {kind: table["inside"].iloc[-1] for kind, table in partners.items()}
    _name_lines(figure, ends, last, TOP_PARTNERS / 18, column=1)
    ends = {kind: series.iloc[-1] for kind, series in score.items()}
    _name_lines(figure, ends, last, (1 - LOWEST) / 18, column=2)
    return _looks(figure, records)


def _name_lines(
    figure: go.Figure, ends: dict[str, float], x: int, gap: float, *, column: int
) -> None:
    """Writes the names of lines at their right ends, at least `gap` apart."""
    above = float("inf")
    # Of two lines that end together, the one that LINES names first is on top.
    for kind in sorted(
        ends, key=lambda kind: (-round(ends[kind], 2), [*LINES].index(kind))
    ):
        name, colour, _ = LINES[kind]
        above = min(ends[kind], above - gap)
        named(figure, name, colour, x, above, xshift=8, row=1, col=column)


def _looks(figure: go.Figure, records: Records) -> go.Figure:
    seeds = records.metrics["seed"].nunique()
    clients = records.clients["client"].nunique()
    last = int(records.metrics["round"].max())
    laid_out(figure, l=64, r=110, t=70, b=112)
    # Only the titles exist before the names of lines are added.
    for title in figure.layout.annotations[:2]:
        title.update(font={"size": 16}, yanchor="bottom", yshift=4)
    figure.update_xaxes(title="round", title_standoff=8, range=[0, last + 0.3])
    figure.update_xaxes(gridcolor="#e8e8e8", zeroline=False)
    figure.update_yaxes(gridcolor="#e8e8e8", zeroline=False, automargin=True)
    figure.update_yaxes(title="partners per client", range=[-0.3, TOP_PARTNERS], col=1)
    axis = {"title": "test accuracy", "tickformat": ".0%", "range": [LOWEST, 1]}
    figure.update_yaxes(axis, col=2)
    return captioned(
        figure,
        f"Means over {clients} clients and {seeds} seeds. Left: dots count "
        "partners inside the true cluster, crosses those outside.<br>"
        f"Right: the axis begins at {LOWEST:.0%}. Ours: split-sample, averaged, "
        "with the confidence rule.",
        below=104,
    )


def main() -> None:
    """Reads or makes the records, and draws them."""
    if len(sys.argv) > 1:
        records = load_records(sys.argv[1])
    else:
        records = co.run_study(co.read_study(STUDY)).records
    photograph(drawn(records), __file__)


if __name__ == "__main__":
    main()
