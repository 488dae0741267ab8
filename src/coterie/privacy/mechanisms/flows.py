"""A flow in which clients answer with clipped gradients and noise.

A flow is a method without rounds, where no client waits for others. Every gradient gets
noise as soon as a client answers with it. So all that the method sends is computed from
releases. Examples are models that mix with neighbours' models, or a token that walks
from client to client. Each answer of a client adds to its cost, no matter who sees the
answer: we do not claim that the path of a row hides anything. A client that has spent
its budget answers with zeros, which do not change a token. If a method declares that it
sends nothing, as `local` does, answers stay with their clients and cost nothing.

References:
    Even, "Stochastic gradient descent under Markovian sampling schemes", ICML 2023,
    arXiv 2302.14428, (7.5) of the thesis: private token SGD. There is no theorem that
    proves more than this account.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from ... import seeds
from ...checks import InputError
from ...types import Algorithm, Arrivals, TaskKind, gradient
from ..accounting.calibration import ENOUGH, Limits
from .dry_run.doubles import DoubleClients
from .dry_run.origins import is_of_data, track_marks
from .rows import Mechanism


@dataclass
class PrivateFlow:
    """The state of a flow, and what clients have spent so far."""

    state: Any
    spent: Tensor  # (N,) mu^2


def make_private_in_time(
    algorithm: Algorithm,
    mechanism: Mechanism,
    names: Int[Tensor, " n"],
    *,
    label: str,
    limits: Limits,
) -> Algorithm:
    """The algorithm, in which clients answer with clipped gradients and noise.

    Args:
        algorithm: a method with a flow.
        mechanism: how answers are clipped and get noise.
        names: identities of all clients, which name their noise.
        label: the name of the method in errors.
        limits: budgets; a client without budget left answers with zeros.

    Raises:
        InputError: if its clients answer with anything but gradients.
    """
    flow = algorithm.flow
    assert flow is not None  # callers have methods in time
    alone = flow.messages == "none" and flow.send is None and flow.meet is None
    telling = [not alone and _tells(kind, label) for kind in flow.kinds]
    cost = (
        (mechanism.sensitivity / mechanism.noise) ** 2 if mechanism.noise else math.inf
    )

    def init(x: Tensor) -> PrivateFlow:
        return PrivateFlow(flow.init(x), torch.zeros(len(x), dtype=torch.float64))

    def arrive(now_state: PrivateFlow, now: Arrivals) -> Iterable[int]:
        if telling[now.kind]:
            now = now._replace(answers=_private_answers(now_state, now))
        following = flow.arrive(now_state.state, now)
        if alone and now.sent:
            raise InputError(
                f"{label} cannot be trained privately in time: it says that nothing is "
                "sent, but its clients send each other rows."
            )
        return following

    def _private_answers(state: PrivateFlow, now: Arrivals) -> tuple[Tensor, ...]:
        who = torch.tensor(now.clients)
        after = state.spent[who] + cost
        refuses = after > limits.of_all * ENOUGH
        if limits.of_each is not None:
            refuses |= after > limits.of_each[who] * ENOUGH
        state.spent[who] = torch.where(refuses, state.spent[who], after)
        (g,) = now.answers
        stream = seeds.key(mechanism.seed, "privacy", "arrive", now.k)
        z = mechanism.release(g, 0.0, stream, names[who].to(g.device))
        return (torch.where(refuses.to(g.device)[:, None], 0.0, z),)

    same = "task", "personal", "info", "send", "meet", "ringing"
    rest: dict[str, Any] = {name: _inside(getattr(flow, name)) for name in same}
    made = flow._replace(init=init, arrive=arrive, welcome=None, **rest)
    return Algorithm(flow=made)


def _inside(call: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """The function for a private state: we call it with the state inside."""
    if call is None:
        return None
    return lambda guarded, *others: call(guarded.state, *others)


def _tells(kind: TaskKind, label: str) -> bool:
    """Whether answers to this kind of task are gradients; refuses other uses of data.

    We compare answers in two worlds with different data. Equal answers prove nothing,
    so we also mark what is computed from clients' numbers.
    """
    if kind.program is gradient:
        return True
    row = torch.ones(1, 5, dtype=torch.float64)
    answers: list[Any] = []
    for world in ("first", "second"):
        clients = DoubleClients(
            seeds.generator("privacy", world), torch.zeros(1).long()
        )
        with track_marks() as following:
            try:
                answers.append(kind.program(clients, *[row] * (kind.reads or 1)))
            except Exception:  # of any kind: it wants other rows than a model
                break
        if following.read:
            break
    same = len(answers) == 2 and all(isinstance(a, Tensor) for a in answers)
    if same and not any(map(is_of_data, answers)) and torch.equal(*answers):
        return False
    raise InputError(
        f"{label} cannot be trained privately in time: its clients answer with more "
        "than gradients."
    )
