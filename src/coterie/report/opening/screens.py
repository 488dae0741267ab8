"""The first screen as HTML: verdict, picture, groups, cost, in this order."""

from __future__ import annotations

from html import escape

import pandas as pd

from ...records import Records
from ...scores.promises import promise_of
from ..styles import plot
from .costs import cost_text
from .groups import groups_text
from .pictures import client_gains, cut_text, gained
from .verdicts import notices_of, subject_of, verdict_of


def first_screen(records: Records, table: pd.DataFrame) -> str:
    """What a manager reads, before anything else.

    Args:
        records: of the study.
        table: their `summary`.
    """
    lead, rest = verdict_of(records, table)
    label = subject_of(records)
    more = f"<p>{escape(rest)}</p>" if rest else ""
    parts = [f'<div class="verdict"><p class="lead">{escape(lead)}</p>{more}</div>']
    notices = [f'<p class="notice">{escape(text)}</p>' for text in notices_of(records)]
    if label is not None and len(gained(records, label)):
        picture = client_gains(records, label)
        words = "How much better or worse than alone each client is"
        note = cut_text(records, label)
        note = f'<p class="caption">{escape(note)}</p>' if note else ""
        parts.append(plot(picture, "verdict-figure", words) + note)
    facts = {}
    if label is not None:
        facts["Who learns together"] = escape(groups_text(records, label))
        facts["Cost"] = escape(cost_text(records, label))
    if "privacy" in records.study:
        link = '<a href="#privacy">Who sees what</a>'
        facts["Privacy"] = f"{escape(promise_of(records))} {link}"
    items = "".join(f"<dt>{k}</dt><dd>{text}</dd>" for k, text in facts.items() if text)
    parts.append(f'<dl class="facts">{items}</dl>' if items else "")
    return "".join([*parts, *notices])
