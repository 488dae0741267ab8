"""Fits the preparation of features, on training data alone.

Clients must agree on the categories and, with scale "agreed", on means and deviations.
For this, the function `average` of an oracle averages three quantities of their
training parts: counts, sums, and squared deviations from the mean.

Each client computes everything else alone: the values that fill its gaps (medians, most
frequent categories), and with scale "client" its means and deviations.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .federation import PARTS, Federation, Part
from .preparation import LIMIT, Column, Preparations, Schema, Unit, prepare

Average = Callable[[Tensor, Tensor], Tensor]
"""`average(shares, rows)` of an oracle: the weighted mean of all clients' rows."""


class Agreement(NamedTuple):
    """What all clients share to prepare their features."""

    codes: tuple[tuple[int, ...] | None, ...]  # of known categories; None for numbers
    indicators: tuple[bool, ...]
    mean: Float[Tensor, " c"]
    scale: Float[Tensor, " c"]


class TrainingValues(NamedTuple):
    """The raw training values of some clients, with one row per sample."""

    raw: Float[Tensor, "m c"]
    owner: Int[Tensor, " m"]  # position of each sample's client
    clients: int

    def sums(self, values: Tensor) -> Tensor:
        """(N, ...) the sum of each client's rows."""
        zeros = values.new_zeros(self.clients, *values.shape[1:])
        return zeros.index_add(0, self.owner, values)

    def tally(self, column: int, count: int) -> Float[Tensor, "n k"]:
        """(N, K) how often each client has each of the K codes of a column."""
        values = self.raw[:, column]
        there = ~values.isnan()
        place = self.owner[there] * count + values[there].long()
        found = torch.bincount(place, minlength=self.clients * count)
        return found.reshape(self.clients, count).double()


def everyone_here(shares: Tensor, rows: Tensor) -> Tensor:
    """The `average` of clients that are all in this process."""
    return ((shares / shares.sum()) @ rows).expand_as(rows)


def prepare_here(federation: Federation) -> Federation:
    """The federation with prepared features, if it has raw columns."""
    if federation.schema is None:
        return federation
    return with_preparation(federation, federation, everyone_here, len(federation))


def with_preparation(
    everybody: Federation,
    trains: Federation,
    average: Average,
    clients: int,
    *,
    like: Preparations | None = None,
) -> Federation:
    """The federation with prepared features, as its training clients have agreed.

    Args:
        everybody: the federation, with raw columns and with newcomers.
        trains: the clients in this process that train.
        average: averages over all clients that train; see `Average`.
        clients: the number of all clients that train.
        like: preparations that fix the features; None takes them from training data.
    """
    schema = everybody.schema
    assert schema is not None  # only called with raw columns
    agreed = agree(trains, average, clients, like=like)
    if like is not None:  # targets are scaled already
        return with_agreement(everybody, agreed, like.unit, scaled=True)
    unit = target_unit(trains, average, clients) if schema.targets else None
    return with_agreement(everybody, agreed, unit)


def with_agreement(
    everybody: Federation,
    agreed: Agreement,
    unit: Unit | None,
    *,
    scaled: bool = False,
) -> Federation:
    """The federation with features prepared as all clients have agreed.

    Args:
        everybody: the federation, with raw columns and with newcomers.
        agreed: what all clients share.
        unit: of targets that are quantities.
        scaled: whether targets have this unit already.
    """
    schema, raw = everybody.schema, everybody.raw
    assert schema is not None and raw is not None  # only called with raw columns
    how = fit(everybody, agreed)
    owner = torch.zeros(len(raw), dtype=torch.int64)
    for name in PARTS:
        index, place = samples_of(everybody.part(name))
        owner[index] = everybody.clients[place]
    kept = _recode(raw, schema, agreed.codes)
    features, targets = prepare(kept, owner, how), everybody.targets
    if scaled:
        how = how._replace(unit=unit)
    elif unit is not None:
        targets, before = unit.standardise(targets).float(), everybody.preparations
        if before is not None and before.unit is not None:  # by earlier clients
            unit = unit.after(before.unit)
        how = how._replace(unit=unit)
    return replace(
        everybody,
        features=features,
        targets=targets,
        columns=how.names,
        preparations=how,
    )


def _total(average: Average, clients: int, rows: Tensor) -> Tensor:
    """The sum of all clients' rows, given the rows of the clients in this process."""
    if not rows.shape[1]:
        return rows.sum(0)
    return average(rows.new_ones(len(rows)), rows)[0] * clients


def target_unit(federation: Federation, average: Average, clients: int) -> Unit:
    """The mean and deviation of all training targets.

    Args:
        federation: the clients in this process.
        average: averages over all clients that train; see `Average`.
        clients: the number of all clients that train.
    """
    index, owner = samples_of(federation.train)
    values = federation.targets[index].double().reshape(len(index), -1)
    train = TrainingValues(values, owner, len(federation))
    total = functools.partial(_total, average, clients)
    ones = values.new_ones(len(values), 1)
    count, *sums = total(train.sums(torch.cat([ones, values], 1)))
    mean = torch.stack(sums) / count.clamp(min=1)
    # Squares of deviations: the difference of two large squares would lose digits.
    squares = total(train.sums((values - mean).square()))
    scale = _sound((squares / count.clamp(min=1)).sqrt(), mean)
    return Unit(tuple(mean.tolist()), tuple(scale.tolist()))


def agree(
    federation: Federation,
    average: Average,
    clients: int,
    *,
    like: Preparations | None = None,
) -> Agreement:
    """The numbers and categories that all training clients use to prepare features.

    Args:
        federation: the clients in this process.
        average: averages over all clients that train; see `Average`.
        clients: the number of all clients that train.
        like: preparations with the categories and indicators to use.
    """
    schema = _schema(federation)
    train = _training(federation)
    total = functools.partial(_total, average, clients)
    present = (~train.raw.isnan()).double()
    found = [train.tally(j, len(words)) for j, words in _words(schema)]
    if schema.indicators:
        found.append(train.sums(1 - present))
    if schema.scale == "agreed":
        found += [train.sums(present), train.sums(train.raw.nan_to_num())]
    zeros = train.raw.new_zeros(train.clients, 0)
    pieces = list(
        total(torch.cat([zeros, *found], 1)).split([f.shape[1] for f in found])
    )
    tallies = {j: pieces.pop(0).round() for j, _ in _words(schema)}
    missing = pieces.pop(0).round() if schema.indicators else None
    mean, scale = torch.zeros(2, len(schema.columns), dtype=torch.float64)
    if schema.scale == "agreed":
        count, values = pieces[0].round(), pieces[1]
        mean = _numbers_only(schema, values / count.clamp(min=1), 0.0)
        # Squares of deviations: the difference of two large squares would lose digits.
        squares = train.sums(((train.raw - mean).square()).nan_to_num())
        scale = (total(squares) / count.clamp(min=1)).sqrt()
    scale = _numbers_only(schema, _sound(scale, mean), 1.0)
    if like is not None:
        return Agreement(_codes_like(schema, like), like.indicators, mean, scale)
    codes = tuple(
        tuple(tallies[j].nonzero()[:, 0].tolist()) if j in tallies else None
        for j in range(len(schema.columns))
    )
    shown = (False,) * len(codes) if missing is None else tuple((missing > 0).tolist())
    return Agreement(codes, shown, mean, scale)


def fit(federation: Federation, agreed: Agreement) -> Preparations:
    """The preparation of every client, from its own training part and the agreement.

    If a client has no training value in a column, the agreed mean fills its gaps.
    """
    schema = _schema(federation)
    train = _training(federation)
    raw = _recode(train.raw, schema, agreed.codes)
    train = train._replace(raw=raw)
    fill = _gap_values(train, agreed)
    mean, scale = agreed.mean.expand_as(fill), agreed.scale.expand_as(fill)
    if schema.scale == "client":
        count = train.sums((~raw.isnan()).double()).clamp(min=1)
        mean = _numbers_only(schema, train.sums(raw.nan_to_num()) / count, 0.0)
        squares = (raw - mean[train.owner]).square().nan_to_num()
        scale = _sound((train.sums(squares) / count).sqrt(), mean)
        scale = _numbers_only(schema, scale, 1.0)
    rows = int(federation.clients.max()) + 1

    def by_identity(values: Tensor, usual: Tensor) -> Tensor:
        return usual.repeat(rows, 1).index_copy(0, federation.clients, values)

    columns = tuple(
        column
        if codes is None
        else Column(column.name, tuple((column.categories or ())[c] for c in codes))
        for column, codes in zip(schema.columns, agreed.codes, strict=True)
    )
    return Preparations(
        columns,
        agreed.indicators,
        by_identity(fill, agreed.mean),
        by_identity(mean, agreed.mean),
        by_identity(scale, agreed.scale),
        limit=None if schema.scale == "none" else LIMIT,
    )


def _gap_values(train: TrainingValues, agreed: Agreement) -> Float[Tensor, "n c"]:
    """(N, C) each client's training median, or most frequent category, by column."""
    fill = agreed.mean.repeat(train.clients, 1)
    order = train.owner.argsort(stable=True)
    sizes = torch.bincount(train.owner, minlength=train.clients).tolist()
    values = train.raw[order].numpy()
    for i, mine in enumerate(np.split(values, np.cumsum(sizes)[:-1])):
        there = ~np.isnan(mine).all(0) if len(mine) else np.zeros(mine.shape[1], bool)
        if there.any():
            fill[i, torch.from_numpy(there)] = torch.from_numpy(
                np.nanmedian(mine[:, there], axis=0)
            )
    for j, codes in enumerate(agreed.codes):
        if codes is not None:
            fill[:, j] = -1.0
            if codes:
                known = train._replace(raw=train.raw.where(train.raw >= 0, torch.nan))
                tally = known.tally(j, len(codes))
                most = tally.argmax(1).double()
                fill[:, j] = torch.where(tally.sum(1) > 0, most, -1.0)
    return fill


def samples_of(part: Part) -> tuple[Tensor, Tensor]:
    """The samples of a part, and the position of each sample's client."""
    who = torch.arange(len(part.size))
    index, mask = part.rows(who)
    return index[mask], who.repeat_interleave(part.size)


def _training(federation: Federation) -> TrainingValues:
    raw = federation.raw
    assert raw is not None
    index, owner = samples_of(federation.train)
    return TrainingValues(raw[index].double(), owner, len(federation))


def _schema(federation: Federation) -> Schema:
    assert federation.schema is not None
    return federation.schema


def _words(schema: Schema) -> list[tuple[int, tuple[str, ...]]]:
    """The position and the words of each column of categories."""
    return [
        (j, column.categories)
        for j, column in enumerate(schema.columns)
        if column.categories is not None
    ]


def _numbers_only(schema: Schema, values: Tensor, other: float) -> Tensor:
    """The values in columns of numbers; in columns of categories, `other` instead."""
    is_number = torch.tensor([column.categories is None for column in schema.columns])
    return torch.where(is_number, values, other)


def _sound(scale: Tensor, mean: Tensor) -> Tensor:
    """The deviations, but 1 where the deviation is 0 or only a rounding error."""
    return torch.where(scale > 1e-12 * mean.abs(), scale, 1.0)


def _codes_like(
    schema: Schema, like: Preparations
) -> tuple[tuple[int, ...] | None, ...]:
    """For each category of a preparation, its code in the raw columns."""
    return tuple(
        None
        if old.categories is None or new.categories is None
        else tuple(map(new.categories.index, old.categories))
        for old, new in zip(like.columns, schema.columns, strict=True)
    )


def _recode(
    raw: Float[Tensor, "m c"],
    schema: Schema,
    codes: tuple[tuple[int, ...] | None, ...],
) -> Float[Tensor, "m c"]:
    """The raw values; these categories get codes 0, 1, ..., and others get -1."""
    found = raw.clone()
    for j, words in _words(schema):
        kept = codes[j]
        assert kept is not None
        new = torch.full((len(words) + 1,), -1.0, dtype=raw.dtype)
        new[list(kept)] = torch.arange(len(kept), dtype=raw.dtype)
        new[-1] = torch.nan
        old = raw[:, j]
        found[:, j] = new[torch.where(old.isnan(), len(words), old).long()]
    return found
