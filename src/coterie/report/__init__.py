"""Figures, tables and pages about a study, made from its records alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import late_names

if TYPE_CHECKING:
    from ..scores.baselines import baseline_summary
    from ..scores.summaries import summary
    from .figures import clients, gains, network, newcomers, spread
    from .matrices import collaboration, partners, reliability, similarity_map
    from .opening.verdicts import headline
    from .pages import write_figure, write_report
    from .progress import curves, sharpness
    from .searches import trials
    from .tables import (
        chosen_options,
        client_summary,
        confusion_of,
        measure_summary,
        newcomer_summary,
        partner_counts,
        reliability_of,
    )
    from .timelines import delays, timeline
    from .waiting import wait_summary

# Names are imported late, because numbers do not need plotly.
__getattr__ = late_names(
    __name__,
    {
        ".scores.baselines": "baseline_summary",
        ".scores.summaries": "summary",
        "progress": "curves sharpness",
        "figures": "clients gains network newcomers spread",
        "opening.verdicts": "headline",
        "matrices": "collaboration partners reliability similarity_map",
        "pages": "write_figure write_report",
        "searches": "trials",
        "tables": "chosen_options client_summary confusion_of measure_summary "
        "newcomer_summary partner_counts reliability_of",
        "timelines": "delays timeline",
        "waiting": "wait_summary",
    },
)


def __dir__() -> list[str]:
    """The public names, also those that are not imported yet."""
    return sorted(__all__)


__all__ = [
    "baseline_summary",
    "chosen_options",
    "client_summary",
    "clients",
    "collaboration",
    "confusion_of",
    "curves",
    "delays",
    "gains",
    "headline",
    "measure_summary",
    "network",
    "newcomer_summary",
    "newcomers",
    "partner_counts",
    "partners",
    "reliability",
    "reliability_of",
    "sharpness",
    "similarity_map",
    "spread",
    "summary",
    "timeline",
    "trials",
    "wait_summary",
    "write_figure",
    "write_report",
]
