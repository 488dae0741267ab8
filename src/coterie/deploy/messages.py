"""Messages between processes: values of known types, as one safetensors blob.

Tensors are stored as safetensors stores them. Everything else is JSON in the header of
the blob: plain values, lists, tuples, dictionaries, paths, and the classes listed in
`_RECORDS`. So a message cannot make its reader run code.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from ..data.federation import Table
from ..data.preparation import Column, Schema
from ..models.predictions import Tally
from ..records.cells import Cell
from ..records.ledgers import LedgerEntry, Reservations, ReservedRounds
from ..records.searches import FoundSettings, Rung, Search, Step

_KINDS = (
    *(Cell, Column, FoundSettings, LedgerEntry, Reservations, ReservedRounds),
    *(Rung, Schema, Search, Step, Table, Tally),
)
_RECORDS = {kind.__name__: kind for kind in _KINDS}
"""Maps a name to a class whose instances may be sent."""


def encode(value: Any) -> bytes:
    """The value as bytes.

    >>> decode(encode({"round": 3, "names": ("a", None)}))
    {'round': 3, 'names': ('a', None)}

    Raises:
        TypeError: if a value has a type that cannot be sent.
    """
    tensors: dict[str, Tensor] = {}
    header = json.dumps(_plain(value, tensors))
    return save(tensors, metadata={"value": header})


def decode(blob: bytes) -> Any:
    """The value in these bytes."""
    (length,) = struct.unpack("<Q", blob[:8])
    header = json.loads(blob[8 : 8 + length])["__metadata__"]["value"]
    return _value(json.loads(header), load(blob))


def _plain(value: Any, tensors: dict[str, Tensor]) -> Any:
    """The value in types of JSON; its tensors are added to `tensors`."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        about = {"shape": list(value.shape), "dtype": str(value.dtype).split(".")[1]}
        if value.device.type == "meta":
            return {"meta": about}
        name = str(len(tensors))
        tensors[name] = value.detach().cpu().contiguous().clone()
        return {"tensor": name}
    if isinstance(value, Path):
        return {"path": str(value)}
    if type(value) in _KINDS:
        names = (
            [f.name for f in fields(value)] if is_dataclass(value) else value._fields
        )
        parts = [[name, _plain(getattr(value, name), tensors)] for name in names]
        return {"record": type(value).__name__, "fields": parts}
    if isinstance(value, dict):
        pairs = [[_plain(k, tensors), _plain(v, tensors)] for k, v in value.items()]
        return {"dict": pairs}
    if type(value) in (list, tuple):
        kind = type(value).__name__
        return {kind: [_plain(part, tensors) for part in value]}
    raise TypeError(f"a {type(value).__name__} cannot be sent between processes.")


def _value(plain: Any, tensors: dict[str, Tensor]) -> Any:
    """The value that `_plain` turned into types of JSON."""
    if not isinstance(plain, dict):
        return plain
    kind = next(iter(plain))
    inner = plain[kind]
    if kind == "tensor":
        return tensors[inner]
    if kind == "meta":
        dtype = getattr(torch, inner["dtype"])
        return torch.empty(inner["shape"], dtype=dtype, device="meta")
    if kind == "path":
        return Path(inner)
    if kind == "record":
        named = {name: _value(part, tensors) for name, part in plain["fields"]}
        return _RECORDS[inner](**named)
    if kind == "dict":
        return {_value(k, tensors): _value(v, tensors) for k, v in inner}
    parts = [_value(part, tensors) for part in inner]
    return tuple(parts) if kind == "tuple" else parts


def as_bytes(rows: Sequence[Tensor]) -> Tensor:
    """The bytes of some tensors on the same device, joined in one tensor."""
    if not rows:
        return torch.empty(0, dtype=torch.uint8)
    return torch.cat([row.contiguous().flatten().view(torch.uint8) for row in rows])


RowType = tuple[tuple[int, ...], torch.dtype]
"""Shape and type of a row."""


def size_of(kinds: Sequence[RowType], rows: int) -> int:
    """The number of bytes of tensors of these kinds, with this number of rows each."""
    return sum(
        rows * torch.Size(shape).numel() * dtype.itemsize for shape, dtype in kinds
    )


def from_bytes(found: Tensor, kinds: Sequence[RowType], rows: int) -> list[Tensor]:
    """Tensors of these kinds, with this number of rows each, from their bytes."""
    sizes = [size_of([kind], rows) for kind in kinds]
    return [
        # The copy is aligned for every type.
        part.clone().view(dtype).view(rows, *shape)
        for part, (shape, dtype) in zip(found.split(sizes), kinds, strict=True)
    ]
