"""Claims about statistical preconditioning, SPAG and DANE."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch.testing import assert_close

from coterie import models, seeds
from coterie.algorithms.dane import dane
from coterie.algorithms.fedavg import fedavg
from coterie.algorithms.preconditioned_gradient import preconditioned_gradient
from coterie.algorithms.spag import spag
from coterie.checks import InputError
from coterie.data.federation import Table, federate
from coterie.study.ingredients import RECIPES, Context, is_from_truth
from coterie.types import traffic_of
from coterie_theory.curvature.preconditioning import relative_condition
from support import quadratics
from support.plain_clients import mine
from support.quadratics import REAL
from support.refusals import refuses
from support.rounds import simulate

N, D, LAM = 3, 4, 0.05
SIZES = torch.tensor([30, 10, 20])
FIRST = torch.tensor([True, False, False])


def federation(kind: str = "regression", same: bool = False):
    """Three clients of one law; `same` gives all of them the data of the first."""
    rng = torch.Generator().manual_seed(0)
    scale = torch.tensor([1.0, 0.5, 0.25, 0.1], dtype=REAL)
    sizes = [30, 30, 30] if same else SIZES.tolist()
    x = torch.randn(sum(sizes), D, generator=rng, dtype=REAL) * scale
    y = x @ torch.tensor([1.0, -2.0, 1.0, 3.0], dtype=REAL)
    y = y + 0.3 * torch.randn(len(y), generator=rng, dtype=REAL)
    if same:
        x, y = x[:30].repeat(3, 1), y[:30].repeat(3)
    owner = torch.arange(N).repeat_interleave(torch.tensor(sizes))
    y = (y > 0).to(REAL) if kind == "binary" else y
    # Nobody looks at validation and test data, which are the training data again.
    role = torch.arange(3).repeat_interleave(len(x))
    table = Table("toy", x.repeat(3, 1), y.repeat(3), kind, 1)
    return federate(table, owner.repeat(3), role)


def mean_loss(simulation, sizes, x) -> float:
    """sum_k p_k f_k(x) + LAM / 2 |x|^2."""
    losses = simulation.evaluate(x.expand(N, D).contiguous(), "train")["loss"]
    return float((sizes.to(REAL) * losses).sum() / sizes.sum() + LAM / 2 * x @ x)


def trained(method, simulation, rounds: int, x=None):
    x = torch.zeros(N, D, dtype=REAL) if x is None else x
    state = method.init(x, simulation.at(0, purpose="init"))
    states, sent = [state], []
    for t in range(1, rounds + 1):
        oracle = simulation.at(t)
        state, _ = method.step(state, oracle, seeds.generator(0, t))
        states.append(state)
        sent.append((oracle.gradients, traffic_of(oracle.sent)))
    return states, sent


def hessians(data):
    """H_k of |x'a - y|^2, their mean with LAM, and where that has its minimum."""
    h, b = quadratics.hessians(data)
    share = data.train.size.to(REAL) / data.train.size.sum()
    mean = torch.einsum("k,kde->de", share, h) + LAM * torch.eye(D, dtype=REAL)
    return h, mean, torch.linalg.solve(mean, share @ b)


def test_for_quadratics_a_round_is_the_newton_like_step_of_the_reference():
    data = federation()
    h, mean, best = hessians(data)
    method = preconditioned_gradient(SIZES, FIRST, mu=0.3, weight_decay=LAM, lr=0.8)
    states, _ = trained(method, simulate(data), 3)
    x, phi = torch.zeros(D, dtype=REAL), h[0] + (LAM + 0.3) * torch.eye(D, dtype=REAL)
    for _ in range(3):
        x = x - 0.8 * torch.linalg.solve(phi, mean @ (x - best))
    assert_close(states[-1].x, x.expand(N, D), rtol=1e-8, atol=1e-9)


def test_with_all_data_as_reference_a_quadratic_is_solved_in_one_round():
    data = federation(same=True)
    *_, best = hessians(data)
    method = preconditioned_gradient(data.train.size, FIRST, mu=0.0, weight_decay=LAM)
    states, _ = trained(method, simulate(data), 1)
    assert_close(states[-1].x, best.expand(N, D), rtol=1e-8, atol=1e-9)


def test_dane_of_equal_clients_is_the_same_method():
    data = federation(same=True)
    sizes = data.train.size
    settings = {"mu": 0.2, "weight_decay": LAM}
    ours, _ = trained(
        preconditioned_gradient(sizes, FIRST, **settings), simulate(data), 3
    )
    theirs, _ = trained(dane(sizes, **settings), simulate(data), 3)
    assert_close(ours[-1].x, theirs[-1].x, rtol=1e-8, atol=1e-9)


def test_dane_averages_the_newton_like_steps_of_all():
    data = federation()
    h, mean, best = hessians(data)
    states, sent = trained(dane(SIZES, mu=0.3, weight_decay=LAM), simulate(data), 2)
    x, eye = torch.zeros(D, dtype=REAL), torch.eye(D, dtype=REAL)
    for _ in range(2):
        g = mean @ (x - best)
        steps = [torch.linalg.solve(part + (LAM + 0.3) * eye, g) for part in h]
        x = x - sum(
            s * p for s, p in zip(SIZES.to(REAL) / SIZES.sum(), steps, strict=True)
        )
    assert_close(states[-1].x, x.expand(N, D), rtol=1e-8, atol=1e-9)
    assert all(traffic.server == 4 * N * D for _, traffic in sent)


def test_a_large_mu_is_gradient_descent_with_its_inverse_as_step():
    data = federation("binary")
    mu = 1e5
    ours, _ = trained(preconditioned_gradient(SIZES, FIRST, mu=mu), simulate(data), 3)
    method = fedavg(SIZES, lr=1 / mu, steps=1)
    theirs, _ = trained(method, simulate(data), 3)
    assert_close(mu * ours[-1].x, mu * theirs[-1].x, rtol=1e-4, atol=1e-6)


def test_logistic_losses_obey_the_rate_where_mu_covers_the_hessians():
    """mu is above all deviations: l'' <= 1/4, and |x| is small here."""
    data = federation("binary")
    a = [data.features[mine(data, k)] for k in range(N)]
    whole = torch.cat(a)
    off = torch.linalg.matrix_norm(a[0].T @ a[0] / 30 - whole.T @ whole / 60, 2)
    mu = float(0.25 * off + 0.05)
    kappa = relative_condition(mu, LAM)
    method = preconditioned_gradient(SIZES, FIRST, mu=mu, weight_decay=LAM)
    simulation = simulate(data)
    states, _ = trained(method, simulation, 15)
    losses = [mean_loss(simulation, SIZES, s.x[0]) for s in states]
    gaps = [loss - losses[-1] for loss in losses]
    for before, after in pairwise(gaps[:7]):
        assert after <= (1 - 1 / kappa) * before + 1e-12


def test_after_some_rounds_spag_leads_and_gradient_descent_is_last():
    simulation = simulate(federation("binary"))
    settings = {"mu": 0.1, "weight_decay": 0.001}
    methods = [
        spag(SIZES, FIRST, **settings),
        preconditioned_gradient(SIZES, FIRST, **settings),
        fedavg(SIZES, lr=2.0, steps=1, weight_decay=0.001),
    ]
    states = [trained(method, simulation, 16)[0][-1] for method in methods]
    left = [float(gradient_of(simulation, state.x).norm()) for state in states]
    assert left[0] < left[1] < left[2]


def gradient_of(simulation, x) -> torch.Tensor:
    g = simulation.at(0).grads(x.contiguous())
    return (SIZES.to(REAL) @ g) / SIZES.sum() + 0.001 * x[0]


def test_rounds_of_spag_are_those_of_the_recursion_written_out():
    """Quadratics, phi = H_ref + mu: everything in closed form, with A and B apart."""
    data = federation()
    h, mean, best = hessians(data)
    mu = 0.02
    method = spag(SIZES, FIRST, mu=mu, weight_decay=LAM)
    states, _ = trained(method, simulate(data), 8)
    phi, sigma = h[0] + (LAM + mu) * torch.eye(D, dtype=REAL), LAM / (LAM + 2 * mu)

    def apart(x, y):
        return float((x - y) @ phi @ (x - y)) / 2

    x = v = torch.zeros(D, dtype=REAL)
    big_a, big_b, gain = 0.0, 1.0, 1.0
    for state in states[1:]:
        rest, half = gain - sigma, (big_b + big_a * sigma) / 2
        a = (half + (half**2 + rest * big_a * big_b) ** 0.5) / rest
        assert a * a * gain == pytest.approx((big_a + a) * (big_b + a * sigma))
        alpha, beta = a / (big_a + a), a * sigma / (big_b + a * sigma)
        y = ((1 - alpha) * x + alpha * (1 - beta) * v) / (1 - alpha * beta)
        g = a / (big_b + a * sigma) * mean @ (y - best)
        z = (1 - beta) * v + beta * y - torch.linalg.solve(phi, g)
        new = (1 - alpha) * x + alpha * z
        near = (1 - beta) * apart(z, v) + beta * apart(z, y)
        # Distances by a quadratic are convex, so that no round is refused.
        assert apart(new, y) <= alpha**2 * gain * near + 1e-14
        x, v = new, z
        big_a, big_b = big_a + a, big_b + a * sigma
        assert_close(state.x, x.expand(N, D), rtol=1e-6, atol=1e-8)
        assert_close(state.gain, torch.full((N, 1), gain, dtype=REAL))


def test_spag_refuses_a_round_whose_gain_was_too_small_and_doubles_it():
    """Logistic losses, phi = f_ref + (LAM + mu) / 2 |.|^2: D(x+, y) is above its bound
    in some rounds; the mirror step is solved here by Newton's method to the end."""
    data, mu = federation("binary"), 0.1
    features, labels = data.features[mine(data, 0)], data.targets[mine(data, 0)]
    ridge, sigma = LAM + mu, LAM / (LAM + 2 * mu)

    def phi(x):
        scores = features @ x
        fit = torch.nn.functional.binary_cross_entropy_with_logits(scores, labels)
        return fit + ridge / 2 * x @ x

    slope = torch.func.grad(phi)

    def apart(x, y):
        return float(phi(x) - phi(y) - slope(y) @ (x - y))

    method = spag(SIZES, FIRST, mu=mu, weight_decay=LAM, newton=10, inner=10)
    simulation = simulate(data)
    states, _ = trained(method, simulation, 6)
    refused = 0
    for old, new in pairwise(states):
        x, v, ratio, gain = old.x[0], old.v[0], float(old.ratio[0]), float(old.gain[0])
        # a^2 (G - sigma) - a (1 + ratio sigma) - ratio = 0, with B = 1
        a = max(roots(gain - sigma, -(1 + ratio * sigma), -ratio))
        alpha, beta = a / (ratio + a), a * sigma / (1 + a * sigma)
        y = ((1 - alpha) * x + alpha * (1 - beta) * v) / (1 - alpha * beta)
        g = SIZES.to(REAL) @ simulation.at(0).grads(y.repeat(N, 1)) / SIZES.sum()
        g = a / (1 + a * sigma) * (g + LAM * y)
        target, z = (1 - beta) * slope(v) + beta * slope(y) - g, v
        for _ in range(8):
            z = z - torch.linalg.solve(torch.func.hessian(phi)(z), slope(z) - target)
        near = (1 - beta) * apart(z, v) + beta * apart(z, y)
        ahead = (1 - alpha) * x + alpha * z
        counts = apart(ahead, y) <= alpha**2 * gain * near
        refused += not counts
        assert_close(new.x[0], ahead if counts else x, rtol=1e-8, atol=1e-10)
        assert_close(new.v[0], z if counts else v, rtol=1e-8, atol=1e-10)
        assert float(new.gain[0]) == (max(1.0, gain / 2) if counts else 2 * gain)
        after = (ratio + a) / (1 + a * sigma) if counts else ratio
        assert float(new.ratio[0]) == pytest.approx(after)
    assert 0 < refused < 6


def roots(a: float, b: float, c: float) -> tuple[float, float]:
    """The roots of a x^2 + b x + c."""
    away = (b * b - 4 * a * c) ** 0.5
    return (-b - away) / (2 * a), (-b + away) / (2 * a)


def test_only_the_reference_solves_and_only_two_rows_travel_for_each_other_client():
    data = federation()
    newton = preconditioned_gradient(SIZES, FIRST, newton=1, inner=2)
    _, sent = trained(newton, simulate(data), 1)
    (gradients, traffic) = sent[0]
    # Its gradient, that of phi twice, two products, and a look at the new point.
    assert gradients.tolist() == [30 * (1 + 1 + 1 + 2 * 2 + 1), 10, 20]
    assert traffic.peers == 2 * (N - 1) * D and traffic.server == 0


def test_no_reference_sample_is_refused():
    nobody = torch.zeros(N, dtype=torch.bool)
    for method in (preconditioned_gradient, spag):
        refuses("`reference` must be true for", method, SIZES, nobody)
    absent = simulate(federation()).at(1, torch.tensor([False, True, True]))
    for method in (preconditioned_gradient, spag):
        algorithm = method(SIZES, FIRST)
        start = algorithm.init(
            torch.zeros(N, D, dtype=REAL), simulate(federation()).at(0)
        )
        with pytest.raises(InputError, match="client of `reference` must take part"):
            algorithm.step(start, absent, seeds.generator(0))


def test_a_study_names_the_reference_by_its_client():
    data = federation()
    context = Context(data, models.layout(simulate(data).kernel.module), 0)
    recipe, default = RECIPES["reference"]
    assert recipe(default, context).tolist() == [True, False, False]
    assert recipe("2", context).tolist() == [False, False, True]
    refuses("`reference` must be one of 0, 1, 2", recipe, "Chur", context)
    named = replace(data, names=("Chur", "St. Gallen (2)", "largest"))
    for place, name in enumerate(named.names):
        found = recipe(name, context._replace(federation=named))
        assert found.nonzero().flatten().tolist() == [place]
        assert not is_from_truth("reference", name)
