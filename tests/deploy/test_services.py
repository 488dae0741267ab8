"""Claims about the Dockerfile and the units for systemd: their commands work."""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from support.called import called
from support.site_folders import site_folders

FOLDER = Path(__file__).parents[2] / "examples" / "sites"
DOCKERFILE = (FOLDER / "Dockerfile").read_text()


def unit(name: str) -> configparser.ConfigParser:
    found = configparser.ConfigParser()
    found.optionxform = str
    found.read(FOLDER / f"coterie-{name}.service")
    return found


def commands(word: str) -> list[list[str]]:
    """What the unit and the Dockerfile let coterie do, for `hub` or `join`."""
    name = {"hub": "hub", "join": "member"}[word]
    first, *words = unit(name)["Service"]["ExecStart"].split()
    assert first.endswith("/coterie")
    shown = re.findall(rf"coterie-site ({word} .*)", DOCKERFILE)
    return [words, *(line.split() for line in shown)]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with the files of a hub and of a member, as the units expect them."""
    site_folders(tmp_path, hub="127.0.0.1:1")
    for place in ("hub/hub.key", "hub/roster.toml", "Bern/Bern.key", "Bern/Bern.crt"):
        shutil.copy(tmp_path / "demo" / place, tmp_path)
    shutil.copy(tmp_path / "demo" / "Bern" / "Bern.csv", tmp_path)
    shutil.copy(tmp_path / "demo" / "Bern" / "site.toml", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_members_start_by_these_commands(here):
    for words in commands("join"):
        code, shown, _ = called(*words, "--check")
        assert code == 1 and "nobody listens there" in shown  # there is no hub


def test_a_hub_starts_by_these_commands_without_torch_and_ends_by_sigterm(here):
    script = (
        "import sys; from coterie.__main__ import main\n"
        "try: main()\n"
        "finally: print('torch' in sys.modules, 'pandas' in sys.modules)"
    )
    for words in commands("hub"):
        words = [re.sub(r"0\.0\.0\.0:\d+", "127.0.0.1:0", word) for word in words]
        process = subprocess.Popen(
            [sys.executable, "-c", script, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
        assert process.stdout is not None
        first = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        rest, errors = process.communicate(timeout=30)
        assert first.startswith("the hub listens at port "), errors
        assert process.returncode == 143, errors
        assert rest.endswith("False False\n")


def test_units_go_on_after_a_restart_and_can_write_to_their_folder_only():
    for name in ("hub", "member"):
        service = unit(name)["Service"]
        assert service["Restart"] == "on-failure"
        assert service["SuccessExitStatus"] == "143"
        assert service["ReadWritePaths"] == service["WorkingDirectory"]
        assert unit(name)["Install"]["WantedBy"] == "multi-user.target"


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd")
@pytest.mark.parametrize("name", ["hub", "member"])
def test_systemd_understands_the_units(tmp_path, name):
    text = (FOLDER / f"coterie-{name}.service").read_text()
    text = re.sub(r"/opt/coterie/bin/coterie", "/bin/true", text)
    path = tmp_path / f"coterie-{name}.service"
    path.write_text(text)
    words = ["systemd-analyze", "verify", "--man=no", str(path)]
    run = subprocess.run(words, capture_output=True, text=True)
    assert path.name not in run.stderr, run.stderr


def test_the_image_runs_coterie():
    lines = [line for line in DOCKERFILE.splitlines() if not line.startswith("#")]
    keys = {line.split()[0]: line.partition(" ")[2] for line in lines}
    assert json.loads(keys["ENTRYPOINT"]) == ["coterie"]
    assert json.loads(keys["CMD"]) == ["--help"]
    assert "'/src[sites]'" in keys["RUN"] and keys["WORKDIR"] == "/site"
    root = FOLDER.parents[1]
    (pinned,) = re.findall(r"-c /src/(\S+)", keys["RUN"])  # COPY . /src
    versions = [line.partition("==")[0] for line in (root / pinned).read_text().split()]
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    for one in extras["optional-dependencies"]["sites"]:
        assert re.split(r"[<>=]", one)[0] in versions
