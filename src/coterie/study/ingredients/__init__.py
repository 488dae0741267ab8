"""The inputs of an algorithm that are made from data: sizes, weights, biases, ...

The positional parameters of an algorithm's factory are ingredients. Each ingredient has
a recipe here. A recipe makes it from a short text in the study, such as
`weights = "clusters"`, and from a context: the clients, the model and the graph.
"""

from .contexts import Context, file_of
from .links import edges_between
from .recipes import (
    OF_MODELS,
    RECIPES,
    Ingredients,
    cached_ingredients,
    can_have_noise,
    ingredients_of,
    is_from_data,
    is_from_truth,
)

__all__ = [
    "OF_MODELS",
    "RECIPES",
    "Context",
    "Ingredients",
    "cached_ingredients",
    "can_have_noise",
    "edges_between",
    "file_of",
    "ingredients_of",
    "is_from_data",
    "is_from_truth",
]
