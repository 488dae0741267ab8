"""Coterie: personalised collaborative learning.

Every client gets its own model, and learns with the clients that help it.

>>> import coterie as co
>>> co.methods.fedavg.__name__
'fedavg'
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .names import late_names

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
