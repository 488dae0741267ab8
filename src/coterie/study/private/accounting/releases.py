"""What a private run has released so far, and how that is reported."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ....engine.checkpoints import Moment
from ....privacy.accounting.accounts import by_pairs, by_role, epsilons
from ....privacy.accounting.ledger import Release
from ....privacy.mechanisms import (
    PerSampleState,
    PrivateFlow,
    PrivateState,
    bound_on_samples,
    events_of,
    spent_by_pairs,
    spent_on_samples,
)
from ....records import SNAPSHOT_CLIENTS, Cell
from ....types import SERVER
from ...config import Study
from ...setup import Setup

PEERS = -2
"""Stands for all other clients, if there are too many pairs to name."""


def spent_of(state: Any, study: Study) -> dict[str, Tensor]:
    """The epsilon (N,) of each client so far; nothing if none is promised."""
    state = state.state if isinstance(state, Moment) else state
    privacy = study.privacy
    if (
        isinstance(state, PerSampleState) and privacy is not None
    ):  # exact only at the end
        bound = bound_on_samples(state, privacy.delta)
        # The noise suits all rounds together, so no part of them costs more.
        return {"epsilon": bound.clamp(max=privacy.epsilon or math.inf)}
    if not isinstance(state, PrivateState | PrivateFlow) or privacy is None:
        return {}
    found = {"epsilon": epsilons(state.spent, privacy.delta)}
    if privacy.secure and isinstance(state, PrivateState):
        for role, squares in by_role(events_of(state.ledger), len(state.spent)).items():
            found[f"epsilon_{role}"] = epsilons(squares, privacy.delta)
    return found


def worst_epsilon(state: Any, study: Study) -> float | None:
    """The epsilon of the client that has released most; None if none is promised."""
    found = spent_of(state, study)
    return float(found["epsilon"].max()) if found else None


def stopped_text(cell: Cell, study: Study) -> str:
    """One sentence that says where the budget ended a run; "" if it did not."""
    if (
        not isinstance(cell.state, PrivateState | PerSampleState)
        or not cell.state.stopped
    ):
        return ""
    privacy = study.privacy
    assert privacy is not None  # only called with [privacy]
    budget = privacy.epsilon if privacy.budget is None else privacy.budget
    text = (
        f"{cell.label} (seed {cell.seed}): the budget of epsilon {budget!r} was used "
        f"up before round {cell.state.stopped}, and models stay as they were."
    )
    if cell.repeated:
        text += (
            f" {cell.repeated} rounds may have left before the run was killed, and "
            "were charged again."
        )
    return text


def releases_of(state: Any, setup: Setup) -> dict[str, Tensor]:
    """The epsilon of each client towards each receiver, one row for each pair."""
    privacy, clients = setup.study.privacy, setup.federation.clients.cpu()
    state = state.state if isinstance(state, Moment) else state
    if privacy is None:
        return {}
    if isinstance(state, PerSampleState):
        return _pair_table(spent_by_pairs(state, privacy.delta), clients)
    if not isinstance(state, PrivateState | PrivateFlow):
        return {}
    if len(clients) > SNAPSHOT_CLIENTS:  # too many pairs to keep
        squares = torch.where(_kinds_of_receivers(state), state.spent[:, None], 0.0)
    elif isinstance(state, PrivateState):
        squares = by_pairs(events_of(state.ledger), len(clients))
    else:  # in time, we assume that everybody sees every release
        squares = state.spent[:, None].repeat(1, len(clients) + 1).fill_diagonal_(0)
    return _pair_table(epsilons(squares, privacy.delta), clients)


def exact_epsilon(state: PerSampleState, study: Study) -> Tensor:
    """(N,) the exact epsilon of each client's samples; `spent_of` gives a bound."""
    assert study.privacy is not None  # only called with [privacy]
    return spent_on_samples(state, study.privacy.delta)


def _kinds_of_receivers(state: PrivateState | PrivateFlow) -> Tensor:
    """(2,) whether other clients, and a server, receive anything."""
    if isinstance(state, PrivateFlow):
        return torch.tensor([True, True])
    events = events_of(state.ledger)
    ends = [event.links[:, 1].cpu() for event in events if isinstance(event, Release)]
    to_server = torch.cat([torch.zeros(0), *ends]) == SERVER
    gossip = any(not isinstance(event, Release) for event in events)
    return torch.tensor([gossip or bool((~to_server).any()), bool(to_server.any())])


def _pair_table(found: Tensor, clients: Tensor) -> dict[str, Tensor]:
    """A row for each positive entry of (N, K + 1), by client and receiver."""
    peers = clients if found.shape[1] > 2 else torch.tensor([PEERS])
    sender, receiver = (found > 0).nonzero().unbind(1)
    if not len(sender):
        return {}
    to = torch.cat([peers, torch.tensor([SERVER])])[receiver]
    return {
        "client": clients[sender],
        "to": to,
        "epsilon": found[sender, receiver],
    }
