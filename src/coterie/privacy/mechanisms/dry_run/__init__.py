"""Runs a method without data, and checks what it declares to release."""

from ....names import publish
from .declarations import UndeclaredRelease as UndeclaredRelease
from .declarations import declaration as declaration
from .declarations import is_within as is_within
from .foreseen import Call as Call
from .foreseen import CallPlan as CallPlan
from .foreseen import Refusal as Refusal
from .foreseen import plan_calls as plan_calls
from .foreseen import verify_releases as verify_releases

publish(__name__)
