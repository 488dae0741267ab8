"""Trains with settings that were found, and with smaller steps if that fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ...checks import TrainingError
from ...records import Cell, FoundSettings
from ..config import Entry, Study, chooses_steps, measures_clients
from ..setup import Setup
from ..training import AnyFolder, Say
from .halves import find_settings, needs_rule
from .rules import options_of, with_smaller_steps

_ATTEMPTS = 4
"""The number of step sizes that are tried, each a quarter of the one before."""

_FAILED = 2.0
"""Training has failed if the last loss is above this multiple of the first."""


def find_or_load_settings(
    setup: Setup, folder: AnyFolder, reduced: Mapping[str, int]
) -> FoundSettings | None:
    """The settings that were found for a setup, now or in an earlier run.

    The settings are saved in the folder. None: the study sets all of them itself.
    `reduced` says, for entries that come from elsewhere, how often their steps were
    made smaller.
    """
    if not needs_rule(setup):
        if any(measures_clients(entry) for entry in setup.study.algorithms):
            _measure(setup)
        return None
    found = folder.settings(setup.seed)
    if found is None:
        found = find_settings(setup)
        folder.save_settings(found)
    else:
        setup.simulation.measure(setup.x)
    if any(found.reduced.get(label, 0) != n for label, n in reduced.items()):
        found = replace(found, reduced={**found.reduced, **reduced})
        folder.save_settings(found)
    _measure_newcomers(setup)
    return found


def _measure(setup: Setup) -> None:
    """Lets all clients measure their own losses at the start."""
    setup.simulation.measure(setup.x)
    _measure_newcomers(setup)


def _measure_newcomers(setup: Setup) -> None:
    if setup.newcomers is not None:
        joining = setup.newcomers.simulation
        joining.measure(setup.x[:1].repeat(len(joining), 1))


def with_settings(study: Study, entry: Entry, found: FoundSettings | None) -> Entry:
    """The entry with the settings that were found, if its steps are automatic."""
    if found is None or not chooses_steps(study, entry):
        return entry
    return replace(entry, options=options_of(found, entry))


def train_with_retries(
    train: Callable[[Entry], Cell],
    setup: Setup,
    entry: Entry,
    found: FoundSettings | None,
    folder: AnyFolder,
    say: Say,
) -> tuple[Cell, FoundSettings | None]:
    """The cell of an entry and its settings, with smaller steps if training fails.

    Training goes on from where the cell stands. Every smaller step is announced.
    """
    while found is not None and chooses_steps(setup.study, entry):
        last = found.reduced.get(entry.label, 0) == _ATTEMPTS - 1
        try:
            cell = train(with_settings(setup.study, entry, found))
            if last or not _has_failed(cell):
                return cell, found
        except TrainingError:
            if last:
                raise
        found = with_smaller_steps(found, entry.label)
        folder.drop_cell(entry.label, setup.seed)
        folder.save_settings(found)
        share = 4 ** found.reduced[entry.label]
        say(
            f"training of {entry.label} (seed {setup.seed}) failed, so it begins again "
            f"with steps of 1/{share} of the size."
        )
    return train(entry), found


def _has_failed(cell: Cell) -> bool:
    losses = [found["train_loss"] for found in cell.metrics if "train_loss" in found]
    if not losses:  # the study does not evaluate them
        return False
    return not float(losses[-1].nanmean()) <= _FAILED * float(losses[0].nanmean())
