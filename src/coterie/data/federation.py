"""The data of a federation: one flat tensor, and the places of each client's samples.

Nothing is padded or copied per client. `Table` is a data set before it is divided among
clients. `Federation` is a divided data set, where every client has a training, a
validation and a test part.
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
from ..models.objectives import classes_of
from .preparation import Preparations, Schema
from .rows.images import Images

PartName = Literal["train", "validation", "test"]
PARTS: tuple[PartName, ...] = ("train", "validation", "test")

_SHOWN = 30
"""The number of clients that a notebook shows."""


class _TableFields(NamedTuple):
    name: str
    features: Tensor | Images  # (M, ...)
    targets: Tensor  # (M,) or (M, ...)
    task: str  # a name in coterie.models.OBJECTIVES
    outputs: int  # how many outputs a model needs
    group: Tensor | None = None  # (M,) natural client of each sample, 0 .. N-1
    is_test: Tensor | None = None  # (M,) bool, where the source fixes the test part
    clusters: Tensor | None = None  # (N,) true cluster of each natural client
    optima: Tensor | None = None  # (N, D) known best model of each natural client
    note: str = ""  # what a reader of results must know about the source
    files: tuple[Path, ...] = ()  # from which it was read
    names: tuple[str, ...] = ()  # of the natural clients
    classes: tuple[str, ...] = ()  # names of the labels 0, 1, ...
    columns: tuple[str, ...] = ()  # names of the features
    schema: Schema | None = None  # if features are raw columns, which are not prepared
    merged: tuple[str, ...] = ()  # sentences about words that are read as others


class Table(_TableFields):
    """A data set before it is divided; `group` names natural clients.

    Raises:
        InputError: unless all tensors have a row for each sample.
    """

    __slots__ = ()

    def __new__(cls, *args: Any, **fields: Any) -> Table:
        """Makes a table and checks it."""
        table = super().__new__(cls, *args, **fields)
        _refuse_table(table)
        return table

    @property
    def rows(self) -> Tensor | Images:
        """The features as they are kept: images may not be decoded yet."""
        return self[1]  # as the property below hides the field

    @property
    def features(self) -> Tensor:
        """(M, ...) the features of all samples."""
        stored = self.rows
        return stored.all() if isinstance(stored, Images) else stored

    def decode(self) -> Table:
        """The table with its features as a tensor."""
        return self._replace(features=self.features)

    def __repr__(self) -> str:
        shape = tuple(self.rows.shape[1:])
        size = several(len(self.targets), "sample")
        return f"<Table {self.name}: {size} of {shape}, {self.task}>"


def _refuse_table(table: Table) -> None:
    """Refuses a table that cannot be used."""
    samples = ("features", "targets", "group", "is_test")
    for name in (*samples, "clusters", "optima"):
        value = table.rows if name == "features" else getattr(table, name)
        optional = name not in ("features", "targets")
        if isinstance(value, Images) and name == "features":
            continue
        if not isinstance(value, Tensor) and not (optional and value is None):
            rule = "a tensor or None" if optional else "a tensor"
            raise InputError(f"`{name}` of a table must be {rule}, got {brief(value)}.")
    count = len(table.rows) if table.rows.dim() else 0
    if count == 0:
        shape = tuple(table.rows.shape)
        raise InputError(
            f"`features` of a table must have a row for each sample, got shape {shape}."
        )
    for name in samples[1:]:
        value = getattr(table, name)
        if value is None:
            continue
        if value.dim() < 1 or len(value) != count:
            raise InputError(
                f"`{name}` of a table must have {count} rows, as its "
                f"`features`, got shape {tuple(value.shape)}."
            )
    if table.group is not None and (
        table.group.is_floating_point() or int(table.group.min()) < 0
    ):
        raise InputError(
            "`group` of a table must hold the client of each sample as a whole number "
            f"of at least 0, got {table.group.dtype} from {table.group.min()}."
        )
    if not isinstance(table.task, str):
        raise InputError(f"`task` of a table must be text, got {brief(table.task)}.")
    integer("outputs", table.outputs, at_least=1)
    _refuse_labels(table)


def _refuse_labels(table: Table) -> None:
    """Refuses a label that is not one of the classes."""
    classes, labels = classes_of(table.task, table.outputs), table.targets
    if not classes or labels.dim() != 1 or labels.is_complex():
        return
    for sample in ((labels < 0) | (labels >= classes)).nonzero()[:1, 0].tolist():
        raise InputError(
            f"`targets` of a table for {table.task} must be classes from 0 to "
            f"{classes - 1}, but sample {sample} has {labels[sample]:g}."
        )


class Part(NamedTuple):
    """The samples of each client i: index[start[i] : start[i] + size[i]]."""

    # The field hides tuple.index, which nobody needs here.
    index: Int[Tensor, " m"]  # type: ignore[assignment]
    start: Int[Tensor, " n"]
    size: Int[Tensor, " n"]

    def rows(self, clients: Int[Tensor, " c"]) -> tuple[Tensor, Tensor]:
        """Positions (c, L) of all samples of c clients, and a mask of the real samples.

        L is the largest number of samples. Shorter rows are filled with a repeated
        sample, where the mask is False.
        """
        size, start = self.size[clients, None], self.start[clients, None]
        longest = int(size.max()) if len(size) else 0
        place = torch.arange(longest, device=size.device)
        mask = place < size
        places = (start + place * mask).clamp(max=len(self.index) - 1)
        return self.index[places], mask


def part(index: Int[Tensor, " m"], owner: Int[Tensor, " m"], clients: int) -> Part:
    """The part with these samples, where sample index[j] belongs to owner[j]."""
    order = torch.argsort(owner, stable=True)
    size = torch.bincount(owner, minlength=clients)
    return Part(index[order], size.cumsum(0) - size, size)


@dataclass(frozen=True)
class Federation:
    """N clients, each with a training, a validation and a test part of a table."""

    name: str
    features: Tensor  # (M, ...)
    targets: Tensor  # (M,) or (M, ...)
    task: str
    outputs: int
    train: Part
    validation: Part
    test: Part
    clients: Int[Tensor, " n"]  # identities, which name random streams
    clusters: Int[Tensor, " n"] | None = None
    optima: Float[Tensor, "n d"] | None = None
    note: str = ""
    everybody: int | None = None  # number of clients in the data, if some are left out
    names: tuple[str, ...] = ()  # of the clients, by identity; () where they have none
    classes: tuple[str, ...] = ()  # names of the labels 0, 1, ...
    columns: tuple[str, ...] = ()  # names of the features
    schema: Schema | None = None  # of raw columns
    raw: Float[Tensor, "m c"] | None = None  # raw values of the features
    preparations: Preparations | None = None  # by identity
    left_out: tuple[str, ...] = ()  # clients that were too small, and why
    merged: tuple[str, ...] = ()  # sentences about words that are read as others

    def __len__(self) -> int:
        return len(self.clients)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{int(self.part(p).size.sum())} {p}" for p in PARTS)
        return (
            f"<Federation {self.name}: {several(len(self), 'client')}, {self.task}; "
            f"samples: {sizes}>"
        )

    def _repr_html_(self) -> str:
        """HTML with the numbers of samples of each client, for a notebook."""
        import pandas as pd

        names = [self.name_of(i) for i in range(len(self))]
        columns: dict[str, list[object]] = {"client": list(names)}
        columns |= {name: self.part(name).size.tolist() for name in PARTS}
        if self.clusters is not None:
            columns["cluster"] = self.clusters.tolist()
        table = pd.DataFrame(columns).to_html(index=False, max_rows=_SHOWN)
        return f"<p>{escape(repr(self))}</p>{table}"

    def name_of(self, position: int) -> str:
        """The name of a client for a sentence: "Chur", or "client 3"."""
        return client_name(self.names, int(self.clients[position]))

    def part(self, name: PartName) -> Part:
        """The part of that name."""
        return {"train": self.train, "validation": self.validation, "test": self.test}[
            name
        ]

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Federation:
        """The federation on a device, with real values in `dtype`."""

        def real(tensor: Tensor) -> Tensor:
            return tensor.to(device, dtype if tensor.is_floating_point() else None)

        data = {"features": real(self.features), "targets": real(self.targets)}
        # Raw values are not needed where clients train.
        return self._replace_parts(
            lambda part: Part(*map(real, part)), real, raw=None, **data
        )

    def select(self, positions: Int[Tensor, " m"]) -> Federation:
        """A federation whose client j is the client positions[j] of this federation.

        Clients keep their identities, which name their random streams. Samples stay
        where they are. A client whose position occurs twice becomes two clients, with
        the same samples and the same draws.
        """

        def of(values: Tensor) -> Tensor:
            return values[positions.to(values.device)]

        def select_part(part: Part) -> Part:
            return Part(part.index, of(part.start), of(part.size))

        everybody = len(self) if self.everybody is None else self.everybody
        return self._replace_parts(select_part, of, everybody=everybody)

    def compact(self) -> Federation:
        """The federation with the samples of its clients only."""
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
        """The federation with functions applied to its parts and to rows of clients."""
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
        """The federation of one client, with its own samples alone."""
        return self.select(torch.tensor([client])).compact()


def client_name(names: Sequence[str], client: int) -> str:
    """The name of the client with this identity, as sentences show it.

    >>> client_name(["Bern", "Chur"], 1), client_name(["007"], 0), client_name([], 1)
    ('Chur', 'client 007', 'client 1')
    """
    name = full_name(names, client)
    return f"client {name}" if name.isdigit() else name


def full_name(names: Sequence[str], client: int) -> str:
    """The name of a client in the data, or "client 3"."""
    return names[client] if names else f"client {client}"


def short_name(names: Sequence[str], client: int) -> str:
    """The name of a client in the data, or "3"."""
    return names[client] if names else str(client)


def places_of(federation: Federation) -> dict[str, int]:
    """The position of each client, by `short_name` and by `client_name`."""
    clients, names = federation.clients.tolist(), federation.names
    found: dict[str, int] = {}
    for name in (short_name, client_name):  # names in the data come first
        for place, client in enumerate(clients):
            found.setdefault(name(names, client), place)
    return found


def has_validation(federation: Federation) -> bool:
    """Whether clients have validation data: all have some, or none has."""
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
    """The federation in which client owner[j] has sample j, in part PARTS[role[j]].

    Every client needs all three parts. Validation may be empty, but only for all
    clients together.

    Args:
        table: the data.
        owner: client of each sample, -1 for samples of nobody.
        role: 0 train, 1 validation, 2 test.
        clusters: true cluster of each client, where known.
        optima: best model of each client, where known.
        names: the names of the clients, if they have names.
        order: the order of samples in the parts; None keeps the table's order.
    """
    clients = int(owner.max()) + 1
    order = torch.arange(len(owner)) if order is None else order
    table, owner, role, order = _without_unused(table, owner, role, order)
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


def _without_unused(
    table: Table, owner: Tensor, role: Tensor, order: Tensor
) -> tuple[Table, Tensor, Tensor, Tensor]:
    """Leaves out images that no client has, if most images are such.

    Images that are left out are not decoded.
    """
    stored, used = table.rows, (owner >= 0).nonzero()[:, 0]
    if not isinstance(stored, Images) or not stored.are_few(len(used)):
        return table, owner, role, order
    place = torch.full_like(owner, -1)
    place[used] = torch.arange(len(used))
    kept = place[order]
    few = table._replace(
        features=stored.some(used),
        targets=table.targets[used],
        group=None if table.group is None else table.group[used],
        is_test=None if table.is_test is None else table.is_test[used],
    )
    return few, owner[used], role[used], kept[kept >= 0]
