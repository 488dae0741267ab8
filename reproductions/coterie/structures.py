"""Federations of many structures: who resembles whom, how much, and with what data.

Most families take some images with their labels, divided among clients, and change
them client by client or group by group. Others are generated and need no images. The
true groups are known where there are some; where clients differ gradually, nobody knows
them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.data import Federation, Table

from . import generated
from .drafts import CLASSES, Draft, dirichlet
from .generated import Source

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


def garbage(draft: Draft) -> None:
    """Two groups, and one client with numbers a thousand times larger, without sense.

    Its labels are random. It is a group by itself.
    """
    grouped(2, rename)(draft)
    assert draft.groups is not None
    draft.groups[0] = 2
    draft.features[draft.owner == 0] *= 1e3
    _random_labels(draft, draft.owner == 0)


def noisy(every: int, share: float) -> Change:
    """One client of `every` has this share of labels at random; else all are alike."""

    def apply(draft: Draft) -> None:
        wrong = torch.from_numpy(draft.rng.random(len(draft.targets)) < share)
        _random_labels(draft, (draft.owner % every == 0) & wrong)

    return apply


def _random_labels(draft: Draft, chosen: Tensor) -> None:
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


def unchanged(draft: Draft) -> None:
    """Clients differ by what was drawn for them."""


class Training(NamedTuple):
    """How all methods train in a family."""

    model: str = ""  # empty: that of the setting `model`
    lr: float = 0.0  # 0: that of the data set
    rounds: int = 20
    steps: int = 20
    batch: int = 8
    participation: float = 1.0


AS_USUAL = Training()


@dataclass(frozen=True)
class Family:
    """A structure: how many clients of how many samples, and how they differ.

    The sizes of clients come in pairs k = 1, 2, ..., so that two groups have the same.
    """

    change: Change = unchanged
    clients: int = 20
    samples: int = 90
    skew: float = 0.0  # sizes in proportion to 1/k^skew
    ratio: float = 1.0  # of the largest size to the smallest, where skew is 0
    fewest: int = 10  # samples of a client
    alpha: float = 0.0  # of a Dirichlet law of labels, where it is not 0
    aim: str = ""  # what is asked of coteries here, besides what is asked everywhere
    source: Source | None = None  # where there are no images
    stream: int = 13  # names the random numbers, together with the seed
    training: Training = AS_USUAL


def _images() -> dict[str, Family]:
    """Families of images; the aim of groups is a share of the way to the oracle."""
    two, groups, hard = grouped(2, rename), "groups", "hard groups"
    return {
        "two groups": Family(two, aim=groups),
        "two groups, 30 samples": Family(two, samples=30, aim=groups),
        "two groups, 16 samples": Family(two, samples=16, aim=groups),
        "two groups, 50 clients": Family(two, clients=50, samples=35, aim=groups),
        "two groups, sizes 1/k": Family(two, skew=1.0, aim=groups),
        "two classes swapped": Family(grouped(2, swap_two), aim=groups),
        "four unequal groups": Family(unequal(4), aim=groups),
        "six unequal groups": Family(unequal(6), aim=groups),
        "turned by 180 degrees": Family(grouped(2, rotate(2)), aim=groups),
        "turned by 90 degrees": Family(grouped(4, rotate(1)), aim=groups),
        "one outlier": Family(outlier, aim=hard),
        "all different labels": Family(strangers),
        "all different pixels": Family(own_pixels),
        "noisy labels": Family(noisy(4, 0.4), aim="alike"),
        "gradual drift": Family(drifting),
        "overlapping classes": Family(overlapping, samples=180),
        "Dirichlet(0.3)": Family(alpha=0.3, aim="skewed"),
        "Dirichlet(0.1)": Family(alpha=0.1, aim="skewed"),
        "all alike": Family(alike, aim="alike"),
        "two groups, 20 % take part": Family(
            two, aim=hard, training=Training(rounds=60, participation=0.2)
        ),
        "two groups, one of garbage": Family(garbage, aim=groups),
        "half of clients noisy": Family(noisy(2, 0.5), aim="alike"),
        "two groups, sizes 1 to 100": Family(
            two, clients=16, samples=110, ratio=100, fewest=4, aim=groups
        ),
        "two groups, one step a round": Family(
            two, aim=hard, training=Training(rounds=200, steps=1)
        ),
        "ten pairs": Family(grouped(10, rename), aim=groups),
    }


def _generated() -> dict[str, Family]:
    """Families without images, each with a stream of its own."""
    linear, logistic = Training("linear", 0.02), Training("logistic", 0.1)
    mlp, steep = Training("mlp", 0.1), Training("logistic", 0.3)
    long = mlp._replace(rounds=40)
    three = generated.regression(lambda n: np.arange(n) % 3)
    alone = generated.regression(lambda n: (np.arange(n) == 0).astype(int))
    different = generated.regression(np.arange)
    few = generated.regression(np.arange, held=4)
    binary = generated.two_classes(clients=40, dimension=10, train=30, held=10)
    tiny = generated.two_classes(clients=20, dimension=9, train=20, held=10)
    found: dict[str, tuple[Source, str, Training]] = {
        "regression, all different": (different, "", linear),
        "regression, four validation samples": (few, "", linear),
        "regression, three groups": (three, "groups", linear),
        "regression, one outlier": (alone, "hard groups", linear),
        "soft groups": (generated.soft_groups(), "", linear),
        "two classes, two groups": (binary, "groups", mlp),
        "tiny model, two groups": (tiny, "groups", logistic),
        "late groups": (generated.late_groups(), "hard groups", long),
        "Dirichlet(0.4) of words": (generated.words(), "skewed", steep),
        "Dirichlet(0.4) of a table": (generated.table(), "skewed", logistic),
    }
    return {
        name: Family(aim=aim, source=source, stream=100 + number, training=training)
        for number, (name, (source, aim, training)) in enumerate(found.items())
    }


FAMILIES: dict[str, Family] = _images() | _generated()


def federation_of(family: Family, table: Table | None, seed: int) -> Federation:
    """One federation of a family; other samples and clients with every seed.

    The table has the images, and is not needed by a family that has none.
    """
    rng = np.random.default_rng([seed, family.stream])
    if family.source is not None:
        name, draft = "generated", family.source(rng)
    else:
        assert table is not None
        name, draft = table.name, _divided(family, table, rng)
    family.change(draft)
    return draft.federation(f"{name}, {seed}")


def _divided(family: Family, table: Table, rng: np.random.Generator) -> Draft:
    """Images of clients, before these differ."""
    owner = torch.from_numpy(_owners(family, table, rng))
    chosen = torch.from_numpy(rng.permutation(len(table.targets))[: len(owner)])
    features, targets = table.features[chosen].clone(), table.targets[chosen].clone()
    if family.alpha:
        found = dirichlet(targets.numpy(), family.clients, family.alpha, rng)
        owner = torch.from_numpy(found)
    return Draft(features, targets, owner, None, rng)


def _owners(family: Family, table: Table, rng: np.random.Generator) -> np.ndarray:
    """The client of each sample, without looking at it."""
    total = min(family.clients * family.samples, len(table.targets))
    pair = np.arange(family.clients) // 2
    share = (pair + 1.0) ** -family.skew * family.ratio ** (-pair / pair.max())
    sizes = np.maximum(family.fewest, (total * share / share.sum()).astype(int))
    while sizes.sum() > len(table.targets):
        sizes[sizes.argmax()] -= 1
    return np.repeat(np.arange(family.clients), sizes)
