"""Change one thing, train one thing: cells are shared by what they were made from."""

from __future__ import annotations

import importlib
import itertools
import json
import multiprocessing
import os
import shutil
import signal
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from coterie.checks import InputError
from coterie.records import Folder
from coterie.records.folders import Folder as FolderClass
from coterie.records.ledgers import LEDGER, SPENDING
from coterie.study.config import study_of
from coterie.study.experiment import run_study
from coterie.study.reuse import keys, reusing
from coterie.study.reuse.places import INDEX, note_file
from coterie.study.setup import prepare
from support import tiny_studies
from support.methods import IN_ROUNDS
from support.private_runs import entries
from support.reused_cells import (
    assert_same_cells,
    cells_trained,
    change_code,
    rounds_trained,
)
from support.run_folders import folder_of
from support.study_runs import stopped, together
from support.tiny_studies import ADAPTIVE, ROUNDS, changed

LOCAL, FEDAVG = {"name": "local", "lr": 0.1}, {"name": "fedavg", "lr": 0.1}
DATA = {"name": "linear", "clients": 4, "dimension": 3, "samples": 24}
TABLES = {
    "name": "shared",
    "data": DATA,
    "split": {"name": "natural"},
    "model": {"name": "linear", "bias": False},
    "run": {"rounds": ROUNDS, "batch_size": 4, "seeds": [0], "baselines": False},
    "algorithm": [LOCAL, FEDAVG],
}
BOTH = {"local-0", "fedavg-0"}


def made(tables=TABLES, **run):
    return study_of({**tables, "run": {**tables["run"], **run}})


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A runs folder with the study as it is."""
    folder = tmp_path_factory.mktemp("runs")
    assert cells_trained(made(), folder) == BOTH
    return folder


@pytest.fixture
def copied(runs, tmp_path):
    """A copy of this folder, for a test that changes something."""
    return shutil.copytree(runs, tmp_path / "runs")


# What belongs to a key


CHANGES = {
    "data.samples": (25, BOTH),
    "data.seed": (7, BOTH),
    "split.test": (0.4, BOTH),
    "split.seed": (7, BOTH),
    "model.bias": (True, BOTH),
    "model.loss": ("huber(1)", BOTH),
    "model.measures": (["mae"], BOTH),
    "run.batch_size": (5, BOTH),
    "run.participation": (0.5, BOTH),
    "run.newcomers": (1, BOTH),
    "run.dtype": ("float64", BOTH),
    "run.loop": (True, BOTH),
    "run.evaluate_train": (False, BOTH),
    "run.seeds": ([0, 1], {"local-1", "fedavg-1"}),
    "graph": ({"edges": "ring"}, BOTH),
    "time": ({"law": "constant(1)"}, BOTH),
    "diagnostics": ({"every": 2}, BOTH),
    "privacy": ({"clip": 0.5, "noise": 4.0}, BOTH),
    "optimizer": ({"server": "momentum"}, {"fedavg-0"}),
    "algorithm.1.optimizer": ({"server": "momentum"}, {"fedavg-0"}),
    "algorithm.1.lr": (0.2, {"fedavg-0"}),
    "algorithm.1.steps": (2, {"fedavg-0"}),
    "algorithm.1.name": ("ditto", {"ditto-0"}),
    "algorithm": ([LOCAL, FEDAVG, {"name": "ditto", "lr": 0.1}], {"ditto-0"}),
    # These change no result.
    "name": ("another", set()),
    "algorithm.1.label": ("together", set()),
    "run.checkpoint_seconds": (0.0, set()),
    "run.baselines": (True, set()),
}


@pytest.mark.parametrize("path", CHANGES)
def test_a_change_trains_the_cells_again_that_depend_on_it(copied, path):
    value, expected = CHANGES[path]
    study = study_of(changed(TABLES, path, value))
    assert cells_trained(study, copied) == expected
    assert cells_trained(study, copied) == set()
    assert cells_trained(made(), copied) == set()  # nothing else was lost


def test_the_order_of_algorithms_changes_nothing(copied):
    assert (
        cells_trained(made({**TABLES, "algorithm": [FEDAVG, LOCAL]}), copied) == set()
    )


FILES = {
    "algorithms/fedavg.py": {"fedavg-0"},
    "algorithms/local.py": {"local-0"},
    "algorithms/ditto.py": set(),
    "clients/simulation.py": BOTH,
    "engine/rounds.py": BOTH,
    "optim/steps.py": BOTH,
    "models/losses.py": BOTH,
    "data/splits.py": BOTH,
    "seeds.py": BOTH,
    "study/training.py": BOTH,
    "report/pages.py": set(),
    "cli/commands/runs.py": set(),
}


@pytest.mark.parametrize("place", ["the same run", "another run"])
@pytest.mark.parametrize("file", FILES)
def test_other_code_trains_the_cells_again_that_it_makes(
    copied, monkeypatch, file, place
):
    study = made({**TABLES, "name": "shared" if place == "the same run" else "other"})
    with monkeypatch.context() as patch:
        change_code(patch, file, b'\n# a comment\ndef _f():\n    """One text."""\n')
        with_docstring = cells_trained(study, copied)
    with monkeypatch.context() as patch:
        change_code(patch, file, b'\n\ndef _f():\n    """Another."""\n')
        assert cells_trained(study, copied) == set()
    assert with_docstring == FILES[file]


def test_a_comment_or_a_docstring_trains_nothing(copied, monkeypatch):
    for file in FILES:
        change_code(monkeypatch, file, b'\n# a comment\n"a text of its own"\n')
    # A text that is no docstring is a statement; a comment is nothing.
    monkeypatch.undo()
    for file in FILES:
        change_code(monkeypatch, file, b"\n\n\n    # a comment\n")
    assert cells_trained(made(), copied) == set()


@pytest.mark.parametrize("package", ["torch", "np"])
def test_another_version_of_torch_or_numpy_trains_again(copied, monkeypatch, package):
    monkeypatch.setattr(keys, package, SimpleNamespace(__version__="9"))
    said: list[str] = []
    assert cells_trained(made(), copied, notice=said.append) == BOTH
    assert said == [
        f"{label} with seed 0 is trained again, because the version of torch or NumPy "
        "has changed."
        for label in ("local", "fedavg")
    ]


def test_what_is_compiled_is_another_cell(copied, monkeypatch):
    setup = prepare(made(), 0)
    setup = replace(setup, study=made(compile="always"))
    monkeypatch.setattr(keys, "can_compile", lambda device: False)
    before = keys.seed_key(setup, {})
    monkeypatch.setattr(keys, "can_compile", lambda device: True)
    after = keys.seed_key(setup, {})
    assert {part for part in before if before[part] != after[part]} == {"run"}


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A table and weights in the current folder, and a study of them."""
    monkeypatch.chdir(tmp_path)
    rows = [f"{i % 4},{i % 7 / 2},{i % 3}" for i in range(40)]
    (tmp_path / "d.csv").write_text("\n".join(["client,x,target", *rows]))
    np.savetxt("w.csv", np.eye(4), delimiter=",")
    weighted = {"name": "all_for_one", "lr": 0.1, "weights": "w.csv"}
    data = {"name": "file", "path": "d.csv", "task": "regression"}
    return {**TABLES, "data": data, "algorithm": [LOCAL, weighted]}


def test_the_content_of_files_counts_and_not_their_folder(files, tmp_path):
    everything = {"local-0", "all_for_one-0"}
    assert cells_trained(made(files), "runs") == everything
    (tmp_path / "w.csv").write_text((tmp_path / "w.csv").read_text() + "\n")
    assert cells_trained(made(files), "runs") == {"all_for_one-0"}
    (tmp_path / "below").mkdir()
    (tmp_path / "d.csv").rename(tmp_path / "below" / "d.csv")
    moved = changed(files, "data.path", "below/d.csv")
    assert cells_trained(made(moved), "runs") == set()
    text = (tmp_path / "below" / "d.csv").read_text()
    (tmp_path / "below" / "d.csv").write_text(text.replace("0,0.0,0", "0,0.1,0", 1))
    assert cells_trained(made(moved), "runs") == everything


OWN = """
from own_rate import rate
from coterie.algorithms.local import local

def method(*, lr: float = 0.1):
    "The method."
    return local(lr=rate * lr)

def model(shape, outputs):
    import torch
    return torch.nn.Linear(shape[0], outputs)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Writes a user's modules, which are then imported afresh."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(tmp_path)
    names = ("own_methods", "own_rate")

    def write(text: str = OWN, rate: str = "rate = 1.0\n"):
        for name, content in zip(names, (text, rate), strict=True):
            (tmp_path / f"{name}.py").write_text(content)
            sys.modules.pop(name, None)

    write()
    yield write
    for name in names:
        sys.modules.pop(name, None)


def test_own_modules_count_by_what_they_do(own, tmp_path, monkeypatch):
    mine = {"name": "own_methods:method", "lr": 0.1, "label": "mine"}
    study = made({**TABLES, "algorithm": [LOCAL, mine]})
    assert cells_trained(study, tmp_path) == {"local-0", "mine-0"}
    own(OWN.replace("The method.", "A method.") + "# more\n")
    assert cells_trained(study, tmp_path) == set()  # in another run folder
    own(OWN.replace("rate * lr", "lr * rate"))
    assert cells_trained(study, tmp_path) == {"mine-0"}
    own(rate="rate = 0.5\n")
    assert cells_trained(study, tmp_path) == {"mine-0"}
    change_code(monkeypatch, "algorithms/ditto.py", b"\na = 1\n")
    assert cells_trained(study, tmp_path) == set()
    change_code(monkeypatch, "algorithms/local.py", b"\na = 1\n")
    assert cells_trained(study, tmp_path) == {"local-0", "mine-0"}


LATE = """
import importlib
from coterie.algorithms.local import local
{before}

def method(*, lr: float = 0.1):
    return local(lr={find}(NAME).rate * lr)
"""


@pytest.mark.parametrize(
    ("before", "find"),
    [("", "importlib.import_module"),
     ("from importlib import import_module as load", "load")],
)  # fmt: skip
def test_a_module_that_is_imported_late_by_a_variable_counts(
    own, tmp_path, before, find
):
    text = LATE.format(before=f'{before}\nNAME = "own_rate"', find=find)
    own(text)
    mine = {"name": "own_methods:method", "lr": 0.1, "label": "mine"}
    study = made({**TABLES, "algorithm": [mine]})
    assert cells_trained(study, tmp_path) == {"mine-0"}
    own(text, rate="rate = 0.5\n")
    assert cells_trained(study, tmp_path) == {"mine-0"}


@pytest.mark.parametrize("changed_file", ["own_methods", "own_rate"])
def test_a_module_that_was_edited_must_be_imported_again(own, tmp_path, changed_file):
    """Otherwise, the next process would take results of the old code for the new."""
    mine = {"name": "own_methods:method", "lr": 0.1, "label": "mine"}
    study = made({**TABLES, "algorithm": [mine]})
    assert cells_trained(study, tmp_path) == {"mine-0"}
    path = tmp_path / f"{changed_file}.py"
    path.write_text(path.read_text() + "# a comment\n")
    assert cells_trained(study, tmp_path) == set()
    path.write_text(path.read_text().replace("rate = 1.0", "rate = 0.5") + "more = 1\n")
    with pytest.raises(InputError, match=f"the module {changed_file} was changed"):
        run_study(study, runs=tmp_path)
    importlib.reload(sys.modules[changed_file])
    if changed_file == "own_rate":
        importlib.reload(sys.modules["own_methods"])
    assert cells_trained(study, tmp_path) == {"mine-0"}


@pytest.mark.parametrize("file", [None, "<stdin>"])
def test_code_of_a_notebook_is_refused_because_its_changes_are_not_noticed(
    tmp_path, monkeypatch, file
):
    from coterie.algorithms.local import local

    main = ModuleType("__main__")
    main.method = lambda *, lr=0.1: local(lr=lr)
    main.__file__ = file
    monkeypatch.setitem(sys.modules, "__main__", main)
    study = made({**TABLES, "algorithm": [{"name": "__main__:method", "lr": 0.1}]})
    with pytest.raises(InputError, match="`name` '__main__:method' is not in a file"):
        run_study(study, runs=tmp_path)


def test_a_method_that_imports_the_whole_package_depends_on_all_methods(
    own, tmp_path, monkeypatch
):
    own("import coterie\ndef method(*, lr: float = 0.1):\n"
        "    return coterie.methods.local(lr=lr)\n")  # fmt: skip
    mine = {"name": "own_methods:method", "label": "mine"}
    study = made({**TABLES, "algorithm": [LOCAL, mine]})
    assert cells_trained(study, tmp_path) == {"local-0", "mine-0"}
    change_code(monkeypatch, "algorithms/ditto.py", b"\na = 1\n")
    assert cells_trained(study, tmp_path) == {"mine-0"}


def test_own_models_count_for_every_cell(own, tmp_path):
    study = made({**TABLES, "model": {"name": "own_methods:model"}})
    assert cells_trained(study, tmp_path) == BOTH
    own(OWN + "# more\n")
    assert cells_trained(study, tmp_path) == set()
    own(OWN.replace("shape[0], outputs)", "shape[0], outputs, bias=True)"))
    assert cells_trained(study, tmp_path) == BOTH


# What is reused is the same


def test_what_is_reused_equals_what_would_be_trained(tmp_path):
    few = {**TABLES, "algorithm": [LOCAL, {**ADAPTIVE, "lr": 0.1}]}
    more = {**few, "algorithm": [*few["algorithm"], FEDAVG], "name": "more"}
    run_study(made(few, newcomers=1, seeds=[0, 1]), runs=tmp_path / "a")
    reused = run_study(made(more, newcomers=1, seeds=[0, 1]), runs=tmp_path / "a")
    trained = run_study(made(more, newcomers=1, seeds=[0, 1]), runs=tmp_path / "b")
    assert_same_cells(reused, trained)
    for one, other in zip(
        reused.records.newcomers.to_numpy(),
        trained.records.newcomers.to_numpy(),
        strict=True,
    ):
        assert (one == other).all()
    tables = [r.table().drop(columns="seconds") for r in (reused, trained)]
    assert tables[0].equals(tables[1])


def test_models_take_no_space_twice(copied):
    other = run_study(made({**TABLES, "name": "other"}), runs=copied).folder
    first = folder_of(made(), copied)
    for name in ("cells/local-0.pt", "models/local-0.pt", "models/fedavg-0.pt"):
        assert (first / name).samefile(other / name)


def test_the_user_hears_what_came_from_where_and_how_to_train_again(copied):
    said: list[str] = []
    study = made({**TABLES, "name": "other"})
    run_study(study, runs=copied, notice=said.append)
    assert said == [
        f"local, fedavg with seed 0: the results come from {folder_of(made(), copied)},"
        " where they were trained; `--fresh` (`fresh=True` in Python) trains again."
    ]
    assert cells_trained(study, copied, fresh=True) == BOTH
    assert cells_trained(study, copied, fresh=True) == BOTH
    assert cells_trained(study, copied) == set()


def test_a_deleted_run_takes_its_cells_along(copied):
    shutil.rmtree(folder_of(made(), copied))
    assert cells_trained(made({**TABLES, "name": "other"}), copied) == BOTH
    # What was reused stays where it was reused.
    assert cells_trained(made(), copied) == set()
    shutil.rmtree(folder_of(made({**TABLES, "name": "other"}), copied))
    assert cells_trained(made(), copied) == set()


@pytest.mark.parametrize("what", ["cells/fedavg-0.pt", "models/fedavg-0.pt"])
@pytest.mark.parametrize("damage", ["deleted", "changed"])
def test_what_is_lost_or_damaged_is_not_reused(copied, what, damage):
    path = folder_of(made(), copied) / what
    good = run_study(made(), runs=copied).models("fedavg")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink() if damage == "deleted" else path.write_bytes(content)
    other = made({**TABLES, "name": "other"})
    trained = cells_trained(other, copied)
    assert trained == (
        set() if what.startswith("m") and damage == "changed" else {"fedavg-0"}
    )
    assert torch.equal(run_study(other, runs=copied).models("fedavg"), good)


def test_an_index_that_names_anything_else_is_left_alone(copied):
    for path in (copied / INDEX).glob("*-*.json"):
        path.write_text(path.read_text().replace('"run": "', '"run": "../runs/'))
    assert cells_trained(made({**TABLES, "name": "other"}), copied) == BOTH
    for path in (copied / INDEX).glob("*"):
        path.write_text("nonsense")
    assert cells_trained(made({**TABLES, "name": "third"}), copied) == BOTH


def test_two_studies_at_once_may_train_the_same_cell(tmp_path):
    other, found = made({**TABLES, "name": "other"}), []

    def meanwhile(progress) -> None:
        if (progress.label, progress.t) == ("fedavg", 2):
            found.append(cells_trained(other, tmp_path))

    first = run_study(made(), runs=tmp_path, progress=meanwhile)
    assert found == [{"fedavg-0"}]  # the other cell had ended
    assert_same_cells(first, run_study(other, runs=tmp_path))


@pytest.mark.parametrize("what", ["cells", "models"])
def test_what_another_run_begins_again_meanwhile_is_not_taken(
    copied, monkeypatch, what
):
    """It changes its note first, then its files, while we make links to them."""
    first, link = folder_of(made(), copied), reusing.link_file
    expected = run_study(made(), runs=copied).models("local")

    def late(source, target):
        if source == first / what / "local-0.pt":
            path = note_file(first, "local", 0)
            path.write_text(path.read_text().replace('"code": "', '"code": "0'))
            shutil.copyfile(first / what / "fedavg-0.pt", source)
        link(source, target)

    monkeypatch.setattr(reusing, "link_file", late)
    other = made({**TABLES, "name": "other"})
    assert cells_trained(other, copied) == {"local-0"}
    found = run_study(other, runs=copied).models("local")
    assert torch.equal(found, expected)


def test_several_processes_reuse_cells_too(tmp_path):
    run_study(made(), runs=tmp_path)
    said: list[str] = []
    results = together(
        made({**TABLES, "name": "other"}), 2, tmp_path, notice=said.append
    )
    assert any("the results come from" in line for line in said)
    first = run_study(made(), runs=tmp_path)
    assert torch.equal(results[0].models("fedavg"), first.models("fedavg"))
    assert cells_trained(made({**TABLES, "name": "third"}), tmp_path) == set()


# Being killed


def _dying(study, runs, step: int) -> None:
    """Runs a study, and is killed before or after some write of a file."""
    left = [step]

    def fatal(call):
        def count_down(*args, **options):
            for late in (False, True):
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                if not late:
                    found = call(*args, **options)
            return found

        return count_down

    for name in ("link_file", "write_note"):
        setattr(reusing, name, fatal(getattr(reusing, name)))
    for name in ("save", "save_models", "save_search", "forget_cell"):
        setattr(FolderClass, name, fatal(getattr(FolderClass, name)))
    run_study(study, runs=runs)


def was_killed(study, runs, step: int) -> bool:
    process = multiprocessing.get_context("fork").Process(
        target=_dying, args=(study, runs, step)
    )
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


@pytest.mark.parametrize("change", ["reuse", "continue", "relabel", "code"])
def test_whenever_a_run_is_killed_the_next_one_has_the_right_results(
    copied, tmp_path, monkeypatch, change
):
    tables = {**TABLES, "name": "other"}
    rounds = ROUNDS
    if change == "continue":
        rounds = 2 * ROUNDS
    elif change == "relabel":
        tables = changed(tables, "algorithm.1.label", "together")
    elif change == "code":
        tables = TABLES
        change_code(monkeypatch, "algorithms/fedavg.py", b"\na = 1\n")
    study = made(tables, rounds=rounds, checkpoint_seconds=0.0)
    expected = run_study(study, runs=tmp_path / "alone")
    for step in itertools.count(1, 3):
        runs = shutil.copytree(copied, tmp_path / str(step))
        killed = was_killed(study, runs, step)
        assert_same_cells(run_study(study, runs=runs), expected)
        if change != "code":  # the first study is as it was
            assert cells_trained(made(), runs) == set()
        if not killed:
            break
    assert step > 7


def test_a_cell_of_other_code_that_was_stopped_begins_again(tmp_path, monkeypatch):
    study = made(checkpoint_seconds=0.0)
    stopped(study, lambda p: (p.label, p.t) == ("fedavg", 2), runs=tmp_path)
    change_code(monkeypatch, "algorithms/fedavg.py", b"\na = 1\n")
    found = rounds_trained(study, tmp_path)
    assert found == {("local", 0): [], ("fedavg", 0): [1, 2, 3, 4]}


def test_a_run_without_keys_stays_as_it_was(copied, monkeypatch):
    folder = folder_of(made(), copied)
    for path in (folder / "cells").glob("*.key.json"):
        path.unlink()
    shutil.rmtree(copied / INDEX)
    change_code(monkeypatch, "algorithms/fedavg.py", b"\na = 1\n")
    assert cells_trained(made(), copied) == set()
    assert cells_trained(made({**TABLES, "name": "other"}), copied) == BOTH


def test_the_index_is_no_run_folder(copied):
    assert Folder(folder_of(made(), copied)).cell("local", 0).done
    assert list(copied.glob("[!.]*")) == [folder_of(made(), copied)]
    with pytest.raises(InputError, match="no run to resume"):
        run_study(made(), resume=copied / INDEX)


# More rounds


@pytest.mark.parametrize("name", IN_ROUNDS)
def test_going_on_to_more_rounds_equals_not_stopping(tmp_path, name):
    entry = ADAPTIVE if name == ADAPTIVE["name"] else {"name": name}
    if name == "fedbn":  # there is no normalisation
        entry["norm"] = "head"
    short, long = (
        tiny_studies.made(algorithm=[entry], rounds=rounds, baselines=False)
        for rounds in (ROUNDS, 2 * ROUNDS)
    )
    run_study(short, runs=tmp_path / "a")
    (trained,) = rounds_trained(long, tmp_path / "a").values()
    assert trained == [5, 6, 7, 8]
    assert_same_cells(
        run_study(long, runs=tmp_path / "a"), run_study(long, runs=tmp_path / "b")
    )


def test_going_on_in_virtual_time_equals_not_stopping(tmp_path):
    entries = [
        {"name": "fedavg", "lr": 0.1},
        {"name": "local", "lr": 0.1},
        {"name": "ditto", "lr": 0.1, "waits": False, "late": "adaptive"},
        {"name": "server_sgd", "lr": 0.1, "assign": "random"},
        {"name": "loss_network"},
        {"name": "dual_accelerated"},
    ]
    time = {
        "law": "lognormal(1, 0.5)",
        "speeds": [1, 2, 1, 6],
        "availability": "on_off(6, 1)",
        "links": "exponential(0.2)",
    }
    tables = {**TABLES, "algorithm": entries, "time": time}
    run_study(made(tables), runs=tmp_path / "a")
    long = made(tables, rounds=3 * ROUNDS)
    trained = rounds_trained(long, tmp_path / "a")
    assert {t[0] for t in trained.values()} == {ROUNDS + 1}
    one, other = (run_study(long, runs=tmp_path / name) for name in "ab")
    assert_same_cells(one, other)
    for name in ("delays", "spans", "work"):
        assert getattr(one.records, name).equals(getattr(other.records, name))


@pytest.mark.parametrize(("first", "then"), [(60, 120), (60, 100), (120, 130)])
def test_records_are_those_of_the_longer_study(tmp_path, first, then):
    """With 100 rounds or more, every second one is evaluated."""
    tables = {**TABLES, "algorithm": [{"name": "all_for_one", "lr": 0.01}]}
    run_study(made(tables, rounds=first), runs=tmp_path / "a")
    long = made(tables, rounds=then)
    (trained,) = rounds_trained(long, tmp_path / "a").values()
    assert trained == list(range(first + 1, then + 1))
    one, other = (run_study(long, runs=tmp_path / name) for name in "ab")
    assert_same_cells(one, other)


def test_a_longer_run_goes_on_from_the_longest_before(tmp_path):
    for rounds in (4, 2, 6):
        run_study(made(rounds=rounds), runs=tmp_path)
    found = rounds_trained(made(rounds=8), tmp_path)
    assert found == {("local", 0): [7, 8], ("fedavg", 0): [7, 8]}
    assert cells_trained(made(rounds=6), tmp_path) == set()


REFUSED = {
    "evaluations": (
        {},
        {"evaluate_every": 2},
        {"rounds": 9, "evaluate_every": 3},
        "it was evaluated at other rounds: set `run.evaluate_every` to 2 to continue",
    ),
    "noise": (
        {"privacy": {"clip": 0.5, "noise": 4.0}},
        {},
        {"rounds": 8},
        "the noise of [privacy] belongs to one number of rounds: train it again, which "
        "costs its privacy budget once more",
    ),
    "search": (
        {"tune": {"trials": 2, "space": {"lr": [0.1, 0.2]}}},
        {},
        {"rounds": 8},
        "its search took as many rounds as the run: set `tune.rounds` to let later "
        "runs continue",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_depends_on_the_number_of_rounds_does_not_go_on(tmp_path, case):
    more, before, after, why = REFUSED[case]
    tables = {**TABLES, **more, "algorithm": [FEDAVG]}
    first = run_study(made(tables, **before), runs=tmp_path / "a")
    long, said = made(tables, **before | after), list[str]()
    trained = rounds_trained(long, tmp_path / "a", notice=said.append)
    assert trained["fedavg", 0][0] == 1
    assert (
        f"fedavg with seed 0 cannot continue from round {ROUNDS} in {first.folder}, "
        f"because {why}; it is trained from the start."
    ) in said
    one, other = (run_study(long, runs=tmp_path / name) for name in "ab")
    assert_same_cells(one, other)


def test_more_rounds_are_refused_in_the_folder_of_fewer(tmp_path):
    first = run_study(made(), runs=tmp_path)
    with pytest.raises(InputError, match="without --resume, which continues"):
        run_study(made(rounds=2 * ROUNDS), resume=first.folder)


# Searches and settings that choose themselves


def test_a_search_is_reused_with_its_cell(tmp_path):
    tune = {"trials": 3, "rounds": 2, "space": {"lr": {"from": 0.01, "to": 0.3}}}
    tables = {**TABLES, "tune": tune}
    more = {**tables, "algorithm": [*TABLES["algorithm"], {"name": "ditto"}]}
    first = run_study(made(tables), runs=tmp_path)
    seen = list[str]()
    run = {"runs": tmp_path, "progress": lambda p: seen.append(p.label)}
    second = run_study(made(changed(more, "algorithm.1.label", "other")), **run)
    assert {s for s in seen if "tuning" in s} == {
        f"ditto (tuning {trial}/3)" for trial in (1, 2, 3)
    }
    options = [r.chosen_options() for r in (first, second)]
    assert options[0].loc[("fedavg", 0), "lr"] == options[1].loc[("other", 0), "lr"]
    assert torch.equal(first.models("fedavg"), second.models("other"))
    changed_space = changed(more, "tune.space.lr.to", 0.4)
    assert len(cells_trained(made(changed_space), tmp_path)) == 3 * (1 + 3)  # trials
    longer = rounds_trained(made(tables, rounds=6), tmp_path)
    assert longer == {("local", 0): [5, 6], ("fedavg", 0): [5, 6]}


AUTO = {
    "name": "auto",
    "data": {"name": "digits"},
    "split": {"name": "label_swap", "clients": 4, "max_samples": 40},
    "model": {"name": "linear"},
    "run": {"baselines": False},
    "algorithm": [{"name": "local"}],
}


def trained_cells(study, runs) -> set[tuple[str, int]]:
    """Of which cells any round was trained, whatever the number of rounds."""
    seen = {}
    run_study(
        study,
        runs=runs,
        progress=lambda p: seen.setdefault((p.label, p.seed), []).append(p.t),
    )
    return {cell for cell, t in seen.items() if len(t) > 2}


def test_a_study_that_ends_by_itself_trains_what_is_new_and_what_lacks_rounds(
    tmp_path, monkeypatch
):
    from coterie.study.settings import attempts

    found, find = [], attempts.find_settings
    monkeypatch.setattr(
        attempts, "find_settings", lambda setup: found.append(1) or find(setup)
    )
    short = study_of(AUTO)
    both = {**AUTO, "algorithm": [{"name": "local"}, {"name": "fedavg"}]}
    for order in (both, {**both, "name": "again"}):
        for study, folder in ((short, "a"), (study_of(order), "a")):
            run_study(study, runs=tmp_path / folder)
    assert len(found) == 1
    expected = run_study(study_of(both), runs=tmp_path / "b")
    assert_same_cells(run_study(study_of(both), runs=tmp_path / "a"), expected)
    assert trained_cells(study_of({**both, "name": "third"}), tmp_path / "a") == set()
    # From the longer ones back to the shorter one.
    shutil.copytree(tmp_path / "b", tmp_path / "c")
    alone = run_study(short, runs=tmp_path / "d")
    assert_same_cells(run_study(short, runs=tmp_path / "c"), alone)


# Privacy


def private(name: str, *entries, source="seed"):
    privacy = {"clip": 0.5, "noise": 4.0, "noise_source": source}
    more = {"name": name, "algorithm": list(entries), "privacy": privacy}
    return made({**TABLES, **more})


def spending(result) -> dict:
    return json.loads((result.folder / SPENDING).read_text())


@pytest.mark.parametrize("source", ["seed", "system"])
def test_a_private_cell_brings_its_ledger_which_counts_once(tmp_path, source):
    more = {"name": "ditto", "lr": 0.1}
    first = run_study(private("one", FEDAVG, source=source), runs=tmp_path)
    before = entries(tmp_path)
    study = private("two", FEDAVG, more, source=source)
    assert cells_trained(study, tmp_path) == {"ditto-0"}
    second = run_study(study, runs=tmp_path)
    assert torch.equal(first.models("fedavg"), second.models("fedavg"))
    after = entries(tmp_path)
    assert all(entry in after for entry in before)
    assert sorted(e.label for e in after) == ["ditto", "fedavg"]
    # The second study has both, and all studies together have no more.
    both = spending(second)
    assert both["study"] == both["all"] > spending(first)["study"]
    assert both["studies"] == 2
    # A third one takes both from the second, and names who trained them.
    third = run_study(private("three", FEDAVG, more, source=source), runs=tmp_path)
    assert spending(third)["study"] == both["study"]
    assert spending(third)["all"] == both["all"]
    assert len(entries(tmp_path)) == 2
    releases = [r.records.releases for r in (second, third)]
    assert releases[0].equals(releases[1])


def test_a_private_cell_whose_ledger_is_lost_is_not_reused(tmp_path):
    run_study(private("one", FEDAVG), runs=tmp_path)
    for path in (tmp_path / LEDGER).glob("*/*.json"):
        path.unlink()
    assert cells_trained(private("two", FEDAVG), tmp_path) == {"fedavg-0"}


def test_two_private_entries_that_are_alike_keep_noise_of_their_own(tmp_path):
    alike = [{**FEDAVG, "label": label} for label in "ab"]
    first = run_study(private("one", *alike), runs=tmp_path)
    second = run_study(private("two", *alike), runs=tmp_path)
    for label in "ab":
        assert torch.equal(first.models(label), second.models(label))
    assert not torch.equal(second.models("a"), second.models("b"))


@pytest.mark.parametrize(("source", "times"), [("seed", 1), ("system", 2)])
def test_a_fresh_private_training_is_charged_where_its_noise_is_new(
    tmp_path, source, times
):
    study = private("one", FEDAVG, source=source)
    first = run_study(study, runs=tmp_path).models()
    again = run_study(study, runs=tmp_path, fresh=True).models()
    assert torch.equal(first, again) == (source == "seed")
    assert len(entries(tmp_path)) == times
    costs = [entry.spent + entry.reserved for entry in entries(tmp_path)]
    assert costs == [pytest.approx(costs[0])] * times


def test_private_cells_of_other_code_stay_because_repeating_costs(
    tmp_path, monkeypatch
):
    study = private("one", FEDAVG)
    run_study(study, runs=tmp_path)
    change_code(monkeypatch, "algorithms/fedavg.py", b"\na = 1\n")
    assert cells_trained(study, tmp_path) == set()
    with pytest.raises(InputError, match="give the study another name"):
        run_study(study, runs=tmp_path, fresh=True)
    assert cells_trained(study, tmp_path) == set()
    assert cells_trained(private("two", FEDAVG), tmp_path) == {"fedavg-0"}


def test_partners_that_are_chosen_with_noise_belong_to_one_study(tmp_path):
    entry = {"name": "all_for_one", "lr": 0.1, "weights": "mmd(20, 1e9)"}
    tables = {**TABLES, "model": {"name": "linear"}, "algorithm": [entry]}
    tables["privacy"] = {"clip": 0.5, "noise": 40.0}
    assert cells_trained(made(tables), tmp_path) == {"all_for_one-0"}
    other = made({**tables, "name": "other"})
    assert cells_trained(other, tmp_path) == {"all_for_one-0"}
