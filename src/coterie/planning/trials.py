"""A proposal tried: models alone and together, judged on samples that nobody has seen.

Quarter by quarter, everything is trained on the three others and judged on this one:
each client alone, each alone with one quarter only, and each by All-for-one with the
weights that were found on a half to which this quarter does not belong. So nobody is
judged by samples that chose its partners or trained its model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float

from ..algorithms.all_for_one import all_for_one
from ..data.federation import Federation
from ..similarity.samples import deal_samples
from .pilot import PilotTraining, Simulate, fedavg_in_groups, union_of

SHARE = 0.75
"""Of a client's training samples, that models of a trial learn from."""

FEW = 0.25
"""Of them, that the first point of a learning curve has."""


class Trial(NamedTuple):
    """A measure of every client's models on each of its held-out quarters."""

    few: Float[np.ndarray, "4 n"]  # alone, with one quarter
    alone: Float[np.ndarray, "4 n"]  # with three
    together: Float[np.ndarray, "4 n"]  # with three of everybody


def run_trial(
    federation: Federation,
    simulate: Simulate,
    proposed: tuple[Float[np.ndarray, "n n"], Float[np.ndarray, "n n"]],
    train: PilotTraining,
) -> dict[str, Trial]:
    """What the clients' models reach on samples they have not seen, by measure.

    Args:
        federation: whose training samples are dealt out as by the pilot.
        simulate: makes clients that can be asked.
        proposed: weights found without the first, and without the last two quarters.
        train: how models are trained.
    """
    quarters = deal_samples(federation, 4, seed=train.seed)
    nobody = torch.arange(len(federation))
    found: list[list[dict[str, torch.Tensor]]] = []
    for e, judge in enumerate(quarters):
        rest = [quarter for k, quarter in enumerate(quarters) if k != e]
        weights = torch.from_numpy(proposed[e // 2])
        alone = fedavg_in_groups(nobody, nobody + 1, lr=train.lr, steps=train.steps)
        blend = all_for_one(weights, lr=train.lr, steps=train.steps)
        found.append([])
        for algorithm, learn in (
            (alone, rest[e // 2]),
            (alone, union_of(*rest)),
            (blend, union_of(*rest)),
        ):
            clients = simulate(replace(learn, test=judge.train))
            models = train.models(algorithm, clients)
            found[-1].append(clients.evaluate(models, "test"))
    return {
        name: Trial(
            *(
                np.stack([quarter[k][name].double().cpu().numpy() for quarter in found])
                for k in range(3)
            )
        )
        for name in found[0][0]
    }
