"""Messages between a member and the hub: a small header in JSON, and numbers as bytes.

    4 bytes   the length of the header
    header    JSON: the kind of the message, its place in the run, shapes and types
    payload   the bytes of the arrays that the header describes, one after the other

Nothing in a message is imported or run. What does not have exactly the form that its
header says is refused.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...checks import InputError

LARGEST_HEADER = 2**20
"""The most bytes of a header."""

TYPES = ("float32", "float64", "uint8", "uint32", "uint64", "int32", "int64", "bool")
"""The types of arrays that may be sent."""

_MOST_DIMENSIONS = 8

_LENGTH = struct.Struct("<I")


class WireError(InputError):
    """The error if bytes are not a message."""


class Parcel(NamedTuple):
    """A message: its header, and its payload."""

    header: dict[str, Any]
    payload: bytes = b""

    def encode(self) -> bytes:
        """The message as bytes."""
        header = json.dumps(self.header, separators=(",", ":")).encode()
        return b"".join([_LENGTH.pack(len(header)), header, self.payload])


def decode(blob: bytes, largest: int) -> Parcel:
    """The message in these bytes.

    >>> decode(Parcel({"kind": "hello"}, b"rows").encode(), 1000)
    Parcel(header={'kind': 'hello'}, payload=b'rows')

    Args:
        blob: the bytes.
        largest: the most bytes that a message may have.

    Raises:
        WireError: if the bytes are not a message, or if there are too many.
    """
    if len(blob) > largest:
        raise WireError(f"a message has {len(blob)} bytes, but {largest} are allowed.")
    if len(blob) < _LENGTH.size:
        raise WireError("a message is shorter than its beginning.")
    (length,) = _LENGTH.unpack_from(blob)
    end = _LENGTH.size + length
    if length > LARGEST_HEADER or end > len(blob):
        raise WireError("a message ends before its header does.")
    try:
        header = json.loads(blob[_LENGTH.size : end], parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise WireError("the header of a message is not JSON.") from None
    if not isinstance(header, dict):
        raise WireError("the header of a message is not a table.")
    return Parcel(header, blob[end:])


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def whole_number(header: dict[str, Any], name: str, *, least: int = 0) -> int:
    """A whole number in a header.

    Raises:
        WireError: if it is missing, of another type or too small.
    """
    value = header.get(name)
    if type(value) is not int or not least <= value < 2**53:
        raise WireError(f"`{name}` of a message must be a whole number, got {value!r}.")
    return value


def words(header: dict[str, Any], name: str, *, longest: int = 500) -> str:
    """A text in a header."""
    value = header.get(name)
    if not isinstance(value, str) or len(value) > longest:
        raise WireError(f"`{name}` of a message must be a short text.")
    return value


def describe_arrays(arrays: Sequence[np.ndarray]) -> list[list[Any]]:
    """The type and the shape of each array, for a header."""
    return [[array.dtype.name, list(array.shape)] for array in arrays]


def bytes_of(arrays: Sequence[np.ndarray]) -> bytes:
    """The bytes of arrays, one after the other; the lowest byte of a number first."""
    return b"".join(
        np.ascontiguousarray(a, a.dtype.newbyteorder("<")).tobytes() for a in arrays
    )


def arrays_of(about: object, payload: bytes) -> list[np.ndarray]:
    """The arrays in a payload, as a header describes them.

    Raises:
        WireError: if types or shapes are not allowed, if the payload has another
            length, or if a real number is not finite.
    """
    if not isinstance(about, list):
        raise WireError("a message does not say which arrays it has.")
    found, start = [], 0
    for kind, shape in map(_kind_and_shape, about):
        count = math.prod(shape)
        dtype = np.dtype(kind).newbyteorder("<")
        end = start + count * dtype.itemsize
        if end > len(payload):
            raise WireError("a message ends before its arrays do.")
        array = np.frombuffer(payload, dtype, count, start).reshape(shape)
        if array.dtype.kind == "f" and not bool(np.isfinite(array.sum())):
            if not bool(np.isfinite(array).all()):
                raise WireError("a message has a number that is not finite.")
        found.append(array.astype(np.dtype(kind), copy=False))
        start = end
    if start != len(payload):
        raise WireError("a message has more bytes than its arrays.")
    return found


def _kind_and_shape(one: object) -> tuple[str, tuple[int, ...]]:
    if not isinstance(one, list) or len(one) != 2 or one[0] not in TYPES:
        raise WireError("a message has an array of a type that is not allowed.")
    kind, shape = one
    sound = isinstance(shape, list) and len(shape) <= _MOST_DIMENSIONS
    if not sound or not all(type(n) is int and 0 <= n < 2**40 for n in shape):
        raise WireError("a message has an array of a shape that is not allowed.")
    return kind, tuple(shape)
