"""A trial of proposed weights: models alone and together, on unseen samples.

Each quarter in turn is held out. On the three other quarters, we train each client
alone, and all clients by All-for-one. We also train each client alone on one quarter
only. The weights of All-for-one come from the half without the held-out quarter. So the
samples on which a client is judged did not choose its partners, and did not train its
model.
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
"""The share of a client's training samples that models of a trial learn from."""

FEW = 0.25
"""The share of its training samples at the first point of the learning curve."""


class Trial(NamedTuple):
    """A measure of every client's models on each of its held-out quarters."""

    few: Float[np.ndarray, "4 n"]  # alone, with one quarter
    alone: Float[np.ndarray, "4 n"]  # with three
    together: Float[np.ndarray, "4 n"]  # with three quarters of all clients


def run_trial(
    federation: Federation,
    simulate: Simulate,
    proposed: tuple[Float[np.ndarray, "n n"], Float[np.ndarray, "n n"]],
    train: PilotTraining,
) -> dict[str, Trial]:
    """The scores of clients' models on samples they have not seen, by measure.

    Args:
        federation: the clients; their training samples are divided as in the pilot.
        simulate: makes a simulation of a federation.
        proposed: weights that were found without the first two quarters, and weights
            that were found without the last two.
        train: the settings of training.
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
