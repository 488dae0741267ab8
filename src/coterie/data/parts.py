"""The parts of every client: which samples train, validate and test.

A client's parts depend only on its own samples, its name and the seed. So a site with
only its own rows draws the same parts as a simulation with all rows. The order of rows,
clients and named columns does not matter either:

    content_j = a hash of the features and the target of sample j
    draw_j = mix(mix(content_j + stream of the client's name) + copies before j)

The draws rank the samples of a client. Samples with the same content are numbered 0, 1,
2, ..., so that copies may fall into different parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from .. import seeds
from ..checks import InputError, finite, integer, one_of, several
from ..models import OBJECTIVES, target_values
from .federation import Table, client_name, short_name
from .rows.hashes import hash_rows
from .rows.images import Images

# Two samples to train on, one to choose with and one to test on.
FEWEST = 4

_GAP = 0x7FF8 << 48
"""The 64-bit word that stands for a missing value: the bits of NaN."""


def check_table(table: Table) -> None:
    """Refuses data that no model can use, and names the first bad sample."""
    one_of("task", table.task, OBJECTIVES)
    check_length(table, "features", table.rows)
    for name, known in (("group", table.group), ("is_test", table.is_test)):
        if known is not None:
            check_length(table, name, known)
    # Raw columns may have gaps, which preparation fills. Images have whole pixels.
    if table.schema is None and isinstance(table.rows, Tensor):
        finite("features", table.rows)
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


def check_length(table: Table, what: str, tensor: Tensor | Images) -> None:
    """Refuses a field of a table that does not have one row per sample."""
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
    """Refuses more clients than there are samples for, with `min_size` samples each."""
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
    """`owner`, if every client has at least `min_size` samples."""
    size = torch.bincount(owner[owner >= 0], minlength=clients)
    smallest = int(size.argmin())
    if int(size[smallest]) < min_size:
        name = client_name(names, smallest)
        raise InputError(
            f"every client must have at least {min_size} samples, but {name} of "
            f"`{table.name}` has {int(size[smallest])}."
        )
    return owner


def too_small(
    owner: Int[Tensor, " m"],
    clients: int,
    min_size: int,
    is_test: Bool[Tensor, " m"] | None,
) -> dict[int, str]:
    """The clients with too few samples for all parts, each with the reason."""
    size = torch.bincount(owner[owner >= 0], minlength=clients)
    few = (size < min_size).nonzero()
    found = {int(k): several(int(size[k]), "sample") for k in few}
    if is_test is None:
        return found
    tests = torch.bincount(owner[(owner >= 0) & is_test], minlength=clients)
    trains = size - tests
    for k in (trains < FEWEST - 1).nonzero()[:, 0].tolist():
        found[k] = f"{several(int(trains[k]), 'sample')} to train on"
    return found | {int(k): "nothing to test on" for k in (tests == 0).nonzero()}


def contents(table: Table) -> Int[Tensor, " m"]:
    """(M,) a hash of the features and the target of each sample.

    The hash uses the words of categories and classes and the names of columns, because
    codes and positions differ between files. Entries of arrays have no names, so the
    hash uses their positions.
    """
    targets = (
        _as_words(table.targets, table.classes) if table.classes else table.targets
    )
    total = hash_rows(targets, "targets")
    if isinstance(table.rows, Images):
        total += table.rows.contents()
    elif table.schema is None:
        total += hash_rows(table.rows, "features")
    else:
        for column, values in zip(table.schema.columns, table.features.T, strict=True):
            words = _as_words(values, column.categories)
            total += hash_rows(words, "column", column.name)
    return seeds.mix(total)


def _as_words(values: Tensor, categories: tuple[str, ...] | None) -> Tensor:
    """Values as 64-bit words: the bits of numbers, or the keys of categories."""
    gap = values.isnan()
    if categories is None:
        bits = (values.double() + 0.0).view(torch.int64)  # -0.0 + 0.0 is 0.0
        return torch.where(gap, _GAP, bits)
    keys = [seeds.key("category", word) for word in categories]
    return torch.tensor([*keys, _GAP])[torch.where(gap, len(keys), values).long()]


def streams(
    clients: Iterable[int], names: Sequence[str], *purpose: int | str
) -> Int[Tensor, " n"]:
    """(N,) the key of each client's random stream for a purpose, from its name."""
    keys = [seeds.key(*purpose, short_name(names, client)) for client in clients]
    return torch.tensor(keys, dtype=torch.int64)


def ranks(
    owner: Int[Tensor, " m"], content: Int[Tensor, " m"], streams: Int[Tensor, " n"]
) -> tuple[Tensor, Tensor]:
    """Each sample's rank among its client's samples in random order, and their number.

    Args:
        owner: the client of each sample, -1 for samples of nobody.
        content: a number for each sample, the same only for equal samples.
        streams: the key of each client.
    """
    # Samples of nobody belong to an extra client before the first.
    sizes = torch.bincount(owner + 1)
    start = (sizes.cumsum(0) - sizes)[owner + 1]
    place = torch.arange(len(owner))

    order = _by_owner(owner, content)
    first = torch.ones(len(owner), dtype=torch.bool)
    for values in (owner[order], content[order]):
        first[1:] &= values[1:] == values[:-1]
    first[1:] = ~first[1:]
    copies = torch.empty_like(owner)
    copies[order] = place - torch.where(first, place, 0).cummax(0).values

    draw = seeds.mix(seeds.mix(content + streams[owner]) + copies)
    rank = torch.empty_like(owner)
    rank[_by_owner(owner, draw)] = place
    return rank - start, sizes[owner + 1]


def _by_owner(owner: Tensor, values: Tensor) -> Tensor:
    """The samples sorted by client, and by value within each client."""
    order = values.argsort(stable=True)
    return order[owner[order].argsort(stable=True)]


def random_roles(
    owner: Tensor, content: Tensor, streams: Tensor, validation: float, test: float
) -> Tensor:
    """(M,) random parts of samples: 0 train, 1 validation, 2 test."""
    rank, size = ranks(owner, content, streams)
    tests = (test * size).round().clamp(min=1).minimum(size - 3)
    choices = _choices(validation, size).minimum(size - tests - 2)
    return torch.where(rank < tests, 2, torch.where(rank < tests + choices, 1, 0))


def fixed_roles(
    table: Table,
    owner: Tensor,
    content: Tensor,
    streams: Tensor,
    is_test: Tensor,
    validation: float,
    names: Sequence[str] = (),
) -> Tensor:
    """(M,) parts of samples, where the source fixes the test part."""
    rest = torch.where(is_test, -1, owner)
    clients = int(owner.max()) + 1
    sizes = torch.bincount(rest[rest >= 0], minlength=clients)
    if int(sizes.min()) < FEWEST - 1:
        worst = client_name(names, int(sizes.argmin()))
        raise InputError(
            f"every client of `{table.name}` needs {FEWEST - 1} samples outside the "
            f"test part, but {worst} has {int(sizes.min())}."
        )
    rank, size = ranks(rest, content, streams)
    choices = _choices(validation, size).minimum(size - 2)
    return torch.where(is_test, 2, torch.where(rank < choices, 1, 0))


def _choices(validation: float, size: Tensor) -> Tensor:
    """(M,) validation size of each sample's client: at least 1, or 0 for no share."""
    return (validation * size).round().clamp(min=1 if validation else 0)


def check_classes(
    table: Table,
    owner: Tensor,
    role: Tensor,
    min_classes: int,
    names: Sequence[str] = (),
) -> None:
    """Refuses clients whose training parts have too few classes."""
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
            f"{client_name(names, worst)} of `{table.name}` have only "
            f"{int(present[worst])}: choose another split, or lower split.min_classes."
        )
