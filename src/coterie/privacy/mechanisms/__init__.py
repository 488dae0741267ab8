"""Makes private what clients release: clips rows and samples, and adds noise.

Every release is appended to a ledger of `accounting` before it leaves. Other rooms may
use what is listed, and the packages `noise`, `per_sample` and `dry_run`.
"""

from .dry_run.foreseen import Foreseen, foresee
from .flows import GuardedFlow, privately_in_time
from .methods import Guarded, costs_of, events_of, privately
from .oracle import PrivateOracle
from .rows import Mechanism
from .samples import (
    AskedSteps,
    Counted,
    Planned,
    bound_on_samples,
    counted,
    foreseen_steps,
    spent_by_pairs,
    spent_on_samples,
)
from .watching import Witness

__all__ = [
    "AskedSteps",
    "Counted",
    "Foreseen",
    "Guarded",
    "GuardedFlow",
    "Mechanism",
    "Planned",
    "PrivateOracle",
    "Witness",
    "bound_on_samples",
    "costs_of",
    "counted",
    "events_of",
    "foresee",
    "foreseen_steps",
    "privately",
    "privately_in_time",
    "spent_by_pairs",
    "spent_on_samples",
]
