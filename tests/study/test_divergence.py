"""Training that diverges is named, and what was before is kept."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

from coterie.algorithms import ALGORITHMS
from coterie.checks import TrainingError
from coterie.records import Folder, load_records
from coterie.report import write_report
from coterie.report.tables import infinite_losses
from coterie.study.experiment import run_study
from support.run_folders import folder_of
from support.study_runs import spoilt
from support.tiny_studies import LINEAR, made


def diverging(rounds: int = 30):
    """The local method is fine; the other soon is not."""
    entries = [{"name": "local", "lr": 0.05}, {"name": "fedavg", "lr": 1e12}]
    return made(LINEAR, algorithm=entries, rounds=rounds, checkpoint_seconds=100.0)


def test_divergence_names_client_and_round_and_keeps_what_was_before(tmp_path):
    message = r"fedavg \(seed 0\): client \d has a model that is not finite after round"
    with pytest.raises(TrainingError, match=message) as caught:
        run_study(diverging(), runs=tmp_path)
    failed = int(str(caught.value).split("after round ")[1].split(";")[0])
    folder = folder_of(diverging(), tmp_path)
    cell = Folder(folder).cell("fedavg", 0)
    assert cell.t == failed - 1
    assert torch.isfinite(cell.state["x"]).all()
    before = load_records(folder).rounds
    with pytest.raises(TrainingError, match=f"after round {failed}"):
        run_study(diverging(), runs=tmp_path)
    pd.testing.assert_frame_equal(load_records(folder).rounds, before)
    assert Folder(folder).cell("local", 0).done


@pytest.mark.parametrize("name", ["apfl", "coteries", "ditto", "ifca", "per_fedavg"])
def test_divergence_of_any_model_stops_before_the_next_evaluation(tmp_path, name):
    entry = {"name": name, "lr": 1e38}
    diverging = made(rounds=20, evaluate_every=20, algorithm=[entry])
    with pytest.raises(TrainingError, match=r"not finite after round \d[,; ]"):
        run_study(diverging, runs=tmp_path)
    (folder,) = tmp_path.glob("[!.]*")
    packed = Folder(folder).cell(name, 0).state
    tensors = [v for v in packed.values() if isinstance(v, torch.Tensor)]
    assert all(v.isfinite().all() for v in tensors if v.is_floating_point())


def test_divergence_in_the_first_round_is_recorded_once(tmp_path):
    entries = [{"name": "local", "lr": 1e308}]
    wild = made(LINEAR, algorithm=entries, rounds=2)
    for _ in range(2):
        with pytest.raises(TrainingError, match="after round 1"):
            run_study(wild, runs=tmp_path)
    assert load_records(folder_of(wild, tmp_path)).rounds["round"].tolist() == [0]


def test_tuning_that_diverges_is_named(tmp_path):
    entries = [{"name": "fedavg_finetune", "tune_lr": 1e308, "tune_steps": 9}]
    message = "a personal model that is not finite after"
    with pytest.raises(TrainingError, match=message):
        run_study(made(LINEAR, algorithm=entries), runs=tmp_path)


def test_an_infinite_loss_of_a_finite_model_is_said_once(tmp_path, monkeypatch):
    monkeypatch.setitem(ALGORITHMS, "far", spoilt(2, 1e30, first=3))
    entries = [{"name": "local", "lr": 0.05}, {"name": "far", "lr": 1e-30}]
    study = made(LINEAR, algorithm=entries, rounds=6, dtype="float32", evaluate_every=1)
    said = []
    result = run_study(study, runs=tmp_path, notice=said.append)
    assert said == [
        "far (seed 0): the train loss of client 2 is not finite after round 3, though "
        "its model is; training goes on, and a smaller step size usually helps."
    ]
    assert Folder(result.folder).cell("far", 0).done
    words = ["far, seed 0: the train loss of client 2 from round 3 on"]
    assert infinite_losses(result.records) == words
    page = write_report(result.records, tmp_path / "report.html").read_text()
    assert f"Some losses are not finite, although the models are: {words[0]}." in page
    again = []
    run_study(study, runs=tmp_path, notice=again.append)
    assert again == []


def test_when_some_take_part_the_state_before_a_failed_round_is_kept(tmp_path):
    entries = [{"name": "ditto", "lr": 1e20}]
    study = made(
        LINEAR, algorithm=entries, rounds=30, participation=0.5, checkpoint_seconds=0.0
    )
    with pytest.raises(TrainingError, match="not finite after round") as caught:
        run_study(study, runs=tmp_path)
    failed = int(str(caught.value).split("after round ")[1].split(";")[0])
    cell = Folder(folder_of(study, tmp_path)).cell("ditto", 0)
    assert cell.t == failed - 1
    assert torch.isfinite(cell.state["v"]).all()
