"""The figures of Even, Massoulié, Scaman (2022) and of Even's thesis, chapter 8.

Settings are given as `name=value`, for example `seeds=2`.
"""

from .clusters import clusters, scaling
from .coins import fig1a, fig1b
from .hard_instances import hard_instance_calls
from .regressions import chapter8_figure

ITEMS = {
    "fig1a": fig1a,
    "fig1b": fig1b,
    "chapter8-figure": chapter8_figure,
    "clusters": clusters,
    "hard-instance": hard_instance_calls,
    "scaling": scaling,
}

REFERENCES = frozenset(ITEMS)
"""Texts have curves without numbers: those shown are of an independent script."""
