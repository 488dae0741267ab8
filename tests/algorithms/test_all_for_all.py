"""Claims about All-for-all: its forms, special cases, participation, stability."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from coterie import seeds
from coterie.algorithms.all_for_all import all_for_all
from coterie.algorithms.all_for_one import all_for_one
from coterie.algorithms.fedavg import fedavg
from coterie.algorithms.local import local
from coterie.checks import InputError
from coterie.collaboration import weights
from coterie.data.datasets import load
from coterie.data.splits import divide
from coterie.engine.rounds import run_rounds
from coterie.study.newcomers import models_for
from support.gradient_oracles import (
    ALL,
    EXACT,
    REAL,
    D,
    N,
    Quadratics,
    equal_start,
    problem,
    random_weights,
    some_activity,
    start,
    trained,
)
from support.oracles import begun
from support.recipes import weights as weights_of
from support.rounds import simulate

SETTINGS = {"momentum": 0.5, "weight_decay": 0.1, "steps": 2, "schedule": "inverse(9)"}


# The update and its two forms.


@pytest.mark.parametrize("settings", [{}, SETTINGS], ids=["plain", "settings"])
@pytest.mark.parametrize("some", [False, True], ids=["all", "some"])
@pytest.mark.parametrize("lam", [random_weights(), None], ids=["random", "threshold"])
def test_both_forms_give_the_same_models_and_so_does_a_plain_loop(lam, some, settings):
    best = problem()[1]
    lam = (
        weights.threshold_weights(torch.cdist(best, best), 1.5) if lam is None else lam
    )
    activity = some_activity() if some else None
    given = {"lr": 0.1, **settings}
    direct, _ = trained(all_for_all(lam, **given), start(), activity=activity)
    factored = all_for_all(lam, form="factored", **given)
    if some:
        with pytest.raises(InputError, match="`form` factored needs every client"):
            trained(factored, start(), activity=activity)
    else:
        assert_close(direct, trained(factored, start())[0], **EXACT)

    matrices, best = problem()
    rng = torch.Generator().manual_seed(0)
    eta = 0.1 / float(torch.linalg.eigvalsh(lam @ lam.T).max())
    y, v, t = start(), torch.zeros(N, D, dtype=REAL), 0
    for round_ in range(10):
        who = range(N) if activity is None else activity[round_].nonzero()[:, 0]
        for _ in range(settings.get("steps", 1)):
            x = torch.stack([sum(lam[i, k] * y[k] for k in range(N)) for i in range(N)])
            noise = 0.3 * torch.randn(N, D, generator=rng, dtype=REAL)
            total = torch.zeros(N, D, dtype=REAL)
            for i in who:
                g = matrices[i] @ (x[i] - best[i]) + noise[i]
                g = g + settings.get("weight_decay", 0.0) * x[i]
                for k in range(N):
                    total[k] += lam[i, k] * g
            v = settings.get("momentum", 0.0) * v + total
            decay = 9 / (9 + t) if settings else 1
            y, t = y - eta * decay * v, t + 1
    expected = torch.stack([sum(lam[i, k] * y[k] for k in range(N)) for i in range(N)])
    assert_close(direct, expected, **EXACT)


def test_what_is_sent_is_counted_along_the_links_of_each_form():
    best = problem()[1]
    lam = weights.threshold_weights(torch.cdist(best, best), 1.5)
    i, k = ((lam > 0) & ~torch.eye(N, dtype=torch.bool)).nonzero()[0].tolist()
    lam[i, k] = 0  # trust need not be mutual
    lam = weights.normalised(lam)
    two_hops = (lam @ lam.T) > 0
    assert int((lam > 0).sum()) < int(two_hops.sum()) < N * N  # neither is trivial
    active = torch.tensor([True, True, False, True, False, True])
    for who in (ALL, active):
        _, direct = trained(
            all_for_all(lam, steps=3), start(), 1, activity=who.expand(1, N)
        )
        # A gradient to every other client that it moves.
        sent = sum(int(two_hops[:, j].sum()) - 1 for j in range(N) if who[j])
        assert direct["sent"] == 3 * sent * D
        assert torch.equal(direct["weights"], lam)
    # Its model to those who trust it, and a gradient to those whom it trusts.
    factored = trained(all_for_all(lam, steps=3, form="factored"), start(), 1)[1]
    assert factored["sent"] == 3 * 2 * (int((lam > 0).sum()) - N) * D


# Special cases of the weights.


def test_identity_weights_are_local_training_bit_by_bit():
    ours, info = trained(all_for_all(torch.eye(N), lr=0.2), start())
    matrices, best = problem()
    rng = torch.Generator().manual_seed(0)
    x = start()
    for _ in range(10):
        g = Quadratics(matrices, best, noise=0.3, rng=rng).grads(x)
        x = x.add(g, alpha=-0.2)
    assert torch.equal(ours, x)
    assert info["sent"] == 0


def test_uniform_weights_are_one_model_that_follows_the_mean_gradient():
    lam = torch.full((N, N), 1 / N, dtype=REAL)
    ours, _ = trained(all_for_all(lam, lr=0.2), start())
    matrices, best = problem()
    rng = torch.Generator().manual_seed(0)
    x = start().mean(0)
    for _ in range(10):
        oracle = Quadratics(matrices, best, noise=0.3, rng=rng)
        x = x - 0.2 * oracle.grads(x.expand(N, D)).mean(0)
    assert_close(ours, x.expand(N, D), **EXACT)
    assert_close(ours, ours[:1].expand(N, D), rtol=0, atol=1e-14)


class Blending(Quadratics):
    """Also answers what All-for-one asks, with the noise of `grads`."""

    def blended(self, x, alpha):
        noise = self.noise * torch.randn(x.shape, generator=self.rng, dtype=x.dtype)
        moved = x[:, None] - self.best[None, :]
        g = torch.einsum("kde,ike->ikd", self.matrices, moved) + noise[None, :]
        return torch.einsum("ik,ikd->id", alpha, g)


def test_clusters_make_all_for_all_and_all_for_one_the_same_minibatch_descent():
    label = torch.tensor([0, 1, 0, 2, 1, 0])
    lam = weights.same_cluster(label, torch.ones(N, dtype=REAL))
    assert_close(lam @ lam.T, lam, rtol=0, atol=1e-15)
    matrices, best = problem()
    ours, _ = trained(all_for_all(lam, lr=0.2), equal_start())
    rng = torch.Generator().manual_seed(0)
    algorithm = all_for_one(lam, lr=0.2)
    state = begun(algorithm, equal_start())
    for t in range(10):
        oracle = Blending(matrices, best, noise=0.3, rng=rng)
        state, _ = algorithm.step(state, oracle, seeds.generator(0, t))
    assert_close(ours, state.x, **EXACT)
    rng = torch.Generator().manual_seed(0)
    x = equal_start()
    for _ in range(10):
        g = Quadratics(matrices, best, noise=0.3, rng=rng).grads(x)
        for cluster in range(3):
            x[label == cluster] -= 0.2 * g[label == cluster].mean(0)
    assert_close(ours, x, **EXACT)


def test_without_clusters_all_for_all_and_all_for_one_differ():
    lam = random_weights()
    ours, _ = trained(all_for_all(lam, lr=0.2, safe=False), equal_start(), noise=0)
    matrices, best = problem()
    state = begun(all_for_one(lam, lr=0.2), equal_start())
    for t in range(10):
        oracle = Blending(matrices, best)
        state, _ = all_for_one(lam, lr=0.2).step(state, oracle, seeds.generator(t))
    assert (ours - state.x).abs().max() > 0.1


# Properties.


def test_scaling_gradients_is_scaling_the_step():
    matrices, best = problem()
    lam = random_weights()
    here, _ = trained(all_for_all(lam, lr=0.3), start(), noise=0)
    there, _ = trained(
        all_for_all(lam, lr=0.1), start(), noise=0, data=(3 * matrices, best)
    )
    assert_close(here, there, **EXACT)


def test_identical_clients_without_noise_follow_descent_scaled_by_row_sums_of_w():
    matrices, best = problem()
    same = matrices[:1].expand(N, D, D), best[:1].expand(N, D)
    lam = random_weights()
    ours, _ = trained(
        all_for_all(lam, lr=0.1, safe=False), equal_start(), 1, noise=0, data=same
    )
    g = matrices[0] @ (equal_start()[0] - best[0])
    scale = (lam @ lam.T).sum(1)
    assert (scale - 1).abs().max() > 0.01  # W is no gossip matrix
    assert_close(ours, equal_start() - 0.1 * scale[:, None] * g, **EXACT)


@pytest.mark.parametrize("some", [False, True], ids=["all", "some"])
def test_models_never_leave_the_range_of_the_weights(some):
    label = torch.tensor([0, 1, 0, 2, 1, 0])
    lam = weights.same_cluster(label, torch.ones(N, dtype=REAL))
    activity = some_activity() if some else None
    algorithm = all_for_all(lam, momentum=0.5, weight_decay=0.1)
    x, _ = trained(algorithm, start(), activity=activity)
    first = begun(algorithm, start()).x
    basis = torch.linalg.svd(lam)[0][:, :3]  # three clusters
    for rows in (x, x - first):
        assert_close(basis @ (basis.T @ rows), rows, **EXACT)


def test_a_start_outside_the_range_would_never_be_corrected():
    # As printed, with unequal starts, the update keeps their differences for ever.
    lam = torch.full((N, N), 1 / N, dtype=REAL)
    matrices, best = problem()
    x = start()
    for _ in range(200):
        x = x - 0.2 * (lam @ lam.T) @ Quadratics(matrices, best).grads(x)
    kept = x - x.mean(0)
    assert_close(kept, start() - start().mean(0), **EXACT)
    ours, _ = trained(all_for_all(lam, lr=0.2), start(), 200, noise=0)
    assert_close(ours, ours[:1].expand(N, D), rtol=0, atol=1e-12)
    a, b = matrices.sum(0), torch.einsum("ide,ie->d", matrices, best)
    assert_close(ours[0], torch.linalg.solve(a, b), rtol=0, atol=1e-9)


def test_an_equal_start_is_kept():
    lam = random_weights()
    assert_close(begun(all_for_all(lam), equal_start()).x, equal_start(), **EXACT)


# Who takes part.


def test_active_clients_compute_and_everybody_receives():
    lam = random_weights()
    active = torch.tensor([False, False, True, False, True, False])
    ours, _ = trained(
        all_for_all(lam, lr=0.1, safe=False),
        equal_start(),
        1,
        noise=0,
        activity=active[None],
    )
    matrices, best = problem()
    g = Quadratics(matrices, best).grads(equal_start())
    product = lam @ lam.T
    expected = equal_start()
    for i in range(N):
        for j in (2, 4):  # left out, and nobody else's share grows
            expected[i] -= 0.1 * product[i, j] * g[j]
    assert_close(ours, expected, **EXACT)
    assert (ours != equal_start()).any(1).all()


def test_one_client_at_a_time_moves_on_average_by_an_nth_of_all_together():
    lam = random_weights()
    algorithm = all_for_all(lam, lr=0.1)
    x = begun(algorithm, start()).x
    together, _ = trained(algorithm, start(), 1, noise=0)
    one_by_one = [
        trained(algorithm, start(), 1, noise=0, activity=row[None])[0]
        for row in torch.eye(N, dtype=torch.bool)
    ]
    assert_close(torch.stack(one_by_one).mean(0) - x, (together - x) / N, **EXACT)


def test_participation_of_one_nth_is_the_asynchronous_oracle(classification):
    simulation, lam = simulate(classification, 2), random_weights()
    before = x = torch.zeros(6, 26, dtype=REAL)
    woken = []
    for r in run_rounds(
        all_for_all(lam, lr=0.1, safe=False),
        simulation,
        x,
        rounds=60,
        participation=1 / 6,
    ):
        assert int(r.active.sum()) == 1
        client = int(r.active.nonzero())
        woken.append(client)
        g = simulation.at(r.t, r.active).grads(before)[client]
        expected = before - 0.1 * (lam @ lam.T)[:, [client]] * g
        assert_close(r.state.x, expected, **EXACT)
        before = r.state.x
    # Each of six clients is expected ten times in sixty rounds.
    counts = torch.bincount(torch.tensor(woken), minlength=6)
    assert counts.min() >= 3
    assert counts.max() <= 20


# Stability.


def star(n=50):
    far = torch.ones(n, n, dtype=REAL)
    far[0] = far[:, 0] = 0
    return weights.threshold_weights(far, 0.5)


def test_on_a_star_the_printed_step_diverges_and_the_safe_one_does_not():
    # Fifty identical clients of smoothness 1, noiseless, and the step 1 / (2 L).
    n = 50
    data = torch.eye(1, dtype=REAL).expand(n, 1, 1), torch.zeros(n, 1, dtype=REAL)
    x = torch.ones(n, 1, dtype=REAL)
    printed, info = trained(
        all_for_all(star(), lr=0.5, safe=False), x, 30, noise=0, data=data
    )
    assert info["spectral_radius"] == pytest.approx(12.5, abs=0.3)
    assert printed.abs().max() > 1e6
    safe, _ = trained(all_for_all(star(), lr=0.5), x, 200, noise=0, data=data)
    assert safe.square().mean() < 0.02  # of 1 at the start
    # But who everybody listens to, learns little from each: the mean is no promise.
    assert safe[0].abs() > 0.5
    even, info = trained(
        all_for_all(weights.metropolis(star()), lr=0.5), x, 30, noise=0, data=data
    )
    assert info["spectral_radius"] == pytest.approx(1)
    assert even.abs().max() < 1e-3


def test_the_safe_step_is_the_given_one_over_the_spectral_radius():
    lam = random_weights()
    rho = weights.spectral_radius(lam)
    assert rho > 1.01
    safe, info = trained(all_for_all(lam, lr=0.1), start())
    bare, _ = trained(all_for_all(lam, lr=0.1 / rho, safe=False), start())
    assert_close(safe, bare, **EXACT)
    assert info["spectral_radius"] == pytest.approx(rho)


def test_all_for_all_arrives_at_the_best_models_of_its_form():
    matrices, best = problem()
    lam = 0.5 * torch.eye(N, dtype=REAL)
    lam += 0.5 * weights.same_cluster(torch.arange(N) % 2, torch.ones(N, dtype=REAL))
    lam[1] = lam[0]  # a rank below N, so that not every model can be reached
    ours, _ = trained(all_for_all(lam, lr=0.6), start(), 400, noise=0)
    # min over y of the mean of f_i((L y)_i): solve its normal equations.
    blocks = torch.block_diag(*matrices)
    spread = torch.kron(lam, torch.eye(D, dtype=REAL))
    y = torch.linalg.lstsq(
        spread.T @ blocks @ spread, spread.T @ blocks @ best.flatten(), driver="gelsd"
    )[0]
    # What the slowest direction leaves, (1 - 0.6 * 0.25 / 1.3)^400, and rounding.
    assert_close(ours, (spread @ y).reshape(N, D), rtol=0, atol=1e-8)
    assert (ours - best).abs().max() > 0.1


# On data.


def means():
    """Few samples of eight clients in two far clusters."""
    table = load("mean_estimation", clients=8, samples=10, spread=3.0, seed=0)
    federation = divide(table, "natural", seed=0)
    return federation, simulate(federation, 1)


def distance_to_optima(algorithm, federation, simulation, rounds=60):
    x = torch.zeros(len(federation), 10, dtype=REAL)
    last = list(run_rounds(algorithm, simulation, x, rounds=rounds))[-1].state
    found = algorithm.personal(last, simulation.at(rounds, purpose="use"))
    return float((found - federation.optima).square().sum(1).mean())


def test_where_clusters_are_known_all_for_all_beats_local_training_and_one_model():
    federation, simulation = means()
    lam = weights_of("clusters", federation)
    given = {"lr": 0.2, "schedule": "inverse(5)"}
    ours = distance_to_optima(all_for_all(lam, **given), federation, simulation)
    alone = distance_to_optima(local(**given), federation, simulation)
    sizes = federation.train.size
    one = distance_to_optima(fedavg(sizes, **given), federation, simulation)
    assert ours < 0.6 * alone
    assert ours < 0.1 * one


def test_a_newcomer_gets_the_model_that_fits_it_best():
    federation, _ = means()
    everybody = weights_of("clusters", federation)
    algorithm = all_for_all(everybody, lr=0.2)
    newcomers = federation.select(torch.tensor([6, 7]))
    oracle = simulate(newcomers).at(1)
    personal = federation.optima[:6]  # as if training had been perfect
    state = begun(algorithm, torch.zeros(8, 10, dtype=REAL))
    found = models_for(algorithm.welcome, state, personal, oracle)
    assert_close(found, federation.optima[[6, 7]])


def test_weights_whose_rows_do_not_sum_to_one_are_refused():
    with pytest.raises(InputError, match="every row of `weights` must sum to 1"):
        all_for_all(2 * torch.eye(3))
    with pytest.raises(InputError, match=r"`weights` must have shape \(6, 6\)"):
        begun(all_for_all(torch.eye(3)), start())
