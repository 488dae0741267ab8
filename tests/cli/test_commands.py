from __future__ import annotations

import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pandas as pd
import pytest
import tomli_w
import torch

from coterie.algorithms import ALGORITHMS, GROUPS
from coterie.cli import commands as cli
from coterie.cli import tables
from coterie.cli.commands.listings import reference_of
from coterie.records import Folder, load_records
from coterie.report import summary
from coterie.scores.finals import score_named
from coterie.study import experiment
from coterie.study.config import read_study
from support.called import called, refused
from support.made_records import make_records
from support.run_folders import folder_of

TABLES = {
    "name": "tiny",
    "data": {"name": "digits"},
    "split": {"name": "iid", "clients": 4, "max_samples": 30},
    "model": {"name": "mlp", "hidden": [4]},
    "run": {"rounds": 2, "batch_size": 4},
    "algorithm": [{"name": "local", "lr": 0.3}, {"name": "fedavg", "lr": 0.3}],
}


def settle(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Makes this the current folder, with a file study.toml."""
    patch.chdir(folder)
    patch.setattr(sys, "path", [*sys.path])
    patch.setattr(sys, "meta_path", [*sys.meta_path])
    patch.setenv("COLUMNS", "80")
    write()


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """The current folder, with a file study.toml."""
    settle(tmp_path, monkeypatch)
    return tmp_path


@pytest.fixture(scope="module")
def ran(tmp_path_factory) -> tuple[Path, tuple[int, str, str]]:
    """A folder where study.toml was run, and the results of the command."""
    folder = tmp_path_factory.mktemp("ran")
    with pytest.MonkeyPatch.context() as patch:
        settle(folder, patch)
        return folder, called("run", "study.toml", "--quiet")


@pytest.fixture
def run_folder(here, ran) -> Path:
    """The run folder of study.toml, which was run here."""
    shutil.copytree(ran[0] / "runs", "runs")
    (folder,) = Path("runs").glob("[!.]*")
    return folder


def write(name: str = "study.toml", **tables: object) -> None:
    Path(name).write_text(tomli_w.dumps({**TABLES, **tables}))


def test_run_prints_a_table_and_writes_a_report(here, run_folder, ran):
    code, output, errors = ran[1]
    assert (code, errors) == (0, "")
    folder = folder_of(read_study("study.toml"))
    assert folder == run_folder
    for name in ("report.html", "metrics.csv", "rounds.csv", "clients.csv"):
        assert (folder / name).stat().st_size > 0
    assert f"report: {folder / 'report.html'}" in output
    assert "newcomer" not in output
    rows = [line.split() for line in output.splitlines()]
    place = next(k for k, row in enumerate(rows) if row[:1] == ["algorithm"])
    local = next(row for row in rows[place:] if row[:1] == ["local"])
    assert output.startswith("Verdict: ")
    assert [row[0] for row in rows[place:] if row].index("Baselines") > 2
    metrics = pd.read_csv(folder / "metrics.csv").query("round == 2")
    mean = metrics.query("algorithm == 'local'")["test_accuracy"].mean()
    assert float(local[1]) == pytest.approx(100 * mean, abs=0.051)  # per cent
    assert not (here / "weights.npz").exists()


def test_the_table_fits_eighty_columns_without_cutting_words(here, monkeypatch):
    labels = ["adaptive_all_for_one", "fedavg_finetune", "oracle [true clusters]"]
    summary = pd.DataFrame(
        {
            "mean": [0.77221, 0.5, 123.456],
            "standard_error": [0.0123, float("nan"), 0.03],
            "weighted_mean": [0.7734, 0.5, 1.2e-7],
            "worst_client": [0.1, 0.1, 0.1],
            "worst_decile": [0.6389, 0.5, 1.0],
            "gain": [0.1234, -0.01, float("nan")],
            "gain_low": [0.1, float("-inf"), float("nan")],
            "gain_high": [0.1468, float("inf"), float("nan")],
            "gaining": [118, 0, float("nan")],
            "losing": [1, 0, float("nan")],
            "cannot_tell": [1, 120, float("nan")],
            "oracle": [False, False, True],
            "gradients": [0.0, 6400.0, 1.234e12],
            "bytes": [0.0, 1023.0, 1.5 * 2**30],
            "round": [10, 10, 10],
            "seeds": [3, 3, 3],
        },
        index=pd.Index(labels, name="algorithm"),
    )
    with tables.out.capture() as capture:
        monkeypatch.setattr(tables.out, "_width", 80)
        tables.print_summary(summary, score_named("accuracy", True))
    text = capture.get()
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "…" not in text
    for word in ("adaptive_all_for_one", "77.2 ± 1.2 %", "[true", "+/-/?", "1.61 GB"):
        assert word in text
    for word in ("6.4 k", "1.23 T", "1.02 kB", "+12.3 ± 2.3", "-1.0 ± ?", "118/1/1"):
        assert word in text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_names_and_numbers_of_the_table_are_whole_at_any_width(monkeypatch, width):
    labels = ("local", "fedavg", "adaptive_all_for_one")
    table = summary(make_records(labels=labels))
    monkeypatch.setattr(tables.out, "_width", width)
    with tables.out.capture() as capture:
        tables.print_summary(table, score_named("accuracy", True))
    lines = capture.get().splitlines()
    assert max(map(len, lines)) <= width and "…" not in capture.get()
    shown = {
        label: [r.split() for r in lines if r.startswith(label)] for label in labels
    }
    parts = {len(rows) for rows in shown.values()}
    assert parts == ({1} if width > 60 else {2})  # tables, all with all names
    cells = [cell for row in shown["fedavg"] for cell in row]
    assert {"fedavg", "±", "7.68", "k", "192", "kB"} <= set(cells)


def test_list_without_a_kind_lists_all():
    assert called("list")[1].count("what it is") == 10


def test_list_says_which_methods_need_not_wait(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    faces, name = {}, ""
    for line in called("list", "algorithms")[1].splitlines():
        first, _, rest = line.strip().partition(" ")
        name = first if first in ALGORITHMS else name
        if first == "goes" and rest.startswith("by: "):
            faces[name] = rest.removeprefix("by: ")
    assert faces.keys() == ALGORITHMS.keys()
    assert faces["ditto"] == "rounds, time"
    assert faces["fedavg"] == "rounds" and faces["agraf"] == "time"


@pytest.mark.parametrize("columns", ["60", "80", "200"])
def test_list_shows_algorithms_group_by_group(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    lines = [line.strip() for line in called("list", "algorithms")[1].splitlines()]
    titles = {group.title for group in GROUPS}
    shown = []
    for line in lines:
        cell = re.split(r"  +", line)[0]
        shown += [cell] if cell in titles or cell in ALGORITHMS else []
    assert shown == [name for g in GROUPS for name in (g.title, *g.methods)]


def test_list_names_the_reference_of_every_published_method(monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    output = "".join(called("list", "algorithms")[1].split())
    for name, factory in ALGORITHMS.items():
        reference = "".join(reference_of(factory).split())
        assert (reference in output and len(reference) > 20) or name == "local"


def test_a_run_that_is_resumed_by_name_goes_on(run_folder):
    code, output, _ = called(
        "run", "study.toml", "--resume", str(run_folder), "--quiet"
    )
    assert code == 0
    assert str(run_folder) in output
    assert list(Path("runs").glob("[!.]*")) == [run_folder]


def test_labels_may_have_any_signs(here):
    labels = ["a/b", "a b", "[/] [red]x", "μ-σ 学习", "l" * 200]
    write(algorithm=[{"name": "local", "label": label} for label in labels])
    code, output, _ = called("run", "study.toml")
    assert code == 0
    assert "[/] [red]x" in output
    folder = next(Path("runs").glob("[!.]*"))
    assert len(list((folder / "cells").glob("*.pt"))) == len(labels)
    assert load_records(folder).rounds["algorithm"].unique().tolist() == labels


def test_check_fails_a_bad_method(here):
    Path("bad_method.py").write_text(
        textwrap.dedent(
            """
            from coterie.algorithms.local import local

            def forgetful(*, lr: float = 0.1):
                good = local(lr=lr)
                def step(state, oracle, rng):
                    state.x.add_(1.0)
                    return good.step(state, oracle, rng)
                return good._replace(step=step)
            """
        )
    )
    # It fails others too; this one alone takes as long as all of them.
    code, output, _ = called("check", "bad_method:forgetful", "--skip", "known_optimum")
    assert code == 1
    assert "failed" in output


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("algorithm.lrr=1", "no algorithm has an option 'lrr'. Did you mean 'lr'?"),
        ("algorithm.lr=-1", "`lr` must be greater than 0, got -1."),
        ("algorithm.lr=nan", "`lr` must be a finite number, got nan."),
        ("algorithm.lr=inf", "`lr` must be a finite number, got inf."),
        ("algorithm.schedule=step", "schedule"),
        ("algorithm.fedavg.label=local", "two algorithms are called 'local'"),
        ("split.clients=0", "`clients` must be at least 1, got 0."),
        ("split.clients=1000", "1000 clients of at least 10 samples need 10000, but"),
        (
            "split.min_classes=11",
            "`min_classes` is 11, but the training data of client",
        ),
        ("split.colour=3", "[split] iid has no option 'colour'."),
        ("data.colour=3", "[data] digits has no option 'colour'."),
        ("data.name=digit", "Did you mean 'digits'?"),
        ("model.name=cnn", "[model] cnn has no option 'hidden'."),
        ("model.hidden=32", "`model.hidden` must be a list of whole numbers, got 32."),
        ('model.hidden="32"', "must be a list of whole numbers, got '32'."),
        (
            "model.hidden=[-1]",
            "`hidden` must be a list of whole numbers of at least 1, got [-1].",
        ),
        ("run.device=cuda", "`device` cuda needs a CUDA GPU, but torch sees none."),
        ("run.device=tpu", "`run.device` must be cpu or cuda, got 'tpu'."),
    ],
)
def test_a_mistake_gives_one_sentence_and_writes_nothing(
    here, monkeypatch, override, message
):
    if override == "run.device=cuda":
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = refused("run", "study.toml", "--set", override)
    assert message in found


def test_a_study_that_says_what_is_missing_refuses_other_words(here):
    rows = 8 * "0,1,7\n" + "0,1,tall\n"
    Path("my.csv").write_text(f"client,target,a\n{rows}")
    write(data={"name": "file", "path": "my.csv", "missing": ["short"]})
    message = "column 'a' of my.csv holds numbers, but row 10 holds 'tall'"
    assert message in refused("run", "study.toml")


def test_a_disk_that_fills_up_gives_one_sentence(here, capsys, monkeypatch):
    def full(self, cell):
        raise OSError(28, "No space left on device", "cells/local-0.pt")

    monkeypatch.setattr(Folder, "save", full)
    monkeypatch.setattr(sys, "argv", ["coterie", "run", "study.toml", "--quiet"])
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    expected = "Error: cells/local-0.pt cannot be used: No space left on device.\n"
    assert capsys.readouterr().err == expected


def test_resuming_another_study_is_refused(run_folder):
    words = ["--resume", str(run_folder), "--set", "run.rounds=3", "--quiet"]
    found = refused("run", "study.toml", *words)
    assert "`run.rounds` is 3 here and 2 there" in found
    found = refused("run", "study.toml", "--resume", "runs")
    assert found == "there is no run to resume in runs: it has no study.toml."


def test_divergence_gives_one_sentence_and_can_be_reported(here, capsys, monkeypatch):
    words = ["--set", "algorithm.fedavg.lr=1e38", "--quiet"]
    monkeypatch.setattr(sys, "argv", ["coterie", "run", "study.toml", *words])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    error = capsys.readouterr().err
    notice, error = error.splitlines()  # losses are infinite before models are
    assert notice.startswith("fedavg (seed 0): the train loss of client 0 is not fini")
    assert error.startswith("Error: fedavg (seed 0): client 0 has a model that is not")
    folder = next(Path("runs").glob("[!.]*"))
    code, output, _ = called("report", str(folder))
    assert code == 0
    assert (folder / "report.html").exists()
    assert "local" in output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["report", "."], "'.' is not the folder of a run that has begun"),
        (["report", "nowhere"], "'nowhere' is not the folder of a run that has begun"),
        (["report", "study.toml"], "'study.toml' is not the folder of a run"),
        (["check", "locla"], "Did you mean 'local'?"),
        (["check", "local", "--skip", "relabeling"], "Did you mean 'relabelling'?"),
        (["check", "no_such_module:f"], "'no_such_module:f' cannot be imported"),
        (["check", "math:pi"], "must be a function"),
        (["check", "math:sqrt"], "the ingredient `x` is not known"),
        (["reproduce", "philipenko"], "`paper` must be one of"),
    ],
)
def test_other_commands_refuse_in_one_sentence(here, words, message):
    assert message in refused(*words)


def test_an_unknown_item_of_a_paper_is_refused(here):
    from coterie.cli.reproductions import items_of, papers

    paper = sorted(path.parent.name for path in papers().glob("*/items.py"))[0]
    assert items_of(paper)
    found = refused("reproduce", paper, "no_such_item")
    assert "`item` must be one of" in found


ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "80"}
COTERIE = [sys.executable, "-m", "coterie"]


def test_a_real_command_fails_with_code_two_and_no_traceback(here):
    ended = subprocess.run(
        [*COTERIE, "run", "study.toml", "--set", "run.rounds=0"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr == "Error: `run.rounds` must be at least 1, got 0.\n"


def test_a_killed_run_goes_on_as_if_it_had_not_been(here, tmp_path):
    entries = [{"name": "adaptive_all_for_one", "every": 3, "momentum": 0.5}]
    # Sixty rounds, since some pass before the first checkpoint is seen; evaluations
    # would take longer than they.
    run = {"rounds": 60, "batch_size": 4, "checkpoint_seconds": 0.0}
    write(algorithm=entries, run=run | {"evaluate_every": 30})
    study = read_study("study.toml")
    checkpoint = folder_of(study) / "cells" / "adaptive_all_for_one-0.pt"
    words = [*COTERIE, "run", "study.toml", "--quiet"]
    process = subprocess.Popen(words, env=ENVIRONMENT)
    while not checkpoint.exists() and process.poll() is None:
        time.sleep(0.01)  # however long a slow machine takes to begin
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    stopped = Folder(checkpoint.parents[1]).cell("adaptive_all_for_one", 0)
    assert 0 < stopped.t < 60
    assert not stopped.done
    resumed = experiment.run_study(study)
    once = read_study("study.toml", ["run.checkpoint_seconds=1e6"])
    whole = experiment.run_study(once, runs=tmp_path / "whole")
    pd.testing.assert_frame_equal(resumed.records.metrics, whole.records.metrics)
    assert torch.equal(resumed.models(), whole.models())


OWN_DATA = """
import torch
from coterie import Table

def data():
    x = torch.arange(80.0).reshape(40, 2) % 7
    group = torch.arange(40) // 10
    return Table("mine", x, {} * x.sum(1), "regression", 1, group=group)
"""


def test_edited_data_of_ones_own_are_run_anew(here, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    write(data={"name": "edited_data:data"}, split={"name": "natural"})
    shown = []
    for factor in (1.0, 2.0, 1.0):
        (here / "edited_data.py").write_text(OWN_DATA.format(factor))
        importlib.invalidate_caches()
        code, output, _ = called("run", "study.toml", "--quiet")
        sys.modules.pop("edited_data")
        assert code == 0
        shown.append(output)
    assert shown[0] == shown[2] != shown[1]
    assert len(list(Path("runs").glob("[!.]*"))) == 2
