"""How a gradient becomes a step, also a late one, and the nearest models in balls."""

from . import conjugates, continuized, delayed_descent, dual_descent, meetings
from .hessians import hessian_times, sharpness
from .mirrors import Newton, conjugate_gradients, mirrored, preconditioned
from .projections import Balls, Projection, onto_balls, project
from .steps import (
    Descent,
    PlainDescent,
    descend,
    follow,
    proximal_sgd,
    sgd,
    step_size,
    velocity,
)

__all__ = [
    "Balls",
    "Descent",
    "Newton",
    "PlainDescent",
    "Projection",
    "conjugate_gradients",
    "conjugates",
    "continuized",
    "delayed_descent",
    "descend",
    "dual_descent",
    "follow",
    "hessian_times",
    "meetings",
    "mirrored",
    "onto_balls",
    "preconditioned",
    "project",
    "proximal_sgd",
    "sgd",
    "sharpness",
    "step_size",
    "velocity",
]
