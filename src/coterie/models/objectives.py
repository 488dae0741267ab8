"""Objectives: the loss that training minimises, and the measures that are reported.

An objective has a loss, measures, and a score, by which models are compared. The loss
and most measures map a model's outputs (B, ...) and targets (B, ...) to one number per
sample (B,). So sums over parts of the samples can be added up. Other measures are for a
client as a whole: they map the outputs and targets of all its samples (for example all
test samples) to one number.

The task of a data set is one word that says what to learn from it. It is also the name
of the objective of a study, unless the study names another one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from ..checks import InputError, import_object, one_of
from .losses import (
    PerSample,
    absolute_error,
    cross_entropy,
    dice_loss,
    logistic,
    loss_named,
    squared_error,
)
from .measures import MEASURES, OfClient, accuracy, auc, dice, measures_named


class Objective(NamedTuple):
    """A loss per sample, and the measures that are reported with it."""

    loss: PerSample
    measures: Mapping[str, PerSample | OfClient]
    higher_is_better: bool = True  # of the score
    labelled: bool = False  # targets are classes, and a model gives (B, outputs)
    compared_by: str = ""  # a measure, or the loss; empty: see `score`
    restored: Callable[[Tensor], Tensor] | None = None
    """Converts outputs and targets to the unit of the data, for reports (None: no
    need).
    """

    @property
    def score(self) -> str:
        """The measure for comparisons: by default the first one, or else the loss."""
        return self.compared_by or next(iter(self.measures), "loss")

    @property
    def per_sample(self) -> dict[str, PerSample]:
        """The loss and the measures of single samples."""
        named = {"loss": self.loss, **self.measures}
        found = {k: v for k, v in named.items() if not isinstance(v, OfClient)}
        if self.restored is None:
            return found
        # The constants of other losses are in units of standard deviations.
        kept = () if self.loss in (squared_error, absolute_error) else ("loss",)
        return {k: v if k in kept else self._of_data(v) for k, v in found.items()}

    @property
    def of_client(self) -> dict[str, OfClient]:
        """The measures of a client as a whole."""
        found = {k: v for k, v in self.measures.items() if isinstance(v, OfClient)}
        if self.restored is None:
            return found
        return {
            k: v._replace(measure=self._of_data(v.measure)) for k, v in found.items()
        }

    def _of_data(self, measure: Callable[..., Any]) -> Callable[..., Any]:
        """The measure, computed from outputs and targets in the unit of the data."""
        assert self.restored is not None
        restored = self.restored

        def measure_restored(outputs: Tensor, targets: Tensor) -> Any:
            return measure(restored(outputs.reshape(targets.shape)), restored(targets))

        return measure_restored


OBJECTIVES: dict[str, Objective] = {
    "classification": Objective(cross_entropy, {"accuracy": accuracy}, labelled=True),
    "binary": Objective(
        logistic, {"accuracy": accuracy, "auc": OfClient(auc)}, labelled=True
    ),
    "regression": Objective(squared_error, {}, higher_is_better=False),
    "segmentation": Objective(dice_loss, {"dice": dice}),
}
"""The objective of each task."""


def target_values(task: str, outputs: int) -> int:
    """The number of values that a target can have; 0 if targets are quantities."""
    known = {"classification": outputs, "binary": 2, "segmentation": 2}
    return known.get(task, 0)


def classes_of(task: str, outputs: int) -> int:
    """The number of classes of the samples; 0 if their targets are not classes."""
    return {"classification": outputs, "binary": 2}.get(task, 0)


def outputs_for(task: str, classes: int) -> int:
    """The number of outputs that a model needs for this number of classes."""
    return 1 if task == "binary" else classes


def objective_named(name: str, value: str) -> Objective:
    """The objective with this name, or a user's objective as "module:name".

    >>> objective_named("objective", "regression").score
    'loss'
    """
    if ":" not in value:
        return OBJECTIVES[one_of(name, value, OBJECTIVES)]
    found = import_object(name, value)
    if not isinstance(found, Objective):
        raise InputError(
            f"`{name}` {value!r} must be a coterie.models.Objective, got {found!r}."
        )
    _refuse_unsound(name, found)
    return found


def adapt_objective(
    objective: Objective,
    task: str,
    *,
    loss: str = "",
    measures: Sequence[str] = (),
    score: str = "",
) -> Objective:
    """The objective with another loss, more measures, or another score.

    >>> adapt_objective(OBJECTIVES["binary"], "binary", score="f1").score
    'f1'

    Args:
        objective: the objective to change.
        task: the task of the data.
        loss: text of `model.loss`; empty keeps the loss.
        measures: texts of `model.measures`, added to the measures of the objective.
        score: text of `model.score`. If the text names one of our measures that the
            objective lacks, the measure is added. An empty text keeps the score.
    """
    if loss:
        objective = objective._replace(loss=loss_named("model.loss", loss, task))
    chosen = [score] if score in MEASURES and score not in objective.measures else []
    asked = [*measures, *(name for name in chosen if name not in measures)]
    found = measures_named("model.measures", asked, task)
    more = {name: each.measure for name, each in found.items()}
    every = {**more, **objective.measures}  # one that is there already stays
    order = {name: every[name] for name in (*objective.measures, *more)}
    ways = {"loss": False, objective.score: objective.higher_is_better}
    ways = {n: m.higher_is_better for n, m in (MEASURES | found).items()} | ways
    objective = objective._replace(measures=order, compared_by=objective.score)
    if not score:
        return objective
    name = score.partition(":")[2] or score
    one_of("model.score", name, ("loss", *order))
    if name not in ways:
        raise InputError(
            f"`model.score` {name!r} is a measure of the objective that does not say "
            "which way is better: only its own score does."
        )
    return objective._replace(compared_by=name, higher_is_better=ways[name])


def refuse_settings(model: Mapping[str, Any]) -> None:
    """Refuses a table [model] with errors that can be found without data."""
    texts = model.get("measures", [])
    if not isinstance(texts, list | tuple):
        raise InputError(f"`model.measures` must be a list of names, got {texts!r}.")
    said = [(key, model[key]) for key in ("objective", "loss", "score") if key in model]
    for key, text in [*said, *(("measures", text) for text in texts)]:
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"`model.{key}` must be text, got {text!r}.")
    if "objective" in model:
        objective_named("model.objective", model["objective"])
    if "loss" in model:
        loss_named("model.loss", model["loss"])
    measures_named("model.measures", texts)


def _refuse_unsound(name: str, objective: Objective) -> None:
    measures = objective.measures
    if not isinstance(measures, Mapping) or "loss" in measures:
        raise InputError(
            f"`{name}` must name its measures, none of them 'loss', got {measures!r}."
        )
    for key, value in {"loss": objective.loss, **measures}.items():
        if not callable(value.measure if isinstance(value, OfClient) else value):
            raise InputError(f"`{key}` of `{name}` must be a function, got {value!r}.")
    one_of(f"compared_by of {name}", objective.score, ("loss", *measures))
    if objective.score == "loss" and objective.higher_is_better:
        raise InputError(
            f"`{name}` has no measures, so models are compared by their loss, and "
            "`higher_is_better` must be False."
            if not measures
            else f"`{name}` compares models by their loss, so `higher_is_better` must "
            "be False."
        )


def refuse_misshapen(objective: Objective, outputs: Tensor, targets: Tensor) -> None:
    """Raises an InputError if a loss or measure gives a wrong type or shape."""
    for name, measure in objective.per_sample.items():
        found = measure(outputs, targets)
        if not isinstance(found, Tensor) or found.shape != (len(targets),):
            raise InputError(
                f"`{name}` of the objective must give one number for each sample, but "
                f"for {len(targets)} samples it gave {_describe(found)}."
            )
    for name, whole in objective.of_client.items():
        value_of(name, whole, outputs, targets)


def value_of(name: str, of: OfClient, outputs: Tensor, targets: Tensor) -> float:
    """A measure of a client as a whole; NaN for a client without samples.

    Raises:
        InputError: if a user's function raises, or does not give a number.
    """
    if not len(targets):
        return math.nan
    try:
        value = of.measure(outputs, targets)
    except Exception as error:  # user code may raise anything
        reason = (str(error).splitlines() or [""])[0].rstrip(".")
        raise InputError(
            f"the measure `{name}` raised {type(error).__name__} for {len(targets)} "
            f"samples of a client: {reason}; where there is no value it must give NaN."
        ) from error
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(
            f"`{name}` of the objective must give one number for a client, but it "
            f"gave {_describe(value)}."
        ) from None


def _describe(found: Any) -> str:
    return f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else repr(found)
