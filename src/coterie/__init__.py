"""Coterie: personalised collaborative learning.

Every client gets its own model, and learns with the clients that help it.

>>> import coterie as co
>>> co.methods.fedavg.__name__
'fedavg'
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from inspect import getsource
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import data as data
    from . import methods as methods
    from .checks import InputError as InputError
    from .checks import TrainingError as TrainingError
    from .clients.simulation import Simulation as Simulation
    from .data.federation import Table as Table
    from .data.federation import federate as federate
    from .engine.rounds import run_rounds as run_rounds
    from .export import Run as Run
    from .export import load as load
    from .models import with_batch_statistics as with_batch_statistics
    from .models import with_group_norm as with_group_norm
    from .planning.plans import plan_study as plan_study
    from .study import Result as Result
    from .study import Study as Study
    from .study import read_study as read_study
    from .study import run_study as run_study
    from .study import study_of as study_of
    from .study import train as train

    __version__: str


def late_names(
    package: str,
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package that imports names late.

    Public names are those that the package imports "as" themselves, for type checkers.
    Each is imported when it is first used. Importing torch and pandas takes seconds,
    during which the user cannot stop a command. Algorithms and sites do not need
    pandas.
    """
    module_of: dict[str, str] = {}
    for node in ast.walk(ast.parse(getsource(sys.modules[package]))):
        if isinstance(node, ast.ImportFrom):
            own = "." * node.level + (node.module or "")
            module_of |= {a.name: own for a in node.names if a.asname == a.name}

    def import_name(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}.")
        if module_of[name] == ".":
            return import_module(f".{name}", package)
        return getattr(import_module(module_of[name], package), name)

    return import_name, lambda: sorted(module_of), sorted(module_of)


_late, _, _names = late_names(__name__)

__all__ = sorted([*_names, "__version__"])


def __getattr__(name: str) -> Any:
    """The version, or a public name, which is imported when it is first used."""
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
    return __all__
