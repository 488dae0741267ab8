"""Runs a study: every algorithm on the same data, seeds and starting point.

A cell is the training of one algorithm on one seed. This is the only place where data,
models, oracle, algorithms and records are wired together.
"""

from __future__ import annotations

import contextlib
import functools
import json
import warnings
import webbrowser
from collections.abc import Callable
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor, nn

from ..checks import InputError
from ..clients.compiling import can_compile
from ..clients.groups import Group, SingleProcess
from ..data.doubts import doubts, one_class_clients
from ..data.federation import PARTS, Federation
from ..models.measures import measure_words
from ..privacy.mechanisms.partners import PARTNERS
from ..records import Cell, Folder, Records, Search, load_records, lock_folder
from ..records.files import write
from ..records.keys import digest_with, digests_with_key, key_of
from ..records.ledgers import SPENDING, DataLedger
from ..records.sinks import Log, refuse_absent
from ..scores.words import some_of
from .baselines import keep_baselines
from .config import Entry, Study, algorithm_factory, measures_clients
from .division import SharedFolder, from_first, only_first, refuse_different_studies
from .identity import (
    copies_of_modules,
    data_name,
    identity_of,
    own_modules,
    settings_read,
)
from .ingredients import RECIPES, edges_between, ingredients_of, is_from_truth
from .loops import training_of
from .newcomers import hold_out
from .private import (
    charge_partners,
    partner_releases,
    refuse_uncounted_choices,
    refuse_unsummed,
    summary_line,
    summary_of,
    worst_epsilon,
)
from .reuse import Reuse
from .settings.attempts import find_or_load_settings, train_with_retries, with_settings
from .settings.halves import needs_rule
from .settings.stopping import last_round
from .setup import (
    Data,
    Setup,
    data_of,
    folds_for,
    prepare,
    wants_compiling,
    with_epoch_period,
)
from .tables import RunTable
from .training import AnyFolder, Listeners, Say, Tell, run_cell
from .trials import refuse_settings, search_for, tune_entry

if TYPE_CHECKING:
    import pandas as pd

    from ..export.runs import Run


class Progress(NamedTuple):
    """How far a study is, for a display."""

    label: str
    seed: int
    t: int
    rounds: int  # of this algorithm and seed, or of a trial
    done: int  # rounds of all cells so far
    total: int
    score: float | None  # mean validation score, if just evaluated
    measure: str  # the name of the score
    higher_is_better: bool
    time: float | None = None  # virtual seconds, with [time]
    epsilon: float | None = None  # of the client that has released most
    noise_source: str = "seed"  # of [privacy]
    measure_words: str = ""  # the measure with the class that it is about
    reused: bool = False  # whether it was trained before; then this is its only call


class Page(NamedTuple):
    """A page that was written: its path, and in a notebook the page itself."""

    path: Path

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"<Page {self.path}>"

    def open(self) -> None:
        """Shows the page in a browser."""
        webbrowser.open(self.path.resolve().as_uri())

    def _repr_html_(self) -> str:
        """A frame with the whole page in it, which needs no other file."""
        text = escape(self.path.read_text(encoding="utf-8"))
        return f'<iframe srcdoc="{text}" width="100%" height="900"></iframe>'


@dataclass(frozen=True)
class Result:
    """A study's records, and its models."""

    folder: Path
    study: Study
    kept: Records | None = None  # in the process that wrote them

    @functools.cached_property
    def records(self) -> Records:
        """Everything that was recorded."""
        return load_records(self.folder) if self.kept is None else self.kept

    def __repr__(self) -> str:
        labels = ", ".join(entry.label for entry in self.study.algorithms)
        return f"<Result of {self.study.name}: {labels}; in {self.folder}>"

    def _repr_html_(self) -> str:
        """The table of algorithms, for a notebook."""
        return f"<p>{escape(repr(self))}</p>{self.table().to_html()}"

    def table(self) -> pd.DataFrame:
        """One row for each algorithm, on test data at the last round."""
        return self._run.table()

    def curves(self) -> pd.DataFrame:
        """Every recorded number of every client over rounds, as one long table."""
        return self.records.curves()

    def newcomers(self) -> pd.DataFrame:
        """One row for each algorithm, on test data of the newcomers."""
        from ..report.tables import newcomer_summary

        return newcomer_summary(self.records)

    def chosen_options(self) -> pd.DataFrame:
        """The options that validation data chose, by algorithm and seed."""
        from ..report.tables import chosen_options

        return chosen_options(self.records)

    def models(self, label: str | None = None, seed: int | None = None) -> Tensor:
        """The personal models (N, D) of an algorithm, by default the last listed.

        Row j is the model of the j-th client that trained, in the order of
        `records.clients`.
        """
        return self._run.models(label, seed)

    def newcomer_models(
        self, label: str | None = None, seed: int | None = None
    ) -> Tensor:
        """The models (M, D) that newcomers got, in the order of `records.newcomers`."""
        return self._run.newcomer_models(label, seed)

    def model(
        self, client: int | str, label: str | None = None, seed: int | None = None
    ) -> nn.Module:
        """The model of one client, by its name or position among all; see `Run.model`.

        By default, it is the model of the last listed algorithm and the first seed.
        """
        return self._run.model(client, label, seed)

    def predict(
        self,
        frame: pd.DataFrame,
        client: int | str | None = None,
        label: str | None = None,
        seed: int | None = None,
    ) -> pd.DataFrame:
        """The predictions of models for the rows of a frame; see `Run.predict`.

        The frame has the columns that the models were trained on. Without `client`,
        each row names its client.
        """
        return self._run.predict(frame, client, label, seed)

    def report(self) -> Page:
        """Writes the page that `coterie run` writes, which a notebook shows."""
        from ..report.pages import write_report

        return Page(write_report(self.records, self.folder / "report.html"))

    @property
    def _run(self) -> Run:
        from ..export.runs import Run

        return Run(self.folder, self.records, own_modules(self.study))


def run_study(
    study: Study,
    *,
    runs: Path | str = "runs",
    resume: Path | str | None = None,
    progress: Callable[[Progress], None] | None = None,
    notice: Callable[[str], None] | None = None,
    group: Group | None = None,
    fresh: bool = False,
) -> Result:
    """All results of a study, after running everything that has not run yet.

    The name of the folder depends on the study's settings and on the content of the
    files and data that it reads. So a repeated study goes on where it stopped, and
    nothing is run twice. If another study in `runs` has trained an algorithm with the
    same settings, data and code, its results are used.

    Args:
        study: a result of `read_study` or `study_of`.
        runs: where the folder is made.
        resume: the run folder to continue instead; it must belong to the same study.
        progress: a function that is called after every round.
        notice: called with each line for the user; None: doubts about data become
            warnings.
        group: processes that divide the clients, all of which call this; None: this
            process has all clients.
        fresh: trains everything again, whatever was trained before.
    """
    group = SingleProcess() if group is None else group
    _refuse_start(study, resume, group)
    say = functools.cache(notice or (lambda line: None))  # no line twice
    data = data_of(study, group)
    study = with_epoch_period(study, data.federations[study.run.seeds[0]])
    setup = _prepare(study, study.run.seeds[0], data, group)
    place = _RunFiles(study, data, Path(runs), resume, group)
    setup = place.charge_partners(setup)  # even the checks below ask them
    _refuse(setup, data, place)
    _say_beforehand(setup, say, notice or _warn)
    own, read = place.folder, place.digests
    with contextlib.ExitStack() as stack:
        only_first(group, lambda: _lock(stack, own.path, say))
        only_first(group, lambda: _create(own, study, read))
        log = Log(study.run.log * (group.rank == 0), own.path, study.tables(), say)
        reuse = Reuse(own, read, place.ledger, say, fresh=fresh)
        desk = _Trainer(place, data, log, progress, say, reuse)
        if "rounds" in study.chooses:
            ends = [_end_of(cell) for cell in desk.train(setup, until_flat=True)]
            cells = desk.train(setup, rounds=max(ends))
        else:
            cells = desk.train(setup)
        kept = only_first(group, lambda: _export_records(place, cells, say, reuse))
    return Result(own.path, study, kept)


def _end_of(cell: Cell) -> int:
    """The round after which a cell does not improve, or its last one."""
    found = last_round(cell)
    return cell.t if found is None else found


class _Trainer:
    """Trains all algorithms of a study on all of its seeds, one after the other."""

    def __init__(
        self,
        place: _RunFiles,
        data: Data,
        log: Log,
        progress: Callable[[Progress], None] | None,
        say: Say,
        reuse: Reuse,
    ) -> None:
        self._place, self._data, self._log = place, data, log
        self._reuse = reuse
        self._progress, self._say, self._study = progress, say, place.study
        self._searches, self._finished = _searches(place.study), 0
        self._total = self._study.run.rounds * len(self._searches)
        planned = [
            search.planned_rounds for search in self._searches.values() if search
        ]
        self._total += sum(planned)

    def train(
        self, setup: Setup, *, rounds: int | None = None, until_flat: bool = False
    ) -> list[Cell]:
        """All cells of the study, from the setup of its first seed; see `run_cell`."""
        group, place, study = setup.simulation.group, self._place, self._study
        cells, first_seed = list[Cell](), study.run.seeds[0]
        for seed in study.run.seeds:
            if seed != first_seed:
                setup = _prepare(study, seed, self._data, group)
                setup = place.charge_partners(setup)
            own = place.folder
            folder = SharedFolder(own, setup.division) if group.size > 1 else own
            _describe(setup, own, folder)
            end = None if until_flat else rounds or study.run.rounds
            reduced = self._begin(setup, end)
            keep_baselines(setup, folder, self._say)
            work = functools.partial(run_cell, rounds=rounds, until_flat=until_flat)
            again = rounds is not None
            cells += self._cells(setup, folder, work, reduced, again=again)
        return cells

    def _begin(self, setup: Setup, end: int | None) -> dict[str, int]:
        """Brings what was trained before; see `Reuse.begin`."""
        group = setup.simulation.group
        return from_first(group, lambda: self._reuse.begin(setup, end))

    def _cells(
        self,
        setup: Setup,
        folder: AnyFolder,
        work: Callable[..., Cell],
        reduced: dict[str, int],
        *,
        again: bool,
    ) -> list[Cell]:
        """The cells of one seed, trained."""
        study, cells = self._study, list[Cell]()
        shows = functools.partial(_teller, self._progress, setup, self._total)
        found = find_or_load_settings(setup, folder, reduced)
        for entry in setup.study.algorithms:
            search = self._searches[entry.label, setup.seed]
            if search is not None:
                entry = with_settings(study, entry, found)
                entry = tune_entry(setup, entry, search, folder, shows, self._finished)
                self._finished += 0 if again else search.planned_rounds
            done = self._finished - (study.run.rounds if again else 0)
            tell = shows(entry.label, done, study.run.rounds)
            with self._log.of(entry.label, setup.seed) as log_to:
                who = Listeners(tell, self._say, log_to)
                train = functools.partial(
                    work,
                    setup,
                    folder=folder,
                    listeners=who,
                    ledger=self._place.ledger,
                )
                cell, found = train_with_retries(
                    train, setup, entry, found, folder, self._say
                )
                cells.append(cell)
            times = 0 if found is None else found.reduced.get(entry.label, 0)
            only_first(
                setup.simulation.group,
                functools.partial(self._reuse.add, setup, cell, times),
            )
            self._finished += 0 if again else study.run.rounds
        return cells


class _RunFiles:
    """The folder and the ledger of a run; nothing is written before it is asked for."""

    def __init__(
        self,
        study: Study,
        data: Data,
        runs: Path,
        resume: Path | str | None,
        group: Group,
    ) -> None:
        self.study, self._group = study, group
        self._resume = None if resume is None else Path(resume)
        self.runs = runs if resume is None else Path(resume).absolute().parent
        self._data, self._read = data.read, data.read | settings_read(study)
        self._kept: dict[str, str] | None = None
        self._ledger: DataLedger | None = None
        refuse_different_studies(group, identity_of(study, self._read))

    # Not cached properties: their locks would make threads wait for each other.
    @property
    def digests(self) -> dict[str, str]:
        """The keyed digests of what the study reads, as they are stored."""
        if self._kept is None:
            self._kept = from_first(
                self._group, lambda: digests_with_key(self._read, self.runs)
            )
        return self._kept

    @property
    def folder(self) -> Folder:
        """The folder of the run."""
        if self._resume is not None:
            return Folder(self._resume)
        return Folder(self.runs / identity_of(self.study, self.digests))

    @property
    def ledger(self) -> DataLedger | None:
        """The ledger of the data, with [privacy]."""
        if self.study.privacy is not None and self._ledger is None:
            text = data_name(self.study, self._data)
            data = from_first(self._group, lambda: digest_with(key_of(self.runs), text))
            self._ledger = DataLedger(self.runs, data)
        return self._ledger

    def charge_partners(self, setup: Setup) -> Setup:
        """The setup that may ask clients before training; the cost is charged first."""
        if not partner_releases(setup) or self.ledger is None:
            return setup
        charge_partners(setup, self.folder.path.name, self.ledger)
        key = from_first(
            self._group, lambda: digest_with(key_of(self.runs), PARTNERS, 64)
        )
        return replace(setup, secret=bytes.fromhex(key))


def _lock(stack: contextlib.ExitStack, folder: Path, say: Say) -> None:
    """Keeps other processes out of the folder until the stack ends."""
    if not stack.enter_context(lock_folder(folder)):
        say(
            f"the file system of {folder} has no locks: make sure that no other "
            "process writes there."
        )


def _create(folder: Folder, study: Study, read: dict[str, str]) -> None:
    """Makes the folder, or goes on in an old one."""
    folder.create(study.tables(), read)
    folder.copy_code(copies_of_modules(study))
    folder.begin_metrics()


def _export_records(
    place: _RunFiles, cells: list[Cell], say: Say, reuse: Reuse
) -> Records:
    """The records of all cells; what was spent in total is written next to them."""
    if place.ledger is not None:
        others = {tuple(each) for each in reuse.origins(place.study)}
        name = place.folder.path.name
        found = summary_of(place.study, name, place.ledger, others)
        write(place.folder.path / SPENDING, json.dumps(found) + "\n")
        say(summary_line(found))
    return place.folder.export(cells)


def _say_beforehand(setup: Setup, say: Say, doubt: Say) -> None:
    """Tells the user what to know before training, and doubts about the data."""
    study, device = setup.study, setup.x.device
    first_of_all = setup.simulation.group.rank == 0
    if study.found and first_of_all:
        doubt(_found_text(study))
    for line in doubts(setup.federation) if first_of_all else ():
        doubt(line)
    alone = one_class_clients(setup.federation) if first_of_all else []
    if alone and "min_classes" not in study.split:
        doubt(
            f"all training data of {some_of(alone)} are of one class, from which "
            "training alone learns nothing; set `split.min_classes` to 1 or 2."
        )
    if found := _large_batch_text(study, setup.federation):
        say(found)
    if study.privacy is not None and setup.federation.raw is not None:
        say(
            "features were prepared with exact medians, means and scales of clients' "
            "data, which [privacy] does not count."
        )
    if study.privacy is not None or study.time is not None:
        from ..report.opening.notices import unset_steps_text

        if unset := unset_steps_text(study.tables()):
            say(unset)
    if wants_compiling(study, device) and not can_compile(device):
        say("no C++ compiler was found, so gradients are not compiled.")


def _large_batch_text(study: Study, federation: Federation) -> str:
    """A sentence about clients with less than a minibatch; empty if there are none.

    It is for a `batch_size` that somebody wrote, not for a default.
    """
    size, sizes = study.run.batch_size, federation.train.size
    small = int((sizes < size).sum())
    if not small or "batch_size" in study.chooses or size == RunTable.batch_size:
        return ""
    return (
        f"`run.batch_size` is {size:,}, but {small:,} of {len(sizes):,} clients have "
        f"fewer training samples (the fewest: {int(sizes.min()):,}): their minibatches "
        "repeat samples, or with `epochs` have all samples of the client."
    )


def _found_text(study: Study) -> str:
    """The sentence about options that were found in the data."""
    shown = {k: json.dumps(v, ensure_ascii=False) for k, v in study.found.items()}
    said = ", ".join(f"{name} = {value}" for name, value in shown.items())
    advice = "`coterie init` writes this into a study"
    if study.given is not None:
        advice = "give these options yourself to change them"
    return f"found in the data: {said}; {advice}."


def _describe(setup: Setup, own: Folder, folder: AnyFolder) -> None:
    """Writes down the clients, the model and the graph of a seed."""
    study, seed, federation = setup.study, setup.seed, setup.federation
    group = setup.simulation.group
    folder.describe(seed, federation, setup.simulation.objective, _oracles(study))
    only_first(group, lambda: own.describe_model(seed, federation, setup.module))
    if study.graph is not None:
        edges = edges_between(study.graph.edges, federation)
        only_first(group, lambda: own.describe_graph(seed, federation.clients, edges))


def _prepare(study: Study, seed: int, data: Data, group: Group) -> Setup:
    setup = prepare(study, seed, data.federations[seed], group)
    return replace(setup, read=data.read)


def _warn(line: str) -> None:
    warnings.warn(line, stacklevel=4)


def _refuse_start(study: Study, resume: Path | str | None, group: Group) -> None:
    """Refuses what can be refused before data are loaded."""
    refuse_different_studies(group, identity_of(study, {}))
    refuse_uncounted_choices(study)
    only_first(group, lambda: refuse_absent(study.run.log))
    if group.size > 1 and study.time is not None:
        raise InputError(
            f"a study with [time] runs in one process, got {group.size} processes."
        )
    if resume and not (Path(resume) / "study.toml").exists():
        raise InputError(
            f"there is no run to resume in {Path(resume)}: it has no study.toml."
        )


def _refuse(setup: Setup, data: Data, place: _RunFiles) -> None:
    """Refuses what cannot run; until then, only charges are written."""
    study = setup.study
    for entry in study.algorithms:
        training_of(setup, entry).like()
        if setup.newcomers is not None:
            setup.welcoming(entry)
        if ":" in entry.name:
            _try_own_method(setup, entry)
    refuse_unsummed(setup)
    _refuse_measures(setup)
    refuse_settings(setup)
    for seed in study.run.seeds:
        everybody = data.federations[seed]
        trains, _ = hold_out(everybody, study.run.newcomers, seed)
        federation = everybody.select(trains)
        folds_for(study, federation, seed)
        if study.graph is not None and seed != setup.seed:  # weights may depend on it
            other = replace(setup, seed=seed, federation=federation)
            other = place.charge_partners(other)
            for entry in study.algorithms:
                other.algorithm(entry)
            refuse_settings(other)


def _try_own_method(setup: Setup, entry: Entry) -> None:
    """Runs the first round of a user's method, so that its mistakes come at once.

    With [privacy], clients without data have been asked already. In time, there is no
    round to try. The method is made for this round alone.
    """
    if setup.study.privacy is not None or setup.study.time is not None:
        return
    if needs_rule(setup) or measures_clients(entry):
        setup.simulation.measure(setup.x)
    next(training_of(replace(setup), entry).rounds(rounds=1))


def _oracles(study: Study) -> list[str]:
    """The labels of algorithms with an ingredient made from true clusters or optima."""
    told = []
    for entry in study.algorithms:
        for name in ingredients_of(algorithm_factory(entry.name)):
            tried = entry.tune.get(name, entry.options.get(name, RECIPES[name][1]))
            if any(
                is_from_truth(name, t)
                for t in (tried if isinstance(tried, list) else [tried])
            ):
                told.append(entry.label)
    return list(dict.fromkeys(told))


def _refuse_measures(setup: Setup) -> None:
    """Refuses measures that raise, and a score that is undefined for all clients."""
    simulation, said = setup.simulation, ""
    objective, group = simulation.objective, simulation.group
    if not objective.of_client:
        return
    try:
        checked = simulation.validates
        parts = [part for part in PARTS if part != "validation" or checked]
        found = {part: simulation.evaluate(setup.x, part) for part in parts}
    except InputError as error:
        said = str(error)
    for message in group.gather(said):
        if message:
            raise InputError(message)
    if not checked:
        return
    scores = setup.division.join(found["validation"][objective.score])
    if objective.score in objective.of_client and scores.isnan().all():
        raise InputError(
            f"`model.score` {objective.score!r} is undefined on the validation data of "
            "every client: choose another one."
        )


def _searches(study: Study) -> dict[tuple[str, int], Search | None]:
    """The searches of a study by algorithm and seed, before they begin."""
    return {
        (entry.label, seed): search_for(study, entry, seed)
        for entry in study.algorithms
        for seed in study.run.seeds
    }


def _teller(
    progress: Callable[[Progress], None] | None,
    setup: Setup,
    total: int,
    label: str,
    finished: int,
    rounds: int,
) -> Tell:
    table, objective = setup.study.time, setup.simulation.objective
    better = (objective.score, objective.higher_is_better)
    of = setup.federation
    words = measure_words(objective.score, of.task, of.classes)

    def tell(t: int, score: float | None, state: Any = None) -> None:
        if progress is not None:
            time = None if table is None else t * table.period
            where = (label, setup.seed, t, rounds, finished + t, total)
            epsilon = worst_epsilon(state, setup.study)
            privacy = setup.study.privacy
            source = "seed" if privacy is None else privacy.noise_source
            # A cell that was trained before tells only of its end, without a state.
            reused = state is None and score is None and t == rounds
            progress(
                Progress(*where, score, *better, time, epsilon, source, words, reused)
            )

    return tell
