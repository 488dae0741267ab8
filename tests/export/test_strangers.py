"""Claims about folders from strangers: reading them runs no code that they name."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

import coterie as co
from coterie.checks import InputError
from coterie.export import export_model, predict, read_export
from coterie.models import layout
from coterie.records.files import load, refuse_target, save
from support.called import called, refused
from support.hospital_runs import TENSORS, own_module, run
from support.refusals import refuses
from support.strangers import RUNS_BASH, forge_json, forge_study


class Touches:
    """An object that makes a file when it is unpickled."""

    def __reduce__(self):
        return os.system, ("touch PWNED",)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory) -> Path:
    """A run of two clients, the same run again, and the model of one of them."""
    folder = tmp_path_factory.mktemp("strangers")
    result = run(folder, TENSORS)
    shutil.copytree(result.folder, folder / "run")
    run(folder, {**TENSORS, "name": "other"})
    shutil.copytree(next((folder / "runs").glob("other*")), folder / "other")
    export_model(co.load(result.folder), 0, folder / "model")
    np.savez(folder / "new.npz", features=np.zeros((3, 2)))
    shutil.rmtree(folder / "runs")
    return folder


@pytest.fixture
def here(run_folder, tmp_path, monkeypatch) -> Path:
    """A copy of `run_folder` as the current folder, which a test may change."""
    folder = Path(shutil.copytree(run_folder, tmp_path / "here"))
    monkeypatch.chdir(folder)
    return folder


def code_ran(folder: Path) -> bool:
    return any(folder.parent.rglob("PWNED"))


READING = {
    "export": ["export", "run", "--client", "0", "--to", "to"],
    "report": ["report", "run"],
    "compare": ["compare", "run", "other"],
    "watch": ["watch", "run"],
    "audit": ["audit", "run", "--runs", "2"],
    "audit a file": ["audit", "run/study.toml"],
    "run": ["run", "run/study.toml"],
    "plan": ["plan", "run/study.toml"],
}


@pytest.mark.parametrize("words", READING.values(), ids=READING)
def test_no_command_runs_what_a_run_folder_names(here, words):
    def shapeless(about):
        about["shape"] = []

    forge_study(here / "run", lambda tables: tables.update(model=dict(RUNS_BASH)))
    forge_json(here / "run" / "model-0.json", shapeless)
    if words[0] in ("report", "compare", "watch"):  # which need no model
        assert called(*words)[0] == 0
    else:
        refuses(r"names code, `model\.name` = 'subproc", called, *words)
    assert not code_ran(here) and not (here / "to").exists()


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [
        ("data", "name", "os:abort"),
        ("model", "loss", "os:abort"),
        ("model", "objective", "os:abort"),
        ("model", "measures", ["os:abort"]),
    ],
)
def test_no_setting_of_a_run_folder_is_code(here, table, key, value):
    forge_study(here / "run", lambda tables: tables[table].update({key: value}))
    for words in (READING["report"], READING["compare"], READING["watch"]):
        assert called(*words)[0] == 0
    for words in (READING["audit"], READING["run"], READING["plan"]):
        refuses(r"names code.* 'os:abort', which is not", called, *words)
    refuses("names code", co.read_study, here / "run" / "study.toml")
    assert co.load(here / "run").model(0) is not None


def forge_model(folder: Path) -> None:
    def change(about):
        options = {k: v for k, v in RUNS_BASH.items() if k != "name"}
        about["model"] |= {"name": "subprocess:run", "shape": [], "options": options}

    forge_json(folder / "model.json", change)


def test_no_exported_model_is_code(here):
    forge_model(here / "model")
    for words in (["predict", "model", "new.npz"], ["predict", "model", "no.npz"]):
        refuses(r"not run: .* say --trust subprocess ", called, *words)
    refuses("which is not run", predict, here / "model", here / "new.npz")
    refuses("which is not run", read_export, here / "model")
    assert not code_ran(here)


def test_what_a_trusted_module_returns_must_be_a_module(here):
    def change(about):
        about["model"] |= {"name": "collections:Counter", "shape": [2], "options": {}}

    forge_json(here / "model" / "model.json", change)
    with pytest.raises(InputError, match=r"`model` cannot be made|give an nn\.Module"):
        read_export(here / "model", trust=["collections"])


def test_python_reads_a_run_folder_without_its_code(here):
    forge_study(here / "run", lambda tables: tables.update(model=dict(RUNS_BASH)))
    found = co.load(here / "run")
    assert len(found.table()) == 1 and found.models().shape[0] == 2
    refuses("which is not run", found.model, 0)
    refuses("which is not run", export_model, found, 0, here / "to")
    assert not code_ran(here)


def test_pickles_in_place_of_numbers_are_refused_and_not_run(here):
    np.savez("evil.npz", features=np.array([[Touches()]], dtype=object))
    refuses(r"cannot read evil\.npz", called, "predict", "model", "evil.npz")
    torch.save(Touches(), "evil.pt")
    for evil in (pickle.dumps(Touches()), Path("evil.pt").read_bytes()):
        Path("model/weights.safetensors").write_bytes(evil)
        sums = {"weights.safetensors": hashlib.sha256(evil).hexdigest()}
        forge_json(
            here / "model" / "model.json", lambda a, sums=sums: a.update(checksums=sums)
        )
        refuses("does not hold the weights", read_export, "model")
        signed = evil + hashlib.blake2b(evil, digest_size=16).digest()
        Path("run/models/local-0.pt").write_bytes(signed)
        refuses(r"local-0\.pt is damaged", co.load("run").model, 0)
        Path("run/cells/local-0.pt").write_bytes(signed)
        refuses(r"local-0\.pt is damaged", called, "report", "run")
        shutil.copy("other/cells/local-0.pt", "run/cells/local-0.pt")
    assert not code_ran(here)


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("run/study.toml", "rounds = 1", "rounds = 2"),
        ("run/study.toml", "# checksum ", "# "),
        ("run/model-0.json", '"shape": [2]', '"shape": [3]'),
        ("run/model-0.json", '"checksum"', '"sum"'),
        ("model/model.json", '"seed": 0', '"seed": 1'),
        ("model/model.json", '"checksum"', '"sum"'),
    ],
)
def test_a_changed_study_or_model_is_named_by_its_checksum(here, path, old, new):
    readers = [lambda: read_export("model")]
    if path.startswith("run"):
        readers = [lambda: co.load("run").model(0)]
    if path.endswith("toml"):
        readers += [lambda: called("watch", "run"), lambda: called("report", "run")]
    text = Path(path).read_text()
    assert old in text
    for read in readers:
        Path(path).write_text(text.replace(old, new))
        refuses(rf"{path} .*checksum", read)
        Path(path).write_text(text)
        read()


def test_own_models_are_read_where_their_module_is_trusted(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    name = own_module(tmp_path, "own_trusted")
    tables = {"data": {"name": f"{name}:pictures"}, "run": {"rounds": 1}}
    tables |= {"model": {"name": f"{name}:reshaping"}}
    result = run(tmp_path, {**tables, "algorithm": [{"name": "local"}]})
    folder = str(result.folder)
    assert sum(layout(result.model(0)).sizes) == result.models().shape[1]
    sys.modules.pop(name)
    words = ["export", folder, "--client", "0", "--to", "to"]
    refuses(f"say --trust {name} ", called, *words)
    assert name not in sys.modules
    assert called(*words, "--trust", name)[0] == 0
    np.savez("new.npz", features=np.zeros((3, 1, 6, 6)))
    code, output, _ = called("predict", "to", "new.npz", "--trust", name)
    assert code == 0 and len(output.splitlines()) == 4
    card = Path("to/README.md").read_text()
    assert f"`--trust {name}` behind `coterie predict`" in card
    sys.modules.pop(name)


def replace_by(path: str, make) -> None:
    """Replaces a file by another kind, which `make` creates."""
    Path(path).unlink()
    make(path)


PIPES = {
    "weights": ("model/weights.safetensors", ["predict", "model", "new.npz"]),
    "metrics": ("run/metrics.csv", ["watch", "run"]),
    "cell": ("run/cells/local-0.pt", ["report", "run"]),
    "study, run": ("run/study.toml", ["run", "run/study.toml"]),
    "study, plan": ("run/study.toml", ["plan", "run/study.toml"]),
    "study, report": ("run/study.toml", ["report", "run"]),
}


@pytest.mark.parametrize(("path", "words"), PIPES.values(), ids=PIPES)
@pytest.mark.parametrize("make", [os.mkfifo, lambda p: os.symlink("/dev/zero", p)])
def test_a_pipe_or_device_instead_of_a_file_is_refused_at_once(here, path, words, make):
    replace_by(path, make)
    refuses(path.rpartition("/")[2], called, *words)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shape": [10**9]}, "which has 1,000,000,001 numbers"),
        ({"shape": [10**30]}, "`model` cannot be made"),
        ({"shape": [0]}, r"model\.json is damaged"),
        ({"outputs": -1}, r"model\.json is damaged"),
        ({"name": "mlp", "options": {"hidden": [10**5] * 9}}, "which has"),
        ({"name": "mlp", "options": {"hidden": [1] * 10**5}}, "at most 1000 layers"),
        (
            {"name": "unet3d", "shape": [1, 8, 8, 8], "options": {"depth": 10**12}},
            "`depth` must be at most 20",
        ),
    ],
)
def test_a_model_larger_than_its_weights_takes_no_memory(here, change, message):
    path = here / "model" / "model.json"
    forge_json(path, lambda about: about["model"].update(change))
    refuses(message, read_export, "model")


def test_a_run_with_a_model_larger_than_its_rows_takes_no_memory(here):
    def larger(about):
        about["shape"] = [10**10]
        about["parameters"] = [["head.weight", [1, 10**10]], ["head.bias", [1]]]

    forge_json(here / "run" / "model-0.json", larger)
    refuses(r"local-0\.pt is damaged", co.load("run").model, 0)
    # A row that its stride repeats has as many numbers as one likes.
    save(Path("run/models/local-0.pt"), torch.zeros(1).expand(2, 10**10 + 1))
    refuses(r"local-0\.pt is damaged", co.load("run").model, 0)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("metrics", [{"test_loss": "x"}] * 2),
        ("rounds", [{"round": float("nan"), "gradients": 1.0}] * 2),
        ("outcomes", {"client": torch.zeros(3)}),
        ("newcomers", {"client": torch.zeros(3)}),
        ("confusion", {"client": torch.zeros(3)}),
        ("work", {"client": "x"}),
        ("snapshots", ["x"]),
        ("groups", ["x"]),
        ("versions", "x"),
    ],
)
def test_a_cell_with_parts_of_other_kinds_is_called_damaged(here, key, value):
    path = Path("run/cells/local-0.pt")
    save(path, load(path) | {key: value})
    for words in (["report", "run"], ["compare", "run", "other"]):
        refuses(r"(local-0\.pt|task\.json) is damaged", called, *words)
    save(Path("other/models/local-0.pt"), ["x"])
    refuses(r"local-0\.pt is damaged", co.load("other").models)


def test_classes_and_measures_that_no_export_has_are_refused(here):
    path = here / "model" / "model.json"
    whole = path.read_text()
    for change in (
        {"measure": {"name": "os:system", "loss": ""}},
        {"task": "binary", "classes": ["a", "b", "c"]},
    ):
        forge_json(path, lambda about, change=change: about.update(change))
        refuses(r"model\.json is damaged", called, "predict", "model", "new.npz")
        path.write_text(whole)


def test_a_bare_pickle_is_refused_without_a_word_of_torch(here):
    evil = pickle.dumps(Touches())
    signed = evil + hashlib.blake2b(evil, digest_size=16).digest()
    Path("run/cells/local-0.pt").write_bytes(signed)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        refuses(r"local-0\.pt is damaged", called, "report", "run")
    assert not told and not code_ran(here)


def test_line_breaks_of_names_stay_in_the_one_sentence(here):
    message = refused("predict", "no\nmodel", "new.npz")
    assert "no\\nmodel" in message


@pytest.mark.parametrize("name", ["torch", "typer", "sitecustomize", "coterie"])
def test_python_m_coterie_imports_nothing_from_the_current_folder(tmp_path, name):
    (tmp_path / f"{name}.py").write_text("open('PWNED', 'w')\nraise SystemExit(7)\n")
    source = str(Path(co.__file__).parents[1])
    words = [sys.executable, "-m", "coterie", "predict", "no", "new.csv"]
    found = subprocess.run(
        words,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        timeout=120,
    )
    if name == "coterie":  # Python itself looks there first: say `coterie`, then
        assert found.returncode == 7
        return
    assert found.returncode == 2 and "not the folder of an exported" in found.stderr
    assert not code_ran(tmp_path)


@pytest.mark.parametrize("key", ["clients", "features", "classes", "oracles"])
def test_names_that_are_no_text_are_called_damaged(here, key):
    path = Path("run/task.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: [1, ["a"]]}))
    for words in (READING["report"], READING["compare"], READING["export"]):
        refuses(r"task\.json is damaged", called, *words)


@pytest.mark.parametrize(
    ("count", "name"), [(0, "weights.safetensors"), (1, "model.json"), (2, "README.md")]
)
def test_an_export_on_a_full_disk_names_the_file(here, monkeypatch, count, name):
    calls = []

    def full(handle):
        calls.append(handle)
        if len(calls) > count:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=rf"{name} cannot be written: No space left"):
        export_model(co.load("run"), 0, "to")
    assert not Path("to").exists() and not [*Path().glob(".to*")]


def test_a_header_of_an_array_that_does_not_end_is_refused(here):
    header = b"{'descr':'<f8','fortran_order':False,'shape':(" + b"(" * 900 + b"1,2)}"
    with zipfile.ZipFile("new.npz", "w") as archive:
        start = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header))
        archive.writestr("features.npy", start + header)
    with pytest.raises(InputError, match=r"cannot read new\.npz .*header .*damaged"):
        called("predict", "model", "new.npz")


def test_a_client_of_many_digits_is_a_name_that_nobody_has(here):
    refuses("999", called, "export", "run", "--client", "9" * 5000, "--to", "to")


def test_an_output_replaces_neither_a_pipe_nor_a_device(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for force in (False, True):
        refuses("`--out` must be a plain file", refuse_target, pipe, [], force=force)
