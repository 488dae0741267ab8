"""The progress of a run, read from its folder while the run writes to it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ..checks import InputError
from ..models.measures import measure_words
from .files import damage_error, file_name, read_json, read_sealed_toml
from .searches import load_search
from .sheets import safe_text


class RunStanding(NamedTuple):
    """The evaluations so far of one algorithm with one seed."""

    label: str
    seed: int
    rounds: tuple[int, ...]  # of its evaluations
    scores: tuple[float, ...]  # mean validation scores
    trials_done: int = 0  # steps of [tune] that have ended, before training begins

    @property
    def round(self) -> int:
        """The round of the last evaluation; 0 before the first."""
        return self.rounds[-1] if self.rounds else 0


class Standings(NamedTuple):
    """The progress of a run, finished or not."""

    name: str
    measure: str  # empty until it is known, and without validation data
    measure_words: str  # the measure with the class that it is about
    higher_is_better: bool
    last: int  # the last round of every algorithm
    cells: list[RunStanding]

    @property
    def is_finished(self) -> bool:
        """Whether every algorithm was evaluated after its last round."""
        return all(cell.round >= self.last for cell in self.cells)


def standings_of(path: Path) -> Standings:
    """The progress of the run in a folder."""
    if not (path / "study.toml").is_file():
        raise InputError(f"there is no run to watch in {path}: it has no study.toml.")
    study, about = read_sealed_toml(path / "study.toml"), {}
    if (path / "task.json").exists():  # it is written after study.toml
        about = read_json(path / "task.json")
    metrics = path / "metrics.csv"
    if metrics.exists() and not metrics.is_file():  # a pipe would never end
        raise damage_error(metrics, ValueError())
    try:
        labels = [entry["label"] for entry in study["algorithm"]]
        seeds, last = study["run"]["seeds"], study["run"].get("rounds", 100)
        measure = about.get("score", "")
        if study.get("split", {}).get("validation") == 0:  # there is no score to show
            measure = ""
        means = _means(metrics, f"validation_{measure}")
        cells = [
            _standing(path, label, seed, means) for label in labels for seed in seeds
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise damage_error(path / "study.toml", error) from error
    higher = about.get("higher_is_better", True)
    words = measure_words(measure, about.get("task", ""), about.get("classes", []))
    return Standings(study["name"], measure, words, higher, last, cells)


def _standing(path: Path, label: str, seed: int, means: Any) -> RunStanding:
    found = {
        int(t): float(score)
        for (a, s, t), score in means.items()
        if (a, s) == (safe_text(label), seed)
    }
    file = path / "tuning" / f"{file_name(label, seed)}.json"
    searches = not found and file.exists()
    trials_done = len(load_search(file).steps) if searches else 0
    return RunStanding(label, seed, tuple(found), tuple(found.values()), trials_done)


def _means(path: Path, column: str) -> Any:
    """Mean scores by algorithm, seed and round, without a half-written last line."""
    names = ["algorithm", "seed", "round"]
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    whole = text[: text.rfind("\n") + 1]
    table = pd.DataFrame(columns=names)
    if whole:
        # A label is a text, even if it looks like a number.
        table = pd.read_csv(
            io.StringIO(whole),
            dtype={"algorithm": str},
            keep_default_na=False,
            na_values=[""],
        )
    if column not in table:
        table[column] = np.nan
    return table.groupby(names, sort=True)[column].mean()
