"""Claims about messages between processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from coterie.data.federation import Table
from coterie.data.preparation import Column, Schema
from coterie.deploy.messages import as_bytes, decode, encode, from_bytes, size_of
from coterie.records.cells import Cell

VALUES = [
    None,
    True,
    3,
    -0.1,
    float("inf"),
    "Zürich\n",
    [1, "a", [None]],
    (1, (2.5, False)),
    {"a": 1, 2: (3,), ("x", 1): []},
    Path("runs") / "one",
    Cell("fedavg", 3, t=2, delays={1: 4}, spans=[(0, 0.5, 1.0)]),
    Schema((Column("age"), Column("sex", ("f", "m")))),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_what_is_told_is_what_was_said(value):
    found = decode(encode(value))
    assert type(found) is type(value)
    assert found == value


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16]
)
def test_tensors_keep_their_type_shape_and_bits(dtype):
    rows = (torch.arange(12).reshape(3, 4) % 5).to(dtype)
    single = torch.tensor(2).to(dtype)
    for given in (rows, rows.T, rows[1:, ::2], rows[:0], single, rows.expand(2, 3, 4)):
        found = decode(encode({"rows": [given]}))["rows"][0]
        assert_close(found, given, rtol=0, atol=0)
        assert found.dtype == given.dtype
    shape = decode(encode(torch.empty(2, 3, dtype=dtype, device="meta")))
    assert shape.device.type == "meta" and shape.shape == (2, 3)


def test_a_table_travels_with_its_tensors():
    table = Table("t", torch.ones(2, 3), torch.tensor([0, 1]), "classification", 2)
    found = decode(encode(table))
    assert_close(found.features, table.features)
    assert found.name == "t" and found.group is None and found.files == ()


class Stranger:
    """An object that a pickle would have taken along."""


@pytest.mark.parametrize(
    "value",
    [Stranger(), print, {1, 2}, b"bytes"],
    ids=["object", "function", "set", "bytes"],
)
def test_nothing_else_travels(value):
    with pytest.raises(TypeError, match="cannot be sent between processes"):
        encode([value])


def test_a_message_cannot_name_a_class_that_is_not_listed():
    blob = encode(Cell("fedavg", 0)).replace(b"Cell", b"Popn")
    with pytest.raises(KeyError, match="Popn"):
        decode(blob)


def test_rows_of_several_types_are_one_message():
    rows = [
        torch.randn(3, 5, generator=torch.Generator().manual_seed(0)),
        torch.tensor([True, False, True]),
        torch.arange(6).reshape(3, 2),
        torch.empty(3, 0, 4, dtype=torch.float64),
    ]
    kinds = [(tuple(row.shape[1:]), row.dtype) for row in rows]
    packed = as_bytes(rows)
    assert len(packed) == size_of(kinds, 3) == 3 * (5 * 4 + 1 + 2 * 8)
    for found, row in zip(from_bytes(packed, kinds, 3), rows, strict=True):
        assert_close(found, row, rtol=0, atol=0)
    assert [len(row) for row in from_bytes(packed[:0], kinds, 0)] == [0] * 4
