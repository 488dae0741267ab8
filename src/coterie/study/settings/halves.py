"""Finds the weight decay of a study on two halves of everybody's training data."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from ...clients.simulation import Simulation
from ...data.federation import Federation, part
from ...data.parts import ranks, streams
from ...optim.steps import LocalDescent, sgd, velocity
from ...records import FoundSettings
from ...types import Options
from ..config import chooses_steps
from ..setup import Setup, simulation_of
from .rules import takes_whole

DECAYS = {1000.0: 10, 100.0: 10, 10.0: 30, 1.0: 30, 0.1: 30}
"""The k that are tried, and for how many steps.

Each begins where the last one ended, and models with large k are soon there.
"""

_MOMENTUM = 0.9
"""Of models that are only scored. Those of a study have none: the memory of earlier
gradients would hide from methods in which direction clients differ now."""

_ENOUGH = 8
"""Training samples from which a client takes part in the choice."""


def find_settings(setup: Setup) -> FoundSettings:
    """What the entries of a study use that say nothing themselves.

    Clients measure the curvature of their losses, which stays with them. For a linear
    model they also train on halves of their data and tell the scores of each k. No
    validation data are used.
    """
    study, simulation, division = setup.study, setup.simulation, setup.division
    cost = simulation.measure(setup.x)
    measured = simulation.samples.measured
    assert measured is not None  # by the line above
    curvature = division.joined(measured.curvature)
    found = FoundSettings(
        setup.seed,
        takes_whole(study, setup.module),
        curvature=float(curvature.max()),
        samples=float(setup.federation.train.size.double().mean()),
    )
    enough = setup.federation.train.size.cpu() >= _ENOUGH
    if found.linear and bool(enough.any()):
        scores, more = _scores_by_decay(setup)
        cost = cost + more
        means = _mean_scores(scores[:, enough])
        told = {f"{k:g}": float(mean) for k, mean in zip(DECAYS, means, strict=True)}
        sign = 1 if simulation.objective.higher_is_better else -1
        if bool(means.isfinite().any()):
            # Of equals the first, which is the largest.
            best = [*DECAYS][int((sign * means).nan_to_num(-math.inf).argmax())]
            found = replace(found, decay=best, scores=told)
    total = float(division.joined(cost.to(setup.x.device)).sum())
    return replace(found, gradients=total)


def needs_rule(setup: Setup) -> bool:
    """Whether an entry of a study says nothing of its steps."""
    study = setup.study
    return any(chooses_steps(study, entry) for entry in study.algorithms)


def _mean_scores(scores: Tensor) -> Tensor:
    """(K,) means over the clients who have a score with every k.

    Args:
        scores: (K, n) of each k and client; NaN where a client has none.
    """
    known = scores.isfinite().all(0)
    return scores[:, known].mean(1)


def _scores_by_decay(setup: Setup) -> tuple[Tensor, Tensor]:
    """(K, N) mean scores of both halves, and the gradients (n,) that it took."""
    objective, division = setup.simulation.objective, setup.division
    total = torch.zeros(len(DECAYS), division.clients, dtype=torch.float64)
    cost = torch.zeros(len(setup.x), dtype=torch.float64)
    for federation in halves_of(setup.simulation.federation, setup.seed):
        simulation = _on(setup, federation)
        x = setup.x
        for place, (k, steps) in enumerate(DECAYS.items()):
            rule = LocalDescent("curvature(1)", _MOMENTUM, f"samples({k:g})")
            oracle = simulation.at(place, purpose="decay")
            work: Options = {"rule": rule, "steps": steps, "t": 0}
            x, _ = oracle.each(sgd, x, velocity(rule, x), **work)
            found = simulation.evaluate(x, "validation")[objective.score]
            total[place] += division.joined(found).double().cpu() / 2
            cost += oracle.gradients
    return total, cost


def _on(setup: Setup, federation: Federation) -> Simulation:
    """The same clients, with these parts."""
    group = setup.simulation.group
    made = simulation_of(setup.study, federation, setup.module, setup.seed, group)
    made.kernel = setup.simulation.kernel
    made.samples = replace(made.samples, measured=setup.simulation.samples.measured)
    return made


def halves_of(federation: Federation, seed: int) -> list[Federation]:
    """The federation twice: each half of its training data judges the other.

    Which samples are in which half depends on the client and its data alone. A client
    with too few samples has all of them in both parts.
    """
    n, size = len(federation), federation.train.size.cpu()
    index, mask = federation.train.rows(torch.arange(n).to(federation.clients))
    index, owner = index[mask].cpu(), torch.arange(n).repeat_interleave(size)
    start = size.cumsum(0) - size
    place = torch.arange(len(index)) - start[owner]
    names = federation.clients.tolist(), federation.names
    rank, _ = ranks(owner, place, streams(*names, seed, "halves"))
    few = (size < _ENOUGH)[owner]
    made = []
    for j in range(2):
        held = rank % 2 == j
        train, judge = ~held | few, held | few
        made.append(
            replace(
                federation,
                train=part(index[train], owner[train], n),
                validation=part(index[judge], owner[judge], n),
            )
        )
    return made
