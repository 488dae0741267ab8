"""States of algorithms, divided among processes and put together again.

Fields of type `Rows` have one row for each client at hand; all others must be the same
in every process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import get_type_hints

import torch
from torch import Tensor

from ..checks import InputError
from ..clients.groups import Group, block, blocks
from ..types import Rows, State


def whole(state: State, group: Group, clients: int) -> State:
    """The state of all clients, in every process.

    Raises:
        InputError: where a part that has no rows of clients differs between processes.
    """
    if group.size == 1:
        return state
    for name, value in _shared(state):
        copies = group.join(value.reshape(1, -1), [1] * group.size)
        if not torch.equal(copies[:1].expand_as(copies), copies):
            raise InputError(
                f"`{name}` of the state must be the same in every process, or be of "
                "type `coterie.types.Rows`, one row for each client."
            )
    counts = blocks(clients, group.size)
    return _with_rows(lambda rows: group.join(rows.contiguous(), counts), state)


def own(state: State, group: Group, clients: int) -> State:
    """The part of a state of all clients that belongs to this process."""
    if group.size == 1:
        return state
    mine = block(clients, group)
    return _with_rows(lambda rows: rows[mine].clone(), state)


def _fields(state: State) -> Iterator[tuple[str, object, bool]]:
    """Name and value of each field, and whether it has rows."""
    hints = get_type_hints(type(state), include_extras=True)
    for name in state._fields:
        yield name, getattr(state, name), hints.get(name) == Rows


def _is_named(value: object) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def _with_rows(change: Callable[[Tensor], Tensor], state: State) -> State:
    """The state with its rows changed."""
    changed = {}
    for name, value, has_rows in _fields(state):
        if has_rows and isinstance(value, Tensor):
            changed[name] = change(value)
        elif _is_named(value):
            changed[name] = _with_rows(change, value)
    return state._replace(**changed)


def _shared(state: State) -> Iterator[tuple[str, Tensor]]:
    """Tensors that have no rows of clients."""
    for name, value, has_rows in _fields(state):
        if _is_named(value):
            yield from _shared(value)
        elif isinstance(value, Tensor) and not has_rows:
            yield name, value
