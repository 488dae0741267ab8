"""Claims of Karula's theory: ours hold, and what is printed otherwise does not."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import wasserstein_distance

from coterie import seeds
from coterie.algorithms.karula import State, karula
from coterie.checks import InputError
from coterie.engine.rounds import participants
from coterie.optim.projections import project
from coterie_theory import karula as theory
from support.oracles import begun, with_verbs

REAL = torch.float64


@with_verbs
class Quadratics:
    """An oracle whose client i has the loss c_i |x - theta_i|^2 / 2, with noise."""

    def __init__(self, curvature, theta, active, noise=0.0, rng=None):
        self.curvature, self.theta, self.active = curvature, theta, active
        self.noise, self.rng = noise, rng

    def gradient(self, x):
        return self.curvature[:, None] * (x - self.theta)

    def grads(self, x):
        g = self.gradient(x)
        if self.noise:
            draws = torch.randn(g.shape, generator=self.rng, dtype=REAL)
            g = g + self.noise * draws / math.sqrt(g.shape[1])
        return g * self.active[:, None]


def problem(n: int = 9, d: int = 4, smoothness: float = 2.0, far: float = 1.0):
    rng = torch.Generator().manual_seed(1)
    curvature = smoothness * (0.2 + 0.8 * torch.rand(n, generator=rng, dtype=REAL))
    curvature[0] = smoothness
    theta = far * torch.randn(n, d, generator=rng, dtype=REAL)
    points = torch.randn(n, 2, generator=rng, dtype=REAL)
    radius = torch.cdist(points, points, p=1.0)
    return curvature, theta, radius * n * (n - 1) / radius.sum()


def objective(x, curvature, theta):
    return float((curvature * (x - theta).square().sum(1)).mean() / 2)


def excess(curvature, theta, bounds) -> float:
    """f(0) less the least objective, by projected gradient descent."""
    n = len(theta)
    x = theta.mean(0).expand_as(theta)
    eta = n / float(curvature.max())
    for _ in range(40):
        gradient = curvature[:, None] * (x - theta) / n
        x = project(x - eta * gradient, bounds).x
    # A little more than the least, which makes the bound a little smaller.
    return objective(0 * x, curvature, theta) - objective(x, curvature, theta)


def squared_mappings(given, rounds, s, *, t=0.2, noise=0.0, seed=0):
    """|G_eta(x^k)|^2 over the rounds of a run as the theorem has it."""
    curvature, theta, radius = given
    n, d = theta.shape
    smoothness = float(curvature.max())
    eta = theory.paper_step(smoothness)
    algorithm = karula(radius, torch.ones(n), t=t, lr=eta / n)
    state = begun(algorithm, torch.zeros(n, d, dtype=REAL))
    rng = torch.Generator().manual_seed(seed)
    everybody = Quadratics(
        curvature, theta, torch.ones(n, dtype=torch.bool), noise, rng
    )
    # The theorem starts with everybody's gradient.
    memory = state.server._replace(g=everybody.grads(state.x))
    state = State(state.x, memory, 0)
    norms = []
    for k in range(rounds):
        exact = everybody.gradient(state.x) / n
        mapping = theory.gradient_mapping(state.x, exact, t * radius, eta)
        norms.append(float(mapping.square().sum()))
        active = participants(n, s / n, seed, k)
        oracle = Quadratics(curvature, theta, active, noise, rng)
        state, _ = algorithm.step(state, oracle, seeds.generator(seed, k))
    return torch.tensor(norms)


@pytest.fixture(scope="module")
def tied_problem():
    """Clients with bounds on their models, and how much there is to gain."""
    given = problem()
    return given, excess(given[0], given[1], 0.2 * given[2])


@pytest.mark.parametrize("s", [3, 6, 9])
def test_theorem_4_4_holds_on_quadratics_with_some_of_the_clients(tied_problem, s):
    given, start = tied_problem
    runs = [squared_mappings(given, 20, s, seed=seed) for seed in range(2)]
    mean = torch.stack(runs).mean(0)
    for rounds in (1, 7, 20):
        bound = theory.gradient_mapping_bound(
            start, rounds, smoothness=2.0, clients=9, active=s
        )
        assert float(mean[:rounds].min()) <= bound
    assert float(mean[-1]) < 0.2 * float(mean[0])  # it does converge


def expected_mappings(n, s, smoothness, far, rounds):
    """E |G_eta(x^k)|^2 where nobody is tied, all curvatures are L and sigma is 1.

    The distance e of a client's model from its optimum, `far` at first, and its stored
    gradient g move by linear rules with noise, so that their second moments do too: who
    takes part, which is s of n, sends h = L e + noise and moves by
    -eta (g / n + (h - g) / s), others by -eta g / n.
    """
    eta = theory.paper_step(smoothness)
    idle, drawn = eta / n, eta / s
    # e' = keep e + old g - drawn noise.
    keep, old = 1 - drawn * smoothness, drawn - idle
    ee, eg, gg = far**2, smoothness * far**2, (smoothness * far) ** 2 + 1
    found = []
    for _ in range(rounds):
        found.append(smoothness**2 * ee / n)
        others = (ee - 2 * idle * eg + idle**2 * gg, eg - idle * gg, gg)
        those = (
            keep**2 * ee + 2 * keep * old * eg + old**2 * gg + drawn**2,
            smoothness * (keep * ee + old * eg) - drawn,
            smoothness**2 * ee + 1,
        )
        ee, eg, gg = (
            s / n * one + (1 - s / n) * other
            for one, other in zip(those, others, strict=True)
        )
    return torch.tensor(found, dtype=REAL)


def equal_clients(n, d, smoothness, far):
    """Free clients whose optima are `far` from 0, all with the same curvature."""
    theta = torch.full((n, d), far / math.sqrt(d), dtype=REAL)
    curvature = torch.full((n,), smoothness, dtype=REAL)
    return curvature, theta, 1 - torch.eye(n, dtype=REAL)


def test_moments_of_free_clients_are_those_of_the_algorithm():
    n, s, smoothness, far, rounds = 4, 2, 1e-2, 50.0, 60
    given = equal_clients(n, 20, smoothness, far)
    known = {"t": 1e12, "noise": 1.0}
    each = [squared_mappings(given, rounds, s, **known, seed=k) for k in range(8)]
    runs = torch.stack(each).mean(1)
    expected = float(expected_mappings(n, s, smoothness, far, rounds).mean())
    # Five standard errors from eight runs.
    assert abs(float(runs.mean()) - expected) < 5 * float(runs.std()) / math.sqrt(8)
    assert float(runs.std()) < 0.3 * expected


@pytest.mark.parametrize(("n", "s"), [(4, 2), (9, 3), (9, 8)])
def test_the_printed_noise_term_is_too_small_where_the_step_is_long(n, s):
    """With the right factor 64 L / 3: the noise term alone makes the difference."""
    rounds = 5000
    for smoothness in (1e-6, 1e-3, 1.0, 1e3):
        far = 1 / smoothness  # so that the gradients at the start are 1
        found = float(expected_mappings(n, s, smoothness, far, rounds).min())
        start = smoothness * far**2 / 2
        ours = theory.gradient_mapping_bound(
            start, rounds, smoothness=smoothness, clients=n, active=s, variance=1.0
        )
        assert found <= ours
        # What noise leaves does not depend on L, but 64 L / 3 times 4 sigma^2 does.
        printed = 64 * smoothness / 3 * (start / rounds + 4 * (s + 1) / s)
        assert (found > printed) == (smoothness == 1e-6)


def test_theorem_4_4_holds_with_noise():
    # The smaller L the longer the step, and the further noise moves the models.
    smoothness, noise, s, rounds = 1e-4, 1.0, 3, 100
    given = problem(smoothness=smoothness, far=2.5e3)
    start = excess(given[0], given[1], 1e12 * given[2])
    runs = [
        squared_mappings(given, rounds, s, t=1e12, noise=noise, seed=seed)
        for seed in range(2)
    ]
    ours = theory.gradient_mapping_bound(
        start, rounds, smoothness=smoothness, clients=9, active=s, variance=noise**2
    )
    assert float(torch.stack(runs).mean(0).min()) <= ours


def test_the_constant_is_that_of_the_last_line_of_the_proof():
    smoothness = 0.7
    eta = theory.paper_step(smoothness)
    assert eta == pytest.approx(3 / (8 * smoothness))
    known = {"smoothness": smoothness, "clients": 4, "active": 4}
    found = theory.gradient_mapping_bound(1.0, 1, **known)
    assert found == pytest.approx(2 / (eta * (1 - 2 * eta * smoothness)))
    assert found == pytest.approx(8 * (8 * smoothness / 3))  # eight times the printed


@pytest.mark.parametrize(("n", "s"), [(10, 2), (30, 5), (30, 29)])
def test_the_series_of_the_proof_is_larger_than_printed(n, s):
    smoothness = 1.0
    eta = theory.paper_step(smoothness)
    first, ratio = 2 * eta * smoothness**2 / (n * s), (n**2 - s**2) / n**2
    c = 0.0
    for _ in range(20_000):  # c_k = first + ratio c_{k+1}
        c = first + ratio * c
    ours = 2 * eta * smoothness**2 * n / s**3
    assert c == pytest.approx(ours)
    printed = 2 * eta * smoothness**2 * n / (s * (n**2 - s**2))
    if 2 * s**2 < n**2:
        assert c > printed
    # The condition on the step, with what the series really is.
    slack = smoothness / 2 - 1 / (2 * eta) + c * n / s
    assert (slack <= 0) == (s >= theory.fewest_active(n))


def test_the_fewest_clients_of_a_round_are_about_the_root_of_all():
    for n in (1, 2, 5, 17, 100, 3000):
        s = theory.fewest_active(n)
        assert 10 * s**4 >= 9 * n**2
        assert s == 1 or 10 * (s - 1) ** 4 < 9 * n**2
        assert s <= math.sqrt(n) + 1


def test_the_gradient_mapping_is_the_gradient_where_nobody_is_tied():
    curvature, theta, radius = problem()
    gradient = curvature[:, None] * (0.1 - theta) / 9
    x = torch.full_like(theta, 0.1)
    free = theory.gradient_mapping(x, gradient, 1e9 * radius, 0.3)
    torch.testing.assert_close(free, gradient)
    # With one model for all it is the mean gradient.
    one = theory.gradient_mapping(x, gradient, 0 * radius, 0.3)
    torch.testing.assert_close(one, gradient.mean(0).expand_as(gradient))


def test_best_models_are_no_further_apart_than_proposition_3_4_says():
    # The loss |x - y| + (x - y)^2 / 2 of a sample y, on samples and models in [0, 1]:
    # its slope in y is at most 2 there, and f_i grows like |x - x_i^*|^2 / 2.
    grid = torch.linspace(0, 1, 2001, dtype=REAL)
    for seed in range(10):
        rng = torch.Generator().manual_seed(seed)
        data = [
            torch.rand(7, generator=rng, dtype=REAL) ** (1 + 2 * k) for k in range(2)
        ]
        best = []
        for y in data:
            gap = grid[:, None] - y
            best.append(grid[(gap.abs() + gap.square() / 2).mean(1).argmin()])
        distance = wasserstein_distance(data[0].numpy(), data[1].numpy())
        bound = theory.optima_bound(distance, lipschitz=2.0, growth=1.0)
        assert float((best[0] - best[1]).square()) <= bound


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"active": 2},
            "`active` must be at least 3 of 9 clients for the theorem, got 2",
        ),
        ({"active": 10}, "`active` must be at most 9"),
        ({"smoothness": 0.0}, "`smoothness` must be greater than 0"),
        ({"variance": -1.0}, "`variance` must be at least 0"),
    ],
)
def test_what_the_theorem_does_not_cover_is_refused(change, message):
    given = {"smoothness": 1.0, "clients": 9, "active": 5, **change}
    with pytest.raises(InputError, match=message):
        theory.gradient_mapping_bound(1.0, 10, **given)
