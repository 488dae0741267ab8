from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.clients.simulation import Simulation
from coterie.data import preparation
from coterie.data.federation import Federation, Table, federate
from coterie.data.files import raw_columns, table
from coterie.data.fitting import agree, prepare_here, with_preparation
from coterie.data.splits import divide
from support.refusals import refuses

GAP = float("nan")

RAW = [
    # age, ward (0 a, 1 b, 2 c); client; part
    (10.0, 0, 0, 0),
    (20.0, 1, 0, 0),
    (60.0, 1, 0, 0),
    (GAP, GAP, 0, 1),
    (99.0, 2, 0, 2),
    (30.0, 0, 1, 0),
    (GAP, 0, 1, 0),
    (50.0, GAP, 1, 0),
    (1.0, 1, 1, 1),
    (GAP, 2, 1, 2),
]


def federation(
    *, scale: str = "agreed", indicators: bool = False, raw: list[tuple] = RAW
) -> Federation:
    values = torch.tensor(raw, dtype=torch.float64)
    columns = (preparation.Column("age"), preparation.Column("ward", ("a", "b", "c")))
    whole = Table(
        "wards",
        values[:, :2],
        torch.arange(len(raw)) % 2,
        "binary",
        1,
        schema=preparation.Schema(columns, scale, indicators),
    )
    return federate(whole, values[:, 2].long(), values[:, 3].long())


def close(found: torch.Tensor, expected: list[list[float]]) -> None:
    torch.testing.assert_close(found.double(), torch.tensor(expected).double())


def test_agreed_features_have_the_pooled_mean_and_deviation_of_training_data():
    made = prepare_here(federation())
    # Training ages: 10, 20, 60, 30, 50, mean 34, squares about it 1720.
    mean, scale = 34.0, (1720 / 5) ** 0.5

    def age(value: float) -> float:
        return (value - mean) / scale

    # Medians are 20 and 40; nobody trains on ward c, which is no feature.
    assert made.columns == ("age", "ward = a", "ward = b")
    close(
        made.features,
        [
            [age(10), 1, 0],
            [age(20), 0, 1],
            [age(60), 0, 1],
            [age(20), 0, 1],
            [age(99), 0, 0],
            [age(30), 1, 0],
            [age(40), 1, 0],
            [age(50), 1, 0],
            [age(1), 0, 1],
            [age(40), 0, 0],
        ],
    )


def test_a_clients_own_numbers_scale_its_features():
    made = prepare_here(federation(scale="client"))
    own = [np.array([10.0, 20, 60]), np.array([30.0, 50])]
    expected = [(10 - own[0].mean()) / own[0].std(), (30 - own[1].mean()) / 10]
    close(made.features[[0, 5], :1], [[e] for e in expected])
    close(made.preparations.mean, [[30, 0], [40, 0]])


def test_features_without_scaling_are_as_they_were_and_filled():
    made = prepare_here(federation(scale="none"))
    close(made.features[:, 0], [10, 20, 60, 20, 99, 30, 40, 50, 1, 40])


def test_indicators_say_what_was_missing():
    made = prepare_here(federation(indicators=True))
    assert made.columns == (
        "age",
        "age is missing",
        "ward = a",
        "ward = b",
        "ward is missing",
    )
    close(made.features[:, 1], [0, 0, 0, 1, 0, 0, 1, 0, 0, 1])
    close(made.features[:, 4], [0, 0, 0, 1, 0, 0, 0, 1, 0, 0])


@pytest.mark.parametrize("scale", ["agreed", "client", "none"])
def test_validation_and_test_data_change_no_preparation(scale):
    other = [
        row if row[3] == 0 else (1e6, 2 if row[1] != 2 else 1, *row[2:]) for row in RAW
    ]
    one = prepare_here(federation(scale=scale, indicators=True))
    two = prepare_here(federation(scale=scale, indicators=True, raw=other))
    assert one.preparations.plain() == two.preparations.plain()
    assert not torch.equal(one.features, two.features)


@pytest.mark.parametrize("scale", ["agreed", "client", "none"])
def test_the_module_of_a_preparation_gives_the_training_features(scale):
    made = prepare_here(federation(scale=scale, indicators=True))
    for client in (0, 1):
        how = made.preparations.of(client)
        mine = torch.tensor([row[2] == client for row in RAW])
        # Ward c is unknown to the preparation: -1.
        raw = torch.where(made.raw == 2, -1.0, made.raw)[mine]
        assert torch.equal(how.module()(raw).float(), made.features[mine])
        codes = made.raw[mine, 1].tolist()
        words = [None if np.isnan(code) else "abc"[int(code)] for code in codes]
        torch.testing.assert_close(how.codes(1, words), raw[:, 1], equal_nan=True)


def test_a_preparation_survives_json():
    how = prepare_here(federation(indicators=True)).preparations
    again = preparation.preparations_of(json.loads(json.dumps(how.plain())))
    assert again.plain() == how.plain()
    one = how.of(1)
    assert preparation.preparation_of(json.loads(json.dumps(one.plain()))) == one
    assert isinstance(one, preparation.Preparation)


def test_sums_through_the_oracle_are_the_pooled_numbers_and_are_counted():
    rng = np.random.default_rng(0)
    # A large offset, where the difference of two squares would lose its digits.
    values = 1e6 + rng.normal(size=60)
    raw = [(v, k % 3, k % 4, (k // 4) % 3) for k, v in enumerate(values)]
    whole = federation(raw=raw)
    oracle = Simulation(
        replace(whole, features=torch.zeros(60, 1)), torch.nn.Linear(1, 1)
    ).at(0)
    agreed = agree(whole, oracle.average, len(whole))
    train = np.array([v for v, _, _, role in raw if role == 0])
    assert agreed.mean[0].item() == pytest.approx(train.mean(), rel=1e-12)
    assert agreed.scale[0].item() == pytest.approx(train.std(), rel=1e-9)
    # Three tallies, two counts and two sums; then two squares; up and down, 4 clients.
    assert [s.values for s in oracle.sent] == [7, 7, 2, 2]
    assert all(len(s.links) == 4 for s in oracle.sent)


def test_nothing_is_sent_where_nothing_is_to_be_agreed_on():
    whole = federation(scale="client")
    numbers = preparation.Schema((preparation.Column("age"),), "client")
    whole = replace(whole, schema=numbers, raw=whole.raw[:, :1])

    def average(shares, rows):
        raise AssertionError("nobody is to be asked")

    assert with_preparation(whole, whole, average, 2).columns == ("age",)


def test_newcomers_are_prepared_by_what_the_others_agreed_on():
    whole = federation()
    trains = whole.select(torch.tensor([1]))
    made = with_preparation(whole, trains, lambda s, rows: rows, 1)
    close(made.preparations.mean, [[40, 0], [40, 0]])
    # Those who train know ward a alone, so the newcomer's gaps are filled with that.
    close(made.preparations.fill, [[20, 0], [40, 0]])
    assert made.columns == ("age", "ward = a")


def test_constants_and_columns_without_values_are_zero():
    raw = [(7.0, 0, k % 2, k // 2 % 3) for k in range(12)]
    made = prepare_here(federation(raw=raw))
    close(made.features, [[0, 1]] * 12)
    raw = [(GAP, 0, k % 2, k // 2 % 3) for k in range(12)]
    for scale in ("agreed", "client", "none"):
        made = prepare_here(federation(raw=raw, scale=scale))
        close(made.features, [[0, 1]] * 12)


PEOPLE = """client,target,age,smokes,ward,icd
Chur,ill,40,true,a,250
Bern,well,NA,false,,V27
Chur,well,60,,b,250
"""


def read_csv(folder: Path, text: str = PEOPLE, **options: object) -> Table:
    path = folder / "people.csv"
    path.write_text(text)
    return table(path, **options)


def test_columns_of_words_numbers_truth_and_gaps_are_read(tmp_path):
    got = read_csv(tmp_path, categories=["icd"])
    assert got.schema.columns == (
        preparation.Column("age"),
        preparation.Column("icd", ("250", "V27")),
        preparation.Column("smokes", truth=True),
        preparation.Column("ward", ("a", "b")),
    )
    expected = [[40, 0, 1, 0], [GAP, 1, 0, GAP], [60, 0, GAP, 1]]
    expected = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(got.features, expected, equal_nan=True)
    assert (got.names, got.classes) == (("Bern", "Chur"), ("ill", "well"))
    assert got.schema.scale == "agreed"


def test_columns_may_be_left_out(tmp_path):
    got = read_csv(tmp_path, drop=["icd", "ward"])
    assert [column.name for column in got.schema.columns] == ["age", "smokes"]


def test_clients_keep_their_names_as_they_are_written(tmp_path):
    text = "client,target,x\n01234,0,1\n1234,1,2\n999,1,2\n"
    got = read_csv(tmp_path, text)
    assert got.names == ("999", "01234", "1234")
    assert got.group.tolist() == [1, 2, 0]
    backwards = "\n".join([text.split("\n")[0], *reversed(text.split()[1:])])
    assert read_csv(tmp_path, backwards).group.tolist() == [0, 2, 1]


def test_a_file_of_raw_columns_gives_the_training_features(tmp_path):
    from support.hospitals import write_hospitals

    path = write_hospitals(tmp_path / "patients.csv")
    whole = divide(table(path, client="hospital", target="outcome"), "natural", seed=0)
    for place in range(len(whole)):
        how = whole.preparations.of(place)
        features = how.module()(raw_columns(path, how)).float()
        index, _ = whole.train.rows(torch.tensor([place]))
        assert torch.equal(features[index[0]], whole.features[index[0]])
    path.write_text("age,pressure,smokes,sexe\n1,2,true,f\n")
    refuses("no column 'sex', which the model needs", raw_columns, path, how)
    path.write_text("age,pressure,smokes,sex\n1,high,true,x\n")
    refuses(r"'pressure' .* row 2 holds 'high'", raw_columns, path, how)


@pytest.mark.parametrize(("scale", "found"), [("agreed", 10.0), ("none", 1e6)])
def test_a_number_counts_as_ten_deviations_from_the_mean_at_most(scale, found):
    far = [row if row[3] != 2 else (1e6, *row[1:]) for row in RAW]
    made = prepare_here(federation(scale=scale, raw=far))
    assert float(made.features[:, 0].max()) == found
    how = made.preparations.of(0)
    least = float(how.module()(torch.tensor([[-1e6, 0.0]]))[0, 0])
    assert least == -found
    # Preparations of older files have no limit.
    plain = how.plain()
    del plain["limit"]
    assert preparation.preparation_of(plain).limit is None
