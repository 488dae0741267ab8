"""Claims about data sets of torch as tables."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import coterie as co
from coterie.data import divide, from_torch
from support.refusals import refusal

X = torch.arange(48.0).reshape(24, 2)
Y = torch.arange(24) % 3
WHO = torch.arange(24) // 8


class Samples(Dataset):
    """Samples as a list holds them."""

    def __init__(self, samples: list) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, k: int):
        return self.samples[k]


def dictionaries(**more) -> Samples:
    names = ["Zug", "Bern", "Chur"]
    return Samples(
        [{"image": X[k], "label": int(Y[k]), "site": names[WHO[k]]} for k in range(24)]
    )


def test_clients_come_from_a_list_an_array_or_a_part_of_the_samples():
    plain = TensorDataset(X, Y)
    wanted = from_torch(plain, WHO)
    others = [
        from_torch(plain, WHO.tolist()),
        from_torch(plain, WHO.numpy()),
        from_torch(plain, WHO.double().numpy()),
        from_torch(TensorDataset(X, Y, WHO), 2),
        from_torch(TensorDataset(WHO, Y, X), 0, features=2),
        from_torch(Samples(list(zip(X, Y, WHO, strict=True))), 2),
    ]
    for found in others:
        for name in ("features", "targets", "group"):
            assert torch.equal(getattr(found, name), getattr(wanted, name))
        assert (found.task, found.outputs, found.names) == ("classification", 3, ())


def test_clients_with_names_are_sorted_by_name():
    table = from_torch(dictionaries(), "site", features="image", target="label")
    assert table.names == ("Bern", "Chur", "Zug")
    assert torch.equal(table.group, torch.tensor([2, 0, 1])[WHO])
    assert torch.equal(table.features, X) and torch.equal(table.targets, Y)


def test_clients_with_numbers_for_names_are_sorted_by_value():
    found = from_torch(TensorDataset(X[:3], Y[:3]), ["10", "09", "8"])
    assert found.names == ("8", "09", "10") and found.group.tolist() == [2, 1, 0]


def test_test_samples_of_clients_stay_test_samples():
    test = TensorDataset(X[:6] + 100, Y[:6], torch.tensor([0, 0, 0, 1, 2, 2]))
    table = from_torch(TensorDataset(X, Y, WHO), 2, test=test)
    federation = divide(table, "natural", seed=0, validation=0.25)
    assert federation.test.size.tolist() == [3, 1, 2]
    assert federation.validation.size.tolist() == [2, 2, 2]
    tested = federation.features[federation.test.index]
    assert torch.equal(tested.sort(0).values, X[:6] + 100)
    listed = from_torch(
        TensorDataset(X, Y), WHO, test=test, test_client=[0, 0, 0, 1, 2, 2]
    )
    assert torch.equal(listed.group, table.group)


def test_a_table_of_torch_can_be_trained_on(tmp_path):
    table = from_torch(TensorDataset(X, Y), WHO)
    result = co.train(table, method="local", rounds=1, runs=tmp_path)
    assert result.models().shape[0] == 3


def test_without_clients_a_split_makes_them():
    table = from_torch(TensorDataset(X, Y))
    assert table.group is None
    assert len(divide(table, "iid", seed=0, clients=2)) == 2


class Endless(IterableDataset):
    """A stream of samples."""

    def __iter__(self):
        yield X[0], 0


SAMPLES = TensorDataset(X, Y)
REFUSED = {
    "length": ((SAMPLES, [0] * 23), {}, "the client of each of the 24 samples, got 23"),
    "names": ((SAMPLES, [0.5] * 24), {}, "sample 0 has 0.5"),
    "empty": ((SAMPLES, ["a", ""] * 12), {}, "sample 1 has ''"),
    "none": ((SAMPLES, [None] * 24), {}, "sample 0 has None"),
    "table": ((SAMPLES, torch.zeros(24, 2)), {}, "must be a list or array with the"),
    "no part": ((SAMPLES, 2), {}, "have 2 parts, but part 2 was asked for"),
    "stream": ((Endless(), 2), {}, "must be a map-style torch Dataset"),
    "key": ((dictionaries(), "who"), {}, "with the parts [0, 1, 'who']"),
    "shapes": (
        (Samples([(X[0], 0), (X[:2], 1)]), [0, 1]),
        {},
        "must have one shape, but sample 1 has (2, 2) and sample 0 has (2,)",
    ),
    "text": ((Samples([("a", 0)] * 2), [0, 1]), {}, "must be numbers"),
    "flat": ((TensorDataset(Y, Y), WHO), {}, "must have features in a row or an image"),
    "stranger": (
        (SAMPLES, WHO),
        {"test": SAMPLES, "test_client": WHO + 1},
        "every client with test data needs training data, but client 3 has none",
    ),
    "no clients": ((SAMPLES,), {"test": SAMPLES}, "`test` needs `client`"),
    "no list": ((SAMPLES, WHO), {"test": SAMPLES}, "`test_client` must name the"),
    "test shape": (
        (TensorDataset(X, Y, WHO), 2),
        {"test": TensorDataset(X[:, :1], Y, WHO)},
        "must have the shapes of those of `dataset`",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_datasets_are_refused_in_one_sentence(case):
    given, options, message = REFUSED[case]
    assert message in refusal(from_torch, *given, **options)
