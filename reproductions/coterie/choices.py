"""What choosing costs coteries: clients' choices against hindsight.

Which of its four models a client uses changes no training. So one run shows what every
other choice would have given. Hindsight is the one model of the four that is best for
all clients of a federation by their test data: no client could know it. It bounds what
a rule could reach that recommends the same model to all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

import coterie as co
from coterie.algorithms.coteries import group_of, in_use
from coterie.algorithms.coteries_client import candidates
from coterie.cli import Claim, settings
from coterie.data import Federation

from .bench import QUICK, Job, clients_of, course, federation_for, jobs_of, scores
from .structures import Training

NAMES = ("own", "group", "half tuned", "tuned")
OTHERS = ("local", "fedavg", "fine-tuned", "ditto")


class Finals(NamedTuple):
    """Mean test scores over clients at the end of one run, in percent."""

    chosen: float
    each: np.ndarray  # (4,) if all clients used the same model


def finals(federation: Federation, lr: float, seed: int, training: Training) -> Finals:
    """Scores of coteries, and of its four models."""
    algorithm = QUICK["coteries"](federation, lr, training.steps)
    assert algorithm is not None
    simulation, x = clients_of(federation, seed, training)
    options = {"rounds": training.rounds, "participation": training.participation}
    *_, last = co.run_rounds(algorithm, simulation, x, seed=seed, **options)

    def score(models: Tensor) -> float:
        return 100 * float(scores(simulation, models, "test").mean())

    state = last.state
    models = candidates(state.own, group_of(state), state.offset)
    return Finals(score(in_use(state)), np.array([score(model) for model in models]))


def choices(overrides: Sequence[str]) -> list[Claim]:
    """Choices of clients of coteries, against the best of its models in hindsight.

    Settings: `families=Dirichlet` (part of their names), `data`, `seeds=8`, `first=300`
    and `data_dir=...`, as of `structures`.
    """
    given = settings(
        overrides,
        data="digits,fashion_mnist,generated",
        seeds=8,
        first=300,
        families="Dirichlet,half of clients noisy,noisy labels",
        data_dir="",
    )
    given |= {"processes": 1, "methods": "quick", "model": "mlp", "tuned": False}
    torch.set_num_threads(1)
    found: dict[tuple[str, str], list[tuple[Finals, list[float]]]] = {}
    for job in jobs_of(given):
        found.setdefault((job.data, job.family), []).append(_measured(job))
    return [_claim(place, runs) for place, runs in found.items()]


def _measured(job: Job) -> tuple[Finals, list[float]]:
    federation, lr, training = federation_for(job)
    place = federation, lr, job.seed, training
    runs = [course(QUICK[name], *place) for name in OTHERS]
    others = [100 * float(run.test[-1].mean()) for run in runs if run is not None]
    return finals(*place), others


def _claim(place: tuple[str, str], runs: list[tuple[Finals, list[float]]]) -> Claim:
    mine, others = zip(*runs, strict=True)
    best = np.mean([one.each.max() for one in mine])
    known = zip(OTHERS, np.mean(others, 0), strict=True)
    each = zip(NAMES, np.mean([one.each for one in mine], 0), strict=True)
    return Claim(
        ", ".join(place),
        ", ".join(f"{name} {value:.1f}" for name, value in known),
        f"{np.mean([one.chosen for one in mine]):.1f}",
        None,
        f"hindsight {best:.1f}; "
        + ", ".join(f"all use {name} {value:.1f}" for name, value in each),
    )
