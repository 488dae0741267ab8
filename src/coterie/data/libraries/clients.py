"""Tables from the training and test samples of each client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...checks import InputError, one_of, several
from ...models import OBJECTIVES, outputs_for
from ..federation import Table, client_name
from ..files import as_tensor, in_order
from ..given import table_of_tensors


class ClientRows(NamedTuple):
    """The features and targets of one client in one part."""

    x: np.ndarray  # (M, ...)
    y: np.ndarray  # (M,)


Part = Mapping[str, ClientRows]


def table_of_clients(
    name: str, train: Part, test: Part | None, *, task: str, classes: int | None = None
) -> Table:
    """The table of all clients' samples, where `test` fixes their test parts.

    Args:
        name: the name of the table.
        train: the samples of each client, by its name.
        test: the test samples of each client; None: a study draws them.
        task: the kind of targets.
        classes: how many there are; None: as many as labels say.
    """
    one_of("data.task", task, OBJECTIVES)
    names = in_order(set(train))
    if test is not None:
        refuse_strangers(test, train)
    parts = [(train, False)] + ([(test, True)] if test is not None else [])
    pieces = [
        (
            place,
            is_test,
            _check_samples(part[who], who, "test" if is_test else "train", task),
        )
        for part, is_test in parts
        for place, who in enumerate(names)
        if who in part and any(map(len, part[who]))
    ]
    if not pieces:
        raise InputError(f"the clients of {name} have no samples.")
    _refuse_shapes([(names[place], some.x.shape[1:]) for place, _, some in pieces])
    x = _all_rows([some.x for *_, some in pieces])
    y = _all_rows([some.y for *_, some in pieces])
    sizes = torch.tensor([len(some.y) for *_, some in pieces])
    place, is_test = (
        torch.tensor(each) for each in list(zip(*pieces, strict=True))[:2]
    )
    table = table_of_tensors(x, y, task=task)
    outputs = table.outputs if classes is None else _outputs(task, y, classes, name)
    numbered = names == [str(k) for k in range(len(names))]
    return table._replace(
        name=name,
        outputs=outputs,
        group=place.repeat_interleave(sizes),
        is_test=None if test is None else is_test.repeat_interleave(sizes),
        names=() if numbered else tuple(names),
        note="",
    )


def refuse_strangers(test: Iterable[str], train: Iterable[str]) -> None:
    """Refuses clients with test samples that have no training samples."""
    strange = in_order(set(test) - set(train))
    if strange:
        names = [strange[0]]
        raise InputError(
            f"every client with test data needs training data, but "
            f"{client_name(names, 0)} has none"
            f"{_more(len(strange))}: take it out of the test data."
        )


def _more(count: int) -> str:
    return f", nor have {several(count - 1, 'other')}" if count > 1 else ""


def _check_samples(some: ClientRows, who: str, part: str, task: str) -> ClientRows:
    """The samples; refuses those that are not numbers, or lack a target."""
    whose = f"{client_name([who], 0)} in {part}"
    for letter, values in some._asdict().items():
        if values.dtype.kind not in "biuf":
            raise InputError(
                f"`{letter}` of {whose} must hold numbers in an array of one shape, "
                f"got {'text' if values.dtype.kind in 'US' else 'other values'}."
            )
    if len(some.x) != len(some.y):
        raise InputError(
            f"`x` and `y` of {whose} must have the same length, got {len(some.x)} and "
            f"{len(some.y)}."
        )
    bad = np.flatnonzero(~np.isfinite(some.y))
    if OBJECTIVES[task].labelled and some.y.ndim == 1 and not len(bad):
        bad = np.flatnonzero((some.y % 1 != 0) | (some.y < 0))
    if len(bad):
        rule = "whole numbers from 0" if OBJECTIVES[task].labelled else "finite"
        raise InputError(
            f"labels of {whose} must be {rule}, but sample {bad[0]} has "
            f"{some.y.flat[bad[0]]:g}."
        )
    return some


def _refuse_shapes(shapes: Sequence[tuple[str, tuple[int, ...]]]) -> None:
    """Refuses samples without features, and clients whose samples differ in shape."""
    first, shape = shapes[0]
    for who, other in shapes:
        if other != shape or not shape or 0 in shape:
            raise InputError(
                "all samples must have features of the same shape, but those of "
                f"{client_name([who], 0)} have {other} and those of "
                f"{client_name([first], 0)} {shape}."
            )


def _all_rows(arrays: Sequence[np.ndarray]) -> Tensor:
    """All rows: real numbers in single precision, other numbers as whole numbers."""
    real = any(array.dtype.kind == "f" for array in arrays)
    kind = torch.float32 if real else torch.int64
    return torch.cat([as_tensor(array, kind) for array in arrays])


def _outputs(task: str, y: Tensor, classes: int, name: str) -> int:
    """The number of outputs that a model needs for these classes."""
    top = int(y.max()) if OBJECTIVES[task].labelled else 0
    if top >= classes:
        raise InputError(
            f"the labels of {name} must be below {classes}, its number of classes, but "
            f"there is {top}."
        )
    return outputs_for(task, classes)


def folder_of(path: str, name: str) -> Path:
    """The folder of a data set.

    Raises:
        InputError: if it is not there.
    """
    if not isinstance(path, str) or not path:
        raise InputError(f"`data.path` must name the folder of the {name} data.")
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise InputError(f"`data.path` must name a folder, but {folder} is none.")
    return folder
