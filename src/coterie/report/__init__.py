"""Figures, tables and pages about a study, made from its records alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..names import late_names

# Names are imported late, because numbers do not need plotly.
if TYPE_CHECKING:
    from ..scores.baselines import baseline_summary as baseline_summary
    from ..scores.summaries import summary as summary
    from .figures import clients as clients
    from .figures import gains as gains
    from .figures import network as network
    from .figures import newcomers as newcomers
    from .figures import spread as spread
    from .matrices import collaboration as collaboration
    from .matrices import partners as partners
    from .matrices import reliability as reliability
    from .matrices import similarity_map as similarity_map
    from .opening.verdicts import headline as headline
    from .pages import write_figure as write_figure
    from .pages import write_report as write_report
    from .progress import curves as curves
    from .progress import sharpness as sharpness
    from .searches import trials as trials
    from .tables import chosen_options as chosen_options
    from .tables import client_summary as client_summary
    from .tables import confusion_of as confusion_of
    from .tables import measure_summary as measure_summary
    from .tables import newcomer_summary as newcomer_summary
    from .tables import partner_counts as partner_counts
    from .tables import reliability_of as reliability_of
    from .timelines import delays as delays
    from .timelines import timeline as timeline
    from .waiting import wait_summary as wait_summary

__getattr__, __dir__, __all__ = late_names(__name__)
