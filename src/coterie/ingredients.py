"""What a study gives an algorithm beside numbers: sizes, weights, precisions.

A factory's positional parameters are ingredients. Each has a recipe here, which makes
it for a federation from a short text of the study, such as `weights = "clusters"`.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .checks import InputError, call, number, one_of, positive, stochastic
from .data.federation import Federation
from .weights import same_cluster, within


def sizes(choice: str, federation: Federation) -> Tensor:
    """(N,) training samples of each client."""
    one_of("sizes", choice, ("samples",))
    return federation.train.size


def weights(choice: str, federation: Federation) -> Tensor:
    """(N, N) `clusters`, `uniform`, `alone`, `biases(threshold)` or a file's name."""
    n = len(federation)
    if Path(choice).suffix in (".csv", ".npy"):
        return stochastic("weights", _from_file("weights", choice), n)
    name, arguments = call("weights", choice)
    one_of("weights", name, ("clusters", "uniform", "alone", "biases"))
    if arguments and name != "biases":
        raise InputError(f"`weights` {name} takes no numbers, got {choice!r}.")
    if name == "uniform":
        return torch.full((n, n), 1 / n)
    if name == "alone":
        return torch.eye(n)
    if name == "clusters":
        if federation.clusters is None:
            raise InputError(
                "`weights` clusters needs known clusters, "
                f"but `{federation.name}` has none."
            )
        return same_cluster(federation.clusters)
    if federation.optima is None or len(arguments) != 1:
        raise InputError(
            "`weights` biases(threshold) needs one number and a federation with known "
            f"optima, got {choice!r} for `{federation.name}`."
        )
    distance = torch.cdist(federation.optima, federation.optima)
    return within(distance, number("weights", arguments[0], at_least=0))


def precision(choice: str, federation: Federation) -> Tensor | None:
    """(N,) `samples`, `equal`, `estimated` during training, or a file's name."""
    if Path(choice).suffix in (".csv", ".npy"):
        values = _from_file("precision", choice).flatten()
        return positive("precision", values, len(federation))
    one_of("precision", choice, ("samples", "equal", "estimated"))
    if choice == "estimated":
        return None
    size = federation.train.size.to(torch.float32)
    return size if choice == "samples" else torch.ones_like(size)


def _from_file(name: str, path: str) -> Tensor:
    try:
        with warnings.catch_warnings():  # that a file is empty, which its shape tells
            warnings.simplefilter("ignore", UserWarning)
            is_csv = path.endswith(".csv")
            values = np.loadtxt(path, delimiter=",") if is_csv else np.load(path)
        return torch.tensor(values, dtype=torch.float32)
    except (OSError, EOFError, ValueError, TypeError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise InputError(f"`{name}` cannot be read from {path}: {reason}.") from None


RECIPES: dict[str, tuple[Callable[[str, Federation], Any], str]] = {
    "sizes": (sizes, "samples"),
    "weights": (weights, "clusters"),
    "precision": (precision, "samples"),
}
"""Name of an ingredient -> its recipe and what it is made from by default."""


def ingredients_of(factory: Callable[..., Any]) -> list[str]:
    """The names of a factory's positional parameters, each with a recipe."""
    names = [
        name
        for name, p in inspect.signature(factory).parameters.items()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    for name in names:
        if name not in RECIPES:
            raise InputError(
                f"the ingredient `{name}` is not known; a factory may ask for "
                f"{', '.join(sorted(RECIPES))} and takes options by keyword only."
            )
    return names
