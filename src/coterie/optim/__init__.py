"""Gradient steps, projections, and solvers for local problems."""

from ..names import publish
from . import conjugates as conjugates
from . import meetings as meetings
from .hessians import sharpness as sharpness
from .mirrors import Newton as Newton
from .mirrors import conjugate_gradients as conjugate_gradients
from .mirrors import inverse_mirror as inverse_mirror
from .mirrors import preconditioned_step as preconditioned_step
from .projections import Projection as Projection
from .projections import onto_balls as onto_balls
from .projections import project as project
from .steps import Descent as Descent
from .steps import LocalDecay as LocalDecay
from .steps import LocalDescent as LocalDescent
from .steps import LocalLr as LocalLr
from .steps import Schedule as Schedule
from .steps import descend as descend
from .steps import follow as follow
from .steps import sgd as sgd
from .steps import step_numbers as step_numbers
from .steps import step_size as step_size
from .steps import velocity as velocity

publish(__name__)
