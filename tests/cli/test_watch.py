"""Claims about the command `watch`."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

from coterie.cli.commands import watching
from coterie.records import lock_folder
from coterie.records.files import in_use
from coterie.records.standings import standings_of
from coterie.study.experiment import Progress, run_study
from support import study_runs
from support.called import called
from support.made_records import usual_page
from support.tiny_studies import made

LABEL = "adaptive_all_for_one <b>& more</b>"
ENTRIES = [{"name": "local", "lr": 0.3}, {"name": "fedavg", "label": LABEL}]
STUDY = made(algorithm=ENTRIES, name="a study")


@pytest.fixture
def stopped_run(tmp_path) -> Path:
    """The folder of a run that stopped after two of the second algorithm's rounds."""
    study_runs.stopped(STUDY, lambda p: (p.label, p.t) == (LABEL, 2), runs=tmp_path)
    (folder,) = tmp_path.glob("[!.]*")
    return folder


def test_standings_follow_the_run(tmp_path):
    seen = []

    def look(p: Progress) -> None:
        (folder,) = tmp_path.glob("[!.]*")
        assert in_use(folder)
        found = standings_of(folder)
        (cell,) = (cell for cell in found.cells if cell.label == p.label)
        assert cell.round == p.t
        assert cell.scores[-1] == pytest.approx(p.score)
        assert (found.measure, found.higher_is_better) == ("accuracy", True)
        seen.append(found.is_finished)

    run_study(STUDY, runs=tmp_path, progress=look)
    assert seen == [False] * 7 + [True]
    (folder,) = tmp_path.glob("[!.]*")
    assert in_use(folder) is False


def test_half_a_line_and_labels_like_numbers_are_read_as_they_are(tmp_path):
    numbered = [{"name": "local", "label": "1"}, {"name": "local", "label": "NA"}]
    folder = run_study(made(algorithm=numbered), runs=tmp_path).folder
    whole = standings_of(folder)
    assert [cell.round for cell in whole.cells] == [4, 4]
    with (folder / "metrics.csv").open("a") as file:
        file.write("1,0,9,0,0.1")
    assert standings_of(folder) == whole


def test_a_run_is_followed_to_its_end(stopped_run, monkeypatch):
    pages, lock = [], lock_folder(stopped_run)
    lock.__enter__()

    def meanwhile(seconds: float) -> None:
        pages.append((stopped_run / "watch.html").read_text())
        if lock.gen.gi_frame is not None:  # the run goes on, and ends
            lock.__exit__(None, None, None)
            run_study(STUDY, runs=stopped_run.parent)

    monkeypatch.setattr(watching.time, "sleep", meanwhile)
    code, output, errors = called("watch", str(stopped_run), "--page")
    assert code == 0
    assert errors == "The run has ended.\n"
    assert "4/4" in output and "100.0 % of the rounds; accuracy, higher is" in output
    assert f"page: {stopped_run / 'watch.html'}" in output.replace("\n", "")
    assert len(pages) == 1
    assert 'http-equiv="refresh"' in pages[0] and "2/4" in pages[0]
    final = (stopped_run / "watch.html").read_text()
    assert "refresh" not in final and "The run has ended." in final
    assert "2/4" not in final and final.count("<polyline") == 2
    assert "<b>" not in final and html.escape(LABEL) in final


def test_ctrl_c_ends_the_watching_with_a_word(stopped_run, monkeypatch):
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(watching.time, "sleep", interrupt)
    with lock_folder(stopped_run):
        code, _, errors = called("watch", str(stopped_run))
    assert (code, errors) == (130, "Stopped watching; the run itself goes on.\n")


@pytest.mark.parametrize("columns", ["60", "80", "120"])
def test_what_nobody_runs_is_shown_once_and_no_name_is_cut(
    stopped_run, monkeypatch, columns
):
    monkeypatch.setattr(watching.out, "_width", int(columns))
    monkeypatch.setattr(watching.time, "sleep", pytest.fail)
    code, output, errors = called("watch", str(stopped_run))
    assert code == 0
    assert errors.startswith("Nobody runs it: it stopped before its end.")
    assert "…" not in output
    assert max(len(line) for line in output.splitlines()) <= int(columns), output
    assert "adaptive_all_for_one" in output and "2/4" in output
    assert re.search(r"\d\d\.\d %", output)
    assert not (stopped_run / "watch.html").exists()


def test_where_no_run_is_watching_is_refused(tmp_path):
    from coterie.checks import InputError

    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(InputError, match=r"there is no run to watch in .*toml\.$"):
            called("watch", str(folder))


def test_before_the_first_evaluation_there_is_a_table_too(stopped_run):
    for name in ("metrics.csv", "task.json"):
        (stopped_run / name).unlink()
    code, output, _ = called("watch", str(stopped_run), "--page")
    assert code == 0
    assert "0.0 % of the rounds" in output


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize(("dark", "ink"), [(True, 221), (False, 34)])
def test_the_page_fits_a_phone_and_a_desk_light_and_dark(
    browser, stopped_run, width, dark, ink
):
    called("watch", str(stopped_run), "--page")
    probe = """return [over(document.documentElement), over(all(".scroll")[0]),
        getComputedStyle(document.body).color, all("svg.curves polyline").length]"""
    found = browser.seen(stopped_run / "watch.html", probe, width=width, dark=dark)
    assert found == [0, 0, f"rgb({ink}, {ink}, {ink})", 2]


def test_the_page_runs_no_script_and_has_the_head_of_a_report(stopped_run, tmp_path):
    called("watch", str(stopped_run), "--page")
    page = (stopped_run / "watch.html").read_text()
    assert "<script" not in page and "script-src" not in page
    other = usual_page()
    style = re.search("<style>.*?</style>", page, flags=re.DOTALL)[0]
    assert style in other
    assert '<meta name="viewport"' in page and '<meta name="viewport"' in other
