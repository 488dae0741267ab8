"""Tracks where values come from: marks values computed from clients' answers.

Answers of clients are marked. Everything that torch computes from a marked tensor is
marked too. Answers of verbs between clients are computed from releases, and have no
mark. Marks are for whole tensors.

Marks are lost when Python reads a value. So we note when a method reads a marked value
(`if loss < best`, `tolist`, a shape or an error that depends on values). From then on,
everything that the method does may depend on data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ....checks import InputError
from ....types import Evaluation

_SHAPE_ALONE = {"aten::new_empty_strided"} | {
    f"aten::{name}"
    for kind in ("zeros", "ones", "full", "empty", "rand", "randn")
    for name in (f"{kind}_like", f"new_{kind}")
}
"""Operations whose results take nothing but the shape of another tensor."""

_ABOUT: set[Any] = {
    *(Tensor.size, Tensor.dim, Tensor.ndimension, Tensor.numel, Tensor.nelement),
    *(Tensor.__len__, Tensor.stride, Tensor.storage_offset, Tensor.element_size),
    *(Tensor.is_floating_point, Tensor.is_complex, Tensor.is_contiguous),
    *(Tensor.is_signed, Tensor.get_device, Tensor.sparse_dim, Tensor.dense_dim),
    *(Tensor.is_coalesced, Tensor.type, Tensor.__hash__, torch.is_floating_point),
    *(torch.is_complex, torch.numel, torch.result_type, torch.is_tensor),
} | {
    getattr(Tensor, name).__get__
    for name in (
        *("shape", "ndim", "dtype", "device", "layout", "requires_grad", "is_leaf"),
        *("grad_fn", "itemsize", "nbytes", "_version", "output_nr"),
        *("is_sparse", "is_sparse_csr", "is_cuda", "is_cpu", "is_meta", "is_nested"),
        *("is_mkldnn", "is_quantized", "is_mps", "is_xpu", "retains_grad"),
    )
}
"""Functions that say nothing about the values of a tensor. If a shape depends on
values, we note this when the tensor is made."""


_BY_PYTHON = (Tensor.apply_, Tensor.map_, Tensor.map2_)
"""Methods that give values to Python functions, one by one."""

_OF_LISTS = (torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor)


def has_read() -> str:
    """The error for a method that has read numbers, without its name."""
    return (
        "cannot be trained privately: it reads numbers that depend on clients' data "
        "(`if`, `float`, `tolist`, a mask as an index) and sends rows afterwards, "
        "which may depend on them. Use tensors throughout, or an `each` program."
    )


def refuse_sent_on(weights: Tensor, exchanges: Any, gamma: Any) -> None:
    """Refuses a `mix` if its later exchanges would reveal more than released rows.

    The first exchange sends released rows, and every reader applies its weights itself.
    Later exchanges send mixtures. The mixtures show the weights, the number of
    exchanges and the factor `gamma`.
    """
    if any(is_of_data(one) for one in _tensors((exchanges, gamma))):
        raise InputError(
            "`exchanges` and `gamma` of `mix` must not depend on clients' data in "
            "private training: neighbours see them."
        )
    if is_of_data(weights) and exchanges != 1:
        raise InputError(
            "`exchanges` of `mix` must be 1 in private training if weights depend on "
            f"clients' data, got {exchanges}: the second exchange sends mixtures, "
            "which show the weights."
        )


def of_data(values: Tensor) -> Tensor:
    """The same tensor, marked."""
    _storage(values).of_data = True  # which all views of these numbers share
    return values


def mark_evaluation(found: Evaluation) -> Evaluation:
    """The same answers of clients, all marked except the models."""
    for name, value in vars(found).items():
        if isinstance(value, Tensor) and name != "x":
            of_data(value)
    return found


def is_of_data(values: Tensor) -> bool:
    """Whether a tensor is marked."""
    return bool(getattr(_storage(values), "of_data", False))


def unmarked_copy(values: Tensor) -> Tensor:
    """A copy without a mark."""
    once = values.dim() > 0 and values.stride(0) == 0
    # An average stays one row in memory, because methods recognise it by that.
    copy = values[:1].clone() if once else values.clone()
    _storage(copy).of_data = False
    return copy.expand_as(values) if once else copy


def mark_answer(
    answer: Any, made: tuple[bool, ...], *, weighed: bool, absent: bool
) -> Any:
    """The answer of a verb between clients; marked, unless it is made only of releases.

    If a client chooses weights by its data, its answer shows the choice. An absent
    client releases nothing, and its answer is its own row.

    Args:
        answer: a tensor or several.
        made: which rows from clients are made of data.
        weighed: whether weights are made of data.
        absent: whether any of the clients at hand is absent.
    """
    answers = answer if isinstance(answer, tuple) else (answer,)
    for j, one in enumerate(answers):
        own = absent and (made[j] if j < len(made) else False)
        if isinstance(one, Tensor) and (weighed or own):
            of_data(one)
    return answer


def _storage(values: Tensor) -> Any:
    with torch._C.DisableTorchFunction():  # otherwise this counts as reading
        if values.layout == torch.sparse_coo:
            values = values._values()
        elif values.layout != torch.strided:
            values = values.values()
        return values.untyped_storage()


class MarkTracker(TorchDispatchMode):
    """Marks what is made of marked tensors, and notes whether Python reads them."""

    def __init__(self, read: bool = False) -> None:
        """Prepares; `read` says whether numbers were read before."""
        super().__init__()
        self.read = read  # whether Python has seen a number that is made of data
        self._reading = _Reading(self)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and asking would load the compiler

    @contextmanager
    def on(self) -> Iterator[None]:
        """Tracks marks inside the context."""
        with self._reading, self:
            yield

    @contextmanager
    def off(self) -> Iterator[None]:
        """Pauses tracking inside `on`, so that clients answer quickly."""
        self.__exit__(None, None, None)
        self._reading.__exit__(None, None, None)
        try:
            yield
        finally:
            self._reading.__enter__()
            self.__enter__()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Runs an operation, and marks its results if an argument is marked."""
        given = kwargs or {}
        if func._schema.name in _SHAPE_ALONE:
            return func(*args, **given)
        theirs = any(is_of_data(one) for one in _tensors((*args, *given.values())))
        try:
            found = func(*args, **given)
        except Exception:
            self.read = self.read or theirs  # a method that catches it knows something
            raise
        if theirs:
            made = list(_tensors((found,)))
            for one in (*made, *_written_tensors(func, args)):
                of_data(one)
            # The next draw may reveal how many numbers this one has used.
            draws = torch.Tag.nondeterministic_seeded in func.tags
            told = draws or _shaped_by_values(func, args)
            self.read = self.read or not made or told
        return found


def _written_tensors(func: Any, args: Any) -> Iterator[Tensor]:
    """Tensors that an operation may write into, besides its results."""
    if "batch_norm" in func._schema.name:  # running statistics are in no schema
        yield from _tensors(args)
        return
    for given, argument in zip(args, func._schema.arguments, strict=False):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from _tensors((given,))


def _shaped_by_values(func: Any, args: Any) -> bool:
    """Whether the shape of a result depends on marked values."""
    if torch.Tag.dynamic_output_shape not in func.tags:
        return False
    if func._schema.name != "aten::index":
        return any(is_of_data(one) for one in _tensors(args))
    masks = (one for one in _tensors((args[1],)) if one.dtype in _MASKS)
    return any(is_of_data(one) for one in masks)


_MASKS = (torch.bool, torch.uint8)


class _Reading(TorchFunctionMode):
    """Notes every read of tensor values by Python, even outside torch's operations."""

    def __init__(self, following: MarkTracker) -> None:
        super().__init__()
        self._following = following

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        if found is None or func in _ABOUT or self._following.read:
            return found
        # A tensor made from a Python list of marked numbers counts as read.
        by_list = func in _OF_LISTS or func in _BY_PYTHON
        if not by_list and any(True for _ in _tensors((found,))):
            return found
        given = _tensors((*args, *(kwargs or {}).values()))
        self._following.read = any(is_of_data(one) for one in given)
        return found


@contextmanager
def track_marks(read: bool = False) -> Iterator[MarkTracker]:
    """Tracks marks inside the context."""
    following = MarkTracker(read)
    with following.on():
        yield following


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)
