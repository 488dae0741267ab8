"""Claims about weights."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from coterie.checks import InputError
from coterie.collaboration import weights
from support.refusals import refuses

N = 5
LAM = 0.3
CRITERIA = {"binary": weights.binary(LAM), "continuous": weights.continuous}

# Ratios on a grid that meets the threshold exactly, and never so small as to underflow.
entry = st.sampled_from([0.0, 1e-3, 0.1, 0.29, LAM, 0.31, 0.5, 0.99, 1.0])


@st.composite
def federations(draw):
    """A matrix of ratios with ones on the diagonal, and precisions."""
    rows = draw(st.lists(entry, min_size=N * N, max_size=N * N))
    ratio = torch.tensor(rows, dtype=torch.float64).reshape(N, N)
    ratio = torch.where(torch.eye(N, dtype=torch.bool), 1.0, ratio)
    sizes = draw(st.lists(st.floats(0.01, 100), min_size=N, max_size=N))
    return ratio, torch.tensor(sizes, dtype=torch.float64)


claims = settings(max_examples=50, deadline=None, database=None, derandomize=True)
every_criterion = pytest.mark.parametrize("phi", CRITERIA.values(), ids=CRITERIA)


def random_federation(seed=0):
    rng = torch.Generator().manual_seed(seed)
    ratio = torch.rand(N, N, generator=rng, dtype=torch.float64)
    ratio.fill_diagonal_(1)
    return ratio, 0.1 + torch.rand(N, generator=rng, dtype=torch.float64)


def test_similarity_ratio_equals_a_loop_over_gradients():
    rng = torch.Generator().manual_seed(1)
    g = torch.randn(N, N, 3, generator=rng)  # g[i, k] = grad R_k(x_i)
    own = torch.stack([g[i, i] @ g[i, i] for i in range(N)])
    distance = (g - g[range(N), range(N)][:, None]).square().sum(2)
    ratio = weights.similarity_ratio(distance, own)
    for i in range(N):
        for k in range(N):
            gap = g[i, k] - g[i, i]
            expected = max(0.0, 1 - float(gap @ gap) / float(g[i, i] @ g[i, i]))
            assert float(ratio[i, k]) == pytest.approx(expected, abs=1e-6)


def test_similarity_ratio_is_one_on_the_diagonal_and_never_leaves_zero_to_one():
    distance = torch.tensor([[5.0, -3.0], [9.0, 0.1]])  # estimates may be negative
    ratio = weights.similarity_ratio(distance, torch.tensor([1.0, 2.0]))
    assert ratio.tolist() == [[1.0, 1.0], [0.0, 1.0]]


@pytest.mark.parametrize("own", [0.0, -1.0])
def test_where_the_own_gradient_is_unknown_only_oneself_is_trusted(own):
    ratio = weights.similarity_ratio(torch.zeros(2, 2), torch.tensor([own, 1.0]))
    assert ratio.tolist() == [[1.0, 0.0], [1.0, 1.0]]


def test_both_criteria_are_valid():
    for phi in CRITERIA.values():
        assert weights.valid_criterion(phi) is phi


@pytest.mark.parametrize(
    ("phi", "message"),
    [
        (lambda x: x - 0.5, r"be 0 at x = 0, but phi\(0\) = -0.5"),
        (lambda x: 2 * x, r"phi\(x\) <= x, but phi\(0.001\) = 0.002"),
        (lambda x: x * (1 - x), r"not decrease, but phi\(0.501\) = 0.25"),
        (lambda x: 0 * x, r"greater than 0 at x = 1, but phi\(1\) = 0"),
        (lambda x: x / x, r"be 0 at x = 0, but phi\(0\) = nan"),
    ],
)
def test_what_is_not_a_criterion_is_refused_with_the_rule_and_the_point(phi, message):
    refuses(message, weights.valid_criterion, phi)


@pytest.mark.parametrize("lam", [0.0, 1.5, -0.1])
def test_a_threshold_outside_zero_to_one_is_refused(lam):
    refuses("`lam`", weights.binary, lam)


@every_criterion
@claims
@given(federation=federations())
def test_weights_follow_the_formula_of_the_specification(phi, federation):
    ratio, precision = federation
    result = weights.collaboration_weights(ratio, precision, phi)
    trust = precision * phi(ratio)
    assert_close(
        result, trust / (trust * ratio).sum(1, keepdim=True), rtol=1e-12, atol=0
    )
    assert torch.equal(result == 0, phi(ratio) == 0)


@every_criterion
@claims
@given(federation=federations())
def test_rows_sum_to_the_ratio_of_the_two_variances(phi, federation):
    ratio, precision = federation
    total = weights.collaboration_weights(ratio, precision, phi).sum(1)
    sigma_psi = weights.effective_variance(ratio, precision, phi)
    sigma_phi = 1 / (phi(ratio) @ precision)
    assert_close(total, sigma_psi / sigma_phi)
    assert (total >= 1 - 1e-12).all()


@claims
@given(federations())
def test_rows_of_binary_weights_sum_to_at_most_one_over_the_threshold(federation):
    total = weights.collaboration_weights(*federation, weights.binary(LAM)).sum(1)
    assert (total <= 1 / LAM + 1e-12).all()


@every_criterion
@claims
@given(federation=federations())
def test_noise_of_the_mixed_gradient_is_at_most_the_effective_variance(phi, federation):
    ratio, precision = federation
    alpha = weights.collaboration_weights(ratio, precision, phi)
    expected = [
        sum(float(alpha[i, k]) ** 2 / float(precision[k]) for k in range(N))
        for i in range(N)
    ]
    noise = weights.noise_variance(alpha, precision)
    assert noise.tolist() == pytest.approx(expected)
    bound = weights.effective_variance(ratio, precision, phi)
    assert (noise <= bound * (1 + 1e-12)).all()


@every_criterion
def test_equal_clients_get_uniform_weights_and_an_nth_of_the_noise(phi):
    ratio, precision = torch.ones(N, N), torch.full((N,), 4.0)
    alpha = weights.collaboration_weights(ratio, precision, phi)
    assert_close(alpha, torch.full((N, N), 1 / N))
    assert_close(weights.noise_variance(alpha, precision), torch.full((N,), 0.25 / N))


@every_criterion
def test_nobody_similar_means_local_training(phi):
    precision = torch.arange(1.0, N + 1)
    alpha = weights.collaboration_weights(torch.eye(N), precision, phi)
    assert_close(alpha, torch.eye(N))


def test_alone_the_effective_variance_is_the_own_one_only_for_continuous():
    ratio, precision = torch.eye(2), torch.tensor([1.0, 4.0])
    alone = weights.effective_variance(ratio, precision, weights.continuous)
    assert_close(alone, torch.tensor([1.0, 0.25]))
    loose = weights.effective_variance(ratio, precision, weights.binary(0.1))
    assert_close(loose, torch.tensor([10.0, 2.5]))


@every_criterion
def test_only_proportions_of_precisions_matter(phi):
    ratio, precision = random_federation()
    assert_close(
        weights.collaboration_weights(ratio, 7 * precision, phi),
        weights.collaboration_weights(ratio, precision, phi),
    )


@every_criterion
def test_relabelling_clients_relabels_the_weights(phi):
    ratio, precision = random_federation()
    order = torch.tensor([3, 0, 4, 1, 2])
    assert_close(
        weights.collaboration_weights(ratio[order][:, order], precision[order], phi),
        weights.collaboration_weights(ratio, precision, phi)[order][:, order],
    )


@every_criterion
def test_weights_can_be_computed_for_many_federations_at_once(phi):
    many = [random_federation(seed) for seed in range(3)]
    ratios = torch.stack([ratio for ratio, _ in many])
    precisions = torch.stack([precision for _, precision in many])
    together = torch.vmap(lambda r, p: weights.collaboration_weights(r, p, phi))(
        ratios, precisions
    )
    for result, (ratio, precision) in zip(together, many, strict=True):
        assert_close(result, weights.collaboration_weights(ratio, precision, phi))


def test_normalised_rows_sum_to_one_and_rows_of_zeros_stay_zero():
    result = weights.normalised(torch.tensor([[1.0, 3.0], [0.0, 0.0]]))
    assert result.tolist() == [[0.25, 0.75], [0.0, 0.0]]


def test_same_cluster_is_uniform_inside_and_zero_outside():
    result = weights.same_cluster(torch.tensor([0, 1, 0, 0]))
    third = 1 / 3
    expected = [[third, 0, third, third], [0, 1, 0, 0]]
    assert_close(result[:2], torch.tensor(expected))


def test_same_cluster_follows_the_precision_when_given():
    result = weights.same_cluster(torch.tensor([7, 7, 2]), torch.tensor([1.0, 3, 5]))
    assert_close(result, torch.tensor([[0.25, 0.75, 0], [0.25, 0.75, 0], [0, 0, 1.0]]))


def test_within_keeps_the_near_and_always_oneself():
    bias = torch.tensor([[9.0, 1.0, 2.0], [1.0, 0.0, 3.0], [2.0, 3.0, 0.0]])
    assert weights.threshold_weights(bias, 1.0).tolist() == [
        [0.5, 0.5, 0],
        [0.5, 0.5, 0],
        [0, 0, 1],
    ]
    assert_close(weights.threshold_weights(bias, 0.5), torch.eye(3))


def test_among_all_clients_nothing_changes():
    alpha = weights.collaboration_weights(*random_federation(), weights.binary(LAM))
    assert_close(
        weights.restrict_to_active(alpha, torch.ones(N, dtype=torch.bool)), alpha
    )


def test_among_keeps_row_totals_of_the_active_and_silences_the_others():
    alpha = weights.collaboration_weights(*random_federation(), weights.binary(LAM))
    active = torch.tensor([True, False, True, True, False])
    result = weights.restrict_to_active(alpha, active)
    assert_close(result.sum(1), alpha.sum(1) * active)
    assert (result[:, ~active] == 0).all()
    kept = alpha[0, [0, 2, 3]]
    assert_close(result[0, [0, 2, 3]], kept * alpha[0].sum() / kept.sum())


def test_among_gives_the_weight_of_a_row_without_active_partners_to_the_client():
    alpha = torch.tensor([[0.0, 1.5], [0.5, 0.5]])
    result = weights.restrict_to_active(alpha, torch.tensor([True, False]))
    assert result.tolist() == [[1.5, 0.0], [0.0, 0.0]]


# Weights from known biases (chapter 8 of Even's thesis).


def distances(seed=0, n=7):
    """Distances of random points on a line: they obey the triangle inequality."""
    rng = torch.Generator().manual_seed(seed)
    place = torch.rand(n, generator=rng, dtype=torch.float64)
    return (place[:, None] - place).abs()


def star(n=50):
    """Each client averages with the hub, and the hub with all."""
    far = torch.ones(n, n, dtype=torch.float64)
    far[0] = far[:, 0] = 0
    return weights.threshold_weights(far, 0.5)


BUILDERS = {
    "within": lambda b: weights.threshold_weights(b, 0.3),
    "interpolation": lambda b: weights.interpolation(0.4, len(b)).double(),
    "water_filling": lambda b: weights.water_filling(b, 0.2),
    "metropolis": lambda b: weights.metropolis(weights.threshold_weights(b, 0.3)),
    "same_cluster": lambda b: weights.same_cluster(torch.arange(len(b)) % 2).double(),
}
every_builder = pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)


@every_builder
def test_each_builder_gives_rows_on_the_simplex_and_a_symmetric_positive_product(build):
    for seed in range(5):
        lam = build(distances(seed))
        assert (lam >= 0).all()
        assert_close(lam.sum(1), torch.ones(7, dtype=torch.float64))
        product = lam @ lam.T
        # A library may add the 7 products, at most 1 in all, in another order on the
        # other side of the diagonal, with an error of 7 x 2^-53 on each.
        assert_close(product, product.T, rtol=0, atol=2e-15)
        assert torch.linalg.eigvalsh(product).min() > -1e-14


def test_a_threshold_joins_in_both_directions():
    lam = weights.threshold_weights(distances(), 0.3)
    assert torch.equal(lam > 0, (lam > 0).T)
    assert (lam != lam.T).any()


def test_vanishing_biases_join_everybody_and_infinite_ones_nobody():
    b = distances()
    for build in (weights.threshold_weights, weights.water_filling):
        assert_close(build(b * 0, 1.0), torch.full((7, 7), 1 / 7).double())
        alone = b + 1e9 * (1 - torch.eye(7))
        assert_close(build(alone, 1.0), torch.eye(7).double())


def test_interpolation_goes_from_local_to_global():
    assert torch.equal(weights.interpolation(0.0, 4), torch.eye(4))
    assert_close(weights.interpolation(3 / 4, 4), torch.full((4, 4), 0.25))
    each = weights.interpolation(torch.tensor([0.0, 0.5, 1.0]), 3)
    assert each.tolist() == [[1, 0, 0], [0.25, 0.5, 0.25], [0.5, 0.5, 0]]
    assert weights.interpolation(0.3, 1).tolist() == [[1.0]]


def test_interpolation_has_the_bias_of_the_table():
    b, alpha = distances(), torch.linspace(0, 1, 7, dtype=torch.float64)
    bias = (weights.interpolation(alpha, 7) * b).sum() / 7
    expected = sum(
        float(alpha[i]) / 6 * sum(float(b[i, j]) for j in range(7) if j != i)
        for i in range(7)
    )
    assert float(bias) == pytest.approx(expected / 7)


@pytest.mark.parametrize("alpha", [-0.1, 1.1, torch.tensor([0.5, 2.0])])
def test_a_mixture_beyond_everything_is_refused(alpha):
    refuses("`alpha` must be from 0 to 1", weights.interpolation, alpha, 2)


def objective(lam, a, c):
    return c * lam.square().sum(1) + (lam * a).sum(1)


@pytest.mark.parametrize("c", [1e-3, 0.05, 0.7, 100.0])
def test_water_filling_meets_the_conditions_of_optimality(c):
    for seed in range(5):
        a = distances(seed)
        lam = weights.water_filling(a, c)
        slope = 2 * c * lam + a  # the derivative of the objective
        for i in range(7):
            wet = lam[i] > 0
            level = slope[i, wet]
            # Equal where there is water, and no less where there is none.
            assert_close(level, level[:1].expand_as(level), rtol=1e-9, atol=1e-12)
            assert (slope[i, ~wet] >= level[0] - 1e-12).all()


@pytest.mark.parametrize("c", [0.001, 0.05, 0.7])
def test_water_filling_is_no_worse_than_the_best_threshold(c):
    a = distances().square() / 2
    best = objective(weights.water_filling(a, c), a, c)
    strictly = torch.zeros(7, dtype=torch.bool)
    for threshold in a.unique().tolist():
        other = objective(weights.threshold_weights(a, threshold), a, c)
        assert (best <= other + 1e-12).all()
        strictly |= best < other - 1e-9
    assert strictly.all()


def test_water_filling_without_volume_is_refused():
    with pytest.raises(InputError, match=r"`c` must be greater than 0, got 0\.0"):
        weights.water_filling(torch.ones(2, 2), 0.0)


def test_metropolis_weights_are_doubly_stochastic_whatever_the_graph():
    for lam in (
        star(),
        weights.threshold_weights(distances(), 0.3),
        random_federation()[0],
    ):
        lam = weights.normalised(lam)
        result = weights.metropolis(lam)
        assert torch.equal(result, result.T)
        assert (result >= -1e-15).all()
        assert_close(result.sum(0), torch.ones(len(lam), dtype=torch.float64))
        assert weights.spectral_radius(result) <= 1 + 1e-9
        off = ~torch.eye(len(lam), dtype=torch.bool)
        assert not ((result > 0) & (lam == 0) & off).any()


def test_metropolis_of_a_threshold_has_the_larger_neighbourhood():
    lam = weights.threshold_weights(distances(), 0.3)
    count = (lam > 0).sum(1)
    result = weights.metropolis(lam)
    for i in range(7):
        for j in range(7):
            if i != j and lam[i, j] > 0:
                most = max(int(count[i]), int(count[j]))
                assert float(result[i, j]) == pytest.approx(1 / most)


def test_the_spectral_radius_is_one_for_clusters_and_a_quarter_of_the_star():
    clusters = weights.same_cluster(torch.tensor([0, 0, 0, 1, 1, 2])).double()
    # A third in single precision.
    assert weights.spectral_radius(clusters) == pytest.approx(1, abs=1e-6)
    assert weights.spectral_radius(torch.eye(5)) == pytest.approx(1, rel=1e-14)
    assert weights.spectral_radius(torch.full((4, 4), 0.25)) == pytest.approx(1)
    # The printed claim is that it is 1 for every stochastic matrix.
    assert weights.spectral_radius(star(50)) == pytest.approx(12.5, abs=0.3)


@every_builder
def test_the_spectral_radius_is_the_largest_eigenvalue_and_at_least_one(build):
    for seed in range(5):
        lam = build(distances(seed))
        largest = torch.linalg.eigvalsh(lam @ lam.T).max()
        rho = weights.spectral_radius(lam)
        assert rho == pytest.approx(float(largest), rel=1e-12)
        assert rho >= 1 - 1e-12
