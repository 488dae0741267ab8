"""The first screen as HTML: verdict, picture, groups and cost, in this order."""

from __future__ import annotations

import pandas as pd
from markupsafe import Markup

from ...records import Records
from ...scores.promises import promise_of
from ..html import render
from .costs import cost_text
from .groups import groups_text
from .pictures import client_gains, clients_with_cut_intervals, gain_table
from .verdicts import notices_of, subject_of, verdict_of


def first_screen(records: Records, table: pd.DataFrame) -> Markup:
    """The first screen of a report."""
    label = subject_of(records)
    shown = label if label is not None and len(gain_table(records, label)) else None
    return render(
        "opening.html",
        verdict=verdict_of(records, table),
        picture=client_gains(records, shown) if shown is not None else None,
        cut=clients_with_cut_intervals(records, shown) if shown is not None else [],
        groups=groups_text(records, label) if label is not None else "",
        cost=cost_text(records, label) if label is not None else "",
        promise=promise_of(records) if "privacy" in records.study else "",
        notices=notices_of(records),
    )
