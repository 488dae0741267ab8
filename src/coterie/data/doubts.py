"""Sentences about what seems wrong with the data, before training.

Columns are judged by training data alone. Checks of labels also read the labels of
validation and test data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..models import OBJECTIVES
from .federation import Federation
from .fitting import samples_of
from .looking.disguises import FEWEST, disguise_note, gives_away, repeats
from .looking.units import other_units, unit_note
from .preparation import Column

_AT_ONCE = 2**21
"""The number of values that are tested in one pass."""

_APART = 30.0
"""Training goes badly if sizes of features, or of the bias 1, differ by more."""


def doubts(federation: Federation) -> list[str]:
    """One sentence for each problem in the data of the clients that train."""
    index, owner = samples_of(federation.train)
    labels = federation.targets[index]
    columns = _columns(federation, index)
    found = [
        f"{line}; set merge_case = false if they differ." for line in federation.merged
    ]
    if columns.known:
        found += [
            *_other_units(federation, columns, owner),
            _unlike_sizes(federation, columns),
            _constant(columns),
            _telling(federation, columns, labels),
            *_nearly_telling(federation, columns, labels),
        ]
    if OBJECTIVES[federation.task].labelled:
        found += [_unlearnt(federation), _unlearnt_at_home(federation)]
    if federation.left_out:
        found.append(f"left out as too small: {', '.join(federation.left_out)}.")
    return [sentence for sentence in found if sentence]


class TrainingColumns(NamedTuple):
    """Columns, each with its values in all training data."""

    known: tuple[Column, ...]
    values: Float[Tensor, "m c"]
    rows: Int[Tensor, " k"]  # of training data

    def __iter__(self) -> Iterator[tuple[Column, Float[Tensor, " k"]]]:  # type: ignore[override]
        # A few columns at a time, because each piece is a copy in memory.
        at_once = max(1, _AT_ONCE // max(1, len(self.rows)))
        for first in range(0, len(self.known), at_once):
            some = slice(first, first + at_once)
            values = self.values[:, some][self.rows].double().T
            yield from zip(self.known[some], values, strict=True)


def _columns(federation: Federation, rows: Int[Tensor, " k"]) -> TrainingColumns:
    """The columns as they were read."""
    if federation.schema is not None and federation.raw is not None:
        return TrainingColumns(federation.schema.columns, federation.raw, rows)
    known = tuple(map(Column, federation.columns))
    return TrainingColumns(known, federation.features, rows)


def _unlike_sizes(federation: Federation, columns: TrainingColumns) -> str:
    """A sentence about features with too different sizes; empty if there are none."""
    schema = federation.schema
    if schema is not None and schema.scale != "none":
        return ""
    sizes: dict[str, float] = {}
    for column, some in columns:
        there = some[~some.isnan()]
        truth = ((there == 0) | (there == 1)).all()
        if column.categories is None and len(there) and not truth:
            sizes[column.name] = float(there.square().mean().sqrt())
    large = max(sizes, key=lambda name: sizes[name], default="")
    small = min(sizes, key=lambda name: sizes[name], default="")
    if not sizes or max(1.0, sizes[large]) <= _APART * min(1.0, sizes[small]):
        return ""
    return (
        f"features of `{federation.name}` will train badly as they are: {large!r} is "
        f"about {sizes[large]:.3g} and {small!r} about {sizes[small]:.3g}, where 1 is "
        "best; set data.scale to 'agreed' or 'client'."
    )


def _other_units(
    federation: Federation,
    columns: TrainingColumns,
    owner: Int[Tensor, " m"],
) -> list[str]:
    """At most five sentences about clients that seem to use another unit."""
    found = []
    for column, some in columns:
        if column.categories is None and not column.date:
            odd = other_units(some.numpy(), owner.numpy())
            for place, times in odd.items():
                who = federation.name_of(place)
                found.append(f"{unit_note(column.name, times, who)}.")
    return found[:5]


def _constant(columns: TrainingColumns) -> str:
    """A sentence about columns that are constant; empty if there are none."""
    names = []
    for column, some in columns:
        there = some[~some.isnan()]
        if not len(there) or bool((there == there[0]).all()):
            names.append(column.name)
    if not names:
        return ""
    return f"{_columns_are(names)} constant in all training data and can be left out."


def _telling(
    federation: Federation,
    columns: TrainingColumns,
    labels: Tensor,
) -> str:
    """A sentence about columns that determine the label; empty if there are none."""
    if len(labels) < FEWEST or labels.ndim > 1 or len(labels.unique()) < 2:
        return ""
    tells = gives_away if OBJECTIVES[federation.task].labelled else repeats
    known = labels.numpy()
    names = [column.name for column, some in columns if tells(some.numpy(), known)]
    if not names:
        return ""
    return (
        f"{_columns_are(names)} enough to know the label of every training sample: if "
        "a column is known only after the label, leave it out by data.drop."
    )


def _nearly_telling(
    federation: Federation,
    columns: TrainingColumns,
    labels: Tensor,
) -> list[str]:
    """At most five sentences about columns that nearly determine the label."""
    if federation.schema is None or len(labels) < FEWEST or labels.ndim > 1:
        return []
    labelled = OBJECTIVES[federation.task].labelled
    tells = gives_away if labelled else repeats
    known = labels.numpy()
    notes = [
        disguise_note(column.name, some.numpy(), known, labelled=labelled)
        for column, some in columns
        if not tells(some.numpy(), known)
    ]
    advice = "leave it out by data.drop if it is known only after the label."
    return [f"{note}: {advice}" for note in notes if note][:5]


def _unlearnt(federation: Federation) -> str:
    """A sentence about classes that are in no training part."""
    train, _ = samples_of(federation.train)
    known = federation.targets[train].unique()
    parts = (federation.validation, federation.test)
    index = torch.cat([samples_of(part)[0] for part in parts])
    other = federation.targets[index].unique()
    new = other[~torch.isin(other, known)].tolist()
    if not new:
        return ""
    words = [federation.classes[c] if federation.classes else str(c) for c in new]
    return (
        f"no client trains on class {_few(words)}, which is in validation or test "
        "data: it cannot be learnt."
    )


def _unlearnt_at_home(federation: Federation) -> str:
    """A sentence about clients that are tested on classes they do not train on."""
    if not federation.names:
        return ""
    classes = int(federation.targets.max()) + 1
    trained, tested = (
        torch.zeros(len(federation), classes, dtype=torch.bool) for _ in range(2)
    )
    for seen, part in ((trained, federation.train), (tested, federation.test)):
        index, owner = samples_of(part)
        seen[owner, federation.targets[index]] = True
    who = (tested & ~trained).any(1).nonzero()[:, 0].tolist()
    if not who:
        return ""
    names = _few(map(federation.name_of, who))
    return (
        f"{len(who)} of {len(federation)} clients ({names}) are tested on classes that "
        "are not in their training data: training alone cannot learn these."
    )


def one_class_clients(federation: Federation) -> list[str]:
    """The names of clients whose training data have one class only."""
    if not OBJECTIVES[federation.task].labelled:
        return []
    index, owner = samples_of(federation.train)
    classes = int(federation.targets.max()) + 1
    pairs = torch.unique(owner * classes + federation.targets[index]) // classes
    few = torch.bincount(pairs, minlength=len(federation)) == 1
    return [federation.name_of(place) for place in few.nonzero()[:, 0].tolist()]


def _columns_are(names: list[str]) -> str:
    """The start of a sentence about these columns."""
    if len(names) == 1:
        return f"column {names[0]!r} is"
    return f"columns {_few(map(repr, names))} are each"


def _few(names: Iterable[str], most: int = 5) -> str:
    listed = list(names)
    more = [f"{len(listed) - most} more"] if len(listed) > most else []
    return ", ".join([*listed[:most], *more])
