"""Models of scikit-learn, and constants, with the outputs that coterie's models have.

Outputs are one logit for two classes (task binary), the logarithm of the probability of
each class (classification), or quantities in the unit of the targets.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

Predict = Callable[[np.ndarray], np.ndarray]
"""Maps features (B, F) to outputs (B, ...)."""

_LEAST = float(np.finfo(np.float32).eps)
"""The least probability of a class, as in scikit-learn's log-loss."""

_ALPHAS = np.logspace(-3, 3, 13)


def constant_output(task: str, targets: Tensor, outputs: int) -> Tensor:
    """The best constant prediction on the training data.

    For classes, it is the frequency of each class by Laplace's rule, (k + 1) / (n + C).
    For quantities, it is the mean.
    """
    if task in ("binary", "classification"):
        classes = 2 if task == "binary" else outputs
        counts = torch.bincount(targets.long(), minlength=classes).double() + 1
        chances = (counts / counts.sum()).log()
        return chances[1:] - chances[:1] if task == "binary" else chances
    mean = targets.double().mean(0)
    if task == "segmentation":
        return mean.clamp(_LEAST, 1 - _LEAST).logit()
    return mean.reshape(-1)


class TrainingSet(NamedTuple):
    """What a model of scikit-learn is trained on, and what it must return."""

    task: str  # what outputs mean, a name in `coterie.models.OBJECTIVES`
    outputs: int  # how many a model has
    features: np.ndarray  # (n, F)
    targets: np.ndarray  # (n,) or (n, k), with at least two classes
    seed: int


def linear(training: TrainingSet) -> Predict:
    """Logistic regression with C = 1, or ridge regression that chooses alpha."""
    from sklearn.linear_model import LogisticRegression, RidgeCV

    if training.task == "regression":
        model = RidgeCV(_ALPHAS).fit(training.features, training.targets)
        return lambda asked: model.predict(asked).reshape(len(asked), -1)
    return _fit_classifier(training, LogisticRegression(max_iter=2000))


def trees(training: TrainingSet) -> Predict:
    """Gradient-boosted trees as scikit-learn makes them, with smaller leaves.

    With the 20 samples that a leaf needs by default, fewer than 40 samples cannot make
    a tree. Here a tenth of the samples is enough for a leaf.
    """
    from sklearn.ensemble import (
        HistGradientBoostingClassifier,
        HistGradientBoostingRegressor,
    )

    task, _, features, targets, seed = training
    options = {
        "min_samples_leaf": min(20, max(2, len(targets) // 10)),
        "early_stopping": False,  # which would hold samples out
        "random_state": seed,
    }
    if task != "regression":
        return _fit_classifier(training, HistGradientBoostingClassifier(**options))
    columns = [
        HistGradientBoostingRegressor(**options).fit(features, column)
        for column in targets.reshape(len(targets), -1).T
    ]

    return lambda asked: np.stack([model.predict(asked) for model in columns], axis=1)


def _fit_classifier(training: TrainingSet, model: Any) -> Predict:
    """The logits, or the logarithms of probabilities of the classes 0, 1, ..."""
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        # After 2000 steps it is as good a baseline as at the optimum.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(training.features, training.targets)
    if training.task == "binary":
        return lambda asked: model.decision_function(asked)[:, None]

    def predict(asked: np.ndarray) -> np.ndarray:
        found = np.full((len(asked), training.outputs), _LEAST)
        found[:, model.classes_] = np.clip(model.predict_proba(asked), _LEAST, 1)
        return np.log(found)

    return predict
