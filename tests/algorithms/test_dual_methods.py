"""Dual methods in time: the functions of event traces, what is kept, where they end."""

from __future__ import annotations

import pytest
import torch

from coterie.algorithms.ddo import ddo
from coterie.algorithms.dual_accelerated import dual_accelerated
from coterie.engine.clocks import Delays, Rings, clock
from coterie.engine.events import EventLoop
from coterie.graphs import RingTimes, edges_of, gossip_matrix
from coterie.optim.meetings import dual_steps
from coterie_theory.decentralised.descent import ddo_gains
from coterie_theory.descent import delayed as delayed_descent
from coterie_theory.descent import dual
from support.quadratics import REAL, D, hessians, quadratics, start
from support.rounds import simulate, solve

DECAY = 0.2
BOWL = {"lr": 1 / 3.2, "curvature": 1.2, "weight_decay": DECAY}  # of all six clients
NEARLY = {"rtol": 1e-9, "atol": 1e-10}  # some hundred solutions right to 1e-12
AT_ONCE = clock("constant(0)")
METHODS = {"dual_accelerated": dual_accelerated, "ddo": ddo}


@pytest.fixture(scope="module")
def full():
    return simulate(quadratics())


@pytest.fixture(scope="module")
def losses():
    """Hessians with decay, and linear terms."""
    a, b = hessians(quadratics())
    return a + DECAY * torch.eye(D, dtype=REAL), b


def network(text, rate=1.0, seed=0):
    edges = edges_of(text, 6)
    rates = torch.full((len(edges),), rate, dtype=REAL) + torch.arange(len(edges)) / 10
    return edges, gossip_matrix(edges, 6), Rings(edges, rates, seed=seed)


@pytest.mark.parametrize("text", ["star", "grid"])
def test_if_computing_takes_no_time_it_is_the_function_of_the_rings(full, losses, text):
    edges, matrix, rings = network(text)
    method = dual_accelerated(matrix, accuracy=1e-12, **BOWL)
    run = EventLoop(method, full, start(), clock=AT_ONCE, rings=rings)
    list(run.until(1.4))
    gradient = dual.quadratic_duals(losses[0], solve(*losses))
    wanted = dual.dual_accelerated(
        gradient,
        edges,
        dual_steps(edges, rings.rates, smoothness=3.2, curvature=1.2),
        rings.until(1.4),
        torch.zeros(6, D, dtype=REAL),
        until=1.4,
    )
    y, z = zip(*(run.state.duals.at(v, 1.4) for v in range(6)), strict=True)
    torch.testing.assert_close(torch.stack(y), wanted.y, **NEARLY)
    torch.testing.assert_close(torch.stack(z), wanted.z, **NEARLY)
    assert run.lost_rings == 0 and run.updates == 2 * len(rings.until(1.4).times)


@pytest.mark.parametrize("text", ["star", "grid"])
def test_ddo_is_the_function_of_its_ticks(full, losses, text):
    """Times are powers of 2, so that a tick's end is read after it is written."""
    edges, matrix, rings = network(text)
    method, delay, second = ddo(matrix, accuracy=1e-12, **BOWL), 0.25, 2.0**-7
    length, until = second * method.flow.kinds[0].passes, 2.1
    run = EventLoop(
        method,
        full,
        torch.zeros(6, D, dtype=REAL),
        clock=clock(f"constant({second})"),
        links=Delays(f"constant({delay})"),
        rings=rings,
    )
    list(run.until(until))
    nodes = torch.full((6,), length, dtype=REAL)
    graph = delayed_descent.Network(
        edges, rings.rates, torch.full_like(rings.rates, delay), 1 / nodes, nodes
    )
    written = rings.until(until - delay)
    ends = length * torch.arange(1, int(until / length) + 1, dtype=REAL)
    times = torch.cat([written.times + delay, ends.repeat_interleave(6)])
    order = times.argsort(stable=True)
    own = len(edges) + torch.arange(6).repeat(len(ends))
    ticks = RingTimes(times[order], torch.cat([written.which, own])[order])
    half = BOWL["curvature"] / 2
    bent = losses[0] - half * torch.eye(D, dtype=REAL)
    *_, wanted = delayed_descent.ddo(
        lambda v, y: torch.linalg.solve(bent[v], losses[1][v] + y),
        graph,
        ddo_gains(graph),
        ticks,
        sigma=BOWL["curvature"],
        dimension=D,
    )
    torch.testing.assert_close(run.state.x, wanted.x, **NEARLY)
    torch.testing.assert_close(run.state.y, wanted.y, **NEARLY)
    # Two models at a ring; nothing else is sent.
    assert run.sent == (0, 2 * D * len(rings.until(until).times))


def test_dual_points_sum_to_zero_where_computing_takes_time(full):
    _, matrix, rings = network("grid")
    paces = clock("lognormal(0.1, 0.5)")
    method = dual_accelerated(matrix, **BOWL)
    run = EventLoop(method, full, start(), clock=paces, rings=rings)
    for _ in range(40):
        run.step()
        now = [torch.stack(run.state.duals.at(v, run.time)) for v in range(6)]
        sums = torch.stack(now).sum(0)
        torch.testing.assert_close(sums, torch.zeros_like(sums), rtol=0, atol=1e-9)
    assert run.lost_rings > 0
    # What each has computed goes to the other end.
    assert run.sent == (0, run.updates * D)


def test_what_ddo_keeps_stays_zero(full):
    _, matrix, rings = network("grid")
    links, paces = Delays("uniform(0.1, 2)"), clock("lognormal(0.1, 0.5)")
    run = EventLoop(
        ddo(matrix, **BOWL), full, start(), clock=paces, rings=rings, links=links
    )
    for _ in range(60):
        run.step()
        kept = BOWL["curvature"] / 2 * run.state.x.sum(0) + run.state.y.sum(0)
        torch.testing.assert_close(kept, torch.zeros_like(kept), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", METHODS)
def test_models_arrive_at_the_optimum_of_losses_that_differ(full, losses, name):
    """Decentralised SGD would miss it."""
    best = torch.linalg.solve(losses[0].mean(0), losses[1].mean(0))
    edges = edges_of("complete", 6)
    rings = Rings(edges, torch.full((15,), 0.05, dtype=REAL))
    method = METHODS[name](gossip_matrix(edges, 6), **BOWL)
    run = EventLoop(method, full, start(), clock=clock("constant(1)"), rings=rings)
    steps, off = {"dual_accelerated": (120, 1e-4), "ddo": (150, 0.2)}[name]
    for _ in range(steps):
        run.step()
    away = (run.personal() - best).norm(dim=1).max() / best.norm()
    assert float(away) < off


@pytest.mark.parametrize(("rate", "until"), [(0.03, 2000.0), (3.0, 30.0)])
def test_steps_are_for_how_often_pairs_meet(full, rate, until):
    """If most rings are lost, dual points mix more slowly, in proportion."""
    edges, matrix, _ = network("ring")
    rings = Rings(edges, torch.full((6,), rate, dtype=REAL))
    method = dual_accelerated(matrix, **BOWL)
    run = EventLoop(method, full, start(), clock=clock("constant(1)"), rings=rings)
    list(run.until(until))
    rung = len(rings.until(until).times)
    alone = dual_steps(edges, rings.rates, smoothness=3.2, curvature=1.2)
    # Of some hundred exchanges at least, on a graph that is no tree.
    share = 1 - run.lost_rings / rung
    assert run.state.duals.eta / alone.eta == pytest.approx(share, rel=0.2)
    assert run.state.jump == pytest.approx(alone.jump)


@pytest.mark.parametrize("name", METHODS)
def test_a_task_takes_as_many_passes_as_it_has_steps(full, name):
    _, matrix, rings = network("ring")
    method = METHODS[name](matrix, **BOWL)
    run = EventLoop(method, full, start(), clock=clock("constant(1)"), rings=rings)
    event = run.step()
    steps = method.flow.kinds[0].passes
    client, begin, end = event.spans[0]
    assert end - begin == steps
    assert float(run.gradients[client]) == steps * int(full.sizes[client])
