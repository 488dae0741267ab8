"""The command line: what a person can ask for, and how errors are told."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.text import Text

from .. import __version__
from ..checks import Disconnected, InputError, TrainingError, one_of, raised
from ..deploy import joined
from ..study import experiment
from .answers import (
    check_answer,
    predict_answer,
    print_json,
    run_answer,
)
from .beside import look_beside, texts_of
from .listings import KINDS, listed, listing
from .progress import study_progress
from .tables import (
    err,
    out,
    print_chosen,
    print_findings,
    print_headline,
    print_newcomers,
    print_summary,
)
from .terminal import interruptible, show_any_sign, stop_code

if TYPE_CHECKING:
    from ..records import Records

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> bool:
    if wanted:
        out.print(f"coterie {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Personalised collaborative learning: one model per client."""


Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override a setting: table.key=value (repeatable)."),
]


Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON object in place of tables.")
]


@app.command()
@interruptible(err, "nothing was begun.")
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
    as_json: Json = False,
) -> None:
    """Compare the algorithms of a study, and write a report."""
    from ..study import read_study

    look_beside(path.parent, texts_of(path, overrides or []))
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
    except KeyboardInterrupt as stopped:
        _notice("Interrupted: run the same command again to go on.")
        raise typer.Exit(stop_code(stopped)) from None
    if _SPEAKS:
        _report(result.records, result.folder, as_json=as_json)


@app.command()
@interruptible(err, "no plan was written.")
def plan(
    path: Annotated[
        Path | None, typer.Argument(metavar="STUDY", help="A TOML file.")
    ] = None,
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
    graph: Annotated[
        str | None,
        typer.Option(help="In place of a study: a CSV with v, w, or a name: torus(2)."),
    ] = None,
    nodes: Annotated[int | None, typer.Option(help="Of a graph by name.")] = None,
    delays: Annotated[
        Path | None, typer.Option(help="Of its links, a CSV: v, w, delay in seconds.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="What noise it needs, and what that costs.")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="With --epsilon.")] = None,
    quiet: Annotated[bool, typer.Option(help="No progress bar.")] = False,
    as_json: Json = False,
) -> None:
    """Say how much learning together can help each client, before training.

    With --graph: which links to leave out so that everybody agrees sooner. With
    --epsilon, or [privacy]: what noise it takes, and what accuracy that would cost.
    """
    if (path is None) == (graph is None):
        raise InputError("`plan` needs a study or --graph, and not both.")
    from .plans import plan_graph, show_plan
    from .privacy.costs import show_costs

    if graph is not None:
        return plan_graph(graph, nodes, delays, seed or 0, as_json=as_json)
    if nodes is not None or delays is not None:
        raise InputError("--nodes and --delays are for --graph.")
    assert path is not None  # as there is no graph
    if show_costs(path, overrides or [], epsilon, delta, quiet=quiet, as_json=as_json):
        return
    pilot = {"seed": seed, "lr": lr, "steps": steps, "rounds": rounds}
    given = pilot | {"samples": samples}
    show_plan(path, overrides or [], times, folder, given, quiet=quiet, as_json=as_json)


@app.command()
@interruptible(err, "nothing was proved.")
def audit(
    path: Annotated[
        Path, typer.Argument(metavar="STUDY", help="A TOML file, or a run folder.")
    ],
    overrides: Overrides = None,
    runs: Annotated[int, typer.Option(help="Trainings of each algorithm.")] = 32,
    confidence: Annotated[
        float, typer.Option(help="That all lower bounds hold together.")
    ] = 0.95,
    quiet: Annotated[bool, typer.Option(help="No progress bar.")] = False,
    as_json: Json = False,
) -> None:
    """Attack a study's training: is it as private as its [privacy] says?

    Exits with 1 where an attack proves more than the accountant allows.
    """
    from .privacy.audits import show_audit

    given = (path, overrides or [], runs, confidence)
    if not show_audit(*given, quiet=quiet, as_json=as_json):
        raise typer.Exit(1)


@app.command("list")
def list_(
    what: Annotated[
        str,
        typer.Argument(
            help="algorithms, ingredients, datasets, splits, models, graphs, measures "
            "or losses."
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """List what a study can name, with options and their defaults."""
    if what:
        one_of("what", what, KINDS)
    known = listed(what)
    if as_json:
        print_json({k: [item._asdict() for item in v] for k, v in known.items()})
        return
    for title, items in known.items():
        out.print(listing(title, items))


@app.command()
@interruptible(err, "no report was written.")
def report(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    as_json: Json = False,
) -> None:
    """Write the report of a run anew, also of one that was interrupted."""
    from ..records import load_records

    _report(load_records(folder), folder, as_json=as_json)


def _report(records: Records, folder: Path, *, as_json: bool) -> None:
    """Prints the tables of a run, or one object, and writes its page."""
    from ..report import headline, newcomer_summary, summary, write_report
    from ..scores.keeping import keeping

    records = keeping(records)  # the page and the tables ask the same
    path = write_report(records, folder / "report.html")
    if as_json:
        print_json(run_answer(records, folder))
        return
    table = summary(records)
    print_headline(headline(records, table))
    print_summary(table)
    if not records.newcomers.empty:
        print_newcomers(newcomer_summary(records))
    print_chosen(records)
    out.print(f"report: {path}", soft_wrap=True)


@app.command()
@interruptible(err, "nothing was written.")
def export(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    client: Annotated[str, typer.Option(help="Whose model: its name or number.")],
    algorithm: Annotated[
        str | None, typer.Option(help="Its label; else validation data choose.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Else the first that has models.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option(help="A new folder; else exports/CLIENT.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an earlier export.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write one client's model as files that run elsewhere, each of them checked."""
    from .exports import exported, print_export

    found = exported(folder, client, algorithm, seed, to, overwrite=overwrite)
    if as_json:
        print_json({"client": client, **found._asdict()})
    else:
        print_export(client, found)


@app.command()
@interruptible(err, "nothing was written.")
def predict(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Of an export.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="CSV, Parquet or npz.")],
    to: Annotated[
        Path | None, typer.Option("--out", help="A CSV file; else the terminal.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what an exported model predicts for new rows, and how right that is."""
    from .exports import predictions, print_predictions

    found = predictions(folder, file, to)
    if as_json:
        print_json(predict_answer(found, to))
    else:
        print_predictions(found, to)


@app.command()
def watch(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    page: Annotated[
        bool, typer.Option("--page", help="Also write RUN/watch.html, which reloads.")
    ] = False,
) -> None:
    """Show where a run stands, until it ends."""
    from .watching import watch_run

    try:
        watch_run(folder, page=page)
    except KeyboardInterrupt as stopped:
        err.print("Stopped watching; the run itself goes on.")
        raise typer.Exit(stop_code(stopped)) from None


@app.command()
def compare(
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN RUN", help="Two or more run folders.")
    ],
    as_json: Json = False,
) -> None:
    """Show several runs side by side, and say whether their scores compare."""
    from .comparisons import answer, compared, print_comparison

    found = compared(folders)
    if as_json:
        print_json(answer(found))
    else:
        print_comparison(found)


@app.command()
@interruptible(err, "not all checks were run.")
def check(
    factory: Annotated[str, typer.Argument(help="module:factory, or a name of ours.")],
    skip: Annotated[
        list[str] | None, typer.Option(help="Leave out this check (repeatable).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run the conformance suite on an algorithm, ours or your own."""
    from ..conformance.suite import check_algorithm
    from ..study import algorithm_factory

    look_beside(Path.cwd(), [factory])
    findings = check_algorithm(algorithm_factory(factory), skip=skip or ())
    if as_json:
        print_json(check_answer(factory, findings))
    else:
        print_findings(factory, findings)
    if any(finding.outcome == "failed" for finding in findings):
        raise typer.Exit(1)


@app.command()
@interruptible(err, "run the same command again to go on.")
def reproduce(
    paper: Annotated[str, typer.Argument(help="For example philippenko2025.")] = "",
    item: Annotated[str, typer.Argument(help="A figure or table.")] = "",
    overrides: Overrides = None,
) -> None:
    """Run a published experiment and print ours next to the published value."""
    from .reproductions import reproduce_items

    if not reproduce_items(paper, item, overrides or [], out):
        raise typer.Exit(1)


def main() -> None:
    """The command `coterie`: mistakes give one sentence and exit code 2."""
    show_any_sign()
    try:
        app()
    except (InputError, TrainingError, Disconnected) as error:
        _fail(str(error))
    except OSError as error:  # a full disk, a folder that went away
        _fail(f"{error.filename or 'a file'} cannot be used: {error.strerror}.")
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "memory" not in str(error):
            raise
        _fail(f"there is not enough memory: {raised(error)}.")
    except KeyboardInterrupt as stopped:
        sys.exit(stop_code(stopped))


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
