"""Claims about what is shown while a study runs."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from coterie.cli import progress
from coterie.cli.progress import study_progress
from coterie.study.experiment import Progress

LONG = "adaptive_all_for_one, cautious, with a label that takes a line of its own"


def progress_at(t: int, score: float | None = None, **changes) -> Progress:
    where = {"label": "fedavg", "seed": 3, "t": t, "rounds": 8, "done": t, "total": 16}
    measured = {"score": score, "measure": "accuracy", "higher_is_better": True}
    return Progress(**(where | measured | changes))


def output_of(*calls: Progress, terminal: bool, width: int = 80) -> str:
    """The output when a study reports this progress."""
    file = io.StringIO()
    console = Console(
        file=file, force_terminal=terminal, width=width, color_system=None
    )
    with study_progress(console, "study") as show:
        for call in calls:
            show(call)
    return file.getvalue()


def test_without_a_terminal_there_is_a_line_when_an_algorithm_ends():
    lines = output_of(
        progress_at(1, 0.5), progress_at(8, 0.7716), terminal=False
    ).splitlines()
    (line,) = lines
    assert line.startswith(
        "fedavg, seed 3: round 8 of 8, validation accuracy 77.2 % (higher is better); "
        "8 of 16 rounds in all, about "
    )
    assert line.endswith(" left")


def test_without_a_terminal_there_is_a_line_every_few_seconds(monkeypatch):
    now = iter([0.0, 4.0, 9.0, 11.0, 12.0, 22.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    calls = [
        progress_at(1),
        progress_at(2, 0.25),
        progress_at(3),
        progress_at(4),
        progress_at(5, score=0.5),
    ]
    lines = output_of(*calls, terminal=False).splitlines()
    assert [line.split(",")[1] for line in lines] == [
        " seed 3: round 3 of 8",
        " seed 3: round 5 of 8",
    ]
    # Between evaluations the last score stands; 3 rounds took 11 seconds, 13 are left.
    assert "validation accuracy 25.0 %" in lines[0]
    assert lines[0].endswith("3 of 16 rounds in all, about 48 s left")
    assert lines[1].endswith("about 48 s left")  # 5 took 22, 11 are left


def test_what_was_finished_before_does_not_make_the_rest_look_quick(monkeypatch):
    now = iter([0.0, 0.0, 10.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    calls = [progress_at(8, label="local", reused=True), progress_at(1, done=9)]
    lines = output_of(*calls, terminal=False).splitlines()
    # Nothing is known of eight rounds that were read. Then one takes ten seconds.
    assert lines[0].endswith("; 8 of 16 rounds in all")
    assert lines[1].endswith("; 9 of 16 rounds in all, about 70 s left")


def test_a_measure_that_is_no_share_keeps_its_unit_and_direction():
    call = progress_at(8, 0.123456, measure="loss", higher_is_better=False)
    line = output_of(call, terminal=False)
    assert "validation loss 0.1235 (lower is better);" in line
    assert "%" not in line


def test_the_score_of_one_algorithm_is_not_shown_for_the_next():
    line = output_of(progress_at(2, 0.5), progress_at(8, label="local"), terminal=False)
    assert "accuracy" not in line


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_name_is_cut_on_a_terminal(width):
    text = output_of(progress_at(2, 0.5, label=LONG), terminal=True, width=width)
    words = " ".join(text.split())
    assert LONG in words and "…" not in text
    assert "validation accuracy 50.0 % (higher is better)" in words
    assert "2/16" in words


def test_quiet_shows_nothing():
    file = io.StringIO()
    with study_progress(Console(file=file), "study", quiet=True) as show:
        show(progress_at(8, 0.5))
    assert file.getvalue() == ""
