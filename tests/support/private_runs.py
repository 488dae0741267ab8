"""Private runs on tiny federations."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch

from coterie.algorithms import ALGORITHMS
from coterie.conformance import cases
from coterie.conformance.federations import CLIENTS, small_federation
from coterie.privacy.accounting.calibration import Limits
from coterie.privacy.mechanisms import (
    Mechanism,
    PrivateOracle,
    costs_of,
    events_of,
    make_private,
    plan_calls,
)
from coterie.records.ledgers import LEDGER, LedgerEntry

EVERYBODY = torch.ones(CLIENTS, dtype=torch.bool)


def method(name: str, federation=None, **options):
    """A method of the library for the small federation."""
    federation = small_federation() if federation is None else federation
    return cases.Case(ALGORITHMS[name], options).build(federation)


def seen(
    algorithm,
    *,
    rounds: int = cases.ROUNDS,
    active=EVERYBODY,
    label: str = "it",
    columns: int | None = None,
):
    """What it will send."""
    options = {"seed": 0, "label": label, "columns": columns}
    return plan_calls(algorithm, [active] * rounds, **options)


def cost(algorithm, *, rounds: int = cases.ROUNDS, active=EVERYBODY, **options):
    """What every round costs each client, in units of one release."""
    foreseen = seen(algorithm, rounds=rounds, active=active)
    return costs_of(algorithm, foreseen, [active] * rounds, seed=0, **options)


def one_start() -> torch.Tensor:
    """The same model for everybody, as in a study."""
    return cases.starting_rows(small_federation(), cases.Setting())[:1].repeat(
        CLIENTS, 1
    )


def own_budgets(budgets: dict[int, float], clients: int = CLIENTS) -> Limits:
    """mu^2 of these clients; the others have no limit."""
    own = torch.full((clients,), math.inf, dtype=torch.float64)
    for client, budget in budgets.items():
        own[client] = budget
    return Limits(of_each=own)


def private_oracle(oracle, mechanism: Mechanism, foreseen, x, **options):
    """That of round 1, whose clients all know these models."""
    calls, names = foreseen.rounds[1], torch.arange(len(x))
    refs = x[:, None].repeat(1, len(foreseen.slots), 1)
    return PrivateOracle(oracle, mechanism, foreseen, calls, refs, names, 1, **options)


def private_run(
    algorithm,
    mechanism: Mechanism,
    *,
    federation=None,
    rounds: int = cases.ROUNDS,
    foreseen=None,
    **options,
):
    """The trace of a private run, and its events."""
    foreseen = seen(algorithm, rounds=rounds) if foreseen is None else foreseen
    federation = small_federation() if federation is None else federation
    simulation = cases.simulation_of(federation, cases.Setting())
    made = make_private(algorithm, foreseen, mechanism, simulation.names, **options)
    trace = cases.trace_rounds(made, simulation, one_start(), rounds)
    return trace, events_of(trace.states[-1].ledger)


def entries(runs: Path) -> list[LedgerEntry]:
    """What the ledger of all data sets in a runs folder has."""
    found = sorted((runs / LEDGER).glob("*/*.json"))
    return [LedgerEntry(**json.loads(path.read_text())) for path in found]
