"""Canaries whose rows an auditor chooses: right mechanisms pass, broken ones do not."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import binom, norm

from coterie.privacy import attacks
from coterie.privacy.accounting.joint import joint_losses
from coterie.privacy.accounting.ledger import Exchange, Input, Ledger, Release
from coterie.privacy.mechanisms import Mechanism
from support.broken_mechanisms import lessen_noise, stop_clipping

REAL = torch.float64
MU = 0.268
"""Epsilon is 1 at a delta of 1e-5."""


def sound(seed: int = 0, mu: float = MU) -> Mechanism:
    """A mechanism whose two releases have this mu together."""
    return Mechanism(0.3, 2 * 0.3 * math.sqrt(2) / mu, seed)


# Bounds.


def test_limits_of_rates_are_those_of_clopper_and_pearson():
    """At the limit of a rate, these calls have the chance of one tail."""
    found = attacks.mu_of_rates(70, 100, 20, 100, confidence=0.9)

    def root(law, low=0.0, high=1.0):
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if law(middle) < 0.05 else (low, middle)
        return low

    right = root(lambda p: binom.sf(69, 100, p))
    wrong = 1 - root(lambda p: binom.cdf(20, 100, 1 - p))
    assert found == pytest.approx(norm.ppf(right) - norm.ppf(wrong))


@pytest.mark.parametrize(
    "counts", [(0, 10, 0, 10), (10, 10, 10, 10), (3, 10, 5, 10), (0, 0, 0, 0)]
)
def test_calls_that_tell_nothing_prove_nothing(counts):
    assert attacks.mu_of_rates(*counts) == 0.0


# Whoever sees all releases.


def test_calls_are_right_as_often_as_the_normal_law_says():
    made = attacks.row_canaries(sound(), 2, 3)
    assert made.mu == pytest.approx(MU)
    strong = attacks.row_canaries(sound(mu=2.0), 2, 3)
    rate = strong.right / strong.guesses
    assert abs(rate - norm.cdf(1.0)) < 4 * math.sqrt(0.84 * 0.16 / strong.guesses)


def test_a_sound_mechanism_is_accused_as_seldom_as_is_said():
    """Of 60 audits with confidence 0.9, at most as many as that allows."""
    alarms = 0
    for seed in range(60):
        made = attacks.row_canaries(sound(seed), 2, 3)
        alarms += made.at_least(0.9) > made.mu
        assert made.at_least(1 - 1e-4) < made.mu
    assert alarms <= binom.isf(1e-4, 60, 0.1)


@pytest.mark.parametrize("seed", range(4))
def test_half_the_noise_and_missing_clipping_are_proved(monkeypatch, seed):
    with monkeypatch.context() as broken:
        lessen_noise(broken, 0.5)
        made = attacks.row_canaries(sound(seed), 2, 3)
        # Twice mu is true; the bound finds most of it.
        assert 1.2 * MU < made.at_least(0.99) < 2.2 * MU
    with monkeypatch.context() as broken:
        stop_clipping(broken)
        made = attacks.row_canaries(sound(seed), 2, 3)
        assert made.right == made.guesses and made.at_least(0.99) > 5


def test_many_releases_are_asked_for_as_far_as_numbers_allow():
    few = attacks.row_canaries(Mechanism(0.3, 60.0), 10**9, 3)
    assert 0.01 * math.sqrt(500) < few.mu < 0.01 * math.sqrt(2000)


# Receivers.


def ring(n: int) -> torch.Tensor:
    eye = torch.eye(n, dtype=REAL)
    return (eye + eye.roll(1, 0) + eye.roll(-1, 0)) / 3


def star(n: int) -> torch.Tensor:
    """Whose middle is 0."""
    w = torch.diag(torch.full((n,), 1 - 1 / n, dtype=REAL))
    w[0], w[:, 0] = 1 / n, 1 / n
    return w


def gossiped(w, gammas: tuple[float, ...], clip: float, noise: float) -> list:
    """One input from everybody, and an exchange for each gamma."""
    n = len(w)
    links = (w * (1 - torch.eye(n)) > 0).nonzero().flip(1)
    sent = [Exchange(1, links, w, gamma) for gamma in gammas]
    return [Input(1, torch.ones(n, dtype=torch.bool), 2 * clip, noise), *sent]


@pytest.mark.parametrize("graph", [ring, star])
@pytest.mark.parametrize("gammas", [(1.0,), (1.0, 1.0, 1.0), (1.0, 1.3, 1.3)])
def test_what_a_receiver_can_tell_is_what_the_account_of_pairs_says(graph, gammas):
    mechanism = Mechanism(0.5, 2.0)
    events = gossiped(graph(7), gammas, 0.5, 2.0)
    view = attacks.view_of(events, 7, 1, mechanism)
    said = joint_losses(Ledger(7, tuple(events))).mu[:, 1]
    for sender in (0, 2, 3, 4, 5, 6):
        assert view.mu(sender, 0.5) == pytest.approx(float(said[sender]), abs=1e-6)


def test_a_receiver_hears_releases_that_are_sent_to_it():
    mechanism = Mechanism(0.5, 2.0)
    links = torch.tensor([[1, 0], [2, 1], [1, 2]])
    events = [
        Release(1, "mix", links, 1.0, 2.0),
        Release(2, "mix", links, 1.0, 2.0),
        Release(2, "losses", links, 1.0, 9.0),  # which has other noise
    ]
    view = attacks.view_of(events, 3, 0, mechanism)
    assert view.mu(1, 0.5) == pytest.approx(0.5 * math.sqrt(2))
    assert view.mu(2, 0.5) == 0.0


def test_a_receiver_guesses_as_well_as_it_can(monkeypatch):
    mechanism = Mechanism(0.5, 0.5)
    view = attacks.view_of(gossiped(star(5), (1.0, 1.0), 0.5, 0.5), 5, 1, mechanism)
    made = attacks.pair_canaries(mechanism, view, 2)
    # The middle, which is known from its first message, sends a sum of three leaves.
    assert made.mu == pytest.approx(2 / math.sqrt(3))
    rate, chance = made.right / made.guesses, norm.cdf(made.mu / 2)
    assert abs(rate - chance) < 4 * math.sqrt(0.25 / made.guesses)
    assert made.at_least(0.99) < made.mu
    lessen_noise(monkeypatch, 0.5)
    assert attacks.pair_canaries(mechanism, view, 2).at_least(0.99) > made.mu


def test_long_ledgers_are_cut_between_rounds():
    events = [
        event._replace(round=t)
        for t in range(1, 400)
        for event in gossiped(ring(20), (1.0, 1.0), 0.5, 2.0)
    ]
    some = attacks.heard_events(events, 20)
    assert some == events[: len(some)] and len(some) % 3 == 0
    assert 50 < len(some) < len(events)
    assert attacks.heard_events(events[:6], 20) == events[:6]
