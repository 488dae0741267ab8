"""A study from its file to its results: configuration, set-up, training, search.

An entry is an algorithm of a study with its options. A cell is the training of one
entry on one seed, with its records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import late_names

if TYPE_CHECKING:
    from .config import Entry, Study, algorithm_factory, read_study, study_of
    from .direct import train
    from .experiment import Page, Progress, Result, run_study
    from .identity import identity_of
    from .ingredients import RECIPES, Context, ingredients_of
    from .settings.optimisers import OPTIMISERS
    from .setup import Setup, data_of, federation_of, prepare, simulation_of

# Late, since a study brings pandas and all methods with it, and a recipe does not.
__getattr__ = late_names(
    __name__,
    {
        "config": "Entry Study algorithm_factory read_study study_of",
        "direct": "train",
        "experiment": "Page Progress Result run_study",
        "identity": "identity_of",
        "ingredients": "RECIPES Context ingredients_of",
        "settings.optimisers": "OPTIMISERS",
        "setup": "Setup data_of federation_of prepare simulation_of",
    },
)


def __dir__() -> list[str]:
    """The public names, also those that are not imported yet."""
    return sorted(__all__)


__all__ = [
    "OPTIMISERS",
    "RECIPES",
    "Context",
    "Entry",
    "Page",
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
    "train",
]
