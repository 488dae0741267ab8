"""Claims about every option of training: divided, resumed, and after a kill.

Other files compare the options with loops over clients, with partial participation.
"""

from __future__ import annotations

import copy
import shutil

import pytest
import torch

import coterie as co
from coterie.data.federation import Table
from coterie.study.experiment import run_study
from support.documented import sources_of
from support.study_runs import stopped, together

CLIENTS, ROUNDS = 4, 4
SIZES = torch.tensor([9, 14, 11, 21])


def images(dtype) -> Table:
    owner = torch.arange(CLIENTS).repeat_interleave(SIZES)
    rng = torch.Generator().manual_seed(0)
    pixels = torch.randn(len(owner), 1, 10, 10, generator=rng, dtype=dtype)
    labels = torch.arange(len(owner)) % 3
    return Table("images", pixels, labels, "classification", 3, group=owner)


CNN = {"name": "cnn", "width": 2}
BATCH = {**CNN, "norm": "batch"}
ADAM = {"name": "adam", "lr": 0.01, "clip": 0.5, "warmup": 3}
FEDAVG = {"name": "fedavg", "steps": 2}
EPOCHS = {"name": "fedavg", "epochs": 1}


def with_server(name: str) -> dict:
    optimizer = {"lr": 0.1, "server": name, "server_lr": 0.05}
    return {"algorithm": {**FEDAVG, "optimizer": optimizer}}


NEW = (
    *("fedprox", "feddyn", "fedamp", "fedfomo", "fedper", "lg_fedavg"),
    *("fedbabu", "fedala"),
)

CASES = {
    "momentum": {"optimizer": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}},
    "nesterov": {"optimizer": {"lr": 0.1, "momentum": 0.9, "nesterov": True}},
    "adam": {"optimizer": {**ADAM, "schedule": "cosine(9)", "weight_decay": 0.1}},
    "adamw": {"optimizer": {"name": "adamw", "lr": 0.01, "beta2": 0.9}},
    "FedAvgM": with_server("momentum"),
    "FedAdam": with_server("adam"),
    "FedYogi": with_server("yogi"),
    "epochs": {"algorithm": EPOCHS, "optimizer": {"lr": 0.1, "momentum": 0.5}},
    "epochs with adam": {"algorithm": EPOCHS, "optimizer": ADAM},
    "dropout": {"model": {**CNN, "dropout": 0.3}, "optimizer": ADAM},
    "augmentation": {"model": {**CNN, "augment": ["crop(1)", "flip", "noise(0.1)"]}},
    "dropout in epochs": {
        "model": {**CNN, "dropout": 0.3, "augment": ["flip"]},
        "algorithm": EPOCHS,
    },
    "batch averaged": {"model": BATCH, "optimizer": ADAM},
    "batch averaged with a server": {"model": BATCH, **with_server("adam")},
    "batch personal": {"model": {**BATCH, "personal": ["norm*"]}, "optimizer": ADAM},
    "statistics personal": {"model": {**BATCH, "personal": ["running_*"]}},
    "batch frozen": {"model": {**CNN, "norm": "frozen"}, "optimizer": ADAM},
    "batch in epochs": {
        "model": BATCH,
        "algorithm": EPOCHS,
        "optimizer": ADAM,
        "run": {"batch_size": 5},  # of 4, a client's last one would have one sample
    },
    "mixed precision": {"run": {"dtype": "float32", "mixed_precision": "bf16"}},
    "scaffold": {"algorithm": {"name": "scaffold", "epochs": 1}, "optimizer": ADAM},
    "pfedme": {"algorithm": {"name": "pfedme"}, "optimizer": {"lr": 0.1, "clip": 1.0}},
    "low rank": {"algorithm": {"name": "low_rank_corrections"}, "optimizer": ADAM},
    **{
        name: {"algorithm": {"name": name, "epochs": 1}, "optimizer": ADAM}
        for name in NEW
    },
    "fedbn": {
        "model": BATCH,
        "algorithm": {"name": "fedbn", "steps": 2},
        "optimizer": ADAM,
    },
    "moon": {"algorithm": {"name": "moon:moon", "lr": 0.1, "steps": 2}},
    "fedproto": {"algorithm": {"name": "fedproto:fedproto", "lr": 0.1}},
    "fedntd": {"algorithm": {"name": "fedntd:fedntd", "lr": 0.1}},
}


def study_of(case: str) -> co.Study:
    given = copy.deepcopy(CASES[case])
    run = {"rounds": ROUNDS, "batch_size": 4, "dtype": "float64", "participation": 0.6}
    run |= {"evaluate_every": 2, "checkpoint_seconds": 0.0, "baselines": False}
    run |= given.pop("run", {})
    given["algorithm"] = [given.get("algorithm", FEDAVG)]
    if "lr" not in given["algorithm"][0] and "optimizer" not in given:
        given["optimizer"] = {"lr": 0.1}
    if "optimizer" in given["algorithm"][0]:
        given["optimizer"] = {}
    split = {"name": "natural", "validation": 0.2, "test": 0.2, "min_classes": 1}
    made = {"model": CNN, "split": split, "run": run, **given}
    return co.study_of(made, data=images(getattr(torch, run["dtype"])))


@pytest.fixture(scope="module", autouse=True)
def own_methods(tmp_path_factory):
    """The methods of the page on losses, in modules that a study can name."""
    folder = tmp_path_factory.mktemp("modules")
    for name, source in sources_of("extending_losses.md").items():
        (folder / f"{name}.py").write_text(source, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield


@pytest.mark.parametrize("case", CASES)
def test_dividing_stopping_and_killing_change_nothing(tmp_path, case):
    """Bits are the same after a stop; sums of divided clients are in another order."""
    study, killed = study_of(case), tmp_path / "killed"

    def keep(progress) -> None:
        """What a kill after the second round would leave."""
        if progress.t == 3 and not killed.exists():
            shutil.copytree(tmp_path / "whole", killed)

    whole = run_study(study, runs=tmp_path / "whole", progress=keep).models()
    assert whole.isfinite().all()
    again = run_study(study, runs=killed).models()
    stopped(study, lambda p: p.t == 1, runs=tmp_path / "stopped")
    resumed = run_study(study, runs=tmp_path / "stopped").models()
    assert torch.equal(again, whole) and torch.equal(resumed, whole)
    first, _ = together(study, 2, tmp_path / "divided")
    # bfloat16 has 8 bits: products of other shapes may differ by 2^-8 of their terms.
    near = 1e-2 if case == "mixed precision" else 1e-9
    assert float((first.models() - whole).abs().max()) < near
