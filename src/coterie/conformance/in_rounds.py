"""Checks of what methods promise in rounds alone."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from ..algorithms.local import local
from ..checks import InputError
from ..clients.groups import block
from ..data.federation import Federation
from ..engine.states import whole
from ..privacy.training import Mechanism, foresee, privately
from ..types import Algorithm
from .cases import (
    ACTIVE,
    ROUNDS,
    Case,
    NotApplicable,
    Setting,
    Trace,
    close,
    followed,
    leaves,
    shared,
    simulated,
    starting_rows,
    trace,
)
from .divided import Threads, divided
from .federations import CLIENTS, small_federation


def check_identical_clients(case: Case) -> None:
    """Clients with the same data, draws and start keep the same model."""
    twins = small_federation().select(torch.tensor([2] * CLIENTS))
    models_now = trace(case.build(twins), twins, Setting()).personal
    close(models_now, models_now[:1], "identical clients drift apart")


def check_local_limit(case: Case) -> None:
    """Identity weights, or being alone, give local training."""
    if not {"weights", "precision"} & set(case.ingredients):
        raise NotApplicable("the method takes neither `weights` nor `precision`.")
    effective = {**case.defaults, **case.options}
    if "lr" not in effective:
        raise NotApplicable("the method has no option `lr`.")
    shared = {n: v for n, v in effective.items() if n in Case(local).defaults}
    setting = Setting(batch_size=0)  # or else the two would draw other minibatches
    everybody = small_federation()
    alone = everybody.only(0)
    # A graph has two nodes at least.
    pairs = [] if "mixing" in case.ingredients else [(alone, case.build(alone))]
    if "weights" in case.ingredients:
        nobody = torch.eye(len(everybody))
        pairs.append((everybody, case.build(everybody, instead={"weights": nobody})))
    if not pairs:
        raise NotApplicable("nobody is alone on a graph.")
    for federation, algorithm in pairs:
        ours = trace(algorithm, federation, setting).personal
        theirs = trace(Case(local, shared).build(federation), federation, setting)
        close(ours, theirs.personal, "without others it is not local training")


def _in_parts(
    case: Case, federation: Federation, size: int, active: Tensor | None
) -> list[Trace]:
    """Each thread's run of its own rows."""
    setting, x = Setting(), starting_rows(federation, Setting())

    def run(group: Threads) -> Trace:
        mine = block(len(federation), group)
        own = federation.select(torch.arange(len(federation))[mine])
        simulation = simulated(own, setting, group)
        found = followed(case.build(federation), simulation, x[mine], active=active)
        whole(found.states[-1], group, len(federation))  # refuses what is not marked
        return found

    return divided(run, size)


def check_divided(case: Case) -> None:
    """Clients divided among processes get the same models, and send by verbs alone."""
    federation = small_federation()
    for size, active, together in ((2, None, case.usual), (3, ACTIVE, case.partial)):
        parts = _in_parts(case, federation, size, active)
        models_now = torch.cat([part.personal for part in parts])
        close(models_now, together.personal, f"divided among {size} processes")
        for part in parts:
            counted = part.sent == together.sent
            assert counted, "what is sent differs in a divided federation."


def check_inactive_rows(case: Case) -> None:
    """The personal model of a client that takes no part does not change.

    Methods whose clients share models are excepted: a new global model is new for
    everybody. They are known by two clients having exactly the same one, be it where
    these do not answer and so cannot tune it before use.
    """
    if "radius" in case.ingredients:
        raise NotApplicable("models are tied to each other in this method.")
    federation, setting = small_federation(), Setting()
    algorithm, state = case.build(federation), case.usual.states[1]
    simulation, x = simulated(federation, setting), starting_rows(federation, setting)
    models_now, of_some = (
        followed(algorithm, simulation, x, 1, (1, state), active).personal
        for active in (None, ACTIVE)
    )
    for rows in (models_now, of_some, *leaves(state).values()):
        # Also several models or directions of all clients, (n, C, D).
        if isinstance(rows, Tensor) and rows.shape[-1:] == models_now.shape[1:]:
            if rows.dim() > 1 and len(rows) == CLIENTS and shared(rows.flatten(1)):
                raise NotApplicable("clients share models in this method.")
    before = followed(algorithm, simulation, x, 0, active=ACTIVE).personal
    after = case.partial.personal
    assert after.isfinite().all(), "models are not finite when some take no part."
    changed = (before != after).any(1)
    wrong = (changed & ~ACTIVE).nonzero()[:, 0].tolist()
    assert not wrong, f"models of inactive clients {wrong} changed."
    idle = (~changed & ACTIVE).nonzero()[:, 0].tolist()
    assert not idle, f"models of active clients {idle} did not change."


def check_inactive_data(case: Case) -> None:
    """Data of clients that take no part are not used: they may even be NaN."""
    federation, setting = small_federation(), Setting()
    features = federation.features.clone()
    for client in (~ACTIVE).nonzero()[:, 0].tolist():
        first, size = federation.train.start[client], federation.train.size[client]
        features[federation.train.index[first : first + size]] = math.nan
    without = replace(federation, features=features)
    # Ingredients are made before training, when all are there.
    found = trace(case.build(federation), without, setting, active=ACTIVE)
    assert found.personal.isfinite().all(), "data of inactive clients were used."
    close(found.personal, case.partial.personal, "data of inactive clients matter")


def check_without_noise(case: Case) -> None:
    """Private training without clipping and noise gives the same models."""
    federation, setting = small_federation(), Setting()
    simulation, x = simulated(federation, setting), starting_rows(federation, setting)
    algorithm, half = case.build(federation), ROUNDS // 2
    rounds = [torch.ones_like(ACTIVE)] * half + [ACTIVE] * half
    try:
        columns = x.shape[1]
        foreseen = foresee(algorithm, rounds, seed=0, label="it", columns=columns)
    except InputError as refusal:
        raise NotApplicable(str(refusal)) from None
    private = privately(algorithm, foreseen, Mechanism(math.inf, 0.0), simulation.names)

    def models(method: Algorithm) -> Tensor:
        """After rounds in which all take part, and after some in which not all do."""
        first = followed(method, simulation, x, half)
        start = half, first.states[-1]
        then = followed(method, simulation, x, ROUNDS, start, ACTIVE)
        return torch.cat([first.personal, then.personal])

    close(models(private), models(algorithm), "without noise, private training")
