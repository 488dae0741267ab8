"""Claims about what a plan tells people: who is left out, counts, partners, worth."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

import coterie as co
from coterie.checks import InputError
from coterie.planning.plans import plan_study
from support.called import called

SIZES = {"Aarau": 2, "Bern": 8, "Chur": 40, "Lodz": 60, "Sion": 80, "Zug": 100}
"""Aarau is too small for any study, Bern for a plan."""


def patients(seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frames = []
    for name, size in SIZES.items():
        x = rng.normal(size=(size, 3))
        weight = 5000 + 1000 * x @ [1, -1, 0.5] + rng.normal(0, 500, size)
        frame = pd.DataFrame(x.round(3), columns=list("abc"))
        frames.append(frame.assign(hospital=name, weight=weight.round(1)))
    return pd.concat(frames, ignore_index=True)


@pytest.fixture(scope="module")
def plan():
    columns = {"client": "hospital", "target": "weight"}
    return plan_study(co.study_of({"data": columns}, data=patients()), rounds=10)


def test_small_clients_are_left_out_by_name(plan):
    assert plan.table()["name"].tolist() == ["Chur", "Lodz", "Sion", "Zug"]
    said = plan.summary()[-1]
    assert said.startswith("Left out as too small: Aarau (2 samples), Bern (")
    assert said.endswith("training samples of 8).")


def test_weights_are_of_all_clients_of_the_study_and_who_is_left_out_learns_alone(
    plan, tmp_path
):
    plan.write(tmp_path)
    weights = np.loadtxt(tmp_path / "weights.csv", delimiter=",")
    assert weights.shape == (5, 5)  # a run has all but Aarau
    np.testing.assert_allclose(weights.sum(1), 1, atol=1e-5)
    assert weights[0].tolist() == [1, 0, 0, 0, 0]
    np.testing.assert_allclose(weights[1:, 1:], plan.weights, atol=1e-5)


def test_a_run_leaves_out_the_same_client_and_says_so(tmp_path):
    said = []
    made = co.train(
        patients(),
        "hospital",
        "weight",
        "fedavg",
        rounds=1,
        runs=tmp_path,
        notice=said.append,
    )
    assert made.records.names == ("Bern", "Chur", "Lodz", "Sion", "Zug")
    assert "left out as too small: Aarau (2 samples)." in said
    assert "Aarau (2 samples)" in made.report().path.read_text(encoding="utf-8")


def test_two_clients_must_be_large_enough():
    few = patients().query("hospital in ['Bern', 'Zug']")
    columns = {"client": "hospital", "target": "weight"}
    message = r"two clients .* 1 of the 2 clients of `frame`"
    with pytest.raises(InputError, match=message):
        plan_study(co.study_of({"data": columns}, data=few), rounds=1)


def test_counts_of_the_summary_are_those_of_the_table(plan):
    table = plan.table()
    told = dict(
        re.match(r"(\d+) of 4 clients: ([\w ]+)\.", line).groups()[::-1]
        for line in plan.summary()[1:-1]
    )
    counts = table["verdict"].value_counts()
    assert told == {name: str(count) for name, count in counts.items()}
    assert (table["collect"] > 0).eq(table["verdict"] == "collect first").all()


def test_only_who_has_partners_has_a_worth_and_another_score_together(plan):
    table = plan.table()
    alone = table["partners"] == ""
    assert table.loc[alone, "worth"].isna().all()
    assert table.loc[~alone, "worth"].notna().all()
    assert (table.loc[alone, "together"] == table.loc[alone, "alone"]).all()
    assert (table["verdict"][~alone] != "do not join").all()


def test_partners_stand_in_the_first_columns_of_a_terminal_and_of_the_page(
    tmp_path, monkeypatch, plan
):
    monkeypatch.chdir(tmp_path)
    patients().to_csv("patients.csv", index=False)
    (tmp_path / "study.toml").write_text(
        '[data]\npath = "patients.csv"\nclient = "hospital"\ntarget = "weight"\n'
    )
    code, shown, _ = called("plan", "study.toml", "--rounds", "2", "--quiet")
    assert code == 0
    head = next(line for line in shown.splitlines() if line.startswith("client "))
    assert head.split()[:3] == ["client", "verdict", "partners"]
    assert max(map(len, shown.splitlines()[:-2])) <= 80
    plan.write(tmp_path)
    page = (tmp_path / "plan.html").read_text(encoding="utf-8")
    heads = re.findall(r'<th scope="col">(.*?)</th>', page)
    assert heads[:3] == ["client", "verdict", "partners"]
    assert "e+0" not in shown  # 5,123 and not 5.12e+03
