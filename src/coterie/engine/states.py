"""Joins the parts of an algorithm's state in all processes, or takes one part of it.

Also takes the rows of some clients out of a state, and puts new rows in their place.

Fields of type `Rows`, `OwnRows` and `SameRow` have one row for each client of the
process. Fields of type `Server` exist only in process 0, the coordinator. All other
fields must be the same in every process.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, get_type_hints

import torch
from torch import Tensor

from ..checks import InputError
from ..clients.groups import Group, block, blocks
from ..collaboration.shared import Models, models_of
from ..types import (
    ROWS,
    LateRows,
    OwnRows,
    Rows,
    SameRow,
    Server,
    Shared,
    State,
    StoredRows,
    Told,
    fetch,
)


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
    joined = {
        name: _joined_models(value, group)
        for name, value, kind in fields_of(state)
        if kind == Shared
    }
    if everybody is None:
        return None
    each = iter(everybody)
    found = _with_rows(lambda row: next(each), state)
    return with_fields(found, joined) if joined else found


def _joined_models(known: Models, group: Group) -> Models | None:
    """In process 0, the models that any process knows."""
    counts = [len(numbers) for numbers in group.gather(known.numbers.cpu())]
    found = group.collect([known.numbers, known.rows.contiguous()], counts)
    return None if found is None else models_of(*found)


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
    for name, value, kind in fields_of(like):
        if kind in ROWS:
            part[name] = packed[name][mine].clone()
        elif kind == Server:
            part[name] = packed[name] if group.rank == 0 else None
        elif is_named(value):
            part[name] = own(packed[name], value, group, clients)
    return part


def rows_of(state: State, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Tensors with a row for each client of this process, each with the path to it."""
    for name, value, kind in fields_of(state):
        if kind in ROWS and isinstance(value, Tensor):
            yield path + name, value
        elif kind not in (Server, Shared) and is_named(value):
            yield from rows_of(value, f"{path}{name}.")


def changes_in_place(state: State) -> bool:
    """Whether a field has rows, and none of these is of type `Rows`."""
    kinds = list(_kinds(state))
    return Rows not in kinds and any(kind in ROWS for kind in kinds)


def _kinds(state: State) -> Iterator[object]:
    for _, value, kind in fields_of(state):
        if kind not in (*ROWS, Server, Shared) and is_named(value):
            yield from _kinds(value)
        else:
            yield kind


def take_rows(state: State, who: Tensor) -> State:
    """The state of the clients at these positions alone, with copies of their rows.

    The copies are on the device of `who`; the state may be elsewhere.
    """
    taken: dict[str, Any] = {}
    for name, value, kind in fields_of(state):
        if kind in (OwnRows, Told):
            taken[name] = fetch(StoredRows(value, who))
        elif kind == LateRows:
            taken[name] = StoredRows(value, who)
        elif kind == SameRow:
            taken[name] = value[:1].to(who.device).expand(len(who), *value.shape[1:])
        elif kind not in (Server, Shared) and is_named(value):
            taken[name] = take_rows(value, who)
    return with_fields(state, taken)


class Change:
    """What a round changed in place. It can be undone until the next round begins."""

    def __init__(self, shared: set[int]) -> None:
        """Nothing is changed yet.

        Args:
            shared: memory that belongs to more than one tensor, by its address. Before
                rows there change, they are copied, once.
        """
        self._shared, self._before = shared, list[tuple[Tensor, Tensor, Tensor]]()

    def put_rows(self, state: State, who: Tensor, new: State) -> State:
        """The state with the new rows of the clients at these positions.

        Own rows are written to the memory of the state.
        """
        changed = {}
        for (name, old, kind), (_, value, _) in zip(
            fields_of(state), fields_of(new), strict=True
        ):
            if kind == Told or isinstance(value, StoredRows):
                value = old
            elif kind in (OwnRows, LateRows):
                value = self._write_rows(old, who.to(old.device), value)
            elif kind == SameRow:
                one = value[:1] if value.stride(0) == 0 else value[:1].clone()
                value = one.to(old.device).expand(len(old), *one.shape[1:])
            elif kind not in (Server, Shared) and is_named(value):
                value = self.put_rows(old, who, value)
            changed[name] = value
        return with_fields(new, changed)

    def _write_rows(self, rows: Tensor, who: Tensor, new: Tensor) -> Tensor:
        if rows.shape[1:] != new.shape[1:]:
            raise InputError(
                "rows of a state must keep their shape in rounds in place, got "
                f"{tuple(new.shape[1:])} in place of {tuple(rows.shape[1:])}."
            )
        before = rows[who]
        if torch.equal(before, new.to(rows.device)):
            return rows
        if address(rows) in self._shared or not rows.is_contiguous():
            rows = rows.clone(memory_format=torch.contiguous_format)
        self._before.append((rows, who, before))
        return rows.index_copy_(0, who, new.to(rows.device))

    def undo(self) -> None:
        """Writes back the rows from before the round."""
        for rows, who, before in self._before:
            rows.index_copy_(0, who, before)
        self.forget()

    def forget(self) -> None:
        """Frees the rows from before the round."""
        self._before.clear()


def address(rows: Tensor) -> int:
    """The address of the memory of these rows."""
    return rows.untyped_storage().data_ptr()


def shared_memory(state: State, x: Tensor) -> set[int]:
    """The memory of x, and memory that several fields of the state share."""
    places = [address(rows) for _, rows in rows_of(state)]
    return {address(x), *(place for place in places if places.count(place) > 1)}


def fields_of(state: State) -> Iterator[tuple[str, Any, object]]:
    """Name, value and type of each field."""
    hints = get_type_hints(type(state), include_extras=True)
    for name in _names(state):
        yield name, getattr(state, name), hints.get(name)


def _names(state: State) -> tuple[str, ...]:
    """The names of the fields of a NamedTuple or dataclass; otherwise none."""
    if dataclasses.is_dataclass(state):
        return tuple(field.name for field in dataclasses.fields(state))
    return getattr(state, "_fields", ())


def is_named(value: object) -> bool:
    """Whether the value is a NamedTuple or a dataclass."""
    return bool(_names(value))


def _with_rows(change: Callable[[Tensor], Tensor | None], state: State) -> State:
    """The state, with `change` applied to its rows."""
    changed = {}
    for name, value, kind in fields_of(state):
        if kind in ROWS and isinstance(value, Tensor):
            changed[name] = change(value)
        elif kind not in (Server, Shared) and is_named(value):
            changed[name] = _with_rows(change, value)
    return with_fields(state, changed)


def with_fields(state: State, changed: dict[str, Any]) -> State:
    """The state with these fields replaced."""
    if dataclasses.is_dataclass(state) and not isinstance(state, type):
        return dataclasses.replace(state, **changed)
    return state._replace(**changed)


def _shared_tensors(state: State, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Tensors that have no rows and are not the coordinator's, each with its path."""
    for name, value, kind in fields_of(state):
        if kind in (Server, Shared):
            continue
        if is_named(value):
            yield from _shared_tensors(value, f"{path}{name}.")
        elif isinstance(value, Tensor) and kind not in ROWS:
            yield path + name, value


def without_server(state: State) -> State:
    """The state without what the coordinator alone has."""
    gone = {name: None for name, _, kind in fields_of(state) if kind == Server}
    return with_fields(state, gone) if gone else state
