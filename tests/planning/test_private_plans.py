"""Claims about plans of privacy: what noise an epsilon needs, and what it costs."""

from __future__ import annotations

import json
import math

import pytest
from typer.testing import CliRunner

from coterie.checks import InputError
from coterie.cli.commands import app
from coterie.planning import plan_privacy
from coterie.privacy import mu_of
from coterie.study.config import study_of

TABLES = {
    "name": "pilot",
    "data": {"name": "linear", "clients": 4, "dimension": 3, "samples": 24},
    "model": {"name": "linear", "bias": False},
    "run": {"rounds": 9, "batch_size": 0, "dtype": "float64"},
    "algorithm": [{"name": "fedavg", "lr": 0.05}, {"name": "nuclear_norm"}],
    "privacy": {"clip": 0.5, "epsilon": 4.0},
}
TOML = """
[data]
name = "linear"
clients = 4
dimension = 3
samples = 24
[model]
name = "linear"
[run]
rounds = 3
[[algorithm]]
name = "fedavg"
"""


def test_noise_follows_from_what_is_sent_in_all_rounds_and_costs_accuracy():
    found = plan_privacy(study_of(TABLES))
    fedavg = [cost for cost in found if cost.label == "fedavg"]
    assert [cost.epsilon for cost in fedavg] == [math.inf, 8.0, 4.0, 2.0]
    for cost in fedavg[1:]:
        assert cost.releases == pytest.approx(9)
        # Nine releases that move by 2 C.
        needed = 2 * 0.5 * 3 / mu_of(cost.epsilon, 1e-5)
        assert cost.noise == pytest.approx(needed)
    assert fedavg[0].noise == 0 and fedavg[0].releases == 0
    # The score is a squared error here: noise of this size does harm.
    assert fedavg[0].score < fedavg[3].score


def test_methods_that_cannot_be_private_are_named_with_the_reason():
    found = plan_privacy(study_of(TABLES))
    (refused,) = [cost for cost in found if cost.reason]
    assert refused.label == "nuclear_norm"
    assert "nuclear_norm cannot be trained privately: by `" in refused.reason


def test_a_plan_needs_an_epsilon():
    with pytest.raises(InputError, match="needs --epsilon"):
        plan_privacy(study_of({**TABLES, "privacy": {"noise": 1.0}}))
    with pytest.raises(InputError, match="`epsilon` must be greater than 0"):
        plan_privacy(study_of(TABLES), epsilon=-1.0)
    with pytest.raises(InputError, match=r"`privacy.delta` must be less than 1"):
        plan_privacy(study_of(TABLES), delta=2.0)


def test_the_command_answers_with_a_table_or_one_object(tmp_path):
    file = tmp_path / "study.toml"
    file.write_text(TOML)
    asked = ["plan", str(file), "--epsilon", "4", "--quiet"]
    shown = CliRunner().invoke(app, asked)
    assert shown.exit_code == 0 and "fedavg" in shown.stdout
    told = CliRunner().invoke(app, [*asked, "--json"])
    costs = json.loads(told.stdout)["costs"]
    assert [cost["epsilon"] for cost in costs][1:] == [8.0, 4.0, 2.0]


def test_a_plan_of_single_samples_is_refused():
    tables = {**TABLES, "privacy": {"unit": "sample", "epsilon": 4.0}}
    with pytest.raises(InputError, match=r"is for `privacy.unit` client, got 'sample'"):
        plan_privacy(study_of(tables))
