"""Trains the trials of a search, and judges them by validation data alone.

`search` decides what is tried, and for how long.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from ..checks import InputError, TrainingError
from ..records import Cell, Rung, Search, Step, rungs
from .config import Entry, Study, with_setting, written_settings
from .loops import Training, training_of
from .search import choose, settings_of
from .setup import Setup
from .training import (
    AnyFolder,
    RoundCounts,
    Tell,
    mean_score,
    refuse_nonfinite,
    restore_state,
)


def search_for(study: Study, entry: Entry, seed: int) -> Search | None:
    """The search for an entry's options before its first step; None: it has none."""
    tune = study.tune
    if tune is None or not entry.tune:
        return None
    found = settings_of(tune, entry.tune, written_settings(entry), seed)
    until = rungs(len(found), tune.rounds or study.run.rounds, tune.halving)
    return Search(entry.label, seed, max(1, tune.folds), found, until)


def refuse_settings(setup: Setup) -> None:
    """Refuses settings of [tune] that cannot be used, before anything runs."""
    study = setup.study
    for entry in study.algorithms:
        searches = [search_for(study, entry, seed) for seed in study.run.seeds]
        for setting in [s for each in searches if each for s in each.settings]:
            try:
                other = with_setting(entry, setting)
                training_of(setup, other).init()
            except InputError as error:
                text = ", ".join(f"{key} = {value!r}" for key, value in setting.items())
                raise InputError(
                    f"[tune.space] gives {entry.label} a setting that cannot be used, "
                    f"{text}: {error}"
                ) from None


def tune_entry(
    setup: Setup,
    entry: Entry,
    search: Search,
    folder: AnyFolder,
    shows: Callable[[str, int, int], Tell],
    finished: int,
) -> Entry:
    """The entry with the options that do best on validation data."""
    search = folder.search(search.label, search.seed) or search
    if search.chosen is None:

        def train(search: Search, trial: int, rung: Rung) -> Step:
            other = with_setting(entry, search.settings[trial])
            label = f"{entry.label} (tuning {trial + 1}/{len(search.settings)})"

            def tells(before: int) -> Tell:
                return shows(
                    label, finished + search.finished_rounds + before, rung.rounds
                )

            return _train_trial(other, search, trial, rung, setup.folds, folder, tells)

        def keep(search: Search, going: list[int]) -> None:
            folder.save_search(search)
            for trial in set(range(len(search.settings))) - set(going):
                folder.drop_trial(search.label, search.seed, trial)

        higher = setup.simulation.objective.higher_is_better
        search = choose(search, train, keep, higher=higher)
    return with_setting(entry, search.best)


def _train_trial(
    entry: Entry,
    search: Search,
    trial: int,
    rung: Rung,
    folds: list[Setup],
    folder: AnyFolder,
    tells: Callable[[int], Tell],
) -> Step:
    """The step of a trial through one rung, from where its last rung ended.

    The entry has the options of the trial, which is trained and judged on all folds.
    The folder keeps states between rungs, so that memory holds one trial. `tells` makes
    the callback of every round, from the number of rounds before.
    """
    since, states, scores = search.since(rung.rounds), [], []
    t, kept = folder.trial(search.label, search.seed, trial) or (0, [])
    for number, setup in enumerate(folds):
        training = training_of(setup, entry)
        state, names = training.init(), setup.federation.clients.tolist()
        cell = Cell(search.label, search.seed, t=t, state=state, clients=names)
        if kept:
            state = restore_state(
                replace(cell, state=kept[number]), state, folder, setup
            )
            cell = replace(cell, state=state)
        before = number * (rung.rounds - since) - since
        tell, book = tells(before), RoundCounts(setup)
        try:
            for r in training.rounds(rounds=rung.rounds, start=(t, state)):
                cell = replace(cell, t=r.t, state=r.state)
                book.keep(r, cell)
                if book.is_full(r.t) or r.t == rung.rounds:
                    book.sum_up()
                if r.t < rung.rounds:
                    tell(r.t, None)
            scores.append(_validation_score(cell, training, setup))
        except TrainingError:
            return Step(trial, rung.rounds, before + (book.failed or cell.t), ())
        states.append(cell.state)
        tell(rung.rounds, scores[-1])
    if rung != search.rungs[-1]:
        folder.save_trial(search.label, search.seed, trial, rung.rounds, states)
    return Step(trial, rung.rounds, search.cost(rung.rounds), tuple(scores))


def _validation_score(cell: Cell, training: Training, setup: Setup) -> float:
    """The mean validation score of the personal models; no other data are used."""
    simulation = setup.simulation
    x = training.personal(cell.state, training.asked.at(cell.t, purpose="use"))
    refuse_nonfinite(x, cell, setup)
    found = simulation.evaluate(x, "validation").items()
    joined = {name: setup.division.join(values) for name, values in found}
    name, score = simulation.objective.score, mean_score(simulation.objective, joined)
    if not math.isfinite(score):
        raise TrainingError(f"the validation {name} of {cell.label} is not finite")
    return score
