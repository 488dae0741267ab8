"""Several runs side by side: whether they can be compared, scores, costs, versions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from string import ascii_uppercase
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich import box
from rich.table import Table

from ...checks import InputError, several
from ...records.folders import leaves_of
from ...records.keys import FINGERPRINT, KEY
from ...scores.words import in_bytes, seconds_of
from ..completion import run_folders
from ..tables import count_text, print_json, rows_of
from ..terminal import out
from .options import Json

if TYPE_CHECKING:
    import pandas as pd

    from ...records import Records


class ComparedRun(NamedTuple):
    """A run that is compared."""

    letter: str  # its name in tables and sentences
    folder: Path
    records: Records
    table: pd.DataFrame  # a row for each algorithm, with seconds
    data: dict[str, str]  # digests of what its data were read from
    key: str  # fingerprint of the key that made the digests; empty without digests


class RunComparison(NamedTuple):
    """Several runs, and whether they were scored on the same test data."""

    runs: list[ComparedRun]
    same: bool
    sentence: str
    settings: dict[str, list[Any]]  # name of a setting that differs -> its values


def compare(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN RUN",
            help="Two or more run folders.",
            autocompletion=run_folders,
        ),
    ],
    as_json: Json = False,
) -> None:
    """Show several runs side by side, and say whether their scores can be compared."""
    found = compare_runs(folders)
    if as_json:
        print_json(_answer(found))
    else:
        _print(found)


def compare_runs(folders: Sequence[Path]) -> RunComparison:
    """The runs of these folders side by side."""
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise InputError("`compare` needs different run folders, got one twice.")
    if not 2 <= len(folders) <= len(ascii_uppercase):
        raise InputError(
            "`coterie compare` needs two or more run folders, and at most "
            f"{len(ascii_uppercase)}, got {len(folders)}."
        )
    runs = [
        _read_run(sign, each)
        for sign, each in zip(ascii_uppercase, folders, strict=False)
    ]
    apart = next(
        filter(None, (_first_difference(runs[0], run) for run in runs[1:])), ""
    )
    sentence = (
        "The runs have the same data, split and seeds: their scores can be compared."
    )
    if len({run.key for run in runs}) > 1:
        sentence = (
            "The runs have the same settings of data, split and seeds, and clients "
            "with as many samples. We cannot tell whether their files are the same, "
            f"because they are in runs folders with different keys ({KEY})."
        )
    if apart:
        sentence = f"The scores cannot be compared: {apart}."
    return RunComparison(runs, not apart, sentence, _different_settings(runs))


def _read_run(letter: str, folder: Path) -> ComparedRun:
    from ...records import load_records
    from ...records.files import read_json
    from ...report import summary

    records = load_records(folder)
    table = summary(records)
    read = read_json(folder / "read.json") if (folder / "read.json").exists() else {}
    data = {k: v for k, v in read.items() if k.startswith("the data ")}
    return ComparedRun(letter, folder, records, table, data, read.get(FINGERPRINT, ""))


def _first_difference(one: ComparedRun, other: ComparedRun) -> str:
    """Why the scores of two runs cannot be compared; empty if they can."""
    between = f"in {one.letter} and {{}} in {other.letter}"
    mine, theirs = one.records, other.records
    if mine.score != theirs.score:
        return f"the measure is {mine.score} " + between.format(theirs.score)
    sources = [{k: r.study.get(k) for k in ("data", "split")} for r in (mine, theirs)]
    first, second = map(leaves_of, sources)
    for name in sorted(first.keys() | second.keys()):
        if first.get(name) != second.get(name):
            values = repr(first.get(name)), repr(second.get(name))
            return f"`{name}` is {values[0]} " + between.format(values[1])
    digests = one.data.keys() | other.data.keys() if one.key == other.key else ()
    for what in sorted(digests):
        if one.data.get(what) != other.data.get(what):
            return f"{what} has other content in {one.letter} than in {other.letter}"
    seeds = [sorted(set(r.metrics["seed"])) for r in (mine, theirs)]
    if seeds[0] != seeds[1]:
        return f"the seeds are {seeds[0]} " + between.format(seeds[1])
    if not mine.clients.equals(theirs.clients):
        return (
            f"clients of {other.letter} have other samples than those of {one.letter}"
        )
    return ""


def _different_settings(runs: Sequence[ComparedRun]) -> dict[str, list[Any]]:
    """The settings in which runs differ, except names and algorithms."""
    skip = ("name", "algorithm")
    settings = [
        leaves_of({k: v for k, v in run.records.study.items() if k not in skip})
        for run in runs
    ]
    names = dict.fromkeys(name for leaves in settings for name in leaves)
    values = {name: [leaves.get(name) for leaves in settings] for name in names}
    return {k: some for k, some in values.items() if any(v != some[0] for v in some)}


def _answer(found: RunComparison) -> dict[str, Any]:
    """The comparison as a JSON object."""
    return {
        "same_data": found.same,
        "sentence": found.sentence,
        "settings": found.settings,
        "runs": [
            {
                "run": run.letter,
                "folder": str(run.folder),
                "study": run.records.study["name"],
                "measure": run.records.score,
                "higher_is_better": run.records.higher_is_better,
                "versions": run.records.versions,
                "algorithms": rows_of(run.table),
            }
            for run in found.runs
        ],
    }


def _print(found: RunComparison) -> None:
    """Prints the runs, and one table each for scores, costs and settings."""
    from ...scores.finals import score_of

    for run in found.runs:
        versions = run.records.versions
        made = ", ".join(
            f"{k} {versions[k]}" for k in ("coterie", "torch") if k in versions
        )
        rounds, seeds = run.table["round"].max(), run.table["seeds"].max()
        about = f"round {rounds}, {several(int(seeds), 'seed')}, {made}"
        out.print(f"{run.letter}: {run.folder} ({about})", soft_wrap=True)
    out.print(f"{found.sentence}\n", soft_wrap=True)
    labels = dict.fromkeys(
        str(label) for run in found.runs for label in run.table.index
    )
    first = found.runs[0].records
    way = "higher" if first.higher_is_better else "lower"
    scored = f"{score_of(first).words}, {way} is better: mean ± standard error"
    _print_rows(
        scored, "algorithm", found, {a: _each(found, a, _score) for a in labels}
    )
    costs = {a: _each(found, a, _cost) for a in labels}
    counted = "gradients, bytes sent and received, seconds (median over seeds)"
    _print_rows(counted, "algorithm", found, costs)
    if found.settings:
        texts = {k: [str(v) for v in some] for k, some in found.settings.items()}
        _print_rows("settings that differ", "setting", found, texts)


def _each(found: RunComparison, label: str, text: Any) -> list[str]:
    """The algorithm's cell for each run; "-" if it did not train in the run."""
    return [
        text(run, run.table.loc[label]) if label in run.table.index else "-"
        for run in found.runs
    ]


def _score(run: ComparedRun, row: Any) -> str:
    from ...scores.finals import score_of

    score = score_of(run.records)
    shown = score.show_with_error(row["mean"], row["standard_error"])
    return f"{shown} (training failed)" if row["failed"] else shown


def _cost(run: ComparedRun, row: Any) -> str:
    parts = count_text(row["gradients"]), in_bytes(row["bytes"])
    return ", ".join((*parts, seconds_of(row["seconds"], "-")))


def _print_rows(
    title: str, first: str, found: RunComparison, rows: dict[str, list[str]]
) -> None:
    """Prints a row for each name and a column for each run; no text is cut."""
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
    )
    table.add_column(first, overflow="fold")
    for run in found.runs:
        table.add_column(run.letter, justify="right", overflow="fold")
    for name, cells in rows.items():
        table.add_row(name, *cells)
    out.print(table)
