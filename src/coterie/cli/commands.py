"""The command line: run, plan, list, report, check, reproduce."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.table import Table
from rich.text import Text

from ..checks import InputError, TrainingError, one_of
from ..deploy import Disconnected, joined
from ..study import experiment
from .progress import plain_progress, study_progress
from .tables import (
    err,
    listing,
    out,
    print_chosen,
    print_newcomers,
    print_plan,
    print_summary,
    registries,
)

if TYPE_CHECKING:
    from ..records import Records

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Personalised collaborative learning: one model per client.",
)

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
    if _SPEAKS:
        _report(result.records, result.folder)


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
    print_plan(found)
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
    known = registries()
    if what:
        one_of("what", what, known)
    for title, (registry, ingredients) in known.items():
        if what in ("", title):
            faces = _faces(registry) if title == "algorithms" else {}
            out.print(listing(title, registry, ingredients, faces))


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
) -> None:
    """Write the report of a run anew, also of one that was interrupted."""
    from ..records import load_records

    _report(load_records(folder), folder)


def _report(records: Records, folder: Path) -> None:
    """Prints the tables of a run, and writes its page."""
    from ..report import newcomer_summary, summary, write_report

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


def _faces(registry: dict[str, Callable[..., Any]]) -> dict[str, str]:
    """How methods may go: by rounds, in time without waiting, or both."""
    from ..conformance import faces_of

    return {name: ", ".join(faces_of(factory)) for name, factory in registry.items()}


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
