"""Mechanisms that make releases private: they clip rows and samples, and add noise.

Every release enters a ledger of `accounting` before it leaves. Other rooms may use the
listed names, and the packages `noise`, `per_sample` and `dry_run`.
"""

from .dry_run.foreseen import CallPlan, plan_calls
from .flows import PrivateFlow, make_private_in_time
from .methods import PrivateState, costs_of, events_of, make_private
from .oracle import PrivateOracle
from .rows import Mechanism
from .samples import (
    AskedSteps,
    PerSampleState,
    StepPlan,
    bound_on_samples,
    count_releases,
    plan_steps,
    spent_by_pairs,
    spent_on_samples,
)
from .watching import Witness

__all__ = [
    "AskedSteps",
    "CallPlan",
    "Mechanism",
    "PerSampleState",
    "PrivateFlow",
    "PrivateOracle",
    "PrivateState",
    "StepPlan",
    "Witness",
    "bound_on_samples",
    "costs_of",
    "count_releases",
    "events_of",
    "make_private",
    "make_private_in_time",
    "plan_calls",
    "plan_steps",
    "spent_by_pairs",
    "spent_on_samples",
]
