"""Claims about dissimilarities: metric axioms, one dimension, costs."""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import pytest
import torch
from scipy.stats import wasserstein_distance
from torch.testing import assert_close

from coterie import seeds
from coterie.checks import InputError
from coterie.data.federation import Table
from coterie.similarity import transport
from support.federations import divided, samples

REAL = torch.float64
# Rounding of sums of some hundred products.
EXACT = {"rtol": 1e-10, "atol": 1e-12}


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=rng, dtype=REAL)


def distance(reference, first, second, cost=transport.euclidean) -> float:
    phi = [transport.embedding(reference, data, cost) for data in (first, second)]
    return float(transport.embedding_distances(torch.stack(phi))[0, 1])


@pytest.mark.parametrize("seed", range(8))
def test_on_a_line_it_is_the_wasserstein_distance_times_the_root_of_the_reference(seed):
    size = 5 + seed
    reference, first = normal(size, 1, seed=seed), 3 * normal(size, 1, seed=seed + 50)
    second = normal(size, 1, seed=seed + 90) - seed
    exact = wasserstein_distance(first[:, 0].numpy(), second[:, 0].numpy())
    assert distance(reference, first, second) == pytest.approx(math.sqrt(size) * exact)


def test_on_a_line_samples_that_share_a_place_in_the_reference_are_averaged():
    # Six samples to three of the reference: neighbours in pairs, in order.
    reference = torch.tensor([[5.0], [-5.0], [0.0]], dtype=REAL)
    data = torch.tensor([[7.0], [1.0], [2.0], [9.0], [4.0], [3.0]], dtype=REAL)
    moved = reference + math.sqrt(3) * transport.embedding(reference, data)
    assert_close(moved, torch.tensor([[8.0], [1.5], [3.5]], dtype=REAL), **EXACT)


def test_averaging_makes_it_smaller_than_the_wasserstein_distance_and_not_larger():
    for seed in range(6):
        first, second = normal(40, 1, seed=seed), 2 * normal(25, 1, seed=seed + 50)
        exact = wasserstein_distance(first[:, 0].numpy(), second[:, 0].numpy())
        found = distance(normal(10, 1, seed=9), first, second) / math.sqrt(10)
        assert 0 < found <= exact + 1e-12


def test_it_grows_linearly_with_a_shift():
    reference, data = normal(12, 1), normal(20, 1, seed=1)
    for shift in (0.1, 1.0, 50.0):
        found = distance(reference, data, data + shift)
        assert found == pytest.approx(math.sqrt(12) * shift)


@pytest.mark.parametrize("d", [1, 3])
def test_it_is_a_metric(d):
    reference = normal(7, d)
    data = [normal(4 + i, d, seed=i) * (1 + i) for i in range(6)]
    phi = torch.stack([transport.embedding(reference, rows) for rows in data])
    distance = transport.embedding_distances(phi)
    assert torch.equal(distance, distance.T)
    assert not distance.diagonal().any()
    assert (distance + torch.eye(6) > 0).all()
    detour = distance[:, :, None] + distance[None]  # i to j to k
    assert (distance[:, None] <= detour + 1e-12).all()
    loop = [[float((a - b).abs().sum()) for b in phi] for a in phi]
    assert_close(distance, torch.tensor(loop, dtype=REAL), **EXACT)


@pytest.mark.parametrize("cost", [transport.euclidean, transport.cosine_hellinger(2)])
@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_equal_data_are_not_different_in_whatever_order_and_multiplicity(cost, scale):
    label = torch.tensor([0, 1, 1, 2, 0, 2, 1])
    response = torch.nn.functional.one_hot(label, 3).to(REAL)
    data = torch.cat([scale * normal(7, 2), response], 1)
    reference = torch.cat(
        [normal(9, 2, seed=3), response[[0, 1, 2, 3, 4, 5, 6, 0, 1]]], 1
    )
    for same in (data, data.flip(0), data.repeat(3, 1)):
        assert distance(reference, data, same, cost) == pytest.approx(0, abs=1e-9)


def test_ties_are_broken_by_order_on_a_line_where_every_plan_costs_the_same():
    reference = torch.tensor([[-3.0], [-2.0], [-1.0]], dtype=REAL)  # left of all data
    data = torch.tensor([[4.0], [1.0], [2.0]], dtype=REAL)
    moved = reference + math.sqrt(3) * transport.embedding(reference, data)
    assert_close(moved, torch.tensor([[1.0], [2.0], [4.0]], dtype=REAL), **EXACT)


def test_costs_are_what_they_say():
    first = torch.tensor([[3.0, 4.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]], dtype=REAL)
    second = torch.tensor([[6.0, 8.0, 0.0, 1.0], [4.0, -3.0, 1.0, 0.0]], dtype=REAL)
    expected = [[math.sqrt(27), math.sqrt(50)], [10.0, math.sqrt(27)]]
    found = transport.euclidean(first, second)
    assert_close(found, torch.tensor(expected, dtype=REAL))
    # The first two point the same way and name other classes; the second of the second
    # is orthogonal to the first; a vector of zeros to all.
    expected = [[0.0 + 1.0, 1.0 + 0.0], [1.0 + 0.0, 1.0 + 1.0]]
    found = transport.cosine_hellinger(2)(first, second)
    assert_close(found, torch.tensor(expected, dtype=REAL))
    # Hellinger: 1/2 sum (sqrt p - sqrt q)^2 = 1 - sum sqrt(p q)
    p, q = (
        torch.tensor([[0.2, 0.8]], dtype=REAL),
        torch.tensor([[0.5, 0.5]], dtype=REAL),
    )
    distance = transport.cosine_hellinger(0)(p, q) - 1
    assert_close(distance.square(), 1 - (p * q).sqrt().sum(1, keepdim=True))


def test_samples_are_features_and_response_of_the_training_part(classification, images):
    rows = transport.client_rows(classification, 2)
    index = classification.only(2).train.index
    features = classification.only(2).features[index]
    targets = classification.only(2).targets[index]
    assert torch.equal(rows[:, :12], features)
    assert torch.equal(rows[:, 12:].argmax(1), targets)
    assert torch.equal(rows[:, 12:].sum(1), torch.ones(len(rows), dtype=REAL))
    assert transport.client_rows(images, 1).shape == (3, 100 + 3)


def test_a_number_is_one_column_and_a_label_of_two_is_two(regression):
    rows = transport.client_rows(regression, 0)
    index = regression.only(0).train.index
    assert torch.equal(rows[:, 5], regression.only(0).targets[index])
    binary = replace(regression, task="binary", targets=(regression.targets > 0).long())
    rows = transport.client_rows(binary, 0)
    assert rows.shape == (7, 5 + 2)
    assert torch.equal(rows[:, 6] == 1, binary.only(0).targets[index] == 1)


def test_only_training_data_and_only_ones_own_matter(regression):
    plain = transport.dissimilarities(regression, size=8)
    features = torch.full_like(regression.features, math.nan)
    features[regression.train.index] = regression.features[regression.train.index]
    spoilt = replace(regression, features=features)
    assert torch.equal(transport.dissimilarities(spoilt, size=8), plain)
    some = torch.tensor([4, 1, 2])
    few = transport.dissimilarities(regression.select(some), size=8)
    assert_close(few, plain[some][:, some], **EXACT)


def test_large_clients_may_use_some_of_their_samples(regression):
    # Client 2 has nine samples, and nobody else more than eight.
    few = transport.client_rows(regression, 2, 8)
    every = transport.client_rows(regression, 2)
    assert len(few) == 8
    assert len(torch.cat([few, every]).unique(dim=0)) == 9
    assert torch.equal(few, transport.client_rows(regression, 2, 8))
    assert torch.equal(
        transport.client_rows(regression, 0, 8), transport.client_rows(regression, 0)
    )


def two_clusters(task: str):
    """Six clients in two clusters, whose responses depend on the cluster."""
    rng = seeds.generator("tests", "transport")
    sizes = (40,) * 6
    count = samples(sizes)
    features = torch.randn(count, 3, generator=rng, dtype=REAL)
    owner = torch.arange(6).repeat_interleave(43)
    flip = 1 - 2 * (owner % 2)
    if task == "regression":
        targets = 2 * flip * features[:, 0]
        return divided(Table("two", features, targets, task, 1), sizes)
    targets = (flip * features[:, 0] > 0).long()
    return divided(Table("two", features, targets, task, 2), sizes)


@pytest.mark.parametrize(
    ("task", "cosine"),
    [("regression", False), ("classification", False), ("classification", True)],
)
def test_clients_whose_responses_differ_are_further_apart(task, cosine):
    distance = transport.dissimilarities(two_clusters(task), size=40, cosine=cosine)
    cluster = torch.arange(6) % 2
    same = cluster[:, None] == cluster
    apart = distance[~same]
    alike = distance[same & ~torch.eye(6, dtype=torch.bool)]
    assert alike.mean() < apart.mean()
    assert alike.max() < apart.max()


def test_the_cosine_cost_needs_classes(regression):
    with pytest.raises(InputError, match="but the task of `regression` is regression"):
        transport.dissimilarities(regression, cosine=True)


def test_without_the_package_of_transport_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ot", None)
    with pytest.raises(InputError, match=r"package `pot` \(pip install pot\)"):
        transport.embedding(normal(3, 2), normal(4, 2))
