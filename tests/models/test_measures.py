"""Claims about measures and losses by name."""

from __future__ import annotations

import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn import metrics

from coterie import models
from coterie.checks import InputError
from coterie.models.measures import calibration, confusion, probabilities
from coterie.seeds import generator


def value(name: str, outputs, targets) -> float:
    found = models.MEASURES[name].measure
    if isinstance(found, models.OfClient):
        return models.value_of(name, found, outputs, targets)
    return float(found(outputs, targets).mean())


def drawn(seed: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = generator("tests", "measures", seed, classes)
    targets = torch.randint(0, classes, (60,), generator=rng)
    outputs = torch.randn(60, 1 if classes == 2 else classes, generator=rng)
    return outputs, targets


# Six samples of class 1 and four of class 0; four and three of them are found.
ONE_LOGIT = torch.tensor([[2.0], [1], [1], [3], [-1], [-2], [-1], [-1], [-3], [2]])
TRUTH = torch.tensor([1, 1, 1, 1, 1, 1, 0, 0, 0, 0])
BY_HAND = {
    "accuracy": 7 / 10,
    "sensitivity": 4 / 6,
    "specificity": 3 / 4,
    "balanced_accuracy": (4 / 6 + 3 / 4) / 2,
    "f1": 2 * 4 / (2 * 4 + 1 + 2),
    # Pairs in order, each sample of class 1 against -1, -1, -3 and 2.
    "auc": ((3 + 0.5) + 3 + 3 + 4 + (0 + 0.5 * 2 + 1) + 1) / 24,
}


@pytest.mark.parametrize("name", BY_HAND)
def test_measures_of_two_classes_are_those_counted_by_hand(name):
    assert value(name, ONE_LOGIT, TRUTH) == pytest.approx(BY_HAND[name])
    two = torch.cat([torch.zeros(10, 1), ONE_LOGIT], 1)
    assert value(name, two, TRUTH) == pytest.approx(BY_HAND[name])


def of_scikit_learn(name: str, outputs, targets) -> float:
    truth, chances = targets.numpy(), probabilities(outputs)
    found = chances.argmax(1)
    average = "binary" if chances.shape[1] == 2 else "macro"
    if name == "specificity":
        one = [
            metrics.recall_score(truth != c, found != c)
            for c in (range(1, 2) if average == "binary" else np.unique(truth))
        ]
        return float(np.mean(one))
    if name == "auc":
        scores = chances[:, 1] if average == "binary" else chances
        return metrics.roc_auc_score(truth, scores, multi_class="ovr")
    return {
        "accuracy": lambda: metrics.accuracy_score(truth, found),
        "balanced_accuracy": lambda: metrics.balanced_accuracy_score(truth, found),
        "f1": lambda: metrics.f1_score(truth, found, average=average),
        "sensitivity": lambda: metrics.recall_score(truth, found, average=average),
    }[name]()


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("name", BY_HAND)
def test_measures_of_labels_are_those_of_scikit_learn(name, classes):
    for seed in range(3):
        outputs, targets = drawn(seed, classes)
        expected = of_scikit_learn(name, outputs, targets)
        assert value(name, outputs, targets) == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("entries", [(), (3,)])
def test_measures_of_responses_are_those_of_scikit_learn(entries):
    rng = generator("tests", "responses", len(entries))
    truth = torch.randn(20, *entries, generator=rng, dtype=torch.float64)
    outputs = truth.reshape(20, -1) + torch.randn(
        20, math.prod(entries), generator=rng, dtype=torch.float64
    )
    found = outputs.reshape(truth.shape).numpy()
    expected = {
        "mae": metrics.mean_absolute_error(truth, found),
        "rmse": metrics.root_mean_squared_error(truth, found),
        "r2": metrics.r2_score(truth, found),
    }
    for name, number in expected.items():
        assert value(name, outputs, truth) == pytest.approx(number)


def test_means_over_classes_are_over_those_that_a_client_has():
    # Nobody is of class 2, and one sample of class 0 is taken for it.
    outputs = torch.eye(3)[[0, 2, 1, 1]]
    targets = torch.tensor([0, 0, 1, 1])
    assert value("sensitivity", outputs, targets) == (1 / 2 + 1) / 2
    assert value("f1", outputs, targets) == (2 / 3 + 1) / 2
    assert value("specificity", outputs, targets) == 1.0
    assert value("balanced_accuracy", outputs, targets) == 3 / 4


UNDEFINED = {
    0: {"auc", "balanced_accuracy", "f1", "sensitivity"},
    1: {"auc", "balanced_accuracy", "specificity"},
}


@pytest.mark.parametrize("label", UNDEFINED)
@pytest.mark.parametrize("logit", [-1.0, 1.0])
def test_what_one_class_leaves_undefined_is_no_number_for_any_model(label, logit):
    targets = torch.full((4,), label)
    names = [n for n, m in models.MEASURES.items() if "binary" in m.tasks]
    undefined = {
        n for n in names if math.isnan(value(n, torch.full((4, 1), logit), targets))
    }
    assert undefined == UNDEFINED[label]


def test_equal_responses_have_no_r2_and_no_samples_have_no_measure():
    assert math.isnan(value("r2", torch.randn(3, 1), torch.ones(3)))
    assert math.isnan(value("r2", torch.randn(1, 1), torch.ones(1)))
    for name, (measure, _, tasks) in models.MEASURES.items():
        if isinstance(measure, models.OfClient):
            outputs = torch.empty(0, 1 if "binary" in tasks else 2)
            assert math.isnan(models.value_of(name, measure, outputs, torch.empty(0)))


@pytest.mark.parametrize("name", ["f1", "auc", "ece", "balanced_accuracy"])
def test_outputs_that_are_no_numbers_have_no_measure(name):
    for columns in (1, 3):
        outputs = torch.zeros(4, columns)
        outputs[1] = math.nan
        assert math.isnan(value(name, outputs, torch.tensor([0, 1, 0, 1])))


def test_calibration_error_by_hand():
    chances = torch.tensor([0.9, 0.9, 0.7, 0.35], dtype=torch.float64)
    # Confidences .9, .9, .7 and .65 (of class 0); right, wrong, right, right.
    outputs, targets = chances.logit()[:, None], torch.tensor([1, 0, 1, 0])
    expected = (abs(1 - 1.8) + abs(2 - (0.7 + 0.65))) / 4
    assert value("ece", outputs, targets) == pytest.approx(expected)
    bins = calibration(outputs, targets)
    np.testing.assert_allclose(bins[8], [2, 1.8, 1])
    np.testing.assert_allclose(bins[6], [2, 1.35, 2])
    assert bins[:, 0].sum() == 4


@pytest.mark.parametrize("columns", [1, 4])
def test_calibrated_predictions_have_no_calibration_error_and_bold_ones_do(columns):
    rng = generator("tests", "calibration")
    logits = torch.randn(40_000, columns, generator=rng, dtype=torch.float64)
    chances = torch.from_numpy(probabilities(logits))
    targets = torch.multinomial(chances, 1, generator=rng)[:, 0]
    # Bins of thousands of samples err by about their root.
    assert value("ece", logits, targets) < 0.02
    bold = 5 * logits
    confident = float(probabilities(bold).max(1).mean())
    gap = confident - value("accuracy", bold, targets)
    assert gap > 0.15
    assert value("ece", bold, targets) == pytest.approx(gap, abs=0.02)


def test_confusion_counts_truth_by_row_and_prediction_by_column():
    expected = metrics.confusion_matrix(TRUTH, ONE_LOGIT[:, 0] > 0)
    assert confusion(ONE_LOGIT, TRUTH).tolist() == expected.tolist()
    outputs, targets = drawn(0, 5)
    expected = metrics.confusion_matrix(targets, outputs.argmax(1))
    assert confusion(outputs, targets).tolist() == expected.tolist()


def test_a_tally_has_the_rows_that_are_not_empty_of_each_client():
    nothing = (torch.empty(0, 1), torch.empty(0, dtype=torch.long))
    failed = (torch.full((1, 1), math.nan), torch.tensor([1]))
    found = models.tally(
        [7, 3, 4, 5], [(ONE_LOGIT, TRUTH), nothing, failed, (ONE_LOGIT[:1], TRUTH[:1])]
    )
    rows = list(
        zip(*(column.tolist() for column in found.confusion.values()), strict=True)
    )
    assert rows == [
        (7, 0, 0, 3),
        (7, 0, 1, 1),
        (7, 1, 0, 2),
        (7, 1, 1, 4),
        (5, 1, 1, 1),
    ]
    mine = found.calibration["client"] == 7
    assert found.calibration["count"][mine].sum() == 10
    assert found.calibration["right"][mine].sum() == 7
    assert set(found.calibration["client"].tolist()) == {7, 5}


def test_losses_by_hand():
    truth = torch.zeros(4, dtype=torch.float64)
    outputs = torch.tensor([[0.5], [-1.0], [3.0], [-4.0]], dtype=torch.float64)
    cases = {
        "squared": [0.25, 1, 9, 16],
        "absolute": [0.5, 1, 3, 4],
        "huber": [0.125, 0.5, 2.5, 3.5],
        "huber(3)": [0.125, 0.5, 4.5, 3 * (4 - 1.5)],
    }
    for text, expected in cases.items():
        found = models.loss_named("loss", text, "regression")(outputs, truth)
        torch.testing.assert_close(found, torch.tensor(expected).double())


@pytest.mark.parametrize("columns", [1, 3])
def test_focal_losses_weigh_by_what_is_missing_to_certainty(columns):
    rng = generator("tests", "focal")
    logits = torch.randn(6, columns, generator=rng, dtype=torch.float64)
    targets = torch.tensor([0, 1, 1, 0, 1, 0])
    p = torch.from_numpy(probabilities(logits))[torch.arange(6), targets]
    focal = models.loss_named("loss", "focal(3)", "classification")(logits, targets)
    torch.testing.assert_close(focal, -((1 - p) ** 3) * p.log())
    plain = models.loss_named("loss", "cross_entropy", "binary")(logits, targets)
    torch.testing.assert_close(
        models.loss_named("loss", "focal(0)", "binary")(logits, targets), plain
    )


@pytest.mark.parametrize("gamma", [0, 0.5, 1, 2])
def test_focal_losses_of_certain_predictions_have_a_gradient(gamma):
    logits = torch.tensor([[200.0], [-200.0]], requires_grad=True)
    loss = models.loss_named("loss", f"focal({gamma})", "binary")
    loss(logits, torch.tensor([1, 1])).sum().backward()
    assert logits.grad[0] == 0 and logits.grad[1] == pytest.approx(-1)


@pytest.mark.parametrize("text", [*models.LOSSES, "huber(0.5)", "focal(0.5)"])
def test_losses_are_differentiated_twice_for_many_models_at_once(text):
    rng = generator("tests", "losses")
    tasks = models.LOSSES[text.partition("(")[0]].tasks
    loss = models.loss_named("loss", text, tasks[0])
    x = torch.randn(3, 5, 2, generator=rng, dtype=torch.float64)
    targets = torch.randint(0, 2, (3, 5), generator=rng)
    if tasks == ("regression",):
        x, targets = x[..., :1], targets.double()

    def total(outputs, truth):
        return loss(outputs, truth).sum()

    def curvature(outputs, truth):
        slope = torch.func.grad(total)
        return torch.func.jvp(lambda o: slope(o, truth), (outputs,), (outputs,))[1]

    found = torch.func.vmap(curvature)(x, targets)
    each = torch.stack([curvature(*row) for row in zip(x, targets, strict=True)])
    torch.testing.assert_close(found, each)


def half(outputs, targets):
    return 0.5


OWN = SimpleNamespace(
    half=half,
    low=models.Measure(models.OfClient(half), higher_is_better=False),
    whole=models.OfClient(half),
    f1=half,
    number=3,
    wrong=models.Measure(3),
)


@pytest.fixture
def own(monkeypatch):
    monkeypatch.setitem(sys.modules, "own_measures", OWN)


def test_measures_of_ones_own_stand_beside_ours(own):
    texts = ["f1", "own_measures:half", "own_measures:low", "own_measures:whole"]
    found = models.measures_named("measures", texts, "binary")
    assert list(found) == ["f1", "half", "low", "whole"]
    assert found["half"] == models.Measure(models.OfClient(half)) == found["whole"]
    assert found["low"] is OWN.low
    made = models.adapt_objective(
        models.OBJECTIVES["binary"], "binary", measures=texts, score="low"
    )
    assert list(made.measures) == ["accuracy", "auc", *found]
    assert (made.score, made.higher_is_better) == ("low", False)
    written = models.adapt_objective(
        models.OBJECTIVES["binary"], "binary", measures=texts, score="own_measures:half"
    )
    assert (written.score, written.higher_is_better) == ("half", True)


@pytest.mark.parametrize(
    ("task", "settings", "score", "higher"),
    [
        ("classification", {"measures": ["f1"]}, "accuracy", True),
        ("classification", {"score": "loss"}, "loss", False),
        ("classification", {"measures": ["ece"], "score": "ece"}, "ece", False),
        ("binary", {"score": "auc"}, "auc", True),
        ("regression", {"measures": ["r2", "mae"]}, "loss", False),
        ("regression", {"measures": ["r2", "mae"], "score": "r2"}, "r2", True),
        ("regression", {"measures": ["r2", "mae"], "score": "mae"}, "mae", False),
        ("regression", {"loss": "huber"}, "loss", False),
        ("segmentation", {"measures": ["dice"]}, "dice", True),
    ],
)
def test_a_score_is_what_was_asked_for_and_knows_its_direction(
    task, settings, score, higher
):
    made = models.adapt_objective(models.OBJECTIVES[task], task, **settings)
    assert (made.score, made.higher_is_better) == (score, higher)
    assert set(models.OBJECTIVES[task].measures) <= set(made.measures)


REFUSED = {
    "`model.measures` must be one of .* Did you mean 'sensitivity'?": {
        "measures": ["sensitivty"]
    },
    "`model.measures` r2 is for regression, but the task is binary": {
        "measures": ["r2"]
    },
    "`model.measures` has two measures called 'f1'": {"measures": ["f1", "f1"]},
    "`model.measures` has two measures called 'f1'.": {"measures": ["own_measures:f1"]},
    "`model.measures` 'own_measures:number' must be a function, got 3": {
        "measures": ["own_measures:number"]
    },
    "must be a function, got Measure": {"measures": ["own_measures:wrong"]},
    "`model.measures` 'own_measures:no' cannot be imported": {
        "measures": ["own_measures:no"]
    },
    "`model.score` must be one of accuracy, auc, loss, got 'f2'": {"score": "f2"},
    "`model.measures` rmse is for regression, but the task is binary": {
        "score": "rmse"
    },
    "`model.loss` must be one of .* Did you mean 'huber'?": {"loss": "hubr"},
    "`model.loss` huber is for regression, but the task is binary": {"loss": "huber"},
    "`model.loss` focal must have at most 1 numbers, got 'focal": {
        "loss": "focal(1, 2)"
    },
    "`model.loss` must be at least 0, got -1": {"loss": "focal(-1)"},
    "`model.loss` 'own_measures:number' must be a function, got 3": {
        "loss": "own_measures:number"
    },
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_measured_or_minimised_is_refused(own, message):
    with pytest.raises(InputError, match=message) as refusal:
        models.adapt_objective(
            models.OBJECTIVES["binary"], "binary", **REFUSED[message]
        )
    assert "\n" not in str(refusal.value)


def test_measures_of_responses_do_not_take_labels_for_them():
    with pytest.raises(InputError, match="f1 is for classification and binary, but"):
        models.adapt_objective(
            models.OBJECTIVES["regression"], "regression", measures=["f1"]
        )


def test_an_own_objectives_other_measure_has_no_direction(monkeypatch):
    mine = models.Objective(
        models.LOSSES["squared"].make(),
        {"a": models.OfClient(half), "b": models.OfClient(half)},
    )
    assert models.adapt_objective(mine, "regression", score="a").higher_is_better
    with pytest.raises(InputError, match="does not say which way is better"):
        models.adapt_objective(mine, "regression", score="b")
    made = SimpleNamespace(mine=mine._replace(compared_by="c"))
    monkeypatch.setitem(sys.modules, "own_objectives", made)
    with pytest.raises(InputError, match="must be one of a, b, loss, got 'c'"):
        models.objective_named("model.objective", "own_objectives:mine")


def test_a_score_of_ours_need_not_stand_among_measures():
    found = models.adapt_objective(models.OBJECTIVES["binary"], "binary", score="f1")
    assert found.score == "f1" and found.higher_is_better
    assert list(found.measures) == ["accuracy", "auc", "f1"]
