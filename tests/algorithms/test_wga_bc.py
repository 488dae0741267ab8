"""Claims about WGA-BC: a plain loop, limit cases, bias and variance in closed form."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from coterie import seeds
from coterie.algorithms.all_for_one import all_for_one
from coterie.algorithms.fedavg import fedavg
from coterie.algorithms.local import local
from coterie.algorithms.wga_bc import wga_bc
from coterie.data import synthetic
from support.federations import error, of_groups
from support.oracles import begun, told, with_verbs
from support.plain_clients import mine
from support.quadratics import EXACT, REAL, SAMPLES, D, hessians, quadratics, start
from support.rounds import ACTIVE, STEPS, simulate, train


@pytest.mark.parametrize("active", [None, ACTIVE], ids=["all", "some"])
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_the_steps_are_those_of_a_plain_loop(active, weighting):
    federation = quadratics()
    a, b = hessians(federation)
    algorithm = wga_bc(SAMPLES, alpha=0.6, beta=0.3, weighting=weighting, **STEPS)
    states, _ = train(algorithm, simulate(federation), start(), 2, active)
    who = range(6) if active is None else active.nonzero()[:, 0].tolist()
    for i in range(6):
        x, v, c = start()[i], torch.zeros(D, dtype=REAL), torch.zeros(D, dtype=REAL)
        for t in range(6) if i in who else ():
            others = [k for k in who if k != i]
            shares = [float(SAMPLES[k]) if weighting == "samples" else 1 for k in who]
            total = sum(s for k, s in zip(who, shares, strict=True) if k != i)
            by_client = dict(zip(who, shares, strict=True))
            g_0 = a[i] @ x - b[i]
            g_avg = sum(by_client[k] / total * (a[k] @ x - b[k]) for k in others)
            c = 0.7 * c + 0.3 * (g_avg - g_0)
            g = 0.4 * g_0 + 0.6 * (g_avg - c) + 0.01 * x
            v = 0.5 * v + g
            x = x - 0.2 * 9 / (9 + t) * v
        assert_close(states[-1].x[i], x, **EXACT)
        assert_close(states[-1].c[i], c, **EXACT)


@pytest.mark.parametrize("options", [{"alpha": 0.0}, {"beta": 1.0}], ids=str)
def test_without_others_or_without_memory_it_is_local_training(options):
    # With beta = 1 the others' average cancels: g_avg - c = g_0.
    simulation = simulate(quadratics())
    ours, _ = train(wga_bc(SAMPLES, **options, **STEPS), simulation, start())
    alone, _ = train(local(**STEPS), simulation, start())
    assert_close(ours[-1].x, alone[-1].x, **EXACT)


def test_without_correction_it_is_all_for_one_with_the_weights_of_the_mix():
    simulation = simulate(quadratics())
    algorithm = wga_bc(SAMPLES, alpha=0.6, beta=0.0, **STEPS)
    ours, infos = train(algorithm, simulation, start(), 3, ACTIVE)
    # Whoever takes no part leaves the average of the others, not one's own part.
    mix = (SAMPLES * ACTIVE).to(REAL).repeat(6, 1).fill_diagonal_(0)
    mix = 0.6 * mix / mix.sum(1, keepdim=True) + 0.4 * torch.eye(6, dtype=REAL)
    theirs, _ = train(all_for_one(mix, **STEPS), simulation, start(), 3, ACTIVE)
    assert_close(ours[-1].x, theirs[-1].x, **EXACT)
    assert_close(infos[-1]["weights"], mix * ACTIVE[:, None], **EXACT)
    assert not ours[-1].c.any()


def shifted(samples=40):
    """Clients that estimate different means: the same Hessian 2 I, a constant bias."""
    table = synthetic.mean_estimation(
        clients=6, clusters=1, dimension=4, samples=samples, variation=1.0
    )
    return of_groups(table)


def own_means(federation):
    """The minimum of each client's training loss."""
    clients = range(len(federation))
    return torch.stack(
        [federation.targets[mine(federation, i)].mean(0) for i in clients]
    )


def test_a_constant_bias_is_found_at_the_rate_of_the_memory():
    federation = shifted()
    simulation, sizes = simulate(federation), federation.train.size
    states, _ = train(wga_bc(sizes, beta=0.1), simulation, start(6, 4), 30)
    best = own_means(federation)
    # All sizes are equal here, and g_avg - g_0 = 2 (own mean - mean of the others').
    bias = 2 * (best - (best.sum(0) - best) / 5)
    for t, state in enumerate(states):
        assert_close(state.c, (1 - 0.9**t) * bias, **EXACT)


def test_the_correction_leads_to_ones_own_optimum_and_the_plain_mix_elsewhere():
    federation = shifted()
    simulation, sizes = simulate(federation), federation.train.size
    best = own_means(federation)
    x = start(6, 4)
    # Both the way to go and the bias that is not yet known are halved by a step.
    ours, _ = train(wga_bc(sizes, alpha=0.6, beta=0.5, lr=0.25), simulation, x, 50)
    assert_close(ours[-1].x, best, **EXACT)
    plain, _ = train(wga_bc(sizes, alpha=0.6, beta=0.0, lr=0.25), simulation, x, 50)
    mixed = 0.4 * best + 0.6 * (best.sum(0) - best) / 5
    assert_close(plain[-1].x, mixed, **EXACT)


@with_verbs
class Noise:
    """An oracle whose gradients are noise of variance 1 around a common one."""

    def __init__(self, n: int, seed: int) -> None:
        self.rng = torch.Generator().manual_seed(seed)
        self.active = torch.ones(n, dtype=torch.bool)

    def grads(self, x):
        return 3 + torch.randn(x.shape, generator=self.rng, dtype=x.dtype)

    def blended(self, x, weights):
        noise = torch.randn(x.shape, generator=self.rng, dtype=x.dtype)
        return 3 * weights.sum(1)[:, None] + noise * weights.norm(dim=1)[:, None]


@pytest.mark.parametrize(("alpha", "beta"), [(0.5, 0.1), (0.8, 0.02), (0.5, 0.0)])
def test_on_equal_clients_the_noise_shrinks_by_the_predicted_factor(alpha, beta):
    n, d = 5, 2000
    rounds = 20 + (round(4 / beta) if beta else 0)
    algorithm = wga_bc(torch.ones(n), alpha=alpha, beta=beta, lr=1.0)
    state = begun(algorithm, torch.zeros(n, d, dtype=REAL))
    moves = []
    for t in range(rounds):
        after, _ = algorithm.step(state, Noise(n, t), seeds.generator(t))
        moves.append(state.x - after.x)
        state = after
    # c holds b (g_avg - g_0) of now and what remains of the past, of stationary
    # variance b / (2 - b) (1 + 1/4), so that of the step is, with k = alpha (1 - beta),
    k = alpha * (1 - beta)
    expected = (1 - k) ** 2 + k**2 / 4 + k**2 * beta / (2 - beta) * (1 + 1 / 4)
    assert expected < 0.5  # half of training alone, at least
    tail = torch.stack(moves[-20:])  # e^-8 of the variance is that of the start
    # Of 200,000 values, correlated over time by a few per cent at most: the relative
    # standard error of a variance is 0.3 per cent, that of the mean 0.002.
    assert_close(tail.var(), torch.tensor(expected, dtype=REAL), rtol=0.02, atol=0)
    assert_close(tail.mean(), torch.tensor(3.0, dtype=REAL), rtol=0, atol=0.01)


def test_wga_bc_beats_local_and_fedavg_where_biases_are_constant_and_gradients_noisy():
    federation = shifted(samples=2000)
    simulation, sizes = simulate(federation, 2), federation.train.size
    x = torch.zeros(6, 4, dtype=REAL)

    def late(algorithm):
        """The mean error in the last rounds, to average over minibatches."""
        states, _ = train(algorithm, simulation, x, 100)
        return sum(error(federation, state.x) for state in states[-40:]) / 40

    ours = late(wga_bc(sizes, alpha=0.8, beta=0.05, lr=0.1))
    # FedAvg ends at the common mean; local training stays as far from its own as the
    # noise of minibatches holds it.
    assert ours < 0.7 * late(local(lr=0.1))
    assert ours < 0.1 * late(fedavg(sizes, lr=0.1))


def test_a_client_without_others_takes_local_steps_and_keeps_what_it_knows():
    simulation = simulate(quadratics())
    algorithm = wga_bc(SAMPLES, **STEPS)
    before = train(algorithm, simulation, start(), 2)[0][-1]
    only = torch.arange(6) == 3
    oracle = simulation.at(3, only)
    after, info = algorithm.step(before, oracle, seeds.generator(0))
    alone = local(**STEPS)
    same = begun(alone, before.x)._replace(v=before.v, t=before.t)
    expected, _ = alone.step(same, simulation.at(3, only), seeds.generator(0))
    assert_close(after.x, expected.x, **EXACT)
    assert torch.equal(after.c, before.c)
    assert before.c.any()
    assert told(info, oracle)["sent"] == 0
    assert torch.equal(info["weights"], torch.diag(only.to(REAL)))
