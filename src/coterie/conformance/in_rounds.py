"""Checks of what methods promise in rounds alone."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from ..algorithms.local import local
from ..checks import InputError
from ..deploy.remote import SiteError
from .cases import (
    CLIENTS,
    Case,
    NotApplicable,
    Setting,
    close,
    leaves,
    relabelled,
    small_federation,
    trace,
)


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
    pairs = [(alone, case.build(alone))]
    if "weights" in case.ingredients:
        nobody = torch.eye(len(everybody))
        pairs.append((everybody, case.build(everybody, instead={"weights": nobody})))
    for federation, algorithm in pairs:
        ours = trace(algorithm, federation, setting).personal
        theirs = trace(Case(local, shared).build(federation), federation, setting)
        close(ours, theirs.personal, "without others it is not local training")


def check_sites(case: Case) -> None:
    """Clients at sites, asked by message, give the same models."""
    federation = small_federation()
    here = trace(case.build(federation), federation, Setting())
    own = case.factory.__module__.partition(".")[0] + "."
    there = Setting(sites=("coterie.", own))
    try:
        remote = trace(case.build(federation), federation, there)
    except (InputError, SiteError) as error:
        raise AssertionError(f"a site cannot run it: {error}") from error
    close(here.personal, remote.personal, "a simulation and sites")


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
        if isinstance(rows, Tensor) and rows.shape == models_now.shape:
            if len(rows.unique(dim=0)) < len(rows):
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
