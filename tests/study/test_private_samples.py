"""Claims about studies with [privacy] of the unit sample."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from coterie.checks import InputError
from coterie.engine.rounds import init_oracle, participants
from coterie.privacy import PrivateSimulation, sampled_epsilon, sampled_noise
from coterie.privacy.accounting.calibration import Noises, with_noise
from coterie.privacy.mechanisms import StepPlan, count_releases, plan_steps, receivers
from coterie.records.cells import pack
from coterie.report.privacy import epsilon_matrix, privacy_section
from coterie.study.config import study_of
from coterie.study.experiment import run_study
from coterie.study.private.accounting import releases
from coterie.study.private.accounting.releases import PEERS
from coterie.types import SERVER, Algorithm
from support.simulated import rows, simulate
from support.study_runs import linear_tables, refused, stopped, together

TABLES = linear_tables(3)
FEDAVG = {"name": "fedavg", "lr": 0.05, "steps": 2}


def study(*algorithms, run=None, model=TABLES["model"], **privacy):
    """A study of these algorithms; without settings of privacy, an ordinary one."""
    tables = {**TABLES, "algorithm": list(algorithms or [FEDAVG]), "model": model}
    tables["run"] = {**TABLES["run"], **(run or {})}
    if privacy:
        tables["privacy"] = {"unit": "sample", "clip": 0.3, **privacy}
    return study_of(tables)


def last_epsilons(result):
    table = result.records.metrics.query("round == 4")
    return table.set_index("client")["epsilon"]


def test_single_samples_are_hidden_by_noise_in_every_gradient(tmp_path):
    result = run_study(study(noise=1.5), runs=tmp_path)
    sizes = result.records.clients.set_index("client")["train"]
    # Four rounds of two minibatches of four, of which every sample is one by chance.
    expected = sampled_epsilon(1.5, delta=1e-5, rate=4 / sizes[0], steps=8)
    assert last_epsilons(result)[0] == pytest.approx(expected)


def test_epsilon_over_rounds_is_a_bound_that_is_shown_on_the_way(tmp_path):
    shown = []
    result = run_study(study(noise=1.5), runs=tmp_path, progress=shown.append)
    worst = list(result.records.metrics.groupby("round")["epsilon"].max())
    rate = 4 / result.records.clients["train"].min()
    exact = [sampled_epsilon(1.5, delta=1e-5, rate=rate, steps=2 * t) for t in range(5)]
    assert worst[0] == 0 and worst[4] == pytest.approx(exact[4])
    for bound, tight in zip(worst[1:4], exact[1:4], strict=True):
        assert tight < bound < 1.4 * tight
    assert [p.epsilon for p in shown if p.t in (1, 2, 3)] == worst[1:4]


def asks_first(x, oracle):
    """Begins with a gradient, which tells of the clients' data."""
    return x - oracle.grads(x)


def asks_twice(x, oracle, rng):
    """A round with two minibatches."""
    for _ in range(2):
        x = x - 0.1 * oracle.grads(x)
    return x, {}


def test_what_the_beginning_asks_is_counted_once_with_every_round(classification):
    clients = PrivateSimulation(
        simulate(classification, batch_size=6), clip=0.5, noise=1.5
    )
    method = count_releases(
        Algorithm(asks_first, asks_twice, lambda x, oracle: x), clients
    )
    x = rows(clients._simulation)
    method.init(x, init_oracle(clients))  # another beginning, of which nothing is kept
    state = method.init(x, init_oracle(clients))
    rates = [6 / size for size in clients.sizes.clamp(min=6).tolist()]
    for t in range(1, 5):
        assert state.releases == [[(1.5, rate, False, 2 * t - 1)] for rate in rates]
        state, _ = method.step(state, clients.at(t), torch.Generator())
    # A checkpoint and the memory hold numbers, however long a run is.
    assert [len(kinds) for kinds in pack(state)["releases"]] == [1] * len(rates)
    assert len(clients.ledger) == 0


def test_fine_tuning_is_clipped_and_noised_as_training_is(tmp_path):
    tuned = {**FEDAVG, "name": "fedavg_finetune", "tune_steps": 5, "tune_lr": 0.1}

    def moved(**privacy):
        found = run_study(study(FEDAVG, tuned, **privacy), runs=tmp_path)
        return (found.models("fedavg_finetune") - found.models("fedavg")).norm(dim=1)

    # A step moves by 0.1 C at most where there is no noise, and else by much more.
    whole = {"batch_size": 0}
    quiet = moved(noise=0.0, clip=0.01, run=whole)
    assert float(quiet.min()) > 0 and float(quiet.max()) <= 5 * 0.1 * 0.01 + 1e-12
    assert float(moved(noise=1e6, clip=0.01, run=whole).min()) > 1


@pytest.mark.parametrize(
    "privacy", [{"noise": 1.5}, {"epsilon": 2.0}, {"noise": 1.5, "budget": 2.6}]
)
def test_resuming_equals_not_stopping(tmp_path, privacy):
    guarded = study(**privacy)
    whole = run_study(guarded, runs=tmp_path / "whole")
    stopped(guarded, lambda p: p.t == 2, runs=tmp_path / "parts")
    parts = run_study(guarded, runs=tmp_path / "parts")
    assert torch.equal(whole.models(), parts.models())
    assert whole.records.releases.equals(parts.records.releases)


def test_without_noise_and_bound_whole_batches_give_the_ordinary_run(tmp_path):
    names = ("fedavg_finetune", "ditto", "local")
    entries = [{"name": name, "lr": 0.1} for name in names]
    whole = {"batch_size": 0}
    quiet = study(*entries, run=whole, noise=0.0, clip=math.inf)
    plain = study(*entries, run=whole)
    a, b = (run_study(each, runs=tmp_path) for each in (quiet, plain))
    for entry in entries:
        gap = a.models(entry["name"]) - b.models(entry["name"])
        assert float(gap.abs().max()) < 1e-12


def assert_counts_the_same(alone, several) -> None:
    assert float((alone.models() - several.models()).abs().max()) < 1e-9
    assert alone.records.releases.equals(several.records.releases)


def test_processes_that_divide_the_clients_count_the_same(tmp_path):
    # One of three takes part, so that one process has nobody.
    guarded = study(epsilon=2.0, run={"participation": 0.3})
    alone = run_study(guarded, runs=tmp_path / "alone")
    assert_counts_the_same(alone, together(guarded, 2, tmp_path / "together")[0])


def test_what_asks_for_hessians_is_refused_by_name_before_training(tmp_path):
    message = "per_fedavg cannot be trained privately: .* asks for Hessian"
    entry = {"name": "per_fedavg", "variant": "exact"}
    refused(study(entry, noise=1.5), tmp_path, message)


def test_a_method_that_chooses_by_losses_keeps_to_its_epsilon(tmp_path):
    coteries = {"name": "coteries", "lr": 0.05, "steps": 2}
    guarded = study(coteries, epsilon=3.0, loss_clip=2.0)
    alone = run_study(guarded, runs=tmp_path / "alone")
    spent = alone.records.metrics["epsilon"]
    assert 0.3 * 3.0 < spent.max() <= 3.0
    assert_counts_the_same(alone, together(guarded, 2, tmp_path / "together")[0])
    said = privacy_section(alone.records)
    assert "cost at most epsilon 3; losses that were asked for were bounded" in said


# Who sees what.


def pairs(result, label=None):
    """Epsilon by client and receiver."""
    table = result.records.releases
    if label is not None:
        table = table[table["algorithm"] == label]
    return table.set_index(["client", "to"])["epsilon"].to_dict()


def test_a_client_that_sends_nothing_has_an_epsilon_of_zero(tmp_path):
    # A budget that one round would exceed is none that it spends.
    alone = {"name": "local", "lr": 0.05, "steps": 2}
    result = run_study(study(alone, noise=1.5, budget=0.1), runs=tmp_path)
    assert result.records.releases.empty
    assert set(result.records.metrics["epsilon"]) == {0.0}
    section = privacy_section(result.records)
    assert "<td>nobody</td>" in section
    moved = (
        result.models()
        - run_study(study(alone, noise=1.5, run={"rounds": 1}), runs=tmp_path).models()
    )
    assert float(moved.norm()) > 0  # it goes on


@pytest.mark.parametrize("how", [{"noise": 9.0}, {"epsilon": 0.5}], ids=str)
def test_who_sends_nothing_is_trained_as_without_privacy(tmp_path, how):
    """Or learning together would be compared with an alone that nobody needs."""
    alone, everything = {"name": "local", "lr": 0.5, "steps": 2}, {"batch_size": 0}
    private = run_study(study(alone, FEDAVG, run=everything, **how), runs=tmp_path)
    plain = run_study(study(alone, FEDAVG, run=everything), runs=tmp_path)
    assert_close(private.models("local"), plain.models("local"), rtol=1e-9, atol=1e-9)
    apart = private.models("fedavg") - plain.models("fedavg")
    assert float(apart.norm()) > 0.1


def test_a_server_sees_what_is_averaged_and_nobody_else_does(tmp_path):
    result = run_study(study(noise=1.5), runs=tmp_path)
    spent = last_epsilons(result)
    assert pairs(result) == {(k, SERVER): spent[k] for k in range(3)}


def test_whoever_rows_come_to_from_neighbour_to_neighbour_may_know_all(tmp_path):
    """On a ring of five; and nobody else, as there is no server."""
    tables = {**TABLES, "data": {**TABLES["data"], "clients": 5}}
    tables["algorithm"] = [{"name": "decentralised_sgd", "lr": 0.05}]
    tables["privacy"] = {"unit": "sample", "clip": 0.3, "noise": 1.5}
    result = run_study(study_of(tables), runs=tmp_path)
    spent, found = last_epsilons(result), pairs(result)
    assert found == {(k, v): spent[k] for k in range(5) for v in range(5) if k != v}
    assert "other clients" in privacy_section(result.records)
    matrix = epsilon_matrix(result.records, "decentralised_sgd").data[0].z
    assert matrix.shape == (5, 5) and (matrix > 0).sum() == 20


def test_a_reader_hears_of_answers_to_others_by_their_models(tmp_path):
    entry = {"name": "all_for_one", "weights": "uniform", "lr": 0.05}
    result = run_study(study(entry, noise=1.5), runs=tmp_path)
    spent, each = last_epsilons(result), range(3)
    assert pairs(result) == {(k, v): spent[k] for k in each for v in each if k != v}


def test_clients_tell_comparisons_to_everybody(tmp_path):
    entry = {"name": "adaptive_all_for_one", "every": 2}
    result = run_study(study(entry, noise=1.5), runs=tmp_path)
    found, spent = pairs(result), last_epsilons(result)
    assert set(found) == {(k, v) for k in range(3) for v in range(3) if k != v}
    assert all(0 < epsilon <= spent[k] for (k, _), epsilon in found.items())


def test_pairs_of_many_clients_are_not_kept_but_who_sees_what_is(tmp_path, monkeypatch):
    monkeypatch.setattr(receivers, "PAIRS", 2)
    monkeypatch.setattr(releases, "SNAPSHOT_CLIENTS", 2)
    entry = {"name": "all_for_one", "weights": "uniform"}
    result = run_study(study(entry, FEDAVG, noise=1.5), runs=tmp_path / "samples")
    assert {to for _, to in pairs(result, "all_for_one")} == {PEERS}
    assert {to for _, to in pairs(result, "fedavg")} == {SERVER}
    whole = study(entry, FEDAVG, noise=5.0, unit="client")
    result = run_study(whole, runs=tmp_path / "clients")
    assert {to for _, to in pairs(result, "all_for_one")} == {PEERS}
    assert {to for _, to in pairs(result, "fedavg")} == {SERVER}


def test_the_report_of_samples_says_who_learns_how_much(tmp_path):
    section = privacy_section(run_study(study(noise=1.5), runs=tmp_path).records)
    assert "everybody who receives rows from it learns at most its epsilon" in section
    assert "The account is made at the end" not in section


# Noise for an epsilon, and budgets.


def by_client(steps: int, rate: float, noise: float = 1.5) -> float:
    """The account by which budgets are kept, a little more than exact."""
    found = sampled_epsilon(noise, delta=1e-5, rate=rate, steps=steps)
    return found * (1 + 1e-6)  # noise is found in another order of products


@pytest.mark.parametrize("participation", [1.0, 0.67])
def test_noise_is_found_for_an_epsilon_and_is_hardly_too_much(tmp_path, participation):
    run = {"participation": participation}
    result = run_study(study(epsilon=2.0, run=run), runs=tmp_path)
    assert 1.99 < last_epsilons(result).max() <= 2.0
    # On the way nothing more than the promise is said to be spent.
    assert result.records.metrics["epsilon"].max() <= 2.0
    # A noise that is known gives the same account.
    most = 2 * max(
        sum(bool(participants(3, participation, 0, t)[k]) for t in range(1, 5))
        for k in range(3)
    )
    rate = 4 / result.records.clients["train"].min()
    noise = sampled_noise(2.0, delta=1e-5, rate=rate, steps=most)
    told = sampled_epsilon(noise, delta=1e-5, rate=rate, steps=most)
    assert last_epsilons(result).max() == pytest.approx(told, rel=2e-3)


@pytest.mark.parametrize(
    "entry",
    [
        {"name": "all_for_one", "weights": "uniform"},
        {"name": "adaptive_all_for_one"},
        {"name": "pfedme", "steps": 2},
        {"name": "ditto"},
        {"name": "decentralised_sgd"},
    ],
)
def test_what_is_foreseen_is_at_least_what_is_asked(tmp_path, entry):
    result = run_study(study(entry, epsilon=2.0), runs=tmp_path)
    assert 0.3 < last_epsilons(result).max() <= 2.0


def test_a_run_ends_at_its_budget_says_so_and_keeps_its_models(tmp_path):
    free = run_study(study(noise=1.5), runs=tmp_path)
    rate = 4 / free.records.clients["train"].min()
    said: list[str] = []
    budget = by_client(4, rate)
    ended = run_study(
        study(noise=1.5, budget=budget), runs=tmp_path, notice=said.append
    )
    losses = ended.records.metrics.pivot(
        index="round", columns="client", values="test_loss"
    )
    assert (losses.loc[3:] == losses.loc[2]).all(axis=None)
    assert (losses.loc[1] != losses.loc[2]).all()
    assert any("used up before round 3" in line for line in said)
    assert last_epsilons(ended).max() <= budget


def test_a_client_with_a_budget_of_its_own_stays_away_when_it_is_spent(tmp_path):
    free = run_study(study(noise=1.5), runs=tmp_path)
    rate = 4 / free.records.clients.set_index("client")["train"][1]
    own = study(noise=1.5, budget={"1": by_client(2, rate)})
    last = last_epsilons(run_study(own, runs=tmp_path))
    told = sampled_epsilon(1.5, delta=1e-5, rate=rate, steps=2)
    assert last[1] == pytest.approx(told)
    assert last[0] == last_epsilons(free)[0]


def test_a_method_that_asks_more_than_was_foreseen_is_ended(classification):
    clients = PrivateSimulation(
        simulate(classification, batch_size=6), clip=0.5, noise=1.5
    )
    quiet = Algorithm(lambda x, oracle: x, asks_twice, lambda x, oracle: x)
    everybody = torch.ones(len(clients), dtype=torch.bool)
    steps, _, sends = plan_steps(quiet, clients, [everybody], seed=0)
    assert not sends
    rates = [6 / size for size in clients.sizes.clamp(min=6).tolist()]
    assert steps == [[{}] * len(rates), [{(1.0, rate, False): 2} for rate in rates]]
    planned = StepPlan(with_noise(steps, Noises(1.5, 1.5)), 1e-5)
    method = count_releases(
        Algorithm(asks_first, asks_twice, lambda x, oracle: x), clients, planned
    )
    with pytest.raises(InputError, match="round 0 released more than was planned"):
        method.init(rows(clients._simulation), init_oracle(clients))


@pytest.mark.parametrize(
    ("privacy", "message"),
    [
        ({"noise": 1.5, "budget": 0.1}, "would be spent in the first round of fedavg"),
        (
            {"noise": 1.5, "budget": {"1": 0.1}},
            "`privacy.budget.1` 0.1 would be spent in the first round of fedavg: it "
            "costs client 1 epsilon",
        ),
        ({"noise": 1.5, "budget": {"Chur": 1.0}}, "'Chur', which is not a client"),
        ({"epsilon": 1e-4}, "`privacy.epsilon` is too small for our accounts"),
    ],
)
def test_budgets_that_cannot_be_kept_are_refused_before_training(
    tmp_path, privacy, message
):
    refused(study(**privacy), tmp_path, message)


def test_a_method_that_knows_its_columns_needs_the_noise(tmp_path):
    entry = {"name": "fedrep"}
    model = {"name": "mlp", "hidden": [4]}
    message = "what fedrep asks cannot be counted before"
    refused(study(entry, model=model, epsilon=2.0), tmp_path, message)


def test_settings_of_the_other_unit_are_refused():
    with pytest.raises(InputError, match=r"`privacy.aggregation` must be .local. for"):
        study(noise=1.5, aggregation="secure")
