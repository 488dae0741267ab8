"""How raw columns become the features of a model: filled, scaled, one-hot.

A raw value is a number, or the code of a category; NaN if it is missing. A date is the
number of days since 1970-01-01. A number v becomes (v - mean) / scale, cut off at ten
deviations from the mean. A column of categories becomes one feature, 0 or 1, for each
category in training data. On request, there is one more feature, which says whether the
value was missing.

A client's `Preparation` holds the means, scales and categories for these steps. The
preparation is a part of the client's model: `module()` computes the features that the
model was trained on.

Quantities to predict are scaled, too, by the mean and deviation of all training data.
A model predicts scaled quantities, and its `Unit` turns them into the unit of the data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor, nn

SCALES = ("agreed", "client", "none")
"""Features are scaled by all clients' data, by each client's data, or not at all."""

LIMIT = 10.0
"""The largest deviation from the mean of a scaled number.

Without a limit, a value of a nearly constant column could be hundreds of deviations
away, and predictions would be as far off.
"""

_AT_ONCE = 2**16
"""The number of samples that are prepared in one pass."""


class Column(NamedTuple):
    """A raw column: of numbers, or of categories by their codes 0, 1, ..."""

    name: str
    categories: tuple[str, ...] | None = None  # None: numbers
    truth: bool = False  # whether 1 and 0 mean true and false
    date: str = ""  # how dates are written, if it has dates
    gaps: tuple[str, ...] = ()  # words that stand for a missing number


class Schema(NamedTuple):
    """The raw columns of a table, and how to prepare them."""

    columns: tuple[Column, ...]
    scale: str = "agreed"  # one of SCALES
    indicators: bool = False  # whether features say where values were missing
    targets: bool = False  # whether targets are quantities, to be scaled


class Unit(NamedTuple):
    """The mean and deviation of each entry of a target, in the unit of the data."""

    mean: tuple[float, ...]
    scale: tuple[float, ...]

    def restore(self, values: Tensor) -> Float64[Tensor, "*shape"]:
        """Scaled predictions or targets (B,) or (B, k) in the unit of the data."""
        mean, scale = torch.tensor(self, dtype=torch.float64, device=values.device)
        return values.double() * scale + mean

    def after(self, first: Unit) -> Unit:
        """The unit of targets that the unit `first` scaled and then this unit."""
        mean, scale = torch.tensor(first, dtype=torch.float64)
        mine, factor = torch.tensor(self, dtype=torch.float64)
        moved, stretched = mean + scale * mine, scale * factor
        return Unit(tuple(moved.tolist()), tuple(stretched.tolist()))

    def standardise(self, values: Tensor) -> Float64[Tensor, "*shape"]:
        """Targets in deviations from the mean, the inverse of `restore`."""
        mean, scale = torch.tensor(self, dtype=torch.float64, device=values.device)
        return (values.double() - mean) / scale


class Wiring(NamedTuple):
    """The raw column of each feature, and how it becomes the feature."""

    column: Int[Tensor, " f"]
    code: Int[Tensor, " f"]  # code of its category; -1: not of a category
    indicator: Bool[Tensor, " f"]  # whether it says that the value was missing


class Preparation(NamedTuple):
    """How the raw columns of one client become features."""

    columns: tuple[Column, ...]
    indicators: tuple[bool, ...]  # whether a feature says that a column was missing
    fill: tuple[float, ...]  # replaces a missing number or code; -1: no category
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    unit: Unit | None = None  # of the targets; None: as they are
    limit: float | None = None  # of a scaled number; None: there is none

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the features."""
        return feature_names(self.columns, self.indicators)

    def module(self) -> nn.Module:
        """A module that turns raw columns (B, C) into features (B, F)."""
        return PreparedFeatures(self)

    def plain(self) -> dict[str, Any]:
        """The preparation in lists, words and numbers, for JSON."""
        return _plain(self, list(self.fill), list(self.mean), list(self.scale))

    def codes(self, column: int, words: Sequence[str | None]) -> Float[Tensor, " b"]:
        """The codes of words in a column: -1 if unknown, NaN if missing."""
        known = self.columns[column].categories or ()
        place = {word: float(code) for code, word in enumerate(known)}
        values = [float("nan") if w is None else place.get(w, -1.0) for w in words]
        return torch.tensor(values, dtype=torch.float64)


def preparation_of(plain: Mapping[str, Any]) -> Preparation:
    """The preparation from what `Preparation.plain` returns."""
    columns, indicators = _columns_of(plain["columns"])
    fill, mean, scale = (
        tuple(map(float, plain[key])) for key in ("fill", "mean", "scale")
    )
    of_all = _unit_of(plain), _limit_of(plain)
    return Preparation(columns, indicators, fill, mean, scale, *of_all)


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
    """The preparations of all clients by identity; they share columns."""

    columns: tuple[Column, ...]
    indicators: tuple[bool, ...]
    fill: Float[Tensor, "n c"]
    mean: Float[Tensor, "n c"]
    scale: Float[Tensor, "n c"]
    unit: Unit | None = None  # of the targets, the same for all
    limit: float | None = None  # of a scaled number, the same for all

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the features."""
        return feature_names(self.columns, self.indicators)

    def of(self, client: int) -> Preparation:
        """The preparation of the client with this identity."""
        fill, mean, scale = (tuple(rows[client].tolist()) for rows in self.rows)
        given = self.columns, self.indicators
        return Preparation(*given, fill, mean, scale, self.unit, self.limit)

    @property
    def rows(self) -> tuple[Tensor, Tensor, Tensor]:
        """The values for gaps, means and scales, each with a row per client."""
        return self.fill, self.mean, self.scale

    def plain(self) -> dict[str, Any]:
        """The preparations in lists, words and numbers, for JSON."""
        return _plain(self, *(rows.tolist() for rows in self.rows))


def preparations_of(plain: Mapping[str, Any]) -> Preparations:
    """The preparations from what `Preparations.plain` returns."""
    columns, indicators = _columns_of(plain["columns"])
    fill, mean, scale = (
        torch.tensor(plain[key], dtype=torch.float64).reshape(-1, len(columns))
        for key in ("fill", "mean", "scale")
    )
    of_all = _unit_of(plain), _limit_of(plain)
    return Preparations(columns, indicators, fill, mean, scale, *of_all)


def _plain(
    how: Preparation | Preparations, fill: list[Any], mean: list[Any], scale: list[Any]
) -> dict[str, Any]:
    unit = how.unit
    return {
        "columns": _plain_columns(how.columns, how.indicators),
        "fill": fill,
        "mean": mean,
        "scale": scale,
        "unit": None
        if unit is None
        else {k: list(v) for k, v in unit._asdict().items()},
        "limit": how.limit,
    }


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
    """The names of the features of these columns.

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
    """The raw column of each feature, in the order of `feature_names`."""
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
    """The features of raw values; fill, mean and scale are for all rows or per row."""
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
    """The features of all samples, by the preparations of their owners."""
    wiring = wiring_of(how.columns, how.indicators)
    pieces = []
    for some, who in zip(raw.split(_AT_ONCE), owner.split(_AT_ONCE), strict=True):
        fill, mean, scale = (rows[who] for rows in how.rows)
        found = features_of(some.double(), wiring, fill, mean, scale, how.limit)
        pieces.append(found.float())
    return torch.cat(pieces)


class PreparedFeatures(nn.Module):
    """Turns raw columns (B, C) into features (B, F), as a preparation says."""

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
        """The features in the precision of the raw values."""
        wiring = Wiring(
            self.get_buffer("column"),
            self.get_buffer("code"),
            self.get_buffer("indicator"),
        )
        fill, mean, scale = map(self.get_buffer, ("fill", "mean", "scale"))
        how = fill, mean, scale, self.limit
        return features_of(raw.to(fill.dtype), wiring, *how).to(raw.dtype)
