"""The axis of a study: rounds, or virtual seconds with [time].

With [time], a recorded round is a tick: round t is at the virtual time t * period.
Clients that need not wait for others have done more work by then.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from ..checks import several
from ..records import Records


class Axis(NamedTuple):
    """The unit of the recorded rounds, and how they are written."""

    name: Literal["round", "time"]
    period: float  # virtual seconds per tick; 1 without a virtual clock
    end: str  # when final scores were taken, in words
    title: str  # of an axis in a figure

    @property
    def has_clock(self) -> bool:
        """Whether the study has a virtual clock."""
        return self.name == "time"

    def place(self, t: float) -> float:
        """The position of round t on the axis."""
        return float(self.period * t)

    def at(self, t: float) -> str:
        """Round t in words, such as "round 5"."""
        if self.has_clock:
            return f"virtual time {in_seconds(self.place(t))}"
        return f"round {t:.0f}"

    def length(self, t: float) -> str:
        """A length of t rounds in words, such as "5 rounds"."""
        if self.has_clock:
            return virtual_seconds(self.place(t))
        return several(round(t), "round")


def axis_of(records: Records) -> Axis:
    """The axis of a study."""
    table = records.study.get("time")
    if table is None:
        return Axis("round", 1.0, "at the last round", "round")
    period = float(table["period"])
    ends = records.metrics.groupby("algorithm")["round"].max().unique()
    # Runs that were interrupted have no common end.
    end = "at the end of each run"
    if len(ends) == 1:
        end = f"at the end, after {virtual_seconds(period * float(ends[0]))}"
    return Axis("time", period, end, "virtual seconds")


def in_seconds(value: float) -> str:
    """A time with its unit.

    >>> in_seconds(12345.6), in_seconds(0.25)
    ('12,346 s', '0.25 s')
    """
    return f"{_number(value)} s" if np.isfinite(value) else "unknown"


def virtual_seconds(value: float) -> str:
    """A time in words.

    >>> virtual_seconds(1), virtual_seconds(80.5)
    ('1 virtual second', '80.5 virtual seconds')
    """
    return f"{_number(value)} virtual second{'s' * (value != 1)}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
