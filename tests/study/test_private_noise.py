"""Claims about noise of private studies: secret, or seeded and not shared."""

from __future__ import annotations

import math
import os

import pytest
import torch

from coterie.checks import InputError
from coterie.export.cards import privacy_text
from coterie.export.runs import load
from coterie.report.privacy import epsilon_curves, privacy_section
from coterie.study.config import study_of
from coterie.study.experiment import Progress, run_study
from support.study_runs import linear_tables, stopped, together

TABLES = linear_tables(3)
UNITS = pytest.mark.parametrize("unit", ["client", "sample"])


def study(unit, *, source="system", lr=0.05, **privacy):
    settings = {"unit": unit, "clip": 0.3, "noise": 1.5, "noise_source": source}
    tables = {**TABLES, "algorithm": [{"name": "fedavg", "lr": lr, "steps": 2}]}
    return study_of({**tables, "privacy": settings | privacy})


def epsilons(result):
    return list(result.records.metrics["epsilon"])


@UNITS
def test_secret_noise_costs_what_seeded_noise_costs_and_never_repeats(tmp_path, unit):
    seeded = run_study(study(unit, source="seed"), runs=tmp_path / "seeded")
    first = run_study(study(unit), runs=tmp_path / "first")
    again = run_study(study(unit), runs=tmp_path / "again")
    assert epsilons(first) == epsilons(again) == epsilons(seeded)
    one, two = (each.models() for each in (first, again))
    assert not bool((one == two).any())


@UNITS
def test_a_divided_run_draws_secret_noise_in_every_process(tmp_path, unit):
    whole = run_study(study(unit), runs=tmp_path / "whole")
    for found in together(study(unit), 2, tmp_path / "divided"):
        assert epsilons(found) == epsilons(whole)


@UNITS
def test_no_file_of_a_run_has_the_key(tmp_path, unit, monkeypatch):
    keys, true = [], os.urandom

    def urandom(size: int) -> bytes:
        keys.append(true(size))
        return keys[-1]

    monkeypatch.setattr(os, "urandom", urandom)
    run_study(study(unit), runs=tmp_path)
    secret = [key for key in keys if len(key) == 32]
    assert secret
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    for path in files:
        content = path.read_bytes()
        for key in secret:
            assert key not in content and key.hex().encode() not in content.lower()


def test_a_run_goes_on_with_other_noise_after_it_was_stopped(tmp_path):
    def half(progress: Progress) -> bool:
        return progress.t == 2

    stopped(study("sample"), half, runs=tmp_path)
    found = run_study(study("sample"), runs=tmp_path)
    whole = run_study(study("sample"), runs=tmp_path / "whole")
    assert epsilons(found)[-1] >= epsilons(whole)[-1]


@pytest.mark.parametrize("source", ["seed", "system"])
@UNITS
def test_models_that_overflow_leave_as_what_is_known_and_are_counted(
    tmp_path, unit, source
):
    # A step of this size takes every row beyond the largest number.
    wild = study(unit, source=source, lr=1e300 if unit == "client" else 1e9)
    found = run_study(wild, runs=tmp_path / "wild")
    tame = run_study(study(unit, source=source), runs=tmp_path / "tame")
    assert epsilons(found) == epsilons(tame)
    assert bool(found.models().isfinite().all())


def test_a_run_does_not_end_where_no_model_is_finite(tmp_path):
    """Whether it ends would tell those who know all but one client of that one."""
    tables = {**TABLES, "algorithm": [{"name": "local", "lr": 1e300}]}
    privacy = {"clip": 0.3, "noise": 1.5, "noise_source": "system"}
    found = run_study(study_of({**tables, "privacy": privacy}), runs=tmp_path)
    assert not bool(found.models().isfinite().any())
    assert found.records.metrics["round"].max() == 4
    assert set(epsilons(found)) == {0.0}


@pytest.mark.parametrize(("source", "said"), [("seed", True), ("system", False)])
def test_epsilon_is_for_simulation_only_where_noise_is_seeded(tmp_path, source, said):
    told: list[str] = []
    made = study("client", source=source)
    result = run_study(made, runs=tmp_path, notice=told.append)
    (spent,) = [line for line in told if line.startswith("privacy: epsilon")]
    assert ("Simulation only" in spent) == said
    section = privacy_section(result.records).lower()
    assert ("simulation only: the noise comes from the seed" in section) == said
    assert ("this is simulation only" in section) == said
    axis = epsilon_curves(result.records).layout.yaxis.title.text
    assert axis == ("epsilon (simulation only)" if said else "epsilon")
    trained = load(result.folder).trained_model(1)
    line = privacy_text(result.records, trained)
    assert "epsilon " in line and ("Simulation only" in line) == said


def test_secret_noise_that_cannot_be_drawn_exactly_enough_is_refused(tmp_path):
    with pytest.raises(InputError, match="cannot be drawn exactly enough"):
        run_study(study("client", noise=1e9), runs=tmp_path)


SHORT = linear_tables(3, rounds=1)
CLIENT = {"clip": 0.3, "noise": 1e4}
SAMPLE = {"unit": "sample", "clip": 0.3, "noise": 1e6}
IN_TIME = {"time": {"law": "constant(1)", "period": 5.0}}
CASES = {
    "clients in rounds": ("fedavg", {"privacy": CLIENT}),
    "clients in time": ("server_sgd", {"privacy": CLIENT, **IN_TIME}),
    "samples": ("fedavg", {"privacy": SAMPLE}),
}


def models(tmp_path, *entries, **tables):
    """The models of these algorithms, in their order."""
    result = run_study(
        study_of({**SHORT, "algorithm": list(entries), **tables}), runs=tmp_path
    )
    return [result.models(entry.get("label", entry["name"])) for entry in entries]


@pytest.mark.parametrize("case", CASES)
def test_two_algorithms_of_a_study_have_noise_of_their_own(tmp_path, case):
    name, tables = CASES[case]
    entries = [{"name": name, "lr": 0.01, "label": label} for label in ("a", "b")]
    a, b = models(tmp_path, *entries, **tables)
    # Of independent noise of the same size, the difference has sqrt(2) of its length.
    assert float((a - b).norm()) > 0.3 * float(a.norm()) > 1


@pytest.mark.parametrize("case", CASES)
def test_two_studies_that_differ_in_anything_have_noise_of_their_own(tmp_path, case):
    name, tables = CASES[case]
    entry = {"name": name, "lr": 0.01}
    (a,) = models(tmp_path / "first", entry, **tables)
    for other in (
        {"name": "another"},
        {"data": {**SHORT["data"], "noise": 1e-9}},
        {"privacy": {**tables["privacy"], "noise": 1.01 * tables["privacy"]["noise"]}},
    ):
        (b,) = models(tmp_path, entry, **{**tables, **other})
        assert float((a - b).norm()) > 0.3 * float(a.norm()) > 1


def test_the_same_settings_on_other_data_have_their_own_noise(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a path is a setting, too
    features, found = [f"x{k}" for k in range(9)], []
    for run, change in enumerate((0.0, 0.001)):
        rows = [
            [
                i % 3,
                *((i * (k + 1)) % 23 / 7 for k in range(9)),
                i / 7 + change * (i == 0),
            ]
            for i in range(24)
        ]
        lines = [["client", *features, "y"], *rows]
        text = "\n".join(",".join(map(str, line)) for line in lines)
        (tmp_path / "data.csv").write_text(text)
        data = {"name": "file", "path": "data.csv", "client": "client", "target": "y"}
        tables = {"data": data, "privacy": CLIENT}
        found += models(tmp_path / str(run), {"name": "fedavg", "lr": 0.01}, **tables)
    a, b = found
    assert float((a - b).norm()) > 0.3 * float(a.norm()) > 1


def test_samples_take_part_by_draws_of_each_algorithm_alone(tmp_path):
    entries = [{"name": "local", "lr": 0.01, "label": label} for label in ("a", "b")]
    quiet = {"unit": "sample", "clip": math.inf, "noise": 0.0}
    a, b = models(tmp_path, *entries, privacy=quiet)
    assert not torch.equal(a, b)
    # Where no sampling hides anything, minibatches are common, and comparisons paired.
    a, b = models(tmp_path, *entries, privacy={"clip": math.inf, "noise": 0.0})
    assert torch.equal(a, b)
