"""Claims about what a person meets first: names, the version, and how things look."""

from __future__ import annotations

import importlib
import subprocess
import sys
from importlib.metadata import version

import pytest
import torch

import coterie as co
from coterie.records import Snapshots
from support.called import called
from support.made_records import make_records
from support.tiny_studies import made


def test_dir_lists_the_public_names_and_nothing_else():
    assert dir(co) == sorted(co.__all__)
    for name in co.__all__:
        assert getattr(co, name) is not None


def test_the_version_is_that_of_the_package():
    assert co.__version__ == version("coterie")
    code, output, _ = called("--version")
    assert (code, output) == (0, f"coterie {version('coterie')}\n")


def test_the_version_needs_nothing_heavy():
    script = (
        "import sys; from coterie.__main__ import main; sys.argv[1:] = ['--version']"
    )
    script += (
        "; main(); print([m in sys.modules for m in ('pandas', 'torch', 'typer')])"
    )
    words = [sys.executable, "-c", script]
    found = subprocess.run(words, capture_output=True, text=True).stdout
    assert found == f"coterie {co.__version__}\n[False, False, False]\n"


@pytest.fixture(scope="module")
def held(tmp_path_factory) -> dict[str, object]:
    """What a person holds in a notebook."""
    from coterie.study import data_of, simulation_of
    from coterie.study.setup import module_of

    study = made(name="<b>tiny</b>", rounds=2)
    federation = data_of(study).federations[0]
    module = module_of(study, federation, 0)
    result = co.run_study(study, runs=tmp_path_factory.mktemp("runs"))
    return {
        "Study": study,
        "Result": result,
        "Run": co.load(result.folder),
        "Records": result.records,
        "Federation": federation,
        "Simulation": simulation_of(study, federation, module, 0),
        "Plan": co.plan_study(study, rounds=2),
    }


KINDS = ["Study", "Result", "Run", "Records", "Federation", "Simulation", "Plan"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_notebook_holds_is_shown_in_a_line_and_as_a_table(held, kind):
    text, page = repr(held[kind]), held[kind]._repr_html_()
    assert text.startswith(f"<{kind} ") and text.endswith(">")
    assert len(text) < 250 and "\n" not in text
    assert "<table" in page and len(page) < 20_000
    assert "<b>" not in page  # which the name of the study has
    assert "tensor(" not in text + page


def test_a_line_says_what_matters(held):
    assert "local, fedavg; 2 rounds, seeds 0" in repr(held["Study"])
    assert "local, fedavg; 2 runs, 4 clients, up to round 2" in repr(held["Records"])
    assert "4 clients, classification; samples:" in repr(held["Federation"])
    assert "4 clients, batches of 4, seed 0" in repr(held["Simulation"])


def test_records_of_matrices_are_not_dumped():
    records = make_records(n=40)
    assert isinstance(records.weights["local", 0], Snapshots)
    assert len(repr(records)) < 250
    assert len(records._repr_html_()) < 5_000


def test_a_table_of_many_samples_is_one_line():
    table = co.Table("many", torch.zeros(5000, 7), torch.zeros(5000), "regression", 1)
    assert repr(table) == "<Table many: 5,000 samples of (7,), regression>"


@pytest.mark.parametrize("room", ["report", "records", "export", "data", "study"])
def test_dir_of_a_room_lists_its_public_names(room):
    module = importlib.import_module(f"coterie.{room}")
    assert dir(module) == sorted(module.__all__)
