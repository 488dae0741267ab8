"""Samples and their clients, before a federation is made of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coterie.data import Federation, Table, federate

CLASSES = 10  # of the images
TEST, VALIDATION = 0.2, 0.1


@dataclass
class Draft:
    """Samples and their clients, before they are divided into parts."""

    features: Tensor  # (M, ...)
    targets: Tensor  # (M,)
    owner: Tensor  # (M,)
    groups: Tensor | None  # (N,) or unknown
    rng: np.random.Generator
    role: Tensor | None = None  # (M,) 0 train, 1 validation, 2 test; None: to be drawn
    task: str = "classification"
    outputs: int = CLASSES

    @property
    def clients(self) -> int:
        """How many there are."""
        return int(self.owner.max()) + 1

    def renamed(self, chosen: Tensor) -> None:
        """These samples' classes get each other's names."""
        names = torch.from_numpy(self.rng.permutation(CLASSES))
        self.targets[chosen] = names[self.targets[chosen]]

    def federation(self, name: str) -> Federation:
        """The federation of these clients."""
        role = self.role
        if role is None:
            role = torch.from_numpy(roles(self.owner.numpy(), self.rng))
        table = Table(name, self.features, self.targets, self.task, self.outputs)
        return federate(table, self.owner, role, clusters=self.groups)


def roles(owner: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Training, validation or test for every sample of every client."""
    role = np.zeros(len(owner), dtype=np.int64)
    for client in range(owner.max() + 1):
        places = rng.permutation(np.flatnonzero(owner == client))
        test = min(max(1, round(TEST * len(places))), len(places) - 3)
        held = min(max(1, round(VALIDATION * len(places))), len(places) - test - 2)
        role[places[:test]] = 2
        role[places[test : test + held]] = 1
    return role


def dirichlet(
    targets: np.ndarray, clients: int, alpha: float, rng: np.random.Generator
) -> np.ndarray:
    """Each class is divided among clients by a Dirichlet law; all have 10 samples."""
    owner = np.zeros(len(targets), dtype=np.int64)
    while True:
        for label in range(targets.max() + 1):
            places = np.flatnonzero(targets == label)
            share = rng.dirichlet([alpha] * clients)
            cuts = (share.cumsum() * len(places)).astype(int)[:-1]
            for client, some in enumerate(np.split(places, cuts)):
                owner[some] = client
        if np.bincount(owner, minlength=clients).min() >= 10:
            return owner
