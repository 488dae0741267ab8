"""What happens when: rounds, events in virtual time, and the clocks behind them."""

from __future__ import annotations

from .clocks import Clock, Delays, Links, Rings, clock, trace
from .events import Event, Run, run_events
from .periods import Pace
from .rounds import Round, run_rounds

__all__ = [
    "Clock",
    "Delays",
    "Event",
    "Links",
    "Pace",
    "Rings",
    "Round",
    "Run",
    "clock",
    "run_events",
    "run_rounds",
    "trace",
]
