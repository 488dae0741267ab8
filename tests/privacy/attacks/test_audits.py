"""Audits: exact laws of the bounds, sound mechanisms pass, broken ones are caught."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from scipy.stats import binom
from torch import nn

from coterie import Simulation, Table, federate, models, seeds
from coterie.checks import InputError
from coterie.models import OBJECTIVES
from coterie.privacy import PrivateSimulation, attacks, sampled_epsilon
from coterie.privacy.mechanisms.per_sample.clipping import ClippedKernel
from coterie_theory.privacy import audit_client
from coterie_theory.privacy.one_run import canary_scores, collect_releases, directions
from support.refusals import refuses

REAL, DELTA = torch.float64, 1e-5


# Bounds.


def test_without_delta_the_bound_of_one_run_is_that_of_a_binomial_law() -> None:
    """At the bound, 80 right guesses have exactly the chance 1 - confidence."""
    epsilon = attacks.epsilon_of_one_run(80, 100, 100)
    accuracy = 1 / (1 + math.exp(-epsilon))
    assert binom.sf(79, 100, accuracy) == pytest.approx(0.05, rel=1e-6)


def test_a_larger_delta_or_more_confidence_prove_less() -> None:
    plain = attacks.epsilon_of_one_run(90, 100, 200)
    assert attacks.epsilon_of_one_run(90, 100, 200, delta=1e-4) < plain
    assert attacks.epsilon_of_one_run(90, 100, 200, confidence=0.99) < plain
    assert attacks.epsilon_of_one_run(90, 100, 200, delta=0.1) == 0


def test_randomised_response_is_bounded_by_what_it_promises() -> None:
    """True with chance 1/(1 + e^-epsilon): bounds come near it from below."""
    epsilon, m = 2.0, 20000
    rng = torch.Generator().manual_seed(0)
    truths = torch.rand(m, generator=rng) < 1 / (1 + math.exp(-epsilon))
    lower = attacks.epsilon_of_one_run(int(truths.sum()), m, m)
    assert 0.9 * epsilon < lower < epsilon
    half = m // 2
    found, wrong = int(truths[:half].sum()), half - int(truths[half:].sum())
    lower = attacks.epsilon_of_rates(found, half, wrong, half)
    assert 0.9 * epsilon < lower < epsilon


def test_rates_are_bounded_by_clopper_and_pearson() -> None:
    """No member missed and nobody called wrongly in n runs: 1 - (a/2)^(1/n) each."""
    worst = 1 - 0.025 ** (1 / 50)
    wanted = math.log((1 - worst) / worst)
    assert attacks.epsilon_of_rates(50, 50, 0, 50) == pytest.approx(wanted)
    assert attacks.epsilon_of_rates(0, 50, 50, 50) == 0  # guesses all wrong


def test_counts_that_cannot_be_are_refused() -> None:
    refuses("`right` must be at most 5", attacks.epsilon_of_one_run, 6, 5, 10)
    refuses("`wrong` must be at most 2", attacks.epsilon_of_rates, 1, 2, 3, 2)


# Canaries in one run, of sound and of broken mechanisms.

CANARIES, BASE, ROUNDS, BATCH = 200, 40, 12, 25
CLIP, NOISE = 1.0, 3.0


def one_client(features, targets, role, task="classification", outputs=2):
    """A federation of one, whose samples have these roles."""
    table = Table("one", features, targets, task, outputs)
    return federate(table, torch.zeros(len(role), dtype=torch.long), role)


def canary_clients(seed: int = 0, members=None, **settings):
    """A client with half of the canaries; each has a feature to itself."""
    rng = torch.Generator().manual_seed(1)
    features = torch.zeros(CANARIES + BASE, CANARIES + 2)
    features[:CANARIES, :CANARIES] = 5 * torch.eye(CANARIES)
    features[CANARIES:, CANARIES:] = torch.randn(BASE, 2, generator=rng)
    targets = torch.ones(CANARIES + BASE)
    if members is None:
        members = torch.rand(CANARIES, generator=rng) < 0.5
    role = torch.full((CANARIES + BASE,), 2)  # who is out lies in the test part
    role[:CANARIES][members] = 0
    role[CANARIES:] = 0
    role[-1] = 1
    data = features.to(REAL), targets.to(REAL), role
    federation = one_client(*data, "regression", 1)
    module = models.build(
        lambda: models.linear((CANARIES + 2,), 1, bias=False), 0, REAL
    )
    plain = Simulation(
        federation, module, batch_size=BATCH, dtype=REAL, seed=seed, **settings
    )
    return plain, members


def upper_of(plain: Simulation) -> float:
    rate = BATCH / float(plain.sizes[0])
    given = {"delta": DELTA, "rate": rate, "steps": ROUNDS}
    return sampled_epsilon(NOISE, **given, accountant="rdp")


def test_released_rounds_are_those_of_a_loop():
    plain, _ = canary_clients()
    x = torch.zeros(1, plain.kernel.parameters, dtype=REAL)
    points, answers = collect_releases(plain, x, rounds=3, lr=0.5)
    assert len(points) == len(answers) == 3
    for t in range(3):
        torch.testing.assert_close(points[t], x)
        torch.testing.assert_close(answers[t], plain.at(t + 1).grads(x))
        x = x - 0.5 * answers[t]


def audit_of(clients, plain: Simulation, members, less=None) -> attacks.Audit:
    """The audit of what these clients release, less what the attacker knows of it."""
    x = torch.zeros(1, plain.kernel.parameters, dtype=REAL)
    points, answers = collect_releases(clients, x, rounds=ROUNDS)
    if less is not None:
        answers = answers - collect_releases(less, x, rounds=ROUNDS)[1]
    along = directions(plain.kernel, points[:, 0], torch.arange(CANARIES))
    scores = canary_scores(answers[:, 0], along)
    return attacks.audit_scores(scores, members, upper=upper_of(plain), delta=DELTA)


def private(plain: Simulation, *, noise: float = NOISE) -> PrivateSimulation:
    return PrivateSimulation(plain, clip=CLIP, noise=noise)


def without_clipping(plain: Simulation) -> PrivateSimulation:
    clients = private(plain)
    clients._held = clients._held._replace(kernel=ClippedKernel(plain.kernel, math.inf))
    return clients


class OneNoise:
    """A mechanism that names noise without the round."""

    def __init__(self, clients: PrivateSimulation, quiet: PrivateSimulation) -> None:
        self._clients, self._quiet = clients, quiet

    def __len__(self) -> int:
        return 1

    def at(self, t, active=None, *, purpose="step"):
        noise = self._clients.at(1), self._quiet.at(1)
        quiet = self._quiet.at(t)
        grads = quiet.grads
        quiet.grads = lambda x: grads(x) + noise[0].grads(x) - noise[1].grads(x)
        return quiet


@pytest.mark.parametrize("seed", range(4))
def test_a_sound_mechanism_is_not_disproved(seed: int) -> None:
    plain, members = canary_clients(seed)
    audit = audit_of(private(plain), plain, members)
    assert audit.lower <= audit.upper < 20 and not audit.broken
    assert "not disproved" in str(audit)


def test_noise_that_is_too_small_is_caught() -> None:
    plain, members = canary_clients()
    audit = audit_of(private(plain, noise=NOISE / 20), plain, members)
    assert audit.broken and "BROKEN" in str(audit)


def test_forgotten_clipping_is_caught() -> None:
    plain, members = canary_clients()
    assert audit_of(without_clipping(plain), plain, members).broken


def test_noise_that_is_the_same_in_every_round_is_caught() -> None:
    plain, members = canary_clients()
    reused = OneNoise(private(plain), private(plain, noise=0.0))
    audit = audit_of(reused, plain, members)
    assert audit.broken and audit.attack == "changes"


def test_a_seed_that_the_attacker_knows_or_reuses_is_caught() -> None:
    """Noise of a run without canaries, with the same seed, is taken off."""
    plain, members = canary_clients(seed=3)
    nobody = torch.zeros(CANARIES, dtype=torch.bool)
    same, _ = canary_clients(seed=3, members=nobody)
    other, _ = canary_clients(seed=4, members=nobody)
    sizes = [replace_size(private(one), plain) for one in (same, other)]
    assert audit_of(private(plain), plain, members, less=sizes[0]).broken
    assert not audit_of(private(plain), plain, members, less=sizes[1]).broken


def replace_size(clients: PrivateSimulation, like: Simulation) -> PrivateSimulation:
    """The same with noise of the scale that the other's batches have."""
    expected = private(like)._mechanism.expected
    clients._mechanism = replace(clients._mechanism, expected=expected)
    return clients


def by_heart(noise: float) -> attacks.Audit:
    """The audit of a client with very different samples, each with a direction."""
    rng = torch.Generator().manual_seed(0)
    features = torch.randn(90, 200, generator=rng)
    role = torch.tensor([0] * 88 + [1, 2])
    federation = one_client(features, torch.arange(90) % 2, role)
    module = models.build(lambda: models.logistic((200,), 2), 0)
    settings = {"clip": 1.0, "batch_size": 30, "rounds": 20, "lr": 0.1}
    return audit_client(federation, module, 0, noise=noise, canaries=80, **settings)


def test_an_audit_of_a_client_stays_below_the_promise_and_rises_without_noise() -> None:
    private, open_ = by_heart(2.0), by_heart(0.01)
    assert private.lower <= private.upper < 20
    assert 2 < open_.lower < open_.upper  # of forty guesses no more can be proved


def test_an_audit_needs_samples_that_are_no_canaries() -> None:
    rng = torch.Generator().manual_seed(0)
    features = torch.randn(9, 2, generator=rng)
    role = torch.tensor([0] * 7 + [1, 2])
    federation = one_client(features, torch.arange(9) % 2, role)
    settings = {"clip": 1.0, "noise": 1.0, "batch_size": 3, "rounds": 1}
    module = models.build(lambda: models.logistic((2,), 2), 0)
    with pytest.raises(InputError, match="fewer than the 7 training samples"):
        audit_client(federation, module, 0, canaries=7, **settings)


def test_an_audit_needs_canaries() -> None:
    with pytest.raises(InputError, match="at least two canaries"):
        attacks.audit_scores({}, torch.tensor([True]), upper=1.0, delta=DELTA)


# Shadow models.


def shadows(noise: float | None, *, models_: int = 12, samples: int = 60):
    """Models that are trained on random halves of the samples, all at once."""
    rng = torch.Generator().manual_seed(2)
    features = torch.randn(samples, 100, generator=rng, dtype=REAL)
    labels = torch.randint(
        2, (samples,), generator=rng
    )  # nothing to learn but by heart
    seen = torch.rand(models_, samples, generator=rng) < 0.5
    seen[:, -2:] = False
    owner = torch.arange(models_).repeat_interleave(samples)
    role = torch.where(seen, 0, 2)
    role[:, -2] = 1
    data = features.repeat(models_, 1), labels.repeat(models_)
    table = Table("coins", *data, "classification", 2)
    federation = federate(table, owner, role.flatten())
    module = models.build(lambda: models.logistic((100,), 2), 0, REAL)
    plain = Simulation(federation, module, batch_size=0, dtype=REAL)
    clients = plain
    if noise is not None:
        clients = PrivateSimulation(plain, clip=1.0, noise=noise)
    x = torch.zeros(models_, plain.kernel.parameters, dtype=REAL)
    points, _ = collect_releases(clients, x, rounds=30, lr=2.0)
    known = seen.any(0) & ~seen.all(0)
    losses = torch.stack(
        [
            nn.functional.cross_entropy(
                models.with_row(module, row)(features), labels, reduction="none"
            )
            for row in points[-1]
        ]
    ).detach()
    return attacks.confidence_of(losses)[:, known], seen[:, known]


def lira(noise: float | None) -> float:
    """The share of right guesses about the first model, by all others."""
    sure, seen = shadows(noise)
    scores = attacks.likelihood_scores(sure[0], sure[1:], seen[1:])
    return float(((scores > 0) == seen[0]).double().mean())


def test_shadow_models_tell_what_a_model_knows_by_heart() -> None:
    assert lira(None) > 0.85


def test_noise_leaves_the_shadow_attack_little_more_than_coins() -> None:
    assert lira(20.0) < 0.75


def test_the_logit_of_the_right_class_comes_from_the_loss() -> None:
    p = torch.tensor([0.1, 0.5, 0.9], dtype=REAL)
    torch.testing.assert_close(attacks.confidence_of(-p.log()), (p / (1 - p)).log())


def test_likelihoods_of_two_gaussians_are_told_apart_at_their_middle() -> None:
    """With equal variances, the ratio is 0 half-way between the means."""
    noise = torch.tensor([[-0.1], [0.1]], dtype=REAL)
    shadow = torch.cat([1 + noise, 3 + noise])
    members = torch.tensor([[False], [False], [True], [True]])
    for target, sign in ((2.0, 0), (2.5, 1), (1.5, -1)):
        given = torch.tensor([target], dtype=REAL)
        score = float(attacks.likelihood_scores(given, shadow, members))
        assert score == pytest.approx(0, abs=1e-9) if not sign else score * sign > 0


def test_a_sample_that_all_shadows_have_seen_is_refused() -> None:
    with pytest.raises(InputError, match="in the data of some shadow model"):
        attacks.likelihood_scores(
            torch.zeros(1, dtype=REAL),
            torch.zeros(2, 1, dtype=REAL),
            torch.ones(2, 1, dtype=torch.bool),
        )


# Gradient inversion.


def one_sample(module: nn.Module, noise: float | None):
    """What a client with a single sample releases, and the sample."""
    rng = torch.Generator().manual_seed(5)
    features = torch.randn(4, 6, generator=rng, dtype=REAL)
    targets, role = torch.tensor([0, 1, 2, 0]), torch.tensor([0, 1, 2, 2])
    federation = one_client(features, targets, role, outputs=3)
    clients = plain = Simulation(federation, module, batch_size=0, dtype=REAL)
    if noise is not None:
        clients = PrivateSimulation(plain, clip=1.0, noise=noise)
    rng, size = seeds.generator("row"), plain.kernel.parameters
    x = torch.randn(1, size, generator=rng, dtype=REAL) / 2
    return x[0], clients.at(1).grads(x)[0], features[0], plain


def relative(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


def test_a_linear_layer_with_a_bias_gives_its_inputs_away_and_noise_hides_them() -> (
    None
):
    module = models.build(lambda: models.linear((6,), 3), 0, REAL)
    for noise, holds in ((None, lambda e: e < 1e-9), (1.0, lambda e: e > 0.5)):
        _, g, wanted, plain = one_sample(module, noise)
        parts = plain.kernel.layout.unravel(g)
        found = attacks.inputs_of_layer(parts["head.weight"], parts["head.bias"])
        assert holds(relative(found, wanted))


def test_a_small_network_gives_its_sample_away_and_noise_hides_it() -> None:
    def mlp() -> nn.Module:
        return models.mlp((6,), 3, hidden=(8,), activation="tanh")

    module = models.build(mlp, 0, REAL)
    for noise, holds in ((None, lambda e: e < 1e-2), (1.0, lambda e: e > 0.5)):
        point, g, wanted, _ = one_sample(module, noise)
        given = OBJECTIVES["classification"], point, g, torch.tensor([0])
        found = attacks.rebuilt(module, *given, like=wanted)
        assert holds(relative(found, wanted))


def test_a_layer_without_slope_is_refused() -> None:
    with pytest.raises(InputError, match="slope that is not 0"):
        attacks.inputs_of_layer(torch.zeros(2, 3), torch.zeros(2))
