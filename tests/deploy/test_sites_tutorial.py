"""Claims about the tutorial of sites: its very commands lead to three own reports."""

from __future__ import annotations

import glob
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import coterie as co
from support.called import called

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial_sites.md").read_text(encoding="utf-8")
NAMES = ("Aarau", "Basel", "Bern")
_BLOCK = re.compile(r"(?:`([\w/]+\.toml)`:\n\n)?^```(sh|toml)\n(.*?)^```$", re.M | re.S)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Shell:
    """Does the commands of the page: ours in this process, except those with `&`."""

    def __init__(self) -> None:
        self.behind: dict[str, subprocess.Popen[str]] = {}

    def do(self, line: str) -> str:
        if not line.startswith("coterie "):
            subprocess.run(line, shell=True, check=True)
            return ""
        words = [w for word in shlex.split(line)[1:] for w in glob.glob(word) or [word]]
        if words[-1] == "&":
            self._begin(words[:-1])
            return ""
        code, shown, errors = called(*words)
        assert code == 0, (line, shown, errors)
        return shown

    def _begin(self, words: list[str]) -> None:
        name = words[0] if words[0] == "hub" else words[-1].split("/")[0]
        self.behind[name] = subprocess.Popen(
            [sys.executable, "-m", "coterie", *words],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def ends(self) -> dict[str, str]:
        """What the commands with `&` have printed; raises if one fails."""
        found = {}
        for name, process in self.behind.items():
            found[name] = process.communicate(timeout=90)[0]
            assert process.returncode == 0, found[name]
        return found

    def close(self) -> None:
        for process in self.behind.values():
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()


@pytest.fixture
def shell(tmp_path, monkeypatch):
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    found = Shell()
    yield found
    found.close()


def wait_for_port(port: int) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise TimeoutError("the hub did not listen.")


def test_three_terminals_lead_from_a_plan_to_three_own_reports(shell, tmp_path):
    port, said = free_port(), {}
    for name, kind, text in _BLOCK.findall(PAGE):
        text = text.replace("8443", str(port)).replace("\\\n", "")
        if kind == "toml":
            quick = text.replace("rounds = 20", "rounds = 3")
            (tmp_path / name).write_text(quick)
            continue
        for line in text.splitlines():
            said[line] = shell.do(line)
            if line.startswith("coterie hub"):
                wait_for_port(port)
        if line.startswith("coterie join") and "Bern" in line:
            ends = shell.ends()
    assert all("results: " in ends[name] for name in NAMES)
    assert ends["hub"].splitlines()[-1].startswith("done")
    for name in NAMES:
        (folder,) = tmp_path.glob(f"{name}/runs/hospitals-*")
        assert (folder / "report.html").is_file()
        assert co.load(folder).records.clients["name"].unique().tolist() == [name]
    ready = next(text for line, text in said.items() if line.endswith("--check"))
    assert ready.endswith("This site is ready.\n")
    signed = [text for line, text in said.items() if "approve" in line]
    assert signed[-1].endswith("Every member has signed.\n")


def test_the_page_shows_what_the_plan_says(tmp_path, monkeypatch):
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    (text,) = (text for name, _, text in _BLOCK.findall(PAGE) if name == "study.toml")
    (tmp_path / "study.toml").write_text(text)
    shown = called("plan", "study.toml")[1]
    start = re.search(r"^```\n(Join.*?)^```$", PAGE, re.M | re.S)
    assert start is not None
    assert " ".join(shown.split()).startswith(" ".join(start[1].split()))
