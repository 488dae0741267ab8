"""Studies with [privacy]: how entries are guarded, and what is told of it."""

from .guards import Guard, guard_of, refuse_measured
from .releases import releases_of, spent_of, stopped_text, worst_epsilon

__all__ = [
    "Guard",
    "guard_of",
    "refuse_measured",
    "releases_of",
    "spent_of",
    "stopped_text",
    "worst_epsilon",
]
