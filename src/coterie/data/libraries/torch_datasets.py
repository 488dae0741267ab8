"""Tables from data sets of torch, with the client of each sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from ...checks import InputError, brief
from ..federation import Table
from ..files import in_order
from ..given import table_of_tensors
from .clients import refuse_strangers

Place = int | str
"""Names a part of a sample: its position in a tuple, or its key in a dictionary."""

Clients = Place | Sequence[Any] | np.ndarray | Tensor | None
"""The part of a sample that names its client, or the client of each sample."""


def from_torch(
    dataset: Dataset[Any],
    client: Clients = None,
    *,
    features: Place = 0,
    target: Place = 1,
    test: Dataset[Any] | None = None,
    test_client: Clients = None,
    task: str | None = None,
    scale: str | None = None,
    name: str = "torch",
) -> Table:
    """The table of a map-style data set, for `co.train`, `co.study_of` or `divide`.

    Each sample is read once. It is a tuple or a dictionary of tensors, arrays or
    numbers.

    Args:
        dataset: a data set with a length and samples 0, 1, ...
        client: the part of a sample that names its client, or a list or array with the
            client of each sample; None: a split makes clients.
        features: the part of a sample that holds its features.
        target: the part of a sample that is to be predicted.
        test: the clients' test samples; None: a study draws them.
        test_client: the clients of `test`, as in `client`; None: the same part of a
            sample.
        task: the kind of targets; by default it is guessed, as for tensors.
        scale: the same option as for an npz file.
        name: the name of the table.
    """
    x, y, who = _read_parts(dataset, client, features, target, "dataset")
    is_test = None
    if test is not None:
        if client is None:
            raise InputError(
                "`test` needs `client`, because test samples have clients."
            )
        if test_client is None and isinstance(client, int | str):
            test_client = client
        if test_client is None:
            raise InputError(
                "`test_client` must name the client of each sample of `test`, because "
                "`client` lists those of `dataset`."
            )
        more = _read_parts(test, test_client, features, target, "test")
        if more[0].shape[1:] != x.shape[1:] or more[1].shape[1:] != y.shape[1:]:
            raise InputError(
                "samples of `test` must have the shapes of those of `dataset`, got "
                f"{tuple(more[0].shape[1:])} and {tuple(x.shape[1:])}."
            )
        refuse_strangers(set(more[2]), set(who))
        is_test = torch.arange(len(x) + len(more[0])) >= len(x)
        x, y = torch.cat([x, more[0]]), torch.cat([y, more[1]])
        who = who + more[2]
    table = table_of_tensors(x, y, task=task, scale=scale)
    return with_clients(table._replace(name=name, is_test=is_test), who)


def with_clients(table: Table, who: Sequence[str]) -> Table:
    """The table with the client of each sample; the same table if none are given."""
    if not len(who):
        return table
    names = in_order(set(who))
    place = {name: k for k, name in enumerate(names)}
    numbered = names == [str(k) for k in range(len(names))]
    group = torch.tensor([place[one] for one in who])
    return table._replace(group=group, names=() if numbered else tuple(names))


def client_names(client: Any, count: int, name: str) -> list[str]:
    """The client of each sample as text, from a list, an array or a tensor."""
    if isinstance(client, Tensor):
        client = client.detach().cpu().numpy()
    if not isinstance(client, list | tuple | np.ndarray) or np.ndim(client) != 1:
        raise InputError(
            f"`{name}` must be a list or array with the client of each sample, got "
            f"{type(client).__name__} of shape {np.shape(client)}."
        )
    found = client.tolist() if isinstance(client, np.ndarray) else list(client)
    if len(found) != count:
        raise InputError(
            f"`{name}` must name the client of each of the {count} samples, got "
            f"{len(found)}."
        )
    for row, one in enumerate(found):
        whole = isinstance(one, float) and one.is_integer()
        if not (isinstance(one, int | str | np.integer) or whole) or str(one) == "":
            raise InputError(
                f"`{name}` must hold names or whole numbers, but sample {row} has "
                f"{brief(one)}."
            )
    return [str(one) if isinstance(one, str) else str(int(one)) for one in found]


def _read_parts(
    dataset: Dataset[Any], client: Clients, features: Place, target: Place, name: str
) -> tuple[Tensor, Tensor, list[str]]:
    """The features, targets and clients of all samples."""
    if not isinstance(dataset, Dataset) or isinstance(dataset, IterableDataset):
        raise InputError(
            f"`{name}` must be a map-style torch Dataset, which has a length and an "
            f"item for each sample, got {type(dataset).__name__}."
        )
    column = isinstance(client, int | str)
    places = [features, target, *([client] if column else [])]
    if isinstance(dataset, TensorDataset) and all(type(p) is int for p in places):
        parts = [_tensor_of(dataset, place, name) for place in places]
    else:
        parts = _stack_parts(dataset, places, name)
    x, y = parts[:2]
    if x.dim() < 2 or not len(x):
        raise InputError(
            f"samples of `{name}` must have features in a row or an image, and there "
            f"must be one at least, got shape {tuple(x.shape)}."
        )
    given = parts[2] if column else client
    label = "client" if name == "dataset" else "test_client"
    return x, y, [] if given is None else client_names(given, len(x), label)


def _tensor_of(dataset: TensorDataset, place: Any, name: str) -> Tensor:
    if not -len(dataset.tensors) <= place < len(dataset.tensors):
        raise InputError(
            f"samples of `{name}` have {len(dataset.tensors)} parts, but part {place} "
            "was asked for."
        )
    return dataset.tensors[place].detach().cpu()


def _stack_parts(dataset: Dataset[Any], places: Sequence[Any], name: str) -> list[Any]:
    """These parts of all samples: tensors, or lists where they are text."""
    rows: list[list[Any]] = [[] for _ in places]
    for k in range(len(dataset)):  # type: ignore[arg-type]
        try:
            sample = dataset[k]
            for row, place in zip(rows, places, strict=True):
                part = sample[place]
                row.append(part if isinstance(part, str) else torch.as_tensor(part))
        except Exception as error:  # the user's code may raise anything
            raise InputError(
                f"sample {k} of `{name}` must be a tuple or a dictionary of tensors "
                f"with the parts {brief(list(places))}, got an error: "
                f"{brief(str(error) or type(error).__name__)}."
            ) from error
    found: list[Any] = []
    for row, place in zip(rows, places, strict=True):
        if all(isinstance(part, str) for part in row):
            found.append(row)
            continue
        shapes = {k: getattr(part, "shape", "text") for k, part in enumerate(row)}
        other = next((k for k, shape in shapes.items() if shape != shapes[0]), None)
        if other is not None:
            raise InputError(
                f"part {brief(place)} of all samples of `{name}` must have one shape, "
                f"but sample {other} has {tuple(shapes[other])} and sample 0 has "
                f"{tuple(shapes[0])}."
            )
        found.append(torch.stack(row))
    for part in found[:2]:
        if isinstance(part, list):
            raise InputError(f"features and targets of `{name}` must be numbers.")
    return found
