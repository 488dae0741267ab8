"""Studies with [privacy]: how entries are guarded, and what is told of it."""

from .guards import Guard, guard_of, guarded, refuse_unsummed
from .partners import refuse_measured, refuse_uncounted, told_for
from .releases import (
    exact_epsilon,
    releases_of,
    spent_of,
    stopped_text,
    worst_epsilon,
)

__all__ = [
    "Guard",
    "exact_epsilon",
    "guard_of",
    "guarded",
    "refuse_measured",
    "refuse_uncounted",
    "refuse_unsummed",
    "releases_of",
    "spent_of",
    "stopped_text",
    "told_for",
    "worst_epsilon",
]
