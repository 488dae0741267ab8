"""Claims about the parts of clients: they depend on their own samples and names."""

from __future__ import annotations

import struct
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import torch

from coterie import seeds
from coterie.data import Column, Schema, Table, divide
from coterie.data.federation import PARTS, Federation, short_name
from coterie.data.files import table
from coterie.data.parts import contents
from coterie.study.search import folds_of
from support.refusals import refusal

REMARKS = {"Basel": ["none", "old"], "Bern": ["none"], "Chur": ["new", "old"]}


def patients() -> pd.DataFrame:
    """Hospitals that do not use the same words, with gaps and with copies."""
    rng = np.random.default_rng(0)
    rows = []
    for hospital, remarks in REMARKS.items():
        for _ in range(24):
            row = {
                "hospital": hospital,
                "age": f"{rng.normal(55, 12):.0f}",
                "pressure": "" if rng.random() < 0.2 else f"{rng.normal(130, 15):.1f}",
                "sugar": "" if hospital == "Bern" else rng.choice(["high", "low"]),
                "remark": rng.choice([*remarks, ""]),
                "smokes": rng.choice(["true", "false"]),
                "outcome": rng.choice(["ill", "well"]),
            }
            rows += [row] * int(rng.choice([1, 1, 1, 4]))
    return pd.DataFrame(rows)


def divide_frame(frame: pd.DataFrame, folder, split: str = "natural", **options):
    path = folder / "patients.csv"
    frame.to_csv(path, index=False)
    read = table(path, client="hospital", target="outcome")
    return divide(read, split, seed=3, **options)


def samples(federation: Federation, part: str, client: int) -> list[tuple]:
    """A client's samples in a part as they stand in the file, in their order."""
    index, start, size = federation.part(part)
    schema, found = federation.schema, []
    for place in index[start[client] : start[client] + size[client]].tolist():
        row = {}
        for column, value in zip(schema.columns, federation.raw[place], strict=True):
            words, gap = column.categories, bool(value.isnan())
            value = float(value) if words is None or gap else words[int(value)]
            row[column.name] = "" if gap else value
        target = federation.classes[int(federation.targets[place])]
        found.append((*(row[name] for name in sorted(row)), target))
    return found


def parts(federation: Federation) -> dict[tuple[str, str], list[tuple]]:
    return {
        (short_name(federation.names, client), part): samples(federation, part, client)
        for client in range(len(federation))
        for part in PARTS
    }


OPTIONS = [{}, {"max_samples": 20}, {"validation": 0.3, "test": 0.1}]


@pytest.mark.parametrize("options", OPTIONS)
def test_a_site_alone_draws_the_parts_that_the_federation_gives_it(tmp_path, options):
    frame = patients()
    together = parts(divide_frame(frame, tmp_path, **options))
    alone = {}
    for name in REMARKS:
        alone |= parts(divide_frame(frame[frame.hospital == name], tmp_path, **options))
    assert alone == together


def test_a_site_alone_draws_the_same_validation_part_beside_a_fixed_test_part(tmp_path):
    frame = patients()
    frame["is_test"] = np.arange(len(frame)) % 3 == 0
    together = parts(divide_frame(frame, tmp_path))
    alone = parts(divide_frame(frame[frame.hospital == "Chur"], tmp_path))
    assert alone == {key: together[key] for key in alone}
    assert len(alone) == 3


def test_a_site_alone_draws_the_same_folds(tmp_path):
    frame = patients()
    together = folds_of(divide_frame(frame, tmp_path), 3, seed=1)
    alone = folds_of(divide_frame(frame[frame.hospital == "Chur"], tmp_path), 3, seed=1)
    for ours, all_of_them in zip(alone, together, strict=True):
        assert parts(ours).items() <= parts(all_of_them).items()


@pytest.mark.parametrize("split", ["natural", "iid", "dirichlet", "label_swap"])
def test_the_order_of_rows_clients_and_columns_changes_nothing(tmp_path, split):
    options = {} if split == "natural" else {"clients": 4}
    frame = patients()
    shuffled = frame.sample(frac=1, random_state=1)
    shuffled = shuffled[shuffled.columns[[3, 6, 0, 5, 1, 4, 2]]]
    one = divide_frame(frame, tmp_path, split, **options)
    two = divide_frame(shuffled, tmp_path, split, **options)
    assert parts(one) == parts(two)
    assert one.columns == two.columns
    for part in PARTS:
        ours, theirs = one.part(part), two.part(part)
        assert torch.equal(one.targets[ours.index], two.targets[theirs.index])
        # Means and deviations are sums of the same numbers in the same order.
        features = one.features[ours.index], two.features[theirs.index]
        torch.testing.assert_close(*features, rtol=1e-6, atol=1e-6)


def test_a_table_with_columns_in_another_order_has_the_same_parts():
    values = torch.randn(60, 3, dtype=torch.float64, generator=seeds.generator(0))
    group, names = torch.arange(60) % 2, ("age", "dose", "size")
    drawn = []
    for order in ([0, 1, 2], [2, 0, 1]):
        schema = Schema(tuple(Column(names[j]) for j in order), "none")
        whole = Table("", values[:, order], values[:, 0], "regression", 1, group=group)
        drawn.append(divide(whole._replace(schema=schema), "natural", seed=0))
    assert torch.equal(drawn[0].train.index, drawn[1].train.index)
    assert torch.equal(drawn[0].test.index, drawn[1].test.index)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.uint8])
def test_the_order_of_rows_of_arrays_changes_nothing(kind):
    rng = seeds.generator(0)
    images = torch.randint(0, 3, (90, 3, 5), generator=rng).to(kind)
    labels, group = torch.randint(0, 2, (90,), generator=rng), torch.arange(90) % 3
    whole = Table("", images, labels, "classification", 2, group=group)
    order = torch.randperm(90, generator=rng)
    moved = Table("", images[order], labels[order], "classification", 2, group[order])
    one, two = (divide(t, "natural", seed=0) for t in (whole, moved))
    for part in PARTS:
        ours, theirs = one.part(part).index, two.part(part).index
        assert torch.equal(one.features[ours], two.features[theirs])
        assert torch.equal(one.targets[ours], two.targets[theirs])


def test_the_content_of_a_sample_is_its_words_mixed_and_added():
    # SplitMix64 in whole numbers of Python, as Steele, Lea and Flood print it.
    def mix(z: int) -> int:
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return z ^ (z >> 31)

    golden = 0x9E3779B97F4A7C15

    def factor(place: int, *names: str) -> int:
        start = mix((golden + seeds.key("content", *names)) % 2**64)
        return mix((start + (place + 1) * golden) % 2**64) | 1

    features = torch.tensor([[1.5, -2.0, 0.25], [-0.0, 3.0, 1e-30]])
    labels = torch.tensor([1, 0])
    found = contents(Table("", features, labels, "classification", 2)).tolist()
    for row, label, got in zip(features.tolist(), labels.tolist(), found, strict=True):
        packed = struct.pack("<3f", *(value + 0.0 for value in row)) + bytes(4)
        total = mix(label) * factor(0, "targets")
        for place, word in enumerate(struct.unpack("<2Q", packed)):
            total += mix(word) * factor(place, "features")
        assert got % 2**64 == mix(total % 2**64)


def test_samples_differ_in_content_unless_they_are_equal():
    whole = torch.cartesian_prod(*[torch.arange(-3.0, 4.0)] * 4)
    for kind in (torch.float32, torch.float64):
        made = Table("", whole.to(kind), whole[:, 0], "regression", 1)
        assert len(contents(made).unique()) == len(whole)
    zeros = torch.tensor([[0.0, 1.0], [-0.0, 1.0]])
    one, two = contents(Table("", zeros, zeros[:, 0], "regression", 1)).tolist()
    assert one == two


def test_copies_of_a_sample_fall_into_all_parts():
    # A part of 40 among 100 + 100 copies lacks one kind with probability 1e-13.
    kind = torch.arange(200) % 2
    whole = Table("", kind[:, None].float(), kind, "binary", 1, group=0 * kind)
    made = divide(whole, "natural", seed=0, validation=0.2)
    for part in PARTS:
        assert len(made.targets[made.part(part).index].unique()) == 2


def test_every_sample_is_equally_likely_to_be_tested():
    place = torch.arange(20)
    whole = Table("", place[:, None].float(), 0.0 * place, "regression", 1, 0 * place)
    drawn = [divide(whole, "natural", seed=seed).test.index for seed in range(100)]
    share = torch.bincount(torch.cat(drawn), minlength=20) / 100
    # 4 of 20 samples; five deviations of a mean of 100 draws.
    assert ((share - 0.2).abs() < 5 * (0.16 / 100) ** 0.5).all()


def test_clients_with_the_same_samples_draw_parts_of_their_own():
    place = torch.arange(120)
    features = (place % 60)[:, None].float()
    whole = Table("", features, 0.0 * place, "regression", 1, group=place // 60)
    tests = divide(whole, "natural", seed=0).test.index.reshape(2, 12)
    assert set(tests[0].tolist()) != {index - 60 for index in tests[1].tolist()}


def test_another_sample_in_place_of_one_moves_at_most_one_other_at_each_border():
    def parts_of(first: float) -> dict[float, str]:
        values = torch.arange(50.0)
        values[0] = first
        whole = Table("", values[:, None], values, "regression", 1, values.long() * 0)
        found = divide(whole, "natural", seed=1)
        pieces = {part: found.targets[found.part(part).index] for part in PARTS}
        return {v: part for part, piece in pieces.items() for v in piece.tolist()}

    usual = parts_of(0.0)
    moved = [
        sum(usual[value] != now for value, now in parts_of(first).items() if value < 50)
        for first in torch.arange(100.0, 140.0).tolist()
    ]
    assert max(moved) <= 2
    assert Counter(moved).most_common(1)[0][0] < 2


@pytest.mark.parametrize("field", ["group", "is_test"])
def test_what_is_known_of_samples_has_one_value_for_each(field):
    features = torch.zeros(20, 1)
    short = {field: torch.zeros(19, dtype=torch.long)}
    given = "data", features, features[:, 0], "regression", 1
    assert refusal(Table, *given, **short) == (
        f"`{field}` of a table must have 20 rows, as its `features`, got shape (19,)."
    )
