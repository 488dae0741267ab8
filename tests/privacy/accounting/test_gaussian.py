"""What noise of a given size promises, against integrals and against each other."""

import math

import pytest
import torch
from dp_accounting.dp_event import GaussianDpEvent
from dp_accounting.pld import PLDAccountant
from scipy.integrate import quad
from scipy.stats import norm

from coterie.checks import InputError
from coterie.privacy import (
    compose_mu,
    delta_of,
    epsilon_of,
    epsilons_of,
    mu_from,
    mu_of,
    noise_of,
    renyi,
    replacement_sensitivity,
)

MUS = (0.01, 0.3, 1.0, 2.5, 8.0)


@pytest.mark.parametrize("mu", MUS)
@pytest.mark.parametrize("alpha", [1.5, 2.0, 7.0])
def test_the_renyi_divergence_is_the_integral_of_its_definition(mu, alpha):
    """D_alpha = ln E_Q[(P/Q)^alpha] / (alpha - 1), P = N(mu, 1), Q = N(0, 1)."""
    peak = alpha * mu  # where P^alpha Q^(1 - alpha) is largest
    log = alpha * (alpha - 1) * mu**2 / 2  # its logarithm there, without 1/sqrt(2 pi)

    def density(x):
        ratio = alpha * (mu * x - mu**2 / 2) - x**2 / 2 - log
        return math.exp(ratio) / math.sqrt(2 * math.pi)

    total, _ = quad(density, peak - 12, peak + 12)
    expected = (math.log(total) + log) / (alpha - 1)
    assert renyi(mu, alpha) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    # N(mu s, s^2) next to N(0, s^2) is the same in units of s.
    moved = renyi(mu_from(0.7 * mu, 0.7), alpha)
    assert moved == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("mu", MUS)
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 3.0])
def test_delta_is_the_integral_of_what_exceeds_epsilon(mu, epsilon):
    """delta = int (P - e^epsilon Q)^+, which begins at x = epsilon/mu + mu/2."""
    start = epsilon / mu + mu / 2
    expected, _ = quad(
        lambda x: norm.pdf(x - mu) - math.exp(epsilon) * norm.pdf(x),
        start,
        max(start, mu) + 12,
    )
    assert delta_of(mu, epsilon) == pytest.approx(expected, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("mu", MUS)
@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-9])
def test_any_two_of_epsilon_delta_and_mu_give_the_third(mu, delta):
    epsilon = epsilon_of(mu, delta)
    if epsilon:
        assert delta_of(mu, epsilon) == pytest.approx(delta, rel=1e-6)
        assert mu_of(epsilon, delta) == pytest.approx(mu, rel=1e-9)
        assert noise_of(epsilon, delta, 3.0) == pytest.approx(3.0 / mu, rel=1e-9)
    assert delta_of(mu, epsilon) <= delta * (1 + 1e-12)


@pytest.mark.parametrize("mu", [0.3, 1.0, 2.5])
def test_epsilon_is_that_of_dp_accounting(mu):
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    accountant.compose(GaussianDpEvent(1 / mu))
    theirs = accountant.get_epsilon(1e-5)
    ours = epsilon_of(mu, 1e-5)
    assert ours <= theirs + 1e-9  # theirs is rounded upwards
    assert ours == pytest.approx(theirs, abs=1e-3)


def test_epsilon_grows_with_the_shift_and_falls_with_delta():
    grown = epsilons_of(torch.linspace(0.1, 5, 50), 1e-5)
    assert bool((grown.diff() > 0).all())
    fallen = [epsilon_of(1.0, delta) for delta in (1e-9, 1e-6, 1e-3, 0.1)]
    assert fallen == sorted(fallen, reverse=True)


def test_many_at_once_are_each_of_them():
    mus = torch.tensor([[0.0, 0.5], [2.0, math.inf]])
    found = epsilons_of(mus, 1e-5)
    each = [[epsilon_of(float(mu), 1e-5) for mu in row] for row in mus]
    torch.testing.assert_close(found, torch.tensor(each, dtype=torch.float64))


def test_two_releases_are_as_private_as_one_with_less_noise():
    both = compose_mu([mu_from(1.0, 2.0), mu_from(1.0, 2.0)])
    assert both == pytest.approx(mu_from(1.0, 2.0 / math.sqrt(2)))


def test_nothing_that_moves_needs_no_noise_and_no_noise_hides_nothing():
    assert mu_from(0.0, 0.0) == 0.0
    assert epsilon_of(mu_from(1.0, 0.0), 1e-5) == math.inf
    assert delta_of(math.inf, 5.0) == 1.0
    assert noise_of(1.0, 1e-5, 0.0) == 0.0


def test_a_clipped_vector_moves_twice_as_far_if_replaced_than_if_missing():
    one, other = torch.tensor([1.0, 0.0]), torch.tensor([-1.0, 0.0])
    assert replacement_sensitivity(1.0) == float((one - other).norm())
    assert replacement_sensitivity(1.0) == 2 * float(one.norm())


@pytest.mark.parametrize("delta", [1e-20, 1e-100, 1e-320])
def test_the_least_chances_have_an_epsilon_too(delta):
    assert epsilon_of(mu_of(1.0, delta), delta) == pytest.approx(1.0)
    # 2 Phi(mu / 2) - 1 = delta, where the curve is a line.
    assert mu_of(0.0, delta) == pytest.approx(math.sqrt(2 * math.pi) * delta, rel=1e-3)


def test_the_largest_epsilons_are_those_of_their_mu():
    for epsilon in (1e9, 1e50, 1e100):
        assert mu_of(epsilon, 1e-5) == pytest.approx(math.sqrt(2 * epsilon), rel=1e-3)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: mu_from(1.0, -0.5), "`noise` must be at least 0"),
        (lambda: mu_from(-1.0, 0.5), "`sensitivity` must be at least 0"),
        (lambda: epsilon_of(1.0, 0.0), "`delta` must be greater than 0"),
        (lambda: epsilon_of(1.0, 1.0), "`delta` must be less than 1"),
        (lambda: mu_of(1.0, 1.5), "`delta` must be less than 1"),
        (lambda: delta_of(1.0, -1.0), "`epsilon` must be at least 0"),
        (lambda: delta_of(1.0, 1e300), "`epsilon` must be at most 1e.100, got 1e.300"),
        (lambda: mu_of(1e300, 1e-5), "`epsilon` must be at most 1e.100, got 1e.300"),
        (lambda: noise_of(1e300, 1e-5), "`epsilon` must be at most 1e.100, got 1e.300"),
        (lambda: renyi(1.0, 1.0), "`alpha` must be greater than 1"),
        (lambda: epsilons_of(torch.tensor([-1.0]), 1e-5), "`mu` must be at least 0"),
    ],
)
def test_what_is_no_noise_and_no_chance_is_refused(call, said):
    with pytest.raises(InputError, match=said):
        call()
