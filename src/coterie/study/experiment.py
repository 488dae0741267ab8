"""Runs a study: every algorithm on the same data, seeds and starting point.

The only place where data, models, oracle, algorithms and records are wired together.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from .. import checks
from ..checks import InputError
from ..clients.kernels import can_compile
from ..models.zoo import with_row
from ..records import Folder, Records
from ..records.versions import versions
from .config import Study
from .loops import training_of
from .newcomers import hold_out
from .setup import build_algorithm, federation_of, folds_of, prepare, wants_compiling
from .training import Tell, run_cell
from .trials import refuse_settings, search_for, tuned

if TYPE_CHECKING:
    import pandas as pd


class Progress(NamedTuple):
    """Where a study stands, for whoever shows it."""

    label: str
    seed: int
    t: int
    done: int  # rounds of all cells so far
    total: int
    score: float | None  # mean validation score, where just evaluated
    time: float | None = None  # virtual seconds, where a study has them


@dataclass(frozen=True)
class Result:
    """A study's records, and its models."""

    folder: Path
    records: Records
    study: Study

    def table(self) -> pd.DataFrame:
        """One row for each algorithm, on test data at the last round."""
        from ..report.tables import summary

        return summary(self.records)

    def newcomers(self) -> pd.DataFrame:
        """One row for each algorithm, on test data of those held out of training."""
        from ..report.tables import newcomer_summary

        return newcomer_summary(self.records)

    def chosen(self) -> pd.DataFrame:
        """The options that validation data chose, by algorithm and seed."""
        from ..report.tables import chosen

        return chosen(self.records)

    def models(self, label: str | None = None, seed: int | None = None) -> Tensor:
        """The personal models (N, D) of an algorithm, by default the last listed.

        Row j is that of the j-th client who trained, in the order of `records.clients`.
        """
        return Folder(self.folder).models(*self._cell(label, seed))

    def newcomer_models(
        self, label: str | None = None, seed: int | None = None
    ) -> Tensor:
        """The models (M, D) that newcomers got, in the order of `records.newcomers`."""
        return Folder(self.folder).models(*self._cell(label, seed), of="newcomers")

    def _cell(self, label: str | None, seed: int | None) -> tuple[str, int]:
        labels = [entry.label for entry in self.study.algorithms]
        label = checks.one_of("label", labels[-1] if label is None else label, labels)
        return label, self.study.run.seeds[0] if seed is None else seed

    def model(
        self, client: int, label: str | None = None, seed: int | None = None
    ) -> nn.Module:
        """The model of one client, who trained or joined later, ready to use."""
        label, seed = self._cell(label, seed)
        rows = self.models(label, seed)
        table = self.records.clients
        names = table.loc[table["seed"] == seed, "client"].tolist()
        if self.study.run.newcomers:
            rows = torch.cat([rows, self.newcomer_models(label, seed)])
            table = self.records.newcomers
            mine = (table["algorithm"] == label) & (table["seed"] == seed)
            names += table.loc[mine, "client"].tolist()
        checks.integer("client", client, at_least=0, at_most=len(names) - 1)
        row = rows[names.index(client)]
        return with_row(prepare(self.study, seed).module, row)


def run_study(
    study: Study,
    *,
    runs: Path | str = "runs",
    resume: Path | str | None = None,
    progress: Callable[[Progress], None] | None = None,
    notice: Callable[[str], None] | None = None,
) -> Result:
    """Runs what of a study has not run yet, and returns all of its results.

    The folder is named by the study's content, so that the same study again goes on
    where it stopped; nothing is run twice.

    Args:
        study: from `read_study` or `study`.
        runs: where the folder is made.
        resume: a folder to go on in, instead; it must belong to the same study.
        progress: called after every round.
        notice: called with one line where there is something to know.
    """
    folder = Folder(Path(resume) if resume else Path(runs) / study.identity)
    if resume and not (folder.path / "study.toml").exists():
        raise InputError(
            f"there is no run to resume in {folder.path}: it has no study.toml."
        )
    ground = prepare(study, study.run.seeds[0])
    for entry in study.algorithms:
        timed = study.time is not None
        method = build_algorithm(entry, ground.federation, timed=timed)
        training_of(study, method, ground, study.run.seeds[0]).init()
        if ground.newcomers is not None:
            build_algorithm(entry, ground.newcomers.everybody, timed=timed)
    refuse_settings(study, ground)
    for seed in study.run.seeds[1:]:
        # Refuses what a later seed could not be run with.
        everybody = federation_of(study, seed)
        trains, _ = hold_out(everybody, study.run.newcomers, seed)
        folds_of(study, everybody.select(trains), seed)
    device = ground.x.device
    if wants_compiling(study, device) and not can_compile(device) and notice:
        notice("no C++ compiler was found, so gradients are not compiled.")
    folder.create(study.resolved(), versions(device))
    searches = {
        (entry.label, seed): search_for(study, entry, seed)
        for entry in study.algorithms
        for seed in study.run.seeds
    }
    total = study.run.rounds * len(searches)
    total += sum(search.planned for search in searches.values() if search)
    finished = 0
    for seed in study.run.seeds:
        ground = prepare(study, seed) if seed != study.run.seeds[0] else ground
        folder.describe(seed, ground.federation)
        for entry in study.algorithms:
            period = None if study.time is None else study.time.period
            shows = functools.partial(
                _teller, progress, seed=seed, total=total, period=period
            )
            search = searches[entry.label, seed]
            if search is not None:
                entry = tuned(study, entry, search, ground, folder, shows, finished)
                finished += search.planned
            tell = shows(entry.label, finished)
            run_cell(study, entry, seed, ground, folder, tell)
            finished += study.run.rounds
    return Result(folder.path, folder.export(), study)


def _teller(
    progress: Callable[[Progress], None] | None,
    label: str,
    finished: int,
    *,
    seed: int,
    total: int,
    period: float | None,
) -> Tell:
    def tell(t: int, score: float | None) -> None:
        if progress is not None:
            time = None if period is None else t * period
            progress(Progress(label, seed, t, finished + t, total, score, time))

    return tell
