"""Every method by name: `co.methods.ditto(sizes, lr=0.1)`.

Positional arguments are ingredients, which describe the clients. Keyword arguments are
options. `help(co.methods.ditto)` explains both. Each method returns an `Algorithm`,
which `co.run_rounds` trains.

>>> import coterie as co
>>> "ditto" in dir(co.methods)
True
"""

from __future__ import annotations

from .algorithms import *  # noqa: F403
from .algorithms import ALGORITHMS as _ALGORITHMS

__all__ = sorted(_ALGORITHMS)


def __dir__() -> list[str]:
    """The names of the methods."""
    return list(__all__)
