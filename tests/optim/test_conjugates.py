"""Conjugate gradients by steps on data: the accuracy stated, and closed forms."""

from __future__ import annotations

import math

import pytest
import torch

from coterie.checks import InputError
from coterie.optim.conjugates import ConvexLoss, conjugate_gradient
from coterie_theory.descent.dual import ridge_duals
from support.quadratics import REAL, hessians, quadratics, start
from support.rounds import simulate, solve


class Losses:
    """Clients whose gradients are a function of their points."""

    def __init__(self, grad):
        self.grad = grad

    def whole(self):
        return self

    # What else a client is asked, which no test here does.
    loss = losses = hvp = same_batch = validation = whole
    evaluate = class_counts = stream = whole


def logistic(samples=30, d=4):
    """Gradients of logistic losses with labels of chance, and their smoothness."""
    rng = torch.Generator().manual_seed(0)
    a = torch.randn(3, samples, d, generator=rng, dtype=REAL)
    signs = torch.randint(2, (3, samples), generator=rng).to(REAL) * 2 - 1

    def grad(x):
        chance = torch.sigmoid(-signs * (a @ x[..., None])[..., 0])
        return -(a.mT @ (signs * chance)[..., None])[..., 0] / samples

    largest = torch.linalg.eigvalsh(a.mT @ a / (4 * samples)).max()
    return Losses(grad), float(largest)


@pytest.mark.parametrize("accuracy", [0.5, 0.1, 1e-3])
@pytest.mark.parametrize("decay", [0.03, 1.0])
def test_no_more_of_the_distance_is_left_than_stated(accuracy, decay):
    clients, largest = logistic()
    loss = ConvexLoss(1 / (largest + decay), decay, decay)
    x, y = start(3, 4), start(3, 4).flip(0)
    best = conjugate_gradient(clients, x, y, loss=loss, steps=loss.steps(1e-13))
    torch.testing.assert_close(
        clients.grad(best) + decay * best, y, rtol=1e-9, atol=1e-11
    )
    found = conjugate_gradient(clients, x, y, loss=loss, steps=loss.steps(accuracy))
    left = (found - best).norm(dim=1) / (x - best).norm(dim=1)
    assert (left <= accuracy).all()


def test_steps_grow_with_the_root_of_the_condition_number():
    few, many = ConvexLoss(0.01, 1.0).steps(1e-6), ConvexLoss(0.0001, 1.0).steps(1e-6)
    assert 8 < many / few < 16  # ten, and a logarithm


def test_on_a_ball_one_step_is_exact():
    clients = Losses(lambda x: 2 * (x - 1))
    x, y = start(3, 4), start(3, 4).flip(0)
    loss = ConvexLoss(0.5, 2.0)
    found = conjugate_gradient(clients, x, y, loss=loss, steps=loss.steps(1e-12))
    torch.testing.assert_close(found, 1 + y / 2, rtol=1e-12, atol=1e-12)


def test_on_data_of_clients_it_is_the_solution_of_linear_equations():
    federation = quadratics()
    simulation, (a, b) = simulate(federation), hessians(federation)
    loss = ConvexLoss(1 / 3.2, 1.2, 0.2)
    y, x = start(), torch.zeros_like(start())
    (found,) = simulation.at(1).each(
        conjugate_gradient, x, y, loss=loss, steps=loss.steps(1e-13)
    )
    wanted = solve(a + 0.2 * torch.eye(5, dtype=REAL), b + y)
    torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-11)


def test_ridge_regression_has_a_closed_form():
    rng = torch.Generator().manual_seed(1)
    a, b = (torch.randn(2, 8, *more, generator=rng, dtype=REAL) for more in ((3,), ()))

    def grad(x):
        return (a.mT @ (a @ x[..., None] - b[..., None]))[..., 0] / 8

    smooth = float(torch.linalg.eigvalsh(a.mT @ a / 8).max()) + 0.5
    loss, y = ConvexLoss(1 / smooth, 0.5, 0.5), start(2, 3)
    steps = loss.steps(1e-13)
    found = conjugate_gradient(Losses(grad), 0 * y, y, loss=loss, steps=steps)
    closed = ridge_duals(a, b, decay=0.5)
    wanted = torch.stack([closed(v, y[v]) for v in range(2)])
    torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-11)


def test_a_curvature_above_the_smoothness_is_refused():
    with pytest.raises(InputError, match=r"`curvature` must be at most .* 10, got 11"):
        ConvexLoss(0.1, 11.0).valid()
    assert math.isfinite(ConvexLoss(0.1, 10.0).valid().steps(0.5))
