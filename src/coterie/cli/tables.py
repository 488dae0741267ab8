"""What the terminal shows: tables of runs and plans, and lists of what can be named."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..checks import parameters_of

# What is printed holds labels, paths and formulas with brackets, which are no markup.
out = Console(markup=False, emoji=False, highlight=False)
err = Console(markup=False, emoji=False, highlight=False, stderr=True)


def print_summary(summary: Any) -> None:
    """Prints the comparison of algorithms, one row each, for 80 columns."""
    when, seeds = f"round {summary['round'].max()}", summary["seeds"].max()
    if "time" in summary:
        when = f"after {summary['time'].max():.4g} virtual seconds"
    title = f"test data, {when}, {seeds} seed{'s' if seeds > 1 else ''}"
    columns: dict[str, Callable[[Any], str]] = {
        _mean_heading(summary): _mean,
        "weighted\nmean": lambda row: _number(row["weighted_mean"]),
        "worst\ndecile": lambda row: _number(row["worst_decile"]),
        "beats\nlocal": lambda row: _share(row["better_than_local"]),
        "gradient\ncount": lambda row: _scaled(row["gradients"], 1000, _THOUSANDS),
        "sent": lambda row: _scaled(row["bytes"], 1024, _BYTES),
    }
    if "updates" in summary:
        # There is no room for both; the report has them.
        del columns["weighted\nmean"]
        columns["updates"] = lambda row: _scaled(row["updates"], 1000, _THOUSANDS)
    _print_rows(title, columns, summary)


_SHOWN = 30
"""So many clients of a plan are printed; its files have all of them."""


def print_plan(plan: Any) -> None:
    """Prints what a plan says to each client, for 80 columns."""
    from ..planning.plans import advice

    def score(name: str) -> Callable[[Any], str]:
        return lambda row: plan.measure.interval_of(row, name).replace(" to ", "-")

    columns: dict[str, Callable[[Any], str]] = {
        "verdict": advice,
        f"{plan.measure.title}\nalone": score("alone"),
        "\ntogether": score("together"),
        "worth": lambda row: f"{row['worth']:.2g}",
        "partners": lambda row: _few(row["partners"].split(), most=3),
    }
    shown = plan.table().sort_values("worth", ascending=False).set_index("client")
    out.print()
    _print_rows("client by client", columns, shown.head(_SHOWN), first="client")
    if len(shown) > _SHOWN:
        out.print(f"... and {len(shown) - _SHOWN} more")


def _few(names: list[str], most: int = 5) -> str:
    """The first names, and how many more there are.

    >>> _few(["3", "1", "4"], most=2)
    '3 1 +1'
    """
    more = [f"+{len(names) - most}"] if len(names) > most else []
    return " ".join(names[:most] + more) or "-"


def print_newcomers(summary: Any) -> None:
    """Prints how those fare who were held out of training."""
    count = int((summary["newcomers"] / summary["seeds"]).max())
    title = f"{count} newcomer{'s' if count > 1 else ''}, held out of training"
    columns: dict[str, Callable[[Any], str]] = {
        _mean_heading(summary): _mean,
        "worst\nnewcomer": lambda row: _number(row["worst"]),
        "beats\nlocal": lambda row: _share(row["better_than_local"]),
    }
    out.print()
    _print_rows(title, columns, summary)


def print_chosen(records: Any) -> None:
    """Prints the options that [tune] chose, where it did."""
    from ..report.tables import chosen, setting_text

    if records.trials.empty or not records.trials["chosen"].any():
        return
    out.print("\nchosen on validation data:")
    for label, table in chosen(records).groupby("algorithm", sort=False):
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
) -> None:
    """Prints a table: a row for each algorithm, its cells made by the columns."""
    table = Table(
        title=title,
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        show_edge=False,
        pad_edge=False,
    )
    table.add_column(first, overflow="fold")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for label, row in summary.iterrows():
        table.add_row(str(label), *(text(row) for text in columns.values()))
    out.print(table)


_THOUSANDS = ("", " k", " M", " G", " T", " P")


_BYTES = (" B", " KiB", " MiB", " GiB", " TiB", " PiB")


def _mean(row: Any) -> str:
    error = row["standard_error"]
    return _number(row["mean"]) + ("" if error != error else f" ± {error:.1g}")


def _number(value: float) -> str:
    return "-" if value != value else f"{value:.4g}"


def _share(value: float) -> str:
    return "-" if value != value else f"{value:.0%}"


def _scaled(value: float, base: int, units: tuple[str, ...]) -> str:
    """A count in the largest unit of which it has at least one.

    >>> _scaled(6400, 1000, _THOUSANDS)
    '6.4 k'
    """
    if value != value:
        return "-"
    step = 0
    while value >= base and step < len(units) - 1:
        value, step = value / base, step + 1
    return f"{value:.3g}{units[step]}" if value < 1000 else f"{value:.0f}{units[step]}"


def registries() -> dict[str, tuple[dict[str, Callable[..., Any]], int | None]]:
    """What can be listed: a registry, and how many leading parameters to hide."""
    from ..algorithms import ALGORITHMS
    from ..data.datasets import DATASETS
    from ..data.splits import SPLITS
    from ..graphs.families import GRAPHS
    from ..models import MODELS

    return {
        "algorithms": (ALGORITHMS, None),
        "datasets": (DATASETS, 0),
        "splits": (SPLITS, None),
        "models": (MODELS, None),
        "graphs": (GRAPHS, None),
    }


def listing(
    title: str,
    registry: dict[str, Callable[..., Any]],
    ingredients: int | None,
    faces: dict[str, str],
) -> Table:
    """What a registry has, with options and their defaults, and faces of methods."""
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("name", no_wrap=True)
    if faces:
        table.add_column("goes by", no_wrap=True)
    table.add_column("what it is, and its options with their defaults")
    for name, function in sorted(registry.items()):
        first = (inspect.getdoc(function) or "").split("\n\n")[0].replace("\n", " ")
        options = ", ".join(
            f"{p.name}={p.default}" if p.default is not p.empty else p.name
            for p in parameters_of(function, ingredients=ingredients).values()
        )
        lines = [first, _reference(function), options]
        text = Text("\n").join(
            Text(line, style="dim" if number else "")
            for number, line in enumerate(lines)
            if line
        )
        table.add_row(name, *([faces[name]] if faces else []), text)
    return table


def _reference(function: Callable[..., Any]) -> str:
    """What the docstring of the function's module names under References."""
    text = inspect.getdoc(inspect.getmodule(function)) or ""
    _, _, rest = text.partition("References:\n")
    return " ".join(line.strip() for line in rest.partition("\n\n")[0].splitlines())
