"""How a gradient becomes a step, also a late one, and the nearest models in balls."""

from . import conjugates, continuized, delayed_descent, dual_descent, meetings
from .hessians import sharpness
from .mirrors import Newton, conjugate_gradients, mirrored, preconditioned
from .projections import Projection, onto_balls, project
from .steps import (
    Descent,
    LocalDecay,
    LocalDescent,
    LocalLr,
    PlainDescent,
    Schedule,
    descend,
    follow,
    sgd,
    step_size,
    velocity,
)

__all__ = [
    "Descent",
    "LocalDecay",
    "LocalDescent",
    "LocalLr",
    "Newton",
    "PlainDescent",
    "Projection",
    "Schedule",
    "conjugate_gradients",
    "conjugates",
    "continuized",
    "delayed_descent",
    "descend",
    "dual_descent",
    "follow",
    "meetings",
    "mirrored",
    "onto_balls",
    "preconditioned",
    "project",
    "sgd",
    "sharpness",
    "step_size",
    "velocity",
]
