"""Claims about archives: what they have, and what they cannot do to who reads them."""

from __future__ import annotations

import json
import shutil
import stat
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from coterie.checks import InputError
from coterie.export import archives
from coterie.export.archives import (
    MANIFEST,
    pack_run,
    read_archive,
    record_in,
    unpack_study,
)
from coterie.study.config import study_of
from coterie.study.experiment import run_study

OWN = """
from pathlib import Path
from own_helpers.rates import rate
from coterie.algorithms.local import local

Path("imported").write_text("by whoever read the archive")

def method(*, lr: float = 0.1):
    return local(lr=rate * lr)
"""
TABLES = {
    "name": "packed",
    "data": {"name": "linear", "clients": 3, "dimension": 2, "samples": 20},
    "model": {"name": "linear", "bias": False},
    "run": {"rounds": 2, "batch_size": 4, "baselines": False},
    "algorithm": [{"name": "own_steps:method", "label": "mine"}],
}
FILES = {
    "own_steps.py": OWN,
    "own_helpers/__init__.py": "",
    "own_helpers/rates.py": "rate = 0.5\n",
}


def forget_modules() -> None:
    for name in [n for n in sys.modules if n.split(".")[0].startswith("own_")]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """The folder of a run with a method of its author; the author's files are gone."""
    home = tmp_path_factory.mktemp("author")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "dont_write_bytecode", True)
        patch.chdir(home)
        patch.syspath_prepend(home / "code")
        for name, text in FILES.items():
            path = home / "code" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        folder = run_study(study_of(TABLES), runs=home / "runs").folder
        forget_modules()
    shutil.rmtree(home / "code")
    return folder


def test_a_run_keeps_copies_of_its_modules_which_nothing_imports(finished):
    copies = {
        path.relative_to(finished / "code").as_posix(): path.read_text()
        for path in (finished / "code").rglob("*.py")
    }
    assert copies == FILES
    assert not any(name.startswith("own_") for name in sys.modules)


def test_an_archive_has_study_code_versions_and_records_but_no_data(finished, tmp_path):
    path = pack_run(finished, tmp_path / "a.zip", models=False)
    names = set(zipfile.ZipFile(path).namelist())
    assert names >= {MANIFEST, "study.toml", "metrics.csv", "versions.csv", "read.json"}
    assert {name for name in names if name.startswith("code/")} == {
        f"code/{name}" for name in FILES
    }
    assert not any(name.endswith(".pt") for name in names)
    assert "outcomes.npz" not in names
    about = json.loads(zipfile.ZipFile(path).read(MANIFEST))
    assert about["versions"]["torch"] == str(torch.__version__)
    with_models = pack_run(finished, tmp_path / "b.zip", models=True)
    more = set(zipfile.ZipFile(with_models).namelist()) - names
    assert more == {"models/mine-0.pt", "model-0.json"}


def test_the_same_run_gives_the_same_archive(finished, tmp_path):
    one, two = (pack_run(finished, tmp_path / n, models=True) for n in ("a.zip", "b"))
    assert one.read_bytes() == two.read_bytes()
    with pytest.raises(InputError, match=r"`--out` must be a new file"):
        pack_run(finished, one, models=True)


def test_a_module_that_has_changed_is_not_packed(finished, tmp_path):
    copy = shutil.copytree(finished, tmp_path / "copy")
    (copy / "code" / "own_steps.py").write_text("different = 1\n")
    with pytest.raises(InputError, match="no copy of the module own_steps as it was"):
        pack_run(copy, tmp_path / "a.zip", models=False)
    assert not (tmp_path / "a.zip").exists()


def test_links_in_a_run_folder_are_not_followed(finished, tmp_path):
    copy = shutil.copytree(finished, tmp_path / "copy")
    (tmp_path / "secret").write_text("secret")
    (copy / "extra.csv").symlink_to(tmp_path / "secret")
    path = pack_run(copy, tmp_path / "a.zip", models=False)
    assert "extra.csv" not in zipfile.ZipFile(path).namelist()


def test_what_is_no_run_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"is not a run folder: it has no study\.toml"):
        pack_run(tmp_path, models=False)


def test_unpacking_gives_the_study_with_its_modules_next_to_it(finished, tmp_path):
    found = read_archive(pack_run(finished, tmp_path / "a.zip", models=False))
    study = unpack_study(found, tmp_path / "to")
    assert study == tmp_path / "to" / "study.toml"
    assert study.read_bytes() == (finished / "study.toml").read_bytes()
    for name, text in FILES.items():
        assert (tmp_path / "to" / name).read_text() == text
    assert record_in(found, "metrics.csv") == (finished / "metrics.csv").read_bytes()
    assert record_in(found, "rounds.txt") is None


# What others may send


def rewritten(finished, to: Path, change) -> Path:
    """An archive after `change` of its files, a dictionary of names and contents."""
    path = pack_run(finished, to / "good.zip", models=False)
    with zipfile.ZipFile(path) as zipped:
        files = {name: zipped.read(name) for name in zipped.namelist()}
    about = json.loads(files.pop(MANIFEST))
    change(files, about)
    bad = to / "bad.zip"
    with zipfile.ZipFile(bad, "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr(MANIFEST, json.dumps(about))
        for name, content in files.items():
            zipped.writestr(name, content)
    return bad


def listed(name: str, content: bytes = b"x = 1\n"):
    """A change that adds a file, also to the manifest."""

    def change(files, about):
        files[name] = content
        about["files"][name] = archives._sum(content)

    return change


NAMES = (
    *("../outside.py", "code/../../outside.py", "/outside.py", "code//a.py"),
    *("code\\..\\a.py", "C:/a.py", "code/.hidden.py", "code/a.pth", "code/-m\n.py"),
    *("code/a.so", "code/./a.py", "code/"),
)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_leaves_its_folder_or_is_no_module_is_refused(
    finished, tmp_path, name
):
    bad = rewritten(finished, tmp_path, listed(name))
    with pytest.raises(InputError, match=r"is not an archive of a run") as e:
        read_archive(bad)
    assert "\n" not in str(e.value)
    assert {path.name for path in tmp_path.iterdir()} == {"good.zip", "bad.zip"}


def linked(files, about):
    info = zipfile.ZipInfo("code/link.py")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    files[info] = b"/etc/passwd"
    about["files"]["code/link.py"] = archives._sum(b"/etc/passwd")


def unlisted(files, about):
    files["code/more.py"] = b"x = 1\n"


def missing(files, about):
    del files["study.toml"]


def altered(files, about):
    files["code/own_steps.py"] += b"# more\n"


def twice(files, about):
    listed("code/Own_Steps.py")(files, about)


def later(files, about):
    about["format"] = 99


def nonsense(files, about):
    about["files"] = 3


def without_code(files, about):
    name = about["modules"]["own_steps"]
    del files[name], about["files"][name]


def both_file_and_folder(files, about):
    listed("code/own_a.py")(files, about)
    listed("code/own_a.py/b.py")(files, about)


def endless_format(files, about):
    about["format"] = float("inf")


BAD = {
    both_file_and_folder: r"code/own_a\.py/b\.py cannot be written",
    endless_format: "its manifest is damaged",
    linked: "is not a plain file",
    unlisted: "its files are not those that its manifest lists",
    missing: "its files are not those that its manifest lists",
    altered: r"code/own_steps\.py was changed",
    twice: "it has two files",
    later: "by a later version of coterie",
    nonsense: "its manifest is damaged",
    without_code: "it lacks the code of own_steps",
}


@pytest.mark.parametrize("change", BAD, ids=lambda change: change.__name__)
def test_an_archive_that_is_not_as_it_says_is_refused(finished, tmp_path, change):
    bad = rewritten(finished, tmp_path, change)
    with pytest.raises(InputError, match=BAD[change]):
        unpack_study(read_archive(bad), tmp_path / "to")


def test_files_that_are_too_large_are_refused_before_they_are_in_memory(
    finished, tmp_path, monkeypatch
):
    """A megabyte of zeros takes a kilobyte in an archive."""
    monkeypatch.setattr(archives, "_MOST_TEXT", 2**16)
    bad = rewritten(finished, tmp_path, listed("code/big.py", bytes(2**20)))
    assert bad.stat().st_size < 2**15
    with pytest.raises(InputError, match=r"code/big\.py has more than 65536 bytes"):
        unpack_study(read_archive(bad), tmp_path / "to")
    monkeypatch.setattr(archives, "_MOST_TEXT", 2**21)
    monkeypatch.setattr(archives, "_MOST_CODE", 2**20)
    for read in (archives.code_of, lambda bad: unpack_study(bad, tmp_path / "more")):
        with pytest.raises(InputError, match="its code has more than 1048576 bytes"):
            read(read_archive(bad))
    monkeypatch.setattr(archives, "_MOST_FILES", 5)
    with pytest.raises(InputError, match="more than 5 files"):
        read_archive(bad)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_files_that_are_compressed_by_other_methods_are_refused(tmp_path, method):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", method) as zipped:
        zipped.writestr(MANIFEST, "{}")
    with pytest.raises(InputError, match="is compressed by an unusual method"):
        read_archive(path)


def test_an_archive_for_later_tools_is_refused(tmp_path):
    """The directory of an archive says which version can read each file."""
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as zipped:
        zipped.writestr(MANIFEST, "{}")
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + 6] = 99
    path.write_bytes(content)
    with pytest.raises(InputError, match="because it is damaged"):
        read_archive(path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 nonsense", bytes(1000)])
def test_what_is_no_archive_is_refused(tmp_path, content):
    path = tmp_path / "a.zip"
    path.write_bytes(content)
    with pytest.raises(InputError, match="because it is damaged"):
        read_archive(path)
    with pytest.raises(InputError, match="is not a file"):
        read_archive(tmp_path)
