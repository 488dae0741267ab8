"""The data of a federation: one flat tensor, and where each client has to look.

Nothing is padded or copied per client. `Table` is a data set before it is divided among
clients; `Federation` is one after, with a training, validation and test part for every
client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..checks import InputError, brief, integer, several
from .preparation import Preparations, Schema

PartName = Literal["train", "validation", "test"]
PARTS: tuple[PartName, ...] = ("train", "validation", "test")

_SHOWN = 30
"""So many clients are shown in a notebook."""


class _TableFields(NamedTuple):
    name: str
    features: Tensor  # (M, ...)
    targets: Tensor  # (M,) or (M, ...)
    task: str  # a name in coterie.models.OBJECTIVES
    outputs: int  # how many outputs a model needs
    group: Tensor | None = None  # (M,) natural client of each sample, 0 .. N-1
    is_test: Tensor | None = None  # (M,) bool, where the source fixes the test part
    clusters: Tensor | None = None  # (N,) true cluster of each natural client
    optima: Tensor | None = None  # (N, D) known best model of each natural client
    note: str = ""  # what a reader of results must know about the source
    files: tuple[Path, ...] = ()  # that it was read from
    names: tuple[str, ...] = ()  # of the natural clients
    classes: tuple[str, ...] = ()  # names of the labels 0, 1, ...
    columns: tuple[str, ...] = ()  # names of the features
    schema: Schema | None = None  # where features are raw columns, to be prepared
    merged: tuple[str, ...] = ()  # which words are read as others, in sentences


class Table(_TableFields):
    """A data set that belongs to nobody yet, or to natural clients (`group`).

    What does not fit together is refused when a table is made.

    Raises:
        InputError: for anything else than tensors with a row for each sample.
    """

    __slots__ = ()

    def __new__(cls, *args: Any, **fields: Any) -> Table:
        """Refuses what no study could use."""
        table = super().__new__(cls, *args, **fields)
        _refuse_table(table)
        return table

    def __repr__(self) -> str:
        shape = tuple(self.features.shape[1:])
        size = several(len(self.targets), "sample")
        return f"<Table {self.name}: {size} of {shape}, {self.task}>"


def _refuse_table(table: Table) -> None:
    """Raises InputError, in one sentence, where a table could not be used later."""
    samples = ("features", "targets", "group", "is_test")
    for name in (*samples, "clusters", "optima"):
        value = getattr(table, name)
        optional = name not in ("features", "targets")
        if not isinstance(value, Tensor) and not (optional and value is None):
            rule = "a tensor or None" if optional else "a tensor"
            raise InputError(f"`{name}` of a table must be {rule}, got {brief(value)}.")
    if table.features.dim() < 1 or len(table.features) == 0:
        shape = tuple(table.features.shape)
        raise InputError(
            f"`features` of a table must have a row for each sample, got shape {shape}."
        )
    for name in samples[1:]:
        value = getattr(table, name)
        if value is None:
            continue
        if value.dim() < 1 or len(value) != len(table.features):
            raise InputError(
                f"`{name}` of a table must have {len(table.features)} rows, as its "
                f"`features`, got shape {tuple(value.shape)}."
            )
    if table.group is not None and (
        table.group.is_floating_point() or int(table.group.min()) < 0
    ):
        raise InputError(
            "`group` of a table must have whole numbers, 0 or more, which say whose a "
            f"sample is, got {table.group.dtype} from {table.group.min()}."
        )
    if not isinstance(table.task, str):
        raise InputError(f"`task` of a table must be text, got {brief(table.task)}.")
    integer("outputs", table.outputs, at_least=1)


class Part(NamedTuple):
    """Where the samples of each client lie: index[start[i] : start[i] + size[i]]."""

    # The field hides tuple.index, which nobody needs here.
    index: Int[Tensor, " m"]  # type: ignore[assignment]
    start: Int[Tensor, " n"]
    size: Int[Tensor, " n"]

    def rows(self, clients: Int[Tensor, " c"]) -> tuple[Tensor, Tensor]:
        """Positions (c, L) of all samples of these clients and a mask (c, L) of them.

        L is the largest size among them; masked places repeat some sample.
        """
        size, start = self.size[clients, None], self.start[clients, None]
        longest = int(size.max()) if len(size) else 0
        place = torch.arange(longest, device=size.device)
        mask = place < size
        places = (start + place * mask).clamp(max=len(self.index) - 1)
        return self.index[places], mask


def part(index: Int[Tensor, " m"], owner: Int[Tensor, " m"], clients: int) -> Part:
    """The part made of these samples, where sample index[j] belongs to owner[j]."""
    order = torch.argsort(owner, stable=True)
    size = torch.bincount(owner, minlength=clients)
    return Part(index[order], size.cumsum(0) - size, size)


@dataclass(frozen=True)
class Federation:
    """N clients, each with a training, a validation and a test part of one table."""

    name: str
    features: Tensor  # (M, ...)
    targets: Tensor  # (M,) or (M, ...)
    task: str
    outputs: int
    train: Part
    validation: Part
    test: Part
    clients: Int[Tensor, " n"]  # identities, which name the random streams
    clusters: Int[Tensor, " n"] | None = None
    optima: Float[Tensor, "n d"] | None = None
    note: str = ""
    everybody: int | None = None  # how many clients the data have, where these are some
    names: tuple[str, ...] = ()  # of the clients, by identity; () where they have none
    classes: tuple[str, ...] = ()  # names of the labels 0, 1, ...
    columns: tuple[str, ...] = ()  # names of the features
    schema: Schema | None = None  # of raw columns
    raw: Float[Tensor, "m c"] | None = None  # what features were prepared from
    preparations: Preparations | None = None  # by identity
    left_out: tuple[str, ...] = ()  # clients that were too small, and why
    merged: tuple[str, ...] = ()  # which words are read as others, in sentences

    def __len__(self) -> int:
        return len(self.clients)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{int(self.part(p).size.sum())} {p}" for p in PARTS)
        return (
            f"<Federation {self.name}: {several(len(self), 'client')}, {self.task}; "
            f"samples: {sizes}>"
        )

    def _repr_html_(self) -> str:
        """The samples of each client, for a notebook."""
        import pandas as pd

        names = [self.name_of(i) for i in range(len(self))]
        columns: dict[str, list[object]] = {"client": list(names)}
        columns |= {name: self.part(name).size.tolist() for name in PARTS}
        if self.clusters is not None:
            columns["cluster"] = self.clusters.tolist()
        table = pd.DataFrame(columns).to_html(index=False, max_rows=_SHOWN)
        return f"<p>{escape(repr(self))}</p>{table}"

    def name_of(self, position: int) -> str:
        """What a client is called in a sentence: "Chur", or "client 3"."""
        return client_name(self.names, int(self.clients[position]))

    def part(self, name: PartName) -> Part:
        """The part of that name."""
        return {"train": self.train, "validation": self.validation, "test": self.test}[
            name
        ]

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Federation:
        """The same federation on a device, real values in `dtype`, whole ones kept."""

        def real(tensor: Tensor) -> Tensor:
            return tensor.to(device, dtype if tensor.is_floating_point() else None)

        data = {"features": real(self.features), "targets": real(self.targets)}
        # What features were prepared from is not needed where work is done.
        return self._replace_parts(
            lambda part: Part(*map(real, part)), real, raw=None, **data
        )

    def select(self, positions: Int[Tensor, " m"]) -> Federation:
        """The federation whose client j is client positions[j] of this one.

        Clients keep their identities, which name their random streams, and the samples
        stay where they are. A client that is named twice becomes two clients with the
        same samples and the same draws.
        """

        def of(values: Tensor) -> Tensor:
            return values[positions.to(values.device)]

        def select_part(part: Part) -> Part:
            return Part(part.index, of(part.start), of(part.size))

        everybody = len(self) if self.everybody is None else self.everybody
        return self._replace_parts(select_part, of, everybody=everybody)

    def compact(self) -> Federation:
        """The same with the samples of these clients and of nobody else."""
        who = torch.arange(len(self), device=self.train.size.device)
        mine = [index[mask] for index, mask in (self.part(n).rows(who) for n in PARTS)]
        samples = torch.cat(mine).unique()
        place = torch.zeros(len(self.features), dtype=torch.long, device=samples.device)
        place[samples] = torch.arange(len(samples), device=samples.device)

        def own(part: Part) -> Part:
            index, mask = part.rows(who)
            size = part.size
            return Part(place[index[mask]], size.cumsum(0) - size, size)

        alone = self._replace_parts(own, lambda rows: rows)
        return replace(
            alone,
            features=self.features[samples],
            targets=self.targets[samples],
            raw=None if self.raw is None else self.raw[samples],
        )

    def _replace_parts(
        self,
        part: Callable[[Part], Part],
        rows: Callable[[Tensor], Tensor],
        **more: Any,
    ) -> Federation:
        """The federation with other parts, and rows of what is known about clients."""
        return replace(
            self,
            train=part(self.train),
            validation=part(self.validation),
            test=part(self.test),
            clients=rows(self.clients),
            clusters=None if self.clusters is None else rows(self.clusters),
            optima=None if self.optima is None else rows(self.optima),
            **more,
        )

    def only(self, client: int) -> Federation:
        """One client with its own samples and nothing else."""
        return self.select(torch.tensor([client])).compact()


def client_name(names: Sequence[str], client: int) -> str:
    """What the client of this identity is called in a sentence.

    >>> client_name(["Bern", "Chur"], 1), client_name(["007"], 0), client_name([], 1)
    ('Chur', 'client 007', 'client 1')
    """
    name = full_name(names, client)
    return f"client {name}" if name.isdigit() else name


def full_name(names: Sequence[str], client: int) -> str:
    """Its name as the data have it, or "client 3"."""
    return names[client] if names else f"client {client}"


def short_name(names: Sequence[str], client: int) -> str:
    """The same where it is said that it is a client: its name, or "3"."""
    return names[client] if names else str(client)


def places_of(federation: Federation) -> dict[str, int]:
    """The clients' places by name, and also by what they are called in sentences."""
    clients, names = federation.clients.tolist(), federation.names
    found: dict[str, int] = {}
    for name in (short_name, client_name):  # a name comes before what others are called
        for place, client in enumerate(clients):
            found.setdefault(name(names, client), place)
    return found


def has_validation(federation: Federation) -> bool:
    """Whether clients have validation data: all have, or nobody has."""
    return bool((federation.validation.size > 0).any())


def federate(
    table: Table,
    owner: Int[Tensor, " m"],
    role: Int[Tensor, " m"],
    *,
    clusters: Int[Tensor, " n"] | None = None,
    optima: Float[Tensor, "n d"] | None = None,
    names: Sequence[str] = (),
    order: Int[Tensor, " m"] | None = None,
) -> Federation:
    """Divides a table: sample j goes to client owner[j] and part PARTS[role[j]].

    Every client needs all three parts, or all have no validation data.

    Args:
        table: the data.
        owner: client of each sample, -1 for samples that nobody gets.
        role: 0 train, 1 validation, 2 test.
        clusters: true cluster of each client, where known.
        optima: best model of each client, where known.
        names: of the clients, where they have some.
        order: all samples, as the parts are to list them; None: as they come.
    """
    clients = int(owner.max()) + 1
    order = torch.arange(len(owner)) if order is None else order
    parts: dict[PartName, Part] = {}
    for number, name in enumerate(PARTS):
        samples = order[((owner >= 0) & (role == number))[order]]
        parts[name] = part(samples, owner[samples], clients)
        empty = (parts[name].size == 0).nonzero()[:, 0]
        if len(empty) and (name != "validation" or len(empty) < clients):
            raise InputError(
                f"every client needs {name} data, but "
                f"{client_name(names, int(empty[0]))} of `{table.name}` has none: use "
                "fewer clients or a larger share."
            )
    return Federation(
        table.name,
        table.features.contiguous(),  # or vmap refuses layers such as GroupNorm
        table.targets,
        table.task,
        table.outputs,
        clients=torch.arange(clients),
        clusters=clusters,
        optima=optima,
        note=table.note,
        merged=table.merged,
        names=tuple(names),
        classes=table.classes,
        columns=table.columns,
        schema=table.schema,
        raw=None if table.schema is None else table.features,
        train=parts["train"],
        validation=parts["validation"],
        test=parts["test"],
    )
