"""Coterie: personalised collaborative learning.

Every client gets its own model, and learns with the clients that help it.

>>> import coterie as co
>>> co.methods.fedavg.__name__
'fedavg'
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from . import data, methods
    from .checks import InputError, TrainingError
    from .clients.simulation import Simulation
    from .data.federation import Table, federate
    from .engine.rounds import run_rounds
    from .export import Run, load
    from .models import with_batch_statistics, with_group_norm
    from .planning.plans import plan_study
    from .study import Result, Study, read_study, run_study, study_of, train


def late_names(package: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """A `__getattr__` for a package; it imports names when they are first used.

    Importing torch and pandas takes seconds, during which the user cannot stop a
    command. Algorithms and sites do not need pandas.

    Args:
        package: the name of the package.
        names: maps a module to the names to import from it, separated by spaces.
    """
    module_of = {name: module for module in names for name in names[module].split()}

    def import_name(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}.")
        return getattr(import_module(f".{module_of[name]}", package), name)

    return import_name


_late = late_names(
    __name__,
    {
        "checks": "InputError TrainingError",
        "clients.simulation": "Simulation",
        "data.federation": "Table federate",
        "engine.rounds": "run_rounds",
        "export": "Run load",
        "models": "with_batch_statistics with_group_norm",
        "planning.plans": "plan_study",
        "study": "Result Study read_study run_study study_of train",
    },
)


def __getattr__(name: str) -> Any:
    """The version, or a public name, which is imported when it is first used."""
    if name in ("data", "methods"):
        return import_module(f".{name}", __name__)
    return _own_version() if name == "__version__" else _late(name)


def _own_version() -> str:
    """The installed version of this package."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(__name__)
    except PackageNotFoundError:  # run from the source, not installed
        return "source"


def __dir__() -> list[str]:
    """All public names, imported or not."""
    return sorted(__all__)


__all__ = [
    "InputError",
    "Result",
    "Run",
    "Simulation",
    "Study",
    "Table",
    "TrainingError",
    "__version__",
    "data",
    "federate",
    "load",
    "methods",
    "plan_study",
    "read_study",
    "run_rounds",
    "run_study",
    "study_of",
    "train",
    "with_batch_statistics",
    "with_group_norm",
]
