"""Claims of chapter 7 of Even's thesis: walks, MC-SGD, MC-SAG, lower bounds."""

from __future__ import annotations

import itertools
import math

import networkx as nx
import numpy as np
import pytest
import torch

from coterie.checks import InputError
from coterie.graphs import (
    Visits,
    edges_of,
    hitting_time,
    oldest,
    stationary_law,
    transition,
)
from coterie_theory.decentralised import tokens
from coterie_theory.decentralised.chains import (
    mixing_time,
    paths,
    relaxation_time,
)
from coterie_theory.decentralised.tokens import TokenProblem
from support.cover_times import cover_time

REAL = torch.float64


def chain_of(kind: str, text: str, n: int) -> torch.Tensor:
    return transition(kind, edges_of(text, n), n)


REVERSIBLE = [
    chain_of(kind, text, n)
    for kind in ("lazy", "metropolis")
    for text, n in (("ring", 9), ("star", 6), ("line", 7), ("complete", 5))
]


# Times of walks.


@pytest.mark.parametrize("chain", REVERSIBLE)
def test_lemmas_on_times_hold_on_small_graphs(chain):
    smallest = float(stationary_law(chain).min())
    relaxation, mixing = relaxation_time(chain), mixing_time(chain)
    assert mixing <= tokens.reversible_mixing(relaxation, smallest)
    quarter = tokens.reversible_mixing(relaxation, smallest, eps=0.25)
    assert mixing_time(chain, 0.25) <= quarter
    hitting = hitting_time(chain)
    assert hitting <= tokens.hitting_bound(mixing, smallest)
    rng = torch.Generator().manual_seed(0)
    covered = cover_time(chain, rng, runs=60)
    assert covered <= 1.2 * tokens.cover_bound(
        hitting, len(chain)
    )  # a sixth for chance


@pytest.mark.parametrize(
    ("graph", "degree"),
    [
        (nx.cycle_graph(9), 2),
        (nx.cycle_graph(10), 2),
        (nx.complete_graph(7), 6),
        (nx.hypercube_graph(4), 4),
        (nx.grid_2d_graph(5, 5, periodic=True), 4),
    ],
)
def test_hitting_times_of_symmetric_graphs_are_below_lemma_7_2_3(graph, degree):
    named = nx.convert_node_labels_to_integers(graph)
    edges, diameter = torch.tensor(list(named.edges)), nx.diameter(graph)
    bound = tokens.regular_hitting_bound(len(edges), diameter, degree)
    assert bound == len(graph) * diameter
    assert hitting_time(transition("simple", edges, len(graph))) <= bound + 1e-9


def test_matthews_with_one_term_less_fails_for_coupons():
    """All n of n coupons take n H_n draws, and the first client is one of them."""
    n, hitting = 6, hitting_time(chain_of("iid", "complete", 6))
    exact = n * sum(1 / k for k in range(1, n + 1))
    assert tokens.cover_bound(hitting, n) == pytest.approx(exact)
    printed = hitting * sum(1 / k for k in range(1, n))
    rng = torch.Generator().manual_seed(1)
    found = cover_time(chain_of("iid", "complete", n), rng, runs=2000)
    assert found == pytest.approx(exact, abs=0.5) and found > printed + 0.5


def test_the_second_half_of_lemma_7_2_1_is_not_the_first_at_half_of_the_smallest():
    """It prints 1/2 for 2 in the logarithm: ln(pi_min^-2 / 2) for ln(2 pi_min^-2)."""
    relaxation, smallest = 50.0, 0.1
    first = tokens.reversible_mixing(relaxation, smallest, eps=smallest / 2)
    assert tokens.reversible_mixing(relaxation, smallest) == first
    printed = math.ceil(relaxation * math.log(smallest**-2 / 2))
    assert first - printed == pytest.approx(50 * math.log(4), abs=1)


# MC-SGD with bounded dissimilarity.


@pytest.mark.parametrize("chain", REVERSIBLE)
def test_gradients_of_a_walk_that_has_mixed_obey_lemmas_7_b_1_and_7_b_2(chain):
    """For any gradients of the clients, from the start that remembers most."""
    law, dense = stationary_law(chain), chain.to_dense().double()
    rng = torch.Generator().manual_seed(3)
    for eps in (0.5, 0.1):
        tau = mixing_time(chain, eps * float(law.min()))
        powers = torch.linalg.matrix_power(dense, tau)  # rows are laws of v_t
        for far in (0.0, 2.0):
            g = torch.randn(len(law), 3, generator=rng, dtype=REAL) + far
            mean = law @ g
            square, spread = mean.square().sum(), law @ (g - mean).square().sum(1)
            off = (powers @ g - mean).square().sum(1)
            assert float(off.max()) <= float(2 * eps**2 * (square + spread))
            if eps == 0.5:  # pi_min / 2
                sizes = powers @ g.square().sum(1)
                assert float(sizes.max()) <= float(3 * spread + 2 * square)


def test_steps_of_theorem_7_3_by_hand():
    problem = TokenProblem(10_000, 10.0, beta=2.0, mu=0.5, variance=4.0)
    tau = 10 * math.log(10_000)
    assert problem.delay == pytest.approx(tau)
    noisy = math.sqrt(0.001 / (10_000 * 2 * tau * 4))
    assert tokens.smooth_step(0.001, problem) == pytest.approx(noisy)
    assert tokens.smooth_step(1e9, problem) == pytest.approx(1 / (96 * tau))
    assert tokens.pl_step(3.0, problem) == pytest.approx(1 / (128 * (5 * tau + 1)))
    long = TokenProblem(10**9, 10.0, beta=2.0, mu=0.5, variance=4.0)
    step = 8 * math.log(10**9 * 7 / 4) / (0.5 * 10**9)
    assert tokens.pl_step(3.0, long) == pytest.approx(step)
    quiet = TokenProblem(10_000, 10.0, beta=2.0, mu=0.5)
    assert tokens.smooth_step(3.0, quiet) == pytest.approx(1 / (96 * tau))
    assert tokens.pl_step(3.0, quiet) == tokens.pl_step(1e9, quiet)
    rate = 2 * 3 * 10 / 1e4 + (math.sqrt(2 * 3 * 4 * 10) + 4) / 100
    assert tokens.smooth_rate(3.0, problem) == pytest.approx(rate)


def test_the_noise_of_theorem_7_3_as_printed_in_its_proof_lacks_the_delay():
    """Two states that flip rarely: more noise stays than 7 sqrt(L F_0 / T)."""
    flip, steps, start = 1e-4, 10**9, 0.5  # f = x^2 / 2 and x_0 = 1; sigma_bar = 1
    chain = torch.tensor([[1 - flip, flip], [flip, 1 - flip]], dtype=REAL)
    problem = TokenProblem(steps, mixing_time(chain), variance=1.0)
    lr = tokens.smooth_step(start, problem)
    assert lr * steps > 50  # the start is forgotten for most of the time
    stays = 0.9 * tokens.two_state_moment(flip, lr)  # of |grad f|^2 = x^2
    printed = 7 * math.sqrt(start / steps)
    assert stays > 2 * printed
    assert stays < tokens.smooth_noise(start, problem)


def test_the_step_of_theorem_7_3_2_as_printed_lacks_l_and_diverges():
    beta, x = 1000.0, {"ours": 1.0, "printed": 1.0}
    problem = TokenProblem(1000, 0.01, beta=beta, mu=beta)
    step = {"ours": tokens.pl_step(1.0, problem)}
    step["printed"] = step["ours"] * beta
    for name, lr in step.items():
        for _ in range(1000):
            x[name] *= 1 - lr * beta
    assert abs(x["ours"]) < 0.1 < 1e3 < abs(x["printed"])


def test_the_constant_of_theorem_7_3_2_is_one_in_384():
    """Gradient descent with the step of the theorem is slower than e^{-384 T/...}."""
    problem = TokenProblem(400, 1.0, beta=1.0, mu=1.0)
    lr = tokens.pl_step(0.5, problem)
    gap = 0.5 * (1 - lr) ** 800
    printed = 0.5 * math.exp(-384 * 400 / problem.delay)
    assert gap > 1e10 * printed
    assert gap <= tokens.pl_rate(0.5, problem)


# MC-SGD whose losses are strongly convex.


def walk_of_quadratics(seed: int, mu: float = 0.3, steps: int = 30):
    """Any sequence of six losses in the plane with curvatures from mu to 1."""
    rng = np.random.default_rng(seed)
    n, lr = 6, rng.uniform(0.05, 0.95)
    turn = np.linalg.qr(rng.normal(size=(n, 2, 2)))[0]
    a = turn * rng.uniform(mu, 1, (n, 1, 2)) @ turn.transpose(0, 2, 1)
    c = rng.normal(size=(n, 2)) * rng.choice([0.1, 1.0, 10.0])
    best = np.linalg.solve(a.mean(0), c.mean(0))
    path = rng.integers(n, size=steps)
    if seed % 3 == 0:  # in blocks, where noise does not cancel
        path = np.sort(path)
    return a, c, best, path, lr, best + rng.normal(size=2)


@pytest.mark.parametrize("seed", range(40))
def test_theorem_7_4_holds_along_any_sequence(seed):
    a, c, best, path, lr, x = walk_of_quadratics(seed)
    noise = torch.tensor(np.stack([a[v] @ best - c[v] for v in path]))
    distance = float(((x - best) ** 2).sum())
    for v in path:
        x = x - lr * (a[v] @ x - c[v])
    left = float(((x - best) ** 2).sum())
    options = {"lr": lr, "beta": 1.0, "mu": 0.3}
    assert left <= tokens.pathwise_bound(noise, distance, **options)
    assert left <= tokens.stated_pathwise_bound(noise, distance, **options)


def test_pathwise_bounds_by_hand():
    noise = torch.tensor([[1.0], [-3.0], [2.0]], dtype=REAL)  # sums 0, -1, 2
    options = {"lr": 0.5, "beta": 1.0, "mu": 0.4}
    late = 0.125 * (0.8 * 1 + 1 * 4)
    found = tokens.pathwise_bound(noise, 2.0, **options)
    assert found == pytest.approx(2 * 0.8**3 * 2 + late)
    stated = 2 * 0.125 * 3 / 0.4 * (0.64 * 1 + 0.8 * 4)
    found = tokens.stated_pathwise_bound(noise, 2.0, **options)
    assert found == pytest.approx(2 * 0.8**3 * 2 + stated)


def test_the_exponent_in_the_proof_of_theorem_7_4_is_one_less():
    """One step of y_{t+1} = y_t - gamma grad f(x^*): |x_1 - y_1|^2 is above it."""
    lr, beta, mu, away = 0.99, 1.0, 0.9, 1.0  # x_0 = y_0 = x^* + away, f = x^2 / 2
    left = (lr * beta * away) ** 2  # x_1 - y_1 = -gamma L (x_0 - x^*)
    printed = lr * beta * (1 - lr * mu) * away**2
    assert left > printed
    assert left <= lr * beta * away**2
    # The bound for one gradient of size 1 at x^*, which counts with (1 - gamma mu)^0.
    one = torch.ones(1, 1, dtype=REAL)
    found = tokens.pathwise_bound(one, away**2, lr=lr, beta=beta, mu=mu)
    first = 2 * (1 - lr * mu) * (away**2 + lr**2)
    assert found == pytest.approx(first + lr**3 * beta)


@pytest.mark.parametrize("seed", range(20))
def test_where_losses_have_the_same_minimum_any_walk_is_linear(seed):
    a, c, _, path, lr, x = walk_of_quadratics(seed)
    best = np.array([0.5, -2.0])
    c = a @ best
    distance = float(((x - best) ** 2).sum())
    for t, v in enumerate(path, 1):
        x = x - lr * (a[v] @ x - c[v])
        bound = tokens.interpolation_bound(distance, t, lr=lr, mu=0.3)
        assert float(((x - best) ** 2).sum()) <= bound


@pytest.mark.parametrize("chain", REVERSIBLE[:2])
def test_lemma_7_4_2_holds_from_every_start(chain):
    rng = torch.Generator().manual_seed(2)
    full, law, n = chain.to_dense(), stationary_law(chain), len(chain)
    g = torch.randn(n, 2, generator=rng, dtype=REAL)
    g = g - law @ g  # their mean is 0 at the optimum
    steps = 25
    powers = [torch.linalg.matrix_power(full, k) for k in range(steps)]
    total = torch.zeros(n, dtype=REAL)
    for s in range(steps):
        for t in range(steps):
            later = powers[abs(t - s)] @ g
            total += powers[min(s, t)] @ (g * later).sum(1)
    variance = float(g.square().sum(1).max())
    problem = TokenProblem(steps, mixing_time(chain, 0.25), variance=variance)
    assert float(total.max()) <= tokens.summed_noise_bound(problem)


def second_moment(flip: float, lr: float, steps: int) -> float:
    """E x_T^2 of Proposition 7.4.1 by its definition, x_0 = 1, v_0 stationary."""
    t = np.arange(steps)
    weight = lr * (1 - lr) ** (steps - 1 - t)
    products = (1 - 2 * flip) ** np.abs(t[:, None] - t)
    return (1 - lr) ** (2 * steps) + float(weight @ products @ weight)


@pytest.mark.parametrize(("flip", "lr"), [(0.1, 0.05), (0.02, 0.1), (0.5, 0.3)])
def test_the_variance_of_two_states_is_in_closed_form(flip, lr):
    exact = second_moment(flip, lr, 400)
    assert tokens.two_state_moment(flip, lr) == pytest.approx(exact, rel=1e-6)


def test_two_states_have_twice_the_printed_variance():
    assert tokens.two_state_moment(0.1, 0.05) == pytest.approx(0.18803, abs=5e-6)
    assert tokens.two_state_moment(0.5, 0.3) == pytest.approx(0.3 / 1.7)
    for flip in (0.01, 0.001):
        lr = 1e-4 * flip
        printed = lr / (4 * flip)
        twice = 2 * (1 - flip) * printed
        assert tokens.two_state_moment(flip, lr) == pytest.approx(twice, rel=1e-3)


def test_rarer_flips_take_more_steps_and_not_fewer_as_printed():
    """T = Omega(1 / (p eps)), printed as p / eps, for the best of all steps."""

    def steps_needed(flip: float) -> int:
        grid = np.geomspace(0.01, 0.9, 25)
        return next(
            T
            for T in range(1, 400)
            if min(second_moment(flip, lr, T) for lr in grid) <= 0.2
        )

    assert steps_needed(0.05) > 1.5 * steps_needed(0.2)
    # In the limit, a step with half the moment is half as long for flips half as rare.
    for flip in (0.01, 0.02):
        small = 0.2 * flip / (1 - flip)
        assert tokens.two_state_moment(flip, small) == pytest.approx(0.1, rel=0.1)


def test_a_token_that_hardly_moves_is_far_from_the_optimum_not_from_its_start():
    """Proposition 7.4.1 prints |x_T - x_0|^2, which is 0 for the smallest steps."""
    tiny = 1e-9
    moved = second_moment(0.1, tiny, 50) - (1 - tiny) ** 100  # and the mean's own way
    assert moved + (1 - (1 - tiny) ** 50) ** 2 < 1e-12
    assert second_moment(0.1, tiny, 50) == pytest.approx(1.0)
    # For ever, it would be near the optimum: the moment is about gamma 0.9 / 0.2.
    assert tokens.two_state_moment(0.1, tiny) == pytest.approx(4.5e-9)


def test_the_printed_recursion_of_two_states_returns_after_one_step():
    """z_{k+1} = p z_k + (1 - p)(1 - z_k) is of a walk that flips with chance 1 - p."""
    flip, z, printed = 0.1, 1.0, 1.0
    for k in range(1, 6):
        z = (1 - flip) * z + flip * (1 - z)
        printed = flip * printed + (1 - flip) * (1 - printed)
        exact = (1 + (1 - 2 * flip) ** k) / 2
        assert z == pytest.approx(exact)
    assert printed < 0.5 < exact
    # With a step of 1, x_{k+1} is the optimum of v_k: its moment is 1 for every walk.
    # For others, E v_0 v_k = r^k of the right recursion gives the moment.
    lr, r = 0.5, 1 - 2 * flip
    sums = sum(
        (1 - lr) ** (j + k) * r ** abs(j - k) for j in range(60) for k in range(60)
    )
    assert tokens.two_state_moment(flip, lr) == pytest.approx(lr**2 * sums)


def test_noise_within_clients_does_not_depend_on_the_walk():
    def noise(mixing: float, variance: float, local: float) -> float:
        problem = TokenProblem(10**6, mixing, beta=2.0, mu=0.5, variance=variance)
        return tokens.strongly_convex_rate(0.0, problem, local=local)

    assert noise(10.0, 0.0, 3.0) == noise(1000.0, 0.0, 3.0)
    assert noise(1000.0, 3.0, 0.0) == pytest.approx(100 * noise(10.0, 3.0, 0.0))
    assert noise(5.0, 0.0, 3.0) == pytest.approx(2 * 3 / (0.125 * 10**6))


def test_the_step_of_corollary_7_4_1_by_hand():
    problem = TokenProblem(1000, 5.0, beta=2.0, mu=0.5, variance=3.0)
    step = math.log(max(2, 0.125 * 1000 * 7 / (2 * (1 + 15)))) / 500
    assert tokens.strongly_convex_step(7.0, problem, local=1.0) == pytest.approx(step)
    assert tokens.strongly_convex_step(0.0, problem) == pytest.approx(math.log(2) / 500)
    quiet = TokenProblem(1000, 5.0, beta=2.0, mu=0.5)
    assert tokens.strongly_convex_step(7.0, quiet) == 0.5


# MC-SAG.


class Sag:
    """MC-SAG on quadratics f_v = x'A_v x / 2 - c_v x along a walk, by a plain loop."""

    def __init__(self, n: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        turn = np.linalg.qr(rng.normal(size=(n, 4, 4)))[0]
        self.a = turn * rng.uniform(0.2, 1, (n, 1, 4)) @ turn.transpose(0, 2, 1)
        self.c = rng.normal(size=(n, 4))
        self.n, self.x = n, np.zeros(4)

    def gap(self, x: np.ndarray) -> float:
        a, c = self.a.mean(0), self.c.mean(0)
        best = np.linalg.solve(a, c)
        return float((x - best) @ a @ (x - best) / 2)

    def gradient(self, x: np.ndarray) -> np.ndarray:
        return self.a.mean(0) @ x - self.c.mean(0)

    def went(self, path, step, *, warm: bool):
        """(x_t, h_bar_{t+1}, gamma_t, x_{d_v(t)}) at each step."""
        x, n = self.x, self.n
        kept = -self.c.copy() if warm else np.zeros((n, 4))
        points, visits = np.tile(x, (n, 1)), Visits([0] * n)
        for t, v in enumerate(path):
            kept[v], points[v] = self.a[v] @ x - self.c[v], x
            mean, lr = kept.mean(0), step(oldest(visits, v, t))
            yield x, mean, lr, points.copy()
            x = x - lr * mean


def cycle_walk(steps: int, seed: int) -> list[int]:
    rng = torch.Generator().manual_seed(seed)
    start = torch.zeros(1, dtype=torch.long)
    return paths(chain_of("lazy", "ring", 12), start, steps, rng)[:, 0].tolist()


@pytest.mark.parametrize("seed", range(4))
def test_lemma_7_5_1_holds_at_every_step(seed):
    """For gradients kept at their last points; the largest step that is allowed."""
    sag = Sag(12, seed)
    seen = list(sag.went(cycle_walk(150, seed), lambda delay: 0.5, warm=True))
    for (x, mean, lr, points), (after, *_) in itertools.pairwise(seen):
        given = (torch.tensor(v) for v in (sag.gradient(x), mean, points - x))
        bound = tokens.sag_descent(lr, *given)
        assert sag.gap(after) - sag.gap(x) <= bound + 1e-12 * (1 + sag.gap(x))


@pytest.mark.parametrize("warm", [True, False])
def test_theorem_7_6_holds_on_a_cycle_of_twelve(warm):
    hitting = hitting_time(chain_of("lazy", "ring", 12))
    cover = tokens.cover_bound(hitting, 12)
    sag, steps = Sag(12, 0), 800
    rule = tokens.warm_sag_step if warm else tokens.sag_step
    least = []
    for s in range(3):
        went = sag.went(cycle_walk(steps, s), lambda d: rule(d, hitting), warm=warm)
        least.append(min(float((sag.gradient(x) ** 2).sum()) for x, *_ in went))
    times = {"hitting": hitting, "cover": cover}
    start, apart = sag.gap(sag.x), float((sag.c**2).sum(1).mean())
    bound = tokens.warm_sag_bound(start, steps, **times)
    if not warm:
        bound = tokens.sag_bound(start, apart, steps, **times)
    assert np.mean(least) <= bound


def test_steps_of_mc_sag_by_hand():
    assert tokens.warm_sag_step(10.0, 15.0, beta=2.0) == pytest.approx(1 / 100)
    assert tokens.sag_step(10.0, 15.0, beta=2.0) == pytest.approx(1 / 200)
    times = {"hitting": 5.0, "cover": 15.0, "beta": 2.0}
    assert tokens.warm_sag_bound(3.0, 100, **times) == pytest.approx(4.8)
    assert tokens.sag_bound(3.0, 7.0, 100, **times) == pytest.approx(9.6 + 2.1)


def test_theorem_7_6_2_as_printed_depends_on_the_unit_of_the_loss():
    """Losses times c: gradients squared grow by c^2, so must what bounds them."""

    def printed_bound(c: float) -> float:
        delta = c * 3.0 + c**2 * 7.0 / 8
        return 16 * c * delta * 5.0 * math.log(10) / 100

    def ours(c: float) -> float:
        times = {"hitting": 5.0, "cover": 15.0, "beta": c}
        return tokens.sag_bound(c * 3.0, c**2 * 7.0, 100, **times)

    assert ours(10.0) == pytest.approx(100 * ours(1.0))
    assert printed_bound(10.0) > 200 * printed_bound(1.0)


def test_theorem_7_6_1_as_printed_follows_from_six_clients_on():
    """8 ln n is at least 4 (1 + H_n) for n >= 6; for two it is less than half."""

    def ours(n: int) -> float:
        return tokens.warm_sag_bound(
            1.0, 1, hitting=1.0, cover=tokens.cover_bound(1.0, n)
        )

    assert all(8 * math.log(n) >= ours(n) for n in range(6, 2000))
    assert 8 * math.log(2) < 0.6 * ours(2)


def test_lemma_7_5_3_bounds_the_sum_of_delays():
    chain, steps, sums = chain_of("lazy", "ring", 8), 400, []
    rng = torch.Generator().manual_seed(3)
    for path in paths(chain, torch.zeros(20, dtype=torch.long), steps, rng).T.tolist():
        visits = Visits([0] * 8)
        sums.append(sum(oldest(visits, v, t) for t, v in enumerate(path[:steps])))
    bound = tokens.cover_bound(hitting_time(chain), 8)
    assert np.mean(sums) <= tokens.delay_bound(steps, bound)
    assert np.mean(sums) <= 1.1 * tokens.delay_bound(steps, cover_time(chain, rng))


# Lower bounds.


def hard_path(seed: int) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    start = torch.ones(1, dtype=torch.long)
    return paths(chain_of("lazy", "ring", 5), start, 60, rng)[:, 0]


def found_by(path, *, sag: bool, dimension: int = 12):
    """Coordinates of x after each step that are not 0, of the hard instance."""
    a, c = tokens.hard_instance(dimension)
    x, kept = torch.zeros(dimension, dtype=REAL), torch.zeros(5, dimension, dtype=REAL)
    for at in path.tolist():
        whose = {0: 0, 2: 1}.get(at)
        g = torch.zeros_like(x) if whose is None else a[whose] @ x - c[whose]
        kept[at] = g
        x = x - (0.13 * kept.mean(0) if sag else 0.13 * g)
        yield int((x != 0).nonzero().max()) + 1 if (x != 0).any() else 0


@pytest.mark.parametrize("sag", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_coordinates_of_the_hard_instance_are_found_one_by_one(seed, sag):
    path = hard_path(seed)
    known = tokens.alternations(path, 0, 2).tolist()
    for found, allowed in zip(found_by(path, sag=sag), known, strict=True):
        assert found <= min(allowed, 12)
    assert known[-1] > 3


def test_times_of_the_lower_bound_wait_for_both_ends_in_turn():
    """Printed, every wait but the first is for w, and v finds a coordinate between."""
    path = torch.tensor([0, 2, 0])
    assert list(found_by(path, sag=False)) == [1, 2, 3]
    assert tokens.alternations(path, 0, 2).tolist() == [1, 2, 3]
    printed = int(path[0] == 0) + int((path[1:] == 2).sum())
    assert printed == 2


def test_without_squares_the_hard_instance_has_no_minimum():
    a, _ = tokens.hard_instance(8)
    whole = a.sum(0)
    assert float(torch.linalg.eigvalsh(whole)[0]) > 0
    odd = torch.arange(1, 8, 2)
    whole[odd, odd] -= 2.0  # f_w as the appendix prints it
    assert float(torch.linalg.eigvalsh(whole)[0]) < 0


def test_lower_bounds_by_hand():
    assert tokens.lower_bound(3.0, 100, hitting=10.0, beta=2.0) == pytest.approx(0.06)
    found = tokens.lower_bound(3.0, 100, hitting=10.0, beta=2.0, mu=0.5)
    assert found == pytest.approx(6 * math.exp(-5))
    # And what MC-SAG promises is above it, for losses that are smooth alone.
    for steps in (100, 10_000):
        times = {"hitting": 10.0, "cover": 30.0}
        lower = tokens.lower_bound(1.0, steps, hitting=10.0)
        assert lower < tokens.warm_sag_bound(1.0, steps, **times)


# Messages and time.


def test_tokens_with_memory_send_least_where_graphs_are_long():
    sizes = (8, 16, 32)
    found = []
    for n in sizes:
        chain = chain_of("lazy", "ring", n)
        times = {"mixing": mixing_time(chain), "hitting": hitting_time(chain)}
        found.append(tokens.communications(0.1, clients=n, edges=n, **times))
    for sent in found:
        assert sent["token_sag"] < sent["gossip"] < sent["walkman"]
    slope = math.log2(found[2]["gossip"] / found[1]["gossip"])
    assert math.log2(found[2]["token_sag"] / found[1]["token_sag"]) == pytest.approx(2)
    assert 3 <= slope < 3.6  # and the logarithm that tau_mix has here
    assert found[0]["token_sgd"] == pytest.approx(
        100 * mixing_time(chain_of("lazy", "ring", 8))
    )


def test_a_token_takes_the_mean_time_and_gossip_the_longest():
    chain = chain_of("lazy", "star", 5)
    rng = torch.Generator().manual_seed(0)
    seconds = torch.rand(5, 5, generator=rng, dtype=REAL)
    seconds[0, 4] = 30.0
    path = paths(chain, torch.zeros(200, dtype=torch.long), 400, rng)
    spent = seconds[path[:-1], path[1:]]
    means = spent.mean(0)
    error = float(means.std()) / math.sqrt(200)
    assert float(means.mean()) == pytest.approx(
        tokens.hop_time(chain, seconds), abs=4 * error
    )
    assert tokens.round_time(chain, seconds) == 30.0
    apart = seconds.clone()
    apart[1, 2] = 99.0  # who are no neighbours
    assert tokens.round_time(chain, apart) == 30.0


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: TokenProblem(0, 1.0), "`steps` must be at least 1"),
        (lambda: TokenProblem(10, 1.0, mu=2.0), "`mu` must be at most 1"),
        (
            lambda: tokens.smooth_step(1.0, TokenProblem(50, 40.0)),
            "`steps` must be at least 296",
        ),
        (
            lambda: tokens.pl_step(1.0, TokenProblem(50, 1.0)),
            "`mu` must be greater than 0",
        ),
        (
            lambda: tokens.pathwise_bound(
                torch.zeros(2, 1), 1.0, lr=1.0, beta=1.0, mu=0.1
            ),
            "`lr` must be less than 1",
        ),
    ],
)
def test_numbers_that_cannot_belong_together_are_refused(call, text):
    with pytest.raises(InputError, match=text):
        call()
