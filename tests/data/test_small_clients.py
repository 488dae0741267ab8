"""Claims about natural clients that are too small for a study."""

from __future__ import annotations

import pytest
import torch

import coterie as co
from coterie.checks import InputError
from coterie.data import divide

NAMES = ("Aarau", "Bern", "Chur", "Zug")


def table(sizes: list[int], *, named: bool = True, **more) -> co.Table:
    group = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    x = torch.randn(len(group), 2, generator=torch.Generator().manual_seed(0))
    names = NAMES[: len(sizes)] if named else ()
    labels = (x[:, 0] > 0).long()
    return co.Table("my", x, labels, "binary", 1, group=group, names=names, **more)


def test_the_others_have_the_parts_that_they_have_without_them():
    whole = divide(table([3, 12, 0, 15]), "natural", seed=0)
    assert whole.names == ("Bern", "Zug") and len(whole) == 2
    assert whole.left_out == ("Aarau (3 samples)", "Chur (0 samples)")
    full = table([12, 15])
    alone = divide(full._replace(names=("Bern", "Zug")), "natural", seed=0)
    sizes = [part.size.tolist() for part in (whole.train, whole.test)]
    assert sizes == [part.size.tolist() for part in (alone.train, alone.test)]


def test_those_who_have_no_names_keep_their_numbers():
    found = divide(table([3, 12, 15], named=False), "natural", seed=0)
    assert found.left_out == ("client 0 (3 samples)",)
    assert [found.name_of(k) for k in range(2)] == ["client 1", "client 2"]


def test_what_is_known_of_clients_goes_with_them():
    clusters = torch.tensor([5, 6, 7])
    found = divide(table([3, 12, 15], clusters=clusters), "natural", seed=0)
    assert found.clusters.tolist() == [6, 7]


def test_a_fixed_test_part_may_leave_too_little():
    is_test = torch.zeros(40, dtype=torch.bool)
    is_test[[0, 10, 11, 12, 13, 14, 15, 16, 17, 30]] = True
    found = divide(table([10, 10, 10, 10], is_test=is_test), "natural", seed=0)
    assert found.left_out == (
        "Bern (2 samples to train on)",
        "Chur (nothing to test on)",
    )


def test_with_fewer_than_two_others_they_are_refused():
    with pytest.raises(InputError, match="at least 4 samples, but Aarau of `my` has 3"):
        divide(table([3, 12]), "natural", seed=0)


def one_class(sizes, first: int):
    made = table(sizes)
    return made._replace(targets=torch.where(made.group < first, 1, made.targets))


def test_clients_of_one_class_stop_nobody_and_are_named(tmp_path):
    tables = {"algorithm": [{"name": "local"}], "run": {"rounds": 1}}
    said: list[str] = []
    study = co.study_of(tables, data=one_class([12, 12, 15], 1))
    co.run_study(study, runs=tmp_path, notice=said.append)
    assert any(
        line.startswith("all training data of Aarau are of one") for line in said
    )
    message = "the training data of Aarau of `my` have only 1"
    with pytest.raises(InputError, match=message):
        tables["split"] = {"min_classes": 2}
        co.run_study(co.study_of(tables, data=study.given), runs=tmp_path)


def test_clients_who_all_have_one_class_are_refused(tmp_path):
    tables = {"algorithm": [{"name": "local"}], "run": {"rounds": 1}}
    message = "the training data of Aarau of `my` have only 1"
    with pytest.raises(InputError, match=message):
        co.run_study(co.study_of(tables, data=one_class([12, 12], 2)), runs=tmp_path)
