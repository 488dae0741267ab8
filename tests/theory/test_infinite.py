"""Claims about infinitely many agents, of whom any can be asked for its model."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from coterie.algorithms.all_for_all import all_for_all
from coterie.checks import InputError
from coterie.collaboration import weights
from coterie_theory import infinite
from coterie_theory.infinite import History, models, nodes, run_agents, windows
from support.oracles import begun, with_verbs
from support.refusals import refuses

REAL = torch.float64


def agents(n, seed=0, p=1):
    rng = torch.Generator().manual_seed(seed)
    return torch.rand(n, p, generator=rng, dtype=REAL)


def closer_than(width):
    return lambda theta, points: torch.cdist(theta, points) <= width


# The kernels.


def test_windows_are_the_integral_of_two_windows():
    h = 0.13
    kernel = windows(h)
    theta = torch.tensor([[0.0], [0.05], [0.3], [0.45], [0.99]], dtype=REAL)
    fine = (torch.arange(20_000, dtype=REAL)[:, None] + 0.5) / 20_000
    inside = ((theta - fine.T).abs() <= h).to(REAL)
    window = inside / inside.mean(1, keepdim=True)
    expected = window @ window.T / 20_000
    # Two ends of a window fall between points of the grid.
    assert_close(kernel(theta, theta), expected, rtol=1e-3, atol=1e-3)


def test_windows_of_a_cube_are_products_over_its_directions():
    a, b = agents(4, 1, p=3), agents(5, 2, p=3)
    kernel = windows(0.2, low=-1.0, high=2.0)
    expected = torch.stack([kernel(a[:, [k]], b[:, [k]]) for k in range(3)]).prod(0)
    assert_close(kernel(a, b), expected)


def test_a_window_over_everything_is_one_model_and_own_weight_one_over_the_volume():
    theta = agents(6)
    assert_close(windows(1.0)(theta, theta), torch.ones(6, 6, dtype=REAL))
    inner = torch.tensor([[0.5]], dtype=REAL)
    assert float(windows(0.1)(inner, inner)) == pytest.approx(1 / 0.2)
    edge = torch.tensor([[0.0]], dtype=REAL)
    assert float(windows(0.1)(edge, edge)) == pytest.approx(1 / 0.1)


def test_nodes_tend_to_windows_as_they_become_dense():
    theta = agents(7, 3)
    fine = (torch.arange(20_000, dtype=REAL)[:, None] + 0.5) / 20_000
    masses = torch.full((20_000,), 1 / 20_000, dtype=REAL)
    dense = nodes(fine, masses, closer_than(0.15))
    assert_close(dense(theta, theta), windows(0.15)(theta, theta), rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("kernel", [windows(0.2), None], ids=["windows", "nodes"])
def test_kernels_are_symmetric_and_positive(kernel):
    theta = agents(12, 4)
    if kernel is None:
        mass = torch.rand(12, generator=torch.Generator().manual_seed(0), dtype=REAL)
        kernel = nodes(theta, mass / mass.sum(), closer_than(0.2))
    w = kernel(theta, theta)
    assert_close(w, w.T)
    assert torch.linalg.eigvalsh(w).min() > -1e-12


# Against All-for-all with one active client at a time.


@with_verbs
class OneAwake:
    """Noisy gradients of |x - best_i|^2 / 2 of a single client."""

    def __init__(self, client, best, noise):
        self.active = torch.zeros(len(best), dtype=torch.bool)
        self.active[client] = True
        self.best, self.noise = best, noise

    def grads(self, x):
        return (x - self.best + self.noise) * self.active[:, None]


def test_for_finitely_many_agents_it_is_asynchronous_all_for_all():
    n, d, calls, lr = 9, 2, 80, 0.3
    theta = agents(n, 5)
    rng = torch.Generator().manual_seed(0)
    best = torch.randn(n, d, generator=rng, dtype=REAL)
    noise = torch.randn(calls, d, generator=rng, dtype=REAL)
    woken = torch.randint(n, (calls,), generator=rng)
    lam = weights.threshold_weights(torch.cdist(theta, theta), 0.25)
    masses = torch.full((n,), 1 / n, dtype=REAL)
    kernel = nodes(theta, masses, closer_than(0.25))
    assert_close(kernel(theta, theta), n * lam @ lam.T)

    start = torch.ones(d, dtype=REAL)
    algorithm = all_for_all(lam, lr=lr, safe=False)
    state = begun(algorithm, start.expand(n, d).clone())
    for t in range(calls):
        oracle = OneAwake(int(woken[t]), best, noise[t])
        state, _ = algorithm.step(state, oracle, torch.Generator())

    def gradient(t, x):
        return x - best[woken[t]] + noise[t]

    log = run_agents(kernel, start, theta[woken], gradient, lambda t: lr / n)
    # Eighty steps in double precision, with the operations in another order.
    assert_close(models(log, theta, kernel), state.x, rtol=1e-12, atol=1e-13)


# The event log.


def small_log(kernel, calls=30, seed=0):
    theta = agents(calls, seed, p=2)
    rng = torch.Generator().manual_seed(seed)
    y = torch.randn(calls, 3, generator=rng, dtype=REAL)
    start = torch.zeros(3, dtype=REAL)
    log = run_agents(
        kernel, start, theta, lambda t, x: x - y[t], lambda t: 0.05 / (1 + t)
    )
    return log, y


def test_models_are_sums_over_events_and_those_of_the_plain_loop():
    kernel = windows(0.3)
    log, y = small_log(kernel)
    asked = agents(11, 9, p=2)  # none of them has ever woken
    everybody = torch.cat([log.theta, asked])
    x = torch.zeros(len(everybody), 3, dtype=REAL)
    for t in range(30):
        g = x[t] - y[t]
        w = kernel(everybody, log.theta[t : t + 1])
        x = x - 0.05 / (1 + t) * w * g
    assert_close(models(log, everybody, kernel), x, rtol=1e-12, atol=1e-13)


def test_models_do_not_depend_on_who_else_is_asked(monkeypatch):
    kernel = windows(0.3)
    log, _ = small_log(kernel)
    asked = agents(11, 9, p=2)
    together = models(log, asked, kernel)
    monkeypatch.setattr(infinite, "_AT_ONCE", 60)  # two agents in one pass
    assert_close(models(log, asked, kernel), together, rtol=1e-13, atol=1e-14)
    assert_close(models(log, asked[3:4], kernel), together[3:4])


def test_before_anything_happens_everybody_has_the_first_model():
    start = torch.tensor([1.0, 2.0], dtype=REAL)
    log = History(start, torch.zeros(0, 1, dtype=REAL), torch.zeros(0, 2, dtype=REAL))
    assert_close(models(log, agents(4), windows(0.1)), start.expand(4, 2))


def test_who_shares_no_window_with_anybody_keeps_the_first_model():
    start = torch.zeros(1, dtype=REAL)
    log = History(start, torch.tensor([[0.1]]).double(), torch.ones(1, 1, dtype=REAL))
    far = torch.tensor([[0.9], [0.2]], dtype=REAL)
    found = models(log, far, windows(0.1))
    assert float(found[0]) == 0
    assert float(found[1]) < 0


def test_the_largest_step_is_stable_and_four_times_as_much_is_not():
    kernel = windows(0.1)
    some = agents(500)
    step = 1 / float(kernel(some, some).diagonal().max())  # losses with beta = 1
    assert step == pytest.approx(0.1, rel=0.1)  # a window at the edge
    theta = torch.zeros(60, 1, dtype=REAL)  # the same agent, again and again
    start = torch.ones(1, dtype=REAL)
    small = run_agents(kernel, start, theta, lambda t, x: x, lambda t: step)
    large = run_agents(kernel, start, theta, lambda t, x: x, lambda t: 4 * step)
    assert float(models(small, theta[:1], kernel).abs()) < 1
    assert float(models(large, theta[:1], kernel).abs()) > 1e6


# How precise it gets.


def integrated_error(calls, factor, columns=30):
    """Mean of (x_theta - m(theta))^2 / 2, for half-width factor * calls^(-1/3).

    The columns are as many independent problems on the same events.
    """
    rng = torch.Generator().manual_seed(calls)
    theta = torch.rand(calls, 1, generator=rng, dtype=REAL)
    noise = torch.randn(calls, columns, generator=rng, dtype=REAL)

    def m(theta):
        return torch.sin(2 * math.pi * theta)

    y = m(theta) + noise
    h = factor * calls ** (-1 / 3)
    kernel = windows(h)
    start = torch.zeros(columns, dtype=REAL)
    log = run_agents(
        kernel, start, theta, lambda t, x: x - y[t], lambda t: 1 / (t + 1 / h)
    )
    grid = (torch.arange(200, dtype=REAL)[:, None] + 0.5) / 200
    return float((models(log, grid, kernel) - m(grid)).square().mean()) / 2


@pytest.mark.parametrize("factor", [0.5, 1.0])
def test_the_integrated_error_of_mean_estimation_falls_like_calls_to_minus_two_thirds(
    factor,
):
    # p = 1 and gaps (m(theta) - m(theta'))^2 / 2, q = 2: eps^(-1 - p/q) calls.
    few, many = integrated_error(200, factor), integrated_error(1600, factor)
    slope = math.log(many / few) / math.log(8)
    # The rate has a logarithm: ln(1600) / ln(200) alone is worth 0.16.
    assert slope == pytest.approx(-2 / 3, abs=0.17)


def test_with_a_window_over_everything_the_error_stays():
    calls = 400
    theta = agents(calls, 1)
    y = torch.sin(2 * math.pi * theta)
    kernel = windows(1.0)
    given = kernel, torch.zeros(1, dtype=REAL), theta
    log = run_agents(*given, lambda t, x: x - y[t], lambda t: 1 / (t + 1))
    grid = (torch.arange(200, dtype=REAL)[:, None] + 0.5) / 200
    error = (models(log, grid, kernel) - torch.sin(2 * math.pi * grid)).square().mean()
    assert float(error) / 2 > 0.2  # a quarter, the variance of a sine over two


def test_calls_grow_as_proposition_2_says():
    p, q = 1, 2

    def mass(eps):
        return 2 * (eps / 2) ** (1 / q)

    known = {"diameter": 3.0, "bound": 2.0}
    for eps in (1e-2, 1e-3):
        one = infinite.one_agents_calls(eps, mass=mass(eps), **known)
        half = infinite.one_agents_calls(eps / 16, mass=mass(eps / 16), **known)
        assert half / one == pytest.approx(16 ** (2 + p / q))
        masses = torch.full((5,), mass(eps), dtype=REAL)
        both = infinite.all_agents_calls(eps, masses, **known)
        assert both == pytest.approx(one)


def test_where_agents_are_dense_few_calls_suffice_and_not_many_as_printed():
    # Twice the density around an agent: half the calls until enough of its like wake.
    known = {"eps": 0.1, "diameter": 1.0, "bound": 1.0}
    sparse = infinite.one_agents_calls(mass=0.1, **known)
    dense = infinite.one_agents_calls(mass=0.2, **known)
    assert dense == pytest.approx(sparse / 2)
    printed = {density: density * 0.1 ** (-2 - 1 / 2) for density in (1.0, 2.0)}
    assert printed[2.0] > printed[1.0]


# Refusals.


def test_what_cannot_be_a_law_is_refused():
    points = agents(3)
    with pytest.raises(InputError, match="`masses` must be positive and sum to 1"):
        nodes(points, torch.tensor([0.5, 0.5, 0.5]), closer_than(0.1))
    refuses("`half_width` must be greater than 0", windows, 0.0)
    refuses("`high` must be greater than 1", windows, 0.1, low=1.0, high=1.0)


def test_an_agent_that_is_near_nobody_is_refused():
    third = torch.full((3,), 1 / 3, dtype=REAL)
    kernel = nodes(torch.zeros(3, 1, dtype=REAL), third, closer_than(0.1))
    with pytest.raises(InputError, match="`near` must join agent 1 to at least"):
        kernel(torch.tensor([[0.0], [1.0]], dtype=REAL), agents(2) * 0)
