"""Claims about CoBo: a plain loop over pairs, closed forms and limit cases."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from coterie import seeds
from coterie.algorithms.cobo import cobo
from coterie.algorithms.fedavg import fedavg
from coterie.algorithms.local import local
from coterie.collaboration.links import row_sums
from coterie.data import synthetic
from coterie.graphs.families import matchings
from support.federations import error, of_groups
from support.oracles import begun, told, with_verbs
from support.quadratics import EXACT, REAL, D, hessians, quadratics, start
from support.rounds import ACTIVE, STEPS, simulate, train


@pytest.mark.parametrize("active", [None, ACTIVE], ids=["all", "some"])
def test_the_steps_are_those_of_a_plain_loop_over_all_pairs(active):
    federation = quadratics()
    a, b = hessians(federation)
    algorithm = cobo(rho=0.07, gamma=0.02, meetings=5, **STEPS)
    states, infos = train(algorithm, simulate(federation), start(), 2, active)
    who = range(6) if active is None else active.nonzero()[:, 0].tolist()

    x, v = start(), torch.zeros(6, D, dtype=REAL)
    w = torch.ones(6, 6, dtype=REAL)
    for t in range(6):
        for i in who:
            for j in who:
                if i < j:
                    z = (x[i] + x[j]) / 2
                    product = (a[i] @ z - b[i]) @ (a[j] @ z - b[j])
                    w[i, j] = w[j, i] = (w[i, j] + 0.02 * product).clamp(0, 1)
        snapshot = x.clone()
        for i in who:
            g = a[i] @ snapshot[i] - b[i] + 0.01 * snapshot[i]
            v[i] = 0.5 * v[i] + g
            pull = sum(w[i, j] * (snapshot[i] - snapshot[j]) for j in who)
            x[i] = snapshot[i] - 0.2 * 9 / (9 + t) * (v[i] + 0.07 * pull)
    assert_close(states[-1].x, x, **EXACT)
    assert_close(states[-1].w, w, **EXACT)
    assert (w == 0).any() and ((w > 0) & (w < 1)).any()  # both ends and between
    assert_close(infos[-1]["weights"], w / w.sum(1, keepdim=True), **EXACT)
    if active is not None:
        assert torch.equal(x[~active], start()[~active])


@pytest.mark.parametrize("active", [None, ACTIVE], ids=["all", "some"])
def test_without_a_pull_it_is_local_training(active):
    simulation = simulate(quadratics())
    ours, _ = train(cobo(rho=0.0, **STEPS), simulation, start(), 4, active)
    alone, _ = train(local(**STEPS), simulation, start(), 4, active)
    assert_close(ours[-1].x, alone[-1].x, **EXACT)


def test_with_weights_that_stay_it_arrives_at_the_closed_form():
    federation = quadratics()
    a, b = hessians(federation)
    algorithm = cobo(rho=0.2, meetings=0, lr=0.3)
    # Curvatures are 1 to 3 + 6 * 0.2, so that 0.7^90 of the way is left.
    states, _ = train(algorithm, simulate(federation), start(), 90)
    # A_i x_i + rho sum_j (x_i - x_j) = A_i theta_i, for all clients at once.
    system = torch.block_diag(*a)
    laplacian = 6 * torch.eye(6, dtype=REAL) - torch.ones(6, 6, dtype=REAL)
    system += 0.2 * torch.kron(laplacian, torch.eye(D, dtype=REAL))
    expected = torch.linalg.solve(system, b.flatten()).view(6, D)
    assert_close(states[-1].x, expected, **EXACT)


@with_verbs
class Constant:
    """An oracle whose gradients are the same everywhere."""

    def __init__(self, g: torch.Tensor, active: torch.Tensor | None = None) -> None:
        self.g = g
        everybody = torch.ones(len(g), dtype=torch.bool)
        self.active = everybody if active is None else active

    def grads(self, x):
        return self.g * self.active[:, None]


def test_weights_remember_all_meetings_and_end_at_zero_or_one():
    g = torch.tensor([[1.0, 0.0], [1.0, 0.5], [-1.0, 0.0], [0.0, -0.25]], dtype=REAL)
    algorithm = cobo(gamma=0.1, meetings=3)
    state = begun(algorithm, torch.zeros(4, 2, dtype=REAL))
    for t in range(1, 15):
        state, _ = algorithm.step(state, Constant(g), seeds.generator(t))
        expected = (1 + 0.1 * t * g @ g.T).clamp(0, 1)
        assert_close(state.w, expected.fill_diagonal_(1), **EXACT)
    assert state.w[0, 2] == 0
    assert state.w[0, 1] == 1
    assert 0 < state.w[1, 3] < 1


def test_weights_of_pairs_that_do_not_meet_stay():
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, -1.0], dtype=REAL)[:, None]
    algorithm = cobo(gamma=0.1, meetings=1)
    oracle = Constant(signs, torch.tensor([True, True, True, True, True, False]))
    before = begun(algorithm, torch.zeros(6, 1, dtype=REAL))
    after, _ = algorithm.step(before, oracle, seeds.generator(3))
    partner = matchings(oracle.active, 1, seeds.generator(3))[0]
    expected = torch.ones(6, 6, dtype=REAL)
    for i, j in enumerate(partner.tolist()):
        if i != j and signs[i] != signs[j]:
            expected[i, j] = 0.9
    assert (expected < 1).any()
    assert_close(after.w, expected, **EXACT)


def test_over_time_all_pairs_meet():
    g = -torch.ones(6, 1, dtype=REAL) * torch.tensor([1.0, -1.0] * 3)[:, None]
    algorithm = cobo(gamma=0.01, meetings=1)
    state = begun(algorithm, torch.zeros(6, 1, dtype=REAL))
    for t in range(60):
        state, _ = algorithm.step(state, Constant(g), seeds.generator(t))
    met = ((1 - state.w) / 0.01).round()
    # Each of 9 pairs of opposites is drawn with probability 1/5: 12 times of 60, with
    # a standard deviation of 3.1.
    across = (g @ g.T) < 0
    assert met[~across].sum() == 0
    assert (met[across] > 0).all()
    assert_close(met[across].mean(), torch.tensor(12.0, dtype=REAL), rtol=0, atol=4)


def test_differences_shrink_up_to_the_bound_on_the_pull_and_grow_beyond():
    x = start()
    still = Constant(torch.zeros(6, D, dtype=REAL))
    for strength, factor in ((1.9, -0.9), (2.1, -1.1)):
        algorithm = cobo(lr=0.1, rho=strength / (0.1 * 6), meetings=0)
        state, _ = algorithm.step(begun(algorithm, x), still, seeds.generator(0))
        off, before = state.x - state.x.mean(0), x - x.mean(0)
        assert_close(off, factor * before, **EXACT)


def test_models_go_over_links_and_to_partners_whose_gradients_come_back():
    x = torch.zeros(4, 2, dtype=REAL)
    nothing = torch.zeros(4, 2, dtype=REAL)
    algorithm = cobo(meetings=1, steps=3)

    def sent(state, oracle):
        _, info = algorithm.step(state, oracle, seeds.generator(0))
        return told(info, oracle)["sent"]

    # All weights are 1: 12 models pull; of 2 pairs that meet, 4 models and 4 gradients.
    first = begun(algorithm, x)
    assert sent(first, Constant(nothing)) == 3 * (12 + 4 + 4) * 2
    strangers = first._replace(w=torch.eye(4, dtype=REAL))
    assert sent(strangers, Constant(nothing)) == 3 * (4 + 4) * 2
    some = Constant(nothing, torch.tensor([True, True, False, True]))
    # Three take part, and one of them rests.
    assert sent(first, some) == 3 * (6 + 2 + 2) * 2


def clustered():
    """Twelve clients in two clusters that estimate means from five samples each."""
    table = synthetic.mean_estimation(
        clients=12, clusters=2, dimension=10, samples=7, spread=3.0, seed=1
    )
    return of_groups(table)


def test_cobo_finds_the_clusters_and_beats_local_and_fedavg():
    federation = clustered()
    simulation, sizes = simulate(federation), federation.train.size
    x = torch.zeros(12, 10, dtype=REAL)
    algorithm = cobo(lr=0.1, rho=1.0)
    ours = train(algorithm, simulation, x, 60)[0][-1]
    alone = train(local(lr=0.1), simulation, x, 60)[0][-1].x
    together = train(fedavg(sizes, lr=0.1), simulation, x, 60)[0][-1].x
    same = federation.clusters[:, None] == federation.clusters
    assert (ours.w[~same] == 0).all()
    # Members disagree by the noise of their samples, and less and less with time.
    assert (ours.w[same] > 0.5).all()
    # Curvature is 2 and the pull of five others at most 6, so that a quarter or a
    # little more of what is a client's own noise remains: in the best case its variance
    # falls from 1 to 1/6 + 5/6/16 = 0.22.
    assert error(federation, ours.x) < 0.35 * error(federation, alone)
    assert error(federation, ours.x) < 0.1 * error(federation, together)
    # Without the weights the pull is to the other cluster as well.
    blind = train(cobo(lr=0.1, rho=1.0, gamma=0.0), simulation, x, 60)[0][-1].x
    assert error(federation, blind) > 5 * error(federation, ours.x)


def test_newcomers_get_the_model_that_fits_best():
    assert cobo().welcome is None


@pytest.mark.parametrize("columns", [1, 2, 7, 1000])
def test_both_ends_of_a_meeting_add_up_the_same_bits(columns):
    """For any number of other rows next to theirs."""
    rows = torch.randn(9, columns, generator=torch.Generator().manual_seed(0))
    found = row_sums(rows)
    for i in range(9):
        assert torch.equal(row_sums(rows[i : i + 1]), found[i : i + 1])
        assert float(found[i]) == pytest.approx(math.fsum(rows[i].tolist()), abs=1e-4)
