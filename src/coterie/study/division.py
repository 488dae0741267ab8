"""A study in several processes that each hold a block of the clients.

All processes run the same code. Process 0 reads and writes the run folder. It sends the
other processes the data that it reads, or the reason why it cannot read them.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from ..checks import InputError, TrainingError
from ..clients.groups import Group, block, blocks
from ..data.federation import Federation, Table
from ..engine.states import whole
from ..records import Cell, Folder
from ..types import State

Found = TypeVar("Found")


class Division(NamedTuple):
    """How the clients of a study are divided among processes."""

    group: Group
    clients: int  # in all of them

    def part(self, federation: Federation) -> Federation:
        """This process's clients of a federation, with their samples alone."""
        if self.group.size == 1:
            return federation
        return federation.select(torch.arange(self.clients)[self.mine]).compact()

    @property
    def mine(self) -> slice:
        """The positions of this process's clients among all."""
        return block(self.clients, self.group)

    def join(self, rows: Tensor) -> Tensor:
        """The rows of all clients, in every process."""
        return self.group.join(rows.contiguous(), blocks(self.clients, self.group.size))

    def join_samples(self, values: Tensor, sizes: Tensor) -> Tensor:
        """The values of all clients' samples, given how many each client has."""
        counts = sizes.cpu().split(blocks(self.clients, self.group.size))
        return self.group.join(values.contiguous(), [int(c.sum()) for c in counts])

    def collect(self, rows: Tensor) -> Tensor | None:
        """The rows of all clients, in process 0."""
        counts = blocks(self.clients, self.group.size)
        found = self.group.collect([rows.contiguous()], counts)
        return None if found is None else found[0]

    def join_info(self, info: dict[str, Tensor | float]) -> dict[str, Tensor | float]:
        """What a round reports, with the rows of all clients."""
        if self.group.size == 1:
            return info
        told = self.group.gather(list(info))
        for rank, names in enumerate(told):
            if names != told[0]:
                raise InputError(
                    "a round must report the same names in every process, but process "
                    f"0 reports {told[0]} and process {rank} reports {names}."
                )
        return {name: self._of_all(name, value) for name, value in info.items()}

    def _of_all(self, name: str, value: Tensor | float) -> Tensor | float:
        """One value that a round reports, with the rows of all clients."""
        if not isinstance(value, Tensor) or value.dim() == 0:
            return value
        if name == "weights" and len(value) == self.clients:
            return value  # already complete in every process
        return self.join(value.to_dense())


def from_first(group: Group, call: Callable[[], Found]) -> Found:
    """The result of a call in process 0, or its error, in every process."""
    found: tuple[Any, str, str] = (None, "", "")
    if group.rank == 0:
        try:
            found = (call(), "", "")
        except (InputError, TrainingError) as error:
            if group.size == 1:
                raise
            found = (None, type(error).__name__, str(error))
    value, kind, text = group.gather(found)[0]
    if kind:
        raise (InputError if kind == "InputError" else TrainingError)(text)
    return value


def only_first(group: Group, call: Callable[[], Found]) -> Found | None:
    """In process 0, the result of a call; in every process, its error."""
    kept = list[Found]()
    from_first(group, lambda: kept.append(call()))
    return kept[0] if kept else None


_LARGE = 2**20
"""Tensors of this number of bytes or more are mapped, and not sent."""


def read_once(group: Group, read: Callable[[], Table]) -> Table:
    """The table that process 0 reads, in one copy for all processes of a machine.

    Large tensors are written to files, which every process maps into memory. So the
    processes share the pages of a file, and a page is read when it is used. The files
    are deleted when all processes have mapped them. If a process cannot map them,
    because it is on another machine or out of space, it reads the table itself.
    """
    if group.size == 1:
        return read()
    with contextlib.ExitStack() as stack:

        def lay_down() -> tuple[Table, dict[str, Tensor], str]:
            table = read().decode()
            try:
                folder = stack.enter_context(tempfile.TemporaryDirectory())
            except OSError:  # no space: no process will find files there
                folder = os.devnull
            return _write_large(table, Path(folder))

        table, large, folder = from_first(group, lay_down)
        try:
            mapped: dict[str, Any] = {
                name: _map_file(Path(folder) / name, of) for name, of in large.items()
            }
            found = table._replace(**mapped)
        except (OSError, RuntimeError):
            found = None
        group.gather(None)  # the files must exist until here
    return read() if found is None else found


def _write_large(table: Table, folder: Path) -> tuple[Table, dict[str, Tensor], str]:
    """The table without its large tensors, their shapes, and the folder they are in."""
    large = {
        name: value
        for name, value in table._asdict().items()
        if isinstance(value, Tensor) and value.numel() * value.itemsize >= _LARGE
    }
    with contextlib.suppress(OSError):  # no space: no process will find them
        for name, value in large.items():
            flat = value.detach().cpu().contiguous().flatten()
            flat.view(torch.uint8).numpy().tofile(folder / name)
    alike = {
        name: torch.empty_like(value, device="meta") for name, value in large.items()
    }
    nothing: dict[str, Any] = dict.fromkeys(large)
    return table._replace(**nothing), alike, str(folder)


def _map_file(path: Path, alike: Tensor) -> Tensor:
    """The tensor in a file; changes to it stay in this process."""
    size = alike.numel()
    if path.stat().st_size != size * alike.itemsize:
        raise OSError(f"{path} is incomplete.")
    found = torch.from_file(str(path), shared=False, size=size, dtype=alike.dtype)
    return found.view(alike.shape)


def refuse_any(group: Group, message: str) -> None:
    """Stops training in every process if one of them has a reason to."""
    reasons = [said for said in group.gather(message) if said]
    if reasons:
        raise TrainingError(reasons[0])


def refuse_different_studies(group: Group, what: str) -> None:
    """Refuses processes that were started with different studies."""
    said = group.gather(what)
    for rank, other in enumerate(said):
        if other != said[0]:
            raise InputError(
                f"all processes must run the same study, but process 0 has {said[0]} "
                f"and process {rank} has {other}."
            )


class SharedFolder:
    """A run folder that process 0 reads and writes for all; see `Folder`."""

    def __init__(self, folder: Folder, division: Division) -> None:
        self._folder, self._division = folder, division
        self._group = division.group

    @property
    def path(self) -> Path:
        """The folder's path."""
        return self._folder.path

    def _first(self, call: Callable[[], Found]) -> Found:
        return from_first(self._group, call)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """The same method of `Folder`, which process 0 calls for all."""

        def call(*given: Any, **options: Any) -> Any:
            method = getattr(self._folder, name)
            return self._first(lambda: method(*given, **options))

        return call

    def save(self, cell: Cell) -> None:
        """Replaces the cell's file by one with the state of all clients."""
        state = whole(cell.state, self._group, self._division.clients)
        self._first(lambda: self._folder.save(replace(cell, state=state)))

    def save_models(
        self, label: str, seed: int, x: Tensor, *, of: str = "clients"
    ) -> None:
        """Keeps the models of `clients`, or of `newcomers`, which process 0 has."""
        rows = self._division.collect(x) if of == "clients" else x

        def keep() -> None:
            assert rows is not None  # in process 0
            self._folder.save_models(label, seed, rows, of=of)

        self._first(keep)

    def save_trial(
        self, label: str, seed: int, trial: int, t: int, states: Sequence[State]
    ) -> None:
        """Stores the state of a trial in each fold, to train on later."""
        clients = self._division.clients
        everybody = [whole(state, self._group, clients) for state in states]
        self._first(lambda: self._folder.save_trial(label, seed, trial, t, everybody))
