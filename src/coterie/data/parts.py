"""The parts of every client: which samples train, validate and test, and what fits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from ..checks import InputError, finite, integer, one_of
from ..models import OBJECTIVES, target_values
from .federation import Table, called

# Two samples to train on, one to choose with and one to test on.
FEWEST = 4


def check_table(table: Table) -> None:
    """Refuses data that no model can learn from, naming the first bad sample."""
    one_of("task", table.task, OBJECTIVES)
    check_length(table, "features", table.features)
    # Raw columns may have gaps, which are filled when they are prepared.
    finite("features", table.features.nan_to_num() if table.schema else table.features)
    finite("targets", table.targets)
    top = target_values(table.task, table.outputs) - 1
    if top < 0:
        return
    labels = table.targets.flatten(1) if table.targets.ndim > 1 else table.targets
    bad = (labels < 0) | (labels > top) | (labels != labels.round())
    if bad.any():
        place = tuple(bad.nonzero()[0].tolist())
        raise InputError(
            f"labels of `{table.name}` must be whole numbers from 0 to {top}, but "
            f"sample {place[0]} has {labels[place].item():g}."
        )


def check_length(table: Table, what: str, tensor: Tensor) -> None:
    """Refuses a field that does not have one row per sample."""
    if len(tensor) != len(table.targets):
        raise InputError(
            f"`{what}` of `{table.name}` must have one row for each of the "
            f"{len(table.targets)} targets, got {len(tensor)}."
        )


def classes_of(table: Table, purpose: str) -> tuple[Int[Tensor, " m"], int]:
    """The class of each sample and the number of classes."""
    if not OBJECTIVES[table.task].labelled:
        raise InputError(
            f"{purpose} needs classes, but the task of `{table.name}` is {table.task}."
        )
    return table.targets.long(), target_values(table.task, table.outputs)


def check_room(table: Table, clients: int, min_size: int) -> None:
    """Refuses more clients than the samples allow."""
    integer("clients", clients, at_least=1)
    integer("min_size", min_size, at_least=FEWEST)
    if clients * min_size > len(table.targets):
        raise InputError(
            f"{clients} clients of at least {min_size} samples need "
            f"{clients * min_size}, but `{table.name}` has {len(table.targets)}: use "
            "fewer clients or a smaller min_size."
        )


def large_enough(
    table: Table,
    owner: Int[Tensor, " m"],
    clients: int,
    min_size: int,
    names: Sequence[str] = (),
) -> Int[Tensor, " m"]:
    """Returns `owner` if every client has at least `min_size` samples."""
    size = torch.bincount(owner[owner >= 0], minlength=clients)
    smallest = int(size.argmin())
    if int(size[smallest]) < min_size:
        raise InputError(
            f"every client must have at least {min_size} samples, but "
            f"{called(names, smallest)} of `{table.name}` has {int(size[smallest])}."
        )
    return owner


def ranks(owner: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """For each sample its place in a random order of its client's, and how many."""
    order = torch.randperm(len(owner), generator=rng)
    order = order[owner[order].argsort(stable=True)]
    # Samples of nobody count as those of a client before the first.
    sizes = torch.bincount(owner + 1)
    start = sizes.cumsum(0) - sizes
    rank = torch.empty_like(owner)
    rank[order] = torch.arange(len(owner)) - start[owner[order] + 1]
    return rank, sizes[owner + 1]


def random_roles(
    owner: Tensor, validation: float, test: float, rng: torch.Generator
) -> Tensor:
    """Part of each sample, 0 train, 1 validation, 2 test, drawn for each client."""
    rank, size = ranks(owner, rng)
    tests = (test * size).round().clamp(min=1).minimum(size - 3)
    choices = (validation * size).round().clamp(min=1).minimum(size - tests - 2)
    return torch.where(rank < tests, 2, torch.where(rank < tests + choices, 1, 0))


def fixed_roles(
    table: Table,
    owner: Tensor,
    is_test: Tensor,
    validation: float,
    rng: torch.Generator,
    names: Sequence[str] = (),
) -> Tensor:
    """Part of each sample, where the source says which are for testing."""
    check_length(table, "is_test", is_test)
    rest = torch.where(is_test, -1, owner)
    clients = int(owner.max()) + 1
    sizes = torch.bincount(rest[rest >= 0], minlength=clients)
    if int(sizes.min()) < FEWEST - 1:
        worst = called(names, int(sizes.argmin()))
        raise InputError(
            f"every client of `{table.name}` needs {FEWEST - 1} samples outside the "
            f"test part, but {worst} has {int(sizes.min())}."
        )
    rank, size = ranks(rest, rng)
    choices = (validation * size).round().clamp(min=1).minimum(size - 2)
    return torch.where(is_test, 2, torch.where(rank < choices, 1, 0))


def check_classes(
    table: Table,
    owner: Tensor,
    role: Tensor,
    min_classes: int,
    names: Sequence[str] = (),
) -> None:
    """Refuses a client whose training part has too few classes."""
    integer("min_classes", min_classes, at_least=1)
    if min_classes == 1:
        return
    labels, classes = classes_of(table, "min_classes")
    mine = (owner >= 0) & (role == 0)
    pairs = torch.unique(owner[mine] * classes + labels[mine]) // classes
    present = torch.bincount(pairs)
    if int(present.min()) < min_classes:
        worst = int(present.argmin())
        raise InputError(
            f"`min_classes` is {min_classes}, but the training data of "
            f"{called(names, worst)} of `{table.name}` have {int(present[worst])}: "
            "choose another split, or set split.min_classes lower if that is meant."
        )
