"""The cost of learning together, in minutes and megabytes."""

from __future__ import annotations

import numpy as np

from ...records import Records
from ...scores.finals import local_label
from ...scores.summaries import costs_of
from ...scores.words import duration, in_bytes
from .nouns import client_nouns


def cost_text(records: Records, label: str) -> str:
    """Sentences on the training time and the bytes that clients send and receive."""
    own, alone = costs_of(records, label), costs_of(records, str(local_label(records)))
    parts, many = [], client_nouns(records)[1]
    if np.isfinite(own["seconds"]):
        text = f"Training took {duration(own['seconds'])} on this machine"
        if np.isfinite(alone["seconds"]):
            text += f" (alone: {duration(alone['seconds'])})"
        parts.append(f"{text}.")
    if np.isfinite(own["bytes"]) and own["bytes"] > 0:
        sent = in_bytes(own["bytes"])
        parts.append(f"The {many} sent and received {sent} in all.")
    elif own["bytes"] == 0:
        parts.append("Nothing was sent.")
    return " ".join(parts)
