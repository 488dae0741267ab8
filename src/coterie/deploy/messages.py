"""Questions and answers as bytes, which no reader can be made to run.

    magic (8 bytes) | length of the header (4) | header, JSON | values of the tensors

with numbers in little-endian order. The header holds every field of the message and
the name, dtype and shape of each tensor, whose values follow one after the other.
Nothing is pickled: client programs travel by name, such as `coterie.optim.steps:sgd`.
"""

from __future__ import annotations

import importlib
import inspect
import json
import math
import re
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar, get_origin, get_type_hints

import torch
from torch import Tensor

from ..checks import InputError
from ..types import Program

Scalar = float | int | str | bool

_MAGIC = b"coterie1"
_START = len(_MAGIC) + 4
_REAL = ("float64", "float32", "float16", "bfloat16")
_WHOLE = ("int64", "int32", "int16", "int8", "uint8", "bool")
_DTYPES: dict[str, torch.dtype] = {n: getattr(torch, n) for n in (*_REAL, *_WHOLE)}


class MessageError(ValueError):
    """A message that cannot be sent, or bytes that are not what was expected."""


class Holding(NamedTuple):
    """The data of one client, with which its site is set up."""

    name: str
    task: str
    outputs: int
    tensors: dict[str, Tensor]


class Question(NamedTuple):
    """What one client is asked."""

    verb: str  # of coterie.types.Oracle
    t: int
    purpose: str
    number: int  # of earlier questions with this verb in the round
    program: str  # `module:function`, of the verb `each`
    options: dict[str, Scalar]
    tensors: dict[str, Tensor]


class Answer(NamedTuple):
    """What one client answers; it names the error where it could not."""

    error: str
    gradients: float  # of single samples that this took
    tensors: dict[str, Tensor]


Message = TypeVar("Message", Holding, Question, Answer)


def encode(message: Holding | Question | Answer) -> bytes:
    """The message as bytes."""
    shapes, values = [], []
    for name, tensor in message.tensors.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in _DTYPES:
            raise MessageError(f"tensor `{name}` of {tensor.dtype} cannot be sent.")
        shapes.append((name, dtype, tuple(tensor.shape)))
        flat = tensor.detach().cpu().reshape(-1)
        values.append(flat.view(torch.uint8).numpy().tobytes())
    fields = {"kind": type(message).__name__, **message._asdict(), "tensors": shapes}
    _refuse_unsuitable(fields.get("options", {}))
    header = json.dumps(fields).encode()
    return b"".join([_MAGIC, len(header).to_bytes(4, "little"), header, *values])


def decode(data: bytes, kind: type[Message]) -> Message:
    """The message of that kind which these bytes hold.

    Raises:
        MessageError: the bytes are cut, too many, or something else.
    """
    if data[: len(_MAGIC)] != _MAGIC:
        raise MessageError(f"no message of this version, but {data[:8]!r}.")
    end = _START + int.from_bytes(data[len(_MAGIC) : _START], "little")
    if len(data) < max(end, _START):
        raise MessageError(f"the header is cut: {len(data)} of {end} bytes.")
    try:
        fields = json.loads(data[_START:end])
        shapes = [
            (str(name), _DTYPES[dtype], tuple(map(_side, shape)))
            for name, dtype, shape in fields["tensors"]
        ]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MessageError(f"the header cannot be read: {error!r}.") from None
    expected = sum(math.prod(shape) * dtype.itemsize for _, dtype, shape in shapes)
    if len(data) != end + expected:
        raise MessageError(f"{len(data) - end} bytes of tensors, not {expected}.")
    tensors = {}
    for name, dtype, shape in shapes:
        start, end = end, end + math.prod(shape) * dtype.itemsize
        flat = torch.frombuffer(bytearray(data[start:end] or b"\0"), dtype=torch.uint8)
        tensors[name] = flat[: end - start].view(dtype).reshape(shape)
    return kind(**_checked({**fields, "tensors": tensors}, kind))


def _side(value: object) -> int:
    """A side of a shape."""
    if type(value) is not int or value < 0:
        raise ValueError(f"a shape has the side {value!r}")
    return value


def _checked(fields: dict[str, Any], kind: type) -> dict[str, Any]:
    """The fields, when they are those of the kind and have their types."""
    hints = get_type_hints(kind)
    if fields.pop("kind", None) != kind.__name__ or fields.keys() != hints.keys():
        raise MessageError(f"no {kind.__name__}: it has {', '.join(sorted(fields))}.")
    for name, hint in hints.items():
        if not isinstance(fields[name], get_origin(hint) or hint):
            raise MessageError(f"`{name}` of a {kind.__name__} is {fields[name]!r}.")
    _refuse_unsuitable(fields.get("options", {}))
    return fields


def _refuse_unsuitable(options: dict[str, object]) -> None:
    for name, value in options.items():
        if not isinstance(value, Scalar):
            raise MessageError(f"option `{name}` is {value!r}, no number or word.")


def program_name(program: Program) -> str:
    """The name `module:function` under which a site finds the program.

    >>> from coterie.optim.steps import sgd
    >>> program_name(sgd)
    'coterie.optim.steps:sgd'
    """
    module = getattr(program, "__module__", None) or "?"
    name = getattr(program, "__qualname__", repr(program))
    known = getattr(sys.modules.get(module), name, None)
    if module == "__main__" or known is not program:
        raise InputError(
            f"`program` must be a function at the top of an importable module, so that "
            f"sites find it by name, got {module}:{name}."
        )
    return f"{module}:{name}"


def find_program(name: str, allowed: Sequence[str]) -> Program:
    """The program of that name, when its module begins with an allowed prefix.

    It must be defined there, not imported, and call its first parameter `clients`: the
    other functions of an allowed module are none of a message's business.
    """
    form = re.fullmatch(r"([a-zA-Z]\w*(?:\.[a-zA-Z]\w*)*):(\w+)", name)
    if form is None or not f"{form[1]}.".startswith(tuple(allowed)):
        raise InputError(
            f"this site runs programs of {', '.join(allowed)} and not {name!r}."
        )
    program = getattr(importlib.import_module(form[1]), form[2], None)
    if not inspect.isfunction(program) or program.__module__ != form[1]:
        raise InputError(f"there is no program {name!r} at this site.")
    if next(iter(inspect.signature(program).parameters), "") != "clients":
        raise InputError(
            f"{name!r} is no program: its first parameter is no `clients`."
        )
    return program
