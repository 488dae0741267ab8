"""What a study promises of its clients' data, in the first line of report and card."""

from __future__ import annotations

import math

from ..privacy.mechanisms.noise import simulated_text
from ..records import Records
from .roles import epsilon_by_role

_NOTHING = (
    "No promise: the study has no [privacy], so epsilon is infinite for whoever sees "
    "what clients send."
)


def promise_of(records: Records, label: str | None = None) -> str:
    """Epsilon at the end, of the client who told most, with what it is worth.

    Args:
        records: of the study.
        label: of an algorithm; None: each of them.
    """
    settings, table = records.study.get("privacy"), epsilon_by_role(records)
    if not isinstance(settings, dict) or table.empty:
        return _NOTHING
    chosen = table if label is None else table.loc[[label]]
    named = [
        f"{_shown(float(row.max()))} ({name})" if label is None else _shown(row.max())
        for name, row in chosen.iterrows()
    ]
    unit = "one sample" if settings.get("unit") == "sample" else "all data of a client"
    text = (
        f"Epsilon {', '.join(named)} at delta {settings.get('delta', 1e-5):g}, for "
        f"{unit} in the eyes of {table.columns[-1]}."
    )
    simulated = simulated_text(settings.get("noise_source", "seed"))
    return " ".join(filter(None, (text, simulated, _together(records))))


def _together(records: Records) -> str:
    """What all algorithms, seeds and studies tell together."""
    found = records.spending
    if not found:
        return ""
    most = "at most" if found.get("complete") else "at least"
    count = found["studies"]
    every = f"All {count} private studies" if count > 1 else "The one private study"
    return (
        f"This study, all algorithms and seeds: {most} {_shown(found['study'])}. "
        f"{every} on these data so far: {most} {_shown(found['all'])}."
    )


def _shown(epsilon: float) -> str:
    return f"{epsilon:.3g}" if math.isfinite(epsilon) else "infinite"
