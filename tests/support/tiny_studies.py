"""Studies of four clients that take a moment."""

from __future__ import annotations

import copy

from coterie.algorithms import ALGORITHMS
from coterie.checks import parameters_of
from coterie.study.config import study_of

CLIENTS, ROUNDS = 4, 4
ADAPTIVE = {"name": "adaptive_all_for_one", "every": 2, "momentum": 0.5}
TABLES = {
    "name": "tiny",
    "data": {"name": "digits"},
    "split": {"name": "label_swap", "clients": CLIENTS, "max_samples": 40},
    "model": {"name": "mlp", "hidden": [4]},
    "run": {"rounds": ROUNDS, "batch_size": 4},
    "algorithm": [{"name": "local", "lr": 0.3}, {"name": "fedavg", "lr": 0.3}],
}
PLAIN_TOML = """
name = "audited"
[data]
name = "linear"
clients = 6
dimension = 3
samples = 40
[model]
name = "linear"
[run]
rounds = 2
batch_size = 0
[[algorithm]]
name = "fedavg"
lr = 0.05
"""
PRIVATE_TOML = PLAIN_TOML + "[privacy]\nclip = 0.3\nepsilon = 1.0\n"
LINEAR = {
    "name": "known",
    "data": {"name": "linear", "clients": 4, "dimension": 3, "samples": 20},
    "model": {"name": "linear", "bias": False},
    "run": {"rounds": 60, "batch_size": 0, "dtype": "float64"},
    "algorithm": [{"name": "local", "lr": 0.1, "steps": 5}],
}


def made(tables=TABLES, **changes: object):
    """The study of the tables with tables replaced, or settings of [run] changed."""
    tables = copy.deepcopy(tables)
    for name, value in changes.items():
        if name in tables and name != "run":
            tables[name] = value
        else:
            tables["run"][name] = value
    for entry in tables["algorithm"] if "tune" not in tables else ():
        entry |= usual_lr(entry["name"], entry)
    return study_of(tables)


def usual_lr(name: str, given: dict) -> dict[str, float]:
    """The step size that a method has by default, so that it does not choose itself."""
    maker = ALGORITHMS.get(name)
    known = {} if maker is None else parameters_of(maker)
    usual = "lr" in known and "lr" not in given and known["lr"].default == 0.1
    return {"lr": 0.1} if usual else {}


def changed(tables: dict, path: str, value: object) -> dict:
    """The tables with one setting changed, such as "algorithm.0.lr"."""
    tables = place = copy.deepcopy(tables)
    *way, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    for key in way:
        place = place[key]
    place[last] = value
    return tables
