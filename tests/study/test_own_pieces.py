"""Users' data, models, algorithms and criteria, and those that cannot be used."""

from __future__ import annotations

import textwrap

import pytest
import torch
from torch import nn

from coterie import models
from coterie.algorithms import ALGORITHMS
from coterie.checks import InputError
from coterie.study.config import study_of
from coterie.study.experiment import run_study
from coterie.types import Algorithm
from support.study_runs import refused
from support.tiny_studies import ADAPTIVE, made


def test_ones_own_data_model_and_algorithm_are_used(tmp_path, monkeypatch):
    (tmp_path / "mine_all.py").write_text(
        textwrap.dedent(
            """
            import torch
            from coterie import Table
            from coterie.algorithms.local import local
            from coterie.types import Algorithm

            def data(*, clients: int = 3, seed: int = 0):
                rng = torch.Generator().manual_seed(seed)
                x = torch.randn(8 * clients, 2, generator=rng)
                group = torch.arange(8 * clients) // 8
                return Table("mine", x, x @ torch.ones(2), "regression", 1, group=group)

            def model(shape, outputs, *, scale: float = 1.0):
                layer = torch.nn.Linear(shape[0], outputs, bias=False)
                torch.nn.init.constant_(layer.weight, scale)
                return layer

            def still(*, lr: float = 0.1):
                def step(state, oracle, rng):
                    return state, {}
                return Algorithm(local(lr=lr).init, step)
            """
        )
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    tables = {
        "data": {"name": "mine_all:data", "clients": 5},
        "model": {"name": "mine_all:model", "scale": 2.0},
        "algorithm": [{"name": "mine_all:still", "label": "still"}],
        "run": {"rounds": 2},
    }
    result = run_study(study_of(tables), runs=tmp_path)
    assert torch.equal(result.models(), torch.full((5, 2), 2.0))
    with pytest.raises(InputError, match="has no option 'scal'"):
        study_of({**tables, "model": {"name": "mine_all:model", "scal": 2.0}})
    with pytest.raises(InputError, match="has no option 'client'"):
        data = {"name": "mine_all:data", "client": 2}
        run_study(study_of({**tables, "data": data}), runs=tmp_path)


def test_a_criterion_of_ones_own_is_used(tmp_path):
    criterion = "coterie.collaboration.weights:continuous"
    own = {**ADAPTIVE, "label": "own", "criterion": criterion}
    ours = {**ADAPTIVE, "criterion": "continuous"}
    result = run_study(made(algorithm=[own, ours]), runs=tmp_path)
    assert torch.equal(result.models("own"), result.models("adaptive_all_for_one"))


class Pair(nn.Linear):
    def forward(self, x):
        return x, x


class Bare(nn.Module):
    def forward(self, x):
        return x


MODELS = {
    "bare": lambda shape, outputs: Bare(),
    "pair": lambda shape, outputs: Pair(64, 10),
    "five": lambda shape, outputs: nn.Linear(64, 5),
    "narrow": lambda shape, outputs: nn.Linear(63, 10),
    "nothing": lambda shape, outputs: None,
    "without": lambda: nn.Linear(64, 10),
    "norm": lambda shape, outputs: nn.Sequential(nn.Linear(64, 10), nn.BatchNorm1d(10)),
    "dropout": lambda shape, outputs: nn.Sequential(nn.Dropout(1.0), nn.Linear(64, 10)),
}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("five", r"does not fit the data `digits` .* must give 10 outputs .* \(5,\)"),
        ("narrow", r"does not fit .* shape \(64,\): mat1 and mat2"),
        ("bare", "does not fit|must have parameters"),
        ("pair", "must return a tensor, got <class 'tuple'>"),
        ("nothing", "must give an nn.Module"),
        ("without", "`model` cannot be made .*: too many positional arguments"),
        ("norm", r"running statistics in 1, .* coterie.with_group_norm"),
        ("dropout", "drops everything in 0"),
    ],
)
def test_a_model_that_cannot_be_used_is_refused_before_anything_is_written(
    tmp_path, monkeypatch, name, message
):
    monkeypatch.setitem(models.MODELS, name, MODELS[name])
    refused(made(model={"name": name}), tmp_path, message)


def test_a_factory_must_return_an_algorithm(tmp_path, monkeypatch):
    monkeypatch.setitem(ALGORITHMS, "wrong", lambda *, lr=0.1: lr)
    message = "wrong must return a coterie Algorithm, got"
    refused(made(algorithm=[{"name": "wrong"}]), tmp_path, message)


def test_a_method_may_keep_its_models_under_another_name(tmp_path, monkeypatch):
    from typing import NamedTuple

    class Kept(NamedTuple):
        models: torch.Tensor

    def factory():
        def step(state, oracle, rng):
            return Kept(state.models - 0.1 * oracle.grads(state.models)), {}

        def init(x, oracle):
            return Kept(x)

        return Algorithm(init, step, lambda state, oracle: state.models)

    monkeypatch.setitem(ALGORITHMS, "kept", factory)
    result = run_study(made(algorithm=[{"name": "kept"}]), runs=tmp_path)
    assert "bytes" in result.records.rounds
