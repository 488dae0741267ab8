"""Studies with [privacy]: how entries are trained privately, and what that costs."""

from .accounting.charges import cost_of
from .accounting.releases import (
    exact_epsilon,
    releases_of,
    spent_of,
    stopped_text,
    worst_epsilon,
)
from .accounting.spending import CellAccount, charge_partners, summary_line, summary_of
from .mechanisms.blanks import without_data
from .mechanisms.guards import Guard, guard_of, make_guard, refuse_unsummed
from .mechanisms.partners import (
    partner_releases,
    refuse_made_from_data,
    refuse_uncounted_choices,
    releases_before,
)

__all__ = [
    "CellAccount",
    "Guard",
    "charge_partners",
    "cost_of",
    "exact_epsilon",
    "guard_of",
    "make_guard",
    "partner_releases",
    "refuse_made_from_data",
    "refuse_uncounted_choices",
    "refuse_unsummed",
    "releases_before",
    "releases_of",
    "spent_of",
    "stopped_text",
    "summary_line",
    "summary_of",
    "without_data",
    "worst_epsilon",
]
