"""A table for a paper: a row per algorithm, a column per run or per measure.

A cell has the mean test score at the last round with its 95 % interval. The best mean
of a column is bold. A dagger marks algorithms that are not distinguishable from the
best (see `scores.summaries.standings`). Runs are never compared with each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from ...checks import InputError, several
from ...records import Records
from ...scores.axes import axis_of
from ...scores.caching import with_cache
from ...scores.finals import (
    Score,
    annotate_label,
    by_measure,
    is_measured,
    planned_algorithms,
    score_of,
)
from ...scores.summaries import standings
from ...scores.words import join_names

DAGGER = "†"
"""The mark of an algorithm that is not distinguishable from the best."""


class PaperColumn(NamedTuple):
    """A column: one measure of one run."""

    run: str
    score: Score
    rows: pd.DataFrame  # see `standings`
    end: str  # when scores were taken, in words
    planned: int  # seeds of the study

    @property
    def measure(self) -> str:
        """The measure with its unit."""
        unit = "%" if self.score.ticks else self.score.quantity
        return f"{self.score.heading} ({unit})" if unit else self.score.heading

    @property
    def numbers(self) -> pd.DataFrame:
        """Mean, low and high by algorithm, in the unit that is shown."""
        return self.rows[["mean", "low", "high"]] * self.score.unit

    @property
    def decimals(self) -> int:
        """Digits after the point: one in percent, or enough for the least interval."""
        if self.score.ticks:
            return 1
        shown = self.numbers
        halves = (shown["high"] - shown["low"]) / 2
        halves = halves[np.isfinite(halves) & (halves > 0)]
        means = shown["mean"][np.isfinite(shown["mean"])].abs()
        if len(halves):
            place = -math.floor(math.log10(halves.min()))
        else:
            place = 3 - math.floor(math.log10(means.max())) if means.max() > 0 else 3
        return min(max(place, 0), 6)

    @property
    def symmetric(self) -> bool:
        """Whether all intervals look symmetric, so that one number says the width."""
        shown = self.numbers
        known = shown[np.isfinite(shown).all(axis=1)]
        up, down = known["high"] - known["mean"], known["mean"] - known["low"]
        return bool((up.round(self.decimals) == down.round(self.decimals)).all())


class PaperCell(NamedTuple):
    """The texts of a cell, and how it is marked."""

    mean: str
    interval: str  # "± 0.4", or "[0.41, 0.56]", or nothing if it is unknown
    best: bool
    like_best: bool


def paper_columns(
    runs: Mapping[str, Records], measures: Sequence[str] = ()
) -> list[PaperColumn]:
    """The columns of a table: each measure of each run.

    Args:
        runs: the records, by the name that a column shows.
        measures: the measures of test data. If there are none, the score of each run.

    Raises:
        InputError: if a run has no results, or lacks a measure.
    """
    columns = []
    for name, records in runs.items():
        if records.metrics.empty:
            raise InputError(f"the run {name!r} has no results yet.")
        for measure in measures or [records.score]:
            mine = with_cache(by_measure(records, measure))
            end = axis_of(mine).at(int(mine.metrics["round"].max()))
            seeds = mine.study.get("run", {}).get("seeds")
            planned = len(seeds or mine.metrics["seed"].unique())
            columns.append(
                PaperColumn(name, score_of(mine), _in_order(mine), end, planned)
            )
    return columns


def _in_order(records: Records) -> pd.DataFrame:
    """The standings, in the order of the study."""
    table = standings(records)
    known = [a for a in table.index if is_measured(records, str(a), records.score)]
    table = table.loc[known]
    order = [a for a, _ in planned_algorithms(records) if a in table.index]
    return table.loc[[*order, *(a for a in table.index if a not in order)]]


def labels_in(columns: Sequence[PaperColumn]) -> list[str]:
    """The algorithms of all columns, in the order of the first that has them."""
    return list(dict.fromkeys(str(a) for column in columns for a in column.rows.index))


def titles(columns: Sequence[PaperColumn]) -> list[str]:
    """The heading of each column: the run, the measure, or both."""
    runs = len({column.run for column in columns}) > 1
    measures = not runs or len({column.measure for column in columns}) > 1
    return [
        ", ".join([c.run] * runs + [c.measure if not runs else _short(c)] * measures)
        for c in columns
    ]


def _short(column: PaperColumn) -> str:
    return column.measure.removeprefix("Test ")


def cell_of(column: PaperColumn, label: str) -> PaperCell | None:
    """The cell of an algorithm; None if the run does not have it."""
    if label not in column.rows.index:
        return None
    mean, low, high = map(float, column.numbers.loc[label].to_numpy())
    row, digits = column.rows.loc[label], column.decimals
    if not math.isfinite(mean):
        return PaperCell("not finite", "", False, False)
    interval = ""
    if math.isfinite(high - low) and column.symmetric:
        interval = f"± {(high - low) / 2:.{digits}f}"
    elif math.isfinite(high - low):
        interval = f"[{low:.{digits}f}, {high:.{digits}f}]"
    marks = bool(row["best"]), bool(row["like_best"])
    return PaperCell(f"{mean:.{digits}f}", interval, *marks)


def shown_label(columns: Sequence[PaperColumn], label: str) -> str:
    """The label, marked if it is an oracle in any column, or if its training failed."""
    rows = [c.rows.loc[label] for c in columns if label in c.rows.index]
    marks = (any(bool(row[name]) for row in rows) for name in ("oracle", "failed"))
    return annotate_label(label, *marks)


def caption(columns: Sequence[PaperColumn]) -> str:
    """Sentences that say what the numbers and marks of a table are."""
    same = len({column.measure for column in columns}) == 1
    what = columns[0].measure if same else "Measures of test data"
    cells = [cell for c in columns for a in c.rows.index if (cell := cell_of(c, a))]
    signs = {cell.interval[:1] for cell in cells}
    text = f"{what}: means over clients and seeds"
    if "±" in signs:
        text += ", ± half the width of the 95 % interval"
    if "[" in signs:
        text += f"{' or' if '±' in signs else ','} with the 95 % interval in brackets"
    sentences = [text, _ends(columns), *_shortfalls(columns), *_directions(columns)]
    if any(c.rows["samples"].eq(0).any() for c in columns) and signs - {""}:
        sentences.append("Some intervals count seeds only, not test samples")
    if any(cell.best for cell in cells):
        sentences.append("Bold: the best mean")
    if any(cell.like_best for cell in cells):
        sentences.append(
            f"{DAGGER}: not distinguishable from the best, because the 95 % interval "
            "of the paired difference contains 0"
        )
    return f"{'. '.join(sentences)}."


def _ends(columns: Sequence[PaperColumn]) -> str:
    """The last round and the number of seeds, once if they are the same in all runs."""
    found: dict[str, list[str]] = {}
    for column in columns:
        seeds = several(int(column.rows["seeds"].max()), "seed")
        runs = found.setdefault(f"{column.end}, {seeds}", [])
        runs += [column.run] * (column.run not in runs)
    if len(found) == 1:
        (text,) = found
        return text[:1].upper() + text[1:]
    texts = [f"{join_names(runs)}: {text}" for text, runs in found.items()]
    return "; ".join(texts)


def _shortfalls(columns: Sequence[PaperColumn]) -> list[str]:
    """Sentences on algorithms with fewer seeds or rounds than others."""
    found: dict[str, None] = {}
    runs = len({column.run for column in columns}) > 1
    for column in columns:
        rows, place = column.rows, f"{column.run}: " * runs
        most = max(column.planned, int(rows["seeds"].max()))
        for label, row in rows.iterrows():
            if row["seeds"] < most:
                seeds = f"{row['seeds']} of {several(most, 'seed')}"
                found[f"{place}{label} has {seeds}"] = None
            if row["round"] < rows["round"].max():
                stop = f"{place}{label} stopped at round {row['round']}"
                found[f"{stop} and is not ranked"] = None
    return list(found)


def _directions(columns: Sequence[PaperColumn]) -> list[str]:
    """A sentence on whether higher is better, by measure if they differ."""
    ways: dict[int, list[str]] = {}
    for column in columns:
        names = ways.setdefault(column.score.sign, [])
        names += [column.score.words] * (column.score.words not in names)
    said = {1: "Higher is better", -1: "Lower is better"}
    if len(ways) == 1:
        return [said[sign] for sign in ways]
    return [f"{said[sign]} for {join_names(names)}" for sign, names in ways.items()]


_UNSAFE: dict[str, str | int | None] = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\symbol{34}",
    "±": r"$\pm$",
    DAGGER: r"$^{\dagger}$",
}


def latex_text(text: str) -> str:
    r"""The text, in which characters that LaTeX reads as commands are escaped.

    >>> latex_text("50 % of a_b & $c")
    '50\\,\\% of a\\_b \\& \\$c'
    """
    safe = _one_line(text).translate(str.maketrans(_UNSAFE)).replace(" \\%", "\\,\\%")
    return f"{{}}{safe}" if safe[:1] in ("[", "*") else safe  # options of a new row


def _one_line(text: str) -> str:
    """The text without line breaks and characters that are not shown."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def as_latex(columns: Sequence[PaperColumn], label: str = "results") -> str:
    """The table as a LaTeX environment, which needs the package booktabs.

    Args:
        columns: the columns of the table.
        label: the table's name in the paper, after "tab:".
    """
    head = " & ".join(["Method", *map(latex_text, titles(columns))])
    lines = [
        "% Needs \\usepackage{booktabs}.",
        "\\begin{table}",
        "  \\centering",
        f"  \\caption{{{latex_text(caption(columns))}}}",
        f"  \\label{{tab:{_reference(label)}}}",
        f"  \\begin{{tabular}}{{l{'r' * len(columns)}}}",
        "    \\toprule",
        f"    {head} \\\\",
        "    \\midrule",
    ]
    for name, cells in _rows(columns, _latex_cell):
        lines.append(f"    {' & '.join([latex_text(name), *cells])} \\\\")
    lines += ["    \\bottomrule", "  \\end{tabular}", "\\end{table}"]
    return "\n".join(lines) + "\n"


def _reference(label: str) -> str:
    """The label with the characters that every LaTeX reference may have."""
    kept = "".join(c if c.isascii() and c.isalnum() else "-" for c in label.lower())
    return "-".join(filter(None, kept.split("-"))) or "results"


def _latex_cell(cell: PaperCell | None) -> str:
    if cell is None:
        return "--"
    mean = cell.mean.replace("-", "$-$")
    mean = f"\\textbf{{{mean}}}" if cell.best else mean
    interval = cell.interval.replace("±", "$\\pm$").replace("-", "$-$")
    # The mark takes no room, so that numbers stay aligned.
    mark = "\\rlap{$^{\\dagger}$}" if cell.like_best else ""
    return f"{mean} {interval}".strip() + mark


def as_markdown(columns: Sequence[PaperColumn]) -> str:
    """The table in Markdown, with its caption below."""
    head = ["Method", *titles(columns)]
    lines = [_markdown_row([_markdown_text(title) for title in head])]
    lines.append(_markdown_row(["---"] + ["---:"] * len(columns)))
    for name, cells in _rows(columns, _markdown_cell):
        lines.append(_markdown_row([_markdown_text(name), *cells]))
    return "\n".join([*lines, "", _markdown_text(caption(columns))]) + "\n"


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown_text(text: str) -> str:
    return _one_line(text).translate({ord(sign): f"\\{sign}" for sign in "\\`*_|<>[]"})


def _markdown_cell(cell: PaperCell | None) -> str:
    if cell is None:
        return "–"
    mean = f"**{cell.mean}**" if cell.best else cell.mean
    return " ".join(filter(None, (mean, cell.interval, DAGGER * cell.like_best)))


def _rows(
    columns: Sequence[PaperColumn], text: Callable[[PaperCell | None], str]
) -> list[tuple[str, list[str]]]:
    """Label and cells of every row."""
    return [
        (shown_label(columns, a), [text(cell_of(column, a)) for column in columns])
        for a in labels_in(columns)
    ]


def as_frame(columns: Sequence[PaperColumn]) -> pd.DataFrame:
    """The table as numbers: one row per column and algorithm, with all of `standings`.

    An unknown end of an interval is NaN.
    """
    tables = []
    for column in columns:
        table = column.rows.reset_index()
        ends = table[["low", "high"]]
        table[["low", "high"]] = ends.where(np.isfinite(ends))
        table.insert(0, "run", column.run)
        table.insert(1, "measure", column.score.column.removeprefix("test_"))
        tables.append(table)
    return pd.concat(tables, ignore_index=True)
