"""Tables from data sets of Hugging Face's library `datasets`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...checks import InputError, brief, suggestion
from ..federation import Table
from ..files import in_order
from ..given import table_of_tensors
from ..preparation import Column
from ..rows.images import Images
from .clients import folder_of, refuse_strangers
from .encoded_images import EncodedImages
from .torch_datasets import client_names, with_clients

_READ = (
    *("Value", "ClassLabel", "Image", "List", "LargeList", "Sequence", "list"),
    *(f"Array{n}D" for n in (2, 3, 4, 5)),
)
"""The library's types of columns that may hold features."""

_AT_ONCE = 1000
"""The number of rows that are read in one pass."""


def hugging_face(
    *,
    path: str = "",
    client: str = "client",
    target: str = "label",
    features: str | Sequence[str] | None = None,
    task: str | None = None,
    scale: str | None = None,
) -> Table:
    """A data set of Hugging Face's library `datasets`, from a folder (save_to_disk).

    Args:
        path: the folder.
        client: the column that names the client; "": a split makes clients.
        target: the column to predict.
        features: the column of features, or several columns of numbers; None: all
            others.
        task: what targets are; guessed as for tensors.
        scale: the same option as for an npz file.
    """
    folder = folder_of(path, "Hugging Face")
    try:
        from datasets import load_from_disk
    except ImportError as error:
        raise InputError(
            f"reading {folder.name} needs datasets: pip install coterie[hugging_face]."
        ) from error
    try:
        dataset = load_from_disk(str(folder))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"cannot read {folder.name} as a saved data set: {brief(str(error))}."
        ) from None
    table = from_hugging_face(
        dataset,
        client=client or None,
        target=target,
        features=features,
        task=task,
        scale=scale,
    )
    files = (path for path in folder.rglob("*") if path.suffix in (".arrow", ".json"))
    name = folder.resolve().name
    return table._replace(name=name, files=tuple(sorted(files)))


def from_hugging_face(
    dataset: object,
    *,
    client: str | Sequence[Any] | np.ndarray | Tensor | None,
    target: str,
    features: str | Sequence[str] | None = None,
    task: str | None = None,
    scale: str | None = None,
    name: str = "hugging_face",
) -> Table:
    """The table of a data set, for `co.train`, `co.study_of` or `divide`.

    If the data set has the splits "train" and "test", clients are tested on "test", and
    the column `client` must be in both. Images become numbers between 0 and 1 when they
    are used.

    Args:
        dataset: a `datasets.Dataset`, or a `DatasetDict` with "train" and perhaps
            "test".
        client: the column that names the client, or the client of each row; None: a
            split makes clients.
        target: the column to predict.
        features: the column of features, or several columns of numbers; None: all
            others.
        task: what targets are; guessed as for tensors.
        scale: the same option as for an npz file.
        name: the name of the table.
    """
    parts = _parts(dataset)
    columns = _columns(parts, client, target, features)
    if "test" in parts and not isinstance(client, str):
        raise InputError(
            "`client` must be the name of a column if there is a split 'test', got "
            f"{brief(client)}."
        )
    who = {part: _clients(some, client) for part, some in parts.items()}
    if "test" in parts:
        refuse_strangers(set(who["test"]), set(who["train"]))
    labels = [label for some in parts.values() for label in _values(some, target)]
    y, classes = _numbers(labels, parts["train"].features[target], target)
    if _kind(parts["train"], columns[0]) == "Image":
        pixels = EncodedImages(parts, columns[0])
        channels = pixels.shape[1]
        images = Images(pixels, [0.0] * channels, [1.0] * channels, name=pixels.name)
        stand_in = torch.zeros(1).expand(images.shape)  # takes no memory
        table = table_of_tensors(stand_in, y, task=task, scale=scale)
        table = table._replace(features=images)
    else:
        x = torch.from_numpy(_all_features(parts, columns))
        table = table_of_tensors(x, y, task=task, scale=scale)
    if len(columns) > 1 or _is_number(parts["train"], columns[0]):
        schema = table.schema
        if schema is not None:
            schema = schema._replace(columns=tuple(map(Column, columns)))
        table = table._replace(columns=tuple(columns), schema=schema)
    if classes and table.task == "classification":
        table = table._replace(outputs=len(classes))
    is_test = torch.arange(len(y)) >= len(parts["train"]) if "test" in parts else None
    table = table._replace(name=name, is_test=is_test, classes=classes, note="")
    return with_clients(table, [one for some in who.values() for one in some])


def _parts(dataset: object) -> dict[str, Any]:
    """The data set, or its splits "train" and "test"."""
    found = {"train": dataset}
    if isinstance(dataset, Mapping):
        if "train" not in dataset:
            raise InputError(
                f"`dataset` must have a split 'train', got {brief(list(dataset))}."
            )
        found = {part: dataset[part] for part in ("train", "test") if part in dataset}
    for part, some in found.items():
        whose = f"the split {part!r} of `dataset`" if len(found) > 1 else "`dataset`"
        known = getattr(some, "column_names", None), getattr(some, "with_format", None)
        if None in known or not isinstance(some, Sized):
            raise InputError(
                f"{whose} must be a datasets.Dataset with rows in memory or on disk, "
                f"got {type(some).__name__}."
            )
        if not len(some):
            raise InputError(f"{whose} has no rows.")
    return found


def _columns(
    parts: Mapping[str, Any],
    client: object,
    target: str,
    features: str | Sequence[str] | None,
) -> list[str]:
    """The names of the columns of features; refuses columns that cannot be read."""
    known = list(parts["train"].column_names)
    named = [client] if isinstance(client, str) else []
    chosen = [features] if isinstance(features, str) else list(features or ())
    chosen = [name for name in chosen if name]
    if not all(isinstance(name, str) for name in chosen):
        raise InputError(
            f"`features` must be the name of a column or a list of names, got "
            f"{brief(features)}."
        )
    others = [name for name in known if name not in (*named, target)]
    for part, some in parts.items():
        for column in (*named, target, *(chosen or others)):
            if column not in some.column_names:
                raise InputError(
                    f"the split {part!r} has no column {brief(column)}; its columns "
                    f"are {', '.join(some.column_names)}."
                    f"{suggestion(str(column), some.column_names)}"
                )
    columns = chosen or others
    twice = [name for name in columns if name in (*named, target)]
    if twice or not columns:
        raise InputError(
            "`features` must name columns other than `client` and `target`, got "
            f"{brief(columns)}."
        )
    for part in parts.values():
        for name in columns:
            kind = _kind(part, name)
            if kind not in _READ or (kind == "Image" and len(columns) > 1):
                rule = "be the only one" if kind == "Image" else "be numbers or images"
                raise InputError(
                    f"a column of features of type {kind} must {rule}, got the columns "
                    f"{', '.join(columns)}: name others in `features`."
                )
    return columns


def _kind(some: Any, column: str) -> str:
    """The name of the library's type of a column."""
    return type(some.features[column]).__name__


def _is_number(some: Any, column: str) -> bool:
    """Whether each row of a column has one number."""
    return _kind(some, column) in ("Value", "ClassLabel")


def _values(some: Any, column: str) -> list[Any]:
    """All values of a column as Python's, whatever format the data set has."""
    return list(some.with_format(None)[column][:])


def _clients(some: Any, client: Any) -> list[str]:
    if client is None:
        return []
    given = _values(some, client) if isinstance(client, str) else client
    return client_names(given, len(some), "client")


def _all_features(parts: Mapping[str, Any], columns: Sequence[str]) -> np.ndarray:
    """(M, ...) the features of all rows of all splits."""
    read = [_features(some, columns) for some in parts.values()]
    shapes = [some.shape[1:] for some in read]
    if shapes[0] != shapes[-1]:
        raise InputError(
            "features of the splits 'train' and 'test' must have one shape, got "
            f"{shapes[0]} and {shapes[-1]}."
        )
    return np.concatenate(read)


def _features(some: Any, columns: Sequence[str]) -> np.ndarray:
    """(M, ...) the features of all rows of a split."""
    rows = some.with_format("numpy", columns=list(columns))
    pieces, one = [], len(columns) == 1
    for first in range(0, len(some), _AT_ONCE):
        read = rows[first : first + _AT_ONCE]
        found = [np.asarray(read[name]) for name in columns]
        for name, values in zip(columns, found, strict=True):
            if values.dtype.kind not in "biuf" or (values.ndim > 1 and not one):
                rule = "numbers in arrays of one shape" if one else "one number a row"
                raise InputError(
                    f"column {name!r} must hold {rule}: choose other `features`, or "
                    "give `co.train` the frame `dataset.to_pandas()`."
                )
        scalars = found[0].ndim == 1
        pieces.append(np.stack(found, axis=1).astype(float) if scalars else found[0])
    shapes = {piece.shape[1:] for piece in pieces}
    if len(shapes) > 1:
        raise InputError(
            f"all rows of {columns[0]!r} must have one shape, got {shapes}."
        )
    x = np.concatenate(pieces)
    if x.dtype.kind != "f":
        return x.astype(np.int64)
    return x if _is_number(some, columns[0]) else x.astype(np.float32)


def _numbers(
    labels: Sequence[Any], feature: Any, target: str
) -> tuple[Tensor, tuple[str, ...]]:
    """The targets as numbers, and the names of classes."""
    kinds = {type(label) for label in labels}
    if kinds == {str}:
        words = in_order(set(labels))
        place = {word: k for k, word in enumerate(words)}
        return torch.tensor([place[label] for label in labels]), tuple(words)
    if not kinds <= {int, float, bool}:
        raise InputError(
            f"column {target!r} must hold one number or one word a row, got "
            f"{', '.join(sorted(kind.__name__ for kind in kinds))}."
        )
    real = float in kinds
    y = torch.tensor(labels, dtype=torch.float32 if real else torch.int64)
    return y, tuple(map(str, getattr(feature, "names", None) or ()))
