"""What the terminal shows: tables of runs and plans, or one JSON object."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer
from rich import box
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from ..checks import several
from ..scores.finals import Score, annotate_label
from ..scores.words import in_bytes, percent
from .terminal import out

if TYPE_CHECKING:
    import pandas as pd

    from ..report.paper import PaperColumn


def print_json(answer: Mapping[str, Any]) -> None:
    """Prints one JSON object; numbers that are not finite become null."""
    typer.echo(json.dumps(_in_json(answer), indent=2, allow_nan=False))


def _in_json(value: Any) -> Any:
    """The value in types that JSON has."""
    if isinstance(value, Mapping):
        return {str(key): _in_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_in_json(inner) for inner in value]
    item = getattr(value, "item", None)  # a number of NumPy
    value = value if item is None else item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int | None) else str(value)


def rows_of(table: pd.DataFrame, *, index: bool = True) -> list[dict[str, Any]]:
    """A list with one object for each row of a table."""
    rows = (table.reset_index() if index else table).to_dict("records")
    return [{str(key): value for key, value in row.items()} for row in rows]


def print_headline(answers: dict[str, str]) -> None:
    """Prints the main findings of a study, which stand above its tables."""
    for about, text in answers.items():
        out.print(Text.assemble((f"{about}: ", "bold"), text))
    out.print()


def print_epsilons(table: pd.DataFrame, note: str = "") -> None:
    """Prints the epsilon of each algorithm against each role, and a note."""
    shown = Table(title="epsilon of the worst client, against", box=None)
    shown.add_column("")
    for role in table.columns:
        shown.add_column(role.replace(" and ", "\nand "), justify="right")
    for label, row in table.iterrows():
        shown.add_row(Text(str(label)), *(f"{value:.3g}" for value in row))
    out.print(shown)
    if note:
        out.print(Text(note, "bold"))


def print_summary(summary: Any, score: Score, baselines: Any = None) -> None:
    """Prints a row for each algorithm, and baselines below them, for 80 columns."""
    when, seeds = f"round {summary['round'].max()}", summary["seeds"].max()
    if "time" in summary:
        when = f"after {summary['time'].max():.4g} virtual seconds"
    named = " for " in score.words or score.quantity
    what = score.axis if named else "test data"
    title = f"{what}, {when}, {several(int(seeds), 'seed')}"
    columns: dict[str, Callable[[Any], str]] = {
        _mean_heading(summary): lambda row: _mean(row, score),
        _gain_heading(score): lambda row: _gain(row, score),
        "clients\n+/-/?": _verdicts,
        "gradi-\nents": lambda row: count_text(row["gradients"]),
        "bytes": lambda row: in_bytes(row["bytes"]).replace("unknown", "-"),
    }
    if "updates" in summary:
        # There is room for only one of the two; the report has both.
        del columns["gradi-\nents"]
        columns["updates"] = lambda row: count_text(row["updates"])
    _print_rows(title, columns, summary, below=baselines)
    if summary["gain"].notna().any():
        out.print(
            "+/-/?: the numbers of clients that gain, that lose, and that may do either"
        )


def print_paper_table(columns: Sequence[PaperColumn]) -> None:
    """Prints a table for a paper: a star at the best mean, and what the marks mean."""
    from ..report.paper.tables import (
        DAGGER,
        caption,
        cell_of,
        labels_in,
        shown_label,
        titles,
    )

    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    shown.add_column("method", overflow="fold")
    for title in titles(columns):
        shown.add_column(Text(title), justify="right", overflow="fold")
    for label in labels_in(columns):
        texts = []
        for column in columns:
            cell = cell_of(column, label)
            mark = "" if cell is None else "*" * cell.best + DAGGER * cell.like_best
            said = "-" if cell is None else f"{cell.mean} {cell.interval}".strip()
            best = cell is not None and cell.best
            texts.append(Text(f"{said} {mark:1}", "bold" if best else ""))
        shown.add_row(Text(shown_label(columns, label)), *texts)
    out.print(shown)
    out.print(Text(caption(columns).replace("Bold:", "*:")))


_SHOWN = 30
"""The most clients of a plan that are printed; its files have all of them."""


def print_plan(plan: Any) -> None:
    """Prints the advice of a plan to each client, for 80 columns."""
    from ..planning.plans import advice, worth_of

    def score(name: str) -> Callable[[Any], str]:
        return lambda row: plan.measure.interval_of(row, name).replace(" to ", "-")

    columns: dict[str, Callable[[Any], str]] = {
        "verdict": advice,
        "partners": lambda row: _first_names(row["partners"].split(", ")),
        f"{plan.measure.title}\nalone": score("alone"),
        "\ntogether": score("together"),
        "worth": worth_of,
    }
    shown = (
        plan.table()
        .sort_values("worth", ascending=False)
        .set_index("name")
        .rename(index=lambda n: n.removeprefix("client "))
    )
    out.print()
    _print_rows("client by client", columns, shown.head(_SHOWN), first="client")
    if len(shown) > _SHOWN:
        out.print(f"... and {len(shown) - _SHOWN} more")


def _first_names(names: list[str], room: int = 12) -> str:
    """The first names that fit, and the number of the others.

    >>> _first_names(["3", "1", "4", "12", "2"]), _first_names([""])
    ('3, 1, 4, +2', '-')
    """
    texts = [", ".join(names)]
    for shown in range(len(names) - 1, 0, -1):
        texts.append(", ".join([*names[:shown], f"+{len(names) - shown}"]))
    return next((text for text in texts if len(text) <= room), texts[-1]) or "-"


def print_newcomers(summary: Any, score: Score) -> None:
    """Prints the scores of the clients that were held out of training."""
    count = int((summary["newcomers"] / summary["seeds"]).max())
    title = f"{several(int(count), 'newcomer')}, held out of training"
    columns: dict[str, Callable[[Any], str]] = {
        _mean_heading(summary): lambda row: _mean(row, score),
        "worst\nnewcomer": lambda row: score.show(row["worst"]),
        "beats\nlocal": lambda row: percent(row["better_than_local"], "-"),
        _gain_heading(score): lambda row: _gain(row, score),
    }
    out.print()
    _print_rows(title, columns, summary)


def print_chosen(chosen: Any) -> None:
    """Prints the options that [tune] chose."""
    from ..report.tables import setting_text

    out.print("\nchosen on validation data:")
    for label, table in chosen.groupby("algorithm", sort=False):
        seeds: dict[str, list[str]] = {}
        for seed, setting in table.droplevel("algorithm").iterrows():
            seeds.setdefault(setting_text(setting), []).append(str(seed))
        texts = [f"{text} (seed {', '.join(some)})" for text, some in seeds.items()]
        out.print(f"  {label}: {'; '.join(texts)}", soft_wrap=True)


def _mean_heading(summary: Any) -> str:
    return "mean ± se" if summary["standard_error"].notna().any() else "mean"


def _print_rows(
    title: str,
    columns: dict[str, Callable[[Any], str]],
    summary: Any,
    first: str = "algorithm",
    below: Any = None,
) -> None:
    """Prints a row for each algorithm; each column is a function that makes its cell.

    Columns that do not fit go into another table, so that no name is cut. Baselines
    stand under their own heading.
    """
    parts = [summary] if below is None or below.empty else [summary, below]
    rows = [row for part in parts for _, row in part.iterrows()]
    cells = {name: [text(row) for row in rows] for name, text in columns.items()}
    names = [
        annotate_label(
            str(row.name), *(bool(row.get(k, False)) for k in ("oracle", "failed"))
        )
        for row in rows
    ]
    for number, chunk in enumerate(_column_groups(names, cells)):
        table = Table(
            title=None if number else title,
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            show_edge=False,
            pad_edge=False,
        )
        table.add_column(first, overflow="fold")
        for column in chunk:
            table.add_column(column, justify="right", no_wrap=True)
        for place, name in enumerate(names):
            if place == len(summary):
                table.add_row(Text("\nBaselines", "bold"))
            table.add_row(name, *(cells[column][place] for column in chunk))
        out.print(table)


_NAME = 20
"""A line has room for at least this number of characters of a name."""


def _column_groups(names: list[str], cells: dict[str, list[str]]) -> list[list[str]]:
    """The columns in groups; a group fits on the terminal next to the names."""
    room = out.width - min(_NAME, max(map(cell_len, names), default=0))
    chunks: list[list[str]] = [[]]
    left = room
    for column, texts in cells.items():
        # The table adds a space before and after it.
        width = 2 + max(map(cell_len, [*column.split("\n"), *texts]))
        if chunks[-1] and width > left:
            chunks.append([])
            left = room
        chunks[-1].append(column)
        left -= width
    return chunks


_THOUSANDS = ("", " k", " M", " G", " T", " P")


def _mean(row: Any, score: Score) -> str:
    return score.show_with_error(row["mean"], row["standard_error"])


def _gain_heading(score: Score) -> str:
    """The heading of a gain, which is in points if the score is a percentage."""
    return f"over local\n{'points ' if score.ticks else ''}± 95 %"


def _gain(row: Any, score: Score) -> str:
    """The gain over training alone, and half the width of its interval."""
    if row["gain"] != row["gain"]:
        return "-"
    half = (row["gain_high"] - row["gain_low"]) / 2
    known = score.show_gain(half).removesuffix(" points").lstrip("+")
    known = known if half < float("inf") else "?"
    return f"{score.show_gain(row['gain']).removesuffix(' points')} ± {known}"


def _verdicts(row: Any) -> str:
    """The numbers of clients that gain, that lose, and that may do either."""
    if row["gain"] != row["gain"]:
        return "-"
    return "/".join(f"{row[n]:.0f}" for n in ("gaining", "losing", "cannot_tell"))


def count_text(value: float) -> str:
    """A count in the largest of thousands, millions and so on that is not larger.

    >>> count_text(6400)
    '6.4 k'
    """
    if value != value:
        return "-"
    step = 0
    while value >= 1000 and step < len(_THOUSANDS) - 1:
        value, step = value / 1000, step + 1
    return f"{value:{'.3g' if value < 1000 else '.0f'}}{_THOUSANDS[step]}"
