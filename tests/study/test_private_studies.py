"""Claims about studies with a table [privacy]."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from coterie.algorithms.local import local
from coterie.conformance.federations import small_federation
from coterie.data.federation import places_of
from coterie.privacy import epsilon_of, mu_of
from coterie.privacy.accounting.calibration import Limits
from coterie.privacy.mechanisms import Mechanism, make_private_in_time
from coterie.privacy.mechanisms.settings import Privacy
from coterie.study.attacks import audit_study
from coterie.study.config import study_of
from coterie.study.experiment import run_study
from coterie.types import Algorithm, Arrivals
from support.refusals import refuses
from support.study_runs import linear_tables, refused, stopped, together

TABLES = {
    **linear_tables(5),
    "algorithm": [{"name": "fedavg", "lr": 0.05}],
    "privacy": {"clip": 0.3, "noise": 2.0},
}


def study(privacy=None, **changed):
    """The study with other settings of [privacy], and other tables."""
    tables = {**TABLES, **{k: v for k, v in changed.items() if k in ("algorithm",)}}
    run = {k: v for k, v in changed.items() if k not in ("algorithm", "tables")}
    tables["run"] = {**TABLES["run"], **run}
    tables["privacy"] = {**TABLES["privacy"], **(privacy or {})}
    tables["privacy"] = {k: v for k, v in tables["privacy"].items() if v is not None}
    return study_of({**tables, **changed.get("tables", {})})


def free(**tables):
    """The study without [privacy]."""
    open_ = {name: table for name, table in TABLES.items() if name != "privacy"}
    return study_of({**open_, **tables})


def epsilons(result) -> list[float]:
    """The largest of any client, by round."""
    return list(result.records.metrics.groupby("round")["epsilon"].max())


def test_epsilon_grows_with_rounds_as_releases_compose(tmp_path):
    result = run_study(study(), runs=tmp_path)
    # One release a round, which moves by 2 C, with noise 2 C: mu = 1.
    expected = [epsilon_of(math.sqrt(t), 1e-5) for t in range(5)]
    np.testing.assert_allclose(epsilons(result), expected, rtol=1e-9)
    sent = result.records.releases
    assert set(sent["to"]) == {-1} and len(sent) == 5
    np.testing.assert_allclose(sent["epsilon"], expected[-1])


def test_noise_is_found_for_an_epsilon_and_is_used_up_at_the_end(tmp_path):
    algorithms = [{"name": "fedavg"}, {"name": "all_for_one", "weights": "uniform"}]
    guarded = study(
        {"noise": None, "epsilon": 3.0, "delta": 1e-4},
        algorithm=algorithms,
        participation=0.6,
    )
    last = run_study(guarded, runs=tmp_path).records.metrics.groupby("algorithm")
    for _, table in last:
        assert table["epsilon"].max() == pytest.approx(3.0)


def test_without_noise_and_clipping_models_are_those_of_the_study_without(tmp_path):
    algorithms = [
        {"name": name, "lr": 0.1}
        for name in ("local", "fedavg", "decentralised_sgd", "adaptive_all_for_one")
    ]
    plain = run_study(free(algorithm=algorithms), runs=tmp_path)
    privacy = {"noise": 0.0, "clip": math.inf}
    quiet = run_study(study(privacy, algorithm=algorithms), runs=tmp_path)
    for entry in algorithms:
        gap = plain.models(entry["name"]) - quiet.models(entry["name"])
        assert float(gap.abs().max()) < 1e-12
    spent = quiet.records.metrics.groupby("algorithm")["epsilon"].max()
    assert spent["local"] == 0 and spent["fedavg"] == math.inf


@pytest.mark.parametrize("clip", [0.3, math.inf])
def test_no_noise_trains_as_many_clients_as_a_model_has_numbers(tmp_path, clip):
    # An epsilon of each client is no model, though there are as many.
    tables = {
        "data": {**TABLES["data"], "clients": 4},
        "model": {"name": "linear", "bias": True},
    }
    algorithms = [{"name": "fedavg"}, {"name": "decentralised_sgd"}]
    quiet = {"noise": 0.0, "clip": clip}
    result = run_study(study(quiet, tables=tables, algorithm=algorithms), runs=tmp_path)
    assert result.models("fedavg").shape == (4, 4)
    assert epsilons(result)[-1] == math.inf
    in_time = {**tables, "time": {"law": "exponential(1)", "period": 5.0}}
    walk = [{"name": "token_sgd", "lr": 0.01}]
    result = run_study(study(quiet, tables=in_time, algorithm=walk), runs=tmp_path)
    assert epsilons(result)[-1] == math.inf


def test_a_run_ends_at_its_budget_says_so_and_keeps_its_models(tmp_path):
    said: list[str] = []
    budget = epsilon_of(math.sqrt(2), 1e-5)
    ended = run_study(study({"budget": budget}), runs=tmp_path, notice=said.append)
    losses = ended.records.metrics.pivot(
        index="round", columns="client", values="test_loss"
    )
    assert (losses.loc[3:] == losses.loc[2]).all(axis=None)
    assert (losses.loc[1] != losses.loc[2]).all()
    assert any("used up before round 3" in line for line in said)
    assert epsilons(ended)[-1] == pytest.approx(budget)


def test_a_client_with_a_budget_of_its_own_stays_away_when_it_is_spent(tmp_path):
    budget = {"1": epsilon_of(1.0, 1e-5)}
    result = run_study(study({"budget": budget}), runs=tmp_path)
    last = result.records.metrics.query("round == 4").set_index("client")["epsilon"]
    assert last[1] == pytest.approx(budget["1"])
    assert last[0] == pytest.approx(epsilon_of(2.0, 1e-5))


def test_a_client_with_a_budget_may_be_called_as_outputs_call_it():
    federation = small_federation(3)
    privacy = study({"budget": {"client 1": epsilon_of(1.0, 1e-5)}}).privacy
    of_each = privacy.limits(places_of(federation)).of_each
    assert of_each.tolist() == pytest.approx([math.inf, 1.0, math.inf])
    named = replace(federation, names=("007", "client 007", "Chur"))
    assert places_of(named) == {"007": 0, "client 007": 1, "Chur": 2}


def test_a_budget_of_a_method_that_releases_nothing_is_never_spent(tmp_path):
    for entry in ({"name": "local"}, {"name": "fedavg"}):
        budget = {"noise": 100.0, "budget": 0.05}
        guarded = study({**budget, "delta": 1e-2}, algorithm=[entry])
        assert epsilons(run_study(guarded, runs=tmp_path))[-1] <= 0.05
    strict = study({"budget": {"0": 1e-6}}, algorithm=[{"name": "local"}])
    assert epsilons(run_study(strict, runs=tmp_path))[-1] == 0


def test_resuming_a_private_run_equals_not_stopping(tmp_path):
    whole = run_study(study(), runs=tmp_path / "whole")
    stopped(study(), lambda p: p.t == 2, runs=tmp_path / "parts")
    parts = run_study(study(), runs=tmp_path / "parts")
    assert torch.equal(whole.models(), parts.models())
    assert epsilons(whole) == epsilons(parts)
    assert whole.records.releases.equals(parts.records.releases)


def test_processes_that_divide_the_clients_draw_the_same_noise(tmp_path):
    algorithms = [{"name": "fedavg"}, {"name": "all_for_one", "weights": "uniform"}]
    guarded = study(algorithm=algorithms, participation=0.6)
    alone = run_study(guarded, runs=tmp_path / "alone")
    several, _ = together(guarded, 2, tmp_path / "together")
    for entry in algorithms:
        gap = alone.models(entry["name"]) - several.models(entry["name"])
        assert float(gap.abs().max()) < 1e-9
    assert epsilons(alone) == epsilons(several)


def test_progress_tells_the_epsilon_of_the_worst_client(tmp_path):
    told = []
    run_study(study(), runs=tmp_path, progress=lambda p: told.append(p.epsilon))
    assert told == pytest.approx([epsilon_of(math.sqrt(t), 1e-5) for t in range(1, 5)])


def test_personal_columns_do_not_leave_and_cost_nothing(tmp_path):
    tables = {
        "data": {"name": "digits"},
        "split": {"name": "iid", "clients": 3, "max_samples": 30},
        "model": {"name": "mlp", "hidden": [4], "personal": ["head"]},
    }
    algorithms = [{"name": "fedavg"}, {"name": "all_for_one", "weights": "uniform"}]
    privacy = {"noise": 0.0, "clip": 1e-9}
    quiet = run_study(
        study(privacy, tables=tables, algorithm=algorithms), runs=tmp_path
    )
    still = free(algorithm=[{"name": "local", "lr": 1e-12}], **tables)
    start = run_study(still, runs=tmp_path)
    # Shared columns hardly move, personal ones learn.
    head = 4 * 10 + 10
    for entry in algorithms:
        moved = (quiet.models(entry["name"]) - start.models()).abs().amax(0)
        assert float(moved[:-head].max()) < 1e-7
        assert float(moved[-head:].max()) > 1e-3


def test_fedrep_releases_bodies_and_uses_its_epsilon_up(tmp_path):
    tables = {"model": {"name": "mlp", "hidden": [2]}}
    algorithm = [{"name": "fedrep", "lr": 0.05, "head_steps": 1}]
    guarded = study({"noise": None, "epsilon": 3.0}, tables=tables, algorithm=algorithm)
    assert epsilons(run_study(guarded, runs=tmp_path))[-1] == pytest.approx(3.0)
    kept = {"model": {**tables["model"], "personal": ["head"]}}
    with_kept = study(tables=kept, algorithm=algorithm)
    refused(with_kept, tmp_path / "kept", "`personal` cannot be used with this method")


@pytest.mark.parametrize(
    ("privacy", "message"),
    [
        ({"noise": -1.0}, "`privacy.noise` must be at least 0"),
        ({"delta": 0.0}, "`privacy.delta` must be greater than 0"),
        ({"delta": 1.0}, "`privacy.delta` must be less than 1"),
        ({"clip": 0.0}, "`privacy.clip` must be greater than 0"),
        ({"clip": math.inf}, "`privacy.clip` must be finite"),
        ({"noise": None}, "must have either `noise` or `epsilon`, .* got neither"),
        ({"epsilon": 1.0}, "got both"),
        ({"noise": None, "epsilon": 0.0}, "`privacy.epsilon` must be greater than 0"),
        ({"budget": 0.0}, "`privacy.budget` must be greater than 0"),
        ({"budget": 1.0, "noise": 0.0}, "the first round would exceed every budget"),
        ({"unit": "galaxy"}, "privacy.unit"),
        ({"noize": 1.0}, "has no option 'noize'.*noise"),
        ({"aggregation": 3}, "`privacy.aggregation` must be text"),
        ({"noise": 1e-300}, "`privacy.noise` must be 0, or between 1e-06 and 1e.09, g"),
        ({"noise": 1e300}, "`privacy.noise` must be 0, or between .* got 1e.300"),
        ({"noise": None, "epsilon": 1e300}, "`privacy.epsilon` must be at most 1e.09"),
        ({"noise": None, "epsilon": 1e-300}, "`privacy.epsilon` must be at least 1e-0"),
        ({"budget": 1e300}, "`privacy.budget` must be at most 1e.09, got 1e.300"),
        ({"delta": 1e-320}, "`privacy.delta` must be at least 1e-15, got 9.99"),
        ({"delta": 1e-100}, "`privacy.delta` must be at least 1e-15, got 1e-100"),
        ({"clip": 1e300}, "`privacy.clip` must be at most 1e.09, got 1e.300"),
        ({"clip": 1e-300}, "`privacy.clip` must be at least 1e-09, got 1e-300"),
        ({"loss_clip": 1e300}, "`privacy.loss_clip` must be at most 1e.09, got 1e.300"),
        ({"loss_clip": 0.0}, "`privacy.loss_clip` must be greater than 0, got 0"),
        ({"loss_clip": -2.0}, "`privacy.loss_clip` must be greater than 0, got -2"),
        ({"loss_clip": math.nan}, "`privacy.loss_clip` must be a finite number"),
        ({"loss_clip": math.inf}, "`privacy.loss_clip` must be finite if there is"),
    ],
)
def test_settings_that_promise_nothing_are_refused(privacy, message):
    refuses(message, study, privacy)


def test_an_epsilon_that_takes_more_noise_than_there_can_be_is_refused():
    releases = [torch.full((2,), 1e4, dtype=torch.float64)]
    message = "`privacy.epsilon` 1e-06 needs a noise of .* clips, but the most is"
    refuses(message, Privacy(epsilon=1e-6, delta=1e-15).mechanism, releases, 0, 1.0)


@pytest.mark.parametrize(
    ("privacy", "algorithm", "message"),
    [
        ({"budget": 0.1}, "fedavg", "would be spent in the first round of fedavg"),
        # One release has mu = 1, and an epsilon of 4.38 at delta 1e-5.
        (
            {"budget": {"3": 1e-4}},
            "fedavg",
            "`privacy.budget.3` 0.0001 would be spent in the first round of fedavg: it "
            "costs client 3 epsilon 4.38",
        ),
        (
            {"budget": {"3": 1e-4}, "noise": None, "epsilon": 4.0},
            "decentralised_sgd",
            "`privacy.budget.3` 0.0001 would be spent in the first round of decentral",
        ),
        ({"budget": {"Chur": 1.0}}, "fedavg", "names 'Chur', which is not a client"),
        (
            {"budget": {"client 9": 1.0}},
            "fedavg",
            "is not a client. Did you mean 'client",
        ),
        (
            {"budget": {"2": 9.0, "client 2": 9.0}},
            "fedavg",
            "every client once, got 'client 2'",
        ),
        (
            {"aggregation": "secure"},
            "coteries",
            "coteries cannot be .*: `privacy.aggregation` secure cannot be used",
        ),
        (
            {"aggregation": "secure"},
            "decentralised_sgd",
            "secure needs a method whose server .* averaged by decentralised_sgd",
        ),
        (
            {"noise": None, "epsilon": 4.0},
            "spag",
            "spag cannot be trained privately: by `mix` clients send numbers that",
        ),
        ({}, "karula", "`radius` 'transport' of karula is made from the clients' data"),
    ],
)
def test_what_cannot_be_private_is_refused_before_training(
    tmp_path, privacy, algorithm, message
):
    refused(study(privacy, algorithm=[{"name": algorithm}]), tmp_path, message)


@pytest.mark.parametrize(
    ("of", "weights"),
    [
        (run_study, "sliced(10)"),
        (audit_study, "sliced(10)"),
        (audit_study, "means(10)"),
    ],
)
def test_weights_made_from_data_are_refused_before_data_are_touched(of, weights):
    def run_with(weights):
        entry = {"name": "all_for_one", "weights": weights}
        data = {"name": "file", "path": "absent.csv", "target": "y", "client": "c"}
        of(study(algorithm=[entry], tables={"data": data}))

    # With "uniform", nothing else is wrong than that there are no data.
    refuses(r"absent\.csv", run_with, "uniform")
    name = weights.removesuffix("(10)")
    message = rf"`weights` '{name}\(10\)' of all_for_one is made from the clients' data"
    refuses(message, run_with, weights)


def test_a_study_of_methods_that_choose_spends_its_epsilon_and_no_more(tmp_path):
    algorithms = [{"name": "ifca", "starts": 1}, {"name": "coteries"}]
    guarded = study({"noise": None, "epsilon": 4.0}, algorithm=algorithms)
    result = run_study(guarded, runs=tmp_path)
    most = result.records.metrics.groupby("algorithm")["epsilon"].max()
    # IFCA asks the same in every run; coteries tries something or does not.
    assert most["ifca"] == pytest.approx(4.0, rel=1e-6)
    assert 1.0 < most["coteries"] <= 4.0


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"tune": {"space": {"lr": [0.1]}}}, "give the options instead"),
        ({"run": {"newcomers": 1}}, "`run.newcomers` must be 0 with"),
        (
            {"privacy": {"noise": 1.0, "aggregation": "secure"}, "time": {}},
            "secure cannot be used with \\[time\\]",
        ),
    ],
)
def test_tables_that_would_release_more_are_refused(tables, message):
    refuses(message, study, tables=tables)


TIME = {"law": "exponential(1)", "period": 5.0}


def in_time(algorithm, **privacy):
    """The study in time."""
    return study(privacy, tables={"time": TIME}, algorithm=[algorithm])


@pytest.mark.parametrize("name", ["token_sgd", "token_sag", "agraf", "server_sgd"])
def test_in_time_a_client_pays_for_each_of_its_answers(tmp_path, name):
    result = run_study(in_time({"name": name, "lr": 0.01}), runs=tmp_path)
    last = result.records.metrics.query("round == 4").set_index("client")["epsilon"]
    tasks = result.records.work.set_index("client")["tasks"]
    assert tasks.sum() > 3
    for client, count in tasks.items():
        assert last[client] == pytest.approx(epsilon_of(math.sqrt(count), 1e-5))


@pytest.mark.parametrize(
    "name", ["token_sgd", "token_sag", "agraf", "server_sgd", "loss_network"]
)
def test_in_time_noise_is_found_for_an_epsilon_that_the_busiest_uses_up(tmp_path, name):
    entry = {"name": name, "lr": 0.01}
    result = run_study(in_time(entry, noise=None, epsilon=3.0), runs=tmp_path)
    last = result.records.metrics.query("round == 4").set_index("client")["epsilon"]
    tasks = result.records.work.set_index("client")["tasks"]
    assert last.max() == pytest.approx(3.0)
    unit = mu_of(3.0, 1e-5) / math.sqrt(tasks.max())
    for client, count in tasks.items():
        assert last[client] == pytest.approx(epsilon_of(unit * math.sqrt(count), 1e-5))


@pytest.mark.parametrize("privacy", [{}, {"noise": None, "epsilon": 3.0}])
def test_in_time_training_alone_sends_nothing_and_is_free(tmp_path, privacy):
    entry = {"name": "local", "lr": 0.01}
    guarded = run_study(in_time(entry, **privacy), runs=tmp_path)
    assert epsilons(guarded) == [0.0] * 5
    assert guarded.records.releases.empty
    plain = run_study(free(algorithm=[entry], time=TIME), runs=tmp_path)
    assert torch.equal(guarded.models(), plain.models())


def test_in_time_who_says_that_nothing_is_sent_may_send_nothing():
    flow = local().flow

    def arrive(state, now):
        now.count_messages(1, state.x[0])
        return flow.arrive(state, now)

    made = make_private_in_time(
        Algorithm(flow=flow._replace(arrive=arrive)),
        Mechanism(0.3, 0.6),
        torch.arange(2),
        label="it",
        limits=Limits(),
    ).flow
    x = torch.zeros(2, 3)
    now = Arrivals(0.0, [0], (x[:1], x[:1, :0]), [1], 0, 0, 0, [])
    refuses("it says that nothing is sent, but", made.arrive, made.init(x), now)


def test_in_time_no_noise_gives_the_walk_without_privacy(tmp_path):
    entry = {"name": "token_sgd", "lr": 0.01, "wait": 2}
    quiet = run_study(in_time(entry, noise=0.0, clip=math.inf), runs=tmp_path)
    plain = run_study(free(algorithm=[entry], time=TIME), runs=tmp_path)
    assert torch.equal(quiet.models(), plain.models())


def test_a_token_passes_by_a_client_whose_budget_is_spent(tmp_path):
    entry = {"name": "token_sgd", "lr": 0.01}
    budget = epsilon_of(1.0, 1e-5)
    result = run_study(in_time(entry, budget=budget), runs=tmp_path)
    last = result.records.metrics.query("round == 4")["epsilon"]
    assert last.max() == pytest.approx(budget)
    assert result.records.work["tasks"].max() > 1


@pytest.mark.parametrize(
    ("algorithm", "privacy", "message"),
    [
        ({"name": "fedavg"}, {}, "fedavg waits for the slowest client"),
        ({"name": "ditto", "waits": False}, {}, "ditto cannot be trained privately in"),
        ({"name": "coteries", "waits": False}, {}, "coteries cannot be trained"),
        (
            {"name": "token_sgd"},
            {"budget": 1e-4},
            "`privacy.budget` 0.0001 would be spent in the first answer of token_sgd: "
            "it costs client 0 epsilon 4.38",
        ),
        (
            {"name": "token_sgd"},
            {"budget": {"client 2": 1e-4}, "noise": None, "epsilon": 4.0},
            "`privacy.budget.client 2` 0.0001 would be spent in the first answer",
        ),
    ],
)
def test_what_cannot_be_private_in_time_is_refused(
    tmp_path, algorithm, privacy, message
):
    refused(in_time(algorithm, **privacy), tmp_path, message)
