"""The coordinator at the hub: runs a method's program on rows in the clear.

A study must say `trust_coordinator = true`, and every site must allow the program. A
message only names a program. The hub looks the name up among the functions of the
methods that its own study names, so a message can make it import or run nothing else.
This is the only part of the hub that needs torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...algorithms import ALGORITHMS
from ...checks import InputError
from ..messages import decode, encode
from .wire import WireError, words

_KINDS_IN = ("coterie.algorithms.", "coterie.collaboration.")


def programs_of(methods: Iterable[str]) -> dict[str, Callable[..., Any]]:
    """The functions that the methods of a study use, by module and name."""
    found = {}
    for name in methods:
        if name in ALGORITHMS:
            module = sys.modules[ALGORITHMS[name].__module__]
            for value in vars(module).values():
                if isinstance(value, FunctionType) and "<" not in value.__qualname__:
                    found[f"{value.__module__}:{value.__qualname__}"] = value
    return {name: f for name, f in found.items() if name.startswith(_KINDS_IN)}


class HubCoordinator:
    """Runs programs, and remembers what they store between rounds.

    What a program stores counts when the step is finished. So an attempt that ends
    early changes nothing.
    """

    def __init__(self, methods: Iterable[str], members: int, memory: bytes | None):
        """Prepares the programs of these methods.

        Args:
            methods: of the study.
            members: how many there are.
            memory: what `memory` gave after the last finished step.
        """
        self._programs, self._members = programs_of(methods), members
        self._kept = None if memory is None else _restore(decode(memory))
        self._now = self._kept

    def begin(self, what: str) -> None:
        """Begins an attempt at a step; an algorithm starts without memory."""
        self._now = None if what.endswith(", start") else self._kept

    def memory(self) -> bytes:
        """What the programs of the attempt have stored; it is kept from now on."""
        self._kept = self._now
        return encode(_plain(self._kept))

    def __call__(
        self,
        header: dict[str, Any],
        who: Sequence[int],
        rows: list[list[np.ndarray]],
    ) -> list[list[np.ndarray]] | str:
        """The arrays for each member, or why the program refuses the rows."""
        name = words(header, "program")
        if name not in self._programs:
            raise WireError(f"no method of the study has the program {name!r}.")
        options = header.get("options")
        if not isinstance(options, dict):
            raise WireError("options of a program must be a table.")
        given = [_stack(parts) for parts in zip(*rows, strict=True)]
        told = {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
        try:
            found = self._programs[name](self._now, torch.tensor(who), *given, **told)
        except InputError as error:
            return str(error)
        self._now, answers = found[0], [answer.detach().cpu() for answer in found[1:]]
        return [
            [answer[rank : rank + 1].contiguous().numpy() for answer in answers]
            for rank in range(self._members)
        ]


def _stack(parts: Sequence[np.ndarray]) -> Tensor:
    """The rows of all members, one after the other."""
    return torch.cat([torch.from_numpy(part.copy()) for part in parts])


def _plain(value: Any) -> Any:
    """A value in plain types; a named tuple becomes its name and its fields."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        name = f"{type(value).__module__}:{type(value).__qualname__}"
        return {"named": name, "fields": [_plain(part) for part in value]}
    if isinstance(value, list | tuple):
        return type(value)(_plain(part) for part in value)
    return value


def _restore(plain: Any) -> Any:
    """The value that `_plain` made plain."""
    if isinstance(plain, dict) and "named" in plain:
        module, _, name = plain["named"].partition(":")
        if not module.startswith(_KINDS_IN) or module not in sys.modules:
            raise InputError(f"the log of the hub has an unknown type {name!r}.")
        return getattr(sys.modules[module], name)(*map(_restore, plain["fields"]))
    if isinstance(plain, list | tuple):
        return type(plain)(_restore(part) for part in plain)
    return plain
