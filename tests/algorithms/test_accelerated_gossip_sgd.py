"""Accelerated gossip SGD: AGRAF without acceleration, a dense loop, the mean, speed."""

from __future__ import annotations

import math

import pytest
import torch

from coterie.algorithms.accelerated_gossip_sgd import accelerated_gossip_sgd
from coterie.algorithms.agraf import agraf
from coterie.clients.simulation import Simulation
from coterie.conformance.federations import common_optimum
from coterie.engine.clocks import Rings
from coterie.engine.events import EventLoop
from coterie.graphs import edges_of, gossip_matrix
from coterie.models import linear
from coterie.optim.meetings import meetings, resistances
from support.paces import EXACT, UNEVEN, Paces, question
from support.quadratics import REAL

EDGES = edges_of("ring", 6)
RING = gossip_matrix(EDGES, 6)
RINGS = Rings(EDGES, torch.full((6,), 1.5, dtype=REAL), seed=1)


def test_without_acceleration_it_is_agraf_by_pairs(simulation, x):
    methods = (
        accelerated_gossip_sgd(RING, lr=0.1, eta=0.0, alpha=0.5),
        agraf(RING, lr=0.1, mix="pairs"),
    )
    ours, theirs = (
        EventLoop(method, simulation, x, clock=UNEVEN, rings=RINGS)
        for method in methods
    )
    for _ in range(60):
        assert ours.step()[:4] == theirs.step()[:4]
        torch.testing.assert_close(ours.personal(), theirs.personal(), **EXACT)
    assert ours.sent == theirs.sent


def test_lazy_mixing_is_the_whole_flow_between_all_events(simulation, x):
    """An independent loop moves all nodes by a matrix exponential at every event."""
    lr, graph = 0.05, meetings(EDGES, RINGS.rates)
    eta, alpha = graph.eta, graph.alpha
    method = accelerated_gossip_sgd(RING, lr=lr)
    run = EventLoop(method, simulation, x, clock=UNEVEN, rings=RINGS)
    rung = RINGS.until(40.0)
    meets = list(zip(rung.times.tolist(), rung.which.tolist(), strict=True))
    both, now, began = torch.stack([x, x]), 0.0, x.clone()
    tasks = [0] * 6

    def flow(both, seconds):
        turn = torch.tensor([[-eta, eta], [eta, -eta]], dtype=REAL) * seconds
        return torch.einsum("ab,bnd->and", torch.linalg.matrix_exp(turn), both)

    for _ in range(25):
        event = run.step()
        while meets[0][0] < event.time:
            time, edge = meets.pop(0)
            both, now = flow(both, time - now), time
            v, w = EDGES[edge].tolist()
            away = both[0, w] - both[0, v]
            jump = torch.stack([away / 2, alpha * away])
            both[:, v], both[:, w] = both[:, v] + jump, both[:, w] - jump
        both, now = flow(both, event.time - now), event.time
        (v,) = event.clients
        tasks[v] += 1
        both[:, v] -= lr * question(simulation, v, tasks[v], began[v])
        began[v] = both[0, v]
        # Some hundred matrix exponentials, each of which is right to about 1e-13.
        torch.testing.assert_close(run.personal(), both[0], rtol=1e-9, atol=1e-10)


def test_a_run_tells_how_often_edges_ring(simulation, x):
    """Edges come in any order, by names; given values of eta and alpha stay."""
    rates = torch.linspace(0.5, 3.0, 6, dtype=REAL)
    graph = meetings(EDGES, rates)
    turned = torch.tensor([3, 0, 5, 1, 4, 2])
    rings = Rings(EDGES[turned].flip(1), rates[turned])
    for chosen in ({}, {"eta": 0.25}, {"alpha": 0.75}):
        method = accelerated_gossip_sgd(RING, **chosen)
        state = EventLoop(method, simulation, x, clock=UNEVEN, rings=rings).state
        assert state.rows.eta == pytest.approx(chosen.get("eta", graph.eta))
        assert state.alpha == pytest.approx(chosen.get("alpha", graph.alpha))


def test_means_of_models_and_companions_stay_one(simulation, x):
    run = EventLoop(
        accelerated_gossip_sgd(RING), simulation, x, clock=UNEVEN, rings=RINGS
    )
    for _ in range(40):
        run.step()
        rows = run.state.rows
        z = rows.x + rows.z - run.personal()  # after mixing, x + z is as was
        torch.testing.assert_close(run.personal().mean(0), z.mean(0), **EXACT)


def test_disagreement_on_a_line_falls_faster():
    """Pure averaging falls by exp(-mu t) and exp(-eta t), to 0.004 and below 4e-7."""
    n, edges = 12, edges_of("line", 12)
    matrix = gossip_matrix(edges, n)
    rings = Rings(edges, torch.ones(len(edges), dtype=REAL), seed=3)
    twelve = common_optimum(n)
    clients = Simulation(twelve, linear((5,), 1, bias=False), batch_size=0, dtype=REAL)
    rows = torch.arange(n, dtype=REAL)[:, None].expand(n, 5) - 5.5
    left = []
    for method in (agraf(matrix, mix="pairs"), accelerated_gossip_sgd(matrix)):
        asleep = Paces(*[1e9] * n, jitter=0.0)
        run = EventLoop(method, clients, rows, clock=asleep, rings=rings)
        list(run.until(80.0))
        left.append(float(run.personal().square().sum()))
    assert left[1] < left[0] / 100


@pytest.mark.parametrize("rate", [1.0, 4.0])
def test_parameters_are_those_of_the_graph(rate):
    """A line of 10: mu = (2 - 2 cos(pi / 10)) q, and R = 1 / q of any tree."""
    edges = edges_of("line", 10)
    found = meetings(edges, torch.full((9,), rate / 9, dtype=REAL))
    gap = 2 - 2 * math.cos(math.pi / 10)
    assert found.gap == pytest.approx(gap * rate / 9, rel=1e-9)
    assert found.resistance == pytest.approx(9 / rate, rel=1e-9)
    assert found.eta == pytest.approx(rate * 0.024581, rel=1e-4)
    assert found.alpha == pytest.approx(meetings(edges, torch.ones(9)).alpha, rel=1e-6)


@pytest.mark.parametrize("text", ["ring", "grid", "star", "complete", "barbell"])
def test_resistances_sum_to_n_minus_one(text):
    """Foster's theorem; and none is above 1 / q, or 2 / mu."""
    edges = edges_of(text, 12)
    rng = torch.Generator().manual_seed(0)
    rates = 0.5 + torch.rand(len(edges), generator=rng, dtype=REAL)
    found, graph = resistances(edges, rates), meetings(edges, rates)
    assert float((rates * found).sum()) == pytest.approx(11.0, rel=1e-9)
    assert (rates * found <= 1 + 1e-9).all()
    assert graph.resistance == float(found.max()) <= 2 / graph.gap * (1 + 1e-9)
