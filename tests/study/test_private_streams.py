"""Claims about the noise of several private runs on the same data: it is not shared."""

from __future__ import annotations

import math

import pytest
import torch

from coterie.study.config import study_of
from coterie.study.experiment import run_study

TABLES = {
    "name": "streams",
    "data": {"name": "linear", "clients": 3, "dimension": 3, "samples": 24},
    "model": {"name": "linear", "bias": False},
    "run": {"rounds": 1, "batch_size": 4, "dtype": "float64"},
}

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
        study_of({**TABLES, "algorithm": list(entries), **tables}), runs=tmp_path
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
    (a,) = models(tmp_path, entry, **tables)
    for other in (
        {"name": "another"},
        {"data": {**TABLES["data"], "noise": 1e-9}},
        {"privacy": {**tables["privacy"], "noise": 1.01 * tables["privacy"]["noise"]}},
    ):
        (b,) = models(tmp_path, entry, **{**tables, **other})
        assert float((a - b).norm()) > 0.3 * float(a.norm()) > 1


def test_the_same_settings_with_other_data_have_noise_of_their_own(
    tmp_path, monkeypatch
):
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
