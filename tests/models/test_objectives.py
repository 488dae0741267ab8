"""Claims about losses, measures, and objectives of one's own."""

from __future__ import annotations

import math
import sys
from types import SimpleNamespace

import pytest
import torch
from sklearn.metrics import roc_auc_score

from coterie.models import (
    OBJECTIVES,
    Objective,
    OfClient,
    objective_named,
    outputs_for,
    refuse_misshapen,
    target_values,
)
from coterie.models.objectives import auc, cross_entropy, squared_error
from support.refusals import refusal, refuses


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_auc_is_that_of_scikit_learn(seed, ties):
    rng = torch.Generator().manual_seed(seed)
    scores = torch.randn(40, 1, generator=rng)
    scores = scores.round() if ties else scores
    labels = torch.randint(0, 2, (40,), generator=rng)
    expected = roc_auc_score(labels, scores[:, 0])
    assert float(auc(scores, labels)) == pytest.approx(expected, abs=1e-12)


def test_auc_counts_pairs_in_order_and_ties_half():
    scores = torch.tensor([[0.0], [1.0], [1.0], [2.0], [math.inf]])
    labels = torch.tensor([0, 0, 1, 0, 1])
    # Of 2 x 3 pairs: 1 > 0, 1 = 1, 1 < 2, and infinity is larger than all three.
    assert float(auc(scores, labels)) == (1 + 0.5 + 0 + 3) / 6


def test_comparisons_use_the_first_measure_or_the_loss():
    scores = {task: objective.score for task, objective in OBJECTIVES.items()}
    assert scores == {
        "classification": "accuracy",
        "binary": "accuracy",
        "regression": "loss",
        "segmentation": "dice",
    }
    better = [task for task, each in OBJECTIVES.items() if not each.higher_is_better]
    assert better == ["regression"]


def test_tasks_say_what_targets_are():
    values = {task: target_values(task, 5) for task in OBJECTIVES}
    expected = {"classification": 5, "binary": 2, "regression": 0, "segmentation": 2}
    assert values == expected
    labelled = [task for task, each in OBJECTIVES.items() if each.labelled]
    assert labelled == ["classification", "binary"]
    assert (outputs_for("classification", 5), outputs_for("binary", 2)) == (5, 1)


def spread(outputs, targets):
    return float(outputs.max() - outputs.min())


def test_measures_of_samples_and_of_clients_are_told_apart():
    own = Objective(cross_entropy, {"spread": OfClient(spread), "mine": cross_entropy})
    assert own.score == "spread"
    assert own.per_sample == {"loss": cross_entropy, "mine": cross_entropy}
    assert own.of_client == {"spread": OfClient(spread)}


WRONG = {
    "number": (3, "'own_objectives:number' must be a coterie.models.Objective, got 3."),
    "none": (
        Objective(squared_error, {}),
        "has no measures, so models are compared by their loss, and "
        "`higher_is_better` must be False.",
    ),
    "loss": (
        Objective(squared_error, {"loss": squared_error}),
        "must name its measures, none of them 'loss', got {'loss': ",
    ),
    "list": (Objective(squared_error, [squared_error]), "must name its measures"),
    "text": (
        Objective(squared_error, {"auc": "auc"}),
        "`auc` of `model.objective` must be a function, got 'auc'.",
    ),
    "whole": (
        Objective(squared_error, {"auc": OfClient(3)}),
        "`auc` of `model.objective` must be a function, got OfClient(measure=3).",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_objectives_that_are_none_are_refused(monkeypatch, name):
    made = SimpleNamespace(**{key: value for key, (value, _) in WRONG.items()})
    monkeypatch.setitem(sys.modules, "own_objectives", made)
    said = refusal(objective_named, "model.objective", f"own_objectives:{name}")
    assert WRONG[name][1] in said


def test_an_objective_is_found_by_name_or_in_a_module(monkeypatch):
    own = Objective(squared_error, {}, higher_is_better=False)
    monkeypatch.setitem(sys.modules, "own_objectives", SimpleNamespace(mine=own))
    assert objective_named("objective", "own_objectives:mine") is own
    assert objective_named("objective", "binary") is OBJECTIVES["binary"]
    refuses("Did you mean 'regression'", objective_named, "objective", "regressio")
    refuses("cannot be imported", objective_named, "objective", "own_objectives:other")


def mean(outputs, targets):
    return squared_error(outputs, targets).mean()


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        (
            Objective(mean, {}),
            "`loss` of the objective must give one number for each sample, but for 4 "
            "samples it gave shape ().",
        ),
        (
            Objective(lambda outputs, targets: outputs, {}),
            "for 4 samples it gave shape (4, 1).",
        ),
        (Objective(lambda outputs, targets: 1.0, {}), "4 samples it gave 1.0."),
        (
            Objective(squared_error, {"mean": mean}),
            "`mean` of the objective must give one number for each sample",
        ),
        (
            Objective(squared_error, {"all": OfClient(squared_error)}),
            "`all` of the objective must give one number for a client, but it gave "
            "shape (4,).",
        ),
    ],
)
def test_what_is_not_one_number_per_sample_or_client_is_refused(objective, message):
    values = torch.ones(4, 1), torch.zeros(4)
    assert message in refusal(refuse_misshapen, objective, *values)


def test_ours_give_one_number_per_sample_or_client():
    labels = torch.tensor([0, 1, 1, 0])
    refuse_misshapen(OBJECTIVES["classification"], torch.ones(4, 3), labels)
    refuse_misshapen(OBJECTIVES["binary"], torch.ones(4, 1), labels)
    refuse_misshapen(OBJECTIVES["regression"], torch.ones(4, 2), torch.zeros(4, 2))
    volumes = torch.ones(4, 1, 2, 2, 2)
    refuse_misshapen(OBJECTIVES["segmentation"], volumes, volumes)
