"""Claims about the theory of Per-FedAvg, on losses whose constants are known."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.stats import wasserstein_distance
from torch.testing import assert_close

from coterie import models, seeds
from coterie.algorithms.per_fedavg import per_fedavg
from coterie.checks import InputError
from coterie.clients.simulation import Simulation
from coterie.data.federation import Table, federate
from coterie_theory.meta import (
    MetaProblem,
    dissimilarity_by_total_variation,
    dissimilarity_by_wasserstein,
    exact_bias,
    exact_variance,
    first_order_bias,
    first_order_variance,
    hessian_free_bias,
    hessian_free_variance,
    meta_dissimilarity,
    meta_smoothness,
    total_variation,
    wasserstein_on_a_line,
)
from support.oracles import begun
from support.quadratics import hessians, quadratics, start
from support.refusals import refuses
from support.rounds import simulate

REAL = torch.float64
DELTA = 0.05  # so large that it shows


class Logistic:
    """f(w) = sum_z p(z) log(1 + exp(-<z, w>)); z is the feature times the label.

    The logistic function s has s' <= 1/4 and |s''| <= 1 / (6 sqrt(3)), so that a sample
    has gradients of at most |z|, Hessians of at most |z|^2 / 4, and these change by at
    most |z|^3 / (6 sqrt(3)).
    """

    def __init__(self, samples: torch.Tensor, p: torch.Tensor | None = None) -> None:
        self.samples = samples  # (Z, D)
        self.p = torch.full((len(samples),), 1 / len(samples), dtype=REAL)
        self.p = self.p if p is None else p
        longest = float(samples.norm(dim=1).max())
        self.steepness = longest
        self.smoothness = longest**2 / 4
        self.twist = longest**3 / (6 * math.sqrt(3))

    def gradients(self, w: torch.Tensor) -> torch.Tensor:
        """(Z, D), of every sample."""
        return -torch.sigmoid(-self.samples @ w)[:, None] * self.samples

    def hessians(self, w: torch.Tensor) -> torch.Tensor:
        """(Z, D, D), of every sample."""
        s = torch.sigmoid(self.samples @ w)
        return torch.einsum("z,zi,zj->zij", s * (1 - s), self.samples, self.samples)

    def grad(self, w: torch.Tensor) -> torch.Tensor:
        return self.p @ self.gradients(w)

    def hessian(self, w: torch.Tensor) -> torch.Tensor:
        return torch.einsum("z,zij->ij", self.p, self.hessians(w))

    def meta_grad(self, w: torch.Tensor, alpha: float) -> torch.Tensor:
        u = self.grad(w - alpha * self.grad(w))
        return u - alpha * self.hessian(w) @ u

    def problem(self, alpha: float, **noise: float) -> MetaProblem:
        return MetaProblem(alpha, self.smoothness, self.steepness, self.twist, **noise)


def samples(count: int = 5, dimension: int = 2, seed: int = 0) -> torch.Tensor:
    rng = seeds.generator("tests", "meta theory", seed)
    return torch.randn(count, dimension, generator=rng, dtype=REAL)


def points(count: int = 40, dimension: int = 2) -> torch.Tensor:
    rng = seeds.generator("tests", "points")
    return 2 * torch.randn(count, dimension, generator=rng, dtype=REAL)


def noise_of(loss: Logistic) -> dict[str, float]:
    """Bounds on sigma_G and sigma_H at all w: those of the samples' lengths.

    The variance of anything is at most the mean of its square.
    """
    lengths = loss.samples.norm(dim=1)
    gradient = float((loss.p @ lengths**2).sqrt())
    hessian = float((loss.p @ (lengths**2 / 4) ** 2).sqrt())
    return {"gradient_noise": gradient, "hessian_noise": hessian}


def every_estimate(
    loss: Logistic, w: torch.Tensor, alpha: float, variant: str, delta: float = DELTA
) -> torch.Tensor:
    """The estimates for all ways to draw D, D', D'' of one sample each, (Z^3, D)."""
    found = []
    count = range(len(loss.samples))
    for first, second, third in itertools.product(count, repeat=3):
        u = loss.gradients(w - alpha * loss.gradients(w)[first])[second]
        d = torch.zeros_like(u)
        if variant == "exact":
            d = loss.hessians(w)[third] @ u
        if variant == "hf":
            there, back = loss.gradients(w + delta * u), loss.gradients(w - delta * u)
            d = (there - back)[third] / (2 * delta)
        found.append(u - alpha * d)
    return torch.stack(found)


def test_meta_gradients_are_as_smooth_as_lemma_4_2_says():
    loss = Logistic(samples())
    alpha = 1 / loss.smoothness
    bound = meta_smoothness(loss.problem(alpha))
    w = points()
    slopes = torch.stack([loss.meta_grad(row, alpha) for row in w])
    far = (w[:, None] - w).norm(dim=2) + torch.eye(len(w))
    assert ((slopes[:, None] - slopes).norm(dim=2) <= bound * far).all()


def test_lemma_4_2_is_attained_by_a_concave_quadratic():
    # f = -L w^2 / 2: F = -(1 + alpha L)^2 L w^2 / 2, that is 4 L at alpha = 1 / L.
    smooth = 3.0
    w = torch.tensor(0.7, dtype=REAL, requires_grad=True)
    step = w + smooth * w / smooth
    after = -smooth * step.square() / 2
    (slope,) = torch.autograd.grad(after, w, create_graph=True)
    (curvature,) = torch.autograd.grad(slope, w)
    problem = MetaProblem(1 / smooth, smoothness=smooth, steepness=1.0, twist=0.0)
    assert meta_smoothness(problem) == pytest.approx(-float(curvature))


@pytest.mark.parametrize("share", [0.25, 1.0])
@pytest.mark.parametrize(
    ("variant", "bias", "variance"),
    [
        ("exact", exact_bias, exact_variance),
        ("fo", first_order_bias, first_order_variance),
        (
            "hf",
            lambda problem: hessian_free_bias(problem, DELTA),
            lambda problem: hessian_free_variance(problem, DELTA),
        ),
    ],
)
def test_estimates_are_as_good_as_the_lemmas_say(variant, bias, variance, share):
    loss = Logistic(samples())
    alpha = share / loss.smoothness
    problem = loss.problem(alpha, **noise_of(loss))
    biases = []
    for w in points(6):
        estimates = every_estimate(loss, w, alpha, variant)
        right = loss.meta_grad(w, alpha)
        biases.append(float((estimates.mean(0) - right).norm()))
        error = (estimates - right).square().sum(1).mean()
        assert error <= variance(problem)
    # A gradient of a gradient has a bias, and it is within the bound.
    assert 1e-3 * bias(problem) < max(biases) <= bias(problem)


def test_with_exact_gradients_only_first_order_keeps_an_error():
    quiet = MetaProblem(0.5, smoothness=2.0, steepness=3.0, twist=1.0)
    assert exact_bias(quiet) == exact_variance(quiet) == 0
    assert first_order_bias(quiet) == 0.5 * 2.0 * 3.0
    assert first_order_variance(quiet) == 2 * (0.5 * 2.0 * 3.0) ** 2
    assert hessian_free_bias(quiet, 1e-3) == pytest.approx(0.5 * 1e-3 * 9)
    assert hessian_free_variance(quiet, 1e-3) == pytest.approx(2 * (0.5e-3) ** 2 * 81)


def test_without_a_step_inside_all_bounds_are_those_of_a_plain_gradient():
    plain = MetaProblem(0.0, 2.0, 3.0, 1.0, 0.5, 0.7, (4, 9, 16))
    assert exact_bias(plain) == first_order_bias(plain) == 0
    assert hessian_free_bias(plain, 0.1) == 0
    assert exact_variance(plain) == pytest.approx(12 * 0.25 / 9)
    assert first_order_variance(plain) == pytest.approx(2 * 0.25 / 9)
    assert hessian_free_variance(plain, 0.1) == pytest.approx(12 * 0.25 / 9)


def test_bounds_are_the_printed_formulas():
    alpha, smooth, steep, twist = 0.3, 2.0, 3.0, 1.5
    g, h, (a, b, c) = 0.5, 0.7, (4, 9, 6)
    problem = MetaProblem(alpha, smooth, steep, twist, g, h, (a, b, c))
    assert exact_bias(problem) == pytest.approx(2 * alpha * smooth * g / 2)
    inner = g**2 * (1 / b + (alpha * smooth) ** 2 / a)
    printed = 12 * (steep**2 + inner) * (1 + h**2 * alpha**2 / (4 * c)) - 12 * steep**2
    assert exact_variance(problem) == pytest.approx(printed)
    assert first_order_bias(problem) == pytest.approx(alpha * smooth * (g / 2 + steep))
    printed = (
        6 * g**2 * (2 * (alpha * smooth) ** 2 / a + 2 / b + alpha**2 / (2 * 0.01 * c))
        + 2 * (alpha * twist * 0.1) ** 2 * steep**4
    )
    assert hessian_free_variance(problem, 0.1) == pytest.approx(printed)
    printed = alpha * (2 * smooth * g / 2 + smooth * g / 3 + twist * 0.1 * steep**2)
    assert hessian_free_bias(problem, 0.1) == pytest.approx(printed)
    assert meta_dissimilarity(problem, 0.2, 0.4) == pytest.approx(
        3 * steep**2 * alpha**2 * 0.4 + 192 * 0.2
    )


def test_small_delta_do_no_harm_as_both_gradients_share_a_minibatch():
    loss, w = Logistic(samples()), points(1)[0]
    alpha = 1 / loss.smoothness
    right = loss.meta_grad(w, alpha)

    def error(variant: str, delta: float = DELTA) -> float:
        gaps = every_estimate(loss, w, alpha, variant, delta) - right
        return float(gaps.square().sum(1).mean())

    errors = [error("hf", delta) for delta in (1e-1, 1e-3, 1e-5)]
    assert errors[-1] == pytest.approx(error("exact"), rel=1e-4)
    assert max(errors) < 1.1 * min(errors)
    # The printed bound grows by 10^8 over these delta.
    problem = loss.problem(alpha, **noise_of(loss))
    grown = hessian_free_variance(problem, 1e-5) / hessian_free_variance(problem, 1e-1)
    assert grown > 1e7


def logistic_clients(loss: Logistic, clients: int, batch_size: int) -> Simulation:
    """Clients that all have these samples, half of them written as negatives."""
    labels = torch.arange(len(loss.samples)) % 2
    features = torch.where(labels[:, None] == 1, loss.samples, -loss.samples)
    count = len(features) + 2
    index = torch.cat([torch.arange(len(features)), torch.tensor([0, 0])])
    owner = torch.arange(clients).repeat_interleave(count)
    role = torch.tensor([0] * len(features) + [1, 2]).repeat(clients)
    index = index.repeat(clients)
    table = Table("logistic", features[index], labels[index], "binary", 1)
    module = models.build(lambda: models.linear((2,), 1, bias=False), 0, REAL)
    federation = federate(table, owner, role)
    return Simulation(federation, module, batch_size=batch_size, dtype=REAL)


@pytest.mark.parametrize("variant", ["exact", "fo"])
def test_steps_of_the_algorithm_are_biased_within_the_lemmas(variant):
    loss, w = Logistic(samples()), points(1)[0] / 2
    alpha, clients, lr = 1 / loss.smoothness, 400, 1.0
    simulation = logistic_clients(loss, clients, batch_size=1)
    algorithm = per_fedavg(torch.ones(clients), alpha=alpha, lr=lr, variant=variant)
    moves = []
    for t in range(1, 11):
        # Four thousand independent draws of D, D', D''.
        oracle = simulation.at(t)
        state = begun(algorithm, w.expand(clients, 2))
        state, _ = algorithm.step(state, oracle, seeds.generator(t))
        moves.append((w - state.x[0]) / lr)
    found = torch.stack(moves)
    estimates = every_estimate(loss, w, alpha, variant)
    # The mean over draws is that over all possible ones: five standard errors.
    error = 5 * estimates.std(0) / math.sqrt(10 * clients)
    assert ((found.mean(0) - estimates.mean(0)).abs() < error).all()
    problem = loss.problem(alpha, **noise_of(loss))
    bound = exact_bias(problem) if variant == "exact" else first_order_bias(problem)
    bias = (found.mean(0) - loss.meta_grad(w, alpha)).norm()
    assert bias < bound


def test_meta_gradients_of_clients_differ_by_no_more_than_lemma_4_4_says():
    every = samples(8, seed=1)
    p = torch.softmax(3 * samples(4, 8, seed=2), 1)  # four clients over eight samples
    clients = [Logistic(every, row) for row in p]
    steep, smooth = clients[0].steepness, clients[0].smoothness
    alpha = 1 / smooth
    distances = total_variation(p)
    gradients, hessians = dissimilarity_by_total_variation(
        distances, steepness=steep, smoothness=smooth
    )
    bound = meta_dissimilarity(clients[0].problem(alpha), gradients, hessians)
    for w in points(10):
        slopes = torch.stack([client.grad(w) for client in clients])
        assert (slopes - slopes.mean(0)).square().sum(1).mean() <= gradients
        bends = torch.stack([client.hessian(w) for client in clients])
        gaps = torch.linalg.matrix_norm(bends - bends.mean(0), ord=2)
        assert gaps.square().mean() <= hessians
        metas = torch.stack([client.meta_grad(w, alpha) for client in clients])
        assert (metas - metas.mean(0)).square().sum(1).mean() <= bound


def test_total_variation_gives_the_dissimilarity_of_opposed_clients_exactly():
    # Two samples with gradients B and -B, each the whole of one client: |grad f_i| = B
    # around a mean of 0, and TV = 1/2.
    p = torch.eye(2, dtype=REAL)
    gradients, _ = dissimilarity_by_total_variation(
        total_variation(p), steepness=3.0, smoothness=1.0
    )
    assert gradients == pytest.approx(3.0**2)


def test_assumption_5_as_printed_makes_equal_clients_differ():
    """Where f is the sum of all f_i: against equation 14, and against gamma_G = 2B."""
    n, every = 5, samples(1)
    p = torch.ones(n, 1, dtype=REAL)
    clients = [Logistic(every, row) for row in p]
    steep, smooth = clients[0].steepness, clients[0].smoothness
    gradients, hessians = dissimilarity_by_total_variation(
        total_variation(p), steepness=steep, smoothness=smooth
    )
    assert gradients == hessians == 0
    w = -9 * every[0] / steep  # far on the wrong side, where the gradient is almost B
    slopes = torch.stack([client.grad(w) for client in clients])
    assert (slopes - slopes.mean(0)).square().sum(1).mean() <= gradients
    assert (slopes - slopes.sum(0)).square().sum(1).mean() > (2 * steep) ** 2


def test_wasserstein_distance_on_a_line_is_that_of_scipy():
    p = torch.softmax(2 * samples(4, 6, seed=3), 1)
    z = torch.tensor([-1.0, 0.0, 0.5, 2.0, 3.0, 7.0], dtype=REAL)
    found = wasserstein_on_a_line(p, z)
    mean = p.mean(0).numpy()
    expected = [
        wasserstein_distance(z.numpy(), z.numpy(), row.numpy(), mean) for row in p
    ]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)


def test_wasserstein_distance_bounds_how_far_gradients_and_hessians_differ():
    # l(w; z) = w^2 cos(z) / 2: gradients change with z by at most |w|, Hessians by 1.
    p = torch.softmax(2 * samples(4, 6, seed=4), 1)
    z = torch.linspace(0, 2, 6, dtype=REAL)
    w = 1.7
    gradients, hessians = dissimilarity_by_wasserstein(
        wasserstein_on_a_line(p, z), gradients=w, hessians=1.0
    )
    bends = p @ z.cos()
    spread = (bends - bends.mean()).square().mean()
    assert 0.1 * hessians < spread <= hessians
    assert 0.1 * gradients < w**2 * spread <= gradients


def test_wasserstein_distance_is_attained_by_gradients_linear_in_the_sample():
    # l(w; z) = w z, and two clients that have one sample each.
    z, p = torch.tensor([0.0, 3.0], dtype=REAL), torch.eye(2, dtype=REAL)
    gradients, _ = dissimilarity_by_wasserstein(
        wasserstein_on_a_line(p, z), gradients=1.0, hessians=0.0
    )
    assert gradients == pytest.approx(float((p @ z).var(correction=0)))


def test_local_models_drift_no_further_than_proposition_f_1_and_corollary_f_2_say():
    """All clients take local steps along exact meta-gradients: sigma_F is 0."""
    losses = [Logistic(samples(seed=seed)) for seed in range(4)]
    worst = Logistic(torch.cat([loss.samples for loss in losses]))
    alpha = 0.5 / worst.smoothness
    smooth = meta_smoothness(worst.problem(alpha))

    def each(w: torch.Tensor) -> torch.Tensor:
        pairs = zip(losses, w, strict=True)
        return torch.stack([loss.meta_grad(row, alpha) for loss, row in pairs])

    # Meta-gradients at many points: their spread is gamma_F^2, and it is at most that
    # of Lemma 4.4.
    grid = torch.cartesian_prod(*[torch.linspace(-3, 3, 13, dtype=REAL)] * 2)
    spread = max(float(each(w.expand(4, 2)).var(0, correction=0).sum()) for w in grid)
    for beta, tau in ((0.1 / smooth, 1), (0.1 / (4 * smooth), 4)):
        w = torch.full((4, 2), 0.5, dtype=REAL)
        for t in range(1, tau + 1):
            w = w - beta * each(w)
            away = (w - w.mean(0)).square().sum(1)
            # (57b) for phi = 1, and (58), whose first is the mean of norms.
            growth = (2 + 32 * (beta * smooth) ** 2) ** (t - 1)
            assert float(away.mean()) <= 8 * beta**2 * t * growth * spread
            assert float(away.mean()) <= 35 * beta**2 * t * tau * spread
            assert float(away.sqrt().mean()) <= 4 * beta * t * math.sqrt(spread)
            longest = 2 * beta * t * (1 + 2 * beta * smooth) ** (t - 1)
            assert float(away.sqrt().mean()) <= longest * math.sqrt(spread)
            # A step from one start moves by the differences of gradients.
            assert t > 1 or float(away.mean()) > 0.01 * beta**2 * spread


def test_equation_30_fails_in_operator_norm():
    # Diagonal matrices of two independent signs have mean 0 and operator norm 1, and so
    # has the mean of two of them unless both signs cancel: 3/4 on average, not 1/2.
    signs = list(itertools.product((-1.0, 1.0), repeat=4))
    means = [torch.tensor([(a + c) / 2, (b + d) / 2]) for a, b, c, d in signs]
    squares = torch.stack([mean.abs().max() ** 2 for mean in means])
    assert float(squares.mean()) == 0.75
    # Times any fixed vector, which is all that Lemma 4.3 needs, the rule holds.
    v = torch.tensor([0.6, 0.8])
    products = torch.stack([(mean * v).square().sum() for mean in means])
    assert_close(products.mean(), torch.tensor(0.5))
    # The bound has three times that, for D'' = 2 and vectors of length B = 1.
    problem = MetaProblem(1.0, 1.0, 1.0, 0.0, hessian_noise=1.0, batches=(1, 1, 2))
    assert exact_variance(problem) == pytest.approx(3 * float(products.mean()))


def test_equation_99_fails_when_a_part_of_the_clients_takes_several_steps():
    # F_i = a_i (w - c_i)^2 / 2 of two clients, one of them drawn. After one local step
    # w_bar is the drawn client's own, so that its gradient there is not that of an
    # independent client.
    a, c, beta, w = torch.tensor([1.0, 2.0]), torch.tensor([-1.0, 3.0]), 0.1, 0.0
    w_bar = w - beta * a * (w - c)
    drawn = a * (w_bar - c)
    mean = torch.stack([(a * (x - c)).mean() for x in w_bar])
    left, right = (mean * drawn).mean(), mean.square().mean()
    assert left < 0.9 * right
    # With both clients, or before the first step, it holds.
    at_start = (a * (w - c)).mean()
    assert_close((at_start * a * (w - c)).mean(), at_start.square())


def test_equation_99_fails_after_a_round_of_the_method_with_one_of_six_clients():
    a, b = hessians(quadratics())
    simulation, x = simulate(quadratics()), start()[:1].repeat(6, 1)
    method = per_fedavg(torch.ones(6), alpha=0.0, lr=0.2, weighting="uniform")
    left = right = at_start = torch.zeros((), dtype=REAL)
    slopes = a @ x[0] - b
    for i in range(6):
        oracle = simulation.at(1, torch.arange(6) == i)
        state, _ = method.step(begun(method, x), oracle, torch.Generator())
        assert_close(state.x[i], x[0] - 0.2 * slopes[i])
        g = a @ state.x[i] - b
        left = left + g.mean(0) @ g[i] / 6
        right = right + g.mean(0).square().sum() / 6
        at_start = at_start + slopes.mean(0) @ slopes[i] / 6
    assert left < 0.2 * right
    assert_close(at_start, slopes.mean(0).square().sum())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"alpha": 0.6}, r"`alpha` must be at most 0\.5"),
        ({"alpha": -0.1}, "`alpha` must be at least 0"),
        ({"smoothness": 0.0}, "`smoothness` must be greater than 0"),
        ({"hessian_noise": -1.0}, "`hessian_noise` must be at least 0"),
        ({"batches": (1, 0, 1)}, "`batches` must be at least 1, got 0"),
    ],
)
def test_constants_that_cannot_be_are_refused(change, message):
    given = {"alpha": 0.5, "smoothness": 2.0, "steepness": 1.0, "twist": 1.0}
    refuses(message, MetaProblem, **{**given, **change})


def test_distances_that_cannot_be_are_refused():
    problem = MetaProblem(0.5, 2.0, 1.0, 1.0)
    refuses("`delta` must be greater than 0", hessian_free_bias, problem, 0.0)
    refuses("`delta` must be greater than 0", hessian_free_variance, problem, -1.0)
    with pytest.raises(InputError, match="`points` must grow"):
        wasserstein_on_a_line(torch.eye(2), torch.tensor([1.0, 0.0]))
