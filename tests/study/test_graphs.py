"""Claims about [graph]: the default of mixing, and what weights may join."""

from __future__ import annotations

import copy
import re
from dataclasses import replace

import numpy as np
import pytest
import tomli_w
import torch
from torch.testing import assert_close

from coterie.checks import InputError
from coterie.graphs import MIXINGS, edges_of
from coterie.study import ingredients
from coterie.study.config import read_study, study_of
from coterie.study.experiment import run_study
from coterie.study.identity import settings_read
from coterie.study.newcomers import hold_out
from coterie.study.setup import federation_of, prepare
from support.study_runs import refused
from support.tiny_studies import CLIENTS, TABLES

RING = np.array([[1, 1, 0, 1], [1, 1, 1, 0], [0, 1, 1, 1], [1, 0, 1, 1]]) / 3


def tables(entries, edges="ring", *, time=True, **run):
    """A study of four clients on a graph; its true clusters are 0, 2 and 1, 3."""
    made = copy.deepcopy(TABLES)
    made["algorithm"], made["graph"] = copy.deepcopy(entries), {"edges": edges}
    made["run"] |= {"rounds": 2, **run}
    return made | ({"time": {}} if time else {})


def on_graph(entries, edges="ring", **changes):
    return study_of(tables(entries, edges, **changes))


def edges_file(path, *pairs) -> str:
    path.write_text("\n".join(["v,w", *(f"{v},{w}" for v, w in pairs)]))
    return str(path)


def weights_file(path, matrix) -> str:
    np.save(path, np.asarray(matrix))
    return str(path)


# What is made from it.


@pytest.mark.parametrize("method", ["agraf", "loss_network"])
def test_the_graph_is_what_methods_mix_along_that_name_none(tmp_path, method):
    line = edges_file(tmp_path / "g.csv", (0, 1), (1, 2), (2, 3))
    for edges in ("line", line):
        both = [{"name": method}, {"name": method, "label": "own", "mixing": "line"}]
        result = run_study(on_graph(both, edges), runs=tmp_path)
        assert torch.equal(result.models(method), result.models("own"))
        assert not torch.equal(result.models(method)[0], result.models(method)[1])
        kept = result.records.weights[method, 0].matrices[-1]
        near = np.abs(np.subtract.outer(range(4), range(4))) <= 1
        np.testing.assert_array_equal(kept > 0, near)


def test_without_a_graph_nothing_is_forbidden_and_nothing_is_recorded():
    study = study_of(TABLES)
    assert study.graph is None and "graph" not in study.tables()
    entries = [{"name": "all_for_one", "weights": "uniform"}]
    setup = prepare(study_of({**TABLES, "algorithm": entries}), 0)
    setup.algorithm(setup.study.algorithms[0])


def test_the_graph_is_kept_with_the_study(tmp_path):
    study = on_graph([{"name": "local"}], "expander(2)", time=False)
    assert study.tables()["graph"] == {"edges": "expander(2)"}
    assert study_of(study.tables()) == study
    result = run_study(study, runs=tmp_path)
    again = read_study(result.folder / "study.toml")
    assert again.graph == study.graph


def test_the_graph_can_be_set_on_the_command_line(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(tomli_w.dumps(TABLES))
    assert read_study(path, ["graph.edges=grid"]).graph.edges == "grid"


# Weights that leave it.


ONE_WAY = np.diag([1, 1, 1, 0]) + np.outer([0, 0, 0, 1], [0, 0.25, 0.75, 0])


@pytest.mark.parametrize(
    ("name", "option", "value", "found"),
    [
        ("all_for_one", "weights", "clusters", (0, 2, 0.5)),
        ("all_for_one", "weights", ONE_WAY, (3, 1, 0.25)),
        ("agraf", "mixing", "complete", (0, 2, 0.25)),
        ("agraf", "mixing", np.full((4, 4), 0.25), (0, 2, 0.25)),
        ("adaptive_all_for_one", "graph", "everybody", (0, 2, 1)),
    ],
)
def test_weights_between_strangers_are_refused_before_training(
    tmp_path, name, option, value, found
):
    if not isinstance(value, str):
        value = weights_file(tmp_path / "w.npy", value)
    study = on_graph(
        [{"name": name, "label": "mine", option: value}], time=name == "agraf"
    )
    assert refused(study, tmp_path) == (
        f"`{option}` of mine must be 0 between clients that [graph] does not join, "
        "but client {} weighs client {} with {}.".format(*found)
    )


def test_weights_within_the_graph_are_taken(tmp_path):
    file = weights_file(tmp_path / "w.npy", RING)
    entries = [
        {"name": "all_for_one", "label": "alone", "weights": "alone"},
        {"name": "all_for_one", "label": "file", "weights": file},
    ]
    result = run_study(on_graph(entries, time=False), runs=tmp_path)
    kept = result.records.weights["file", 0].matrices[-1]
    assert_close(torch.tensor(kept), torch.tensor(RING, dtype=torch.float32))
    within = on_graph([{"name": "agraf", "mixing": "line"}])
    assert len(run_study(within, runs=tmp_path).models()) == CLIENTS


def test_methods_with_a_server_run_beside_it(tmp_path):
    entries = [{"name": "fedavg"}, {"name": "ditto"}]
    study = on_graph(entries, time=False)
    without = study_of({k: v for k, v in study.tables().items() if k != "graph"})
    first, second = (run_study(s, runs=tmp_path) for s in (study, without))
    assert first.folder != second.folder
    for label in ("fedavg", "ditto"):
        assert torch.equal(first.models(label), second.models(label))


def test_settings_of_a_search_are_refused_too(tmp_path):
    entry = {
        "name": "all_for_one",
        "weights": "alone",
        "tune": {"weights": ["uniform"]},
    }
    study = tables([entry], time=False) | {"tune": {"trials": 2}}
    said = refused(study_of(study), tmp_path)
    assert "[tune.space] gives all_for_one a setting that cannot be used" in said
    assert "but client 0 weighs client 2 with 0.25." in said


def test_weights_of_every_seed_are_looked_at_before_the_first_is_trained(
    tmp_path, monkeypatch
):
    def recipe(choice, context):
        return torch.eye(4) if context.seed == 0 else torch.full((4, 4), 0.25)

    monkeypatch.setitem(ingredients.RECIPES, "weights", (recipe, "clusters"))
    study = on_graph([{"name": "all_for_one"}], time=False, seeds=[0, 1])
    assert "but client 0 weighs client 2 with 0.25." in refused(study, tmp_path)


# Clients who are held out.


def without_one(study, seed=0) -> tuple[list[int], int]:
    """The clients that train, and the one that is held out."""
    trains, joins = hold_out(federation_of(study, seed), 1, seed)
    return trains.tolist(), int(joins)


def test_a_file_is_about_all_clients_and_holds_for_those_who_train(tmp_path):
    """Its edges name clients, whoever is held out."""
    study = on_graph([{"name": "agraf"}], newcomers=1)
    (a, b, c), new = without_one(study)
    file = edges_file(tmp_path / "g.csv", (new, a), (b, c), (c, a))
    entries = [{"name": "agraf"}, {"name": "agraf", "label": "own", "mixing": file}]
    study = on_graph(entries, file, newcomers=1)
    setup = prepare(study, 0)
    assert setup.federation.clients.tolist() == [a, b, c]
    result = run_study(study, runs=tmp_path / "runs")
    kept = result.records.weights["agraf", 0].matrices[-1]
    third = 1 / 3  # c has two neighbours, a and b one
    expected = [[2 * third, 0, third], [0, 2 * third, third], [third, third, third]]
    assert_close(torch.tensor(kept), torch.tensor(expected), rtol=1e-6, atol=0)
    assert torch.equal(result.models("agraf"), result.models("own"))
    # Of weights, a file that joins a and b is refused by their names.
    matrix = np.eye(4)
    matrix[a, [a, b]] = 0.5
    weights = weights_file(tmp_path / "w.npy", matrix)
    entries = [{"name": "all_for_one", "weights": weights}]
    said = refused(on_graph(entries, file, time=False, newcomers=1), tmp_path / "other")
    assert f"but client {a} weighs client {b} with 0.5." in said


def test_a_graph_that_falls_apart_without_newcomers_is_refused(tmp_path):
    study = on_graph([{"name": "agraf"}], newcomers=1)
    (a, b, c), new = without_one(study)
    star = edges_file(tmp_path / "g.csv", (new, a), (new, b), (new, c))
    said = refused(on_graph([{"name": "local"}], star, newcomers=1), tmp_path)
    assert "`graph without newcomers` must join all 3 nodes" in said


# What is refused.


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"edgs": "ring"}, r"\[graph\] has no option 'edgs'. Did you mean 'edges'"),
        ({}, r"\[graph\] needs `edges`"),
        ({"edges": 3}, "`graph.edges` must be text, got 3"),
        ({"edges": "ring", "mixing": "slow"}, "`graph.mixing` must be one of"),
        ("ring", r"\[graph\] must be a table, got 'ring'"),
    ],
)
def test_a_table_that_cannot_be_meant_is_refused(table, words):
    with pytest.raises(InputError, match=words):
        study_of({**TABLES, "graph": table})


@pytest.mark.parametrize(
    ("edges", "words"),
    [
        ("rings", "`graph` must be one of .*, got 'rings'. Did you mean 'ring'"),
        ("expander(9)", "`graph degree` must be at most 3"),
        ("nowhere.csv", "cannot read the graph nowhere.csv"),
        ([(0, 1), (2, 3)], "`graph` must join all 4 nodes, but there is no way"),
        ([(0, 1), (1, 2), (2, 4)], "`graph` must have nodes 0 to 3, but .* names 4"),
    ],
)
def test_a_graph_that_cannot_be_is_refused_in_one_sentence(tmp_path, edges, words):
    if isinstance(edges, list):
        edges = edges_file(tmp_path / "g.csv", *edges)
    said = refused(on_graph([{"name": "local"}], edges, time=False), tmp_path)
    assert re.search(words, said)


# What kind of matrix it becomes.


@pytest.mark.parametrize("kind", sorted(MIXINGS))
def test_the_kind_of_weights_is_chosen_for_all_or_for_one_algorithm(kind, monkeypatch):
    expected, seen = MIXINGS[kind](edges_of("line", 4), 4).to_dense(), []
    recipe, default = ingredients.RECIPES["mixing"]

    def watch(*given):
        seen.append(recipe(*given))
        return seen[-1]

    monkeypatch.setitem(ingredients.RECIPES, "mixing", (watch, default))
    study = on_graph([{"name": "agraf"}, {"name": "agraf", "label": "b"}], "line")
    for graph, entry in [
        ({"edges": "line", "mixing": kind}, {"name": "agraf"}),
        ({"edges": "line", "mixing": "lazy"}, {"name": "agraf", "mixing": kind}),
        ({"edges": "line", "mixing": kind}, {"name": "agraf", "mixing": "line"}),
    ]:
        made = study.tables() | {"graph": graph, "algorithm": [entry]}
        setup = prepare(study_of(made), 0)
        seen.clear()
        setup.algorithm(setup.study.algorithms[0])
        assert_close(seen[0].to_dense(), expected)


def test_the_usual_kind_leaves_the_name_of_a_run_as_it_was():
    plain = on_graph([{"name": "local"}], "ring", time=False)
    usual, lazy = (
        study_of(plain.tables() | {"graph": {"edges": "ring", "mixing": kind}})
        for kind in ("metropolis", "lazy")
    )
    assert usual == plain and usual.tables()["graph"] == {"edges": "ring"}
    assert lazy.tables()["graph"] == {"edges": "ring", "mixing": "lazy"}
    assert study_of(lazy.tables()) == lazy


def test_a_kind_needs_a_graph():
    entries = [{"name": "agraf", "mixing": "lazy"}]
    setup = prepare(study_of({**TABLES, "algorithm": entries, "time": {}}), 0)
    with pytest.raises(InputError, match=r"`mixing` lazy needs a table \[graph\]"):
        setup.algorithm(setup.study.algorithms[0])


def test_a_matrix_that_only_swaps_is_refused(tmp_path):
    entries = [{"name": "agraf", "mixing": "max_degree"}]
    said = refused(on_graph(entries, "ring"), tmp_path)
    assert "max_degree does not average on this graph" in said
    assert "use lazy or metropolis" in said


def test_a_file_may_name_clients(tmp_path):
    names = ("Cleveland", "Hungary", "Switzerland", "Long Beach")
    study = on_graph([{"name": "local"}], time=False)
    federation = federation_of(study, 0)
    named = replace(federation, names=names)
    path = tmp_path / "g.csv"
    path.write_text("v,w\nHungary,Long Beach\nCleveland,Hungary\nSwitzerland,Hungary\n")
    found = ingredients.edges_between(str(path), named)
    assert found.tolist() == [[0, 1], [1, 2], [1, 3]]
    path.write_text("v,w\nHungary,Berlin\n")
    with pytest.raises(InputError, match="names 'Berlin', which is not a client"):
        ingredients.edges_between(str(path), named)


# Who learns from whom.


def test_adaptive_all_for_one_learns_from_neighbours_on_the_graph_alone(tmp_path):
    entries = [
        {"name": "adaptive_all_for_one", "criterion": "continuous"},
        {"name": "adaptive_all_for_one", "label": "named", "graph": "ring"}
        | {"criterion": "continuous"},
    ]
    result = run_study(on_graph(entries, time=False), runs=tmp_path)
    assert torch.equal(*(result.models(name) for name in ("named", entries[0]["name"])))
    kept = result.records.weights["named", 0].matrices[-1]
    assert (kept[RING == 0] == 0).all() and (kept[RING > 0] > 0).any()


# Weights that are made to fit it.


def links_of_a_round(study) -> tuple[set[tuple[int, int]], dict]:
    """Over which links the first algorithm sends something, and its last info."""
    setup = prepare(study, 0)
    algorithm = setup.algorithm(study.algorithms[0])
    state = algorithm.init(setup.x, setup.simulation.at(0, purpose="init"))
    first, second = setup.simulation.at(1), setup.simulation.at(2)
    state, _ = algorithm.step(state, first, torch.Generator())
    state, info = algorithm.step(state, second, torch.Generator())
    use = setup.simulation.at(2, purpose="use")
    algorithm.personal(state, use)
    sent = [transfer for oracle in (first, second, use) for transfer in oracle.sent]
    links = [link for transfer in sent for link in transfer.links.tolist()]
    return {tuple(sorted(link)) for link in links}, info


EDGES = {(0, 1), (1, 2), (2, 3), (0, 3)}


@pytest.mark.parametrize(
    "entry",
    [{"name": "all_for_one"}, {"name": "all_for_all", "form": "factored"}],
    ids=["one", "all"],
)
def test_weights_on_the_graph_send_along_its_edges_alone(entry):
    study = on_graph([entry | {"weights": "uniform on graph"}], time=False)
    links, info = links_of_a_round(study)
    assert links == EDGES
    assert_close(info["weights"], torch.from_numpy(RING).to(info["weights"]))


def test_weights_on_the_graph_are_what_is_left_of_them(tmp_path):
    """True clusters are 0, 2 and 1, 3, whom a ring does not join: all are alone."""
    entries = [{"name": "all_for_one", "weights": "clusters on graph"}]
    _, info = links_of_a_round(on_graph(entries, time=False))
    assert torch.equal(info["weights"], torch.eye(4))
    matrix = np.array(
        [[0.2, 0.2, 0.4, 0.2], [0, 0, 0, 1], [0, 1, 0, 0], [0, 0.6, 0.3, 0.1]]
    )
    file = weights_file(tmp_path / "w.npy", matrix) + " on graph"
    study = on_graph([{"name": "all_for_one", "weights": file}], time=False)
    _, info = links_of_a_round(study)
    first = [1 / 3, 1 / 3, 0, 1 / 3]
    expected = [first, [0, 1, 0, 0], [0, 1, 0, 0], [0, 0, 0.75, 0.25]]
    assert_close(info["weights"], torch.tensor(expected))
    assert len(settings_read(study)) == 1  # the file belongs to the study


def test_weights_on_no_graph_are_refused(tmp_path):
    entries = [{"name": "all_for_one", "weights": "uniform on graph"}]
    assert refused({**TABLES, "algorithm": entries}, tmp_path) == (
        "`weights` 'uniform on graph' needs the table [graph]."
    )


def test_gradients_that_would_leave_the_graph_are_refused(tmp_path):
    """Lambda is on the edges, but Lambda Lambda^T joins neighbours of neighbours."""
    entries = [{"name": "all_for_all", "weights": "uniform on graph"}]
    assert refused(on_graph(entries, time=False), tmp_path) == (
        "`form` must be factored on this graph: direct would send a gradient "
        "from client 2 to client 0, and they are not neighbours."
    )
    entries = [{"name": "all_for_all", "weights": "clusters"}]
    pairs = edges_file(tmp_path / "g.csv", (0, 2), (1, 3), (0, 1))
    links, _ = links_of_a_round(on_graph(entries, pairs, time=False))
    assert links == {(0, 2), (1, 3)}


def test_weights_on_the_graph_from_true_clusters_are_those_of_an_oracle():
    assert ingredients.is_from_truth("weights", "clusters on graph")
    assert not ingredients.is_from_truth("weights", "uniform on graph")
