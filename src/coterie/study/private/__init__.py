"""Studies with [privacy]: how entries are guarded, and what is told of it."""

from .accounting.releases import (
    exact_epsilon,
    releases_of,
    spent_of,
    stopped_text,
    worst_epsilon,
)
from .accounting.spending import CellAccount, charge_partners, summary_line, summary_of
from .mechanisms.blanks import without_data
from .mechanisms.guards import Guard, guard_of, guarded, refuse_unsummed
from .mechanisms.partners import refuse_measured, refuse_uncounted, telling_of, told_for

__all__ = [
    "CellAccount",
    "Guard",
    "charge_partners",
    "exact_epsilon",
    "guard_of",
    "guarded",
    "refuse_measured",
    "refuse_uncounted",
    "refuse_unsummed",
    "releases_of",
    "spent_of",
    "stopped_text",
    "summary_line",
    "summary_of",
    "telling_of",
    "told_for",
    "without_data",
    "worst_epsilon",
]
