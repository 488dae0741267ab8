"""Recipes by name: what makes an ingredient, and from which text by default."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

from ...checks import InputError, call
from ...graphs.matrices import refuse_unjoined
from ...privacy.mechanisms.partners import FEATURES
from ...similarity.partners import ESTIMATES
from .contexts import Context, file_of, without_graph
from .links import graph, head, layers, mixing, norm
from .partners import biases, precision, radius, reference, sizes, weights

Ingredients = Callable[[str, str | None, str], Any]
"""Gives an ingredient from its name, its text (if any) and the algorithm's label."""

RECIPES: dict[str, tuple[Callable[[str, Context], Any], str]] = {
    "sizes": (sizes, "samples"),
    "weights": (weights, "clusters"),
    "biases": (biases, "clusters"),
    "graph": (graph, "everybody"),
    "mixing": (mixing, "ring"),
    "precision": (precision, "samples"),
    "radius": (radius, "transport"),
    "head": (head, "head"),
    "layers": (layers, "all"),
    "norm": (norm, "batch"),
    "reference": (reference, "largest"),
}
"""Name of an ingredient -> its recipe and its default text."""

OF_MODELS = ("head", "layers", "norm")
"""Ingredients that depend on the columns of a model, and not on the clients."""


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
                f"the ingredient `{name}` is not known; the positional parameters of a "
                f"factory must be among {', '.join(sorted(RECIPES))} and its options "
                "must be keyword-only."
            )
    return names


def is_from_truth(name: str, choice: str) -> bool:
    """Whether an ingredient needs true clusters or optima, which nobody knows.

    >>> [is_from_truth("weights", name) for name in ("water_filling(2)", "uniform")]
    [True, False]
    """
    # A client's name may be any text.
    if name in ("reference", *OF_MODELS) or file_of(choice):
        return False
    told = ("clusters", "optima", "biases", "water_filling")
    return name in RECIPES and call(name, without_graph(choice))[0] in told


def is_from_data(name: str, choice: str) -> bool:
    """Whether an ingredient is made from the clients' data, beyond their sizes.

    >>> is_from_data("radius", "transport"), is_from_data("weights", "clusters")
    (True, False)
    """
    if file_of(choice) or name not in ("weights", "radius"):
        return False
    word = call(name, without_graph(choice))[0].removeprefix("unlabelled_")
    return word in (*ESTIMATES, "transport", "cosine")


def can_have_noise(name: str, choice: str) -> bool:
    """Whether an ingredient made from data can be made from releases with noise.

    >>> [can_have_noise("weights", f"{name}(9)") for name in ("mmd", "sliced")]
    [True, False]
    """
    if name != "weights" or not is_from_data(name, choice):
        return False
    return call(name, without_graph(choice))[0].removeprefix("unlabelled_") in FEATURES


def cached_ingredients(context: Context) -> Ingredients:
    """Makes ingredients for this context, each of them once, when first needed."""

    @functools.cache
    def make(name: str, choice: str | None) -> Any:
        if choice is None:
            choice = context.kind  # of the edges of [graph]
        recipe, _ = RECIPES[name]
        return recipe(choice, context)

    def ingredient(name: str, choice: str | None, label: str) -> Any:
        edges = context.edges if name in ("graph", "mixing", "weights") else None
        if choice is None and (name == "weights" or edges is None):
            _, choice = RECIPES[name]
        found = make(name, choice)
        if edges is not None:
            if found is None:
                found = torch.ones(len(context.federation), len(context.federation))
            clients = context.federation.clients
            refuse_unjoined(f"`{name}` of {label}", found, edges, clients)
        return found

    return ingredient
