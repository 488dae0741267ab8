"""An audit of a study: how much its training reveals about units of privacy.

The study is trained many times. Each time, a coin decides for each canary whether it is
in the data. An attacker reads everything that leaves a client, and sees the models of
all other clients. It knows the coins of some trainings (shadow runs), and learns from
them how a canary changes the rows and models. It guesses the coins of the other
trainings. A canary changes only its own run. So we may treat all runs together as one
run of a mechanism, with the canaries of all runs. The theorem for one run
(`coterie.privacy.attacks.bounds`) then bounds epsilon from below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ... import seeds
from ...checks import InputError, integer, number
from ...clients.kernels import Kernel
from ...engine.rounds import run_rounds
from ...privacy.attacks import (
    Listener,
    NoiseCheck,
    OverheardClients,
    Residuals,
    audit_scores,
    epsilon_of_one_run,
    likelihood_scores,
    probe_residuals,
    telling_losses_to,
)
from ...types import ClientsInRounds
from ..config import Entry, Study
from ..loops import training_of
from ..private import guard_of, make_guard, refuse_made_from_data
from ..setup import Setup, prepare, simulation_of
from .canaries import Canaries, canaries_of
from .insiders import TESTS, insider_proofs
from .inversions import Inversion, inversion_of
from .proofs import Account, Proof, account_of, promised_epsilon
from .samples import residuals_of_samples

_ABSTAINS = (0.0, 0.5, 0.9)
"""Shares of the canaries that an attacker leaves out: it guesses about all canaries, or
only about the few where it is sure. """

_DELTA = 1e-5
"""For bounds if nothing is promised."""

FALSE_ALARM = 1e-3
"""The chance that an audit reports an error although noise and clipping are right."""

_FEWEST = 8
"""The fewest runs: an attacker needs half of them to learn from."""


class AuditFindings(NamedTuple):
    """What an audit has found."""

    proofs: list[Proof]
    inversions: list[Inversion]
    unit: str  # what one of the canaries is
    checks: dict[str, NoiseCheck]  # by algorithm, if noise was seen

    @property
    def broken(self) -> bool:
        """Whether a promise is disproved."""
        unlike = any(check.broken for check in self.checks.values())
        return unlike or any(proof.broken for proof in self.proofs)


class _Attack(NamedTuple):
    """What all runs have in common."""

    canaries: Canaries
    kernel: Kernel  # of all samples, those of canaries too
    along: Float[Tensor, "c d"]  # directions in which canaries move what leaves
    start: Float[Tensor, "n d"]  # the first models, as far as they leave


class _AuditRun(NamedTuple):
    """What an attacker read and saw in a run, and which canaries were in the data."""

    scores: Mapping[str, Float[Tensor, " c"]]
    members: Bool[Tensor, " c"]
    account: Account | None  # None: nothing is promised
    upper: float
    sends: bool  # whether anything leaves a client
    residuals: Residuals


def audit_study(
    study: Study,
    *,
    runs: int = 32,
    confidence: float = 0.95,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> AuditFindings:
    """What attacks on every algorithm of a study prove, for the study's first seed.

    Args:
        study: its table [privacy] says what is promised; without it, nothing is
            promised.
        runs: trainings of each algorithm; about a quarter of them teach the attacker.
        confidence: probability that all lower bounds hold together.
        progress: a function of the number of finished trainings, and of all trainings.
    """
    integer("runs", runs, at_least=_FEWEST)
    number("confidence", confidence, above=0, below=1)
    if study.tune is not None:
        raise InputError("an audit trains with known settings: leave [tune] out.")
    refuse_made_from_data(study)
    unit = study.privacy.unit if study.privacy is not None else "client"
    setup = prepare(study, study.run.seeds[0])
    attack = _attack(setup, unit)
    coins = _coins(runs, len(attack.canaries.clients), setup.seed)
    found = AuditFindings([], [], unit, {})
    level = FALSE_ALARM / len(study.algorithms)
    for number_, entry in enumerate(study.algorithms):
        trained = []
        for r, members in enumerate(coins):
            here = _setup_with(setup, attack, members, r)
            trained.append(_run_training(here, entry, attack, members))
            progress(number_ * runs + r + 1, len(study.algorithms) * runs)
        check = _check_noise(setup, entry, trained, level)
        found.checks.update({entry.label: check} if check is not None else {})
        single = _confidence_of_one(study, trained, confidence)
        found.proofs.extend(_proofs_of(study, entry, trained, single))
        worst = max(trained, key=lambda run: run.upper)
        if worst.account is not None and worst.sends and study.time is None:
            given = worst.account, attack.canaries, single
            found.proofs.extend(insider_proofs(setup, entry, *given))
        inverted = inversion_of(setup, entry) if trained[0].sends else None
        found.inversions.extend([inverted] if inverted is not None else [])
    return found


def _shadows(runs: int) -> int:
    """The number of runs that teach the attacker: about a quarter, and even."""
    return max(4, 2 * (runs // 8))


def _coins(runs: int, canaries: int, seed: int) -> Bool[Tensor, "r c"]:
    """(R, C) which canaries each run has; each is in half of the shadow runs."""
    rng = seeds.generator(seed, "audit", "coins")
    coins = torch.rand(runs, canaries, generator=rng) < 0.5
    known = _shadows(runs)
    coins[1:known:2] = ~coins[0:known:2]
    return coins


def _attack(setup: Setup, unit: str) -> _Attack:
    canaries = canaries_of(setup.federation, unit, setup.seed)
    study, made = setup.study, canaries.federation
    kernel = simulation_of(study, made, setup.module, setup.seed).kernel
    along, start = canaries.directions(kernel, setup.x[0]), setup.x
    if (home := setup.simulation.home) is not None:
        along, start = along[:, ~home], start[:, ~home]
    return _Attack(canaries, kernel, along, start)


def _setup_with(setup: Setup, attack: _Attack, members: Tensor, run: int) -> Setup:
    """The setup with these canaries, and with its own noise and minibatches."""
    seed = seeds.key(setup.seed, "audit", run) & (2**62 - 1)
    federation = attack.canaries.federation_with(members)
    simulation = simulation_of(setup.study, federation, setup.module, seed)
    simulation.kernel = attack.kernel  # which may be compiled
    return replace(setup, seed=seed, federation=federation, simulation=simulation)


def _run_training(
    setup: Setup, entry: Entry, attack: _Attack, members: Tensor
) -> _AuditRun:
    """What an attacker reads and sees in a training, and what the study promises."""
    study = setup.study
    scores: dict[str, Tensor] = {}
    residuals = Residuals()
    if study.time is None:
        state, x, heard, sends = _listen_to_rounds(setup, entry, attack, residuals)
        if sends:  # otherwise nobody reads what is reported
            scores |= {f"canaries, {name}": s for name, s in heard.scores().items()}
    else:  # in time there are no rounds to listen to
        training, rounds = training_of(setup, entry), study.run.rounds
        state = training.init()
        for r in training.rounds(rounds=rounds, start=(0, state)):
            state = r.state
        x = training.personal(state, training.asked.at(rounds, purpose="use"))
        sends = True
    scores["shadow models"] = attack.canaries.others_confidence(attack.kernel, x)
    account = account_of(state, study)
    return _AuditRun(
        scores, members, account, promised_epsilon(account), sends, residuals
    )


def _listen_to_rounds(
    setup: Setup, entry: Entry, attack: _Attack, residuals: Residuals
) -> tuple[Any, Tensor, Listener, bool]:
    """A training in rounds: state, models, what was heard, whether anything left."""
    study, simulation = setup.study, setup.asked_by(entry)
    method, clients = setup.algorithm(entry), None
    secure = study.privacy is not None and study.privacy.secure
    given = (attack.canaries.clients, attack.along, attack.start)
    losses_at = partial(attack.canaries.losses_at, attack.kernel)
    heard = Listener(*given, summed=secure, losses_at=losses_at, residuals=residuals)
    if study.privacy is not None:
        hearing = partial(telling_losses_to, heard)
        guard = make_guard(setup, entry, hearing, witness=residuals)
        method, clients = guard.method, guard.clients
        if clients is None:  # of single samples, see `residuals_of_samples`
            given_ = guard.mechanism.clip, guard.mechanism.noise
            residuals.expect(*given_, secure=secure)
    asked: ClientsInRounds = simulation if clients is None else clients
    state, sends = None, False
    for r in run_rounds(
        method,
        OverheardClients(asked, heard),
        setup.x,
        rounds=study.run.rounds,
        seed=setup.seed,
        participation=study.run.participation,
    ):
        state, sends = r.state, sends or r.traffic.total > 0
    x = method.personal(state, simulation.at(study.run.rounds, purpose="use"))
    return state, x, heard, sends


def _check_noise(
    setup: Setup, entry: Entry, runs: list[_AuditRun], level: float
) -> NoiseCheck | None:
    """What an auditor of the mechanism finds in all runs; None: there is no noise."""
    found, privacy = Residuals(), setup.study.privacy
    for run in runs:
        found += run.residuals
    if privacy is None or setup.study.time is not None or not runs[0].sends:
        return None
    guard = guard_of(setup, entry)
    mechanism = guard.mechanism
    if guard.clients is None:
        check = found.check(level / 2)
        other = probe_residuals(mechanism, setup.x.shape[1]).check(level / 2)
        return check if check is None or other is None else check.merge(other)
    given = setup.simulation.kernel, setup.federation, setup.x
    noise = mechanism.clip * mechanism.noise
    promise = mechanism.clip, noise
    return residuals_of_samples(guard.clients, *given, *promise).check(level)


def _attacks(runs: list[_AuditRun]) -> list[str]:
    return sorted({attack for run in runs for attack in run.scores})


def _confidence_of_one(study: Study, runs: list[_AuditRun], confidence: float) -> float:
    """The confidence of one bound, so that all bounds hold together."""
    inside = TESTS if study.privacy is not None and study.time is None else 0
    tries = len(_attacks(runs)) * len(_ABSTAINS) + inside
    return 1 - (1 - confidence) / (tries * len(study.algorithms))


def _proofs_of(
    study: Study, entry: Entry, runs: list[_AuditRun], single: float
) -> list[Proof]:
    """What each attack proves, each with this confidence."""
    known = _shadows(len(runs))
    delta = _DELTA if study.privacy is None else study.privacy.delta
    upper = max(run.upper for run in runs)
    members = torch.cat([run.members for run in runs[known:]])
    found = []
    for attack in _attacks(runs):
        nothing = torch.zeros(len(runs[0].members))  # if no client had partners
        heard = [run.scores.get(attack, nothing) for run in runs]
        scores = _guesses(heard, runs, known)
        made = [
            audit_scores(
                {attack: scores},
                members,
                upper=upper,
                delta=delta,
                confidence=single,
                abstain=abstain,
            )
            for abstain in _ABSTAINS
        ]
        best = max(made)
        most = max(
            epsilon_of_one_run(
                one.guesses, one.guesses, len(members), delta=delta, confidence=single
            )
            for one in made
        )
        numbers = (best.right, best.guesses, best.lower, most, upper)
        found.append(Proof(entry.label, attack, *numbers))
    return found


def _guesses(
    values: list[Float[Tensor, " c"]], runs: list[_AuditRun], known: int
) -> Float[Tensor, " k"]:
    """Scores of all canaries of the runs that are guessed about."""
    finite = torch.stack(values).double().nan_to_num(0.0)
    coins = torch.stack([run.members for run in runs[:known]])
    return torch.cat(
        [likelihood_scores(run, finite[:known], coins) for run in finite[known:]]
    )
