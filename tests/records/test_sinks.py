"""Claims about sinks: what they receive, and that no result depends on them."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import pandas as pd
import pytest

from coterie.records.sinks import SINKS
from coterie.study.experiment import run_study
from coterie.study.identity import identity_of
from support.refusals import refusal
from support.study_runs import refused, stopped, together
from support.tiny_studies import ROUNDS, made

LABELS = ("local", "fedavg")


class Listener:
    """Replaces all three packages, and lists what they receive in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, fails: bool = False) -> None:
        self.begun: list[str] = []
        self.points: list[tuple[str, str, float, int]] = []
        self.ended: list[str] = []
        self.fails = fails
        self._add_module(monkeypatch, "tensorboard")
        self._add_module(
            monkeypatch, "torch.utils.tensorboard", SummaryWriter=self._writer
        )
        self._add_module(monkeypatch, "mlflow", MlflowClient=self._client)
        self._add_module(monkeypatch, "wandb", init=self._init)

    def _add_module(self, monkeypatch, name: str, **content: object) -> None:
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)

    def _point(self, run: str, name: str, value: float, step: int) -> None:
        if self.fails:
            raise OSError("the service does not answer.\nmore")
        self.points.append((run, name, value, step))

    def _writer(self, place: str) -> SimpleNamespace:
        run = place.split("/")[-1]
        self.begun.append(run)
        return SimpleNamespace(
            add_scalar=lambda name, value, step: self._point(run, name, value, step),
            flush=lambda: None,
            close=lambda: self.ended.append(run),
        )

    def _client(self) -> SimpleNamespace:
        def create_run(place: str, run_name: str, tags: dict) -> SimpleNamespace:
            assert place == "7" and set(tags) == {"coterie.folder"}
            self.begun.append(run_name)
            return SimpleNamespace(info=SimpleNamespace(run_id=run_name))

        return SimpleNamespace(
            get_experiment_by_name=lambda name: None,
            create_experiment=lambda name: "7",
            create_run=create_run,
            log_param=lambda run, name, value: None,
            log_metric=lambda run, name, value, step: self._point(
                run, name, value, step
            ),
            set_terminated=self.ended.append,
        )

    def _init(self, *, name: str, config: dict, resume: str, **_) -> SimpleNamespace:
        assert config["lr"] == 0.3 and resume == "allow"
        self.begun.append(name)

        def log(values: dict, step: int) -> None:
            for key, value in values.items():
                self._point(name, key, value, step)

        return SimpleNamespace(log=log, finish=lambda: self.ended.append(name))


@pytest.mark.parametrize("name", SINKS)
def test_a_sink_hears_the_means_of_every_evaluation(tmp_path, monkeypatch, name):
    heard = Listener(monkeypatch)
    result = run_study(made(log=name), runs=tmp_path)
    assert heard.begun == heard.ended == [f"{label}-0" for label in LABELS]
    table = result.records.metrics
    for label in LABELS:
        told = {
            step: value
            for run, key, value, step in heard.points
            if run == f"{label}-0" and key == "validation_accuracy"
        }
        mine = table[table["algorithm"] == label].groupby("round")
        expected = mine["validation_accuracy"].mean()
        assert list(told) == list(range(ROUNDS + 1))
        assert list(told.values()) == pytest.approx(expected.tolist())
    kinds = {key for _, key, _, _ in heard.points}
    assert {"test_loss", "train_accuracy", "gradients", "bytes", "seconds"} <= kinds


def test_sinks_of_numbers_do_not_change_a_run(tmp_path, monkeypatch):
    Listener(monkeypatch)
    alone, told = made(), made(log=["tensorboard", "wandb"])
    assert identity_of(alone, {}) == identity_of(told, {})
    first = run_study(alone, runs=tmp_path / "a")
    second = run_study(told, runs=tmp_path / "b")
    assert first.folder.name == second.folder.name
    pd.testing.assert_frame_equal(first.records.metrics, second.records.metrics)
    files = [(r.folder / "study.toml").read_bytes() for r in (first, second)]
    assert files[0] == files[1]


def test_of_several_processes_the_first_one_tells(tmp_path, monkeypatch):
    heard, study = Listener(monkeypatch), made(log="tensorboard")
    together(study, 2, tmp_path)
    assert heard.begun == heard.ended == ["local-0", "fedavg-0"]
    steps = [step for _, key, _, step in heard.points if key == "test_loss"]
    assert steps == 2 * list(range(ROUNDS + 1))


def test_a_finished_run_tells_nothing_and_one_that_goes_on_tells_the_rest(
    tmp_path, monkeypatch
):
    heard, study = Listener(monkeypatch), made(log="tensorboard")
    stopped(study, lambda p: (p.label, p.t) == ("fedavg", 2), runs=tmp_path)
    assert heard.ended == ["local-0", "fedavg-0"]
    heard.points.clear()
    run_study(study, runs=tmp_path)
    assert {step for _, _, _, step in heard.points} == {3, 4}
    begun = len(heard.begun)
    run_study(study, runs=tmp_path)
    assert len(heard.begun) == begun == 3


def test_a_sink_that_fails_is_left_out_with_one_line(tmp_path, monkeypatch):
    Listener(monkeypatch, fails=True)
    lines: list[str] = []
    result = run_study(made(log="mlflow"), runs=tmp_path, notice=lines.append)
    assert lines == [
        "`run.log` mlflow failed and gets no more numbers; the run goes on: the "
        "service does not answer."
    ]
    assert len(result.records.rounds) == 2 * (ROUNDS + 1)


@pytest.mark.parametrize("name", SINKS)
def test_a_missing_package_is_named_before_any_work(tmp_path, monkeypatch, name):
    package = SINKS[name][1]
    if importlib.util.find_spec(package) is not None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert refused(made(log=name), tmp_path) == (
        f"`run.log` {name} needs the package {package}, which is not installed: "
        f"pip install {package}."
    )


@pytest.mark.parametrize(
    ("log", "message"),
    [
        ("tensorbord", "Did you mean 'tensorboard'?"),
        (3, "`run.log` must be a name or a list of names, got 3."),
        ([3], "must be a name or a list of names"),
    ],
)
def test_other_logs_are_refused(log, message):
    assert message in refusal(made, log=log)


def test_tensorboard_itself_reads_what_it_was_told(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = run_study(made(log="tensorboard"), runs=tmp_path)
    read = EventAccumulator(str(result.folder / "tensorboard" / "fedavg-0"))
    read.Reload()
    points = read.Scalars("validation_accuracy")
    assert [point.step for point in points] == list(range(ROUNDS + 1))


# Its tables use what the database package means to drop: not ours to mend.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_mlflow_itself_reads_what_it_was_told(tmp_path, monkeypatch):
    """Stores in a database with MLflow, and in files with mlflow-skinny."""
    mlflow = pytest.importorskip(
        "mlflow", reason="neither mlflow nor mlflow-skinny is installed"
    )
    store = f"sqlite:///{tmp_path / 'm.db'}"
    if importlib.util.find_spec("sqlalchemy") is None:
        store = (tmp_path / "mlruns").as_uri()
        # Version 3.17 refuses files unless it is told that they may be used.
        monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    run_study(made(log="mlflow"), runs=tmp_path)
    client = mlflow.MlflowClient()
    place = client.get_experiment_by_name("tiny").experiment_id
    runs = {run.info.run_name: run for run in client.search_runs([place])}
    points = client.get_metric_history(
        runs["fedavg-0"].info.run_id, "validation_accuracy"
    )
    assert [point.step for point in points] == list(range(ROUNDS + 1))


def test_wandb_itself_takes_what_it_is_told(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    lines: list[str] = []
    result = run_study(made(log="wandb"), runs=tmp_path, notice=lines.append)
    assert not lines
    assert len(list((result.folder / "wandb").glob("offline-run-*"))) == 2
