"""SGD on loss networks: (5.7) by plain loops, who is busy, no deadlock, mixing."""

from __future__ import annotations

import pytest
import torch

from coterie.algorithms.loss_network import loss_network
from coterie.checks import InputError, TrainingError
from coterie.engine.clocks import Delays, Rings, clock
from coterie.engine.events import EventLoop
from coterie.graphs import edges_of, gossip_matrix, loss_rates
from coterie.types import Arrivals
from coterie_theory.gossip.capacities import admitted_rings
from support.paces import EXACT, UNEVEN, Paces, question
from support.quadratics import REAL, hessians, quadratics, start
from support.rounds import simulate

PACES = [1.0, 2.0, 0.5, 1.5, 1.0, 4.0]
STEADY = Paces(*PACES, jitter=0.0)


def network(text, *, seed=0, rate=None):
    """The gossip matrix of a graph of six, its rings, and how long edges are busy."""
    edges = edges_of(text, 6)
    busy = torch.tensor(PACES, dtype=REAL)[edges].amax(1)
    rates = loss_rates(edges, busy) if rate is None else torch.full_like(busy, rate)
    return gossip_matrix(edges, 6), Rings(edges, rates, seed=seed), busy


def test_sparse_and_dense_matrices_are_the_same(simulation, x):
    matrix, rings, _ = network("grid")
    runs = [
        EventLoop(loss_network(given), simulation, x, clock=STEADY, rings=rings)
        for given in (matrix, matrix.to_dense())
    ]
    for _ in range(40):
        a, b = (run.step() for run in runs)
        assert (a.time, a.clients) == (b.time, b.clients)
    assert torch.equal(runs[0].personal(), runs[1].personal())


@pytest.mark.parametrize("text", ["ring", "star", "complete"])
def test_events_are_the_exchanges_that_networks_admit_and_updates_are_5_7(
    simulation, x, text
):
    matrix, rings, busy = network(text)
    found = rings.until(60.0)
    kept = admitted_rings(rings.edges, found, busy[found.which])
    run = EventLoop(
        loss_network(matrix, lr=0.1), simulation, x, clock=STEADY, rings=rings
    )
    exchanges = sorted(
        (time + float(busy[edge]), time, *rings.edges[edge].tolist())
        for time, edge in zip(
            found.times[kept].tolist(), found.which[kept].tolist(), strict=True
        )
    )
    models, numbers = x.clone(), [0] * 6
    for end, _, v, w in exchanges[:25]:
        for client in (v, w):
            numbers[client] += 1
        gv, gw = (
            question(simulation, client, numbers[client], models[client])
            for client in (v, w)
        )
        mean = (models[v] + models[w]) / 2
        models[v], models[w] = mean - 0.1 * gv, mean - 0.1 * gw
        event = run.step()
        assert sorted(event.clients) == [v, w]
        assert event.time == pytest.approx(end, rel=1e-12)
        torch.testing.assert_close(run.personal(), models, **EXACT)
    # Every ring so far began an exchange or is lost.
    before = found.times < run.time
    assert run.lost_rings == int((before & ~kept).sum())
    # Two models travel in each exchange, also in those that are under way.
    under_way = sum(client.busy for client in run.moment().clients)
    assert run.sent == (0, (run.updates + under_way) * x.shape[1])


def test_pairs_that_end_together_are_pairs_one_after_the_other(x):
    method = loss_network(network("ring")[0], lr=0.1).flow
    g = torch.randn(4, x.shape[1], dtype=REAL, generator=torch.Generator())

    def arrived(state, clients, answers):
        method.arrive(state, Arrivals(1.0, clients, (answers,), [1], 0, 0, 0, []))
        return state.x

    both = arrived(method.init(x), [0, 1, 3, 2], g)
    state = method.init(x)
    arrived(state, [0, 1], g[:2])
    assert torch.equal(both, arrived(state, [3, 2], g[2:]))
    assert torch.equal(both[4:], x[4:])


def test_nodes_reach_the_common_optimum():
    full = simulate(quadratics())
    a, b = hessians(quadratics())
    optimum = torch.linalg.solve(a.mean(0), b.mean(0))
    edges = edges_of("complete", 6)
    rings = Rings(edges, torch.full((15,), 0.1, dtype=REAL))
    paces = Paces(*[0.1] * 6, jitter=0.0)  # all take part equally often
    method = loss_network(gossip_matrix(edges, 6), lr=0.03)
    run = EventLoop(method, full, start(), clock=paces, rings=rings)
    models = []
    for k in range(650):
        run.step()
        if k >= 200:
            models.append(run.personal().mean(0))
    off = torch.stack(models).mean(0) - optimum
    # A bias of the order of the step size, and chance: as for pairs in `test_agraf`.
    assert float(off.norm() / optimum.norm()) < 0.05


def test_going_on_from_a_moment_is_not_having_stopped(simulation, x):
    matrix, rings, _ = network("ring")
    options = {"clock": UNEVEN, "rings": rings, "links": Delays("uniform(0.1, 2)")}
    whole = EventLoop(loss_network(matrix), simulation, x, **options)
    for _ in range(15):
        whole.step()
    rest = EventLoop(
        loss_network(matrix), simulation, x, start=whole.moment(), **options
    )
    for _ in range(25):
        assert whole.step()[:4] == rest.step()[:4]
    assert torch.equal(whole.personal(), rest.personal())
    assert whole.lost_rings == rest.lost_rings


def test_where_exponential_waits_choose_edges_no_matching_freezes():
    """Free nodes that took free neighbours at once would keep to one for ever."""
    edges = edges_of("ring", 8)
    rates = loss_rates(edges, torch.ones(8, dtype=REAL))
    rings = Rings(edges, rates).until(600.0)
    kept = admitted_rings(edges, rings, torch.ones_like(rings.times))
    log = rings.which[kept].tolist()
    assert len(set(log[-100:])) == 8
    x = torch.zeros(8, dtype=REAL)
    x[0] = 1.0
    for e in log:
        x[edges[e]] = x[edges[e]].mean()
    assert float((x - x.mean()).norm()) < 1e-6


def test_a_slow_node_keeps_only_its_neighbours_waiting_now_and_then(simulation, x):
    """One node takes a thousand times longer; far from it, exchanges go on."""
    edges = edges_of("line", 6)
    rates = torch.full((5,), 0.5, dtype=REAL)
    paces = clock("constant(1)", speeds=[1000.0, 1, 1, 1, 1, 1])
    method = loss_network(gossip_matrix(edges, 6))
    run = EventLoop(method, simulation, x, clock=paces, rings=Rings(edges, rates))
    times = [0] * 6
    for event in run.until(300.0):
        for client in event.clients:
            times[client] += 1
    assert times[0] == 0 and min(times[2:]) > 20


def test_it_needs_rings(simulation, x):
    with pytest.raises(InputError, match="needs `rings`"):
        EventLoop(loss_network(network("ring")[0]), simulation, x, clock=UNEVEN)


class Away(Paces):
    """Client 0 is off until time 500."""

    def ready(self, client, time):
        return max(time, 500.0) if client == 0 else time


def test_who_is_off_blocks_nobody(simulation, x):
    """A ring that finds one of both off is lost."""
    matrix, rings, _ = network("complete")
    run = EventLoop(
        loss_network(matrix), simulation, x, clock=Away(*PACES), rings=rings
    )
    done = [0] * 6
    for event in run.until(400.0):
        for client in event.clients:
            done[client] += 1
    assert done[0] == 0
    assert min(done[1:]) > 20


class Hub(Paces):
    """Client 0 never ends its task."""

    def durations(self, clients, first, count):
        return (
            super()
            .durations(clients, first, count)
            .masked_fill((clients == 0)[:, None], torch.inf)
        )


def test_a_hub_that_never_returns_is_said(simulation, x):
    matrix, rings, _ = network("star")
    run = EventLoop(loss_network(matrix), simulation, x, clock=Hub(*PACES), rings=rings)
    with pytest.raises(TrainingError, match="nothing will ever happen"):
        for _ in range(100):
            run.step()
    assert list(run.until(1000.0)) == []
