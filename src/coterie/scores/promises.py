"""The privacy guarantee of a study, for the top of the report and of model cards."""

from __future__ import annotations

from ..privacy.mechanisms.noise import simulated_text
from ..records import Records
from .roles import epsilon_by_role
from .words import epsilon_text

_NOTHING = (
    "No promise: the study has no [privacy], so epsilon is infinite for "
    "all that see what clients send."
)


def promise_of(records: Records) -> str:
    """The largest epsilon of any client at the end, and what it covers."""
    settings, table = records.study.get("privacy"), epsilon_by_role(records)
    if not isinstance(settings, dict) or table.empty:
        return _NOTHING
    named = [
        f"{epsilon_text(float(row.max()))} ({name})" for name, row in table.iterrows()
    ]
    unit = "one sample" if settings.get("unit") == "sample" else "all data of a client"
    text = (
        f"Epsilon {', '.join(named)} at delta {settings.get('delta', 1e-5):g}, for "
        f"{unit}, against {table.columns[-1]}."
    )
    simulated = simulated_text(settings.get("noise_source", "seed"))
    return " ".join(filter(None, (text, simulated, _together(records))))


def _together(records: Records) -> str:
    """Epsilon of all algorithms, seeds and studies together."""
    found = records.spending
    if not found:
        return ""
    most = "at most" if found.get("complete") else "at least"
    count = found["studies"]
    every = f"All {count} private studies" if count > 1 else "The one private study"
    return (
        f"This study, all algorithms and seeds: {most} {epsilon_text(found['study'])}. "
        f"{every} on these data so far: {most} {epsilon_text(found['all'])}."
    )
