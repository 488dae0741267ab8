"""What happens when: rounds, events in virtual time, and the clocks behind them."""

from __future__ import annotations

from .checkpoints import Moment
from .clocks import Clock, Delays, Links, Rings, clock, trace
from .events import Event, Run, run_events
from .periods import Pace, run_waiting, run_without_waiting
from .rounds import Lapse, Round, run_rounds

__all__ = [
    "Clock",
    "Delays",
    "Event",
    "Lapse",
    "Links",
    "Moment",
    "Pace",
    "Rings",
    "Round",
    "Run",
    "clock",
    "run_events",
    "run_rounds",
    "run_waiting",
    "run_without_waiting",
    "trace",
]
