"""Files that cannot change unnoticed, and a folder that only one process has."""

from __future__ import annotations

import errno
import shutil
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from coterie.checks import InputError
from coterie.records.files import load, locked, save, write, writing

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
        with pytest.raises(InputError, match=r"v\.pt is damaged and cannot be read"):
            load(path)
    for rest in (whole[:-1], whole[1:], whole + b"\0", whole[:10], b""):
        path.write_bytes(rest)
        with pytest.raises(InputError, match="is damaged"):
            load(path)


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


def test_a_folder_is_had_by_one_at_a_time(tmp_path):
    folder = tmp_path / "new" / "run"
    for _ in range(2):
        with (
            locked(folder),
            pytest.raises(InputError, match="run is in use by another process"),
            locked(folder),
        ):
            raise AssertionError("two had it")


HOLDS = """
import sys, time
from pathlib import Path
from coterie.records.files import locked

with locked(Path(sys.argv[1])):
    print("mine", flush=True)
    time.sleep(600)
"""


def test_a_process_that_is_killed_lets_go(tmp_path):
    words = [sys.executable, "-c", HOLDS, str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "mine\n"
        with pytest.raises(InputError, match="is in use"), locked(tmp_path):
            pass
        process.send_signal(signal.SIGKILL)
        process.wait()
    with locked(tmp_path):
        pass
