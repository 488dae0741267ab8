"""AGRAF SGD: its instances, the mean, virtual iterates, gossip, bad graphs."""

from __future__ import annotations

import pytest
import torch

from coterie.algorithms.agraf import agraf
from coterie.algorithms.server_sgd import server_sgd
from coterie.checks import InputError
from coterie.engine.clocks import Rings, clock
from coterie.engine.events import EventLoop, run_events
from support.paces import EQUAL, EXACT, UNEVEN, Paces, question
from support.quadratics import REAL, D, hessians, quadratics, start
from support.rounds import simulate

J = torch.full((6, 6), 1 / 6, dtype=REAL)
RING = torch.zeros(6, 6, dtype=REAL)
for _i in range(6):
    RING[_i, _i], RING[_i, (_i + 1) % 6], RING[_i, (_i - 1) % 6] = 0.4, 0.3, 0.3
EDGES = torch.tensor([[i, (i + 1) % 6] for i in range(6)])
RINGS = Rings(EDGES, torch.full((6,), 1.5, dtype=torch.float64), seed=1)


def test_one_by_one_with_j_is_asynchronous_sgd(simulation, x):
    """With a step n times as long."""
    same = x.mean(0).repeat(6, 1)
    ours = EventLoop(agraf(J, lr=0.3), simulation, same, clock=UNEVEN)
    theirs = EventLoop(server_sgd(lr=0.3 / 6), simulation, same, clock=UNEVEN)
    for _ in range(50):
        a, b = ours.step(), theirs.step()
        assert (a.time, a.clients) == (b.time, b.clients)
        torch.testing.assert_close(ours.personal(), theirs.personal(), **EXACT)


@pytest.mark.parametrize("mixing", [RING, J], ids=["ring", "minibatch SGD"])
@pytest.mark.parametrize("order", ["step_then_mix", "mix_then_step"])
def test_all_together_with_a_gossip_matrix_is_decentralised_sgd(
    simulation, x, order, mixing
):
    run = EventLoop(agraf(mixing, lr=0.1, order=order), simulation, x, clock=EQUAL)
    models = x.clone()
    for t in range(1, 16):
        g = simulation.at(t).grads(models)
        if order == "mix_then_step":
            models = mixing @ models - 0.1 * g
        else:
            models = mixing @ (models - 0.1 * g)
        run.step()
        torch.testing.assert_close(run.personal(), models, **EXACT)


@pytest.mark.parametrize(
    ("mixing", "every", "times"),
    [(RING, 4, 9), (RING, 9, 6), (RING, 13, 4), (J, 18, 3)],
)
def test_models_mix_when_the_count_of_gradients_passes_a_multiple(
    simulation, x, mixing, every, times
):
    """Six arrive together, and a multiple of `every` may be any of the six.

    With J and a multiple of six it is local SGD, the average of copies.
    """
    run = EventLoop(agraf(mixing, lr=0.1, every=every), simulation, x, clock=EQUAL)
    models, mixed = x.clone(), 0
    for t in range(1, 10):
        models = models - 0.1 * simulation.at(t).grads(models)
        arrived = range(6 * (t - 1) + 1, 6 * t + 1)
        if any(k % every == 0 for k in arrived):
            models = mixing @ models
            mixed += 1
        run.step()
        torch.testing.assert_close(run.personal(), models, **EXACT)
    assert mixed == times


def test_without_mixing_nodes_are_alone(simulation, x):
    run = EventLoop(agraf(J, lr=0.1, every=10**9), simulation, x, clock=UNEVEN)
    for _ in range(40):
        run.step()
    done = [client.tasks for client in run.moment().clients]
    model = x[1].clone()
    for number in range(1, done[1]):  # the last has begun, and is not done
        model = model - 0.1 * question(simulation, 1, number, model)
    torch.testing.assert_close(run.personal()[1], model, **EXACT)


WAYS = pytest.mark.parametrize(
    ("options", "rings"),
    [
        ({"mix": "matrix"}, None),
        ({"mix": "neighbours"}, None),
        ({"mix": "pairs"}, RINGS),
        ({"mix": "matrix", "every": 4, "order": "mix_then_step"}, None),
    ],
    ids=["matrix", "neighbours", "pairs", "every fourth"],
)


@WAYS
def test_sparse_and_dense_matrices_agree_to_rounding(simulation, x, options, rings):
    runs = [
        EventLoop(agraf(matrix, **options), simulation, x, clock=UNEVEN, rings=rings)
        for matrix in (RING, RING.to_sparse())
    ]
    for _ in range(25):
        a, b = (run.step() for run in runs)
        assert (a.time, a.clients) == (b.time, b.clients)
    assert runs[0].sent == runs[1].sent
    torch.testing.assert_close(runs[0].personal(), runs[1].personal(), **EXACT)


@WAYS
def test_the_mean_moves_by_a_share_of_every_gradient(simulation, x, options, rings):
    """The virtual mean also has the gradients in flight."""
    lr = 0.05
    method = agraf(RING, lr=lr, **options)
    run = EventLoop(method, simulation, x, clock=UNEVEN, rings=rings)

    def in_flight():
        now = run.moment()
        answers = [
            question(simulation, i, client.tasks, now.rows[0][i])
            for i, client in enumerate(now.clients)
        ]
        return torch.stack(answers)

    pending, mean = in_flight(), x.mean(0)
    virtual = mean - lr / 6 * pending.sum(0)
    for _ in range(25):
        (v,) = run.step().clients
        mean = mean - lr / 6 * pending[v]
        torch.testing.assert_close(run.personal().mean(0), mean, **EXACT)
        pending = in_flight()
        virtual = virtual - lr / 6 * pending[v]
        torch.testing.assert_close(mean - virtual, lr / 6 * pending.sum(0), **EXACT)


def test_pairs_meet_when_their_edges_ring(x):
    """All tasks but the last one never end: this is pure randomised gossip."""
    run = EventLoop(
        agraf(RING, mix="pairs"),
        simulate(quadratics()),
        x,
        clock=Paces(*[20.0] * 6, jitter=0.0),
        rings=RINGS,
    )
    times = RINGS.times(torch.arange(6), torch.zeros(6, dtype=torch.long), 80)
    order = sorted(
        (float(t), edge) for edge in range(6) for t in times[edge] if t <= 19.9
    )
    models = x.clone()
    for _, edge in order:
        pair = EDGES[edge]
        models[pair] = models[pair].mean(0)
    assert not list(run.until(19.9))
    torch.testing.assert_close(run.personal(), models, **EXACT)
    spread = (models - models.mean(0)).norm() / (x - x.mean(0)).norm()
    assert float(spread) < 1e-2  # some 30 rings of each of six edges


@pytest.mark.parametrize(
    ("options", "rings"),
    [({"mix": "neighbours"}, None), ({"mix": "pairs"}, RINGS)],
    ids=["neighbours", "pairs"],
)
def test_nodes_reach_the_common_optimum_at_equal_paces(options, rings):
    full = simulate(quadratics())
    a, b = hessians(quadratics())
    optimum = torch.linalg.solve(a.mean(0), b.mean(0))
    clocks = Paces(*[1 + i / 100 for i in range(6)], jitter=0.0)
    method = agraf(RING, lr=0.02, **options)
    *_, event = run_events(
        method, full, start(), clock=clocks, rings=rings, updates=800
    )
    # A bias of the order of the step size, which keeps nodes apart.
    off = (event.state.x.mean(0) - optimum).norm() / optimum.norm()
    assert float(off) < 0.05


def test_a_straggler_does_not_hurt(x):
    """Equal losses everywhere: one node a thousand times slower changes little."""
    same = quadratics().select(torch.tensor([2, 2, 2, 2, 2, 2]))
    full = simulate(same)
    a, b = hessians(same)
    optimum = torch.linalg.solve(a[0], b[0])
    excess = []
    for slow in (1.0, 1000.0):
        paces = clock("lognormal(1, 0.2)", speeds=[1, 1, 1, 1, 1, slow])
        method = agraf(RING, lr=0.05, mix="neighbours")
        *_, event = run_events(method, full, x, clock=paces, updates=250)
        excess.append(float((event.state.x[:5] - optimum).norm()))
    assert excess[1] < 3 * excess[0] + 1e-6


def test_a_matrix_whose_columns_do_not_sum_to_one_is_refused():
    one_way = RING.clone()
    one_way[0] = torch.tensor([0.5, 0.5, 0, 0, 0, 0])
    with pytest.raises(InputError, match="every column of `mixing`"):
        agraf(one_way)


def test_rings_must_fit_the_method_and_the_clients(simulation, x):
    with pytest.raises(InputError, match="needs `rings`"):
        EventLoop(agraf(RING, mix="pairs"), simulation, x, clock=EQUAL)
    with pytest.raises(InputError, match="cannot use `rings`"):
        EventLoop(agraf(RING), simulation, x, clock=EQUAL, rings=RINGS)
    far = Rings(torch.tensor([[0, 9]]), torch.ones(1, dtype=torch.float64))
    with pytest.raises(InputError, match="names client 9"):
        EventLoop(agraf(RING, mix="pairs"), simulation, x, clock=EQUAL, rings=far)


@pytest.mark.parametrize("balanced", [0.0, 10.0])
def test_balanced_steps_make_slow_nodes_count_alike(balanced):
    """With small steps nodes end at sum_i p_i A_i x = sum_i p_i b_i, p the pace or not.

    The distance to that optimum is of the order of the step size; to the other one it
    is what the two are apart.
    """
    full = simulate(quadratics())
    a, b = hessians(quadratics())
    pace = torch.tensor([1.0, 2.0, 3.0, 1.0, 4.0, 2.0], dtype=REAL)
    by_pace, alike = 1 / pace / (1 / pace).sum(), torch.full((6,), 1 / 6, dtype=REAL)
    paced, fair = (
        torch.linalg.solve(
            (shares[:, None, None] * a).sum(0), (shares[:, None] * b).sum(0)
        )
        for shares in (by_pace, alike)
    )
    target, other = (fair, paced) if balanced else (paced, fair)
    method = agraf(J, lr=0.02, balance=balanced)
    x = torch.zeros(6, D, dtype=REAL)
    run = EventLoop(method, full, x, clock=clock("lognormal(1, 0.1)", speeds=pace))
    mean = torch.zeros(D, dtype=REAL)
    for k in range(600):
        run.step()
        if k >= 400:
            mean += run.personal().mean(0) / 200
    assert float((mean - target).norm()) < 0.25 * float((other - target).norm())


def test_balanced_steps_have_a_limit():
    """A node 100 times slower than five others takes no step of 80 times the size.

    Its factor would be about 500 / 6 at its first answer.
    """
    full = simulate(quadratics())
    pace = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 100.0], dtype=REAL)
    x = torch.zeros(6, D, dtype=REAL)
    run = EventLoop(
        agraf(J, lr=0.02, balance=5.0), full, x, clock=clock("constant(1)", speeds=pace)
    )
    sizes = [float(run.personal().norm()) for _ in range(140) if run.step()]
    assert max(sizes) < 3 * sizes[90]
