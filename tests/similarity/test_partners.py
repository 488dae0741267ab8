"""Claims about choosing partners before training."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from coterie import models, seeds
from coterie.checks import InputError
from coterie.clients.simulation import Simulation
from coterie.collaboration.weights import same_cluster
from coterie.data.datasets import load
from coterie.data.federation import Federation, Table
from coterie.data.splits import divide
from coterie.report import similarity_map
from coterie.similarity.distances import Distances, moment_distances
from coterie.similarity.partners import (
    ESTIMATES,
    classify_pairs,
    gap_threshold,
    weights_from,
)
from coterie.similarity.samples import Samples, samples_of, split_for_partners
from coterie_theory.clusters import cluster_samples, samples_needed
from coterie_theory.distances import (
    filled_weights,
    generalisation_gaps,
    gradient_distances,
)
from support.federations import divided
from support.recipes import weights
from support.refusals import refuses

REAL = torch.float64
SIZES = (60,) * 6
CLUSTERS = torch.arange(6) % 2
SAME = CLUSTERS[:, None] == CLUSTERS


def federation_of(*, features: float = 0.0, labels: float = 0.0) -> Federation:
    """Two clusters that differ in their features, or in how they label these."""
    rng = seeds.generator("tests", "partners")
    count = sum(SIZES) + 3 * len(SIZES)
    owner = torch.arange(6).repeat_interleave(torch.tensor(SIZES) + 3)
    sign = (2.0 * (owner % 2) - 1).to(REAL)
    rows = torch.randn(count, 4, generator=rng, dtype=REAL)
    rows[:, 0] += features * sign
    noise = 0.1 * torch.randn(count, generator=rng, dtype=REAL)
    table = Table("pairs", rows, labels * sign * rows[:, 1] + noise, "regression", 1)
    return divided(table, SIZES, CLUSTERS)


def distances_of(squared: list[list[float]], error: float) -> Distances:
    matrix = torch.tensor(squared, dtype=REAL)
    apart = ~torch.eye(len(matrix), dtype=torch.bool)
    return Distances(matrix, error * apart)


LINE = distances_of([[0, 1, 9], [1, 0, 4], [9, 4, 0]], 1.0)


def test_the_two_parts_have_nothing_in_common_and_everything_together():
    whole = federation_of()
    first, second = split_for_partners(whole, 20)
    for i in range(6):
        mine = [set(f.only(i).features[:, 0].tolist()) for f in (whole, first, second)]
        parts = [f.only(i).train.size.item() for f in (whole, first, second)]
        assert parts == [60, 20, 40]
        assert mine[1] | mine[2] == mine[0]
        train = [
            f.features[f.train.rows(torch.tensor([i]))[0][0], 0]
            for f in (first, second)
        ]
        assert not set(train[0].tolist()) & set(train[1].tolist())
    assert second.validation is whole.validation and second.test is whole.test


def test_draws_are_named_by_client_and_seed():
    whole = federation_of()
    some = whole.select(torch.tensor([4, 1]))
    chosen, alone = (split_for_partners(f, 20)[0].train.rows for f in (whole, some))
    assert_close(chosen(torch.tensor([4, 1]))[0], alone(torch.tensor([0, 1]))[0])
    other = split_for_partners(whole, 20, seed=1)[0].train.rows(torch.tensor([4]))[0]
    assert not torch.equal(chosen(torch.tensor([4]))[0], other)


def test_samples_are_features_and_response_of_the_training_part(classification):
    samples = samples_of(classification, scale=3.0)
    for i in range(6):
        index, start, size = classification.train
        mine = index[start[i] : start[i] + size[i]]
        rows = samples.values[i, : size[i]]
        order = rows[:, 0].argsort()
        here = mine[classification.features[mine, 0].argsort()]
        assert_close(rows[order][:, :12], classification.features[here])
        one_hot = torch.nn.functional.one_hot(classification.targets[here], 2)
        assert_close(rows[order][:, 12:], 3.0 * one_hot.to(REAL))
    assert (samples.values[~samples.mask] == 0).all()
    assert samples_of(classification, labelled=False).values.shape[2] == 12


def test_response_and_features_are_balanced_unless_told(classification):
    rows = samples_of(classification)
    variance = rows.values[rows.mask].var(0)
    assert float(variance[:12].sum()) == pytest.approx(float(variance[12:].sum()))


def test_a_verdict_needs_its_margin():
    # 1.645 standard errors at 95 percent: 1 is near 3, 4 is open, 9 is far.
    assert classify_pairs(LINE, 3.0).tolist() == [[1, 1, -1], [1, 1, 0], [-1, 0, 1]]
    assert classify_pairs(LINE, 3.0, confidence=0.5)[1, 2] == -1
    assert classify_pairs(LINE, 6.0).tolist() == [[1, 1, -1], [1, 1, 1], [-1, 1, 1]]
    assert classify_pairs(LINE, 3.0, confidence=0.999).tolist()[0] == [1, 0, -1]


def test_pairs_that_nobody_compared_are_undecided():
    unknown = Distances(
        torch.zeros(2, 2), torch.tensor([[0, torch.inf], [torch.inf, 0]])
    )
    for confidence in (0.5, 0.95):
        verdict = classify_pairs(unknown, 1.0, confidence=confidence)
        assert verdict.tolist() == [[1, 0], [0, 1]]
    assert_close(filled_weights(unknown, 1.0), torch.eye(2))


def test_open_pairs_count_as_far_unless_told():
    assert (weights_from(LINE, 3.0) > 0).tolist()[1] == [True, True, False]
    near = weights_from(LINE, 3.0, undecided_is_near=True)
    assert_close(near[1], torch.full((3,), 1 / 3, dtype=REAL))
    assert_close(weights_from(LINE, 0.0), torch.eye(3, dtype=REAL))
    everybody = weights_from(LINE, 1e6)
    assert_close(everybody, torch.full((3, 3), 1 / 3, dtype=REAL))


def test_water_filling_of_estimates_never_drops_oneself():
    noisy = distances_of([[0, -3, 9], [-3, 0, 4], [9, 4, 0]], 1.0)
    found = filled_weights(noisy, 0.1)
    assert_close(found.sum(1), torch.ones(3, dtype=REAL))
    assert (found.diagonal() == found.max(1).values).all()


def test_the_threshold_lies_in_the_widest_gap():
    clusters = torch.where(SAME, 0.1, 50.0) * ~torch.eye(6, dtype=torch.bool)
    found = gap_threshold(Distances(clusters, torch.full((6, 6), 1.0)))
    assert found == pytest.approx((2.5 * 50) ** 0.5)  # 2.5 errors are the floor
    strangers = 50.0 * ~torch.eye(6, dtype=torch.bool)
    lonely = Distances(strangers, torch.full((6, 6), 1.0))
    assert_close(weights_from(lonely), torch.eye(6))


@pytest.mark.parametrize(
    "squared", [torch.zeros(6, 6), 3.0 + torch.arange(36.0).view(6, 6) / 10]
)
def test_without_a_gap_the_user_must_choose(squared):
    with pytest.raises(InputError, match=r"no gap: none between 2\.5 \(noise\)"):
        gap_threshold(Distances(squared, torch.full((6, 6), 1.0)))


def clustered_means(size: int, number: int, mean: float = 5.0) -> Samples:
    """E8.2 in small: 40 clients in 4 clusters, means 5 e_m in 20 dimensions."""
    rng = seeds.generator("tests", "clustered", number)
    values = torch.randn(40, size, 20, generator=rng, dtype=REAL)
    cluster = torch.arange(40) % 4
    values[torch.arange(40), :, cluster] += mean
    return Samples(values, torch.full((40,), size))


def mean_error(weights: torch.Tensor, number: int) -> float:
    """Half the squared error of averages of ten other samples, as All-for-one's."""
    fresh = clustered_means(10, number + 1000).values.mean(1)
    best = torch.zeros(40, 20, dtype=REAL)
    best[torch.arange(40), torch.arange(40) % 4] = 5.0
    return float((weights @ fresh - best).square().sum(1).mean()) / 2


def test_five_samples_find_clusters_and_one_does_not():
    right = same_cluster(torch.arange(40) % 4).to(REAL)
    oracle = mean_error(right, 0)
    assert oracle == pytest.approx(20 / (2 * 10 * 10), rel=0.5)  # d / (2 K C)
    local = mean_error(torch.eye(40, dtype=REAL), 0)
    assert local == pytest.approx(20 / (2 * 10), rel=0.2)  # d / (2 K)
    single = clustered_means(1, 0).values[:, 0]
    plain = torch.cdist(single, single).square()
    # Even with the noise 2 d known, one sample joins strangers: worse than alone.
    wrong = weights_from(Distances(plain - 40, torch.zeros(40, 40, dtype=REAL)), 25.0)
    assert mean_error(wrong, 0) > local
    found = weights_from(moment_distances(clustered_means(5, 0)), 25.0, confidence=0.5)
    assert mean_error(found, 0) < 2 * oracle


def test_estimated_weights_become_those_of_the_clusters():
    right = same_cluster(torch.arange(40) % 4, torch.ones(40, dtype=REAL))

    def wrong(size: int) -> float:
        found = moment_distances(clustered_means(size, 0, mean=2.5))
        return float((weights_from(found, 6.25) - right).abs().sum())

    errors = [wrong(size) for size in (4, 12, 48)]
    assert errors[0] > 2 * errors[1] > 0 == errors[2]
    far_apart = moment_distances(clustered_means(16, 0))
    assert_close(weights_from(far_apart), right)


def test_the_theorem_says_how_many_samples():
    samples = clustered_means(2000, 0)
    exact = cluster_samples(50**0.5, noise=1.0, dimension=20.0)  # 12.8, rounded up
    # The largest of 20 sampled eigenvalues cancels: only the trace matters.
    assert samples_needed(samples, 50**0.5) == exact == 13


def test_unlabelled_samples_show_features_and_not_labelling():
    by_features = federation_of(features=1.5)
    by_labels = federation_of(labels=1.0)
    right = same_cluster(CLUSTERS)
    for name in ("means", "mmd"):
        found = weights(f"unlabelled_{name}(50)", by_features)
        assert_close(found, right)
    assert_close(weights("moments(50)", by_labels), right)
    refuses("no gap", weights, "unlabelled_moments(50)", by_labels)
    with pytest.raises(InputError, match="no gap"):  # means of labels are equal too
        weights("means(50)", by_labels)


@pytest.mark.parametrize("name", ["means", "mmd", "sliced"])
def test_recipes_find_clusters_of_features(name):
    assert_close(
        weights(f"{name}(50)", federation_of(features=3.0)), same_cluster(CLUSTERS)
    )


def test_moments_of_a_recipe_are_first_and_second():
    samples = samples_of(federation_of(features=2.0), labelled=False)
    plain, found = moment_distances(samples, order=2), ESTIMATES["moments"](samples)
    # Means of 2 and -2 have the same squares; beside a 1, each mean stands twice.
    means = moment_distances(samples).squared
    assert_close(found.squared - plain.squared, 2 * means)


def test_digits_that_are_named_differently_are_told_apart():
    table = load("digits")
    federation = divide(table, "label_swap", seed=0, clients=4)
    right = same_cluster(torch.arange(4) % 2)
    assert_close(weights("mmd(200)", federation), right)
    refuses("no gap", weights, "unlabelled_mmd(200)", federation)


def test_more_samples_than_are_compared_one_by_one_go_by_frequencies(monkeypatch):
    from coterie.similarity import partners

    exact = weights("mmd(50)", federation_of(features=2.0))
    monkeypatch.setattr(partners, "_EXACT", 0)
    assert_close(weights("mmd(50)", federation_of(features=2.0)), exact)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("means", "needs a whole number of samples"),
        ("mmd(10.5)", "needs a whole number of samples"),
        ("mmd(10, 1, 2)", "may have a threshold"),
        ("moments(3)", "`weights` must be at least 4, got 3"),
        ("means(60)", "client 0 has 60 training samples, got 60"),
        ("sliced(8)", "at least 10 of every client for 5 folds"),
        ("mmd(20, -1)", "`threshold` must be at least 0"),
        ("mdd(20)", "Did you mean 'mmd'"),
    ],
)
def test_wrong_recipes_are_refused(choice, message):
    refuses(message, weights, choice, federation_of())


def test_a_threshold_in_the_recipe_is_used():
    federation = federation_of(features=2.0)
    for threshold, expected in ((1e4, torch.full((6, 6), 1 / 6)), (0, torch.eye(6))):
        found = weights(f"means(50, {threshold:g})", federation)
        assert_close(found, expected)


def linear_clients(federation: Federation, batch_size: int = 8) -> Simulation:
    module = models.build(lambda: models.linear((4,), 1, bias=False), 0, REAL)
    return Simulation(federation, module, batch_size=batch_size, dtype=REAL)


def gradient_of(federation: Federation, i: int, x: torch.Tensor) -> torch.Tensor:
    index = federation.train.rows(torch.tensor([i]))[0][0]
    rows, targets = federation.features[index], federation.targets[index]
    return 2 * rows.T @ (rows @ x - targets) / len(rows)


def test_gradient_distances_tell_clusters_apart():
    federation = federation_of(labels=1.0)
    oracle = linear_clients(federation).at(0)
    x = torch.zeros(6, 4, dtype=REAL)
    found = gradient_distances(oracle, x)
    assert_close(weights_from(found), same_cluster(CLUSTERS).to(REAL))
    g = torch.stack([gradient_of(federation, i, x[0]) for i in range(6)])
    plain = torch.cdist(g, g).square()
    # The plain distance has noise on top, and both the same distance of 16 beneath.
    assert found.squared[~SAME].mean() == pytest.approx(
        float(plain[~SAME].mean()), rel=0.1
    )
    assert found.squared[SAME].abs().mean() < 1.0


def test_gradient_distances_of_equal_clients_are_zero_within_their_error():
    ratio = []
    x = torch.ones(6, 4, dtype=REAL)
    run = linear_clients(federation_of())
    for t in range(20):
        found = gradient_distances(run.at(t), x, samples=30)
        ratio.append(found.squared[0, 1:] / found.error[0, 1:])
    assert (torch.cat(ratio).abs() < 2.5).double().mean() > 0.9


@pytest.mark.parametrize("absent", [2, 4])
def test_distances_of_inactive_clients_are_unknown(absent):
    federation, x = federation_of(), torch.zeros(6, 4, dtype=REAL)
    active = torch.arange(6) != absent
    oracle = linear_clients(federation).at(0, active)
    gaps = generalisation_gaps(oracle, x, federation.train.size, batch_size=8)
    for found in (gradient_distances(oracle, x), gaps):
        assert found.error[absent].isinf().tolist() == active.tolist()
    assert not gaps.error[0].isinf().any()


def test_gaps_are_differences_of_losses_on_samples_set_aside():
    aside, rest = split_for_partners(federation_of(labels=1.0), 30)
    models_of = []
    for i in range(6):
        index = rest.train.rows(torch.tensor([i]))[0][0]
        models_of.append(
            torch.linalg.lstsq(rest.features[index], rest.targets[index]).solution
        )
    x = torch.stack(models_of)
    run = linear_clients(aside)
    found = generalisation_gaps(
        run.at(0), x, aside.train.size, batch_size=8, batches=80
    )
    expected, spread = torch.zeros(2, 6, 6, dtype=REAL)
    for i in range(6):
        index = aside.train.rows(torch.tensor([i]))[0][0]
        miss = (aside.features[index] @ x.T - aside.targets[index, None]).square()
        expected[i] = (miss - miss[:, i, None]).mean(0)
        spread[i] = (miss - miss[:, i, None]).std(0, unbiased=False) / 30**0.5
    assert_close(found.squared, expected)
    # 80 minibatches give a standard deviation within eight percent, four times.
    assert_close(found.error, spread, rtol=0.3, atol=1e-6)
    assert_close(weights_from(found, 1.0), same_cluster(CLUSTERS).to(REAL))


def test_the_map_marks_what_the_data_support():
    figure = similarity_map(LINE, 3.0, names=["a", "b<", "c"])
    heat, near, undecided = figure.data
    assert heat.z[0][2] == 3.0
    assert {(int(a), int(b)) for a, b in zip(near.x, near.y, strict=True)} == {
        (0, 1),
        (1, 0),
    }
    assert len(undecided.x) == 2
    assert "b&lt;" in heat.customdata[0][1]
    with pytest.raises(InputError, match="`names` must have 3 entries, got 1"):
        similarity_map(LINE, 3.0, names=["a"])


def test_bad_verdicts_are_refused():
    with pytest.raises(InputError, match=r"`confidence` must be at least 0\.5"):
        classify_pairs(LINE, 1.0, confidence=0.1)
    refuses("`threshold` must be at least 0", classify_pairs, LINE, -1.0)
    with pytest.raises(InputError, match="`separation` must be greater than 0"):
        samples_needed(clustered_means(4, 0), 0.0)
    with pytest.raises(InputError, match="`batch_size` must be at least 1"):
        x = torch.zeros(6, 4, dtype=REAL)
        oracle = linear_clients(federation_of()).at(0)
        generalisation_gaps(oracle, x, torch.full((6,), 60), batch_size=0)
