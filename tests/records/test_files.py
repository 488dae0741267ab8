"""Claims about files that cannot change unnoticed, and about locked folders."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from coterie.checks import InputError
from coterie.records import files
from coterie.records.files import (
    in_use,
    load,
    lock_folder,
    refuse_target,
    replacing,
    save,
    write,
    writing,
)
from support.refusals import refuses

VALUES = {"t": 3, "x": torch.arange(12.0).reshape(3, 4), "empty": torch.zeros(0)}
FULL = [
    OSError(errno.ENOSPC, "No space left on device"),
    RuntimeError(
        "[enforce fail at inline_container.cc:659] . unexpected pos 64\nframes"
    ),
]


def test_values_come_back_also_without_us(tmp_path):
    save(tmp_path / "v.pt", VALUES)
    for again in (load(tmp_path / "v.pt"), torch.load(tmp_path / "v.pt")):
        assert again["t"] == 3
        assert torch.equal(again["x"], VALUES["x"])


def test_no_byte_can_change_or_go_missing_unnoticed(tmp_path):
    path = tmp_path / "v.pt"
    save(path, VALUES)
    whole = path.read_bytes()
    for place in range(0, len(whole), 11):
        flipped = bytearray(whole)
        flipped[place] ^= 0xFF
        path.write_bytes(flipped)
        refuses(r"v\.pt is damaged and cannot be read", load, path)
    for rest in (whole[:-1], whole[1:], whole + b"\0", whole[:10], b""):
        path.write_bytes(rest)
        refuses("is damaged", load, path)


@pytest.mark.parametrize("error", FULL)
def test_a_full_disk_gives_a_sentence_and_leaves_what_was_there(tmp_path, error):
    path = tmp_path / "table.csv"
    write(path, "old")
    with (
        pytest.raises(InputError, match=r"table\.csv cannot be written: ") as caught,
        writing(path) as file,
    ):
        file.write_text("half of i")
        raise error
    assert str(caught.value).endswith("; what was saved before is intact.")
    assert "\n" not in str(caught.value)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_torchs_error_on_a_full_disk_is_told_as_one(tmp_path, monkeypatch):
    full = SimpleNamespace(free=100)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: full)
    with (
        pytest.raises(InputError, match="cannot be written: No space left on device;"),
        writing(tmp_path / "cell.pt"),
    ):
        raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos")


def test_one_process_at_a_time_locks_a_folder(tmp_path):
    folder = tmp_path / "new" / "run"
    for _ in range(2):
        with (
            lock_folder(folder),
            pytest.raises(InputError, match="run is in use by another process"),
            lock_folder(folder),
        ):
            raise AssertionError("two had it")


HOLDS = """
import sys, time
from pathlib import Path
from coterie.records.files import lock_folder

with lock_folder(Path(sys.argv[1])):
    print("mine", flush=True)
    time.sleep(600)
"""


def test_a_killed_process_releases_its_lock(tmp_path):
    words = [sys.executable, "-c", HOLDS, str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "mine\n"
        with pytest.raises(InputError, match="is in use"), lock_folder(tmp_path):
            pass
        process.send_signal(signal.SIGKILL)
        process.wait()
    with lock_folder(tmp_path):
        pass


@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "folder"])
def test_a_lock_that_is_no_plain_file_is_refused_and_left_alone(tmp_path, kind):
    precious = tmp_path / "precious"
    precious.write_text("all I have")
    folder = tmp_path / "run"
    folder.mkdir()
    lock = folder / "lock"
    {
        "link": lambda: lock.symlink_to("../precious"),
        "dangling link": lambda: lock.symlink_to("../new"),
        "pipe": lambda: os.mkfifo(lock),
        "folder": lock.mkdir,
    }[kind]()
    with (
        pytest.raises(InputError, match="lock must be a plain file"),
        lock_folder(folder),
    ):
        raise AssertionError("it was taken")
    if kind != "folder":
        refuses("lock must be a plain file", in_use, folder)
    assert precious.read_text() == "all I have"
    assert not (tmp_path / "new").exists()


def test_a_lock_is_not_emptied(tmp_path):
    (tmp_path / "precious").write_text("all I have")
    folder = tmp_path / "run"
    folder.mkdir()
    os.link(tmp_path / "precious", folder / "lock")
    with lock_folder(folder) as has_locks:
        assert has_locks
    assert (tmp_path / "precious").read_text() == "all I have"


def test_without_locks_a_run_is_refused_or_says_so(tmp_path, monkeypatch):
    def broken(handle, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(files.fcntl, "flock", broken)
    with lock_folder(tmp_path) as has_locks:
        assert not has_locks
    assert in_use(tmp_path) is None
    monkeypatch.setattr(files, "fcntl", None)
    refuses("file locks of Linux or macOS", in_use, tmp_path)
    with pytest.raises(InputError, match="Linux or macOS"), lock_folder(tmp_path):
        raise AssertionError("it was taken")


def test_what_a_killed_run_had_not_finished_is_deleted_and_nothing_else(tmp_path):
    for place in ("cells", "models", "tuning", "mine"):
        (tmp_path / place).mkdir()
    gone = [
        ".metrics.csv.abc_1234",
        "cells/.local-0.pt.zzzzzzz1",
        "models/.a.pt.00000000",
    ]
    kept = [".hidden", ".a.short", "mine/.b.pt.00000000", "cells/local-0.pt"]
    kept += [".report.html.abcdefgh"]  # which somebody may be writing
    gone += [".watch.html.abcdefgh"]
    for name in (*gone, *kept):
        (tmp_path / name).touch()
    os.utime(tmp_path / ".watch.html.abcdefgh", (0, 0))
    (tmp_path / ".link.csv.abcdefgh").symlink_to(tmp_path / "cells/local-0.pt")
    with lock_folder(tmp_path):
        pass
    assert not any((tmp_path / name).exists() for name in gone)
    assert all((tmp_path / name).exists() for name in (*kept, ".link.csv.abcdefgh"))


def test_a_full_disk_names_the_file_also_where_the_system_does_not(tmp_path):
    with pytest.raises(OSError) as caught, replacing(tmp_path / "report.html"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.filename == str(tmp_path / "report.html")
    with pytest.raises(OSError) as caught, replacing(tmp_path / "no" / "a.html"):
        pass
    assert caught.value.filename == str(tmp_path / "no" / "a.html")
    assert list(tmp_path.iterdir()) == []


def test_a_target_that_is_the_input_or_of_a_folder_of_ours_is_refused(tmp_path):
    mine = tmp_path / "mine.csv"
    mine.write_text("a\n1\n")
    (tmp_path / "link.csv").symlink_to(mine)
    os.link(mine, tmp_path / "hard.csv")
    other = tmp_path / "other.csv"
    other.write_text("b")
    for name in ("mine.csv", "link.csv", "hard.csv", "x/../mine.csv"):
        (tmp_path / "x").mkdir(exist_ok=True)
        for force in (False, True):
            with pytest.raises(InputError, match="must not be the input"):
                refuse_target(tmp_path / name, [mine], force=force)
    with pytest.raises(InputError, match=r"must be a new file, but .* use --force"):
        refuse_target(other, [mine], force=False)
    refuse_target(other, [mine], force=True)
    refuse_target(tmp_path / "new.csv", [mine], force=False)
    run, model = tmp_path / "run", tmp_path / "model"
    (run / "cells").mkdir(parents=True)
    (run / "study.toml").touch()
    model.mkdir()
    (model / "model.json").touch()
    (tmp_path / "into").symlink_to(run)
    for name in ("run/new.csv", "run/cells/new.csv", "model/new.csv", "into/x.csv"):
        with pytest.raises(InputError, match="must not be in the folder of"):
            refuse_target(tmp_path / name, [mine], force=True)
    for name in ("study.toml", "x/model.json"):
        refuses("must be a table", refuse_target, tmp_path / name, [mine], force=True)
    refuses("is a folder", refuse_target, tmp_path / "x", [mine], force=True)
