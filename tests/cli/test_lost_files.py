"""Claims about commands on runs that lack files, and about the texts of help."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from coterie.checks import InputError
from coterie.cli.commands import app
from support.called import called
from support.hospital_runs import run

TABLES = {
    "data": {"name": "linear", "clients": 4, "dimension": 2, "samples": 20},
    "model": {"name": "linear"},
    "run": {"rounds": 1, "seeds": [0, 1], "newcomers": 1},
    "algorithm": [{"name": "local"}, {"name": "fedavg"}],
}


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory) -> Path:
    """A run of two seeds, which have different clients."""
    return run(tmp_path_factory.mktemp("lost"), TABLES).folder


@pytest.mark.parametrize(
    "gone",
    [["local-0"], ["fedavg-1"], ["local-0", "fedavg-1"], ["local-0", "fedavg-0"]],
    ids="-".join,
)
def test_a_report_is_written_of_the_cells_that_are_left(run_folder, tmp_path, gone):
    folder = Path(shutil.copytree(run_folder, tmp_path / "run"))
    for name in gone:
        (folder / "cells" / f"{name}.pt").unlink()
    assert called("report", str(folder))[0] == 0


def test_a_missing_table_of_clients_is_named_with_a_remedy_that_works(
    run_folder, tmp_path
):
    shutil.copytree(run_folder.parent, tmp_path / "runs")
    folder = tmp_path / "runs" / run_folder.name
    (folder / "clients-0.csv").unlink()
    with pytest.raises(InputError, match=r"clients-0\.csv is missing: run the study"):
        called("report", str(folder))
    run(tmp_path, TABLES)
    assert called("report", str(folder))[0] == 0


def test_help_shows_every_word_of_every_command():
    for command in app.registered_commands:
        name = command.name or ""
        told = " ".join(called(name, "--help")[1].split())
        assert " ".join((command.callback.__doc__ or "").split()) in told, name
