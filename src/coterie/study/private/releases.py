"""What a private run has released so far, and what it says of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...engine.checkpoints import Moment
from ...privacy.accounts import by_pairs, epsilons, totals, unsummed
from ...privacy.training import (
    Counted,
    Guarded,
    GuardedFlow,
    bound_on_samples,
    events_of,
    spent_on_samples,
)
from ...records import SNAPSHOT_CLIENTS, Cell
from ...types import SERVER
from ..config import Study
from ..setup import Setup


def spent_of(state: Any, study: Study) -> dict[str, Tensor]:
    """The epsilon (N,) of each client so far; nothing where nobody promises any."""
    state = state.state if isinstance(state, Moment) else state
    privacy = study.privacy
    if isinstance(state, Counted) and privacy is not None:  # exactly only at the end
        return {"epsilon": bound_on_samples(state, privacy.delta)}
    if not isinstance(state, Guarded | GuardedFlow) or privacy is None:
        return {}
    found = {"epsilon": epsilons(state.spent, privacy.delta)}
    if privacy.secure and isinstance(state, Guarded):
        events = unsummed(events_of(state.ledger), 2 * privacy.clip)
        alone = totals(events, len(state.spent))
        found["epsilon_local"] = epsilons(alone, privacy.delta)
    return found


def worst_epsilon(state: Any, study: Study) -> float | None:
    """That of the client who has released most, where there is one."""
    found = spent_of(state, study)
    return float(found["epsilon"].max()) if found else None


def stopped_text(cell: Cell, study: Study) -> str:
    """Where the budget ended a run, one sentence; nothing elsewhere."""
    if not isinstance(cell.state, Guarded | Counted) or not cell.state.stopped:
        return ""
    budget = study.privacy and study.privacy.budget
    return (
        f"{cell.label} (seed {cell.seed}): the budget of epsilon {budget!r} was used "
        f"up before round {cell.state.stopped}, and models stay as they were."
    )


def releases_of(state: Any, setup: Setup) -> dict[str, Tensor]:
    """What each client has told whom, in the words of epsilon, a row for each pair."""
    privacy, clients = setup.study.privacy, setup.federation.clients.cpu()
    state = state.state if isinstance(state, Moment) else state
    if isinstance(state, Counted) and privacy is not None:
        found = spent_on_samples(state, privacy.delta)
        to = torch.full_like(clients, SERVER)  # or whoever sees what is sent
        return {"client": clients, "to": to, "epsilon": found}
    if not isinstance(state, Guarded | GuardedFlow) or privacy is None:
        return {}
    if len(clients) > SNAPSHOT_CLIENTS or not bool(state.spent.any()):
        return {}  # so many pairs are not kept
    if isinstance(state, Guarded):
        squares = by_pairs(events_of(state.ledger), len(clients))
    else:  # anybody may come to see what is made of it
        squares = state.spent[:, None].repeat(1, len(clients) + 1).fill_diagonal_(0)
    sender, receiver = (squares > 0).nonzero().unbind(1)
    to = torch.cat([clients, torch.tensor([SERVER])])[receiver]
    found = epsilons(squares[sender, receiver], privacy.delta)
    return {"client": clients[sender], "to": to, "epsilon": found}
