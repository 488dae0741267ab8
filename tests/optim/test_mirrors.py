"""Claims about solving in the geometry of a loss, and about sharpness."""

from __future__ import annotations

import torch
from torch.testing import assert_close

from coterie.optim import Newton, conjugate_gradients, inverse_mirror, sharpness

REAL = torch.float64


class Bowls:
    """Clients with losses sum cosh(x), or quadratic ones with these Hessians."""

    def __init__(self, h=None):
        self.h, self.asked = h, 0

    def grad(self, x):
        return x.sinh() if self.h is None else (self.h @ x[..., None])[..., 0]

    def hvp(self, x, u):
        self.asked += 1
        return x.cosh() * u if self.h is None else (self.h @ u[..., None])[..., 0]

    def whole(self):
        return self

    def unused(self, *_):
        raise NotImplementedError

    loss = losses = same_batch = validation = unused
    evaluate = class_counts = stream = unused


def matrices(n=3, d=4):
    rng = torch.Generator().manual_seed(0)
    root = torch.randn(n, d, d, generator=rng, dtype=REAL)
    return root @ root.mT + torch.eye(d, dtype=REAL)


def test_as_many_steps_as_columns_solve_every_row():
    h = matrices()
    b = torch.arange(12, dtype=REAL).view(3, 4)
    found = conjugate_gradients(lambda u: (h @ u[..., None])[..., 0], b, steps=4)
    assert_close(found, torch.linalg.solve(h, b), rtol=1e-3, atol=1e-3)


def test_rows_do_not_depend_on_each_other():
    h = matrices()
    b = torch.arange(12, dtype=REAL).view(3, 4)
    b[1] = 0
    together = conjugate_gradients(lambda u: (h @ u[..., None])[..., 0], b, steps=3)
    for j in range(3):
        one = conjugate_gradients(
            lambda u, j=j: (h[j] @ u[..., None])[..., 0], b[j : j + 1], steps=3
        )
        assert_close(together[j : j + 1], one)
    assert not together[1].any()


def test_where_curvature_is_negative_the_steepest_direction_is_taken():
    b = torch.ones(1, 2, dtype=REAL)
    assert_close(conjugate_gradients(lambda u: -u, b, steps=5), b)


def test_far_away_newton_steps_are_shortened_until_the_gradient_is_met():
    target = torch.tensor([[30.0, -2.0], [0.0, 5.0]], dtype=REAL)
    x = torch.tensor([[-6.0, 0.0], [4.0, -7.0]], dtype=REAL)
    found = inverse_mirror(Bowls(), x, target, ridge=0.0, solver=Newton(60, 2))
    assert_close(found, target.arcsinh())


def test_sharpness_is_the_eigenvalue_of_largest_size():
    h = matrices()
    h[2] = -h[2]
    expected = torch.linalg.eigvalsh(h)
    expected = torch.stack([expected[0, -1], expected[1, -1], expected[2, 0]])
    clients, zero = Bowls(h), torch.zeros(3, 1, dtype=REAL)
    found = sharpness(clients, zero, torch.zeros(3, 4, dtype=REAL), iterations=200)
    assert_close(found[:, 0], expected, rtol=1e-6, atol=1e-6)
    assert clients.asked == 200
