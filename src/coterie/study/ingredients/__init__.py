"""What a study gives an algorithm besides numbers: sizes, weights, biases, precisions.

A factory's positional parameters are ingredients. Each has a recipe here, which makes
it from a short text of the study, such as `weights = "clusters"`, in its context.
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
