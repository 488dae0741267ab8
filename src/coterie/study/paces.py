"""The durations in a study with [time]."""

from __future__ import annotations

from ..engine.clocks import Rings
from ..engine.periods import Pace
from ..engine.times import usual_work
from ..graphs.capacities import loss_rates
from ..types import Algorithm
from .setup import Setup


def pace_of(setup: Setup, method: Algorithm) -> Pace:
    """The durations of computing, messages and meetings in a study with [time]."""
    time, seed = setup.study.time, setup.seed
    assert time is not None  # only called with [time]
    everybody = len(setup.federation) + setup.study.run.newcomers
    pace = Pace(
        time.clock(seed, everybody),
        float(time.period),  # which may be of NumPy
        time.messages(seed),
        time.capacity or None,
    )
    flow = method.flow
    if flow is None or flow.edges is None:
        return pace
    edges, work = flow.edges.cpu(), usual_work(flow, setup.simulation)
    rates = time.rates(len(edges), float(work.max()))
    if flow.couples and not time.rings:
        # Theorem 5.5, with the typical times of every node and of messages.
        seconds = work * time.medians(pace.clock, setup.federation.clients.cpu())
        busy = time.typical_message + seconds[edges].amax(1)
        rates = loss_rates(edges, busy)
    return pace._replace(
        rings=Rings(setup.federation.clients.cpu()[edges], rates, seed)
    )
