"""Claims about the table [diagnostics]: sharpness along a run, and 2 over steps."""

from __future__ import annotations

import pytest
import torch

import coterie as co
from coterie.checks import InputError
from coterie.report import sharpness
from coterie.study.setup import prepare
from support.made_records import written
from support.plain_clients import mine

TABLES = {
    "data": {"name": "linear", "clients": 3, "samples": 30, "dimension": 3},
    "model": {"name": "linear", "bias": False},
    "run": {"rounds": 4, "evaluate_every": 1, "dtype": "float64"},
    "algorithm": [{"name": "local", "lr": 0.05}, {"name": "fedavg", "lr": 0.1}],
}
LOOKS = {"every": 2, "iterations": 40}


def tables(**more):
    return {**TABLES, **more}


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The same study with and without the table."""
    folder = tmp_path_factory.mktemp("runs")
    plain = co.run_study(co.study_of(tables()), runs=folder)
    looked = co.run_study(co.study_of(tables(diagnostics=LOOKS)), runs=folder)
    return plain.records, looked.records


def test_sharpness_of_linear_regression_is_the_largest_eigenvalue(ran):
    federation = prepare(co.study_of(tables()), 0).federation
    metrics = ran[1].metrics
    for client in range(3):
        a = federation.features[mine(federation, client)].double()
        top = float(torch.linalg.eigvalsh(2 * a.T @ a / len(a))[-1])
        rows = metrics[(metrics["client"] == client) & metrics["sharpness"].notna()]
        assert sorted(set(rows["round"])) == [0, 2, 4]  # every second evaluation
        assert rows["sharpness"].to_numpy() == pytest.approx(top, rel=1e-2)


def test_what_is_stable_is_below_2_over_the_step(ran):
    rounds = ran[1].rounds.groupby("algorithm")["stable_below"].first()
    assert rounds["local"] == pytest.approx(2 / 0.05)
    assert rounds["fedavg"] == pytest.approx(2 / 0.1)  # as given


def test_looking_changes_no_result_and_counts_no_gradient(ran):
    plain, looked = ran
    assert "sharpness" not in plain.metrics and "stable_below" not in plain.rounds
    same = [column for column in plain.metrics if column in looked.metrics]
    assert looked.metrics[same].equals(plain.metrics[same])
    assert looked.rounds["gradients"].equals(plain.rounds["gradients"])


def test_the_report_has_a_figure_of_it_and_none_otherwise(ran, tmp_path):
    plain, looked = ran
    names = [trace.name for trace in sharpness(looked).data if trace.name]
    assert names == ["local", "fedavg"]
    assert "sharpness-figure" in written(looked, tmp_path)
    assert "sharpness-figure" not in written(plain, tmp_path)


def test_bad_tables_are_refused():
    for wrong, match in (
        ({"every": 0}, "`diagnostics.every`"),
        ({"iterations": -1}, "`diagnostics.iterations`"),
        ({"everi": 1}, "no option 'everi'. Did you mean 'every'"),
        ({"every": "often"}, "every"),
    ):
        with pytest.raises(InputError, match=match):
            co.study_of(tables(diagnostics=wrong))
