"""A study from its file to its results: configuration, set-up, training, search."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import Entry, Study, algorithm_factory, read_study, study_of
    from .experiment import Progress, Result, run_study
    from .identity import identity_of
    from .ingredients import RECIPES, Context, ingredients_of
    from .setup import Setup, data_of, federation_of, prepare, simulation_of

# Late, since a study brings pandas and all methods with it, and a recipe does not.
_LATE = {
    "RECIPES": "ingredients",
    "Context": "ingredients",
    "Entry": "config",
    "Progress": "experiment",
    "Result": "experiment",
    "Setup": "setup",
    "Study": "config",
    "algorithm_factory": "config",
    "data_of": "setup",
    "federation_of": "setup",
    "identity_of": "identity",
    "ingredients_of": "ingredients",
    "prepare": "setup",
    "read_study": "config",
    "run_study": "experiment",
    "simulation_of": "setup",
    "study_of": "config",
}


def __getattr__(name: str) -> Any:
    """Imports the names of `_LATE` when they are used first."""
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}.")
    return getattr(import_module(f".{_LATE[name]}", __name__), name)


__all__ = [
    "RECIPES",
    "Context",
    "Entry",
    "Progress",
    "Result",
    "Setup",
    "Study",
    "algorithm_factory",
    "data_of",
    "federation_of",
    "identity_of",
    "ingredients_of",
    "prepare",
    "read_study",
    "run_study",
    "simulation_of",
    "study_of",
]
