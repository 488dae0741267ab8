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
from .cases import (
    CLIENTS,
    ROUNDS,
    Case,
    NotApplicable,
    Setting,
    Trace,
    close,
    followed,
    leaves,
    relabelled,
    shared,
    simulated,
    small_federation,
    starting_rows,
    trace,
)
from .divided import Threads, divided


def check_identical_clients(case: Case) -> None:
    """Clients with the same data, draws and start keep the same model."""
    twins = relabelled(small_federation(), torch.tensor([2] * CLIENTS))
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
    # With three processes, the first has nobody who takes part.
    absent = torch.tensor([False, False, True, True, False, True])
    for size, active in ((2, None), (3, absent)):
        together = trace(case.build(federation), federation, Setting(), active=active)
        parts = _in_parts(case, federation, size, active)
        models_now = torch.cat([part.personal for part in parts])
        close(models_now, together.personal, f"divided among {size} processes")
        for part in parts:
            counted = part.sent == together.sent
            assert counted, "what is sent differs in a divided federation."


_ACTIVE = torch.tensor([True, False, True, True, False, True])


def check_inactive_rows(case: Case) -> None:
    """The personal model of a client that takes no part does not change.

    Methods whose clients share models are excepted: a new global model is new for
    everybody. They are known by two clients having exactly the same one, be it where
    these do not answer and so cannot tune it before use.
    """
    if "radius" in case.ingredients:
        raise NotApplicable("models are tied to each other in this method.")
    federation, setting = small_federation(), Setting()
    everybody = trace(case.build(federation), federation, setting, rounds=1)
    models_now, state = everybody.personal, everybody.states[-1]
    some = trace(
        case.build(federation),
        federation,
        setting,
        rounds=1,
        start=(1, state),
        active=_ACTIVE,
    )
    for rows in (models_now, some.personal, *leaves(state).values()):
        # Also several models or directions of all clients, (n, C, D).
        if isinstance(rows, Tensor) and rows.shape[-1:] == models_now.shape[1:]:
            if rows.dim() > 1 and len(rows) == CLIENTS and shared(rows.flatten(1)):
                raise NotApplicable("clients share models in this method.")
    algorithm = case.build(federation)
    before = trace(algorithm, federation, setting, rounds=0, active=_ACTIVE).personal
    after = trace(algorithm, federation, setting, active=_ACTIVE).personal
    assert after.isfinite().all(), "models are not finite when some take no part."
    changed = (before != after).any(1)
    wrong = (changed & ~_ACTIVE).nonzero()[:, 0].tolist()
    assert not wrong, f"models of inactive clients {wrong} changed."
    idle = (~changed & _ACTIVE).nonzero()[:, 0].tolist()
    assert not idle, f"models of active clients {idle} did not change."


def check_inactive_data(case: Case) -> None:
    """Data of clients that take no part are not used: they may even be NaN."""
    federation, setting = small_federation(), Setting()
    features = federation.features.clone()
    for client in (~_ACTIVE).nonzero()[:, 0].tolist():
        first, size = federation.train.start[client], federation.train.size[client]
        features[federation.train.index[first : first + size]] = math.nan
    without = replace(federation, features=features)
    expected = trace(case.build(federation), federation, setting, active=_ACTIVE)
    # Ingredients are made before training, when all are there.
    found = trace(case.build(federation), without, setting, active=_ACTIVE)
    assert found.personal.isfinite().all(), "data of inactive clients were used."
    close(found.personal, expected.personal, "data of inactive clients matter")


def check_without_noise(case: Case) -> None:
    """Private training without clipping and noise gives the same models."""
    federation, setting = small_federation(), Setting()
    simulation, x = simulated(federation, setting), starting_rows(federation, setting)
    for active in (None, _ACTIVE):
        algorithm = case.build(federation)
        rounds = [torch.ones_like(_ACTIVE) if active is None else active] * ROUNDS
        try:
            columns = x.shape[1]
            foreseen = foresee(algorithm, rounds, seed=0, label="it", columns=columns)
        except InputError as refusal:
            raise NotApplicable(str(refusal)) from None
        private = privately(
            algorithm, foreseen, Mechanism(math.inf, 0.0), simulation.names
        )
        expected = followed(algorithm, simulation, x, active=active).personal
        found = followed(private, simulation, x, active=active).personal
        close(found, expected, "without noise, private training")
