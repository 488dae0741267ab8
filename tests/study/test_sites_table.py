"""Claims about [sites] and about studies between sites."""

from __future__ import annotations

import subprocess
import sys

import pytest

from coterie.study.config import study_of
from coterie.study.settings.simulated import simulated_only
from coterie.study.settings.sites import Sites, sites_of, study_hash
from support.refusals import refuses

STUDY = {
    "data": {"name": "digits"},
    "split": {"name": "natural"},
    "model": {"name": "linear"},
    "run": {"rounds": 2, "batch_size": 4},
    "algorithm": [{"name": "fedavg", "lr": 0.1}],
}


def test_a_simulation_ignores_the_table():
    plain, more = study_of(STUDY), study_of({**STUDY, "sites": {"least_members": 4}})
    assert more.sites.least_members == 4 and plain.sites == Sites()
    assert plain == more and plain.tables() == more.tables()


WRONG = {
    r"\[sites\] has no option 'mask'. Did you mean 'masks'?": {"mask": True},
    "`sites.masks` must be true or false, got 1": {"masks": 1},
    "`sites.least_members` must be at least 1, got 0": {"least_members": 0},
    "`sites.scale` must be a whole number, got 0.5": {"scale": 0.5},
    "`sites.patience` must be at least 1, got 0": {"patience": 0},
    "`sites.largest_message` must be greater than 0": {"largest_message": 0},
    "`sites.largest` must be at least 0": {"largest": -1.0},
    "`sites.modules` must be a table": {"modules": ["mine"]},
    "`sites.modules` must name modules": {"modules": {"a b": "0"}},
    "`sites.modules.mine` must be a SHA-256": {"modules": {"mine": "0"}},
    "`sites.classes` must be a list of different words": {"classes": ["a", "a"]},
    "`sites.categories.sex` must be a list of different": {"categories": {"sex": "f"}},
    "`sites.ranges.age` must be the smallest and the": {"ranges": {"age": [1]}},
    "`sites.ranges.age` must be greater than 2": {"ranges": {"age": [2, 2]}},
}


@pytest.mark.parametrize("sentence", WRONG)
def test_a_wrong_value_is_named_with_its_rule(sentence):
    refuses(sentence, study_of, {**STUDY, "sites": WRONG[sentence]})


def test_sums_of_all_members_fit_into_64_bits():
    sites = sites_of({"scale": 2**20, "largest": 2.0**40})
    assert sites.largest_for(4) == 2.0**40
    refuses("must be at most .* with 5 members", sites.largest_for, 5)
    assert Sites().largest_for(4) == 2.0**32
    assert sites_of({}).message_bytes == 64_000_000
    assert sites.table() == {"scale": 2**20, "largest": 2.0**40}


def test_the_hash_is_of_all_that_sites_must_share():
    name = study_hash(STUDY)
    run = {**STUDY["run"], "device": "cuda", "compile": "never", "log": ["csv"]}
    data = {**STUDY["data"], "path": "x.csv", "decimal": ",", "encoding": "latin-1"}
    local = {**STUDY, "run": run, "data": data}
    assert study_hash(local) == name
    assert study_hash(dict(reversed(STUDY.items()))) == name
    assert study_hash({**STUDY, "data": {"path": "x"}, "run": {"log": []}}) == (
        study_hash({k: v for k, v in STUDY.items() if k not in ("data", "run")})
    )
    others = [
        {"name": "other"},
        {"run": {"rounds": 3, "batch_size": 4}},
        {"data": {"name": "digits", "target": "ill"}},
        {"sites": {"least_members": 2}},
        {"algorithm": [{"name": "fedavg", "lr": 0.2}]},
        {"algorithm": [{"name": "fedavg", "lr": "0.1"}]},
        {"model": {"name": "mlp"}},
    ]
    hashes = {study_hash({**STUDY, **other}) for other in others}
    assert len(hashes | {name}) == len(others) + 1


def test_the_hash_needs_no_torch():
    script = (
        "import sys\n"
        "from coterie.study.settings.sites import study_hash\n"
        "from coterie.deploy.sites.rosters import read_roster\n"
        "print({'torch', 'pandas'} & {*sys.modules})"
    )
    words = [sys.executable, "-c", script]
    run = subprocess.run(words, capture_output=True, text=True, check=True)
    assert run.stdout == "set()\n"


SIMULATED = {
    "`data.name` must be 'file'": {"data": {"name": "digits"}},
    "[time] is a simulation": {"time": {}},
    "[tune] searches in simulations": {"tune": {"space": {"lr": [0.1]}}},
    "[diagnostics] measures": {"diagnostics": {}},
    "`run.newcomers` must be 0": {"run": {**STUDY["run"], "newcomers": 1}},
    "`run.pooled_test` must": {"run": {**STUDY["run"], "pooled_test": True}},
    "`run.rounds` must be written": {"run": {"batch_size": 4}},
    "`run.batch_size` must be written": {
        "run": {"rounds": 2},
        "algorithm": [{"name": "fedavg"}],
    },
    "`lr` of fedavg must be written": {"algorithm": [{"name": "fedavg"}]},
    "`split.name` must be 'natural'": {"split": {"name": "dirichlet"}},
    "`graph.edges` must name a graph": {"graph": {"edges": "edges.csv"}},
    "cannot be 'clusters' between sites, because only a simulation knows it": {
        "algorithm": [{"name": "all_for_one", "lr": 0.1}]
    },
    "cannot be 'mmd(9)' between sites, because it reads the data of all": {
        "algorithm": [{"name": "all_for_one", "lr": 0.1, "weights": "mmd(9)"}]
    },
    "cannot be 'w.csv' between sites, because the hash of the study does": {
        "algorithm": [{"name": "all_for_one", "lr": 0.1, "weights": "w.csv"}]
    },
}


@pytest.mark.parametrize("words", SIMULATED)
def test_what_only_a_simulation_can_do_is_named(words):
    found = simulated_only(study_of({**STUDY, **SIMULATED[words]}))
    assert any(words in sentence for sentence in found), found


def test_other_studies_can_run_between_sites():
    """Apart from their data, which are those of a simulation here."""
    entries = [
        {"name": "fedavg", "lr": 0.1},
        {"name": "local", "lr": 0.1},
        {"name": "all_for_one", "lr": 0.1, "weights": "uniform"},
        {"name": "scaffold", "lr": 0.1},
    ]
    (said,) = simulated_only(study_of({**STUDY, "algorithm": entries}))
    assert said.startswith("`data.name` must be 'file'")
