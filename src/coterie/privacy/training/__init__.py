"""Private training of any method: what it sends is foreseen, clipped and noised."""

from .flows import GuardedFlow, privately_in_time
from .foreseen import Foreseen, foresee
from .mechanisms import Mechanism
from .methods import Guarded, Limits, calibrated, costs_of, events_of, privately
from .oracle import PrivateOracle
from .samples import (
    AskedSteps,
    Counted,
    Noises,
    Planned,
    bound_on_samples,
    counted,
    foreseen_steps,
    noise_for_samples,
    spent_by_pairs,
    spent_on_samples,
    with_noise,
)
from .watching import Witness

__all__ = [
    "AskedSteps",
    "Counted",
    "Foreseen",
    "Guarded",
    "GuardedFlow",
    "Limits",
    "Mechanism",
    "Noises",
    "Planned",
    "PrivateOracle",
    "Witness",
    "bound_on_samples",
    "calibrated",
    "costs_of",
    "counted",
    "events_of",
    "foresee",
    "foreseen_steps",
    "noise_for_samples",
    "privately",
    "privately_in_time",
    "spent_by_pairs",
    "spent_on_samples",
    "with_noise",
]
