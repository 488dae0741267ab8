"""DDO: dual coordinate descent on the augmented graph, what is kept, capacities."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from coterie.graphs import RingTimes, edges_of
from coterie_theory.decentralised import descent
from coterie_theory.descent.delayed import (
    Capacities,
    Gains,
    Network,
    admissible,
    ddo,
    quadratic_phi,
    ticks,
)
from support.draws import rng
from support.refusals import refuses

REAL = torch.float64
SIGMA = 0.5


def network(scale=1.0):
    """The reference of the specification: a ring of 8 with two chords, p = 1 / tau."""
    chords = torch.tensor([[0, 4], [2, 6]])
    edges = torch.cat([edges_of("ring", 8), chords])
    delays = torch.tensor([0.1, 1.0], dtype=REAL)[torch.arange(10) % 2] * scale
    lengths = torch.tensor([0.1, 0.5], dtype=REAL)[torch.arange(8) % 2] * scale
    rates = 1 / (delays if scale else torch.ones(10, dtype=REAL))
    computing = 1 / (lengths if scale else torch.ones(8, dtype=REAL))
    return Network(edges, rates, delays, computing, lengths)


def losses(d=2):
    a = 0.5 + 1.5 * torch.rand(8, generator=rng(1), dtype=REAL)
    a[0], a[1] = 0.5, 2.0
    b = torch.randn(8, d, generator=rng(2), dtype=REAL)
    return a, b, (a[:, None] * b).sum(0) / a.sum()


def run(net, gains, until, seed=0, keep=None):
    a, b, _ = losses()
    when = ticks(net, until, rng(seed))
    if keep is not None:
        kept = admissible(net, when, keep)
        when = RingTimes(when.times[kept], when.which[kept])
    phi = quadratic_phi(a, b, sigma=SIGMA)
    return ddo(phi, net, gains, when, sigma=SIGMA, dimension=2), when


def augmented_descent(net, gains, when):
    """A8: dual values u of 2 n nodes, written as a search through all that was."""
    a, b, _ = losses()
    n, e = 8, len(net.edges)
    pairs = [tuple(pair) for pair in net.edges.tolist()] + [
        (v, n + v) for v in range(n)
    ]
    late = torch.cat([net.delays, net.lengths]).tolist()
    rate = torch.cat([net.rates, net.computing]).tolist()
    gain = torch.cat([gains.edges, gains.nodes]).tolist()
    history = [(0.0, torch.zeros(2 * n, 2, dtype=REAL))]

    def primal(node, u):
        if node < n:
            return 2 * u / SIGMA  # of (sigma / 4) |x|^2
        v = node - n
        return (u + a[v] * b[v]) / (a[v] - SIGMA / 2)

    for time, k in zip(when.times.tolist(), when.which.tolist(), strict=True):
        before = [u for at, u in history if at <= max(0.0, time - late[k])][-1]
        one, other = pairs[k]
        away = primal(one, before[one]) - primal(other, before[other])
        u, step = history[-1][1].clone(), gain[k] * SIGMA / (4 * rate[k])
        u[one], u[other] = u[one] - step * away, u[other] + step * away
        history.append((time, u))
        yield 2 * u[:n] / SIGMA, u[n:]
    assert e < len(pairs)


@pytest.mark.parametrize("scale", [1.0, 0.0])
def test_it_is_dual_coordinate_descent_on_the_augmented_graph(scale):
    """With delays, and without any."""
    net = network(scale)
    gains = descent.ddo_gains(net)
    found, when = run(net, gains, 3.0)
    for now, (x, y) in zip(found, augmented_descent(net, gains, when), strict=True):
        torch.testing.assert_close(now.x, x, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(now.y, y, rtol=1e-12, atol=1e-12)


def test_models_and_dual_values_keep_their_sum():
    net = network()
    for now in run(net, descent.ddo_gains(net), 5.0)[0]:
        total = SIGMA / 2 * now.x.sum(0) + now.y.sum(0)
        torch.testing.assert_close(
            total, torch.zeros(2, dtype=REAL), atol=1e-12, rtol=0
        )


def short(late=0.1):
    """All ticks 1.5 times a second, with short delays: a few hundred seconds do."""
    edges, ones = edges_of("ring", 8), torch.ones(8, dtype=REAL)
    return Network(edges, 1.5 * ones, late * ones, 1.5 * ones, late / 2 * ones)


def limit(net, gains, until=300.0, keep=None):
    *_, last = run(net, gains, until, keep=keep)[0]
    return last.x.clone()


def test_models_go_to_the_optimum():
    best = losses()[2].repeat(8, 1)
    net = short()
    found = limit(net, descent.ddo_gains(net))
    torch.testing.assert_close(found, best, rtol=0, atol=2e-2)
    still = short(0.0)
    found = limit(still, descent.ddo_gains(still))
    torch.testing.assert_close(found, best, rtol=0, atol=1e-5)


def test_the_printed_step_of_dual_values_leads_elsewhere():
    """sigma K / p in place of sigma K / 4p: sum_v grad f_v(c) + (3/2) n sigma c = 0."""
    net, (a, b, best) = short(0.0), losses()
    wrong = (a[:, None] * b).sum(0) / (a.sum() + 1.5 * 8 * SIGMA)
    phi = quadratic_phi(a, b, sigma=SIGMA)
    x = torch.zeros(8, 2, dtype=REAL)
    y, share = torch.zeros_like(x), 1 / 4  # K / p of computations
    for k in ticks(net, 150.0, rng()).which.tolist():
        if k < 8:
            v, w = net.edges[k].tolist()
            x[v] = x[w] = (x[v] + x[w]) / 2
            continue
        away = x[k - 8] - phi(k - 8, y[k - 8])
        x[k - 8] -= share / 2 * away
        y[k - 8] += SIGMA * share * away
    torch.testing.assert_close(x, wrong.repeat(8, 1), rtol=0, atol=1e-3)
    right = limit(net, Gains(net.rates, net.computing / 4))
    torch.testing.assert_close(right, best.repeat(8, 1), rtol=0, atol=5e-3)
    assert float((wrong - best).norm()) > 0.05


def test_the_output_is_a_model_and_half_of_sigma_times_it_is_not():
    net, (_, _, best) = short(0.0), losses()
    found = limit(net, descent.ddo_gains(net), 60.0)
    assert float((SIGMA / 2 * found - best).norm()) > 0.5 * float((best).norm())


def test_the_optimum_is_a_fixed_point():
    """x = g = x* and y = grad phi(x*): nothing that is read differs."""
    a, b, best = losses()
    own = a[:, None] * (best - b) - SIGMA / 2 * best
    phi = quadratic_phi(a, b, sigma=SIGMA)
    for v in range(8):
        torch.testing.assert_close(phi(v, own[v]), best, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        SIGMA / 2 * 8 * best + own.sum(0),
        torch.zeros(2, dtype=REAL),
        atol=1e-12,
        rtol=0,
    )


def test_equal_losses_go_to_the_mean():
    net, b = short(0.0), torch.randn(8, 2, generator=rng(4), dtype=REAL)
    phi = quadratic_phi(torch.full((8,), 1.0, dtype=REAL), b, sigma=1.0)
    when = ticks(net, 100.0, rng())
    *_, last = ddo(phi, net, descent.ddo_gains(net), when, sigma=1.0, dimension=2)
    torch.testing.assert_close(last.x, b.mean(0).repeat(8, 1), rtol=0, atol=1e-3)


def test_ticks_are_poisson_processes_of_their_rates():
    net = network()
    when = ticks(net, 200.0, rng())
    counts = when.which.bincount(minlength=18)
    wanted = 200 * torch.cat([net.rates, net.computing])
    assert ((counts - wanted).abs() < 5 * wanted.sqrt()).all()
    assert (when.times.diff() >= 0).all() and float(when.times.max()) <= 200.0


# Capacities.


def in_flight(starts, ends, time):
    return sum(s <= time < e for s, e in zip(starts, ends, strict=True))


def test_any_capacity_is_no_limit():
    net = network()
    assert admissible(net, ticks(net, 20.0, rng()), Capacities()).all()


@pytest.mark.parametrize("most", [1, 2])
def test_never_more_than_the_capacity_are_on_their_way(most):
    net = network()
    net = net._replace(delays=torch.full((10,), 0.5, dtype=REAL))
    when = ticks(net, 20.0, rng())
    kept = admissible(net, when, Capacities(most, most, most))
    late = torch.cat([net.delays, net.lengths])
    for v in range(8):
        at = torch.cat([(net.edges == v).any(1), torch.zeros(8, dtype=torch.bool)])
        for here in (at, torch.arange(18) == 10 + v):
            some = kept & here[when.which]
            ends = when.times[some].tolist()
            starts = (when.times[some] - late[when.which[some]]).tolist()
            assert max((in_flight(starts, ends, s) for s in starts), default=0) <= most
    assert 0 < int(kept.sum()) < len(kept)


def test_with_one_message_a_link_exchanges_do_not_overlap():
    net = Network(
        torch.tensor([[0, 1]]),
        *(torch.tensor([v], dtype=REAL) for v in (3.0, 0.4)),
        *(torch.ones(2, dtype=REAL) for _ in range(2)),
    )
    when = ticks(net, 50.0, rng())
    kept = admissible(net, when, Capacities(link=1)) & (when.which == 0)
    times = when.times[kept].tolist()
    assert len(times) > 10
    assert all(after - before > 0.4 for before, after in pairwise(times))


def test_half_of_all_ticks_are_kept_at_the_rates_of_4_33():
    net = descent.limited_rates(network(), link=1, node=2, computing=1)
    when = ticks(net, 2000.0, rng())
    kept = admissible(net, when, Capacities(1, 2, 1))
    for k in range(18):
        here = when.which == k
        assert float(kept[here].double().mean()) > 0.5


def test_with_capacities_it_arrives_too():
    best = losses()[2].repeat(8, 1)
    net = short()
    found = limit(net, descent.ddo_gains(net), 500.0, keep=Capacities(node=1))
    torch.testing.assert_close(found, best, rtol=0, atol=2e-2)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rates": torch.zeros(10, dtype=REAL)}, "`rates` must be positive"),
        (
            {"delays": torch.full((10,), -1.0, dtype=REAL)},
            "`delays` must be at least 0, but",
        ),
        ({"computing": torch.ones(3, dtype=REAL)}, "`computing` must have shape"),
    ],
)
def test_networks_that_cannot_be_are_refused(change, said):
    net = network()._replace(**change)
    refuses(said, descent.ddo_gains, net)


def test_a_sigma_above_a_curvature_is_refused():
    a, b, _ = losses()
    refuses(r"`sigma` must be at most 0\.5, got 3", quadratic_phi, a, b, sigma=3.0)
