"""Mechanisms that make releases private: they clip rows and samples, and add noise.

Every release enters a ledger of `accounting` before it leaves. Other rooms may use the
listed names, and the packages `noise`, `per_sample` and `dry_run`.
"""

from ...names import publish
from .dry_run.foreseen import CallPlan as CallPlan
from .dry_run.foreseen import plan_calls as plan_calls
from .flows import PrivateFlow as PrivateFlow
from .flows import make_private_in_time as make_private_in_time
from .methods import PrivateState as PrivateState
from .methods import costs_of as costs_of
from .methods import events_of as events_of
from .methods import make_private as make_private
from .oracle import PrivateOracle as PrivateOracle
from .rows import Mechanism as Mechanism
from .samples import AskedSteps as AskedSteps
from .samples import PerSampleState as PerSampleState
from .samples import StepPlan as StepPlan
from .samples import bound_on_samples as bound_on_samples
from .samples import count_releases as count_releases
from .samples import plan_steps as plan_steps
from .samples import spent_by_pairs as spent_by_pairs
from .samples import spent_on_samples as spent_on_samples
from .watching import Witness as Witness

publish(__name__)
