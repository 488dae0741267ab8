"""Studies with a table [tune], and what their folders hold of the search."""

from __future__ import annotations

import copy
import json

from coterie.records import Search, search_of
from coterie.study.config import study_of
from coterie.study.experiment import Result

RANGE = {"from": 0.01, "to": 1.0}
LOG = {**RANGE, "scale": "log"}
TABLES = {
    "name": "tuned",
    "data": {"name": "linear", "clients": 4, "dimension": 3, "samples": 24},
    "model": {"name": "linear", "bias": False},
    "run": {"rounds": 6, "batch_size": 4, "seeds": [0, 1], "evaluate_every": 6},
    "algorithm": [
        {"name": "local", "lr": 0.05, "momentum": 0.5},
        {"name": "fedavg", "tune": {"steps": {"from": 1, "to": 3}}},
    ],
    "tune": {"trials": 5, "space": {"lr": {"from": 0.001, "to": 0.1}}},
}


def made(tune: dict | None = None, **tables: object):
    """The study with settings of [tune] changed, and other tables replaced."""
    whole = copy.deepcopy(TABLES) | tables
    whole["tune"] = whole["tune"] | (tune or {})
    return study_of(whole)


def searches(result: Result) -> dict[tuple[str, int], Search]:
    """The searches of a study, by label and seed."""
    files = sorted((result.folder / "tuning").iterdir())
    found = [search_of(json.loads(file.read_text())) for file in files]
    return {(search.label, search.seed): search for search in found}
