"""Claims about clients that are held out of training and join afterwards."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch.testing import assert_close

from coterie import report
from coterie.algorithms import ALGORITHMS
from coterie.checks import TrainingError
from coterie.clients.simulation import Simulation
from coterie.conformance.federations import small_federation
from coterie.data.federation import PARTS, Federation
from coterie.engine.rounds import run_rounds
from coterie.models import ravel
from coterie.records import Folder, load_records
from coterie.seeds import generator
from coterie.study import loops as training
from coterie.study import setup
from coterie.study import training as cells
from coterie.study.experiment import Result, run_study
from coterie.study.newcomers import hold_out
from coterie.study.setup import federation_of
from support.methods import IN_ROUNDS
from support.newcomer_studies import CLIENTS, HELD_OUT, ROUNDS, made, trained_by
from support.plain_clients import mine
from support.recipes import built, precision, weights
from support.refusals import refuses
from support.study_runs import refused

# Of a round of some clients, the reference may not be one.
TRAINED = [n for n in IN_ROUNDS if n not in ("preconditioned_gradient", "spag")]


@pytest.fixture(scope="module")
def full_run(tmp_path_factory) -> Result:
    """Every algorithm with its defaults, run to the end."""
    entries = [{"name": name} for name in TRAINED]
    for entry in entries:  # which would leave no body of a linear model
        if entry["name"] in ("fedala", "fedbabu", "fedper", "fedrep", "lg_fedavg"):
            entry["head"] = "head.bias"
        if entry["name"] == "fedbn":  # there is no normalisation
            entry["norm"] = "head.bias"
    return run_study(made(algorithm=entries), runs=tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def two_seeds(tmp_path_factory) -> Result:
    return run_study(made(seeds=[0, 1]), runs=tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def one_seed(tmp_path_factory) -> Result:
    return run_study(made(seeds=[0]), runs=tmp_path_factory.mktemp("runs"))


def parts_of(result: Result, seed: int = 0) -> tuple[Federation, list[int], list[int]]:
    """All clients of a study, those who train, and those who join later."""
    everybody = federation_of(result.study, seed)
    trains, joins = hold_out(everybody, HELD_OUT, seed)
    return everybody, trains.tolist(), joins.tolist()


def without_samples_of(federation: Federation, clients: list[int]) -> Federation:
    """The federation with NaN for all features of these clients."""
    features = federation.features.clone()
    for part in PARTS:
        for i in clients:
            features[mine(federation, i, part)] = np.nan
    return replace(federation, features=features)


# Who is held out


def test_who_is_held_out_follows_the_seed_and_grows_with_the_number(classification):
    order = torch.randperm(6, generator=generator(3, "newcomers"))
    for count in range(5):
        trains, joins = hold_out(classification, count, 3)
        assert joins.tolist() == sorted(order[:count].tolist())
        assert trains.tolist() == sorted(order[count:].tolist())
    draws = {tuple(hold_out(classification, 2, seed)[1].tolist()) for seed in range(9)}
    assert len(draws) > 4


@pytest.mark.parametrize("count", [5, 6, 100])
def test_at_least_two_clients_must_be_left_to_train(tmp_path, count):
    message = (
        f"leave at least two clients .* has 6 clients, and `run.newcomers` is {count}"
    )
    refused(made(newcomers=count), tmp_path, message)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (-1, "`run.newcomers` must be at least 0, got -1"),
        (1.5, "`run.newcomers` must be a whole number, got 1.5"),
        ("two", "`run.newcomers` must be a whole number, got 'two'"),
    ],
)
def test_a_number_of_newcomers_that_means_nothing_is_refused(value, message):
    refuses(re.escape(message), made, newcomers=value)


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


def test_files_are_about_all_clients_where_some_are_held_out(classification, tmp_path):
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
    refuses(r"`weights` must .*6", weights, str(tmp_path / "w.npy"), some)


# Training does not know of them


@pytest.mark.parametrize("name", TRAINED)
def test_training_is_that_of_a_federation_without_the_held_out_clients(full_run, name):
    """Their samples could as well not be numbers."""
    everybody, trains, joins = parts_of(full_run)
    rest = without_samples_of(everybody, joins).select(torch.tensor(trains))
    (entry,) = [e for e in full_run.study.algorithms if e.label == name]
    algorithm = built(entry, rest)
    module = setup.module_of(full_run.study, everybody, 0)
    simulation = Simulation(rest, module, batch_size=4, seed=0)
    x = ravel(module).repeat(len(trains), 1)
    for r in run_rounds(
        *(algorithm, simulation, x),
        rounds=ROUNDS,
        seed=0,
        participation=0.75,
        in_place=True,  # as studies do
    ):
        last = r
    personal = algorithm.personal(last.state, simulation.at(ROUNDS, purpose="use"))
    assert torch.equal(full_run.models(name), personal)
    costs = full_run.records.rounds.set_index(["algorithm", "round"])["gradients"]
    alone = costs[name, ROUNDS] - costs[name, ROUNDS - 1]
    assert alone == float(last.gradients.sum())


def test_without_newcomers_nothing_is_held_out(tmp_path):
    result = run_study(made(newcomers=0), runs=tmp_path)
    assert result.models().shape[0] == CLIENTS
    assert result.records.newcomers.empty
    assert not (result.folder / "newcomers.csv").exists()
    assert not list(result.folder.rglob("*newcomers*"))
    refuses(r"no newcomers. `run\.newcomers` holds", result.newcomers)


# What is kept of them


def test_newcomers_are_evaluated_with_their_own_models_on_their_own_data(full_run):
    everybody, _, joins = parts_of(full_run)
    for label in ("local", "fedavg_finetune"):
        table = full_run.records.newcomers
        table = table[table["algorithm"] == label]
        assert table["client"].tolist() == joins
        assert table["train"].tolist() == everybody.train.size[joins].tolist()
        assert table["cluster"].tolist() == everybody.clusters[joins].tolist()
        rows = full_run.newcomer_models(label)
        for j, client in enumerate(joins):
            module = full_run.model(client, label)
            assert torch.equal(ravel(module), rows[j])
            for name in ("train", "validation", "test"):
                index = mine(everybody, client, name)
                with torch.no_grad():
                    outputs = module(everybody.features[index])
                targets = everybody.targets[index]
                loss = torch.nn.functional.cross_entropy(outputs, targets)
                right = (outputs.argmax(1) == targets).float().mean()
                found = table.iloc[j][[f"{name}_loss", f"{name}_accuracy"]]
                expected = [float(loss), float(right)]
                np.testing.assert_allclose(found.astype(float), expected, rtol=1e-5)


def test_tables_name_clients_by_their_identities(two_seeds):
    records = two_seeds.records
    for seed in (0, 1):
        _, trains, joins = parts_of(two_seeds, seed)
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
    assert parts_of(two_seeds, 0)[2] != parts_of(two_seeds, 1)[2]
    refuses("`client` must be at most 5, got 6", two_seeds.model, 6)


def test_files_hold_what_the_records_hold(two_seeds):
    again = load_records(two_seeds.folder)
    for name in ("newcomers", "clients"):
        table = getattr(again, name)
        read = pd.read_csv(two_seeds.folder / f"{name}.csv")
        pd.testing.assert_frame_equal(read, table, check_dtype=False)
        pd.testing.assert_frame_equal(table, getattr(two_seeds.records, name))
    names = ["algorithm", "seed", "client", "name", "cluster", "train"]
    assert list(again.newcomers.columns[:6]) == names


def test_weights_are_those_of_the_clients_that_trained(full_run):
    records = full_run.records
    _, trains, _ = parts_of(full_run)
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
@pytest.mark.parametrize("place", ["models_for", "measures_of", "save_models", "done"])
def test_going_on_after_a_stop_among_the_newcomers_equals_not_stopping(
    one_seed, tmp_path, monkeypatch, error, place
):
    owner = Folder if place in ("save_models", "done") else cells
    name = "save" if place == "done" else place
    inner = getattr(owner, name)

    def stop(*args, **options):
        late = {
            "models_for": True,
            # The measures before were those of clients that train.
            "measures_of": isinstance(args[-1], torch.Tensor) and len(args[-1]) == 2,
            "save_models": options.get("of") == "newcomers",
            "done": getattr(args[-1], "done", False),
        }
        if late[place]:
            raise error
        return inner(*args, **options)

    monkeypatch.setattr(owner, name, stop)
    with pytest.raises(error):
        run_study(one_seed.study, runs=tmp_path)
    monkeypatch.undo()
    (folder,) = tmp_path.glob("[!.]*")
    cell = Folder(folder).cell("local", 0)
    assert (cell.t, cell.done) == (ROUNDS, False)
    trained = []

    def count_rounds(*args, start, **options):
        for r in run_rounds(*args, start=start, **options):
            trained.append(r.t)
            yield r

    monkeypatch.setattr(training, "run_rounds", count_rounds)
    resumed = run_study(one_seed.study, resume=folder)
    assert len(trained) == ROUNDS  # of the other cell; the first had trained
    assert_same(one_seed, resumed)


def test_a_finished_run_does_not_welcome_again(two_seeds, monkeypatch):
    files = {p: p.read_bytes() for p in two_seeds.folder.rglob("*.pt")}

    def refuse(*args):
        raise AssertionError("newcomers were welcomed again")

    monkeypatch.setattr(cells, "models_for", refuse)
    again = run_study(two_seeds.study, resume=two_seeds.folder)
    assert_same(two_seeds, again)
    assert {p: p.read_bytes() for p in two_seeds.folder.rglob("*.pt")} == files


def test_one_newcomer_more_changes_nothing_for_the_other(two_seeds):
    """With the same clients in training, whoever joins draws its own numbers."""
    everybody, _, joins = parts_of(two_seeds)
    module = setup.module_of(two_seeds.study, everybody, 0)
    state = trained_by("local", small_federation(6))._replace(
        start=ravel(module)[None], t=5
    )
    algorithm = ALGORITHMS["local"]()
    found = {}
    for names in (joins, joins[:1]):
        later = everybody.select(torch.tensor(names))
        oracle = Simulation(later, module, batch_size=4).at(2, purpose="welcome")
        found[len(names)] = algorithm.welcome(state, oracle)
    assert_close(found[2][:1], found[1], rtol=1e-5, atol=1e-6)
