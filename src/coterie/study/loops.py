"""How a study trains an algorithm: in rounds, or in virtual time.

Whatever it is, it begins with a state, yields rounds, and gives every client a model.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

from torch import Tensor

from ..engine.clocks import Rings
from ..engine.periods import Pace, begun, paced, run_waiting, run_without_waiting
from ..engine.rounds import Round, beginning, run_rounds
from ..theory.mixing import loss_rates
from ..types import Algorithm, Flow, Oracle, State
from .config import Study
from .setup import Ground


class Training(NamedTuple):
    """How to begin, how to go on, and which models clients use."""

    init: Callable[[], State]
    rounds: Callable[..., Iterator[Round]]  # given `rounds` and `start`
    personal: Callable[[State, Oracle], Tensor]
    inner: Callable[[State], State]  # what the algorithm itself calls its state


def training_of(study: Study, method: Algorithm, ground: Ground, seed: int) -> Training:
    """How this study trains a method, of which it has one face, on this ground."""
    if method.flow is not None:
        return _without_waiting(study, method, method.flow, ground, seed)
    common = (method, ground.simulation, ground.x)
    share = study.run.participation
    if study.time is None:
        rounds = functools.partial(run_rounds, *common, seed=seed, participation=share)
        return Training(
            lambda: method.init(ground.x, beginning(ground.simulation)),
            rounds,
            method.personal,
            lambda state: state,
        )
    return Training(
        lambda: paced(method, ground.simulation, ground.x),
        functools.partial(
            run_waiting,
            *common,
            pace=pace_of(study, method, ground, seed),
            seed=seed,
            participation=share,
        ),
        lambda state, oracle: method.personal(state.state, oracle),
        lambda state: state.state,
    )


def _without_waiting(
    study: Study, method: Algorithm, flow: Flow, ground: Ground, seed: int
) -> Training:
    common = (method, ground.simulation, ground.x)
    pace = pace_of(study, method, ground, seed)
    return Training(
        lambda: begun(*common, pace, seed),
        functools.partial(run_without_waiting, *common, pace=pace, seed=seed),
        lambda state, oracle: flow.personal(state.state),
        lambda state: state.state,
    )


def pace_of(study: Study, method: Algorithm, ground: Ground, seed: int) -> Pace:
    """How long things take in a study of time."""
    assert study.time is not None  # asked of studies that have one
    time, everybody = study.time, len(ground.federation) + study.run.newcomers
    pace = Pace(
        time.clock(seed, everybody),
        float(time.period),  # which may be of NumPy
        time.messages(seed),
        time.capacity or None,
    )
    flow = method.flow
    if flow is None or flow.edges is None:
        return pace
    edges = flow.edges.cpu()
    rates = time.rates(len(edges))
    if flow.couples and not time.rings:
        # Theorem 5.5, for what is typical of every node, and of messages.
        seconds = time.medians(pace.clock, ground.federation.clients.cpu())
        busy = time.typical_message + seconds[edges].amax(1)
        rates = loss_rates(edges, busy)
    return pace._replace(
        rings=Rings(ground.federation.clients.cpu()[edges], rates, seed)
    )
