"""Claims about diagonal linear networks: invariants, limits, gains, sharpness."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from torch.testing import assert_close

from coterie.checks import InputError
from coterie_theory.curvature.implicit_bias import (
    RunGains,
    batch_curvatures,
    gain_bounds,
    hypentropy,
    limit,
    loss_bound,
    mirror,
    network_hessian,
    no_gain,
    scales,
    track_gains,
)
from support.refusals import refuses

REAL = torch.float64
N, D, ALPHA = 5, 12, 0.7


def problem(seed: int = 0, n: int = N, d: int = D):
    rng = torch.Generator().manual_seed(seed)
    features = torch.randn(n, d, generator=rng, dtype=REAL)
    best = torch.zeros(d, dtype=REAL)
    best[:2] = torch.tensor([1.0, -0.7], dtype=REAL)
    return features, features @ best


def train_network(features, targets, lr: float, batch: int, steps: int, seed: int = 0):
    """u, v, beta, gains, gradients and losses of a plain loop over batches."""
    n, d = features.shape
    rng = torch.Generator().manual_seed(seed)
    u, v = torch.full((d,), 2**0.5 * ALPHA, dtype=REAL), torch.zeros(d, dtype=REAL)
    some = torch.rand(steps, n, generator=rng).argsort(1)[:, :batch]
    models, slopes = [], []
    for x, y in zip(features[some], targets[some], strict=True):
        beta = u * v
        g = (x @ beta - y) @ x / batch
        models.append(beta)
        slopes.append(g)
        u, v = u - lr * g * v, v - lr * g * u
    losses = (torch.stack(models) @ features.T - targets).square().mean(1) / 2
    g = torch.cat(slopes)
    each = track_gains(no_gain(g), g, lr)  # those of all steps at once: they add up
    gains = RunGains(*(part.view(steps, d).sum(0) for part in each))
    return u, v, gains, lr * g.view(steps, d).sum(0), losses


@pytest.mark.parametrize("batch", [1, 2, N])
def test_every_step_moves_the_mirror_image_by_the_gradient(batch):
    features, targets = problem()
    alpha = torch.full((D,), ALPHA, dtype=REAL)
    for steps in (1, 7, 40):
        u, v, gains, total, _ = train_network(features, targets, 0.05, batch, steps)
        assert_close(mirror(u * v, alpha, gains), -total, rtol=1e-9, atol=1e-9)


def test_with_the_printed_sign_in_q_the_invariant_does_not_hold():
    features, targets = problem()
    alpha = torch.full((D,), ALPHA, dtype=REAL)
    u, v, _, total, _ = train_network(features, targets, 0.05, N, 40)
    u2, v2 = torch.full((D,), 2**0.5 * ALPHA, dtype=REAL), torch.zeros(D, dtype=REAL)
    printed = no_gain(alpha)
    for _ in range(40):  # q_+-(x) = +-2 x - ln((1 -+ x)^2)
        x = 0.05 * features.T @ (features @ (u2 * v2) - targets) / N
        u2, v2 = u2 - x * v2, v2 - x * u2
        printed = RunGains(
            printed.plus + 2 * x - (1 - x).square().log(),
            printed.minus - 2 * x - (1 + x).square().log(),
        )
    assert_close(u2 * v2, u * v)
    off = (mirror(u * v, alpha, printed) + total).abs().max()
    assert off > 1e-2


def test_two_squares_need_a_half_to_be_the_same_network():
    """beta = (w_+^2 - w_-^2) / 2; the footnote omits the half."""
    features, targets = problem()
    plus = minus = torch.full((D,), ALPHA, dtype=REAL)
    u, v, *_ = train_network(features, targets, 0.05, N, 25)
    for _ in range(25):
        beta = (plus.square() - minus.square()) / 2
        x = 0.05 * features.T @ (features @ beta - targets) / N
        plus, minus = plus * (1 - x), minus * (1 + x)
    assert_close((plus.square() - minus.square()) / 2, u * v)
    assert not torch.allclose(plus.square() - minus.square(), u * v)


@pytest.mark.parametrize(("lr", "batch"), [(0.08, N), (0.25, N), (0.05, 1), (0.08, 2)])
def test_limits_of_the_network_are_those_of_the_solver(lr, batch):
    features, targets = problem()
    alpha = torch.full((D,), ALPHA, dtype=REAL)
    u, v, gains, _, losses = train_network(features, targets, lr, batch, 1500)
    assert float(losses[-1]) < 1e-16
    assert_close(limit(features, targets, alpha, gains), u * v, rtol=1e-6, atol=1e-7)


def test_small_steps_end_where_gradient_flow_does():
    features, targets = problem()
    alpha = torch.full((D,), ALPHA, dtype=REAL)
    flow = limit(features, targets, alpha, no_gain(alpha))
    u, v, gains, _, _ = train_network(features, targets, 0.02, N, 1500)
    assert_close(u * v, flow, rtol=0.02, atol=0.005)
    assert float(gains.total.max()) < 0.1


def test_the_limit_minimises_the_tilted_potential_among_solutions():
    features, targets = problem()
    alpha = torch.linspace(0.2, 0.6, D, dtype=REAL)
    gains = RunGains(torch.linspace(0, 1, D, dtype=REAL), torch.zeros(D, dtype=REAL))
    best = limit(features, targets, alpha, gains)
    square, tilt = scales(alpha, gains)
    free = torch.linalg.svd(features)[2][N:]  # directions that change no prediction

    def h(beta):
        return float(hypentropy(beta, square.sqrt()) - tilt @ beta)

    for direction in free:
        for step in (-0.1, -1e-3, 1e-3, 0.1):
            assert h(best + step * direction) > h(best)


def test_no_solution_and_infinite_gains_are_refused():
    features = torch.ones(2, 3, dtype=REAL)
    alpha = torch.ones(3, dtype=REAL)
    with pytest.raises(InputError, match="allow a solution"):
        limit(features, torch.tensor([0.0, 1.0], dtype=REAL), alpha, no_gain(alpha))
    endless = track_gains(no_gain(alpha), torch.ones(3, dtype=REAL), 1.0)
    assert endless.total.isinf().all()
    refuses("infinite", limit, features, torch.ones(2, dtype=REAL), alpha, endless)


def test_the_potential_is_like_both_norms_and_has_a_quarter_where_two_is_printed():
    beta = torch.tensor([0.5, -2.0, 0.1], dtype=REAL)
    large = torch.full((3,), 1e3, dtype=REAL)
    square = float(beta.square().sum()) / 1e6
    assert float(hypentropy(beta, large)) == pytest.approx(square / 4, rel=1e-4)
    assert float(hypentropy(beta, large)) != pytest.approx(square / 2, rel=0.1)
    tiny = torch.full((3,), 1e-60, dtype=REAL)
    ratio = float(hypentropy(beta, tiny)) / (60 * torch.log(torch.tensor(10.0)))
    assert float(ratio) == pytest.approx(float(beta.abs().sum()), rel=0.02)


def test_gains_count_half_for_small_scales_and_not_whole_as_printed():
    """(11.9): psi_{alpha_inf} is about ln(1/alpha) |beta|_1 + sum Gain |beta| / 2."""
    beta = torch.tensor([0.5, -2.0, 0.1], dtype=REAL)
    gain = torch.tensor([3.0, 1.0, 0.2], dtype=REAL)
    alpha = torch.full((3,), 1e-40, dtype=REAL)
    after = hypentropy(beta, alpha * (-gain / 2).exp())
    added = float(after - hypentropy(beta, alpha))
    assert added == pytest.approx(float((gain * beta.abs()).sum()) / 2, rel=1e-6)


@pytest.mark.parametrize("batch", [1, 2, N])
def test_curvatures_of_batches_are_those_of_all_batches(batch):
    features, _ = problem()
    h = features.T @ features / N
    some = [features[list(c)] for c in combinations(range(N), batch)]
    mean = sum((x.T @ x / batch) @ (x.T @ x / batch) for x in some) / len(some)
    basis = torch.linalg.svd(features)[2][:N].T
    inner = torch.linalg.solve(basis.T @ h @ basis, basis.T @ mean @ basis)
    values = torch.linalg.eigvals(inner).real
    found = batch_curvatures(features, batch)
    assert found == pytest.approx((float(values.min()), float(values.max())))
    refuses("`batch` must be from 1 to 5", batch_curvatures, features, N + 1)


def test_gains_lie_between_the_losses_of_11_10():
    features, targets = problem()
    for lr, batch in ((0.05, N), (0.2, N)):
        *_, gains, _, losses = train_network(features, targets, lr, batch, 1000)
        low, high = gain_bounds(losses, lr, batch_curvatures(features, batch))
        assert low <= float(gains.total.sum()) <= high
    runs = [train_network(features, targets, 0.04, 1, 600, seed) for seed in range(6)]
    mean = sum(float(run[2].total.sum()) for run in runs) / 6
    losses = sum(run[4] for run in runs) / 6
    low, high = gain_bounds(losses, 0.04, batch_curvatures(features, 1))
    assert low <= mean <= high


def test_for_equal_curvatures_short_steps_gain_the_upper_bound_and_twice_the_lower():
    """With X X' = n c I, |g|^2 = 2 c L(beta), and Gain = lr^2 sum g^2 for short steps.

    So |Gain|_1 = 2 c lr^2 sum L, where (11.10) has 2 Lambda_b and lambda_b.
    """
    rng = torch.Generator().manual_seed(2)
    basis = torch.linalg.qr(torch.randn(D, N, generator=rng, dtype=REAL)).Q.T
    c, lr = 0.8, 1e-3
    features = basis * (N * c) ** 0.5
    targets = features @ problem()[0][0]
    *_, gains, _, losses = train_network(features, targets, lr, N, 300)
    low, high = gain_bounds(losses, lr, batch_curvatures(features, N))
    assert low == pytest.approx(c * lr**2 * float(losses.sum()))
    assert high == pytest.approx(2 * c * lr**2 * float(losses.sum()))
    found = float(gains.total.sum())
    assert high == pytest.approx(found, rel=1e-4)
    assert low == pytest.approx(found / 2, rel=1e-4)


def test_losses_fall_at_least_as_proposition_11_3_1_says_with_squared_hessians():
    """With lambda_b H <= E[H_B] as printed, lambda_b would be 1 whatever the data."""
    features, targets = problem()
    *_, losses = train_network(features, targets, 0.02, N, 1000)
    smallest = batch_curvatures(features, N)[0]
    start = float(losses[0])
    for k in (0, 100, 500, 999):
        assert float(losses[k]) <= loss_bound(k, start, 0.02, ALPHA, smallest) + 1e-15
    scaled = batch_curvatures(3 * features, N)[0]
    assert scaled == pytest.approx(9 * smallest)  # the printed one has no such unit


def test_the_hessian_of_the_network_is_that_of_autograd():
    features, targets = problem()
    rng = torch.Generator().manual_seed(1)
    w = torch.randn(2 * D, generator=rng, dtype=REAL)

    def loss(w):
        return (features @ (w[:D] * w[D:]) - targets).square().mean() / 2

    expected = torch.autograd.functional.hessian(loss, w)
    assert_close(network_hessian(w[:D], w[D:], features, targets), expected)


def test_linear_models_reach_the_solution_nearest_to_their_start_with_any_step():
    """Proposition 1.1.4: unlike diagonal networks, but for those of a large scale.

    There psi_alpha is |beta|^2 / (4 alpha^2), with an error of 1 / alpha^4.
    """
    features, targets = problem()
    nearest = torch.linalg.pinv(features) @ targets
    large = torch.full((D,), 100.0, dtype=REAL)
    assert_close(limit(features, targets, large, no_gain(large)), nearest)
    for lr, batch in ((0.05, N), (0.3, N), (0.05, 1)):
        rng = torch.Generator().manual_seed(0)
        beta = torch.zeros(D, dtype=REAL)
        for _ in range(1300):
            some = torch.randperm(N, generator=rng)[:batch]
            x = features[some]
            beta = beta - lr * x.T @ (x @ beta - targets[some]) / batch
        assert_close(beta, nearest, rtol=1e-6, atol=1e-8)


def test_gains_of_short_steps_have_the_square_of_the_step():
    """Gain = lr^2 sum g^2 to leading order; printed without lr^2."""
    g = torch.tensor([3.0, -1.0, 0.5], dtype=REAL)
    for lr in (1e-3, 1e-4):
        gains = track_gains(track_gains(no_gain(g), g, lr), 2 * g, lr)
        assert_close(gains.total, lr**2 * 5 * g.square(), rtol=1e-4, atol=1e-12)
