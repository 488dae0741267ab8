"""The command line: run, plan, list, report, check, reproduce."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..checks import InputError, TrainingError, one_of, parameters_of
from ..deploy import Disconnected, joined
from ..study import experiment
from .progress import plain_progress, study_progress

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Personalised collaborative learning: one model per client.",
)
# What is printed holds labels, paths and formulas with brackets, which are no markup.
out = Console(markup=False, emoji=False, highlight=False)
err = Console(markup=False, emoji=False, highlight=False, stderr=True)

Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override a setting: table.key=value (repeatable)."),
]


@app.command()
def run(
    path: Annotated[Path, typer.Argument(metavar="STUDY", help="A TOML file.")],
    overrides: Overrides = None,
    runs: Annotated[Path, typer.Option(help="Where run folders are made.")] = Path(
        "runs"
    ),
    resume: Annotated[
        Path | None, typer.Option(help="Go on in this run folder.")
    ] = None,
    quiet: Annotated[bool, typer.Option(help="No progress bar.")] = False,
) -> None:
    """Compare the algorithms of a study, and write a report."""
    from ..report.pages import write_report
    from ..study import read_study

    sys.path.insert(0, str(path.parent.resolve()))  # for "module:function" there
    study = read_study(path, overrides or [])
    group = joined(study.run.device)  # with torchrun, several processes
    try:
        with study_progress(err, study.name, quiet=quiet or not _SPEAKS) as show:
            result = experiment.run_study(
                study,
                runs=runs,
                resume=resume,
                progress=show,
                notice=_notice,
                group=group,
            )
    except KeyboardInterrupt:
        err.print("Interrupted: run the same command again to go on.")
        raise typer.Exit(130) from None
    if not _SPEAKS:
        return
    print_summary(result.table())
    if study.run.newcomers:
        print_newcomers(result.newcomers())
    print_chosen(result.records)
    report = write_report(result.records, result.folder / "report.html")
    out.print(f"report: {report}", soft_wrap=True)


@app.command()
def plan(
    path: Annotated[Path, typer.Argument(metavar="STUDY", help="A TOML file.")],
    overrides: Overrides = None,
    seed: Annotated[
        int | None, typer.Option(help="Which of the study's federations.")
    ] = None,
    lr: Annotated[
        float | None, typer.Option(help="Step size of the pilot's common model.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Its steps in a round.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of its training.")] = None,
    samples: Annotated[
        int, typer.Option(help="Plan for so many samples of each client.")
    ] = 0,
    times: Annotated[
        Path | None,
        typer.Option(help="Measured compute times, a CSV: client, number, seconds."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--out", help="Where the plan is written.")
    ] = None,
    quiet: Annotated[bool, typer.Option(help="No progress bar.")] = False,
) -> None:
    """Say how much learning together can help each client, before training."""
    from ..engine.clocks import trace
    from ..planning.plans import plan_study
    from ..planning.waiting import in_words, waiting_of
    from ..study import identity_of, read_study

    if times is not None:
        trace(times)  # refused before any work
    sys.path.insert(0, str(path.parent.resolve()))  # for "module:function" there
    study = read_study(path, overrides or [])
    with plain_progress(err, f"{study.name}, pilot", quiet=quiet) as show:
        found = plan_study(
            study,
            seed=seed,
            lr=lr,
            steps=steps,
            rounds=rounds,
            samples=samples,
            progress=show,
        )
    lines = found.summary()
    if times is not None:
        count = len(found.clients)
        lines += in_words(waiting_of(trace(times, clients=count), count), found.clients)
    if folder is None:
        folder = Path("runs") / f"plan-{identity_of(study, found.read)}"
    found.write(folder)
    for line in lines:
        out.print(line)
    print_plan(found.table())
    out.print(f"plan: {folder / 'plan.html'}", soft_wrap=True)
    out.print(f"weights for a study: {folder / 'weights.csv'}", soft_wrap=True)


@app.command("list")
def list_(
    what: Annotated[
        str,
        typer.Argument(help="algorithms, datasets, splits, models or graphs."),
    ] = "",
) -> None:
    """List what a study can name, with options and their defaults."""
    shelves = _shelves()
    if what:
        one_of("what", what, shelves)
    for title, (registry, ingredients) in shelves.items():
        if what in ("", title):
            faces = _faces(registry) if title == "algorithms" else {}
            out.print(_listing(title, registry, ingredients, faces))


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
) -> None:
    """Write the report of a run anew, also of one that was interrupted."""
    from ..records import load_records
    from ..report.pages import write_report
    from ..report.tables import newcomer_summary, summary

    records = load_records(folder)
    print_summary(summary(records))
    if not records.newcomers.empty:
        print_newcomers(newcomer_summary(records))
    print_chosen(records)
    path = write_report(records, folder / "report.html")
    out.print(f"report: {path}", soft_wrap=True)


@app.command()
def check(
    factory: Annotated[str, typer.Argument(help="module:factory, or a name of ours.")],
) -> None:
    """Run the conformance suite on an algorithm, ours or your own."""
    from ..conformance.suite import check_algorithm
    from ..study import algorithm_factory

    sys.path.insert(0, str(Path.cwd()))
    table = Table(title=f"conformance of {factory}")
    for column in ("check", "in", "result", "what was found"):
        table.add_column(column)
    findings = check_algorithm(algorithm_factory(factory))
    for finding in findings:
        row = (finding.check, finding.face, finding.outcome, finding.message)
        table.add_row(*row)
    out.print(table)
    if any(finding.outcome == "failed" for finding in findings):
        raise typer.Exit(1)


@app.command()
def reproduce(
    paper: Annotated[str, typer.Argument(help="For example philippenko2025.")] = "",
    item: Annotated[str, typer.Argument(help="A figure or table.")] = "",
    overrides: Overrides = None,
) -> None:
    """Run a published experiment and print ours next to the published value."""
    from .reproductions import reproduce_items

    if not reproduce_items(paper, item, overrides or [], out):
        raise typer.Exit(1)


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


def print_plan(table: Any) -> None:
    """Prints what a plan says to each client."""
    columns: dict[str, Callable[[Any], str]] = {
        "verdict": lambda row: row["verdict"],
        "worth": lambda row: f"{row['gain']:.2g}",
        "90 %\ninterval": lambda row: (
            f"{row['gain_least']:.2g} - {row['gain_most']:.2g}"
        ),
        "samples\nalone": lambda row: str(row["alone"]),
        "\ntogether": lambda row: str(row["together"]),
        "partners": lambda row: _few(row["partners"].split()),
    }
    shown = table.sort_values("gain", ascending=False).set_index("client")
    out.print()
    _print_rows("client by client", columns, shown.head(_SHOWN), first="client")
    if len(shown) > _SHOWN:
        out.print(f"... and {len(shown) - _SHOWN} more")
    times = shown[shown["verdict"] == "cannot tell"]["pilot_for_an_answer"]
    if len(times) and times.median() < float("inf"):
        out.print(
            "open verdicts: a pilot of about "
            f"{times.median():.2g} times the samples would tell"
        )


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


def _shelves() -> dict[str, tuple[dict[str, Callable[..., Any]], int | None]]:
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


def _faces(registry: dict[str, Callable[..., Any]]) -> dict[str, str]:
    """How methods may go: by rounds, in time without waiting, or both."""
    from ..conformance import faces_of

    return {name: ", ".join(faces_of(factory)) for name, factory in registry.items()}


def _listing(
    title: str,
    registry: dict[str, Callable[..., Any]],
    ingredients: int | None,
    faces: dict[str, str],
) -> Table:
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


def main() -> None:
    """The command `coterie`: mistakes give one sentence and exit code 2."""
    try:
        app()
    except (InputError, TrainingError, Disconnected) as error:
        _fail(str(error))
    except OSError as error:  # a full disk, a folder that went away
        _fail(f"{error.filename or 'a file'} cannot be used: {error.strerror}.")
    except KeyboardInterrupt:
        sys.exit(130)


_SPEAKS = os.environ.get("RANK", "0") == "0"
"""Of several processes that torchrun started, the first one speaks for all."""


def _notice(line: str) -> None:
    if _SPEAKS:
        err.print(line, soft_wrap=True)


def _fail(message: str) -> NoReturn:
    if not _SPEAKS:
        sys.exit(2)
    err.print(Text.assemble(("Error:", "bold red"), " ", message), soft_wrap=True)
    sys.exit(2)
