"""Makes methods whose every gradient hides every sample, and counts releases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from ... import seeds
from ...checks import InputError
from ...clients.traffic import Sending
from ...clients.wrappers import PersonalOracle
from ...types import Algorithm, Info, Oracle, State
from ..accounting.calibration import Limits
from ..accounting.ledger import LOSSES, Ledger, Release
from ..accounting.subsampled import (
    Step,
    covers,
    epsilons_of_steps,
    quick_epsilons,
    steps_of,
)
from .dry_run.doubles import Double, small_stage
from .dry_run.scenarios import SCENARIOS, largest_costs, scenario_rounds
from .per_sample import PrivateSimulation
from .receivers import (
    Receipts,
    add_releases,
    add_round,
    as_steps,
    no_receipts,
    reach,
    senders,
)


class PerSampleState(NamedTuple):
    """The state of a method whose clients hide samples, and what they have released."""

    state: State
    t: int  # rounds so far
    releases: list[Any]
    """By client, (noise, rate, held out, count) of each kind of release; see `Step`."""
    stopped: int  # the round before which the budget was spent; 0: it is not spent
    told: Receipts  # who has received what

    @property
    def visible_releases(self) -> list[Counter[Step]]:
        """By client, the releases that all others and a server may know together."""
        each = zip(self.releases, self.told.before, senders(self.told), strict=True)
        return [as_steps(kinds if sends else told) for kinds, told, sends in each]


class StepPlan(NamedTuple):
    """What the beginning and each round may release, and the budgets."""

    rounds: list[list[Counter[Step]]]  # by client; see `plan_steps`
    delta: float
    limits: Limits = Limits()
    sends: bool = True  # False: nothing leaves a client, which then spends nothing
    chooses: bool = False  # whether questions depend on released losses

    def refusing(
        self, releases: list[Any], t: int, present: Bool[Tensor, " n"]
    ) -> Bool[Tensor, " n"]:
        """(N,) which clients would spend more in round t than is left to them."""
        if not self.sends:
            return torch.zeros_like(present)
        after = [
            as_steps(old) + new
            for old, new in zip(releases, self.rounds[t], strict=True)
        ]
        spent = quick_epsilons(after, self.delta)
        if not self.chooses:
            # Near the limits we account exactly. If questions depend on answers, only
            # the quick bound holds, because Renyi divergences add up there too.
            over = spent > self.limits.of_all
            if self.limits.of_each is not None:
                over |= spent > self.limits.of_each
            for i in over.nonzero()[:, 0].tolist():
                (spent[i],) = epsilons_of_steps([after[i]], delta=self.delta)
        return self.limits.refusing(spent, present)

    def refuse_more(self, new: Sequence[Counter[Step]], told: Receipts, t: int) -> None:
        """Ends a run that releases more than was planned."""
        sends = bool(senders(told).any()) and not self.sends
        if sends or not all(map(covers, self.rounds[t], new)):
            raise InputError(
                f"private training stops: round {t} released more than was planned, "
                f"but what a method asks must not depend on data."
            )


def count_releases(
    algorithm: Algorithm,
    clients: PrivateSimulation,
    planned: StepPlan | None = None,
    before: Sequence[Release] = (),
) -> Algorithm:
    """The algorithm, with a state that counts the releases of these clients.

    Args:
        algorithm: a method with rounds.
        clients: make the oracles that the algorithm gets.
        planned: the releases that are allowed; None: no limit.
        before: releases before training, when the algorithm was made.
    """

    def after(
        t: int, state: State, releases: list[Any], told: Receipts, oracle: Oracle
    ) -> PerSampleState:
        asked = clients.ledger.take()
        new, told = steps_of(asked), add_round(told, asked, oracle)
        if planned is not None:
            planned.refuse_more(new, told, t)
        return PerSampleState(state, t, add_releases(releases, new), 0, told)

    def init(x: Tensor, oracle: Oracle) -> PerSampleState:
        clients.ledger.take()  # from other beginnings
        for event in before:
            clients.ledger.append(event)
        state = algorithm.init(x, oracle)
        nothing: list[Any] = [[] for _ in range(len(clients))]
        return after(0, state, nothing, no_receipts(len(clients)), oracle)

    def step(
        now: PerSampleState, oracle: Oracle, rng: torch.Generator
    ) -> tuple[PerSampleState, Info]:
        t, present = now.t + 1, oracle.present.cpu()
        if now.stopped:
            return now._replace(t=t), {}
        if planned is not None:
            refuses = planned.refusing(now.releases, t, present)
            if not bool((present & ~refuses).any()):
                stopped = t if planned.limits.of_each is None else 0
                return now._replace(t=t, stopped=stopped), {}
            oracle = _leave_out(oracle, refuses)
        clients.ledger.take()
        state, info = algorithm.step(now.state, oracle, rng)
        return after(t, state, now.releases, now.told, oracle), info

    def personal(now: PerSampleState, oracle: Oracle) -> Tensor:
        # Callers evaluate with an oracle of ordinary clients, without noise.
        private = clients.at(now.t, purpose="use")
        return algorithm.personal(now.state, private)

    return Algorithm(init, step, personal)


def _leave_out(oracle: Oracle, absent: Bool[Tensor, " n"]) -> Oracle:
    if not bool(absent.any()):
        return oracle
    assert isinstance(oracle, Sending | PersonalOracle)  # which may be wrapped
    return oracle.wrap_with(lambda inner: inner.without_clients(absent))


class AskedSteps(NamedTuple):
    """What a method asks in the beginning and each round."""

    rounds: list[list[Counter[Step]]]  # by client
    losses: bool  # whether it asks for losses
    sends: bool  # whether it sends anything


def plan_steps(
    algorithm: Algorithm,
    clients: PrivateSimulation,
    actives: Sequence[Bool[Tensor, " n"]],
    *,
    seed: int,
    personal: bool = False,
) -> AskedSteps:
    """What each client releases in the beginning and each round, with a noise of 1.

    We run the method without data. If the method chooses partners during training, all
    clients help each other in this run, so no real run releases more. If the method
    asks for losses, we run it several times (see `scenarios`).

    Args:
        algorithm: a method with rounds.
        clients: the clients, which know the rates of their minibatches.
        actives: which clients take part in each round.
        seed: the seed of the study, for the algorithm's random draws.
        personal: whether some columns never leave their clients.
    """

    def run_scenario(number: int, rounds: Sequence[Tensor]) -> AskedSteps:
        return _scenario(algorithm, clients, rounds, seed, personal, number)

    once = run_scenario(0, actives)
    if not once.losses:
        return once
    found = [
        run_scenario(number, scenario_rounds(actives)) for number in range(SCENARIOS)
    ]
    rounds = largest_costs(
        [each.rounds for each in found], actives, lambda a, b: a | b, Counter[Step]()
    )
    return AskedSteps(rounds, True, any(each.sends for each in found))


def _scenario(
    algorithm: Algorithm,
    clients: PrivateSimulation,
    actives: Sequence[Bool[Tensor, " n"]],
    seed: int,
    personal: bool,
    number: int,
) -> AskedSteps:
    """What the method asks of clients in one scenario."""
    n = len(clients)
    stage, ledger, state = small_stage(n, personal), Ledger(n), None
    found, by_losses, sends = [], False, False
    for t, active in enumerate([torch.ones(n, dtype=torch.bool), *actives]):
        double = Double(active, ("privacy", "samples", number, t))
        oracle = stage.oracle_for(clients.wrap_double(double, ledger))
        if t == 0:
            state = algorithm.init(stage.start, oracle)
        else:
            rng = seeds.generator(seed, "algorithm", t)
            state, _ = algorithm.step(state, oracle, rng)
        # Answers of doubles have no noise, but we count it.
        asked = [event for event in ledger.take() if isinstance(event, Release)]
        noised = tuple(event._replace(noise=1.0) for event in asked)
        found.append(steps_of(Ledger(n, noised)))
        by_losses |= any(event.verb == LOSSES for event in asked)
        sends |= bool(double.seen)
    return AskedSteps(found, by_losses, sends)


def spent_on_samples(now: PerSampleState, delta: float) -> Tensor:
    """(N,) the epsilon of each client towards an observer of all that it sent."""
    return epsilons_of_steps(now.visible_releases, delta=delta)


def bound_on_samples(now: PerSampleState, delta: float) -> Tensor:
    """(N,) upper bounds on `spent_on_samples`, fast enough for every round."""
    return quick_epsilons(now.visible_releases, delta)


def spent_by_pairs(now: PerSampleState, delta: float) -> Tensor:
    """(N, K + 1) the epsilon of each client towards each reader; the last is a server.

    K is N. With many clients, K is 1: one column for all readers together. A reader
    that received rows, directly or through others, may know all that the client sent. A
    reader that received nothing knows only what the client sent to everybody before
    training.
    """
    most = spent_on_samples(now, delta)
    before = [as_steps(kinds) for kinds in now.told.before]
    told = epsilons_of_steps(before, delta=delta)
    found = torch.where(reach(now.told), most[:, None], told[:, None])
    if now.told.received.shape[1] == len(most) + 1:
        found[:, :-1].fill_diagonal_(0.0)
    return found
