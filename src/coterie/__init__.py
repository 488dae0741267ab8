"""Coterie: personalised collaborative learning.

One model per client, and who should learn with whom.

>>> import coterie as co
>>> "adaptive_all_for_one" in co.ALGORITHMS
True
"""

from __future__ import annotations

from .algorithms import ALGORITHMS
from .checks import InputError, TrainingError
from .config import Study, read_study, study
from .data.federation import Federation, Table, federate
from .experiment import Result, run_study
from .models import with_group_norm
from .oracle import Simulation
from .rounds import run_rounds
from .types import Algorithm, Clients, Comparison, Info, Oracle

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Clients",
    "Comparison",
    "Federation",
    "Info",
    "InputError",
    "Oracle",
    "Result",
    "Simulation",
    "Study",
    "Table",
    "TrainingError",
    "federate",
    "read_study",
    "run_rounds",
    "run_study",
    "study",
    "with_group_norm",
]
