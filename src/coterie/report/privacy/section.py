"""The section of a report on private training."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np
import pandas as pd

from ...privacy.mechanisms.noise import SIMULATION_ONLY, simulated_text
from ...records import Records
from ...scores.finals import CROWD, is_crowd, labels_of
from ...scores.roles import epsilon_by_role
from ...types import SERVER
from ..html import choice, table_of
from ..styles import plot
from .figures import spending, told

_CAVEATS = (
    "Epsilon says how well anybody who has all of that, whatever else he knows, can "
    "tell {unit}: not at all at 0, hardly at 1, little at 4, and surely at infinity; "
    "delta is the chance that this does not hold. Not counted are how many samples "
    "clients have, how features were prepared, and the measures in this report, which "
    "a simulation knows and clients keep. Below is the page for a data protection "
    "officer."
)

_UNITS = {
    "client": "a client's data from any others in their place",
    "sample": "whether any single sample was among a client's data",
}


def privacy_section(records: Records) -> str:
    """What was promised and to whom; nothing without [privacy]."""
    settings = records.study.get("privacy")
    if not isinstance(settings, dict) or "epsilon" not in records.metrics:
        return ""
    simulated = simulated_text(settings.get("noise_source", "seed"))
    roles = epsilon_by_role(records)
    headers = ["algorithm", *roles.columns, "sees rows with noise"]
    rows = []
    for label in map(str, roles.index):
        cells = [_shown(float(roles[role][label])) for role in roles]
        eyes = _eyes(records, label) + ", sums alone" * (label in _summed(records))
        rows.append([label, *cells, eyes])
    caption = (
        f"Epsilon at delta {settings.get('delta', 1e-5):g} after the last round, of "
        "all that left the client who told most, in the eyes of each role."
    )
    caption += f" This is {SIMULATION_ONLY}." if simulated else ""
    caveats = _CAVEATS.format(unit=_UNITS[settings.get("unit", "client")])
    promise = _promise(settings) + _sums(_summed(records), settings)
    words = f"<p><b>{escape(simulated)}</b></p>" if simulated else ""
    words += f"<p>{escape(promise)} {escape(caveats)}</p>"
    figure = plot(spending(records), "spending-figure", "Epsilon by round")
    return words + table_of(headers, rows, caption) + figure + _matrices(records)


def _shown(epsilon: float) -> str:
    return f"{epsilon:.3g}" if np.isfinite(epsilon) else "infinite"


def _promise(settings: dict[str, Any]) -> str:
    clip = settings.get("clip", 1.0)
    noise = (
        f"noise of {settings['noise']:g} times that in every coordinate"
        if "noise" in settings
        else "noise such that all rounds together cost at most epsilon "
        f"{settings['epsilon']:g}"
    )
    if settings.get("unit") == "sample":
        return (
            f"Every sample's gradient was cut to the length {clip:g}, and that of "
            f"every minibatch got {noise}; losses that were asked for were bounded and "
            "got as much. What a client sends is made of these private answers, so "
            "that everybody who receives rows from it learns at most its epsilon. Over "
            "rounds that is a quick bound, and after the last round a tight one."
        )
    return (
        "What depends on a client's data left it as rows clipped to a distance of "
        f"{clip:g} from what was known, with {noise}, or as bounded mean losses with "
        "as much."
    )


def _summed(records: Records) -> list[str]:
    """The algorithms of which a server saw sums, so that rows would have told more."""
    table = records.metrics
    if "epsilon_others" not in table:
        return []
    # Both are added up, in other orders.
    more = table["epsilon_others"] > table["epsilon_server"] * (1 + 1e-6)
    some = set(table["algorithm"][more])
    return [label for label in labels_of(records) if label in some]


def _sums(labels: list[str], settings: dict[str, Any]) -> str:
    if not labels:
        return ""
    count = settings.get("colluders") or 1
    others = "one other client" if count == 1 else f"{count} other clients"
    return (
        f" Of averages of {', '.join(labels)} the server saw sums alone, to which "
        "everybody added its part of the noise. Whoever took part knows its own part "
        f"and can take it off. Noise and budgets are for a server and {others} who "
        "share what they know; more who share leave less noise, down to the client's "
        "own part. Each number is a bound, which is exact where all clients take part "
        "in every round. What other algorithms send was seen row by row."
    )


def _eyes(records: Records, label: str) -> str:
    """Who receives what a client sends."""
    table = records.releases
    own = table[table["algorithm"] == label] if len(table) else pd.DataFrame()
    if own.empty:
        return "nobody"
    server, peers = (own["to"] == SERVER).any(), (own["to"] != SERVER).any()
    names = ["the server"] * bool(server) + ["other clients"] * bool(peers)
    return " and ".join(names)


def _matrices(records: Records) -> str:
    """For each algorithm who told whom, to choose from."""
    if records.releases.empty:
        return ""
    if is_crowd(records):
        return f"<p>Matrices of more than {CROWD} clients are not drawn.</p>"
    some = set(records.releases["algorithm"])
    labels = [label for label in labels_of(records) if label in some]
    ids = {f"told-{number}": label for number, label in enumerate(labels)}
    first = next(iter(ids))
    figures = [
        plot(
            told(records, label),
            key,
            f"Who told whom how much, {label}",
            group="told",
            hidden=key != first,
        )
        for key, label in ids.items()
    ]
    note = (
        "Of each client, a bound on what every other client can learn of it, over all "
        "rounds and at second hand, and what it told the server. No entry: none of its "
        "rows comes there. What a server answers also tells clients of each other, "
        "never more than the table above."
    )
    chosen = choice("Algorithm", ids, first, 'data-chooses="told"')
    return f"<p>{escape(note)}</p>{chosen}{''.join(figures)}"
