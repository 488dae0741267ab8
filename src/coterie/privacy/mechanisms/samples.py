"""A method whose every gradient hides every single sample, with what was released."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from ... import seeds
from ...checks import InputError
from ...clients.personal import PersonalOracle
from ...clients.traffic import Sending
from ...types import Algorithm, Info, Oracle, State
from ..accounting.calibration import Limits
from ..accounting.ledger import LOSSES, Ledger, Release
from ..accounting.subsampled import (
    Step,
    counted_epsilons,
    covers,
    quick_epsilons,
    steps_of,
)
from .dry_run.doubles import Double, small_stage
from .dry_run.scenarios import SCENARIOS, dearest, explored
from .per_sample import PrivateSimulation
from .receivers import Told, added, as_steps, nothing_told, reached, senders, told_more


class Counted(NamedTuple):
    """The state of a method, and what its clients have released."""

    state: State
    t: int  # rounds so far
    releases: list[Any]
    """Of each client, (noise, rate, held out, how often) of every kind of release, as
    of a `Step`."""
    stopped: int  # the round before which the budget was spent; 0: it is not
    told: Told  # who has received what

    @property
    def released(self) -> list[Counter[Step]]:
        """Of each client, what all others and a server may know together."""
        each = zip(self.releases, self.told.before, senders(self.told), strict=True)
        return [as_steps(kinds if sends else told) for kinds, told, sends in each]


class Planned(NamedTuple):
    """What the beginning and each round may release, and what all of it may cost."""

    rounds: list[list[Counter[Step]]]  # of each client; see `foreseen_steps`
    delta: float
    limits: Limits = Limits()
    sends: bool = True  # or nothing leaves a client, which then spends nothing
    chooses: bool = False  # what is asked depends on losses that were told

    def refusing(
        self, releases: list[Any], t: int, present: Bool[Tensor, " n"]
    ) -> Bool[Tensor, " n"]:
        """Who would spend more than is left in round t; everybody, if for all."""
        if not self.sends:
            return torch.zeros_like(present)
        after = [
            as_steps(old) + new
            for old, new in zip(releases, self.rounds[t], strict=True)
        ]
        spent = quick_epsilons(after, self.delta)
        if not self.chooses:
            # Exactly near the limits, where it matters. Of questions that depend on
            # answers the quick bound holds, as divergences of Renyi add up there too.
            over = spent > self.limits.of_all
            if self.limits.of_each is not None:
                over |= spent > self.limits.of_each
            for i in over.nonzero()[:, 0].tolist():
                (spent[i],) = counted_epsilons([after[i]], delta=self.delta)
        return self.limits.refusing(spent, present)

    def refuse_more(self, new: Sequence[Counter[Step]], told: Told, t: int) -> None:
        """Ends a run in which more is released than was planned."""
        sends = bool(senders(told).any()) and not self.sends
        if sends or not all(map(covers, self.rounds[t], new)):
            raise InputError(
                f"private training released more in round {t} than was foreseen: what "
                "a method asks must not depend on data."
            )


def counted(
    algorithm: Algorithm,
    clients: PrivateSimulation,
    planned: Planned | None = None,
    before: Sequence[Release] = (),
) -> Algorithm:
    """The algorithm, whose state counts what these clients release.

    Args:
        algorithm: with rounds.
        clients: whose oracles it will get.
        planned: what it may release; None: nobody has said.
        before: what was released for its making.
    """

    def after(
        t: int, state: State, releases: list[Any], told: Told, oracle: Oracle
    ) -> Counted:
        asked = clients.ledger.taken()
        new, told = steps_of(asked), told_more(told, asked, oracle)
        if planned is not None:
            planned.refuse_more(new, told, t)
        return Counted(state, t, added(releases, new), 0, told)

    def begun(x: Tensor, oracle: Oracle) -> Counted:
        clients.ledger.taken()  # of other beginnings
        for event in before:
            clients.ledger.append(event)
        state = algorithm.init(x, oracle)
        nothing: list[Any] = [[] for _ in range(len(clients))]
        return after(0, state, nothing, nothing_told(len(clients)), oracle)

    def step(
        now: Counted, oracle: Oracle, rng: torch.Generator
    ) -> tuple[Counted, Info]:
        t, present = now.t + 1, oracle.present.cpu()
        if now.stopped:
            return now._replace(t=t), {}
        if planned is not None:
            refuses = planned.refusing(now.releases, t, present)
            if not bool((present & ~refuses).any()):
                stopped = t if planned.limits.of_each is None else 0
                return now._replace(t=t, stopped=stopped), {}
            oracle = _without(oracle, refuses)
        clients.ledger.taken()
        state, info = algorithm.step(now.state, oracle, rng)
        return after(t, state, now.releases, now.told, oracle), info

    def personal(now: Counted, oracle: Oracle) -> Tensor:
        # Who evaluates brings an oracle of ordinary clients, which has no noise.
        private = clients.at(now.t, purpose="use")
        return algorithm.personal(now.state, private)

    return Algorithm(begun, step, personal)


def _without(oracle: Oracle, absent: Bool[Tensor, " n"]) -> Oracle:
    if not bool(absent.any()):
        return oracle
    assert isinstance(oracle, Sending | PersonalOracle)  # which may be wrapped
    return oracle.wrapped(lambda inner: inner.without(absent))


class AskedSteps(NamedTuple):
    """What a method asks in the beginning and each round."""

    rounds: list[list[Counter[Step]]]  # of each client
    losses: bool  # whether losses are among it
    sends: bool  # whether anything is sent


def foreseen_steps(
    algorithm: Algorithm,
    clients: PrivateSimulation,
    actives: Sequence[Bool[Tensor, " n"]],
    *,
    seed: int,
    personal: bool = False,
) -> AskedSteps:
    """What each client releases in the beginning and each round, with a noise of 1.

    The method is run without data. Where partners are chosen on the way, everybody
    helps everybody there, so that no run releases more. Where it asks for losses, it is
    run several times, see `scenarios`.

    Args:
        algorithm: with rounds.
        clients: who say how they would be sampled.
        actives: who takes part in each round.
        seed: of the study, which names what the algorithm draws.
        personal: whether some columns never leave their clients.
    """

    def run(number: int, rounds: Sequence[Tensor]) -> AskedSteps:
        return _scenario(algorithm, clients, rounds, seed, personal, number)

    once = run(0, actives)
    if not once.losses:
        return once
    found = [run(number, explored(actives)) for number in range(SCENARIOS)]
    rounds = dearest(
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
    """What is released in one scenario."""
    n = len(clients)
    stage, ledger, state = small_stage(n, personal), Ledger(n), None
    found, by_losses, sends = [], False, False
    for t, active in enumerate([torch.ones(n, dtype=torch.bool), *actives]):
        double = Double(active, ("privacy", "samples", number, t))
        oracle = stage.asked(clients.doubled(double, ledger))
        if t == 0:
            state = algorithm.init(stage.start, oracle)
        else:
            rng = seeds.generator(seed, "algorithm", t)
            state, _ = algorithm.step(state, oracle, rng)
        # Answers of doubles need no noise, but it is to be counted.
        asked = [event for event in ledger.taken() if isinstance(event, Release)]
        noised = tuple(event._replace(noise=1.0) for event in asked)
        found.append(steps_of(Ledger(n, noised)))
        by_losses |= any(event.verb == LOSSES for event in asked)
        sends |= bool(double.seen)
    return AskedSteps(found, by_losses, sends)


def spent_on_samples(now: Counted, delta: float) -> Tensor:
    """(N,) the epsilon of each client towards whoever sees all that it sent."""
    return counted_epsilons(now.released, delta=delta)


def bound_on_samples(now: Counted, delta: float) -> Tensor:
    """(N,) bounds of it that are quick enough for every round."""
    return quick_epsilons(now.released, delta)


def spent_by_pairs(now: Counted, delta: float) -> Tensor:
    """(N, K + 1) the epsilon of each client towards each reader; the last: a server.

    K is N, or 1 where so many pairs are not kept: then it is for all together. Whoever
    received rows, also from others who had them, may know all that the client told; of
    those who received nothing it is that of what all were told before.
    """
    most = spent_on_samples(now, delta)
    before = [as_steps(kinds) for kinds in now.told.before]
    told = counted_epsilons(before, delta=delta)
    found = torch.where(reached(now.told), most[:, None], told[:, None])
    if now.told.received.shape[1] == len(most) + 1:
        found[:, :-1].fill_diagonal_(0.0)
    return found
