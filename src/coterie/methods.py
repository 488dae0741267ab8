"""Every method by name: `co.methods.ditto(sizes, lr=0.1)`.

Positional arguments are ingredients, which describe the clients. Keyword arguments are
options. `help(co.methods.ditto)` explains both. Each method returns an `Algorithm`,
which `co.run_rounds` trains.

>>> import coterie as co
>>> "ditto" in dir(co.methods)
True
"""

from __future__ import annotations

from . import algorithms
from .algorithms import *  # noqa: F403

__all__ = algorithms.__all__


def __dir__() -> list[str]:
    """The names of the methods."""
    return list(__all__)
