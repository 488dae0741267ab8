"""Gradient steps, projections, and solvers for local problems."""

from . import conjugates, meetings
from .hessians import sharpness
from .mirrors import Newton, conjugate_gradients, inverse_mirror, preconditioned_step
from .projections import Projection, onto_balls, project
from .steps import (
    Descent,
    LocalDecay,
    LocalDescent,
    LocalLr,
    Schedule,
    descend,
    follow,
    sgd,
    step_numbers,
    step_size,
    velocity,
)

__all__ = [
    "Descent",
    "LocalDecay",
    "LocalDescent",
    "LocalLr",
    "Newton",
    "Projection",
    "Schedule",
    "conjugate_gradients",
    "conjugates",
    "descend",
    "follow",
    "inverse_mirror",
    "meetings",
    "onto_balls",
    "preconditioned_step",
    "project",
    "sgd",
    "sharpness",
    "step_numbers",
    "step_size",
    "velocity",
]
