"""Federations of many structures: who resembles whom, how much, and with what data.

Every family takes some images with their labels, divided among clients, and changes
them client by client or group by group. The true groups are known where there are some;
where clients differ gradually, nobody knows them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from coterie.data import Federation, Table, federate

CLASSES = 10
TEST, VALIDATION = 0.2, 0.1


@dataclass
class Draft:
    """Samples and their clients, before they are divided into parts."""

    features: Tensor  # (M, ...)
    targets: Tensor  # (M,)
    owner: Tensor  # (M,)
    groups: Tensor | None  # (N,) or unknown
    rng: np.random.Generator

    @property
    def clients(self) -> int:
        """How many there are."""
        return int(self.owner.max()) + 1

    def renamed(self, chosen: Tensor) -> None:
        """These samples' classes get each other's names."""
        names = torch.from_numpy(self.rng.permutation(CLASSES))
        self.targets[chosen] = names[self.targets[chosen]]


Change = Callable[[Draft], None]


def grouped(groups: int, change: Callable[[Draft, Tensor, int], None]) -> Change:
    """Client i is in group i mod `groups`; all groups but the first are changed."""

    def apply(draft: Draft) -> None:
        draft.groups = torch.arange(draft.clients) % groups
        for group in range(1, groups):
            change(draft, draft.groups[draft.owner] == group, group)

    return apply


def rename(draft: Draft, chosen: Tensor, group: int) -> None:
    """Other names for the classes."""
    draft.renamed(chosen)


def swap_two(draft: Draft, chosen: Tensor, group: int) -> None:
    """Only classes 1 and 7 change names."""
    names = torch.arange(CLASSES)
    names[[1, 7]] = names[[7, 1]]
    draft.targets[chosen] = names[draft.targets[chosen]]


def rotate(quarters: int) -> Callable[[Draft, Tensor, int], None]:
    """Images are turned by so many quarters, times the number of the group."""

    def change(draft: Draft, chosen: Tensor, group: int) -> None:
        side = round(draft.features[0].numel() ** 0.5)
        images = draft.features[chosen].reshape(-1, side, side)
        turned = torch.rot90(images, quarters * group, (1, 2))
        draft.features[chosen] = turned.reshape(draft.features[chosen].shape)

    return change


def unequal(groups: int) -> Change:
    """Groups of sizes in proportion to `groups`, ..., 2, 1, with names of their own."""

    def apply(draft: Draft) -> None:
        share = np.arange(groups, 0, -1) / sum(range(groups + 1))
        rest = draft.rng.choice(groups, draft.clients - groups, p=share)
        draft.groups = torch.from_numpy(np.concatenate([np.arange(groups), rest]))
        for group in range(groups):
            draft.renamed(draft.groups[draft.owner] == group)

    return apply


def strangers(draft: Draft) -> None:
    """Every client has names of its own for the classes."""
    draft.groups = torch.arange(draft.clients)
    for client in range(draft.clients):
        draft.renamed(draft.owner == client)


def own_pixels(draft: Draft) -> None:
    """Every client has an order of its own for the pixels."""
    draft.groups = torch.arange(draft.clients)
    for client in range(draft.clients):
        chosen = draft.owner == client
        flat = draft.features[chosen].flatten(1)
        order = torch.from_numpy(draft.rng.permutation(flat.shape[1]))
        draft.features[chosen] = flat[:, order].reshape(draft.features[chosen].shape)


def outlier(draft: Draft) -> None:
    """One client alone has other names for the classes."""
    draft.groups = (torch.arange(draft.clients) == 0).long()
    draft.renamed(draft.owner == 0)


def noisy(draft: Draft) -> None:
    """A quarter of the clients have 40 per cent of labels at random."""
    wrong = torch.from_numpy(draft.rng.random(len(draft.targets)) < 0.4)
    chosen = (draft.owner % 4 == 0) & wrong
    random = torch.from_numpy(draft.rng.integers(0, CLASSES, int(chosen.sum())))
    draft.targets[chosen] = random


def drifting(draft: Draft) -> None:
    """Images fade from one client to the next, until they are negatives."""
    factor = torch.linspace(1, -1, draft.clients)[draft.owner]
    draft.features *= factor.reshape(-1, *[1] * (draft.features.dim() - 1))


def overlapping(draft: Draft) -> None:
    """Clients know 5 neighbouring classes of 10, each client others than the next."""
    first = (torch.arange(draft.clients) * CLASSES // draft.clients)[draft.owner]
    keep = (draft.targets - first) % CLASSES < 5
    draft.owner = torch.where(keep, draft.owner, -1)


def alike(draft: Draft) -> None:
    """Clients differ by chance only."""
    draft.groups = torch.zeros(draft.clients, dtype=torch.long)


@dataclass(frozen=True)
class Family:
    """A structure: how many clients of how many samples, and how they differ."""

    change: Change
    clients: int = 20
    samples: int = 90
    skew: float = 0.0  # sizes in proportion to 1/k^skew, for pairs k of clients
    alpha: float = 0.0  # of a Dirichlet law of labels, where it is not 0


FAMILIES: dict[str, Family] = {
    "two groups": Family(grouped(2, rename)),
    "two groups, 30 samples": Family(grouped(2, rename), samples=30),
    "two groups, 16 samples": Family(grouped(2, rename), samples=16),
    "two groups, 50 clients": Family(grouped(2, rename), clients=50, samples=35),
    "two groups, sizes 1/k": Family(grouped(2, rename), skew=1.0),
    "two classes swapped": Family(grouped(2, swap_two)),
    "four unequal groups": Family(unequal(4)),
    "six unequal groups": Family(unequal(6)),
    "turned by 180 degrees": Family(grouped(2, rotate(2))),
    "turned by 90 degrees": Family(grouped(4, rotate(1))),
    "one outlier": Family(outlier),
    "all different labels": Family(strangers),
    "all different pixels": Family(own_pixels),
    "noisy labels": Family(noisy),
    "gradual drift": Family(drifting),
    "overlapping classes": Family(overlapping, samples=180),
    "Dirichlet(0.3)": Family(lambda draft: None, alpha=0.3),
    "Dirichlet(0.1)": Family(lambda draft: None, alpha=0.1),
    "all alike": Family(alike),
}


def federation_of(family: Family, table: Table, seed: int) -> Federation:
    """One federation of a family; other samples and clients with every seed."""
    rng = np.random.default_rng([seed, 13])
    owner = torch.from_numpy(_owners(family, table, rng))
    chosen = torch.from_numpy(rng.permutation(len(table.targets))[: len(owner)])
    features, targets = table.features[chosen].clone(), table.targets[chosen].clone()
    if family.alpha:
        owner = torch.from_numpy(_dirichlet(targets.numpy(), family, rng))
    draft = Draft(features, targets, owner, None, rng)
    family.change(draft)
    role = torch.from_numpy(_roles(draft.owner.numpy(), rng))
    changed = table._replace(
        features=draft.features, targets=draft.targets, is_test=None, group=None
    )
    federation = federate(changed, draft.owner, role, clusters=draft.groups)
    return replace(federation, name=f"{table.name}, {seed}")


def _owners(family: Family, table: Table, rng: np.random.Generator) -> np.ndarray:
    """The client of each sample, without looking at it."""
    total = min(family.clients * family.samples, len(table.targets))
    share = (np.arange(family.clients) // 2 + 1.0) ** -family.skew
    sizes = np.maximum(10, (total * share / share.sum()).astype(int))
    while sizes.sum() > len(table.targets):
        sizes[sizes.argmax()] -= 1
    return np.repeat(np.arange(family.clients), sizes)


def _dirichlet(
    targets: np.ndarray, family: Family, rng: np.random.Generator
) -> np.ndarray:
    """Each class is divided among clients by a Dirichlet law; all have 10 samples."""
    owner = np.zeros(len(targets), dtype=np.int64)
    while True:
        for label in range(CLASSES):
            places = np.flatnonzero(targets == label)
            share = rng.dirichlet([family.alpha] * family.clients)
            cuts = (share.cumsum() * len(places)).astype(int)[:-1]
            for client, some in enumerate(np.split(places, cuts)):
                owner[some] = client
        if np.bincount(owner, minlength=family.clients).min() >= 10:
            return owner


def _roles(owner: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Training, validation or test for every sample of every client."""
    role = np.zeros(len(owner), dtype=np.int64)
    for client in range(owner.max() + 1):
        places = rng.permutation(np.flatnonzero(owner == client))
        test = min(max(1, round(TEST * len(places))), len(places) - 3)
        held = min(max(1, round(VALIDATION * len(places))), len(places) - test - 2)
        role[places[:test]] = 2
        role[places[test : test + held]] = 1
    return role
