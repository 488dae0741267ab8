"""A study from its file to its results: configuration, set-up, training, search.

An entry is an algorithm of a study with its options. A cell is the training of one
entry on one seed, with its records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..names import late_names

# Late, since a study brings pandas and all methods with it, and a recipe does not.
if TYPE_CHECKING:
    from .config import Entry as Entry
    from .config import Study as Study
    from .config import algorithm_factory as algorithm_factory
    from .config import read_study as read_study
    from .config import study_of as study_of
    from .direct import train as train
    from .experiment import Page as Page
    from .experiment import Progress as Progress
    from .experiment import Result as Result
    from .experiment import run_study as run_study
    from .identity import identity_of as identity_of
    from .ingredients import RECIPES as RECIPES
    from .ingredients import Context as Context
    from .ingredients import ingredients_of as ingredients_of
    from .settings.optimisers import OPTIMISERS as OPTIMISERS
    from .setup import Setup as Setup
    from .setup import data_of as data_of
    from .setup import federation_of as federation_of
    from .setup import prepare as prepare
    from .setup import simulation_of as simulation_of

__getattr__, __dir__, __all__ = late_names(__name__)
