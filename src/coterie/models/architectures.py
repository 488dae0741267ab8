"""Architectures: rebuild a model from its factory, options and seed.

A row holds the parameters that a client trained. An architecture rebuilds the module
for a row, without data. Frozen parameters and buffers are not in the row. The factory
makes them again from the seed. A digest (hash) shows whether these are the same as
before.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from ..checks import InputError, import_object, one_of, own_code, readable
from .layouts import build, layout
from .zoo import MODELS

BESIDE = ("objective", "loss", "measures", "score", "personal")
"""Settings of [model] that exist for every model; all others are factory options."""


class Architecture(NamedTuple):
    """The arguments of a factory, and the precision and seed of its model."""

    name: str  # one of MODELS, or "module:factory"
    options: dict[str, Any]
    shape: tuple[int, ...]  # of the features of one sample
    outputs: int
    dtype: str  # of parameters
    seed: int  # of the start

    def build(self, make: Callable[..., nn.Module] | None = None) -> nn.Module:
        """The model at its start.

        Args:
            make: the factory of the model. None imports the factory by its name, which
                is safe only for the user's own study. For a folder from others, use
                `trusted_factory`.

        Raises:
            InputError: if the model cannot be made.
        """
        make = _factory(self.name) if make is None else make
        given = (tuple(self.shape), self.outputs)
        try:
            inspect.signature(make).bind(*given, **self.options)
            with own_code("model.name", self.name):
                made = functools.partial(make, *given, **self.options)
                return build(made, self.seed, getattr(torch, self.dtype))
        except (TypeError, RuntimeError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
            raise InputError(
                f"`model` cannot be made for features of shape {self.shape} and "
                f"{self.outputs} outputs: {reason}."
            ) from error

    def size(self, make: Callable[..., nn.Module]) -> int | None:
        """The number of values in the model, found without allocating memory for them.

        It is None for a user's model, because the user's code may need real numbers.
        """
        if ":" in self.name:
            return None
        with torch.device("meta"):
            values = self.build(make).state_dict().values()
        return sum(value.numel() for value in values)

    def rebuild(
        self, like: Mapping[str, Any], make: Callable[..., nn.Module]
    ) -> nn.Module:
        """The described model at its start.

        Args:
            like: a result of `description`.
            make: the factory of the model; None: see `build`.

        Raises:
            InputError: if the model differs from the description, for example after a
                change of its source.
        """
        module = self.build(make)
        found = description(module)
        for key, what in (("parameters", "other parameters"), ("rest", "other values")):
            if found[key] != like[key]:
                raise InputError(
                    f"the model {self.name!r} is not the one that was trained: it has "
                    f"{what}{' that are not trained' if key == 'rest' else ''}; use "
                    "the version of its module with which the run was made."
                )
        return module


def _factory(name: str) -> Callable[..., nn.Module]:
    if ":" not in name:
        return MODELS[one_of("model.name", name, MODELS)]
    return readable("model.name", name, import_object("model.name", name))


def description(module: nn.Module) -> dict[str, Any]:
    """Names and shapes of trained parameters, and a digest of all other values."""
    rows = layout(module)
    shapes = zip(rows.names, rows.shapes, strict=True)
    hashed, trained = hashlib.blake2b(digest_size=16), {*rows.names}
    rest = [*module.named_parameters(), *module.named_buffers()]
    for name, value in rest:
        if name not in trained:
            hashed.update(f"{name}{value.dtype}{tuple(value.shape)}".encode())
            flat = value.detach().cpu().contiguous().flatten()
            hashed.update(flat.view(torch.uint8).numpy().data)
    return {
        "parameters": [[name, list(shape)] for name, shape in shapes],
        "rest": hashed.hexdigest() if len(rest) > len(trained) else "",
    }
