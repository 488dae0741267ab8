"""Decentralised SGD, gradient tracking and EXTRA: coincidences, limits, the absent."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import torch

from coterie.algorithms.decentralised_sgd import decentralised_sgd
from coterie.algorithms.extra import extra
from coterie.algorithms.fedavg import fedavg
from coterie.algorithms.gradient_tracking import gradient_tracking
from coterie.conformance.cases import Case
from coterie.conformance.suite import CHECKS
from coterie.graphs import among_present, edges_of, gossip_matrix
from coterie_theory.gossip import chebyshev, plain
from support.gradient_oracles import Quadratics
from support.oracles import begun
from support.paces import EXACT
from support.quadratics import REAL, hessians, quadratics
from support.refusals import refuses
from support.rounds import ACTIVE, STEPS, simulate, train

J = torch.full((6, 6), 1 / 6, dtype=REAL)
RING = gossip_matrix(edges_of("ring", 6), 6)
LINE = gossip_matrix(edges_of("line", 6), 6)
SIZES = torch.ones(6)
d_squared = functools.partial(extra, form="d2")
EXACT_ONES = (gradient_tracking, extra, d_squared)


def models(method, simulation, x, rounds=6, active=None):
    return [state.x for state in train(method, simulation, x, rounds, active)[0]]


def agree(one, other):
    for a, b in zip(one[1:], other[1:], strict=True):
        torch.testing.assert_close(a, b, **EXACT)


@pytest.mark.parametrize("options", [{"lr": 0.1}, STEPS])
def test_with_the_mean_for_all_it_is_fedavg(simulation, x, options):
    """One own step is minibatch SGD, several are local SGD."""
    same = x.mean(0).repeat(6, 1)
    ours = models(decentralised_sgd(J, **options), simulation, same)
    theirs = fedavg(SIZES, weighting="uniform", **options)
    agree(ours, models(theirs, simulation, same))


def test_with_the_mean_for_all_tracking_is_minibatch_sgd(simulation, x):
    """y differs between nodes, but J leaves only its mean, which does not."""
    same = x.mean(0).repeat(6, 1)
    theirs = fedavg(SIZES, lr=0.1, weighting="uniform")
    found = models(gradient_tracking(J, lr=0.1), quiet := simulate(quadratics()), same)
    agree(found, models(theirs, quiet, same))


def test_without_gradients_it_is_gossip_and_all_keep_the_mean(x):
    federation = quadratics()
    flat = replace(federation, features=torch.zeros_like(federation.features))
    found = models(decentralised_sgd(RING, lr=0.3), simulate(flat), x, rounds=10)
    for t, now in enumerate(found):
        gossip = torch.linalg.matrix_power(RING.to_dense(), t) @ x
        torch.testing.assert_close(now, gossip, **EXACT)
    for method in EXACT_ONES:
        now = models(method(RING, lr=0.3), simulate(flat), x, rounds=10)[-1]
        torch.testing.assert_close(now.mean(0), x.mean(0), **EXACT)


def test_gradients_come_first_and_have_a_step_where_1_11_prints_none(x):
    """`X' = W (X - g)`, as printed, is another method."""
    whole = simulate(quadratics())
    g = whole.at(1).grads(x)
    found = models(decentralised_sgd(RING, lr=0.1), whole, x, rounds=1)[1]
    torch.testing.assert_close(found, RING @ (x - 0.1 * g), **EXACT)
    assert not torch.allclose(found, RING @ (x - g), atol=1e-2)


def optimum(federation):
    a, b = hessians(federation)
    return torch.linalg.solve(a.sum(0), b.sum(0))


@pytest.mark.parametrize("method", EXACT_ONES)
def test_constant_steps_reach_the_optimum_of_all_where_data_differ(x, method):
    federation = quadratics()
    best = optimum(federation)
    found = models(method(RING, lr=0.1), simulate(federation), x, rounds=85)[-1]
    torch.testing.assert_close(found, best.repeat(6, 1), rtol=0, atol=1e-5)


@pytest.mark.parametrize("method", EXACT_ONES)
def test_they_reach_it_too_where_half_take_part_in_a_round(x, method):
    federation = quadratics()
    simulation, algorithm = simulate(federation), method(RING, lr=0.1)
    state, rng = begun(algorithm, x), torch.Generator().manual_seed(0)
    for t in range(1, 121):
        active = torch.rand(6, generator=rng) < 0.5
        active[t % 6] = True
        state, _ = algorithm.step(state, simulation.at(t, active), rng)
    best = optimum(federation).repeat(6, 1)
    torch.testing.assert_close(state.x, best, rtol=0, atol=0.02)


def test_decentralised_sgd_stays_beside_it_by_the_order_of_the_step(x):
    """Its fixed point solves `(I - W) x + lr W g(x) = 0`, by closed form."""
    federation = quadratics()
    a, b = hessians(federation)
    best, gaps = optimum(federation), []
    for lr in (0.2, 0.1):
        found = models(decentralised_sgd(RING, lr=lr), simulate(federation), x, 80)[-1]
        w = torch.kron(RING.to_dense(), torch.eye(5, dtype=REAL))
        system = torch.eye(30, dtype=REAL) - w + lr * w @ torch.block_diag(*a)
        fixed = torch.linalg.solve(system, lr * w @ b.flatten()).view(6, 5)
        torch.testing.assert_close(found, fixed, rtol=0, atol=1e-5)
        gaps.append(float((found - best).norm()))
    assert gaps[0] > 0.1 and 1.5 < gaps[0] / gaps[1] < 2.5


def test_gradient_tracking_is_next_written_out(simulation, x):
    w, lr = LINE.to_dense(), 0.05
    states = train(gradient_tracking(LINE, lr=lr), simulation, x, rounds=6)[0]
    now, g = x, simulation.at(1).grads(x)
    y = g
    for t, state in enumerate(states[1:], 1):
        now = w @ (now - lr * y)
        torch.testing.assert_close(state.x, now, **EXACT)
        fresh = simulation.at(t + 1).grads(now)
        y, g = w @ y + fresh - g, fresh


def test_tracking_begins_with_the_first_step_of_its_schedule(simulation, x):
    """Round t has lr * 0.5^t, counted from 0; y has no step in it."""
    w = LINE.to_dense()
    method = gradient_tracking(LINE, lr=0.08, schedule="step(1, 0.5)")
    states = train(method, simulation, x, rounds=4)[0]
    now, g = x, simulation.at(1).grads(x)
    y = g
    for t, state in enumerate(states[1:]):
        now = w @ (now - 0.08 * 0.5**t * y)
        torch.testing.assert_close(state.x, now, **EXACT)
        fresh = simulation.at(t + 2).grads(now)
        y, g = w @ y + fresh - g, fresh


def test_extra_is_the_recursion_that_its_authors_print(simulation, x):
    w, lr = LINE.to_dense(), 0.05
    half = (torch.eye(6, dtype=REAL) + w) / 2
    found = models(extra(LINE, lr=lr), simulation, x, rounds=6)
    before, g = x, simulation.at(1).grads(x)
    now = w @ x - lr * g
    for t, state in enumerate(found[1:], 2):
        torch.testing.assert_close(state, now, **EXACT)
        fresh = simulation.at(t).grads(now)
        after = now + w @ now - half @ before - lr * (fresh - g)
        before, now, g = now, after, fresh


def test_d_squared_is_the_recursion_that_its_authors_print_with_a_lazy_matrix(
    simulation, x
):
    """x'' = V (2 x' - x - lr (g' - g)), from x' = V (x - lr g)."""
    v, lr = (torch.eye(6, dtype=REAL) + LINE.to_dense()) / 2, 0.05
    found = models(d_squared(LINE, lr=lr), simulation, x, rounds=6)
    before, g = x, simulation.at(1).grads(x)
    now = v @ (x - lr * g)
    for t, state in enumerate(found[1:], 2):
        torch.testing.assert_close(state, now, **EXACT)
        fresh = simulation.at(t).grads(now)
        after = v @ (2 * now - before - lr * (fresh - g))
        before, now, g = now, after, fresh


def test_d_squared_takes_any_step_that_a_node_alone_could(x):
    """Nearly 2 / L, with which EXTRA diverges: it needs (1 + lambda_n) / L."""
    federation = quadratics()
    a, _ = hessians(federation)
    lr, best = 1.8 / float(torch.linalg.eigvalsh(a).max()), optimum(federation)
    quiet = simulate(federation)
    far, near = (
        float((models(method(LINE, lr=lr), quiet, x, rounds=300)[-1] - best).norm())
        for method in (extra, d_squared)
    )
    assert near < 1e-3 < 1e3 < far


@pytest.mark.parametrize("active", [None, ACTIVE])
def test_the_mean_of_y_is_that_of_the_latest_gradients(simulation, x, active):
    states = train(gradient_tracking(RING), simulation, x, 6, active)[0]
    for state in states:
        torch.testing.assert_close(state.y.mean(0), state.g.mean(0), **EXACT)


@pytest.mark.parametrize("active", [None, ACTIVE])
@pytest.mark.parametrize("method", [extra, d_squared])
def test_corrections_of_extra_sum_to_zero(simulation, x, active, method):
    for state in train(method(RING), simulation, x, 6, active)[0]:
        torch.testing.assert_close(state.h.sum(0), torch.zeros(5).to(x), **EXACT)


@pytest.mark.parametrize("method", EXACT_ONES)
def test_the_optimum_is_a_fixed_point_whoever_takes_part(method):
    federation = quadratics()
    a, b = hessians(federation)
    best = optimum(federation).repeat(6, 1)
    own = torch.einsum("ide,ie->id", a, best) - b  # gradients there, which sum to 0
    algorithm = method(RING, lr=0.1)
    state = begun(algorithm, best)
    state = (
        state._replace(h=-own)
        if method in (extra, d_squared)
        else state._replace(g=own, y=torch.zeros_like(own))
    )
    oracle = Quadratics(a, torch.linalg.solve(a, b[..., None])[..., 0], active=ACTIVE)
    after, _ = algorithm.step(state, oracle, torch.Generator())
    torch.testing.assert_close(after.x, best, **EXACT)


@pytest.mark.parametrize("layout", [torch.Tensor.to_dense, torch.Tensor.to_sparse])
def test_neighbours_of_the_absent_keep_what_was_for_them(layout):
    w, kept = RING.to_dense(), ACTIVE.nonzero()[:, 0]
    found = among_present(layout(w), ACTIVE)
    assert found.layout == layout(w).layout
    dense = found.to_dense()
    for v in range(6):
        for u in range(6):
            both = v in kept and u in kept
            expected = w[v, u] if both and u != v else 0.0
            if u == v:
                expected = 1 - sum(w[v, k] for k in kept if v in kept and k != v)
            assert float(dense[v, u]) == pytest.approx(float(expected), abs=1e-15)
    torch.testing.assert_close(dense.sum(0), torch.ones(6, dtype=REAL), **EXACT)
    assert among_present(w, torch.ones(6, dtype=torch.bool)) is w


@pytest.mark.parametrize("method", [decentralised_sgd, *EXACT_ONES])
def test_who_has_no_neighbour_left_in_a_round_goes_on_alone(x, method):
    """Only nodes 0 and 3 of a ring of six take part."""
    active = torch.tensor([True, False, False, True, False, False])
    whole = simulate(quadratics())
    found = models(method(RING, lr=0.1), whole, x, rounds=1, active=active)[1]
    alone = x - 0.1 * whole.at(1, active).grads(x)  # zero for the others
    torch.testing.assert_close(found, alone, **EXACT)


def test_exchanges_are_rounds_of_gossip_after_the_steps(x):
    """The steps, then P_4(W) if `accelerated` and W^4 otherwise."""
    simulation = simulate(quadratics())
    stepped = x - 0.1 * simulation.at(1).grads(x)
    for accelerated, mixed in ((False, plain), (True, chebyshev)):
        method = decentralised_sgd(RING, exchanges=4, accelerated=accelerated, lr=0.1)
        found = models(method, simulation, x, rounds=1)[1]
        expected = mixed(stepped, RING, rounds=4)
        torch.testing.assert_close(found, expected, **EXACT)
    refuses("`exchanges` of at least 2", decentralised_sgd, RING, accelerated=True)


@pytest.mark.parametrize("method", [decentralised_sgd, *EXACT_ONES])
def test_messages_are_counted_by_edges(simulation, x, method):
    _, infos = train(method(RING), simulation, x, rounds=2)
    rows = 2 if method is gradient_tracking else 1
    assert [info["sent"] for info in infos] == [12 * 5 * rows] * 2


@pytest.mark.parametrize("method", EXACT_ONES)
def test_a_matrix_that_is_not_symmetric_is_refused_where_means_need_it(method):
    turn = (torch.eye(4) + torch.eye(4).roll(1, 0)) / 2
    decentralised_sgd(turn)  # which only needs rows and columns that sum to 1
    for matrix in (turn, turn.to_sparse()):
        refuses("`mixing` must be symmetric, but from", method, matrix)


@pytest.mark.parametrize("check", ["divided", "known_optimum", "inactive_data"])
def test_d_squared_passes_the_suite_too(check):
    CHECKS[check].run(Case(extra, {"form": "d2"}))
