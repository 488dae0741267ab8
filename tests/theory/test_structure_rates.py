"""Claims about rates and thresholds of shared structure, and what print has wrong."""

from __future__ import annotations

import math

import pytest
import torch

from coterie.checks import InputError
from coterie_theory.structure import (
    admissibility,
    burer_monteiro,
    cut_to_rank,
    few_shot_head,
    fit_clusters,
    nuclear_radius,
    one_sample_rates,
    rates,
    shells,
    squared_distance,
    tasks,
    top_subspace,
)
from support.draws import rng
from support.refusals import refuses
from support.shared_models import error, shared

REAL = torch.float64
SETTING = rates.ProblemSizes(200, 30, 3, 40)


def test_rates_are_those_of_the_table():
    assert rates.alone_rate(SETTING) == pytest.approx(2 * 30 / 40)
    assert rates.low_rank_rate(SETTING) == pytest.approx(2 * 3 * 230 / (40 * 200))
    convex = SETTING._replace(mu=0.0)
    assert rates.alone_rate(convex) == pytest.approx(2 * math.sqrt(30 / 40))
    assert rates.low_rank_rate(convex) == pytest.approx(
        2 * math.sqrt(3 * 230 / (40 * 200))
    )
    expected = 2 * (3 * 30 / (40 * 200) + math.log(3) / 40)
    assert rates.clustered_rate(SETTING) == pytest.approx(expected)
    assert rates.lower_bound(SETTING) == pytest.approx(90 / 8000)
    assert rates.few_shot_rate(SETTING) == pytest.approx(2 * 3 / 40)


def test_order_of_needs_and_of_rates():
    """Low rank needs fewest samples, the nuclear norm is between, alone most."""
    needs = rates.samples_needed(SETTING)
    assert needs["low rank"] < needs["nuclear norm"] < needs["alone"]
    assert needs["clusters"] < needs["low rank"]
    assert needs["nuclear norm"] == pytest.approx(math.sqrt(90))
    assert rates.low_rank_rate(SETTING) < rates.alone_rate(SETTING)
    assert rates.clustered_rate(SETTING) < rates.low_rank_rate(SETTING)


def test_the_nuclear_rate_is_of_the_order_of_the_general_bound_at_its_truncation():
    """Theorem 9.4 is 9.5 with s = sqrt(r(D + N)), for many clients."""
    ratios = []
    for n in (10**5, 10**6, 10**7):
        # m grows as s, so that all terms do their part.
        s = round(math.sqrt(3 * (n + n // 10)))
        setting = SETTING._replace(clients=n, dimension=n // 10, samples=s)
        assert rates.truncation(setting) == s
        ratios.append(rates.nuclear_bound(setting, s) / rates.nuclear_rate(setting))
    assert 0.5 < ratios[-1] / ratios[0] < 2
    assert rates.truncation(SETTING._replace(clients=40, dimension=5)) == 5


def test_theorem_9_5_as_printed_does_not_grow_with_the_square_of_models():
    """Errors are squares of models' lengths; two of four printed terms are not."""
    setting = rates.ProblemSizes(40, 10, 2, 25, mu=0.5, smoothness=3.0)
    a, top, s, kappa = 4 * 50 / (40 * 25), 3.0 + 10 / 25, 4, 1.5

    def by_hand(b, printed):
        bias = 2 * top * kappa**2 * 2 / (0.5 * s)
        cross = 4 / 0.5 * (a / s + math.sqrt(a / (40 * s))) * kappa * math.sqrt(80)
        rest = (16 * a + 8 * (a + math.sqrt(a))) / 0.5
        return (bias + b * cross if printed else b**2 * (bias + cross)) + b**2 * rest

    for b in (1.0, 3.0):
        found = rates.nuclear_bound(setting._replace(cap=b), s, kappa=kappa)
        assert found == pytest.approx(by_hand(b, printed=False))
    assert by_hand(1.0, printed=True) == pytest.approx(by_hand(1.0, printed=False))
    # Models three times as long are nine times as far off.
    assert by_hand(3.0, printed=True) < 9 * by_hand(1.0, printed=True)


def test_probabilities_have_negative_exponents_and_as_printed_are_none():
    assert 0 < rates.failure(SETTING._replace(clients=3, samples=1, dimension=3)) < 1
    assert rates.failure(SETTING, clustered=True) <= 4 * math.exp(-200) + 1e-100
    printed = 1 - 2 * math.exp(+3 * (30 + 200))  # 1 - 2 e^{+..}
    assert printed < 0


def test_lemma_9_3_4_bounds_the_subspace_of_models_that_are_near():
    truth = shared(60, 8, 2, 1)
    for scale in (0.01, 0.1, 0.3):
        noise = torch.randn(60, 8, generator=rng(), dtype=REAL)
        near = cut_to_rank(truth.x + scale * noise, 2)
        bound = rates.subspace_bound(truth.x, error(near, truth.x), 2)
        assert squared_distance(top_subspace(near, 2), truth.basis) / 2 <= bound
    with pytest.raises(InputError, match="at least rank 3"):
        rates.subspace_bound(torch.zeros(5, 4, dtype=REAL), 0.1, 3)


def newcomers(cap: float):
    """Many samples of newcomers whose models have norm `cap`, a subspace a bit off."""
    truth = shared(40, 8, 2, 400)
    data = tasks(truth.data.features, cap * truth.data.targets)
    noise = torch.randn(8, 2, generator=rng(5), dtype=REAL)
    basis = torch.linalg.qr(truth.basis + 0.2 * noise)[0]
    return truth, data, basis


def test_few_shot_bias_holds_with_the_square_of_the_cap_and_fails_as_printed():
    """Proposition 9.3.1 without B^2 is false for models longer than 1."""
    cap = 5.0
    truth, data, basis = newcomers(cap)
    setting = rates.ProblemSizes(40, 8, 2, 400, cap=cap)
    found = few_shot_head(basis, data, cap=2 * cap)
    worst = float((found - cap * truth.x).square().sum(1).max())
    bias = rates.few_shot_bias(basis, truth.basis, setting)
    # Curvatures of samples are 1 up to chance, whose share is that of 400 samples.
    assert worst <= 1.3 * bias
    assert worst > bias / cap**2  # as printed
    convex = setting._replace(mu=0.0)
    assert rates.few_shot_bias(basis, truth.basis, convex) == pytest.approx(bias / 2)


def test_heads_are_defined_up_to_a_rotation_which_the_printed_comparison_forgets():
    """|v - v*| may be large where |U v - w*| is 0."""
    truth, data, _ = newcomers(1.0)
    turn = torch.linalg.qr(torch.randn(2, 2, generator=rng(3), dtype=REAL))[0]
    turned = truth.basis @ turn
    found = few_shot_head(turned, data, cap=2.0)
    assert error(found, truth.x) < 1e-20
    heads, true_heads = found @ turned, truth.x @ truth.basis
    assert error(heads, true_heads) > 0.1


def test_kappa_need_not_be_the_condition_number():
    """(9.7) asks for kappa >= sigma_1/sigma_r; 1 holds every W* already."""
    truth = shared(30, 6, 2, 1)
    x = truth.x @ truth.basis @ torch.diag(torch.tensor([1.0, 1e-3], dtype=REAL))
    values = torch.linalg.svdvals(x)
    assert values[0] / values[1] > 100
    assert values.sum() <= nuclear_radius(1.0, 30, 2, kappa=1.0)


def test_columns_and_not_rows_of_the_matrix_of_centres_are_models():
    """W_{C,pi} is (D, N); what is printed as row i has N entries, a centre has D."""
    centres = torch.randn(5, 2, generator=rng(), dtype=REAL)  # (D, r)
    groups = torch.tensor([0, 1, 1])
    w = centres[:, groups]
    assert w.shape == (5, 3) and torch.equal(w[:, 2], centres[:, 1])
    assert w[2].shape != centres[:, 1].shape
    # Ours has a row for each client, which is the column of the matrix.
    features = torch.randn(3, 9, 5, generator=rng(1), dtype=REAL)
    data = tasks(features, torch.einsum("nmd,dn->nm", features, w))
    found = fit_clusters(data, groups=2, cap=10.0, rng=rng(2))
    torch.testing.assert_close(found.x, w.T, rtol=1e-4, atol=1e-4)


def test_factors_of_a_low_rank_matrix_have_the_sizes_d_r_and_r_n():
    """Print has sizes with which B C is no (D, N) matrix."""
    truth = shared(7, 5, 2, 9)
    found = burer_monteiro(truth.data, rank=2, cap=2.0)
    assert found.basis.shape == (5, 2) and found.heads.T.shape == (2, 7)
    assert torch.allclose(found.basis @ found.heads.T, found.x.T)


def test_the_true_subspace_is_admissible_without_noise_and_not_with_it_as_printed():
    truth = shared(400, 6, 2, 1)
    assert admissibility(truth.basis, truth.data).max() <= 1 + 1e-12
    noise = 0.3 * torch.randn(400, 1, generator=rng(), dtype=REAL)
    noisy = tasks(truth.data.features, truth.data.targets + noise)
    assert admissibility(truth.basis, noisy).max() > 1.1


def test_the_chance_of_a_wrong_subspace_is_that_of_drawn_samples():
    for r in (1, 3):
        x = torch.randn(200_000, r + 1, generator=rng(), dtype=REAL)
        right = (x[:, :r].square().sum(1) >= x[:, r].square()).double().mean()
        # Four standard errors of 200,000 draws.
        assert abs(float(right) - one_sample_rates.wrong_is_admissible(r, 1)) < 0.0045
    found = [
        one_sample_rates.wrong_is_admissible(r, 1) for r in (1, 2, 3, 5, 10, 15, 20)
    ]
    known = [0.500, 0.707, 0.818, 0.924, 0.9899, 0.99850, 0.99977]
    assert found == pytest.approx(known, abs=5e-4)
    most = one_sample_rates.clients_that_mislead(10)
    assert one_sample_rates.wrong_is_admissible(10, most) >= 7 / 8
    assert one_sample_rates.wrong_is_admissible(10, most + 1) < 7 / 8


def test_clients_needed_grow_as_in_theorem_9_3():
    needed = one_sample_rates.clients_needed
    assert needed(8, 2, 0.5) == pytest.approx(8 * math.log(8) * math.exp(4))
    assert needed(8, 2, 0.5, spread=0.5) == pytest.approx(8 * math.log(8) * math.exp(8))
    assert needed(8, 50, 1e-3) == math.inf
    refuses("`rank`", needed, 8, 0, 0.5)
    refuses("`chance`", one_sample_rates.clients_that_mislead, 3, 1.0)


def test_shells_add_up_and_obey_lemma_9_b_1():
    x = torch.randn(7, 9, generator=rng(), dtype=REAL)
    parts, nuclear = shells.shells(x, 2), torch.linalg.svdvals(x).sum()
    assert torch.allclose(sum(parts), x)
    assert sum(part.norm() for part in parts[1:]) <= nuclear / math.sqrt(2)
    assert sum(part.norm(dim=1).max() for part in parts[1:]) <= nuclear / 2


def test_the_last_shell_is_the_one_that_print_calls_zero():
    """Shells are zero for k above ceil(min(D, N)/s), not from there on."""
    x = torch.randn(5, 6, generator=rng(), dtype=REAL)
    parts = shells.shells(x, 2)
    assert len(parts) == math.ceil(5 / 2)
    assert parts[math.ceil(5 / 2) - 1].norm() > 0.01


def test_rank_above_the_number_of_clients_is_refused():
    with pytest.raises(InputError, match="`rank` must be at most"):
        rates.low_rank_rate(rates.ProblemSizes(2, 30, 3, 40))
    refuses("`mu`", rates.nuclear_rate, SETTING._replace(mu=0.0))
