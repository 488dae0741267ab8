"""The section of a report on private training."""

from __future__ import annotations

import pandas as pd
from markupsafe import Markup

from ...privacy.mechanisms.noise import SIMULATION_ONLY, simulated_text
from ...records import Records
from ...scores.finals import CROWD, is_crowd, labels_of
from ...scores.roles import epsilon_by_role
from ...scores.words import epsilon_text
from ...types import SERVER
from ..html import render
from .figures import epsilon_curves, epsilon_matrix


def privacy_section(records: Records) -> Markup:
    """The section on epsilon for each role, or nothing without [privacy]."""
    settings = records.study.get("privacy")
    if not isinstance(settings, dict) or "epsilon" not in records.metrics:
        return Markup()
    roles, summed = epsilon_by_role(records), _labels_of_sums(records)
    released = set() if records.releases.empty else {*records.releases["algorithm"]}
    labels = [label for label in labels_of(records) if label in released]
    crowd = is_crowd(records)
    return render(
        "privacy.html",
        settings={"unit": "client", "clip": 1.0, "delta": 1e-5, **settings},
        simulated=simulated_text(settings.get("noise_source", "seed")),
        simulation_only=SIMULATION_ONLY,
        summed=summed,
        colluders=settings.get("colluders") or 1,
        roles=list(roles.columns),
        rows=[
            [
                label,
                *(epsilon_text(float(roles[role][label])) for role in roles),
                _eyes(records, label) + ", sums alone" * (label in summed),
            ]
            for label in map(str, roles.index)
        ],
        spending=epsilon_curves(records),
        labels=labels,
        most=CROWD,
        matrices=None
        if crowd
        else [epsilon_matrix(records, label) for label in labels],
    )


def _labels_of_sums(records: Records) -> list[str]:
    """The algorithms whose server saw only sums, which reveal less than rows."""
    table = records.metrics
    if "epsilon_others" not in table:
        return []
    # A tolerance, because the two are summed in different orders.
    more = table["epsilon_others"] > table["epsilon_server"] * (1 + 1e-6)
    some = set(table["algorithm"][more])
    return [label for label in labels_of(records) if label in some]


def _eyes(records: Records, label: str) -> str:
    """In words, the roles that receive what a client sends."""
    table = records.releases
    own = table[table["algorithm"] == label] if len(table) else pd.DataFrame()
    if own.empty:
        return "nobody"
    server, peers = (own["to"] == SERVER).any(), (own["to"] != SERVER).any()
    names = ["the server"] * bool(server) + ["other clients"] * bool(peers)
    return " and ".join(names)
