"""Joins the parts of an algorithm's state in all processes, or takes one part of it.

Fields of type `Rows` have one row for each client of the process. Fields of type
`Server` exist only in process 0, the coordinator. All other fields must be the same in
every process.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, get_type_hints

import torch
from torch import Tensor

from ..checks import InputError
from ..clients.groups import Group, block, blocks
from ..types import Rows, Server, State


def whole(state: State, group: Group, clients: int) -> State | None:
    """In process 0, the state of all clients; None in other processes.

    Raises:
        InputError: if a field without rows differs between processes.
    """
    if group.size == 1:
        return state
    shared = list(_shared_tensors(state))
    copies = group.gather([value.cpu() for _, value in shared])
    for (name, _), *values in zip(shared, *copies, strict=True):
        if not all(torch.equal(values[0], value) for value in values):
            raise InputError(
                f"`{name}` of the state must be the same in every process, or be of "
                "type `coterie.types.Rows`, one row for each client."
            )
    counts = blocks(clients, group.size)
    rows = list[Tensor]()
    _with_rows(lambda row: rows.append(row.contiguous()), state)
    everybody = group.collect(rows, counts)
    if everybody is None:
        return None
    each = iter(everybody)
    return _with_rows(lambda row: next(each), state)


def own(packed: Any, like: State, group: Group, clients: int) -> Any:
    """This process's part of a packed state of all clients.

    Args:
        packed: nested dictionaries with the names of the fields as keys.
        like: a state of this process; its types say which fields have rows.
        group: the processes.
        clients: the number of clients in all processes.
    """
    if group.size == 1:
        return packed
    mine, part = block(clients, group), dict(packed)
    for name, value, kind in _fields(like):
        if kind == Rows:
            part[name] = packed[name][mine].clone()
        elif kind == Server:
            part[name] = packed[name] if group.rank == 0 else None
        elif _is_named(value):
            part[name] = own(packed[name], value, group, clients)
    return part


def rows_of(state: State, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Tensors with a row for each client of this process, each with the path to it."""
    for name, value, kind in _fields(state):
        if kind == Rows and isinstance(value, Tensor):
            yield path + name, value
        elif kind != Server and _is_named(value):
            yield from rows_of(value, f"{path}{name}.")


def _fields(state: State) -> Iterator[tuple[str, object, object]]:
    """Name, value and type of each field."""
    hints = get_type_hints(type(state), include_extras=True)
    for name in _names(state):
        yield name, getattr(state, name), hints.get(name)


def _names(state: State) -> tuple[str, ...]:
    """The names of the fields of a NamedTuple or dataclass; otherwise none."""
    if dataclasses.is_dataclass(state):
        return tuple(field.name for field in dataclasses.fields(state))
    return getattr(state, "_fields", ())


def _is_named(value: object) -> bool:
    return bool(_names(value))


def _with_rows(change: Callable[[Tensor], Tensor | None], state: State) -> State:
    """The state, with `change` applied to its rows."""
    changed = {}
    for name, value, kind in _fields(state):
        if kind == Rows and isinstance(value, Tensor):
            changed[name] = change(value)
        elif kind != Server and _is_named(value):
            changed[name] = _with_rows(change, value)
    if dataclasses.is_dataclass(state) and not isinstance(state, type):
        return dataclasses.replace(state, **changed)
    return state._replace(**changed)


def _shared_tensors(state: State, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Tensors that have no rows and are not the coordinator's, each with its path."""
    for name, value, kind in _fields(state):
        if kind == Server:
            continue
        if _is_named(value):
            yield from _shared_tensors(value, f"{path}{name}.")
        elif isinstance(value, Tensor) and kind != Rows:
            yield path + name, value


def without_server(state: State) -> State:
    """The state without what the coordinator alone has."""
    gone = {name: None for name, _, kind in _fields(state) if kind == Server}
    if not gone:
        return state
    if dataclasses.is_dataclass(state) and not isinstance(state, type):
        return dataclasses.replace(state, **gone)
    return state._replace(**gone)
