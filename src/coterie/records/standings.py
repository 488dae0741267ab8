"""Where a run stands, read from its folder while somebody writes there."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ..checks import InputError
from ..models.measures import measure_words
from .files import damaged, file_name, read_json, read_sealed_toml
from .searches import load_search
from .sheets import safe_text


class RunStanding(NamedTuple):
    """One algorithm on one seed, as far as it was evaluated."""

    label: str
    seed: int
    rounds: tuple[int, ...]  # of its evaluations
    scores: tuple[float, ...]  # mean validation scores
    judged: int = 0  # trainings of [tune] that have ended, while it searches

    @property
    def round(self) -> int:
        """The last that was evaluated; 0 before."""
        return self.rounds[-1] if self.rounds else 0


class Standings(NamedTuple):
    """A run, finished or not."""

    name: str
    measure: str  # empty before it is known, and without validation data
    measure_words: str  # the same with the class that it is about
    higher_is_better: bool
    last: int  # round of every algorithm
    cells: list[RunStanding]

    @property
    def finished(self) -> bool:
        """Whether every algorithm was evaluated after its last round."""
        return all(cell.round >= self.last for cell in self.cells)


def standings_of(path: Path) -> Standings:
    """Where the run in a folder stands.

    Raises:
        InputError: where no run is there.
    """
    if not (path / "study.toml").is_file():
        raise InputError(f"there is no run to watch in {path}: it has no study.toml.")
    study, about = read_sealed_toml(path / "study.toml"), {}
    if (path / "task.json").exists():  # which comes a moment later
        about = read_json(path / "task.json")
    metrics = path / "metrics.csv"
    if metrics.exists() and not metrics.is_file():  # a pipe would never end
        raise damaged(metrics, ValueError())
    try:
        labels = [entry["label"] for entry in study["algorithm"]]
        seeds, last = study["run"]["seeds"], study["run"].get("rounds", 100)
        measure = about.get("score", "")
        if study.get("split", {}).get("validation") == 0:  # there is nothing to show
            measure = ""
        means = _means(metrics, f"validation_{measure}")
        cells = [
            _standing(path, label, seed, means) for label in labels for seed in seeds
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(path / "study.toml", error) from error
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
    judged = len(load_search(file).steps) if searches else 0
    return RunStanding(label, seed, tuple(found), tuple(found.values()), judged)


def _means(path: Path, column: str) -> Any:
    """Mean scores by algorithm, seed and round; a line half written is left out."""
    names = ["algorithm", "seed", "round"]
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    whole = text[: text.rfind("\n") + 1]
    table = pd.DataFrame(columns=names)
    if whole:
        # A label is text, whatever it looks like; what is no number is left empty.
        table = pd.read_csv(
            io.StringIO(whole),
            dtype={"algorithm": str},
            keep_default_na=False,
            na_values=[""],
        )
    if column not in table:
        table[column] = np.nan
    return table.groupby(names, sort=True)[column].mean()
