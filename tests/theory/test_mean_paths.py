"""Claims about the mean of delayed gossip."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from coterie.checks import InputError
from coterie.graphs import delayed_gains, delayed_shares, edges_of
from coterie_theory.gossip import delayed, local_margin, mean_path, stability_margin
from support.refusals import refuses
from support.rings import REAL, deviation, drawn, normal, times


def two_nodes(k: float, tau: float, t: float) -> float:
    """For u' = -2 k u(t - tau), u = 1 before 0, by the method of steps."""
    total, j = 0.0, 0
    while t - (j - 1) * tau >= 0 and j < 60:
        total += (-2 * k) ** j * (t - (j - 1) * tau) ** j / math.factorial(j)
        j += 1
    return total


@pytest.mark.parametrize(("k", "tau"), [(0.3, 1.0), (0.7, 0.4), (0.2, 0.0017)])
def test_two_nodes_follow_the_method_of_steps(k, tau):
    edges, start = torch.tensor([[0, 1]]), times(1.0, 0.0)[:, None]
    path = mean_path(start, edges, times(k), times(tau), until=3.0, steps=600)
    for t, step in ((0.5, 100), (1.7, 340), (3.0, 600)):
        found = float(path[step, 0, 0] - path[step, 1, 0])
        if tau > 0.1:
            assert found == pytest.approx(two_nodes(k, tau, t), abs=1e-5)
        else:  # almost without delay, to first order in it
            slow = 2 * k * (1 + 2 * k * tau)
            assert found == pytest.approx(math.exp(-slow * t), abs=2e-5)


def test_without_delay_it_is_the_heat_flow():
    edges = edges_of("grid", 9)
    rng = torch.Generator().manual_seed(0)
    k = torch.rand(len(edges), generator=rng, dtype=REAL)
    a = torch.zeros(len(edges), 9, dtype=REAL)
    a.scatter_(1, edges, torch.tensor([1.0, -1.0], dtype=REAL).expand(len(edges), 2))
    flow = torch.linalg.matrix_exp(-2.0 * a.T @ (k[:, None] * a))
    x = normal(9, 2)
    path = mean_path(x, edges, k, 0 * k, until=2.0, steps=400)
    assert_close(path[-1], flow @ x, rtol=1e-5, atol=1e-5)


def test_errors_fall_with_the_square_of_the_step():
    edges, start = torch.tensor([[0, 1]]), times(1.0, 0.0)[:, None]
    exact = two_nodes(0.4, 0.83, 3.0)
    errors = []
    for steps in (100, 200):
        path = mean_path(start, edges, times(0.4), times(0.83), until=3.0, steps=steps)
        errors.append(abs(float(path[-1, 0, 0] - path[-1, 1, 0]) - exact))
    assert errors[1] < 0.35 * errors[0]


def test_it_is_the_mean_of_delayed_gossip():
    edges, delays = edges_of("ring", 6), times(0.1, 1.0, 0.3, 0.1, 0.6, 0.2)
    rates, runs = 1 / delays, 300
    steps = delayed_shares(edges, rates, delays)
    x = normal(6, 1)
    apart = (edges + 6 * torch.arange(runs)[:, None, None]).reshape(-1, 2)
    given = x.repeat(runs, 1), apart, drawn(rates.repeat(runs), 2.0), times(2.0)
    known = {"delays": delays.repeat(runs), "shares": steps.repeat(runs)}
    found = delayed(*given, **known)[0].view(runs, 6)
    path = mean_path(x, edges, rates * steps, delays, until=2.0, steps=200)
    error = found.std(0) / math.sqrt(runs)
    assert ((found.mean(0) - path[-1, :, 0]).abs() < 4 * error).all()


# When it is stable.


def test_the_margin_of_a_pair_is_one_minus_twice_its_load():
    edges = torch.tensor([[0, 1]])
    assert stability_margin(edges, times(0.4), times(2.0)) == pytest.approx(1 - 1.6)
    assert local_margin(edges, times(0.1), times(2.0)) == pytest.approx(0.3)


@pytest.mark.parametrize("share", [0.9, 0.5])
def test_with_a_margin_the_mean_goes_to_consensus(share):
    # Proposition 4.2.1, scaled to the edge of its condition.
    edges = edges_of("grid", 9)
    rng = torch.Generator().manual_seed(1)
    delays = torch.rand(len(edges), generator=rng, dtype=REAL) + 0.2
    k = torch.rand(len(edges), generator=rng, dtype=REAL)
    k *= share / (1 - stability_margin(edges, k, delays))
    assert stability_margin(edges, k, delays) == pytest.approx(1 - share)
    x = normal(9, 1)
    path = mean_path(x, edges, k, delays, until=60.0, steps=300)
    assert deviation(path[-1]) < 1e-2 * deviation(x)


def test_far_beyond_the_margin_the_mean_diverges():
    edges = torch.tensor([[0, 1]])
    start = times(1.0, 0.0)[:, None]
    # Stable if and only if 2 k tau < pi / 2.
    for k, grows in ((0.75, False), (0.82, True)):
        path = mean_path(start, edges, times(k), times(1.0), until=40.0, steps=400)
        swing = (path[:, 0, 0] - path[:, 1, 0]).abs()
        assert (swing[300:].max() > swing[100:200].max()) == grows


def test_the_local_condition_as_printed_lets_an_unstable_linearisation_through():
    # A ring with sums of tau K at nodes of 0.9 < 1, and an eigenvalue of 1.8.
    edges = edges_of("ring", 8)
    k, tau = torch.full((2, 8), math.sqrt(0.45), dtype=REAL)
    assert local_margin(edges, k, tau) == pytest.approx(0.5 - 0.9)
    assert stability_margin(edges, k, tau) == pytest.approx(1 - 1.8)


def test_the_local_condition_is_sufficient():
    rng = torch.Generator().manual_seed(0)
    for name in ("star", "complete", "line"):
        edges = edges_of(name, 7)
        k, tau = torch.rand(2, len(edges), generator=rng, dtype=REAL)
        k *= 0.49 / (0.5 - local_margin(edges, k, tau))
        assert local_margin(edges, k, tau) > 0
        assert stability_margin(edges, k, tau) > 0


def test_gains_of_4_11_keep_the_mean_stable():
    """Every node's sum of tau K is at most 1 / e, so that rho is at most 2 / e."""
    rng = torch.Generator().manual_seed(0)
    for name in ("grid", "complete", "star", "erdos_renyi(0.6)"):
        edges = edges_of(name, 9)
        p, tau = 5 * torch.rand(2, len(edges), generator=rng, dtype=REAL)
        for rates in (p, 20 * p, 10 / tau):
            k = delayed_gains(edges, rates, tau)
            assert local_margin(edges, k, tau) >= 0.5 - 1 / math.e
            assert stability_margin(edges, k, tau) >= 1 - 2 / math.e


def test_the_margin_of_a_large_graph_is_found_without_a_dense_matrix():
    # The Laplacian of an even ring has the eigenvalue 4.
    one = torch.ones(600, dtype=REAL)
    margin = stability_margin(edges_of("ring", 600), 0.1 * one, one)
    assert margin == pytest.approx(1 - 0.4)


def test_bad_input_is_refused_in_a_sentence():
    edges, x = torch.tensor([[0, 1]]), times(1.0, 0.0)[:, None]
    refuses("delays", mean_path, x, edges, times(1.0), times(-1.0), until=1.0, steps=5)
    with pytest.raises(InputError, match="column"):
        mean_path(x[:, :0], edges, times(1.0), times(1.0), until=1.0, steps=5)
    refuses("steps", mean_path, x, edges, times(1.0), times(1.0), until=1.0, steps=0)
    with pytest.raises(InputError, match="path is not finite"):
        mean_path(x, edges, times(1e60), times(0.1), until=9.0, steps=90)
