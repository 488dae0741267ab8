"""Rates of descent without a server: gains, conditions, bounds, lower bounds."""

from __future__ import annotations

import math

import pytest
import torch

from coterie.checks import InputError
from coterie.graphs import edges_of, eigengap
from coterie.optim.meetings import MeetingRates, meetings
from coterie_theory.decentralised import descent, gossip
from coterie_theory.descent.delayed import Network, ddo, quadratic_phi, ticks
from coterie_theory.rates import ConvexLosses
from support.draws import rng

REAL = torch.float64
E = math.e


def random_network(n=6, seed=0):
    edges = edges_of("ring", n)
    rng_ = rng(seed)

    def uniform(count, low, high):
        return low + (high - low) * torch.rand(count, generator=rng_, dtype=REAL)

    limits = ((0.5, 2), (0, 1.5), (0.5, 2), (0, 1))
    return Network(edges, *(uniform(n, low, high) for low, high in limits))


def test_minibatches_of_all_are_below_their_bound():
    """SGD on quadratics with the step of the bound, the mean over many runs."""
    n, rounds, sigma = 5, 200, 1.0
    h = torch.tensor([1.0, 0.1], dtype=REAL)
    losses = ConvexLosses(radius=math.sqrt(2.0), beta=1.0, variance=sigma**2)
    step = min(0.5, losses.radius / math.sqrt(sigma**2 / n * rounds))
    x = torch.ones(200, 2, dtype=REAL)
    total, rng_ = torch.zeros_like(x), rng()
    for _ in range(rounds):
        total += x
        noise = torch.randn(200, n, 2, generator=rng_, dtype=REAL).mean(1)
        x = x - step * (h * x + sigma / math.sqrt(2) * noise)
    gaps = (h * (total / rounds) ** 2).sum(1) / 2
    bound = descent.minibatch_bound(rounds, n, losses)
    assert float(gaps.mean()) + 3 * float(gaps.std()) / math.sqrt(200) <= bound
    assert bound == pytest.approx(2 * 2 / 200 + 2 * math.sqrt(2 / (5 * 200)))


def test_rates_of_rounds_are_as_written_and_do_not_depend_on_units():
    losses = ConvexLosses(radius=2.0, beta=3.0, variance=4.0)
    local = (
        12 / 50 + (math.sqrt(3) * 2 * 4 / 50) ** (2 / 3) + math.sqrt(16 / (5 * 4 * 50))
    )
    assert descent.local_rate(50, 5, 4, losses) == pytest.approx(local)
    graph = 12 / 5 + (math.sqrt(3) * 2 * 4 / 5) ** (2 / 3) + math.sqrt(16 / (5 * 50))
    assert descent.decentralised_rate(50, 5, 0.1, losses) == pytest.approx(graph)
    # Loss times 7 and length times 3.
    other = ConvexLosses(radius=6.0, beta=3.0 * 7 / 9, variance=4.0 * 49 / 9)
    scaled = descent.decentralised_rate(50, 5, 0.1, other)
    assert scaled == pytest.approx(7 * graph)


def test_the_dual_rate_is_that_of_the_reference():
    for n, text, rates in (
        (10, "line", (0.024581, 0.007773, 0.002458)),
        (10, "ring", (0.046066, 0.014567, 0.004607)),
        (9, "grid", (0.070014, 0.02214, 0.007001)),
    ):
        edges = edges_of(text, n)
        graph = meetings(edges, torch.full((len(edges),), 1 / len(edges), dtype=REAL))
        for kappa, expected in zip((1.0, 10.0, 100.0), rates, strict=True):
            found = descent.dual_rate(graph, kappa, 1.0)
            assert found == pytest.approx(expected, abs=6e-7)
    with pytest.raises(InputError, match="`curvature` must be at most 1, got 10"):
        descent.dual_rate(MeetingRates(0.1, 1.0), 1.0, 10.0)


def test_gains_on_a_regular_graph_have_a_closed_form():
    """K = p / (1 + (2 d - 1) p tau (1 + e)) for edges of a d-regular graph."""
    m, p, tau = 6, 0.7, 0.4
    near = torch.eye(m) + torch.eye(m).roll(1, 0) + torch.eye(m).roll(-1, 0)
    gains = descent.coordinate_gains(torch.full((m,), p), torch.full((m,), tau), near)
    assert gains.tolist() == pytest.approx(
        [p / (1 + 3 * p * tau * (1 + E))] * m, rel=1e-6
    )


def test_gains_without_delays_are_rates_and_fall_with_delays_and_other_rates():
    net = random_network()
    whole = descent.augmented_graph(net)
    near = whole.neighbours
    still = descent.coordinate_gains(whole.rates, 0 * whole.delays, near)
    torch.testing.assert_close(still, whole.rates)
    gains = descent.coordinate_gains(whole.rates, whole.delays, near)
    for k in range(len(near)):
        later = whole.delays.clone()
        later[k] += 1
        assert (
            descent.coordinate_gains(whole.rates, later, near) <= gains + 1e-12
        ).all()
        more = whole.rates.clone()
        more[k] += 1
        others = torch.arange(len(near)) != k
        found = descent.coordinate_gains(more, whole.delays, near)
        assert (found <= gains + 1e-12)[others].all()
    slow = descent.coordinate_gains(whole.rates / 3, whole.delays * 3, near)
    torch.testing.assert_close(slow, gains / 3)


def test_gains_of_ddo_are_those_written_out_and_smaller_than_printed():
    net = random_network()
    gains = descent.ddo_gains(net)
    edges, p, tau, pc, tc = net
    listed = edges.tolist()
    for k, (v, w) in enumerate(listed):
        near = [j for j, pair in enumerate(listed) if {v, w} & set(pair)]
        printed = 1 + sum(float(p[j] * (tau[k] + E * tau[j])) for j in near)
        right = printed + sum(float(pc[u] * (tau[k] + E * tc[u])) for u in (v, w))
        assert float(gains.edges[k]) == pytest.approx(float(p[k]) / right)
        assert float(gains.edges[k]) < float(p[k]) / printed
    for v in range(6):
        near = [j for j, pair in enumerate(listed) if v in pair]
        printed = 1 + sum(float(p[j] * (tc[v] + E * tau[j])) for j in near)
        right = printed + float(pc[v] * (1 + E) * tc[v])
        assert float(gains.nodes[v]) == pytest.approx(float(pc[v]) / right)


def test_the_augmented_graph_loses_a_quarter_of_the_eigengap_at_most():
    """Lemma 4.A.4; and it does lose, which (4.28) as printed forgets."""
    for seed in range(5):
        net = random_network(seed=seed)
        gains = descent.ddo_gains(net)
        alone = eigengap(net.edges, gains.edges)
        floor = min(alone, float(gains.nodes.min())) / 4
        rate = descent.ddo_rate(net, gains, smoothness=2.0, curvature=1.0)
        assert floor <= 8 * rate < alone
        half = descent.ddo_rate(net, gains, smoothness=2.0, curvature=1.0, accepted=0.5)
        assert half == pytest.approx(rate / 2)


def discounted_mean(gamma, until, times, values):
    """int e^{gamma t} h(t) dt / int e^{gamma t} dt of a jump process."""
    times = torch.tensor([0.0, *times, until], dtype=REAL)
    weights = (gamma * times - gamma * until).exp().diff()
    return float((weights * torch.tensor(values, dtype=REAL)).sum() / weights.sum())


def test_delayed_coordinate_descent_is_below_theorem_4_2():
    """Random sparse quadratics with six blocks of one coordinate."""
    m, until, runs = 6, 30.0, 10
    rng_ = rng(3)
    near = (
        torch.eye(m, dtype=REAL)
        + torch.diag(torch.ones(m - 1), 1)
        + torch.diag(torch.ones(m - 1), -1)
    )
    factor = torch.randn(m, m, generator=rng_, dtype=REAL).tril() * near.tril()
    q = factor @ factor.T + torch.eye(m, dtype=REAL)
    rates = 0.5 + 1.5 * torch.rand(m, generator=rng_, dtype=REAL)
    delays = 1.5 * torch.rand(m, generator=rng_, dtype=REAL)
    smooth = q.diag()
    ratio = q.abs() / (smooth[:, None] * smooth).sqrt()
    gains = descent.coordinate_gains(rates, delays, ratio)
    sigma = float(torch.linalg.eigvalsh(q)[0])
    gamma = 0.99 * descent.coordinate_rate(gains, smooth, delays, curvature=sigma)
    steps, ratios = (gains / (rates * smooth)).tolist(), []
    for seed in range(runs):
        found, x = [], torch.ones(m, dtype=REAL)
        counts = torch.poisson(rates * until, generator=rng(seed)).long()
        which = torch.arange(m).repeat_interleave(counts)
        times = torch.rand(len(which), generator=rng(seed + 99), dtype=REAL) * until
        order = times.argsort()
        past = [(0.0, x)]
        for k, t in zip(which[order].tolist(), times[order].tolist(), strict=True):
            old = [y for at, y in past if at <= max(0.0, t - float(delays[k]))][-1]
            x = x.clone()
            x[k] -= steps[k] * float(q[k] @ old)
            past.append((t, x))
        values = [float(y @ q @ y) / 2 for _, y in past]
        found = discounted_mean(gamma, until, [t for t, _ in past[1:]], values)
        ratios.append(found / values[0])
    ratios = torch.tensor(ratios)
    bound = gossip.delayed_bound(gamma, until, float(delays.max()))
    error = float(ratios.std()) / math.sqrt(runs)
    assert float(ratios.mean()) + 3 * error <= bound < 1


def test_ddo_is_below_theorem_4_3():
    net, until, sigma, smooth = random_network(4), 60.0, 0.5, 2.0
    a = torch.tensor([0.5, 2.0, 1.0, 1.5], dtype=REAL)
    b = torch.randn(4, 1, generator=rng(5), dtype=REAL)
    best = (a[:, None] * b).sum(0) / a.sum()
    phi, gains = quadratic_phi(a, b, sigma=sigma), descent.ddo_gains(net)
    gamma = 0.99 * descent.ddo_rate(net, gains, smoothness=smooth, curvature=sigma)
    zero = torch.zeros(1, dtype=REAL)
    start = 4 * float(best**2) + sum(
        float((phi(v, zero) - best) ** 2) for v in range(4)
    )
    ratios = []
    for seed in range(8):
        times, values = [], [4 * float(best**2)]
        run = ddo(
            phi, net, gains, ticks(net, until, rng(seed)), sigma=sigma, dimension=1
        )
        for now in run:
            times.append(now.time)
            values.append(float((now.x - best).square().sum()))
        ratios.append(discounted_mean(gamma, until, times, values) / start)
    ratios = torch.tensor(ratios)
    longest = float(torch.cat([net.delays, net.lengths]).max())
    bound = descent.ddo_bound(gamma, until, longest, smoothness=smooth, curvature=sigma)
    assert float(ratios.mean()) + 3 * float(ratios.std()) / math.sqrt(8) <= bound


def test_gamma_must_be_below_the_inverse_of_the_longest_delay():
    assert gossip.delayed_bound(0.0, 10.0, 2.0) == pytest.approx(1.2)
    with pytest.raises(InputError, match="`gamma` must be below 1 / "):
        gossip.delayed_bound(0.5, 10.0, 2.0)


def test_limited_rates_satisfy_4_33():
    net = random_network()
    found = descent.limited_rates(net, link=1, node=2, computing=1)
    assert (gossip.CAPACITY * found.rates * net.delays <= 1 + 1e-9).all()
    assert (gossip.CAPACITY * found.computing * net.lengths <= 1 + 1e-9).all()
    for v in range(6):
        at = (net.edges == v).any(1)
        load = float(found.rates[at].sum() * net.delays[at].max())
        assert gossip.CAPACITY * load <= 2 + 1e-9
    same = descent.limited_rates(net)
    assert torch.equal(same.rates, net.rates)
