"""Chooses how a study runs a method: in rounds, or as a flow in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..checks import InputError
from ..options import unused_options
from ..types import Algorithm


def refuse_unused(
    name: str, maker: Callable[..., Any], options: Iterable[str], *, waits: bool
) -> None:
    """Refuses options that the face does not use."""
    other = unused_options(maker, waits=waits)
    for option in options:
        if option in other:
            where = "with `waits = false`, in time" if waits else "in rounds"
            raise InputError(
                f"[algorithm] the option {option!r} of {name} is used only {where}."
            )


def one_face(
    algorithm: Algorithm, name: str, label: str, *, timed: bool, waits: bool | None
) -> Algorithm:
    """The algorithm with only the form that a study uses: rounds or flow.

    An entry [[algorithm]] of the study can set whether clients wait for each other. By
    default they wait. There are two exceptions: the method has no rounds; or the study
    has a clock and the method sends nothing.

    Args:
        algorithm: the algorithm from its factory.
        name: the name of the method.
        label: the label of the entry.
        timed: whether the study has a clock.
        waits: the entry's option `waits` (None: not set).
    """
    rounds, flow = "rounds" in algorithm.faces, algorithm.flow
    if not timed and not rounds:
        raise InputError(
            f"{name} does not go by rounds: it needs a table [time] in the study."
        )
    if waits is None:
        alone = flow is not None and flow.messages == "none"
        waits = not timed or (rounds and not alone)
    if waits and not rounds:
        raise InputError(f"`waits` of {label} must be false: {name} has no rounds.")
    if not waits and flow is None:
        raise InputError(
            f"`waits` of {label} must be true: {name} goes round by round."
        )
    return algorithm._replace(flow=None) if waits else Algorithm(flow=flow)
