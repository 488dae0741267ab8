"""Finds the weight decay of a study on two halves of all clients' training data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from ...clients.simulation import Simulation
from ...data.federation import Federation, part
from ...data.parts import ranks, streams
from ...optim.steps import LocalDescent, sgd, train_alone, velocity
from ...options import Formula
from ...records import FoundSettings
from ...types import Options, Oracle
from ..config import chooses_steps
from ..setup import Setup, simulation_of
from .rules import STEPS, takes_whole

DECAYS = {1000.0: 10, 100.0: 10, 10.0: 30, 1.0: 30, 0.1: 30}
"""The values of k that are tried, and the number of steps for each.

Each k begins where the last one ended. Models with large k converge soon.
"""

SHARED_DECAYS = dict.fromkeys(DECAYS, STEPS)
"""The same for a model that all clients share: one round of FedAvg with each k."""

Train = Callable[[Oracle, Tensor, float, int], Tensor]
"""Gives the models (n, D) after training from first models, with k, for some steps."""

_MOMENTUM = 0.9
_LR = Formula("curvature(1)")
"""Momentum and step size of models that are only scored. Models of a study have no
momentum, because the memory of earlier gradients would hide from methods how clients
differ now. """

_ENOUGH = 8
"""Clients with at least this number of training samples take part in the choice."""


def find_settings(setup: Setup) -> FoundSettings:
    """The settings of all entries with automatic steps.

    Clients measure the curvature of their losses. These curvatures stay with the
    clients. For a linear model they also train on halves of their data, alone and
    together, and report the scores of each k. No validation data are used.
    """
    study, simulation, division = setup.study, setup.simulation, setup.division
    cost = simulation.measure(setup.x)
    measured = simulation.samples.measurements
    assert measured is not None  # by the line above
    curvature = division.join(measured.curvature)
    found = FoundSettings(
        setup.seed,
        takes_whole(study, setup.module),
        curvature=float(curvature.max()),
        samples=float(setup.federation.train.size.double().mean()),
    )
    if found.linear and bool((setup.federation.train.size >= _ENOUGH).any()):
        alone, more = _scores_by_decay(setup, _train_alone, DECAYS)
        cost = cost + more
        shared, more = _scores_by_decay(setup, _train_together(setup), SHARED_DECAYS)
        cost = cost + more
        own, ours = (_best(setup, scores) for scores in (alone, shared))
        # If clients differ, a model of all needs more decay than one of a group.
        found = replace(found, decay=own, shared_decay=min(own, ours))
        found = replace(found, scores=alone, shared_scores=shared)
    total = float(division.join(cost.to(setup.x.device)).sum())
    return replace(found, gradients=total)


def needs_rule(setup: Setup) -> bool:
    """Whether the steps of any entry of a study are automatic."""
    study = setup.study
    return any(chooses_steps(study, entry) for entry in study.algorithms)


def _best(setup: Setup, scores: dict[str, float]) -> float:
    """The k with the best score; ties go to the largest. Without any score: 1."""
    sign = 1 if setup.simulation.objective.higher_is_better else -1
    return float(max(scores, key=lambda k: sign * scores[k], default=1.0))


def _train_alone(oracle: Oracle, x: Tensor, k: float, steps: int) -> Tensor:
    """Every client's own model after these steps."""
    rule = LocalDescent(_LR, _MOMENTUM, Formula(f"samples({k:g})"))
    return train_alone(oracle, x, rule, steps)


def _train_together(setup: Setup) -> Train:
    """A round of FedAvg, as a study has them."""
    sizes, n = setup.federation.train.size.to(setup.x), float(len(setup.federation))

    def train(oracle: Oracle, x: Tensor, k: float, steps: int) -> Tensor:
        rule = LocalDescent(_LR, weight_decay=Formula(f"samples({k:g})"))
        work: Options = {"rule": rule, "steps": steps, "t": 0, "together": n}
        x, _ = oracle.each(sgd, x, velocity(rule, x), **work)
        return oracle.average(sizes[oracle.mine], x)

    return train


def _scores_by_decay(
    setup: Setup, train: Train, decays: Mapping[float, int]
) -> tuple[dict[str, float], Tensor]:
    """Mean scores of both halves by k, and the number (n,) of gradients used.

    The mean is over the clients with enough samples and a score for every k. Without
    such clients, there are no scores.
    """
    objective, division = setup.simulation.objective, setup.division
    total = torch.zeros(len(decays), division.clients, dtype=torch.float64)
    cost = torch.zeros(len(setup.x), dtype=torch.float64)
    for federation in halves_of(setup.simulation.federation, setup.seed):
        simulation = _on(setup, federation)
        x = setup.x
        for place, (k, steps) in enumerate(decays.items()):
            oracle = simulation.at(place, purpose="decay")
            x = train(oracle, x, k, steps)
            found = simulation.evaluate(x, "validation")[objective.score]
            total[place] += division.join(found).double().cpu() / 2
            cost += oracle.gradients
    known = total.isfinite().all(0) & (setup.federation.train.size.cpu() >= _ENOUGH)
    if not bool(known.any()):
        return {}, cost
    means = total[:, known].mean(1)
    return {f"{k:g}": float(mean) for k, mean in zip(decays, means, strict=True)}, cost


def _on(setup: Setup, federation: Federation) -> Simulation:
    """The same clients, with these parts."""
    group = setup.simulation.group
    made = simulation_of(setup.study, federation, setup.module, setup.seed, group)
    made.kernel = setup.simulation.kernel
    made.samples = replace(
        made.samples, measurements=setup.simulation.samples.measurements
    )
    return made


def halves_of(federation: Federation, seed: int) -> list[Federation]:
    """The federation twice: each half of its training data judges the other.

    A sample's half depends on the seed, its client and the client's data alone. A
    client with too few samples has all of them in both parts.
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
