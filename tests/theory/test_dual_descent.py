"""The dual method: randomised gossip, closed forms, dense loops, what is kept."""

from __future__ import annotations

import math

import pytest
import torch

from coterie.checks import InputError
from coterie.engine.clocks import Rings
from coterie.graphs import RingTimes, edges_of, resistances
from coterie.optim.meetings import DualSteps, dual_steps, meetings
from coterie_theory.decentralised.continuized import second_moment_rate
from coterie_theory.descent.dual import dual_accelerated, incidence, quadratic_duals
from support.draws import rng
from support.rings import uniform

REAL = torch.float64
EXACT = {"rtol": 1e-10, "atol": 1e-12}


def problem(n, d=3, kappa=10.0):
    """Curvatures from 1 to kappa in random directions, and the optimum of the sum."""
    turn = torch.linalg.qr(torch.randn(n, d, d, generator=rng(1), dtype=REAL))[0]
    values = 1 + (kappa - 1) * torch.rand(n, d, generator=rng(2), dtype=REAL)
    values[0, 0], values[-1, -1] = 1.0, kappa
    q = turn @ torch.diag_embed(values) @ turn.mT
    c = torch.randn(n, d, generator=rng(3), dtype=REAL)
    best = torch.linalg.solve(q.sum(0), torch.einsum("nde,ne->d", q, c))
    return q, c, best


@pytest.mark.parametrize(("text", "n"), [("line", 7), ("ring", 6), ("star", 6)])
def test_of_distances_it_is_accelerated_gossip_where_all_edges_are_alike(text, n):
    """y + x_0 and z + x_0 of f_v = |x - x_0(v)|^2 / 2, against a dense loop."""
    edges, rates = uniform(text, n)
    rings = Rings(edges, rates, seed=2).until(60.0)
    first = torch.randn(n, 2, generator=rng(), dtype=REAL)
    graph = meetings(edges, rates)
    x, z, now = first.clone(), first.clone(), 0.0
    for time, e in zip(rings.times.tolist(), rings.which.tolist(), strict=True):
        kept = math.exp(-2 * graph.eta * (time - now))
        x, z, now = (x + z + kept * (x - z)) / 2, (x + z - kept * (x - z)) / 2, time
        v, w = edges[e].tolist()
        away = x[w] - x[v]
        x[v], x[w] = x[v] + away / 2, x[w] - away / 2
        z[v], z[w] = z[v] + graph.alpha * away, z[w] - graph.alpha * away
    kept = math.exp(-2 * graph.eta * (60.0 - now))
    x, z = (x + z + kept * (x - z)) / 2, (x + z - kept * (x - z)) / 2
    steps = dual_steps(edges, rates, smoothness=1.0, curvature=1.0)
    given = edges, steps, rings, torch.zeros_like(first)
    found = dual_accelerated(lambda v, y: first[v] + y, *given, until=60.0)
    torch.testing.assert_close(found.y + first, x, **EXACT)
    torch.testing.assert_close(found.z + first, z, **EXACT)


def test_on_other_graphs_edges_take_a_part_of_the_average():
    edges, rates = uniform("barbell", 6)
    shares = dual_steps(edges, rates, smoothness=1.0, curvature=1.0).shares
    each = resistances(edges, rates)
    torch.testing.assert_close(shares, each / (2 * each.max()), **EXACT)
    assert float(shares.max()) == pytest.approx(1 / 2)  # between the two triangles
    assert float(shares.min()) == pytest.approx(1 / 3)  # in them


def test_it_arrives_at_the_optimum_and_dual_points_at_gradients():
    n, kappa = 6, 4.0
    q, c, best = problem(n, kappa=kappa)
    edges = edges_of("ring", n)
    rates = torch.ones(n, dtype=REAL)
    steps = dual_steps(edges, rates, smoothness=kappa, curvature=1.0)
    rings = Rings(edges, rates, seed=1).until(100.0)
    gradient = quadratic_duals(q, c)
    y, z = dual_accelerated(
        gradient, edges, steps, rings, torch.zeros(n, 3, dtype=REAL), until=100.0
    )
    own = torch.einsum("nde,ne->nd", q, best - c)
    for found in (y, z):
        torch.testing.assert_close(
            found.sum(0), torch.zeros(3, dtype=REAL), atol=1e-9, rtol=0
        )
        torch.testing.assert_close(found, own, rtol=0, atol=1e-4)
    models = torch.stack([gradient(v, z[v]) for v in range(n)])
    torch.testing.assert_close(models, best.repeat(n, 1), rtol=0, atol=1e-4)


def test_relabelling_nodes_relabels_the_result():
    n = 5
    q, c, _ = problem(n)
    edges, rates = uniform("line", n)
    rings = Rings(edges, rates, seed=1).until(30.0)
    order = torch.tensor([3, 0, 4, 1, 2])  # node j becomes order[j]
    steps = dual_steps(edges, rates, smoothness=10.0, curvature=1.0)
    zeros = torch.zeros(n, 3, dtype=REAL)
    here = dual_accelerated(
        quadratic_duals(q, c), edges, steps, rings, zeros, until=30.0
    )
    moved_q, moved_c = torch.empty_like(q), torch.empty_like(c)
    moved_q[order], moved_c[order] = q, c
    there = dual_accelerated(
        quadratic_duals(moved_q, moved_c), order[edges], steps, rings, zeros, until=30.0
    )
    torch.testing.assert_close(there.z[order], here.z, **EXACT)


def test_without_mixing_it_is_dual_coordinate_descent():
    n = 5
    q, c, _ = problem(n)
    edges, rates = uniform("ring", n)
    rings = Rings(edges, rates, seed=1).until(20.0)
    shares = dual_steps(edges, rates, smoothness=10.0, curvature=1.0).shares
    gradient, zeros = quadratic_duals(q, c), torch.zeros(n, 3, dtype=REAL)
    found = dual_accelerated(
        gradient, edges, DualSteps(0.0, shares, 99.0), rings, zeros, until=20.0
    )
    y = zeros.clone()
    for e in rings.which.tolist():
        v, w = edges[e].tolist()
        g = gradient(v, y[v]) - gradient(w, y[w])
        y[v], y[w] = y[v] - shares[e] * g, y[w] + shares[e] * g
    torch.testing.assert_close(found.y, y, **EXACT)


def exact(n, q, steps, edges, rates):
    """The exact rate of the second moment, for one-dimensional quadratics."""
    basis = torch.linalg.svd(torch.ones(1, n, dtype=REAL))[2][1:].T
    ends, one = incidence(edges), torch.eye(n - 1, dtype=REAL)
    drift = steps.eta * torch.cat(
        [torch.cat([-one, one], 1), torch.cat([one, -one], 1)]
    )
    jumps = []
    for e in range(len(edges)):
        m = basis.T @ torch.outer(ends[:, e], ends[:, e] / q) @ basis
        left = torch.cat([float(steps.shares[e]) * m, steps.jump * m])
        jumps.append(torch.eye(2 * n - 2, dtype=REAL) - torch.cat([left, 0 * left], 1))
    return second_moment_rate(drift, jumps, rates.tolist())


@pytest.mark.parametrize(
    ("text", "theory", "reference"),
    [("line", 0.024581, 0.034761), ("ring", 0.046066, 0.059691)],
)
def test_exact_rates_are_the_reference_and_above_theory(text, theory, reference):
    n = 10
    edges, rates = uniform(text, n)
    steps = dual_steps(edges, rates, smoothness=1.0, curvature=1.0)
    assert steps.eta == pytest.approx(theory, rel=1e-4)
    found = exact(n, torch.ones(n, dtype=REAL), steps, edges, rates)
    assert found == pytest.approx(reference, rel=1e-4)
    q = torch.linspace(1, 10, n, dtype=REAL)
    steps = dual_steps(edges, rates, smoothness=10.0, curvature=1.0)
    assert steps.eta == pytest.approx(theory / math.sqrt(10), rel=1e-4)
    assert exact(n, q, steps, edges, rates) > steps.eta


def test_the_printed_dual_smoothness_diverges():
    """(2.51): `L_dual = max R_e / mu` in place of `2 max R_e / mu`, for kappa = 1."""
    n = 10
    for text in ("line", "ring"):
        edges, rates = uniform(text, n)
        each, gap = resistances(edges, rates), meetings(edges, rates).gap
        steep = float(each.max())
        printed = DualSteps(
            math.sqrt(gap / steep), each / steep, 1 / math.sqrt(gap * steep)
        )
        assert exact(n, torch.ones(n, dtype=REAL), printed, edges, rates) < 0


def test_the_printed_speed_of_mixing_diverges_on_a_line_of_twenty():
    """The ODE of 2.7: sqrt(2 mu / R) in place of sqrt(mu / (2 R)); reference rates."""
    n, (edges, rates) = 20, uniform("line", 20)
    steps = dual_steps(edges, rates, smoothness=1.0, curvature=1.0)
    ones = torch.ones(n, dtype=REAL)
    assert exact(n, ones, steps, edges, rates) == pytest.approx(0.008964, rel=1e-3)
    printed = steps._replace(eta=2 * steps.eta)
    found = exact(n, ones, printed, edges, rates)
    assert found == pytest.approx(-0.00208, rel=1e-2)


def test_the_printed_step_of_z_with_the_weight_of_the_edge_is_slower_than_theory():
    """(2.31): G = P_e g for z too."""
    n = 10
    edges, rates = uniform("line", n)
    steps = dual_steps(edges, rates, smoothness=1.0, curvature=1.0)
    printed = steps._replace(jump=steps.jump * float(rates[0]))
    found = exact(n, torch.ones(n, dtype=REAL), printed, edges, rates)
    assert found < steps.eta


def test_kappa_is_the_larger_over_the_smaller_where_theorem_2_6_prints_its_inverse():
    edges, rates = uniform("ring", 6)
    flat = dual_steps(edges, rates, smoothness=1.0, curvature=1.0)
    steep = dual_steps(edges, rates, smoothness=9.0, curvature=1.0)
    assert steep.eta == pytest.approx(flat.eta / 3)
    with pytest.raises(InputError, match="`curvature` must be at most 1, got"):
        dual_steps(edges, rates, smoothness=1.0, curvature=9.0)


def test_dual_gradients_undo_gradients():
    q, c, _ = problem(4)
    gradient = quadratic_duals(q, c)
    x = torch.randn(4, 3, generator=rng(), dtype=REAL)
    own = torch.einsum("nde,ne->nd", q, x - c)
    for v in range(4):
        torch.testing.assert_close(gradient(v, own[v]), x[v], **EXACT)


def test_a_start_that_does_not_sum_to_zero_is_refused():
    edges, rates = uniform("ring", 4)
    steps = dual_steps(edges, rates, smoothness=1.0, curvature=1.0)
    none = RingTimes(torch.zeros(0, dtype=REAL), torch.zeros(0, dtype=torch.long))
    with pytest.raises(InputError, match="`start` must sum to 0 over nodes, got 4"):
        dual_accelerated(
            lambda v, y: y, edges, steps, none, torch.ones(4, 1), until=1.0
        )
