"""Makes a private method from any method.

The private method wraps another method. Its state holds three things: the state of that
method, the rows that clients already know of each other, and the ledger. So a run that
stops and resumes gives the same results, and counts every release.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ... import seeds
from ...checks import InputError
from ...clients.traffic import Sending
from ...clients.wrappers import PersonalOracle
from ...types import Algorithm, Info, Oracle, Rows, State
from ..accounting.accounts import at_most, totals
from ..accounting.calibration import Limits
from ..accounting.ledger import Event, Exchange, Input, Release
from .dry_run.doubles import Double
from .dry_run.foreseen import Call, CallPlan
from .dry_run.origins import MarkTracker
from .dry_run.scenarios import SCENARIOS, largest_costs, scenario_rounds
from .oracle import PrivateOracle
from .rows import Mechanism
from .watching import Watch, WatchedOracle, Witness, marks_of, with_marks

_KINDS: dict[str, Any] = {"Release": Release, "Input": Input, "Exchange": Exchange}


class PrivateState(NamedTuple):
    """The state of a method whose clients are private, and what they have released."""

    state: State
    refs: Rows  # (n, K, D) references of each client's rows, by place
    t: int  # rounds so far
    spent: Tensor  # (N,) mu^2 of each client, as promised: see `accounts.totals`
    ledger: list[Any]  # events, see `events_of`
    stopped: int  # the round before which the budget was spent; 0: it is not spent
    marks: list[bool]  # which parts of the state depend on data, see `watching`


def events_of(ledger: Iterable[Any]) -> tuple[Event, ...]:
    """The events in the ledger of a state, which may come from a file."""
    return tuple(_KINDS[name](*values) for name, *values in ledger)


def as_lists(events: Iterable[Event]) -> list[Any]:
    """The events as lists, as the ledger of a state holds them."""
    return [[type(event).__name__, *event] for event in events]


_NONE = Limits()


def make_private(
    algorithm: Algorithm,
    foreseen: CallPlan,
    mechanism: Mechanism,
    names: Int[Tensor, " m"],
    *,
    limits: Limits = _NONE,
    costs: Sequence[Tensor] = (),
    before: Sequence[Release] = (),
    witness: Witness | None = None,
    watched: bool = True,
) -> Algorithm:
    """The algorithm, in which clients release only clipped rows with noise.

    Args:
        algorithm: a method with rounds.
        foreseen: the calls of the method, from a dry run.
        mechanism: how rows are clipped and get noise.
        names: identities of all clients, which name their noise.
        limits: budgets.
        costs: for each round, (N,) the mu^2 that it may cost; see `costs_of`.
        before: releases before training, when the algorithm was made.
        witness: in an audit, a function that gets rows before their release.
        watched: whether clients have data, which must not leave without noise.
    """

    def wrap_oracle(
        oracle: Oracle,
        calls: Sequence[Call] | None,
        refs: Tensor,
        t: int,
        absent: Tensor,
        *,
        read: bool = False,
        at_home: bool = False,
    ) -> tuple[Oracle, PrivateOracle, Watch]:
        """The private oracle, the part of it that writes events, and its watch."""
        made: list[PrivateOracle] = []
        tells = foreseen.by_key is not None and not at_home
        watch = Watch(MarkTracker(read), t, tells=tells, witness=witness)

        def wrap(inner: Sending) -> PrivateOracle:
            given = inner, mechanism, foreseen, calls, refs, names, t
            refuses = absent if bool(absent.any()) else None
            made.append(PrivateOracle(*given, at_home=at_home, refuses=refuses))
            made[-1].watch = watch if watched else None
            return made[-1]

        assert isinstance(oracle, Sending | PersonalOracle)  # which may be wrapped
        found = oracle.wrap_with(wrap)
        return WatchedOracle(found, watch) if watched else found, made[-1], watch

    def following(watch: Watch) -> AbstractContextManager[None]:
        return watch.following.on() if watched else nullcontext()

    def init(x: Tensor, oracle: Oracle) -> PrivateState:
        known = x if oracle.home is None else x[:, ~oracle.home]
        if (home := algorithm.home) is not None:
            known = x[:, ~home.to(x.device)]
        refs = known[:, None].repeat(1, len(foreseen.slots), 1)
        nobody = torch.zeros_like(oracle.present)
        private, inside, watch = wrap_oracle(oracle, foreseen.calls(0), refs, 0, nobody)
        with following(watch):
            state = algorithm.init(x, private)
        watch.end()
        events, marks = [*before, *inside.events], marks_of(state, watch.following)
        spent = totals(events, len(nobody), colluders=mechanism.colluders)
        return PrivateState(state, inside.refs, 0, spent, as_lists(events), 0, marks)

    def step(
        now: PrivateState, oracle: Oracle, rng: torch.Generator
    ) -> tuple[PrivateState, Info]:
        t, n = now.t + 1, len(oracle.present)
        present = oracle.present.cpu()
        # No round costs a client more than planned, whoever refuses.
        refuses = limits.refusing(now.spent + costs[t] if costs else now.spent)
        if now.stopped or bool(refuses.all()):
            return now._replace(t=t, stopped=now.stopped or t), {}
        if not bool((present & ~refuses).any()):  # others will go on
            return now._replace(t=t), {}
        read = with_marks(now.state, now.marks)
        given = foreseen.calls(t), now.refs, t, refuses
        private, inside, watch = wrap_oracle(oracle, *given, read=read)
        with following(watch):
            state, info = algorithm.step(now.state, private, rng)
        watch.end()
        cost = totals(inside.events, n, colluders=mechanism.colluders)
        most = costs[t] * (1 + 1e-9) + 1e-9 if costs else cost
        if bool((cost > most).any()):
            raise InputError(
                f"private training stops: round {t} released more than was planned, "
                f"but what a method sends must not depend on data."
            )
        spent = now.spent + cost
        ledger = [*now.ledger, *_thrifty(now.ledger, as_lists(inside.events))]
        marks = marks_of(state, watch.following)
        return PrivateState(state, inside.refs, t, spent, ledger, 0, marks), info

    def personal(now: PrivateState, oracle: Oracle) -> Tensor:
        nobody = torch.zeros_like(oracle.present)
        read = with_marks(now.state, now.marks)
        given = foreseen.use, now.refs, now.t, nobody
        private, _, watch = wrap_oracle(oracle, *given, read=read, at_home=True)
        with following(watch):
            found = algorithm.personal(now.state, private)
        watch.end()
        return found

    return Algorithm(init, step, personal)


def _thrifty(ledger: list[Any], entries: list[Any]) -> list[Any]:
    """The entries, with one object for equal tensors, so that files store it once."""
    last = {entry[0]: entry for entry in ledger[-2 * len(entries) - 2 :]}
    found = []
    for entry in entries:
        before = last.get(entry[0], entry)
        last[entry[0]] = [
            old if _is_same(old, new) else new
            for old, new in zip(before, entry, strict=True)
        ]
        found.append(last[entry[0]])
    return found


def _is_same(old: Any, new: Any) -> bool:
    if not isinstance(old, Tensor) or old.layout != torch.strided:
        return False
    return new.layout == old.layout and torch.equal(old, new)


def costs_of(
    algorithm: Algorithm,
    foreseen: CallPlan,
    actives: Sequence[Bool[Tensor, " n"]],
    *,
    seed: int,
    secure: bool = False,
    colluders: int = 1,
) -> list[Tensor]:
    """(N,) costs of the beginning and of each round, in units of (2 C / s)^2.

    A secure sum costs as much as the server and the colluders see together. To find
    costs, we run the private method without data. If the method chooses partners during
    training, all clients help each other in this run, so no real run costs more. If the
    method releases losses, we run it several times (see `scenarios`).
    """
    n = len(actives[0])
    # Methods that choose by losses must see them through the noise.
    noise = 1.0 if foreseen.by_key is None else 2.0**-20
    unit = Mechanism(0.5, noise, secure=secure, loss_clip=1.0, colluders=colluders)
    private = make_private(algorithm, foreseen, unit, torch.arange(n), watched=False)

    rounds = actives if foreseen.by_key is None else scenario_rounds(actives)

    def run_scenario(number: int) -> list[Tensor]:
        state, costs = None, []
        for t, active in enumerate([torch.ones(n, dtype=torch.bool), *rounds]):
            oracle = foreseen.stage.oracle_for(
                Double(active, ("privacy", "cost", number, t))
            )
            if state is None:
                state = private.init(foreseen.stage.start, oracle)
            else:
                rng, state = seeds.generator(seed, "algorithm", t), _empty(state)
                state, _ = private.step(state, oracle, rng)
            events = at_most(events_of(state.ledger), colluders)
            costs.append(totals(events, n))
        return [noise**2 * cost for cost in costs]

    if foreseen.by_key is None:
        return run_scenario(0)
    found = [
        [cost.tolist() for cost in run_scenario(number)] for number in range(SCENARIOS)
    ]
    most = largest_costs(found, actives, max, 0.0)
    return [torch.tensor(costs, dtype=torch.float64) for costs in most]


def _empty(state: PrivateState) -> PrivateState:
    """The state with an empty ledger."""
    return state._replace(ledger=[])
