"""Other methods of the field on eight families of the bench, with tuned step sizes.

Every method runs with each of its step sizes, and shows the run whose models have the
best validation score at the end. Methods with a second step size, of the server or of
tuning, also try two sizes of that. All other options have their defaults, and tuning
takes the 20 steps of a round. Scores and costs are those of `bench`; the runs that are
not chosen are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pandas as pd
import torch
from rich.console import Console

import coterie as co
from coterie.algorithms import ALGORITHMS
from coterie.checks import InputError, integer
from coterie.cli import Claim, settings
from coterie.data import Federation
from coterie.engine import SERVERS, with_server
from coterie.models import build, columns
from coterie.types import Algorithm

from .bench import (
    FACTORS,
    GENERATED,
    MODELS,
    QUICK,
    SLOW,
    STEPS,
    Course,
    Job,
    Maker,
    course,
    federation_for,
    row,
)
from .structures import Training

PLACES = {
    "digits": (
        "two groups",
        "turned by 90 degrees",
        "all different labels",
        "Dirichlet(0.3)",
        "all alike",
        "two groups, 20 % take part",
    ),
    GENERATED: ("two classes, two groups", "late groups"),
}
"""Families with networks, so that there is a head and a body."""

FIRST, SEEDS = 9800, 3
"""Nobody chose an option or a default by these seeds."""


class Trial(NamedTuple):
    """A way to run a method: how it is made, and the factor of the step size."""

    make: Maker
    factor: float
    model: str = ""  # empty: that of the family


Trials = Callable[[Training], list[Trial]]


def _plain(make: Maker) -> Trials:
    return lambda training: [Trial(make, factor) for factor in FACTORS]


def _headed(name: str) -> Trials:
    """A method that treats the head of a model in another way than its body."""

    def trials(training: Training, tuning: float = 0.0) -> list[Trial]:
        def make(federation: Federation, lr: float, steps: int) -> Algorithm:
            shape, outputs = tuple(federation.features.shape[1:]), federation.outputs
            module = build(lambda: MODELS[training.model](shape, outputs), 0)
            given: dict[str, object] = {"lr": lr, "steps": steps}
            if tuning:
                given |= {"tune_steps": STEPS, "tune_lr": tuning * lr}
            head = columns(module, ["head"])
            return ALGORITHMS[name](federation.train.size, head, **given)

        return [Trial(make, factor) for factor in FACTORS]

    if name == "fedbabu":
        return lambda training: trials(training, 1.0) + trials(training, 3.0)
    return trials


def _served(name: str, sizes: Sequence[float]) -> Trials:
    """FedAvg, whose server makes a step of its own of each of these sizes."""

    def made(size: float) -> Maker:
        def make(federation: Federation, lr: float, steps: int) -> Algorithm:
            fedavg = co.methods.fedavg(federation.train.size, lr=lr, steps=steps)
            return with_server(fedavg, SERVERS[name](lr=size), name)

        return make

    return lambda training: [
        Trial(made(size), factor) for size in sizes for factor in FACTORS
    ]


def _normalised(make: Maker) -> Trials:
    """A method that trains networks with batch normalisation."""
    return lambda training: [Trial(make, factor, "normalised") for factor in FACTORS]


def _fedbn(federation: Federation, lr: float, steps: int) -> Algorithm:
    shape, outputs = tuple(federation.features.shape[1:]), federation.outputs
    module = build(lambda: MODELS["normalised"](shape, outputs), 0)
    norm = columns(module, ["norm"])
    return ALGORITHMS["fedbn"](federation.train.size, norm, lr=lr, steps=steps)


METHODS: dict[str, Trials] = {
    **{
        name: _plain(QUICK[name])
        for name in ("local", "fedavg", "fine-tuned", "ditto", "coteries")
    },
    **{name: _plain(SLOW[name]) for name in ("fedprox", "scaffold", "feddyn")},
    "FedAvgM": _served("momentum", (0.3, 1.0)),
    "FedAdam": _served("adam", (0.03, 0.1)),
    "FedYogi": _served("yogi", (0.03, 0.1)),
    **{
        name: _headed(name)
        for name in ("fedper", "lg_fedavg", "fedrep", "fedbabu", "fedala")
    },
    **{name: _plain(SLOW[name]) for name in ("fedamp", "fedfomo")},
    "fedavg, normalised": _normalised(QUICK["fedavg"]),
    "fedbn": _normalised(_fedbn),
}


def tuned(
    trials: list[Trial], federation: Federation, lr: float, seed: int, how: Training
) -> tuple[Course, float]:
    """The run of the best validation score, and the factor of its step size."""
    runs = [
        (course(make, federation, f * lr, seed, how._replace(model=m or how.model)), f)
        for make, f, m in trials
    ]
    known = [(run, factor) for run, factor in runs if run is not None]
    return max(known, key=lambda one: one[0].validation)


def measured(job: Job, methods: Sequence[str]) -> list[dict[str, object]]:
    """These methods on one federation; `local` and `fedavg` are two of them."""
    federation, lr, training = federation_for(job)
    # What is used for the first time takes longer.
    course(QUICK["local"], federation, lr, job.seed, training._replace(rounds=1))
    found = {
        name: tuned(METHODS[name](training), federation, lr, job.seed, training)
        for name in methods
    }
    runs = {name: run for name, (run, _) in found.items()}
    place = {"data": job.data, "family": job.family, "seed": job.seed}
    return [
        {**place, "method": name, "factor": factor, **row(runs, name)}
        for name, (_, factor) in found.items()
    ]


def others(overrides: Sequence[str]) -> list[Claim]:
    """Other methods with tuned step sizes on eight structures: scores and who loses.

    Settings: `seeds=3`, `first=9800`, `families=alike` (a part of their names),
    `methods=fedbn` (a part of their names; `local` and `fedavg` always run), and
    `to=table.csv` for every single run.
    """
    given = settings(
        overrides, seeds=SEEDS, first=FIRST, families="", methods="", to=""
    )
    always = "local", "fedavg"  # the units of costs
    methods = [m for m in METHODS if m in always or given["methods"] in m]
    integer("seeds", given["seeds"], at_least=1)
    torch.set_num_threads(1)
    console, rows = Console(stderr=True), []
    for data, families in PLACES.items():
        for family in families:
            if given["families"] not in family:
                continue
            console.print(f"{data}, {family}")
            for seed in range(given["first"], given["first"] + given["seeds"]):
                rows += measured(Job(data, family, seed), methods)
    if not rows:
        known = ", ".join(name for families in PLACES.values() for name in families)
        raise InputError(
            f"`families` must be part of some name, got {given['families']!r}; there "
            f"are {known}."
        )
    table = pd.DataFrame(rows)
    if given["to"]:
        table.round(4).to_csv(given["to"], index=False)
    return claims(table)


def claims(table: pd.DataFrame) -> list[Claim]:
    """The mean score of each method over families, against local training."""
    means = table.pivot_table("score", "family", "method", sort=False)
    lose = table.groupby("method")["lose"].mean()

    def found(name: str) -> Claim:
        score = means[name]
        each = ", ".join(f"{family} {value:.1f}" for family, value in score.items())
        return Claim(
            f"{name}, mean over {len(means)} families",
            f"local {means['local'].mean():.1f}",
            f"{score.mean():.1f}",
            None,
            f"{lose[name]:.1f} % of clients lose; {each}",
        )

    return [found(name) for name in METHODS if name in means]
