"""Claims about clients that are held out of training and join afterwards."""

from __future__ import annotations

import copy
import inspect
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tomli_w
import torch
from torch.testing import assert_close

from coterie import cells, ground, report
from coterie.algorithms import ALGORITHMS
from coterie.algorithms.fedavg_finetune import fedavg_finetune
from coterie.checks import InputError, TrainingError
from coterie.config import study
from coterie.conformance import Case, Setting, leaves, small_federation, starting_rows
from coterie.data.federation import Federation
from coterie.experiment import Result, run_study
from coterie.ground import build_algorithm, federation_of
from coterie.ingredients import precision, weights
from coterie.models import build, ravel
from coterie.newcomers import hold_out, models_for
from coterie.oracle import Simulation
from coterie.record import Folder, Records, load_records
from coterie.rounds import run_rounds
from coterie.seeds import generator
from coterie.selection import mean_of_partners, training_losses
from coterie.tables import newcomer_gains, newcomer_summary, summary
from coterie.types import Algorithm
from coterie.weights import collaboration_weights, continuous
from test_cli import called
from test_report import Fetches, make_records, rendered, written

CLIENTS, HELD_OUT, ROUNDS = 6, 2, 2
TABLES = {
    "name": "tiny",
    "data": {"name": "digits"},
    "split": {"name": "label_swap", "clients": CLIENTS, "max_samples": 40},
    "model": {"name": "linear"},
    "run": {
        "rounds": ROUNDS,
        "batch_size": 4,
        "newcomers": HELD_OUT,
        "participation": 0.75,
        "checkpoint_seconds": 0.0,
    },
    "algorithm": [{"name": "local", "steps": 3}, {"name": "fedavg"}],
}


def made(**changes: object):
    """The study above with tables replaced, or settings of [run] changed."""
    tables = copy.deepcopy(TABLES)
    for name, value in changes.items():
        if name in tables:
            tables[name] = value
        else:
            tables["run"][name] = value
    return study(tables)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Result:
    """Every algorithm with its defaults, run to the end."""
    entries = [{"name": name} for name in ALGORITHMS]
    return run_study(made(algorithm=entries), runs=tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def two_seeds(tmp_path_factory) -> Result:
    return run_study(made(seeds=[0, 1]), runs=tmp_path_factory.mktemp("runs"))


def parted(result: Result, seed: int = 0) -> tuple[Federation, list[int], list[int]]:
    """All clients of a study, those who train, and those who join later."""
    everybody = federation_of(result.study, seed)
    trains, joins = hold_out(everybody, HELD_OUT, seed)
    return everybody, trains.tolist(), joins.tolist()


def without_samples_of(federation: Federation, clients: list[int]) -> Federation:
    """The federation with NaN for all features of these clients."""
    features = federation.features.clone()
    for part in (federation.train, federation.validation, federation.test):
        for i in clients:
            features[part.index[part.start[i] : part.start[i] + part.size[i]]] = np.nan
    return replace(federation, features=features)


# Who is held out


def test_who_is_held_out_follows_from_the_seed_and_grows_with_the_number(
    classification,
):
    order = torch.randperm(6, generator=generator(3, "newcomers"))
    for count in range(5):
        trains, joins = hold_out(classification, count, 3)
        assert joins.tolist() == sorted(order[:count].tolist())
        assert trains.tolist() == sorted(order[count:].tolist())
    draws = {tuple(hold_out(classification, 2, seed)[1].tolist()) for seed in range(9)}
    assert len(draws) > 4


@pytest.mark.parametrize("count", [5, 6, 100])
def test_at_least_two_clients_must_be_left_to_train(tmp_path, count):
    message = f"leave at least two clients .* has 6 clients and {count} were to be held"
    with pytest.raises(InputError, match=message):
        run_study(made(newcomers=count), runs=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (-1, "`run.newcomers` must be at least 0, got -1"),
        (1.5, "`run.newcomers` must be a whole number, got 1.5"),
        ("two", "`run.newcomers` must be a whole number, got 'two'"),
    ],
)
def test_a_number_of_newcomers_that_means_nothing_is_refused(value, message):
    with pytest.raises(InputError, match=re.escape(message)):
        made(newcomers=value)


def test_selected_clients_keep_identity_data_and_draws(classification):
    module = torch.nn.Linear(12, 2).double()
    positions = torch.tensor([4, 1])
    some = classification.select(positions)
    assert some.clients.tolist() == [4, 1]
    assert some.clusters.tolist() == [0, 1]
    options = {"batch_size": 3, "dtype": torch.float64}
    x = torch.randn(6, 26, generator=generator("x"), dtype=torch.float64)
    g = Simulation(classification, module, **options).at(1).grads(x)
    mine = Simulation(some, module, **options).at(1).grads(x[positions])
    # Sums in another order where another number of rows is vectorised.
    assert_close(mine, g[positions], rtol=1e-12, atol=1e-12)
    again = some.select(torch.tensor([1]))
    assert (again.clients.tolist(), again.everybody) == ([1], 6)
    assert classification.everybody is None


def test_files_are_about_all_clients_also_where_some_are_held_out(
    classification, tmp_path
):
    given = np.random.default_rng(0).random((6, 6))
    given[0] = np.eye(6)[5]  # trusts nobody but one that will be absent
    given /= given.sum(1, keepdims=True)
    np.save(tmp_path / "w.npy", given)
    np.save(tmp_path / "p.npy", np.arange(1.0, 7.0))
    some = classification.select(torch.tensor([0, 2, 4]))
    expected = given[[0, 2, 4]][:, [0, 2, 4]]
    expected[0] = [1, 0, 0]
    expected /= expected.sum(1, keepdims=True)
    found = weights(str(tmp_path / "w.npy"), some)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert precision(str(tmp_path / "p.npy"), some).tolist() == [1, 3, 5]
    order = torch.tensor([5, 0, 1, 2, 3, 4])
    found = weights(str(tmp_path / "w.npy"), classification.select(order))
    np.testing.assert_allclose(found, given[order][:, order], rtol=1e-6)
    np.save(tmp_path / "w.npy", given[:3, :3])
    with pytest.raises(InputError, match=r"`weights` must .*6"):
        weights(str(tmp_path / "w.npy"), some)


# Training does not know of them


@pytest.mark.parametrize("name", ALGORITHMS)
def test_training_is_that_of_a_federation_without_the_held_out_clients(finished, name):
    """Their samples could as well not be numbers."""
    everybody, trains, joins = parted(finished)
    rest = without_samples_of(everybody, joins).select(torch.tensor(trains))
    (entry,) = [e for e in finished.study.algorithms if e.label == name]
    algorithm = build_algorithm(entry, rest)
    module = ground.module_of(finished.study, everybody, 0)
    simulation = Simulation(rest, module, batch_size=4, seed=0)
    x = ravel(module).repeat(len(trains), 1)
    for r in run_rounds(
        algorithm, simulation, x, rounds=ROUNDS, seed=0, participation=0.75
    ):
        last = r
    personal = algorithm.personal(last.state, simulation.at(ROUNDS, purpose="use"))
    assert torch.equal(finished.models(name), personal)
    costs = finished.records.rounds.set_index(["algorithm", "round"])["gradients"]
    alone = costs[name, ROUNDS] - costs[name, ROUNDS - 1]
    assert alone == float(last.gradients.sum())


def test_without_newcomers_nothing_is_held_out(tmp_path):
    result = run_study(made(newcomers=0), runs=tmp_path)
    assert result.models().shape[0] == CLIENTS
    assert result.records.newcomers.empty
    assert not (result.folder / "newcomers.csv").exists()
    assert not list(result.folder.rglob("*newcomers*"))
    with pytest.raises(InputError, match=r"no newcomers: `run\.newcomers` holds"):
        result.newcomers()


# What newcomers get


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_gives_every_newcomer_a_model_of_its_own(name):
    """It is finite, its making modifies nothing, and data of others do not matter."""
    everybody = small_federation(8)
    trained = everybody.select(torch.arange(6))
    setting, case = Setting(), Case(ALGORITHMS[name])
    module = build(setting.module, 0, torch.float64)
    options = {"batch_size": 4, "dtype": torch.float64}
    clients = Simulation(trained, module, **options)
    algorithm, x = case.build(trained), starting_rows(trained, setting)
    *_, last = run_rounds(algorithm, clients, x, rounds=3)
    personal = algorithm.personal(last.state, clients.at(3, purpose="use"))
    before = copy.deepcopy(leaves(last.state))

    def models_with(features: torch.Tensor) -> torch.Tensor:
        later = replace(everybody, features=features).select(torch.tensor([6, 7]))
        oracle = Simulation(later, module, **options).at(3, purpose="welcome")
        return models_for(case.build(everybody), last.state, personal, oracle)

    here = models_with(everybody.features)
    assert here.shape == (2, x.shape[1])
    assert here.dtype == torch.float64
    assert here.isfinite().all()
    for key, value in leaves(last.state).items():
        same = torch.equal if isinstance(value, torch.Tensor) else lambda a, b: a == b
        assert same(value, before[key]), key
    other = everybody.features.clone()
    start, size = everybody.train.start[6], everybody.train.size[6]
    other[everybody.train.index[start : start + size]] *= -3
    assert torch.equal(models_with(other)[1], here[1])


def newcomers_of(federation: Federation, first: int, batch_size: int = 0):
    """The oracle of all clients from the first on, with full gradients."""
    later = federation.select(torch.arange(first, len(federation)))
    module = build(Setting().module, 0, torch.float64)
    simulation = Simulation(later, module, batch_size=batch_size, dtype=torch.float64)
    return simulation.at(4, purpose="welcome")


def trained_by(name: str, federation: Federation, alike: bool = True, **options):
    """The state after four rounds with full gradients, all starting alike."""
    case, setting = Case(ALGORITHMS[name], options), Setting()
    module = build(setting.module, 0, torch.float64)
    x = starting_rows(federation, setting)
    x = x[:1].repeat(len(x), 1) if alike else x
    clients = Simulation(federation, module, batch_size=0, dtype=torch.float64)
    *_, last = run_rounds(case.build(federation), clients, x, rounds=4)
    return last.state


def test_alone_a_newcomer_gets_what_it_would_have_learned_from_the_beginning():
    options = {
        "steps": 3,
        "momentum": 0.5,
        "weight_decay": 0.01,
        "schedule": "inverse(5)",
    }
    everybody = small_federation(8)
    state = trained_by("local", everybody.select(torch.arange(6)), **options)
    welcome = Case(ALGORITHMS["local"], options).build(everybody).welcome
    found = welcome(state, newcomers_of(everybody, 6))
    expected = trained_by("local", everybody, **options).x[6:]
    # Means of equal numbers, and sums in the order of another number of rows.
    assert_close(found, expected, rtol=1e-10, atol=1e-12)
    assert not torch.equal(found, state.start.repeat(2, 1))


def test_alone_a_newcomer_begins_at_the_mean_where_starts_differ():
    everybody = small_federation(8)
    trained = everybody.select(torch.arange(6))
    state = trained_by("local", trained, alike=False)
    assert_close(state.start, starting_rows(trained, Setting()).mean(0))
    still = state._replace(t=0)
    found = ALGORITHMS["local"]().welcome(still, newcomers_of(everybody, 6))
    assert torch.equal(found, state.start.repeat(2, 1))


def test_fedavg_gives_newcomers_the_global_model():
    everybody = small_federation(8)
    state = trained_by("fedavg", everybody.select(torch.arange(6)))
    algorithm = Case(ALGORITHMS["fedavg"]).build(everybody)
    found = algorithm.welcome(state, newcomers_of(everybody, 6))
    assert torch.equal(found, state.x[:2])


def test_fine_tuning_takes_its_steps_on_the_newcomers_data():
    everybody = small_federation(8)
    state = trained_by("fedavg_finetune", everybody.select(torch.arange(6)))
    algorithm = fedavg_finetune(everybody.train.size, tune_steps=3, tune_lr=0.2)
    found = algorithm.welcome(state, newcomers_of(everybody, 6))
    x = state.x[:2]
    for _ in range(3):
        x = x - 0.2 * newcomers_of(everybody, 6).grads(x)
    assert_close(found, x)
    assert not torch.equal(found, state.x[:2])


def blended_by_hand(x, alpha, losses) -> torch.Tensor:
    rows = []
    for of_newcomer in losses.tolist():
        b = of_newcomer.index(min(of_newcomer))
        total = sum(alpha[b].tolist())
        rows.append(sum(float(alpha[b, k]) / total * x[k] for k in range(len(x))))
    return torch.stack(rows)


def test_all_for_one_gives_the_mean_of_whom_the_most_alike_client_learned_with():
    everybody = small_federation(8)
    state = trained_by("all_for_one", everybody.select(torch.arange(6)), alike=False)
    algorithm = Case(ALGORITHMS["all_for_one"]).build(everybody)
    found = algorithm.welcome(state, newcomers_of(everybody, 6))
    alpha = weights("clusters", everybody.select(torch.arange(6))).double()
    losses = training_losses(newcomers_of(everybody, 6), state.x)
    assert_close(found, blended_by_hand(state.x, alpha, losses))
    # Weights on newcomers themselves are nobody's who could have learned.
    given = torch.rand(8, 8, generator=generator("weights"), dtype=torch.float64)
    given[:, 6:] *= 100
    found = ALGORITHMS["all_for_one"](given).welcome(state, newcomers_of(everybody, 6))
    assert_close(found, blended_by_hand(state.x, given[:6, :6], losses))


@pytest.mark.parametrize("rule", ["paper", "normalised"])
def test_adaptive_collaboration_uses_the_weights_that_it_believes_in(rule):
    everybody = small_federation(8)
    options = {"criterion": "continuous", "rule": rule}
    trained = everybody.select(torch.arange(6))
    state = trained_by("adaptive_all_for_one", trained, alike=False, **options)
    rng = generator("ratios")
    ratio = torch.rand(6, 6, generator=rng, dtype=torch.float64)
    ratio = torch.where(torch.eye(6, dtype=torch.bool), 1.0, ratio)
    state = state._replace(belief=state.belief._replace(ratio=ratio))
    algorithm = Case(ALGORITHMS["adaptive_all_for_one"], options).build(everybody)
    found = algorithm.welcome(state, newcomers_of(everybody, 6))
    size = everybody.train.size[:6].double()
    alpha = collaboration_weights(ratio, size, continuous)
    losses = training_losses(newcomers_of(everybody, 6), state.x)
    assert_close(found, blended_by_hand(state.x, alpha, losses))


def test_partners_are_those_of_the_best_fit_and_scale_does_not_matter():
    everybody = small_federation(8)
    x = starting_rows(everybody.select(torch.arange(6)), Setting())
    oracle = newcomers_of(everybody, 6)
    alone = mean_of_partners(oracle, x, torch.eye(6, dtype=torch.float64))
    best = training_losses(oracle, x).argmin(1)
    assert_close(alone, x[best])
    alpha = torch.rand(6, 6, generator=generator("alpha"), dtype=torch.float64)
    found = mean_of_partners(oracle, x, alpha)
    assert_close(found, mean_of_partners(oracle, x, 7 * alpha))
    assert not torch.allclose(found, alone)


def test_without_a_welcome_a_newcomer_takes_the_model_that_fits_best():
    everybody = small_federation(8)
    x = starting_rows(everybody.select(torch.arange(6)), Setting())
    plain = Algorithm(lambda x: x, lambda state, oracle, rng: (state, {}))
    found = models_for(plain, None, x, newcomers_of(everybody, 6))
    best = training_losses(newcomers_of(everybody, 6), x).argmin(1)
    assert torch.equal(found, x[best])
    wrong = plain._replace(welcome=lambda state, oracle: x)
    with pytest.raises(InputError, match=r"shape \(2, 19\), got \(6, 19\)"):
        models_for(wrong, None, x, newcomers_of(everybody, 6))


def test_newcomers_learn_more_from_those_who_are_like_them(tmp_path):
    """Two clusters of noisy linear models, few samples: alone and average are poor."""
    entries = [
        {"name": "local"},
        {"name": "fedavg"},
        {"name": "all_for_one"},
        {"name": "adaptive_all_for_one", "every": 5},
    ]
    tables = {
        "data": {
            "name": "linear",
            "clients": 12,
            "dimension": 5,
            "samples": 12,
            "spread": 1.0,
            "noise": 1.0,
        },
        "split": {"name": "natural"},
        "model": {"name": "linear", "bias": False},
        "run": {"rounds": 60, "newcomers": 4, "seeds": [0, 1], "evaluate_every": 60},
        "algorithm": entries,
    }
    result = run_study(study(tables), runs=tmp_path)
    distance = result.records.newcomers.groupby("algorithm")["distance"].mean()
    for ours in ("all_for_one", "adaptive_all_for_one"):
        for theirs in ("local", "fedavg"):
            assert distance[ours] < 0.7 * distance[theirs], distance


# What is kept of them


def test_newcomers_are_evaluated_with_their_own_models_on_their_own_data(finished):
    everybody, _, joins = parted(finished)
    for label in ("local", "fedavg_finetune"):
        table = finished.records.newcomers
        table = table[table["algorithm"] == label]
        assert table["client"].tolist() == joins
        assert table["train"].tolist() == everybody.train.size[joins].tolist()
        assert table["cluster"].tolist() == everybody.clusters[joins].tolist()
        rows = finished.newcomer_models(label)
        for j, client in enumerate(joins):
            module = finished.model(client, label)
            assert torch.equal(ravel(module), rows[j])
            for name in ("train", "validation", "test"):
                index, start, size = everybody.part(name)
                mine = index[start[client] : start[client] + size[client]]
                with torch.no_grad():
                    outputs = module(everybody.features[mine])
                targets = everybody.targets[mine]
                loss = torch.nn.functional.cross_entropy(outputs, targets)
                right = (outputs.argmax(1) == targets).float().mean()
                found = table.iloc[j][[f"{name}_loss", f"{name}_accuracy"]]
                expected = [float(loss), float(right)]
                np.testing.assert_allclose(found.astype(float), expected, rtol=1e-5)


def test_tables_name_clients_by_their_identities(two_seeds):
    records = two_seeds.records
    for seed in (0, 1):
        _, trains, joins = parted(two_seeds, seed)
        clients = records.clients[records.clients["seed"] == seed]
        assert clients["client"].tolist() == trains
        metrics = records.metrics[records.metrics["seed"] == seed]
        for _, table in metrics.groupby(["algorithm", "round"]):
            assert table["client"].tolist() == trains
        late = records.newcomers[records.newcomers["seed"] == seed]
        for _, table in late.groupby("algorithm"):
            assert table["client"].tolist() == joins
        for j, client in enumerate(trains):
            row = two_seeds.models("local", seed)[j]
            assert torch.equal(ravel(two_seeds.model(client, "local", seed)), row)
    # Another seed holds others out, or else the tables above would prove little.
    assert parted(two_seeds, 0)[2] != parted(two_seeds, 1)[2]
    with pytest.raises(InputError, match="`client` must be at most 5, got 6"):
        two_seeds.model(6)


def test_files_hold_what_the_records_hold(two_seeds):
    again = load_records(two_seeds.folder)
    for name in ("newcomers", "clients"):
        table = getattr(again, name)
        read = pd.read_csv(two_seeds.folder / f"{name}.csv")
        pd.testing.assert_frame_equal(read, table, check_dtype=False)
        pd.testing.assert_frame_equal(table, getattr(two_seeds.records, name))
    assert list(again.newcomers.columns[:5]) == [
        "algorithm",
        "seed",
        "client",
        "cluster",
        "train",
    ]


def test_weights_are_those_of_the_clients_that_trained(finished):
    records = finished.records
    _, trains, _ = parted(finished)
    snapshots = records.weights["all_for_one", 0]
    assert snapshots.matrices.shape[1:] == (4, 4)
    figure = report.collaboration(records, "all_for_one")
    assert sorted(map(int, figure.layout.xaxis.ticktext)) == trains
    counts = report.partners(records).data
    outside = [t for t in counts if t.name == "all_for_one, outside"]
    assert not any(outside[0].y)


@pytest.mark.parametrize("entry", ["local", "fedavg"])
def test_a_newcomers_model_that_is_not_finite_is_named(tmp_path, monkeypatch, entry):
    factory = ALGORITHMS[entry]

    def wild(*given, lr: float = 0.1):
        algorithm = factory(*given, lr=lr)

        def welcome(state, oracle):
            x = algorithm.welcome(state, oracle)
            return x.index_fill(0, torch.tensor([1]), torch.inf)

        return algorithm._replace(welcome=welcome)

    wild.__signature__ = inspect.signature(factory)
    monkeypatch.setitem(ALGORITHMS, entry, wild)
    only = made(algorithm=[{"name": entry}])
    _, joins = hold_out(federation_of(only, 0), HELD_OUT, 0)
    message = f"client {int(joins[1])} has a newcomer's model that is not finite after"
    with pytest.raises(TrainingError, match=message):
        run_study(only, runs=tmp_path)


# Going on


def assert_same(first: Result, second: Result) -> None:
    """Raises unless two runs have bitwise the same tables and models."""
    for name in ("metrics", "newcomers"):
        one, two = (getattr(r.records, name) for r in (first, second))
        pd.testing.assert_frame_equal(one, two, check_exact=True)
    for entry in first.study.algorithms:
        for seed in first.study.run.seeds:
            pair = [r.newcomer_models(entry.label, seed) for r in (first, second)]
            assert torch.equal(*pair)
            assert torch.equal(*(r.models(entry.label, seed) for r in (first, second)))


class PowerCut(BaseException):
    """Nobody saves anything."""


@pytest.mark.parametrize("error", [KeyboardInterrupt, PowerCut])
@pytest.mark.parametrize("place", ["models_for", "_measures", "save_models", "done"])
def test_going_on_after_a_stop_among_the_newcomers_equals_not_stopping(
    two_seeds, tmp_path, monkeypatch, error, place
):
    owner = Folder if place in ("save_models", "done") else cells
    name = "save" if place == "done" else place
    inner = getattr(owner, name)

    def stop(*args, **options):
        late = {
            "models_for": True,
            # The measures before were those of clients that train.
            "_measures": isinstance(args[-1], torch.Tensor) and len(args[-1]) == 2,
            "save_models": options.get("of") == "newcomers",
            "done": getattr(args[-1], "done", False),
        }
        if late[place]:
            raise error
        return inner(*args, **options)

    monkeypatch.setattr(owner, name, stop)
    with pytest.raises(error):
        run_study(two_seeds.study, runs=tmp_path)
    monkeypatch.undo()
    (folder,) = tmp_path.iterdir()
    cell = Folder(folder).cell("local", 0)
    assert (cell.t, cell.done) == (ROUNDS, False)
    trained = []

    def counted(*args, start, **options):
        for r in run_rounds(*args, start=start, **options):
            trained.append(r.t)
            yield r

    monkeypatch.setattr(cells, "run_rounds", counted)
    resumed = run_study(two_seeds.study, resume=folder)
    assert len(trained) == 3 * ROUNDS  # three other cells; the first had trained
    assert_same(two_seeds, resumed)


def test_a_finished_run_does_not_welcome_again(two_seeds, monkeypatch):
    files = {p: p.read_bytes() for p in two_seeds.folder.rglob("*.pt")}

    def refuse(*args):
        raise AssertionError("newcomers were welcomed again")

    monkeypatch.setattr(cells, "models_for", refuse)
    again = run_study(two_seeds.study, resume=two_seeds.folder)
    assert_same(two_seeds, again)
    assert {p: p.read_bytes() for p in two_seeds.folder.rglob("*.pt")} == files


def test_another_number_of_newcomers_is_another_study(two_seeds):
    other = made(seeds=[0, 1], newcomers=1)
    with pytest.raises(InputError, match=r"`run\.newcomers` is 1 here and 2 there"):
        run_study(other, resume=two_seeds.folder)


def test_one_newcomer_more_changes_nothing_for_the_other(two_seeds):
    """With the same clients in training, whoever joins draws its own numbers."""
    everybody, _, joins = parted(two_seeds)
    module = ground.module_of(two_seeds.study, everybody, 0)
    state = trained_by("local", small_federation(6))._replace(start=ravel(module), t=5)
    algorithm = ALGORITHMS["local"]()
    found = {}
    for names in (joins, joins[:1]):
        later = everybody.select(torch.tensor(names))
        oracle = Simulation(later, module, batch_size=4).at(2, purpose="welcome")
        found[len(names)] = algorithm.welcome(state, oracle)
    assert_close(found[2][:1], found[1], rtol=1e-5, atol=1e-6)


# Numbers and words


def with_newcomers(records: Records, **scores: list[list[float]]) -> Records:
    """Records with two newcomers of each seed; scores by algorithm, seed, newcomer."""
    tables = []
    column = "test_loss" if records.task == "regression" else "test_accuracy"
    for label, by_seed in scores.items():
        for seed, values in enumerate(by_seed):
            table = pd.DataFrame({"client": [20 + seed, 30 + seed], column: values})
            table.insert(0, "seed", seed)
            table.insert(0, "algorithm", label)
            tables.append(table)
    study = {**records.study, "run": {**records.study["run"], "newcomers": 2}}
    return replace(records, newcomers=pd.concat(tables, ignore_index=True), study=study)


LOCAL = [[0.5, 0.6], [0.7, 0.8], [0.4, 0.6]]
FEDAVG = [[0.5, 0.7], [0.6, 0.8 + 1e-12], [0.9, 0.3]]


def test_the_table_of_newcomers_is_right_by_hand():
    records = with_newcomers(make_records(), local=LOCAL, fedavg=FEDAVG)
    table = newcomer_summary(records)
    assert table.index.tolist() == ["local", "fedavg"]
    assert table["newcomers"].tolist() == [6, 6]
    assert table["seeds"].tolist() == [3, 3]
    assert table.loc["fedavg", "mean"] == pytest.approx((0.6 + 0.7 + 0.6) / 3)
    assert table.loc["fedavg", "worst"] == 0.3
    spread = np.std([0.6, 0.7, 0.6], ddof=1) / 3**0.5
    assert table.loc["fedavg", "standard_error"] == pytest.approx(spread)
    # Two are better, two are equal up to rounding, two are worse.
    assert table.loc["fedavg", "better_than_local"] == pytest.approx(2 / 6)
    assert np.isnan(table.loc["local", "better_than_local"])


def test_in_regression_the_worst_newcomer_has_the_largest_loss():
    records = make_records(task="regression")
    table = newcomer_summary(with_newcomers(records, local=LOCAL, fedavg=FEDAVG))
    assert table.loc["fedavg", "worst"] == 0.9
    assert table.loc["fedavg", "better_than_local"] == pytest.approx(2 / 6)


def test_a_newcomers_score_that_is_no_number_is_not_averaged_away():
    broken = [[np.nan, 0.6], *FEDAVG[1:]]
    records = with_newcomers(make_records(), local=LOCAL, fedavg=broken)
    table = newcomer_summary(records)
    assert table.loc["fedavg", ["mean", "worst"]].isna().all()
    assert newcomer_gains(records, "fedavg").isna().sum() == 1


def test_without_training_alone_nobody_is_better_than_it(tmp_path):
    records = make_records(labels=("fedavg", "ditto"))
    records = with_newcomers(records, fedavg=FEDAVG)
    assert newcomer_summary(records)["better_than_local"].isna().all()
    with pytest.raises(InputError, match="named 'local'"):
        newcomer_gains(records, "fedavg")
    assert (
        report.newcomers(records).layout.title.text == "<b>Scores of the newcomers</b>"
    )
    assert "it trained by itself" not in written(records, tmp_path)


def held_out_at_random(records: Records) -> Records:
    """The records without client s of seed s, who was held out."""
    clients, metrics = records.clients, records.metrics
    return replace(
        records,
        clients=clients[clients["client"] != clients["seed"]],
        metrics=metrics[metrics["client"] != metrics["seed"]],
        weights={},
    )


def test_a_client_counts_by_the_seeds_with_which_it_trained(tmp_path):
    records = held_out_at_random(make_records())
    last = records.metrics[records.metrics["round"] == 4]
    sizes = records.clients[["seed", "client", "train"]]
    table = summary(records)
    for label in ("local", "fedavg", "ditto"):
        mine = last[last["algorithm"] == label].merge(sizes, on=["seed", "client"])
        by_client = mine.groupby("client")["test_accuracy"].mean()
        assert len(by_client) == 12
        by_seed = mine.groupby("seed")["test_accuracy"].mean()
        weighted = [
            np.average(some["test_accuracy"], weights=some["train"])
            for _, some in mine.groupby("seed")
        ]
        row = table.loc[label]
        assert row["mean"] == pytest.approx(by_client.mean())
        assert row["worst_client"] == pytest.approx(by_client.min())
        assert row["standard_error"] == pytest.approx(by_seed.std() / 3**0.5)
        assert row["weighted_mean"] == pytest.approx(np.mean(weighted))
        if label != "local":
            alone = last[last["algorithm"] == "local"].groupby("client")
            gained = by_client > alone["test_accuracy"].mean()
            assert row["better_than_local"] == pytest.approx(gained.mean())
    line = next(t for t in report.curves(records).data if t.name == "ditto")
    mine = records.metrics[records.metrics["algorithm"] == "ditto"]
    by_seed = mine.groupby(["round", "seed"])["test_accuracy"].mean()
    np.testing.assert_allclose(line.y, by_seed.groupby("round").mean())
    bars = next(t for t in report.gains(records).data if t.name == "ditto")
    assert np.isfinite(bars.y).all()
    assert "<td>not finite</td>" not in written(records, tmp_path)


def test_a_diverged_client_is_seen_also_where_others_are_held_out():
    records = held_out_at_random(make_records(task="regression"))
    table = records.metrics.copy()
    bad = (table["algorithm"] == "ditto") & (table["client"] == 1)
    table.loc[bad & (table["seed"] == 2) & (table["round"] > 1), "test_loss"] = np.nan
    row = summary(replace(records, metrics=table)).loc["ditto"]
    assert row[["mean", "weighted_mean", "worst_client", "worst_decile"]].isna().all()


def test_the_figure_has_a_dot_for_every_newcomer_at_its_gain():
    records = with_newcomers(make_records(), local=LOCAL, fedavg=FEDAVG)
    figure = report.newcomers(records)
    (dots,) = [trace for trace in figure.data if trace.type == "scatter"]
    np.testing.assert_allclose(dots.x, [0, 10, -10, 0, 50, -30], atol=1e-9)
    assert dots.hovertext[2] == "client 21, seed 1"
    assert figure.layout.title.text == "<b>Gain over training alone, per newcomer</b>"
    only = with_newcomers(make_records(), local=LOCAL)
    assert report.newcomers(only).layout.xaxis.title.text == "test accuracy"
    with pytest.raises(InputError, match="no newcomers"):
        report.newcomers(make_records())


def test_the_report_says_who_was_held_out_only_where_somebody_was(tmp_path):
    records = with_newcomers(make_records(), local=LOCAL, fedavg=FEDAVG)
    page = written(records, tmp_path)
    assert "2 clients were held out with each seed and took no part in training" in page
    assert "Newcomers fare best with fedavg (mean test accuracy 63.3 %)" in page
    assert "; training alone gives 60.0 %." in page
    assert "<dd>14, of whom 2 are held out of training</dd>" in page
    section = page.split('<h2 id="newcomers">')[1].split("</section>")[0]
    row = re.search(r'<tr><th scope="row">fedavg</th>(.*?)</tr>', section)[1]
    cells = re.findall("<td>(.*?)</td>", row)
    assert cells == ["63.3 %", "3.3 %", "30.0 %", "33 %"]
    assert 'id="newcomers-figure"' in section
    plain = written(make_records(), tmp_path)
    assert "newcomer" not in plain.lower()


def test_labels_of_newcomers_are_escaped(tmp_path):
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    pages = []
    for label in (evil, "ditto"):
        records = make_records(labels=("local", label))
        scores = {"local": LOCAL, label: FEDAVG}
        pages.append(written(with_newcomers(records, **scores), tmp_path))
    tags = []
    for page in pages:
        parser = Fetches()
        parser.feed(page)
        tags.append(parser.tags)
    assert tags[0] == tags[1]


@pytest.mark.browser
def test_a_browser_draws_the_newcomers(tmp_path):
    records = with_newcomers(make_records(), local=LOCAL, fedavg=FEDAVG)
    page = report.write_report(records, tmp_path / "report.html")
    document, log = rendered(page, tmp_path / "profile")
    body = re.sub(r"<script.*?</script>", "", document, flags=re.DOTALL)
    drawn = body.split('<figure id="newcomers-figure"')[1].split("</figure>")[0]
    assert 'class="main-svg"' in drawn
    assert drawn.count('class="trace boxes"') == 1
    assert drawn.count('class="point"') == 6
    assert 'class="notice script-error"' not in document
    assert "CONSOLE" not in log


def test_the_command_line_prints_a_second_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("COLUMNS", "80")
    Path("study.toml").write_text(tomli_w.dumps(TABLES))
    code, output, _ = called("run", "study.toml", "--quiet")
    assert code == 0
    first, second = output.split("2 newcomers, held out of training")
    assert "worst" in first and "newcomer" in second
    assert re.search(r"fedavg +\S+ +\S+ +\d+%", second)
    (folder,) = Path("runs").iterdir()
    code, again, _ = called("report", str(folder))
    assert again.split("report:")[0] == output.split("report:")[0]
    code, output, _ = called("run", "study.toml", "--set", "run.newcomers=0", "--quiet")
    assert "newcomer" not in output
