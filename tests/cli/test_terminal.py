"""Claims about the output on a terminal, and about commands that are interrupted."""

from __future__ import annotations

import gc
import glob
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tomli_w

from coterie import __main__ as entry
from coterie.cli import terminal
from coterie.records import Folder, load_records
from support.called import called
from support.tiny_studies import LINEAR

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "80"}
COTERIE = [sys.executable, "-m", "coterie"]
LABEL = "\x1b[31mμ\x07"


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """A folder to work in, with study.toml."""
    monkeypatch.chdir(tmp_path)
    write()
    return tmp_path


def write(method: str = "local", **run: object) -> None:
    entries = [{"name": method, "lr": 0.01, "label": LABEL}]
    tables = {**LINEAR, "algorithm": entries, "run": {"rounds": 2, **run}}
    Path("study.toml").write_text(tomli_w.dumps(tables), encoding="utf-8")


@pytest.fixture(autouse=True)
def ctrl_c():
    """Makes Ctrl-C work as in a terminal, also if a shell started us to ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def start(*words: str) -> subprocess.Popen:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*COTERIE, *words], env=ENVIRONMENT, **pipes)


def test_escape_codes_in_labels_are_shown_and_not_obeyed(here):
    code, output, errors = called("run", "study.toml")
    assert code == 0
    assert "\x1b" not in output + errors
    assert "\\x1b[31mμ" in output
    # Records keep it as it was written.
    (folder,) = Path("runs").glob("[!.]*")
    assert load_records(folder).rounds["algorithm"].unique().tolist() == [LABEL]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[2Jb", "a\\x1b[2Jb"),
        ("\x9b31m\x7f\r", "\\x9b31m\\x7f\\r"),
        ("\u202eright to left\u2066", "\\u202eright to left\\u2066"),
        ("Zürich\tμ\n学", "Zürich\tμ\n学"),
    ],
)
def test_control_characters_are_written_out(text, shown):
    assert terminal.plain(text) == shown


def test_colours_of_our_own_stay(monkeypatch):
    from rich.text import Text

    console = terminal.console()
    monkeypatch.setattr(console, "_color_system", 1)
    with console.capture() as captured:
        console.print(Text.assemble(("Error:", "bold red"), " \x1b[0m"))
    assert captured.get() == "\x1b[1;31mError:\x1b[0m \\x1b[0m\n"


def test_a_closed_pipe_or_a_terminal_without_the_signs_ends_no_run(here):
    reading, writing = os.pipe()
    os.close(reading)  # as in `coterie run study.toml | true`
    ended = subprocess.run(
        [*COTERIE, "run", "study.toml"],
        env=ENVIRONMENT | {"PYTHONIOENCODING": "ascii"},
        stdout=writing,
        stderr=subprocess.PIPE,
    )
    os.close(writing)
    assert ended.returncode == 0, ended
    assert b"\\x1b[31m\\u03bc" in ended.stderr  # the bar
    assert b"Traceback" not in ended.stderr
    assert len(glob.glob("runs/*/report.html")) == 1


SLOW = """
from pathlib import Path
from coterie.algorithms.local import local

def method(*, lr: float = 0.1):
    good = local(lr=lr)
    def step(state, oracle, rng):
        if state.t == 3:
            Path("third").touch()
        return good.step(state, oracle, rng)
    return good._replace(step=step)
"""


def test_a_run_that_is_told_to_end_saves_and_says_how_to_go_on(here):
    Path("slow_method.py").write_text(SLOW)
    run = {"compile": "never", "checkpoint_seconds": 1e6, "evaluate_every": 10**6}
    write("slow_method:method", rounds=10**6, **run)
    process = start("run", "study.toml", "--quiet")
    while not Path("third").exists():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)  # impatient
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, errors
    assert output == ""
    lines = [line for line in errors.splitlines() if not line.startswith("Stopping")]
    assert lines == ["Interrupted: run the same command again to continue."]
    (folder,) = Path("runs").glob("[!.]*")
    assert 3 <= Folder(folder).cell(LABEL, 0).t < 10**6


def test_garbage_is_collected_again_when_all_is_imported(monkeypatch):
    seen = []
    monkeypatch.setattr("coterie.cli.main", lambda: seen.append(gc.isenabled()))
    monkeypatch.setattr(sys, "argv", ["coterie", "list"])
    before = signal.getsignal(signal.SIGINT)
    entry.main()
    signal.signal(signal.SIGINT, before)
    assert seen == [True]


def test_ctrl_c_while_importing_ends_with_a_sentence():
    process = start("run", "study.toml")
    time.sleep(0.4)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == "Interrupted before anything had started.\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["plan", "study.toml", "--quiet"], "no plan was written."),
        (["check", "local"], "not all checks were run."),
        (["report", "nowhere"], "no report was written."),
        (["run", "study.toml"], "nothing had started."),
    ],
)
def test_other_commands_end_with_a_sentence_too(here, monkeypatch, words, sentence):
    def interrupt(*args, **options):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)

    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    for name in (
        "coterie.planning.plans.plan_study",
        "coterie.cli.commands.checks.check_algorithm",
        "coterie.records.load_records",
        "coterie.cli.own_modules.read_study",
    ):
        if words[0] != "plan" or not name.endswith("read_study"):
            monkeypatch.setattr(name, interrupt)
    code, output, errors = called(*words)
    for number, handler in zip((signal.SIGINT, signal.SIGTERM), handlers, strict=True):
        signal.signal(number, handler)
    assert (code, output) == (130, "")
    assert errors == f"Interrupted: {sentence}\n"
    assert not Path("runs").exists()
