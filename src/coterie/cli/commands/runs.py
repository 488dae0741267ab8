"""The commands `run` and `report`: runs a study, and shows its results."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...checks import InputError
from ...deploy import join_processes
from ...export.archives import is_archive
from ...study import Result, Study
from ...study.experiment import Progress, run_study
from ..archives import NO_LOG, say_agreement, study_of_archive
from ..completion import examples, run_folders
from ..examples import example_named
from ..own_modules import read_study_file
from ..progress import study_progress
from ..tables import (
    print_chosen,
    print_epsilons,
    print_headline,
    print_json,
    print_newcomers,
    print_summary,
    rows_of,
)
from ..terminal import IS_MAIN_PROCESS, err, interruptible, notice, out, stop_code
from .options import STUDY, Json, Overrides, Quiet, RunFolder, Trust

if TYPE_CHECKING:
    from ...records import Records


@interruptible(err, "nothing had started.")
def run(
    path: Annotated[Path | None, STUDY] = None,
    overrides: Overrides = None,
    example: Annotated[
        str | None,
        typer.Option(
            help="A study that comes with coterie: digits, ...", autocompletion=examples
        ),
    ] = None,
    runs: Annotated[Path, typer.Option(help="The folder for run folders.")] = Path(
        "runs"
    ),
    resume: Annotated[
        Path | None,
        typer.Option(
            help="Continue in this run folder: needed only if it was moved or renamed.",
            autocompletion=run_folders,
        ),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Train again what was trained before.")
    ] = False,
    trust: Trust = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Compare the algorithms of a study, and write a report.

    STUDY may also be an archive by `coterie pack`. It asks before code in it runs.
    """
    if (path is None) == (example is None):
        raise InputError("`run` needs either a study or --example.")
    path, archive = path or example_named(str(example)), None
    with contextlib.ExitStack() as stack:
        if is_archive(path):
            place = stack.enter_context(study_of_archive(path, trust or ()))
            path, archive = place
            overrides = [NO_LOG, *(overrides or [])]
        study = read_study_file(path, overrides, trust)
        result, reused = _run_with_progress(
            study, runs, resume, fresh=fresh, quiet=quiet
        )
    if IS_MAIN_PROCESS:
        _report(result.records, result.folder, as_json=as_json)
        if archive is not None:
            say_agreement(archive, result.folder, reused)


def _run_with_progress(
    study: Study, runs: Path, resume: Path | None, *, fresh: bool, quiet: bool
) -> tuple[Result, int]:
    """Runs a study, and shows its progress; returns how many cells were there before.

    A cell is an algorithm on one seed.
    """
    group = join_processes(study.run.device)  # torchrun starts several processes
    try:
        with study_progress(
            err, study.name, quiet=quiet or not IS_MAIN_PROCESS
        ) as show:
            before, trained = set[tuple[str, int]](), set[tuple[str, int]]()

            def progress(p: Progress) -> None:
                (before if p.reused else trained).add((p.label, p.seed))
                show(p)

            result = run_study(
                study,
                runs=runs,
                resume=resume,
                progress=progress,
                notice=notice,
                group=group,
                fresh=fresh,
            )
            return result, len(before - trained)
    except KeyboardInterrupt as stopped:
        notice("Interrupted: run the same command again to continue.")
        raise typer.Exit(stop_code(stopped)) from None


@interruptible(err, "no report was written.")
def report(folder: RunFolder, as_json: Json = False) -> None:
    """Write the report of a run again; the run may be unfinished."""
    from ...records import load_records

    _report(load_records(folder), folder, as_json=as_json)


def _report(records: Records, folder: Path, *, as_json: bool) -> None:
    """Prints the tables of a run, or one JSON object, and writes its page."""
    from ...privacy.mechanisms.noise import simulated_text
    from ...report import (
        chosen_options,
        headline,
        newcomer_summary,
        summary,
        write_report,
    )
    from ...report.headlines import best_of
    from ...report.searches import settings_text
    from ...scores.baselines import baseline_summary
    from ...scores.caching import with_cache
    from ...scores.finals import score_of
    from ...scores.roles import epsilon_by_role

    records = with_cache(records)  # the page and the tables need the same results
    path = write_report(records, folder / "report.html")
    table, baselines = summary(records), baseline_summary(records)
    answers = headline(records, table)
    newcomers = None if records.newcomers.empty else newcomer_summary(records)
    tuned = not records.trials.empty and records.trials["chosen"].any()
    found = chosen_options(records) if tuned else None
    roles = epsilon_by_role(records)
    if as_json:
        return print_json(
            {
                "folder": str(folder),
                "report": str(path),
                "study": records.study["name"],
                "measure": records.score,
                "higher_is_better": records.higher_is_better,
                "verdict": answers["Verdict"],
                "algorithms": rows_of(table),
                "baselines": rows_of(baselines) if len(baselines) else [],
                "epsilon": rows_of(roles) if len(roles) else [],
                "newcomers": [] if newcomers is None else rows_of(newcomers),
                "chosen": [] if found is None else rows_of(found),
                "versions": records.versions,
            }
        )
    print_headline(answers)
    score = score_of(records)
    print_summary(table, score, baselines)
    out.print(f"\n{best_of(records, table)[0]}")
    if len(roles):
        source = records.study["privacy"].get("noise_source", "seed")
        print_epsilons(roles, simulated_text(source))
    if newcomers is not None:
        print_newcomers(newcomers, score)
    if found is not None:
        print_chosen(found)
    if settings := settings_text(records):
        out.print(settings)
    out.print(f"report: {path}", soft_wrap=True)
