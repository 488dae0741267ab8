"""The epsilon of a private run against each role."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from ..records import Records
from .finals import labels_of


def role_names(settings: Mapping[str, Any]) -> dict[str, str]:
    """Columns of epsilon in records of secure sums, and the role of each.

    Args:
        settings: [privacy] of the study.
    """
    count = settings.get("colluders") or 1
    names = {
        "epsilon_server": "the server",
        "epsilon_participant": "the server and one participant",
        "epsilon": f"the server and {count} participants",
        "epsilon_others": "the server and all others",
    }
    if count == 1:  # `epsilon` equals `epsilon_participant`
        del names["epsilon"]
    return names


def promised_to(settings: Mapping[str, Any]) -> str:
    """Says in words against whom the epsilon of a study protects.

    Args:
        settings: the study's table [privacy].
    """
    if settings.get("aggregation") != "secure":
        return "the server and all others"
    names = role_names(settings)
    return names.get("epsilon", names["epsilon_participant"])


def epsilon_by_role(records: Records) -> pd.DataFrame:
    """Final epsilon of the worst client: a row per algorithm, a column per role.

    Without secure sums there is one column, for the server and all others together. The
    table is empty without [privacy].
    """
    settings, table = records.study.get("privacy"), records.metrics
    if not isinstance(settings, dict) or "epsilon" not in table:
        return pd.DataFrame()
    names = {"epsilon": "the server and all others"}
    if settings.get("aggregation") == "secure":
        names = role_names(settings)
        if not set(names) <= set(table.columns):  # a run of an earlier version
            names = {"epsilon": "the server"}
    last = table[table["round"] == table.groupby("algorithm")["round"].transform("max")]
    worst = last.groupby("algorithm")[list(names)].max().rename(columns=names)
    return worst.loc[[label for label in labels_of(records) if label in worst.index]]
