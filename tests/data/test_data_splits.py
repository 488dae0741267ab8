from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.checks import InputError
from coterie.data import splits, synthetic
from coterie.data.federation import PARTS, Table
from coterie.data.splits import SPLITS, divide
from coterie.seeds import generator
from support.refusals import refusal, refuses

SMALL = {"fallah": {"a": 4, "clients": 6}}
LABEL_SPLITS = ["dirichlet", "fallah", "label_clusters", "label_swap", "shards"]


def class_table(samples: int = 300, classes: int = 5) -> Table:
    """Sample j has feature j, class j mod `classes` and natural client j mod 6."""
    place = torch.arange(samples)
    return Table(
        "labelled",
        place[:, None].float(),
        place % classes,
        "classification",
        classes,
        group=place % 6,
    )


def sizes(owner: torch.Tensor, clients: int) -> torch.Tensor:
    return torch.bincount(owner[owner >= 0], minlength=clients)


@pytest.mark.parametrize("name", SPLITS)
def test_parts_of_all_clients_are_disjoint_and_none_is_empty(name):
    federation = divide(class_table(), name, seed=1, **SMALL.get(name, {"clients": 6}))
    used = torch.cat([federation.part(part).index for part in PARTS])
    assert len(federation) == 6
    assert len(used.unique()) == len(used)
    if name != "fallah":
        assert len(used) == 300
    assert (federation.train.size >= 2).all()
    assert (federation.validation.size >= 1).all()
    assert (federation.test.size >= 1).all()


@pytest.mark.parametrize("name", SPLITS)
def test_the_seed_alone_decides_the_division(name):
    options = SMALL.get(name, {"clients": 6})
    first, again, other = (
        divide(class_table(), name, seed=seed, **options) for seed in (1, 1, 2)
    )
    assert torch.equal(first.train.index, again.train.index)
    assert torch.equal(first.targets, again.targets)
    assert not torch.equal(first.train.index, other.train.index)


@pytest.mark.parametrize("name", SPLITS)
def test_a_split_leaves_its_table_as_it_was(name):
    table = class_table()
    divide(table, name, seed=1, **SMALL.get(name, {"clients": 6}))
    for got, expected in zip(table, class_table(), strict=True):
        assert torch.equal(got, expected) if torch.is_tensor(got) else got == expected


@pytest.mark.parametrize("name", SPLITS)
def test_one_client_is_a_federation(name):
    federation = divide(
        class_table(), name, seed=0, **{**SMALL.get(name, {}), "clients": 1}
    )
    assert len(federation) == 1


@settings(max_examples=60, deadline=None)
@given(
    exponent=st.floats(-3, 2),
    clients=st.integers(1, 30),
    classes=st.integers(1, 6),
    min_size=st.integers(4, 12),
    seed=st.integers(0, 99),
)
def test_dirichlet_is_a_partition_with_min_size_for_any_alpha(
    exponent, clients, classes, min_size, seed
):
    table = class_table(clients * min_size + seed, classes)
    owner = splits.dirichlet(
        table, generator(seed), clients=clients, alpha=10.0**exponent, min_size=min_size
    ).owner
    assert int(owner.min()) >= 0
    assert len(sizes(owner, clients)) == clients
    assert int(sizes(owner, clients).min()) >= min_size


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(
        ["iid", "shards", "label_clusters", "label_swap", "size_skew"]
    ),
    clients=st.integers(1, 20),
    samples=st.integers(10, 400),
    min_size=st.integers(4, 12),
    seed=st.integers(0, 99),
)
def test_a_split_respects_min_size_or_refuses(name, clients, samples, min_size, seed):
    table = class_table(samples)
    try:
        owner = SPLITS[name](
            table, generator(seed), clients=clients, min_size=min_size
        ).owner
    except InputError:
        # Each is allowed to refuse only when there is no ample room.
        assert 3 * clients * min_size > samples
        return
    assert int(sizes(owner, clients).min()) >= min_size
    assert name == "label_clusters" or int(owner.min()) >= 0


@settings(max_examples=40, deadline=None)
@given(
    size=st.integers(4, 60),
    validation=st.floats(0.01, 0.45),
    test=st.floats(0.01, 0.45),
    seed=st.integers(0, 99),
)
def test_parts_have_the_asked_shares_and_enough_samples(size, validation, test, seed):
    federation = divide(
        class_table(3 * size),
        "iid",
        seed=seed,
        clients=3,
        min_size=4,
        validation=validation,
        test=test,
    )
    train, chosen, tested = (int(federation.part(part).size[0]) for part in PARTS)
    assert train >= 2 and chosen >= 1 and tested >= 1
    assert train + chosen + tested == size
    if size >= 40:
        assert abs(tested - test * size) <= 1
        assert abs(chosen - validation * size) <= 1


def test_iid_sizes_differ_by_at_most_one():
    owner = splits.iid(class_table(301), generator(0), clients=7).owner
    assert int(sizes(owner, 7).max() - sizes(owner, 7).min()) <= 1


def test_a_small_alpha_gives_each_class_to_one_client_and_a_large_one_to_all():
    table = class_table(4000, 4)
    for alpha, least, most in ((1e-3, 0.95, 1.0), (1e4, 0.0, 0.3)):
        owner = splits.dirichlet(
            table, generator(3), clients=5, alpha=alpha, min_size=4
        ).owner
        counts = torch.bincount(owner * 4 + table.targets, minlength=20).reshape(5, 4)
        largest = counts.max(0).values / counts.sum(0)
        assert ((least <= largest) & (largest <= most)).all()


def test_dirichlet_shares_have_the_moments_of_the_law():
    # E = 1/n and Var = (1/n)(1 - 1/n)/(n alpha + 1), whatever alpha is.
    for alpha in (1e-3, 0.1, 1.0, 10.0):
        shares = splits._dirichlet(alpha, 20_000, 2, generator(0))
        torch.testing.assert_close(shares.sum(1), torch.ones(20_000).double())
        assert abs(float(shares[:, 0].mean()) - 0.5) < 0.02
        expected = 0.25 / (2 * alpha + 1)
        assert abs(float(shares[:, 0].var()) / expected - 1) < 0.05


def test_repair_moves_only_what_is_missing():
    counts = torch.tensor([[90, 0, 5], [10, 2, 0]])
    filled = splits._top_up(counts, 5)
    assert filled.tolist() == [[87, 3, 5], [10, 2, 0]]


def test_shards_give_few_labels_to_each_client():
    table = class_table(600, 10)
    owner = splits.shards(table, generator(0), clients=10, labels_per_client=2).owner
    for client in range(10):
        assert len(table.targets[owner == client].unique()) <= 3
        assert int((owner == client).sum()) == 60


@pytest.mark.parametrize(
    ("classes", "clusters", "groups"),
    [
        (10, 2, [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]),
        (5, 2, [[0, 1, 2], [3, 4]]),
        (6, 3, [[0, 1], [2, 3], [4, 5]]),
    ],
)
def test_label_clusters_divide_the_classes_in_equal_groups(classes, clusters, groups):
    table = class_table(600, classes)
    result = splits.label_clusters(table, generator(0), clients=6, clusters=clusters)
    assert result.clusters.tolist() == [i % clusters for i in range(6)]
    for client in range(6):
        seen = table.targets[result.owner == client].unique().tolist()
        assert seen == groups[client % clusters]


@settings(max_examples=20, deadline=None)
@given(classes=st.integers(2, 8), seed=st.integers(0, 99))
def test_label_swap_renames_every_class_of_odd_clients_in_one_way(classes, seed):
    table = class_table(400, classes)
    owner, clusters, targets, *_ = splits.label_swap(table, generator(seed), clients=4)
    assert clusters.tolist() == [0, 1, 0, 1]
    even = owner % 2 == 0
    assert torch.equal(targets[even], table.targets[even])
    pairs = torch.stack([table.targets[~even], targets[~even]]).unique(dim=1)
    assert pairs.shape == (2, classes)
    assert (pairs[0] != pairs[1]).all()
    assert pairs[1].sort().values.tolist() == list(range(classes))


def test_fallah_gives_the_numbers_of_the_paper():
    table = class_table(4000, 10)
    owner, clusters, *_ = splits.fallah(table, generator(0), clients=50, a=8)
    counts = torch.stack(
        [torch.bincount(table.targets[owner == i], minlength=10) for i in range(50)]
    )
    assert (counts[::2] == torch.tensor([8] * 5 + [0] * 5)).all()
    for row in counts[1::2]:
        assert sorted(row[:5].tolist()) == [0, 0, 0, 0, 4]
        assert sorted(row[5:].tolist()) == [0, 0, 0, 0, 16]
    # "The distribution of images over all the users are different."
    assert len(counts[1::2].unique(dim=0)) == 25
    assert counts[1::2].sum(0).tolist() == [20] * 5 + [80] * 5
    assert len(clusters.unique()) == 26


def test_fallah_without_lower_class_has_as_many_clusters_as_upper_classes():
    result = splits.fallah(
        class_table(4000, 10), generator(0), clients=50, a=8, low=0.0
    )
    assert len(result.clusters.unique()) == 6


def test_size_skew_follows_the_power_law_above_min_size():
    owner = splits.size_skew(
        class_table(1040), generator(0), clients=4, exponent=1.0, min_size=10
    ).owner
    law = torch.tensor([1, 1 / 2, 1 / 3, 1 / 4])
    expected = 10 + 1000 * law / law.sum()
    assert ((sizes(owner, 4) - expected).abs() <= 1).all()


def test_natural_clients_keep_their_samples_clusters_and_optima():
    table = synthetic.linear(clients=5, dimension=3, samples=20, variation=0.1)
    federation = divide(table, "natural", seed=0, clients=3)
    assert len(federation) == 3
    assert federation.clusters.tolist() == [0, 1, 0]
    torch.testing.assert_close(federation.optima, table.optima[:3])
    for part in PARTS:
        index, start, size = federation.part(part)
        for i in range(3):
            assert (table.group[index[start[i] : start[i] + size[i]]] == i).all()


def test_a_fixed_test_part_is_kept_by_natural_clients_only():
    fixed = torch.arange(300) % 12 < 6
    table = class_table()._replace(is_test=fixed)
    natural = divide(table, "natural", seed=0, validation=0.2)
    assert natural.test.index.sort().values.tolist() == fixed.nonzero()[:, 0].tolist()
    assert natural.validation.size.tolist() == [5] * 6
    assert natural.train.size.tolist() == [20] * 6
    pooled = divide(table, "iid", seed=0, clients=6)
    assert pooled.test.size.tolist() == [10] * 6


def test_max_samples_caps_every_client():
    federation = divide(class_table(), "size_skew", seed=0, clients=4, max_samples=40)
    total = sum(federation.part(part).size for part in PARTS)
    assert total.tolist() == [40, 40, 40, 40]


def test_a_single_class_is_legal_unless_two_are_asked_for():
    table = class_table(300, 2)
    divide(table, "label_clusters", seed=0, clients=4)
    message = r"`min_classes` is 2, .* client 0 .* have only 1"
    refuses(message, divide, table, "label_clusters", seed=0, clients=4, min_classes=2)
    divide(table, "iid", seed=0, clients=4, min_classes=2)


def test_moving_a_federation_moves_what_is_known_of_the_clients():
    table = synthetic.linear(clients=3, dimension=2, samples=10)
    moved = divide(table, "natural", seed=0).to("cpu", torch.float32)
    assert moved.features.dtype == moved.optima.dtype == torch.float32
    assert moved.clusters.dtype == torch.int64


@pytest.mark.parametrize("name", LABEL_SPLITS)
def test_splits_by_label_refuse_regression(name):
    table = synthetic.linear(clients=3, dimension=2, samples=100)
    refuses(f"{name} needs classes, .* is regression", divide, table, name, seed=0)


def test_misspelt_options_and_names_are_answered_with_a_suggestion():
    def refused(name: str, **options: object) -> str:
        return refusal(divide, class_table(), name, seed=0, **options)

    message = "[split] dirichlet has no option 'alfa'. Did you mean 'alpha'?"
    assert refused("dirichlet", alfa=0.1) == message
    assert "Did you mean 'dirichlet'" in refused("dirichlett")
    assert "has no option 'rng'" in refused("iid", rng=1, table=2)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("iid", {"clients": 0}, "`clients` must be at least 1"),
        ("iid", {"clients": 40}, "40 clients of at least 10 samples need 400"),
        ("iid", {"min_size": 3}, "`min_size` must be at least 4"),
        ("iid", {"test": 1.0}, "`test` must be less than 0.9"),
        ("iid", {"validation": -0.1}, "`validation` must be at least 0"),
        ("iid", {"max_samples": 2}, "`max_samples` must be at least 4"),
        ("dirichlet", {"alpha": 0.0}, "`alpha` must be at least 1e-06"),
        ("label_clusters", {"clusters": 6}, "`clusters` must be at most 5"),
        ("shards", {"labels_per_client": 90}, "1800 samples, but `labelled` has 300"),
        ("fallah", {"clients": 50}, "use fewer clients or a smaller a"),
        ("size_skew", {"exponent": -1.0}, "`exponent` must be at least 0"),
        ("natural", {"clients": 7}, "`clients` must be at most 6"),
        ("natural", {"min_size": 51}, "client 0 of `labelled` has 50"),
    ],
)
def test_impossible_wishes_are_refused_by_name_and_value(name, options, message):
    refuses(message, divide, class_table(), name, seed=0, **options)


def test_natural_needs_groups():
    with pytest.raises(InputError, match="`labelled` has no natural clients"):
        divide(class_table()._replace(group=None), "natural", seed=0)


def test_labels_and_features_that_make_no_sense_are_refused_naming_the_sample():
    table = class_table()
    labels = table.targets.clone()
    labels[7] = 5
    with pytest.raises(InputError, match="from 0 to 4, but sample 7 has 5"):
        divide(table._replace(targets=labels), "iid", seed=0)
    binary = table._replace(task="binary", outputs=1)
    refuses("from 0 to 1, but sample 2 has 2", divide, binary, "iid", seed=0)
    features = table.features.clone()
    features[9] = torch.nan
    with pytest.raises(InputError, match="`features` must be finite, but row 9"):
        divide(table._replace(features=features), "iid", seed=0)
    with pytest.raises(InputError, match="`features` of `labelled` must have one row"):
        divide(table._replace(features=features[:5]), "iid", seed=0)


def test_a_client_whose_samples_are_all_for_testing_is_refused():
    table = class_table()
    with pytest.raises(InputError, match="client 2 has 0"):
        divide(table._replace(is_test=table.group == 2), "natural", seed=0)
    with pytest.raises(InputError, match="every client needs test data"):
        none = torch.zeros(300, dtype=torch.bool)
        divide(table._replace(is_test=none), "natural", seed=0)
