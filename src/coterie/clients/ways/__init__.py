"""Ways to compute many models on a CPU: in one pass, or one model after the other."""

from .alone import RowModule, can_take_channels_last
from .choice import Work, convolves, runs_alone, work_of
from .threads import in_threads

__all__ = [
    "RowModule",
    "Work",
    "can_take_channels_last",
    "convolves",
    "in_threads",
    "runs_alone",
    "work_of",
]
