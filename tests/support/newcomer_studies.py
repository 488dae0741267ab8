"""Studies of six clients of whom two join after training."""

from __future__ import annotations

import functools

import torch

from coterie.algorithms import ALGORITHMS
from coterie.clients.simulation import Simulation
from coterie.conformance.cases import Case, Setting, starting_rows
from coterie.data.federation import Federation
from coterie.engine.rounds import run_rounds
from coterie.models import build
from support import tiny_studies

CLIENTS, HELD_OUT, ROUNDS = 6, 2, 2
TABLES = {
    "name": "tiny",
    "data": {"name": "digits"},
    "split": {"name": "label_swap", "clients": CLIENTS, "max_samples": 40},
    "model": {"name": "linear"},
    "run": {
        "rounds": ROUNDS,
        "batch_size": 4,
        "newcomers": HELD_OUT,
        "participation": 0.75,
        "checkpoint_seconds": 0.0,
    },
    "algorithm": [{"name": "local", "steps": 3}, {"name": "fedavg"}],
}


made = functools.partial(tiny_studies.made, TABLES)


def trained_by(name: str, federation: Federation, alike: bool = True, **options):
    """The state after four rounds with full gradients, all starting alike."""
    case, setting = Case(ALGORITHMS[name], options), Setting()
    module = build(setting.module, 0, torch.float64)
    x = starting_rows(federation, setting)
    x = x[:1].repeat(len(x), 1) if alike else x
    clients = Simulation(federation, module, batch_size=0, dtype=torch.float64)
    *_, last = run_rounds(case.build(federation), clients, x, rounds=4)
    return last.state
