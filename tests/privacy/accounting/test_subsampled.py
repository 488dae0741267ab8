"""Subsampled releases: closed forms, dp-accounting both ways, and what is refused."""

from __future__ import annotations

import ast
import math
from collections import Counter
from pathlib import Path

import pytest
import torch
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from scipy.stats import norm

from coterie import privacy
from coterie.checks import InputError
from coterie.privacy import (
    Exchange,
    Ledger,
    Release,
    mu_of,
    sampled_epsilon,
    sampled_epsilons,
    sampled_noise,
)
from coterie.privacy.accounting import subsampled
from coterie.privacy.accounting.calibration import noise_for_samples
from coterie.privacy.accounting.subsampled import covers, quick_epsilons
from coterie.types import SERVER
from support.refusals import refuses

DELTA = 1e-5


def analytic_delta(mu: float, epsilon: float) -> float:
    """Balle and Wang (2018), Theorem 8."""
    first = norm.cdf(-epsilon / mu + mu / 2)
    return first - math.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2)


def released(clients, *, sensitivity=1.0, noise=2.0, rate=1.0, t=0) -> Release:
    links = torch.tensor([[client, SERVER] for client in clients])
    return Release(t, "grads", links, sensitivity, noise, rate)


def test_without_sampling_the_epsilon_is_that_of_one_gaussian_release() -> None:
    """T steps with noise s are one with noise s / sqrt(T)."""
    epsilon = sampled_epsilon(10.0, delta=DELTA, rate=1.0, steps=100)
    # The grid of privacy losses is 1e-4 wide, and rounded to the safe side.
    assert analytic_delta(1.0, epsilon) <= DELTA
    assert analytic_delta(1.0, epsilon - 2e-3) > DELTA


def test_renyi_s_epsilon_is_never_below_that_of_privacy_losses() -> None:
    given = {"delta": DELTA, "rate": 0.5, "steps": 5}
    tight = sampled_epsilon(3.0, **given)
    assert tight < sampled_epsilon(3.0, **given, accountant="rdp") < 1.5 * tight


def test_a_ledger_costs_what_dp_accounting_says_of_the_same_events() -> None:
    ledger = Ledger(3)
    for t in range(4):
        ledger.append(released([0, 1], sensitivity=0.5, noise=1.0, rate=0.25, t=t))
    ledger.append(released([1], noise=3.0))
    accountant = RdpAccountant()  # add or remove: the same law as zero-out
    accountant.compose(PoissonSampledDpEvent(0.25, GaussianDpEvent(2.0)), 4)
    first = accountant.get_epsilon(DELTA)
    accountant.compose(GaussianDpEvent(3.0))
    second = accountant.get_epsilon(DELTA)
    found = sampled_epsilons(ledger, delta=DELTA, accountant="rdp")
    torch.testing.assert_close(found, torch.tensor([first, second, 0.0]).double())


def test_answers_to_four_readers_of_one_minibatch_are_one_of_twice_the_size() -> None:
    readers = Ledger(5)
    links = torch.tensor([[0, k] for k in range(1, 5)])
    readers.append(Release(0, "blended", links, 1.0, 4.0, 0.1, apart=True))
    alone = sampled_epsilon(2.0, delta=DELTA, rate=0.1, steps=1, accountant="rdp")
    found = sampled_epsilons(readers, delta=DELTA, accountant="rdp")
    assert float(found[0]) == pytest.approx(alone)
    assert found[1:].tolist() == [0.0] * 4


def test_calibrated_noise_spends_the_budget_and_hardly_less() -> None:
    given = {"delta": DELTA, "rate": 0.05, "steps": 50, "accountant": "rdp"}
    noise = sampled_noise(1.5, **given)
    assert sampled_epsilon(noise, **given) <= 1.5
    assert sampled_epsilon(noise / 1.002, **given) > 1.5


def test_noise_that_hides_nothing_is_not_accounted_for_on_a_grid() -> None:
    """Whose width would be that of an epsilon of some thousands."""
    given = {"delta": DELTA, "rate": 0.1, "steps": 10}
    loose = sampled_epsilon(0.01, **given, accountant="rdp")
    assert sampled_epsilon(0.01, **given) == loose > 1000


def test_sampling_fewer_never_costs_more() -> None:
    costs = [
        sampled_epsilon(1.5, delta=DELTA, rate=rate, steps=10, accountant="rdp")
        for rate in (0.01, 0.1, 0.5, 1.0)
    ]
    assert costs == sorted(costs)


def test_a_release_without_noise_hides_nothing_and_no_release_tells_nothing() -> None:
    ledger = Ledger(2)
    ledger.append(released([0], noise=0.0))
    assert sampled_epsilons(ledger, delta=DELTA).tolist() == [math.inf, 0.0]
    assert sampled_epsilon(0.0, delta=DELTA, rate=0.5, steps=1) == math.inf
    assert sampled_epsilon(0.0, delta=DELTA, rate=0.5, steps=0) == 0.0


def test_gossip_is_refused_and_not_ignored() -> None:
    ledger = Ledger(2)
    links = torch.tensor([[0, 1], [1, 0]])
    ledger.append(Exchange(3, links, torch.full((2, 2), 0.5)))
    refuses(r"Exchange in round 3.*projection", sampled_epsilons, ledger, delta=DELTA)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"noise": -1.0}, "`noise` must be at least 0"),
        (
            {"noise": 1e-300},
            "`noise` must be 0, or between 1e-06 and 1e.09, got 1e-300",
        ),
        ({"noise": 1e300}, "`noise` must be 0, or between 1e-06 and 1e.09, got 1e.300"),
        ({"delta": 0.0}, "`delta` must be greater than 0"),
        ({"delta": 1.0}, "`delta` must be less than 1"),
        ({"rate": 1.5}, "`rate` must be at most 1"),
        ({"steps": -1}, "`steps` must be at least 0"),
        ({"accountant": "moments"}, "`accountant` must be one of pld, rdp"),
    ],
)
def test_what_makes_no_sense_is_refused(changed: dict, message: str) -> None:
    given = {"noise": 1.0, "delta": DELTA, "rate": 0.1, "steps": 1, **changed}
    refuses(message, sampled_epsilon, given.pop("noise"), **given)


def test_an_accountant_that_is_listed_but_not_written_raises(monkeypatch) -> None:
    names = (*subsampled.ACCOUNTANTS, "moments")
    monkeypatch.setattr(subsampled, "ACCOUNTANTS", names)
    with pytest.raises(NotImplementedError, match="moments"):
        sampled_epsilon(1.0, delta=DELTA, rate=0.1, steps=1, accountant="moments")


@pytest.mark.parametrize(
    ("epsilon", "message"),
    [
        (1e300, "`epsilon` must be at most 1e.09, got 1e.300"),
        (1e-300, "`epsilon` must be at least 1e-06, got 1e-300"),
        (
            1e-5,
            "`epsilon` is too small for the accountant 'rdp', got 1e-05 with a delta",
        ),
    ],
)
def test_noise_of_an_epsilon_that_cannot_be_counted_is_refused(epsilon, message):
    with pytest.raises(InputError, match=message):
        sampled_noise(epsilon, delta=1e-100, rate=1.0, steps=2, accountant="rdp")


def test_noise_beyond_numbers_is_counted_on_the_safe_side() -> None:
    ledger = Ledger(2)
    ledger.append(released([0], noise=1e-300))
    ledger.append(released([1], noise=1e300))
    least, most = sampled_epsilons(ledger, delta=DELTA).tolist()
    assert least == math.inf and 0 <= most < 1e-3


def test_dp_accounting_which_imports_for_seconds_is_imported_where_it_is_used() -> None:
    for path in Path(privacy.__file__).parent.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                assert "dp_accounting" not in ast.unparse(node), path.name


@pytest.mark.parametrize("rate", [0.1, 1.0])
def test_quick_bounds_are_renyi_divergences_of_whole_orders_and_never_too_small(rate):
    orders = [*range(2, 65), 96, 128, 192, 256, 384, 512, 768, 1024]
    event = GaussianDpEvent(1.3)
    accountant = RdpAccountant(orders, NeighboringRelation.REPLACE_SPECIAL)
    accountant.compose(PoissonSampledDpEvent(rate, event) if rate < 1 else event, 20)
    (quick,) = quick_epsilons([{(1.3, rate, False): 20}], DELTA).tolist()
    assert quick == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-9)
    tight = sampled_epsilon(1.3, delta=DELTA, rate=rate, steps=20)
    assert tight < quick < 1.3 * tight


def test_quick_bounds_know_nothing_released_and_no_noise():
    two, three = (2.0, 0.5, False), (3.0, 0.5, False)
    steps = [{}, {(0.0, 0.5, False): 1}, {two: 1, three: 2}, {two: 3}]
    none, noiseless, less, more = quick_epsilons(steps, DELTA).tolist()
    assert (none, noiseless) == (0.0, math.inf)
    assert 0 < less < more


# Noise for an epsilon.


def noise_of_steps(*steps, epsilon=2.0):
    """The noise for clients with these (rate, times)."""
    rounds = [[Counter({(1.0, rate, False): times}) for rate, times in steps]]
    return noise_for_samples(rounds, epsilon, DELTA).training


@pytest.mark.parametrize("epsilon", [0.3, 2.0, 20.0])
def test_without_sampling_noise_is_that_of_the_exact_gaussian_curve(epsilon):
    expected = math.sqrt(25) / mu_of(epsilon, DELTA)
    found = noise_of_steps((1.0, 25), epsilon=epsilon)
    assert expected <= found < 1.003 * expected


@pytest.mark.parametrize(
    ("rate", "times", "epsilon"), [(0.1, 60, 2.0), (0.02, 500, 1.0)]
)
def test_noise_is_the_least_that_dp_accounting_allows(rate, times, epsilon):
    found = noise_of_steps((rate, times), epsilon=epsilon)

    def spent(noise):
        accountant = PLDAccountant(NeighboringRelation.REPLACE_SPECIAL)
        event = PoissonSampledDpEvent(rate, GaussianDpEvent(noise))
        return accountant.compose(event, times).get_epsilon(DELTA)

    assert spent(found) <= epsilon < spent(found / 1.004)
    # What Renyi divergences of whole orders would take is 5 per cent more.
    step = (1.05 * found, rate, False)
    assert float(quick_epsilons([{step: times}], DELTA)) > epsilon


def test_noise_is_for_the_client_who_is_asked_most():
    alone = noise_of_steps((0.2, 40))
    among = noise_of_steps((0.1, 40), (0.2, 40), (0.2, 30), (0.01, 45))
    assert among == pytest.approx(alone, rel=2e-3)


@pytest.mark.parametrize(
    ("steps", "covered"),
    [
        ({(1.0, 0.1, False): 2}, True),
        ({(1.0, 0.1, False): 3}, False),
        ({(1.0 - 1e-12, 0.1, False): 2}, True),  # up to rounding
        ({(0.9, 0.1, False): 1}, False),  # less noise
        ({(1.0, 0.2, False): 1}, False),  # a larger rate
        ({(2.0, 0.05, False): 2, (3.0, 1.0, False): 1}, True),
        ({(2.0, 0.05, False): 2, (2.9, 1.0, False): 1}, False),
        ({(5.0, 0.1, True): 1}, False),  # of other samples
        ({}, True),
    ],
)
def test_steps_are_covered_by_as_many_that_tell_no_less(steps, covered):
    most = {(1.0, 0.1, False): 2, (3.0, 1.0, False): 1}
    assert covers(most, steps) is covered
