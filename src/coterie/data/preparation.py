"""How raw columns become the features of a model: filled, scaled, one-hot.

A raw value is a number (of a date: the day, counted from 1970-01-01), or the code of a
category; NaN where it is missing. A number v becomes (v - mean) / scale, at most ten
deviations from the mean. A category becomes one feature for each that training data
have, and where asked one more feature says that a value was missing. What a client
needs for that is a `Preparation`, plain numbers and words, which is a part of its
model: `module()` computes the features that the model was trained on.

Quantities to predict are scaled, too, by the mean and deviation of all training data:
a model predicts in deviations, and its `Unit` turns predictions into what people use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor, nn

SCALES = ("agreed", "client", "none")
"""By what numbers features are scaled: of all clients, of each client, not at all."""

LIMIT = 10.0
"""Deviations from the mean beyond which a number counts as this far away.

A nearly constant column can be hundreds of deviations away, and so would predictions.
"""

_AT_ONCE = 2**16
"""Samples that are prepared in one pass."""


class Column(NamedTuple):
    """A raw column: of numbers, or of categories by their codes 0, 1, ..."""

    name: str
    categories: tuple[str, ...] | None = None  # None: numbers
    truth: bool = False  # numbers that are true and false, 1 and 0
    date: str = ""  # how dates are written, whose numbers are days
    gaps: tuple[str, ...] = ()  # words that stand for a missing number


class Schema(NamedTuple):
    """What the raw columns of a table are, and how they are to be prepared."""

    columns: tuple[Column, ...]
    scale: str = "agreed"  # one of SCALES
    indicators: bool = False  # whether features say where values were missing
    targets: bool = False  # whether targets are quantities, to be scaled


class Unit(NamedTuple):
    """What a prediction of 0 and a deviation of 1 are, of each entry of a target."""

    mean: tuple[float, ...]
    scale: tuple[float, ...]

    def restore(self, values: Tensor) -> Float64[Tensor, "*shape"]:
        """Predictions or targets (B,) or (B, k) in the unit of the data."""
        mean, scale = torch.tensor(self, dtype=torch.float64, device=values.device)
        return values.double() * scale + mean

    def after(self, first: Unit) -> Unit:
        """The unit of targets that were scaled by the first and then by this one."""
        mean, scale = torch.tensor(first, dtype=torch.float64)
        mine, factor = torch.tensor(self, dtype=torch.float64)
        moved, stretched = mean + scale * mine, scale * factor
        return Unit(tuple(moved.tolist()), tuple(stretched.tolist()))

    def standardise(self, values: Tensor) -> Float64[Tensor, "*shape"]:
        """The opposite."""
        mean, scale = torch.tensor(self, dtype=torch.float64, device=values.device)
        return (values.double() - mean) / scale


class Wiring(NamedTuple):
    """Which raw column each feature comes from, and how."""

    column: Int[Tensor, " f"]
    code: Int[Tensor, " f"]  # of the category that it stands for, -1 otherwise
    indicator: Bool[Tensor, " f"]  # whether it says that the value was missing


class Preparation(NamedTuple):
    """How the raw columns of one client become features."""

    columns: tuple[Column, ...]
    indicators: tuple[bool, ...]  # whether a feature says that a column was missing
    fill: tuple[float, ...]  # in place of a missing number or code; -1: no category
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    unit: Unit | None = None  # of the targets; None: as they are
    limit: float | None = None  # of a scaled number; None: there is none

    @property
    def names(self) -> tuple[str, ...]:
        """What the features are called."""
        return feature_names(self.columns, self.indicators)

    def module(self) -> nn.Module:
        """A module that makes features (B, F) of raw columns (B, C)."""
        return PreparedFeatures(self)

    def plain(self) -> dict[str, Any]:
        """The same in lists, words and numbers, as JSON holds them."""
        return {
            "columns": _plain_columns(self.columns, self.indicators),
            **{key: list(getattr(self, key)) for key in ("fill", "mean", "scale")},
            "unit": _plain_unit(self.unit),
            "limit": self.limit,
        }

    def codes(self, column: int, words: Sequence[str | None]) -> Float[Tensor, " b"]:
        """The codes of words in a column of categories: -1 unknown, NaN missing."""
        known = self.columns[column].categories or ()
        place = {word: float(code) for code, word in enumerate(known)}
        values = [float("nan") if w is None else place.get(w, -1.0) for w in words]
        return torch.tensor(values, dtype=torch.float64)


def preparation_of(plain: Mapping[str, Any]) -> Preparation:
    """The preparation that `Preparation.plain` gave."""
    columns, indicators = _columns_of(plain["columns"])
    fill, mean, scale = (
        tuple(map(float, plain[key])) for key in ("fill", "mean", "scale")
    )
    of_all = _unit_of(plain), _limit_of(plain)
    return Preparation(columns, indicators, fill, mean, scale, *of_all)


def _plain_unit(unit: Unit | None) -> dict[str, list[float]] | None:
    return None if unit is None else {k: list(v) for k, v in unit._asdict().items()}


def _unit_of(plain: Mapping[str, Any]) -> Unit | None:
    given = plain.get("unit")  # which older files do not have
    if given is None:
        return None
    mean, scale = (tuple(map(float, given[key])) for key in ("mean", "scale"))
    if len(mean) != len(scale) or not mean:
        raise ValueError("mean and scale of targets differ")
    return Unit(mean, scale)


def _limit_of(plain: Mapping[str, Any]) -> float | None:
    given = plain.get("limit")  # which older files do not have
    return None if given is None else float(given)


class Preparations(NamedTuple):
    """The preparations of all clients, by their identities; they share columns."""

    columns: tuple[Column, ...]
    indicators: tuple[bool, ...]
    fill: Float[Tensor, "n c"]
    mean: Float[Tensor, "n c"]
    scale: Float[Tensor, "n c"]
    unit: Unit | None = None  # of the targets, the same for all
    limit: float | None = None  # of a scaled number, the same for all

    @property
    def names(self) -> tuple[str, ...]:
        """What the features are called."""
        return feature_names(self.columns, self.indicators)

    def of(self, client: int) -> Preparation:
        """That of the client of this identity."""
        fill, mean, scale = (tuple(rows[client].tolist()) for rows in self.rows)
        given = self.columns, self.indicators
        return Preparation(*given, fill, mean, scale, self.unit, self.limit)

    @property
    def rows(self) -> tuple[Tensor, Tensor, Tensor]:
        """What fills gaps, means and scales, a row for each client."""
        return self.fill, self.mean, self.scale

    def plain(self) -> dict[str, Any]:
        """The same in lists, words and numbers, as JSON holds them."""
        return {
            "columns": _plain_columns(self.columns, self.indicators),
            "fill": self.fill.tolist(),
            "mean": self.mean.tolist(),
            "scale": self.scale.tolist(),
            "unit": _plain_unit(self.unit),
            "limit": self.limit,
        }


def preparations_of(plain: Mapping[str, Any]) -> Preparations:
    """The preparations that `Preparations.plain` gave."""
    columns, indicators = _columns_of(plain["columns"])
    fill, mean, scale = (
        torch.tensor(plain[key], dtype=torch.float64).reshape(-1, len(columns))
        for key in ("fill", "mean", "scale")
    )
    of_all = _unit_of(plain), _limit_of(plain)
    return Preparations(columns, indicators, fill, mean, scale, *of_all)


def _plain_columns(
    columns: Sequence[Column], indicators: Sequence[bool]
) -> list[dict[str, Any]]:
    return [
        {
            "name": column.name,
            "kind": _kind(column),
            "categories": list(column.categories or ()),
            "indicator": bool(indicator),
        }
        | ({"date": column.date} if column.date else {})
        | ({"gaps": list(column.gaps)} if column.gaps else {})
        for column, indicator in zip(columns, indicators, strict=True)
    ]


def _kind(column: Column) -> str:
    if column.truth:
        return "truth"
    if column.date:
        return "date"
    return "number" if column.categories is None else "category"


def _columns_of(
    plain: Sequence[Mapping[str, Any]],
) -> tuple[tuple[Column, ...], tuple[bool, ...]]:
    columns = tuple(
        Column(
            c["name"],
            tuple(c["categories"]) if c["kind"] == "category" else None,
            c["kind"] == "truth",
            str(c.get("date", "")),
            tuple(map(str, c.get("gaps", ()))),
        )
        for c in plain
    )
    return columns, tuple(bool(c["indicator"]) for c in plain)


def feature_names(
    columns: Sequence[Column], indicators: Sequence[bool]
) -> tuple[str, ...]:
    """What the features of these columns are called.

    >>> feature_names([Column("age"), Column("sex", ("f", "m"))], [True, False])
    ('age', 'age is missing', 'sex = f', 'sex = m')
    """
    names = []
    for column, indicator in zip(columns, indicators, strict=True):
        words = column.categories
        names += (
            [column.name] if words is None else [f"{column.name} = {w}" for w in words]
        )
        names += [f"{column.name} is missing"] if indicator else []
    return tuple(names)


def wiring_of(columns: Sequence[Column], indicators: Sequence[bool]) -> Wiring:
    """Where each feature comes from, in the order of `feature_names`."""
    wires: list[tuple[int, int, bool]] = []
    for place, (column, indicator) in enumerate(zip(columns, indicators, strict=True)):
        if column.categories is None:
            wires.append((place, -1, False))
        else:
            wires += [(place, code, False) for code in range(len(column.categories))]
        if indicator:
            wires.append((place, -1, True))
    column_of, code, missing = zip(*wires, strict=True) if wires else ((), (), ())
    return Wiring(
        torch.tensor(column_of, dtype=torch.int64),
        torch.tensor(code, dtype=torch.int64),
        torch.tensor(missing, dtype=torch.bool),
    )


def features_of(
    raw: Float[Tensor, "b c"],
    wiring: Wiring,
    fill: Float[Tensor, "*b c"],
    mean: Float[Tensor, "*b c"],
    scale: Float[Tensor, "*b c"],
    limit: float | None,
) -> Float[Tensor, "b f"]:
    """The features of raw values, prepared alike or each by numbers of its own."""
    missing = raw.isnan()
    value = torch.where(missing, fill, raw)
    number = ((value - mean) / scale)[:, wiring.column]
    if limit is not None:
        number = number.clamp(-limit, limit)
    category = (value[:, wiring.column] == wiring.code).to(raw.dtype)
    found = torch.where(wiring.code >= 0, category, number)
    absent = missing[:, wiring.column].to(raw.dtype)
    return torch.where(wiring.indicator, absent, found)


def prepare(
    raw: Float[Tensor, "m c"], owner: Int[Tensor, " m"], how: Preparations
) -> Float[Tensor, "m f"]:
    """The features of all samples, each by the preparation of its owner."""
    wiring = wiring_of(how.columns, how.indicators)
    pieces = []
    for some, who in zip(raw.split(_AT_ONCE), owner.split(_AT_ONCE), strict=True):
        fill, mean, scale = (rows[who] for rows in how.rows)
        found = features_of(some.double(), wiring, fill, mean, scale, how.limit)
        pieces.append(found.float())
    return torch.cat(pieces)


class PreparedFeatures(nn.Module):
    """Makes features (B, F) of raw columns (B, C), as a preparation says."""

    def __init__(self, how: Preparation) -> None:
        """Keeps the numbers of the preparation as buffers, in double precision."""
        super().__init__()
        for name, values in wiring_of(how.columns, how.indicators)._asdict().items():
            self.register_buffer(name, values)
        for name in ("fill", "mean", "scale"):
            values = torch.tensor(getattr(how, name), dtype=torch.float64)
            self.register_buffer(name, values)
        self.limit = how.limit

    def forward(self, raw: Tensor) -> Tensor:
        """The features, in the precision of the raw values."""
        wiring = Wiring(
            self.get_buffer("column"),
            self.get_buffer("code"),
            self.get_buffer("indicator"),
        )
        fill, mean, scale = map(self.get_buffer, ("fill", "mean", "scale"))
        how = fill, mean, scale, self.limit
        return features_of(raw.to(fill.dtype), wiring, *how).to(raw.dtype)
