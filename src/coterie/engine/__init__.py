"""Runs methods in rounds or in virtual time, with clocks for virtual time."""

from __future__ import annotations

from .clocks import Clock, Delays, LinkDelays, Rings, clock, trace
from .events import Event, EventLoop, run_events
from .periods import Pace
from .rounds import Round, run_rounds
from .servers import SERVERS, with_server

__all__ = [
    "SERVERS",
    "Clock",
    "Delays",
    "Event",
    "EventLoop",
    "LinkDelays",
    "Pace",
    "Rings",
    "Round",
    "clock",
    "run_events",
    "run_rounds",
    "trace",
    "with_server",
]
