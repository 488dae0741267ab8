"""What a search for settings has tried so far, and what it has chosen."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from .files import damage_error, read_json

Options = dict[str, Any]
"""Values of the options that are tuned."""

COLUMNS = ("algorithm", "seed", "trial", "rounds", "score", "status", "spent", "chosen")
"""The columns of every trial, in addition to its options."""


class Rung(NamedTuple):
    """The number of trials that train until a round."""

    trials: int
    rounds: int


class Step(NamedTuple):
    """A trial that reached the end of a rung, or failed before it."""

    trial: int
    rounds: int  # at the end of the rung
    spent: int  # rounds that were trained for it, over all folds
    scores: tuple[float, ...]  # one for each fold; none if training failed

    @property
    def score(self) -> float:
        """The mean validation score over the folds."""
        return math.fsum(self.scores) / len(self.scores) if self.scores else math.nan


@dataclass(frozen=True)
class Search:
    """The trials for one algorithm and seed, and the one that was chosen."""

    label: str
    seed: int
    folds: int  # trainings of each trial
    settings: tuple[Options, ...]
    rungs: tuple[Rung, ...]
    steps: tuple[Step, ...] = ()
    chosen: int | None = None

    @property
    def best(self) -> Options:
        """The chosen options; empty before the end."""
        return {} if self.chosen is None else self.settings[self.chosen]

    def status(self, step: Step) -> str:
        """The result of a trial after a rung, in a word."""
        if not step.scores:
            return "failed"
        if step.rounds == self.rungs[-1].rounds:
            return "chosen" if step.trial == self.chosen else "finished"
        if any(s.rounds > step.rounds and s.trial == step.trial for s in self.steps):
            return "went on"
        return "waiting" if self.chosen is None else "dropped"

    def since(self, rounds: int) -> int:
        """The round at which the rung that ends at `rounds` begins."""
        return max((r.rounds for r in self.rungs if r.rounds < rounds), default=0)

    def cost(self, rounds: int) -> int:
        """The rounds of training that one trial needs for the rung."""
        return self.folds * (rounds - self.since(rounds))

    @property
    def planned_rounds(self) -> int:
        """The rounds of training that the search needs if nothing fails."""
        return sum(rung.trials * self.cost(rung.rounds) for rung in self.rungs)

    @property
    def finished_rounds(self) -> int:
        """The number of planned rounds that are over."""
        return sum(self.cost(step.rounds) for step in self.steps)

    def step(self, trial: int, rounds: int) -> Step | None:
        """The step of a trial in a rung; None if it has not ended."""
        return next((s for s in self.steps if s[:2] == (trial, rounds)), None)


def search_of(table: Mapping[str, Any]) -> Search:
    """The search in a table that `dataclasses.asdict` made and JSON stored."""
    return Search(
        table["label"],
        table["seed"],
        table["folds"],
        tuple(table["settings"]),
        tuple(Rung(*rung) for rung in table["rungs"]),
        tuple(Step(a, b, c, tuple(d)) for a, b, c, d in table["steps"]),
        table["chosen"],
    )


@dataclass(frozen=True)
class FoundSettings:
    """Settings that were found for one seed before training, and their cost."""

    seed: int
    linear: bool
    decay: float = 1.0  # k, over the samples behind a model
    curvature: float = 1.0  # the largest of any client, at the start
    samples: float = 1.0  # the mean over clients
    scores: dict[str, float] = field(default_factory=dict)  # k -> mean score
    shared_decay: float = 1.0  # k of models that clients share
    shared_scores: dict[str, float] = field(default_factory=dict)  # of FedAvg
    gradients: float = 0.0  # of single samples, by all clients
    reduced: dict[str, int] = field(default_factory=dict)  # label -> how often


def load_settings(path: Path) -> FoundSettings:
    """The settings in a file, with their types checked."""
    try:
        found = FoundSettings(**read_json(path))
        numbers = [found.decay, found.shared_decay, found.curvature, found.samples]
        numbers += [found.gradients, *found.scores.values()]
        numbers += found.shared_scores.values()
        sound = type(found.seed) is int and isinstance(found.linear, bool)
        sound &= all(isinstance(each, float | int) for each in numbers)
        sound &= all(type(times) is int for times in found.reduced.values())
    except (AttributeError, TypeError) as error:
        raise damage_error(path, error) from error
    if not sound:
        raise damage_error(path, ValueError())
    return found


def load_search(path: Path) -> Search:
    """The search in a file."""
    table = read_json(path)
    try:
        return search_of(table)
    except (KeyError, TypeError, ValueError) as error:
        raise damage_error(path, error) from error


def rungs(trials: int, rounds: int, factor: int) -> tuple[Rung, ...]:
    """The number of trials that train until each round.

    At the end of a rung, one in `factor` trials (rounded up) goes on, and trains for
    `factor` times as long. If only one trial would go on, there is no further rung.

    >>> rungs(8, 100, 3)
    (Rung(trials=8, rounds=33), Rung(trials=3, rounds=100))
    """
    counts = [trials]
    while factor > 1 and factor ** len(counts) <= rounds:
        left = -(-counts[-1] // factor)
        if left < 2:
            break
        counts.append(left)
    ends = [rounds // factor**j for j in range(len(counts))]
    return tuple(Rung(*pair) for pair in zip(counts, reversed(ends), strict=True))
