"""What a private run tells of its clients, in the eyes of each role."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from ..records import Records
from .finals import labels_of


def role_names(settings: Mapping[str, Any]) -> dict[str, str]:
    """Columns of epsilon in the records of secure sums, and in whose eyes each is.

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
    if count == 1:  # what is promised is against one
        del names["epsilon"]
    return names


def promised_to(settings: Mapping[str, Any]) -> str:
    """In whose eyes the epsilon of a study is, as [privacy] has it."""
    if settings.get("aggregation") != "secure":
        return "the server and all others"
    names = role_names(settings)
    return names.get("epsilon", names["epsilon_participant"])


def epsilon_by_role(records: Records) -> pd.DataFrame:
    """Epsilon of the worst client of each algorithm at its end, a column for each role.

    Where nothing is summed there is one column: all others see as much as anybody.
    Empty without [privacy].
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
