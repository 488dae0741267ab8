"""Reads arrays that numpy has pickled, without running any code named in the file.

`numpy.load` with `allow_pickle=True` runs any code that a file asks for. In this
module, stand-ins take the place of numpy's classes, and all other names are refused.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
from collections.abc import Callable
from typing import Any

import numpy as np

_MOST_STEPS = 10_000
"""The most steps of a pickle. A few arrays take 100 steps; text takes one per word."""

_STEPS = frozenset(
    """
    PROTO FRAME STOP MARK MEMOIZE BINPUT LONG_BINPUT BINGET LONG_BINGET GLOBAL
    STACK_GLOBAL REDUCE BUILD NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1
    BINFLOAT BINUNICODE BINUNICODE8 SHORT_BINUNICODE BINBYTES BINBYTES8 SHORT_BINBYTES
    BYTEARRAY8 EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST LIST APPEND APPENDS
    EMPTY_DICT DICT SETITEM SETITEMS
    """.split()
)
"""The steps that numpy writes for arrays in dictionaries, tuples and lists."""

_NUMBERS = re.compile(r"[biuf](1|2|4|8)|[SU]\d{1,9}")


def read_pickled(raw: bytes) -> Any:
    """What a pickle holds: arrays, numbers and text, in dictionaries and lists.

    Raises:
        ValueError: if it holds anything else; the text says what.
    """
    _refuse_steps(raw)
    try:
        return _plain(_Reader(io.BytesIO(raw)).load())
    except ValueError:
        raise
    except Exception as error:  # a damaged pickle may raise anything
        raise ValueError(f"its pickle is damaged: {error}") from error


def _refuse_steps(raw: bytes) -> None:
    """Refuses a pickle with steps that arrays do not need, or with too many steps."""
    for count, (step, value, _) in enumerate(pickletools.genops(raw)):
        if count == _MOST_STEPS:
            raise ValueError("it holds lists or text, and not a few arrays of numbers")
        if step.name not in _STEPS:
            raise ValueError(f"its pickle has the step {step.name}, which no array has")
        # The reader would allocate all places up to this one.
        if step.name == "LONG_BINPUT" and (value or 0) > _MOST_STEPS:
            raise ValueError("its pickle is damaged: it has too many places")


class _Kind:
    """Stands in for numpy.dtype."""

    def __init__(self, code: str, *_: object) -> None:
        self.code, self.order = str(code), "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, order, *parts = state
        if any(part is not None for part in parts[:3]):
            raise ValueError("it holds records, and not arrays of numbers")
        self.order = {"|": "="}.get(order, order)

    def dtype(self) -> np.dtype[Any]:
        """The type of numbers or text; no other type is ever made."""
        if not _NUMBERS.fullmatch(self.code) or self.order not in ("<", ">", "="):
            raise ValueError(f"it holds values of type {self.code[:20]!r}, not numbers")
        order = "" if self.order == "=" else self.order
        return np.dtype(f"{order}{self.code}")


class _Rows:
    """Stands in for numpy.ndarray."""

    def __init__(self) -> None:
        self.value: Any = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, by_column, data = state
        self.value = _array(shape, kind, "F" if by_column else "C", data)


def _array(shape: Any, kind: Any, order: str, data: Any) -> Any:
    """The array with this content; an array of objects becomes a list."""
    shape = tuple(map(int, shape))
    if isinstance(data, list):
        return data
    found = np.frombuffer(data, kind.dtype())
    if min(shape, default=0) < 0 or math.prod(shape) != len(found):
        raise ValueError(f"an array of shape {shape} has {len(found)} values")
    return found.reshape(shape, order="F" if order == "F" else "C")


def _empty_rows(*_: object) -> _Rows:
    """Stands in for numpy's `_reconstruct`."""
    return _Rows()


def _rows_of_bytes(data: Any, kind: Any, shape: Any, order: Any) -> _Rows:
    """Stands in for numpy's `_frombuffer`."""
    found = _Rows()
    found.value = _array(shape, kind, str(order), data)
    return found


def _number(kind: Any, data: Any) -> Any:
    """Stands in for numpy's `scalar`."""
    return np.frombuffer(data, kind.dtype())[0]


_STAND_INS: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "ndarray"): _Rows,
    ("numpy", "dtype"): _Kind,
}
for _core in ("core", "_core"):  # as numpy 1 and numpy 2 call it
    _STAND_INS[f"numpy.{_core}.multiarray", "_reconstruct"] = _empty_rows
    _STAND_INS[f"numpy.{_core}.multiarray", "scalar"] = _number
    _STAND_INS[f"numpy.{_core}.numeric", "_frombuffer"] = _rows_of_bytes


class _Reader(pickle.Unpickler):
    """Reads a pickle with stand-ins for numpy's classes, and with nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """The stand-in; refuses every other name."""
        if (module, name) not in _STAND_INS:
            raise ValueError(
                f"it names {module}.{name}, which could run code, and only arrays of "
                "numbers are read"
            )
        return _STAND_INS[module, name]


def _plain(value: Any) -> Any:
    """The value without stand-ins; an array of one object becomes the object itself."""
    if isinstance(value, _Rows):
        value = value.value
        return _plain(
            value[0] if isinstance(value, list) and len(value) == 1 else value
        )
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value
