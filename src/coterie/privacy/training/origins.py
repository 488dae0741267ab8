"""Where values come from: whatever is made of clients' answers is marked as theirs.

Two worlds may agree by chance, above all where a client answers yes or no. So a method
is also followed: answers of clients are marked, and whatever torch makes of something
marked is marked in turn, be its values what they may. What verbs between clients answer
is made of releases, and carries no mark. Marks are of whole tensors, and where a method
reads a number out of a marked one (`if loss < best`), all that it sends afterwards in
that round depends on data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_SHAPE_ALONE = {"aten::new_empty_strided"} | {
    f"aten::{name}"
    for kind in ("zeros", "ones", "full", "empty", "rand", "randn")
    for name in (f"{kind}_like", f"new_{kind}")
}
"""Operations whose results have nothing of another tensor but its shape."""

_HANDING_OUT = (Tensor.tolist, Tensor.numpy, Tensor.__array__)
"""What gives values to Python past torch's operations."""


def of_data(values: Tensor) -> Tensor:
    """The same tensor, marked."""
    _storage(values).of_data = True  # which all views of these numbers share
    return values


def is_of_data(values: Tensor) -> bool:
    """Whether it is marked."""
    return bool(getattr(_storage(values), "of_data", False))


def known(values: Tensor) -> Tensor:
    """A copy without a mark."""
    once = values.dim() > 0 and values.stride(0) == 0
    # An average stays one row in memory, by which methods know it.
    copy = values[:1].clone() if once else values.clone()
    _storage(copy).of_data = False
    return copy.expand_as(values) if once else copy


def _storage(values: Tensor) -> Any:
    if values.layout == torch.sparse_coo:
        values = values._values()
    elif values.layout != torch.strided:
        values = values.values()
    return values.untyped_storage()


class Following(TorchDispatchMode):
    """Marks what is made of something marked, and notes what is read of it."""

    read = False  # whether Python has seen a number that is made of data

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and asking would load the compiler

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """What torch makes of its arguments."""
        given = kwargs or {}
        found = func(*args, **given)
        if func._schema.name in _SHAPE_ALONE:
            return found
        if any(is_of_data(one) for one in _tensors((*args, *given.values()))):
            made = list(_tensors((found,)))
            for one in made:
                of_data(one)
            self.read = self.read or not made
        return found


class _Reading(TorchFunctionMode):
    def __init__(self, following: Following) -> None:
        super().__init__()
        self._following = following

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func in _HANDING_OUT and is_of_data(args[0]):
            self._following.read = True
        return func(*args, **(kwargs or {}))


@contextmanager
def followed() -> Iterator[Following]:
    """While it lasts, marks follow values."""
    following = Following()
    with _Reading(following), following:
        yield following


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)
