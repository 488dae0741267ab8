"""Claims about plans of privacy: what noise an epsilon needs, and what it costs."""

from __future__ import annotations

import json
import math

import pytest
from typer.testing import CliRunner

from coterie.checks import InputError
from coterie.cli.commands import app
from coterie.planning import plan_privacy
from coterie.privacy import epsilon_of, mu_of, sampled_epsilon
from coterie.study.config import study_of
from coterie.study.setup import prepare
from support.called import called
from support.tiny_studies import PLAIN_TOML

TABLES = {
    "name": "pilot",
    "data": {"name": "linear", "clients": 4, "dimension": 3, "samples": 24},
    "model": {"name": "linear", "bias": False},
    "run": {"rounds": 9, "batch_size": 0, "dtype": "float64"},
    "algorithm": [{"name": "fedavg", "lr": 0.05}, {"name": "nuclear_norm"}],
    "privacy": {"clip": 0.5, "epsilon": 4.0},
}


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


def test_a_plan_of_secure_sums_has_a_number_for_each_role(tmp_path):
    privacy = {"clip": 0.5, "epsilon": 4.0, "aggregation": "secure"}
    tables = {**TABLES, "privacy": privacy, "algorithm": [{"name": "fedavg"}]}
    found = plan_privacy(study_of(tables))
    assert [dict(cost.roles) for cost in found[:1]] == [{}]
    for cost in found[1:]:
        # Four equal clients, of whom one may share what it knows with the server.
        mu = mu_of(cost.epsilon, 1e-5)
        assert cost.noise == pytest.approx(3 / mu * math.sqrt(4 / 3))
        assert cost.releases == pytest.approx(9)
        assert dict(cost.roles) == {
            "the server": pytest.approx(epsilon_of(mu * math.sqrt(3 / 4), 1e-5)),
            "the server and one participant": pytest.approx(cost.epsilon),
            "the server and all others": pytest.approx(
                epsilon_of(mu * math.sqrt(3), 1e-5)
            ),
        }
    path = tmp_path / "study.toml"
    path.write_text(PLAIN_TOML + '[privacy]\nepsilon = 4.0\naggregation = "secure"\n')
    shown = CliRunner().invoke(app, ["plan", str(path), "--quiet"]).stdout
    (title,) = [line for line in shown.splitlines() if "against" in line]
    for role in ("the server", "and one participant", "and all others"):
        assert role in shown[shown.index(title) :], shown


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
    for epsilon in (1e9, 1e300):  # also its double is tried
        with pytest.raises(InputError, match=r"`epsilon` must be at most"):
            plan_privacy(study_of(TABLES), epsilon=epsilon)
    with pytest.raises(InputError, match=r"`privacy.delta` must be less than 1"):
        plan_privacy(study_of(TABLES), delta=2.0)


def test_the_command_answers_with_a_table_or_one_object(tmp_path):
    file = tmp_path / "study.toml"
    file.write_text(PLAIN_TOML)
    asked = ["plan", str(file), "--epsilon", "4", "--quiet"]
    shown = CliRunner().invoke(app, asked)
    assert shown.exit_code == 0 and "fedavg" in shown.stdout
    told = CliRunner().invoke(app, [*asked, "--json"])
    costs = json.loads(told.stdout)["costs"]
    assert [cost["epsilon"] for cost in costs][1:] == [8.0, 4.0, 2.0]


def test_noise_in_time_follows_from_the_answers_of_the_busiest_client():
    tables = {
        **TABLES,
        "algorithm": [{"name": "server_sgd", "lr": 0.01}, {"name": "fedavg"}],
        "time": {"speeds": [1.0, 1.0, 2.0, 4.0], "period": 1.0},
    }
    found = plan_privacy(study_of(tables))
    served = [cost for cost in found if cost.label == "server_sgd"]
    assert [cost.epsilon for cost in served] == [math.inf, 8.0, 4.0, 2.0]
    for cost in served[1:]:
        assert cost.releases == pytest.approx(9)  # one a second
        assert cost.noise == pytest.approx(2 * 0.5 * 3 / mu_of(cost.epsilon, 1e-5))
    (refused,) = [cost for cost in found if cost.reason]
    assert "fedavg waits for the slowest client" in refused.reason


SAMPLES = {
    **TABLES,
    "run": {**TABLES["run"], "batch_size": 4},
    "algorithm": [{"name": "fedavg", "lr": 0.05, "steps": 2}, {"name": "spag"}],
    "privacy": {"unit": "sample", "clip": 0.3, "noise": 1.0},
}


def test_noise_of_single_samples_is_what_their_minibatches_need():
    study = study_of(SAMPLES)
    found = plan_privacy(study, epsilon=4.0)
    fedavg = [cost for cost in found if cost.label == "fedavg"]
    assert [cost.epsilon for cost in fedavg] == [math.inf, 8.0, 4.0, 2.0]
    sizes = prepare(study, 0).federation.train.size
    rate = 4 / int(sizes.min())
    for cost in fedavg[1:]:
        assert cost.releases == 18  # nine rounds of two minibatches

        def spent(noise: float, steps: int = 18) -> float:
            return sampled_epsilon(noise, delta=1e-5, rate=rate, steps=steps)

        # The least noise to one part in a thousand.
        assert spent(cost.noise) <= cost.epsilon < spent(cost.noise / 1.002)
    assert fedavg[0].noise == 0 and fedavg[0].releases == 0
    # The score is a squared error here: noise of this size does harm.
    assert fedavg[0].score < fedavg[3].score
    (refused,) = [cost for cost in found if cost.reason]
    assert refused.label == "spag" and "Hessian-vector products" in refused.reason


def test_the_plan_of_single_samples_is_told_in_their_words(tmp_path):
    file = tmp_path / "study.toml"
    file.write_text(PLAIN_TOML)
    settings = ["--set", "privacy.unit='sample'", "--set", "privacy.epsilon=4.0"]
    shown = CliRunner().invoke(app, ["plan", str(file), "--quiet", *settings])
    assert shown.exit_code == 0
    assert "in units of the clip of a sample's gradient" in " ".join(
        shown.stdout.split()
    )


def test_delta_without_epsilon_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.toml").write_text(
        '[data]\nname = "linear"\n[[algorithm]]\nname = "local"\n'
    )
    for words in (["study.toml"], ["--graph", "ring", "--nodes", "4"]):
        with pytest.raises(InputError, match="--delta"):
            called("plan", *words, "--delta", "1e-5")
