"""The scores of baselines, on the same parts and by the same objective as methods.

Baselines are trained once for every seed, on the same features and training parts. Each
client trains alone. `linear pooled` has the training data of all clients in one place,
so it needs a simulation in one process without [privacy].
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from ...checks import InputError, several
from ...data.federation import PARTS, Federation, Part
from ...models import OBJECTIVES, Objective, outcomes, value_of
from ...records import Baselines, Cell
from ...records.cells import CONSTANT, LINEAR, POOLED, TREES
from ..loops import as_kept, tested_samples
from ..setup import Setup, draws_each_seed
from ..training import AnyFolder, Say
from .predictors import Predict, TrainingSet, constant_output, linear, trees

_COLUMNS = 500
"""Features with more columns than this do not count as a table."""

_VALUES = {LINEAR: 10_000_000, POOLED: 10_000_000, TREES: 5_000_000}
"""The most training values (rows times columns times outputs) of all clients."""

_FITS = {LINEAR: 1000, POOLED: 1000, TREES: 60}
"""The most models of one output each; trees cost more with every class."""

_TABULAR = ("heart_disease", "houses")
"""Our data sets whose features are columns of a table, which trees are made for."""

Train = Callable[[TrainingSet], Predict]


class _Rows(NamedTuple):
    """The samples of some clients, one client after the other."""

    features: Tensor
    targets: Tensor
    sizes: list[int]


def keep_baselines(setup: Setup, folder: AnyFolder, say: Say) -> None:
    """Computes and saves the baselines of a seed, unless the folder has them."""
    if not setup.study.run.baselines or folder.has_baselines(setup.seed):
        return
    # Threads that wait for each other take minutes where other programs run, too.
    with threadpool_limits(1, user_api="openmp"):
        found = baselines_of(setup)
    for line in found.left_out:
        say(line)
    folder.save_baselines(found)


def baselines_of(setup: Setup) -> Baselines:
    """All baselines of a seed that suit its data, and why others were left out."""
    task = str(setup.study.model.get("objective", setup.federation.task))
    if task not in OBJECTIVES:
        why = "the study has its own objective, so the meaning of outputs is not known"
        return Baselines(setup.seed, [], [f"There are no baselines: {why}."])
    cells: list[Cell] = []
    left_out: list[str] = []
    for label, train in ((CONSTANT, None), *_learners(setup, left_out)):
        began, said = time.monotonic(), ""
        try:
            found = _evaluate(setup, task, label, train)
        except InputError as error:  # a user's measure may need other outputs
            said = str(error)
        said = next(filter(None, setup.simulation.group.gather(said)), "")
        if said:
            left_out.append(f"The baseline `{label}` was left out: {said}")
            continue
        cell = _cell(setup, label, *found)
        cells.append(replace(cell, seconds=time.monotonic() - began))
    return Baselines(setup.seed, cells, left_out)


def _learners(setup: Setup, left_out: list[str]) -> Iterator[tuple[str, Train]]:
    """The models of scikit-learn that suit the data, by label."""
    federation, study = setup.federation, setup.study
    features, fits = federation.features, len(federation)
    table = features.dim() == 2 and features.is_floating_point()
    known = federation.optima is not None or draws_each_seed(study)
    suits = federation.task in ("binary", "classification", "regression")
    if not table or known or not suits or features.shape[1] > _COLUMNS:
        return
    outputs = max(1, federation.outputs)
    values = int(federation.train.size.sum()) * features.shape[1] * outputs
    columns = federation.preparations is not None or study.data["name"] in _TABULAR
    asked: dict[str, Train] = {LINEAR: linear}
    asked |= {TREES: trees} if columns else {}
    if study.privacy is None and setup.simulation.group.size == 1:
        asked[POOLED] = linear
    for label, train in asked.items():
        if values <= _VALUES[label] and fits * outputs <= _FITS[label]:
            yield label, train
        else:
            left_out.append(
                f"The baseline `{label}` was left out, because it would take long: "
                f"{several(fits, 'client')}, {values:,} training values."
            )


Columns = dict[str, Tensor]


def _evaluate(
    setup: Setup, task: str, label: str, train: Train | None
) -> tuple[Columns, Columns]:
    """Measures of the clients at hand, and the outcomes of their test samples."""
    federation, objective = setup.simulation.federation, setup.simulation.objective
    parts: dict[str, _Rows] = {
        name: _rows(federation, federation.part(name), blind=train is None)
        for name in PARTS
    }
    outputs = _predictions(setup, task, parts, label, train)
    values: Columns = {}
    for name in PARTS:
        if name != "train" or setup.study.run.evaluate_train:
            found = measure(objective, outputs[name], parts[name])
            values |= {f"{name}_{key}": column for key, column in found.items()}
    rows = parts["test"]
    pairs = zip(outputs["test"], rows.targets.split(rows.sizes), strict=True)
    samples = int(setup.federation.test.size.sum())
    return values, outcomes(objective, list(pairs), samples)


def _cell(setup: Setup, label: str, values: Columns, samples: Columns) -> Cell:
    """A baseline of all clients, as the cell of a method that has ended."""
    device, division = setup.x.device, setup.division
    table = tested_samples(setup, setup.federation)
    for name, column in samples.items():
        column = division.join_samples(column.to(device), setup.federation.test.size)
        table[name] = as_kept(name, column, setup.simulation.objective)
    joined = {k: division.join(v.to(device)).cpu() for k, v in values.items()}
    return Cell(
        label,
        setup.seed,
        done=True,
        rounds=[{"round": 0, "gradients": 0.0}],
        metrics=[joined],
        clients=setup.federation.clients.tolist(),
        outcomes=table,
    )


def _rows(federation: Federation, part: Part, *, blind: bool) -> _Rows:
    """The samples of a part, on the CPU; without any feature if `blind`."""
    index, mask = part.rows(torch.arange(len(part.size), device=part.size.device))
    own, features, targets = index[mask], federation.features, federation.targets
    features = features.new_empty(len(own), 0) if blind else features[own]
    targets = targets[own]
    return _Rows(features.cpu(), targets.cpu(), part.size.tolist())


def _predictions(
    setup: Setup, task: str, parts: dict[str, _Rows], label: str, train: Train | None
) -> dict[str, list[Tensor]]:
    """Outputs of every part, client after client."""
    predict: list[Callable[[Tensor], Tensor]] = []
    learned = parts["train"]
    split = learned.features.split(learned.sizes), learned.targets.split(learned.sizes)
    outputs = setup.federation.outputs
    if label == POOLED and train is not None:
        split = (learned.features,), (learned.targets,)
    for features, targets in zip(*split, strict=True):
        x, y = _array(features), _array(targets)
        told = TrainingSet(task, outputs, x, y, setup.seed)
        several = len(targets) > 1 and (
            task == "regression" or targets.unique().numel() > 1
        )
        if train is not None and several:
            predict.append(_of_tensors(train(told)))
        else:
            one = constant_output(task, targets, outputs)
            predict.append(functools.partial(_repeat, one))
    predict *= len(learned.sizes) // len(predict)
    return {
        name: [
            each(some).float()
            for each, some in zip(predict, rows.features.split(rows.sizes), strict=True)
        ]
        for name, rows in parts.items()
    }


def _repeat(one: Tensor, asked: Tensor) -> Tensor:
    """The same output for all samples."""
    return one.expand(len(asked), *one.shape)


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.double().numpy() if tensor.is_floating_point() else tensor.numpy()


def _of_tensors(predict: Predict) -> Callable[[Tensor], Tensor]:
    """The same prediction from tensors to tensors, also for no samples."""

    def predict_some(asked: Tensor) -> Tensor:
        # Models of scikit-learn refuse to predict for no samples.
        some = asked if len(asked) else asked.new_zeros(1, *asked.shape[1:])
        return torch.from_numpy(predict(_array(some)))[: len(asked)]

    return predict_some


def measure(
    objective: Objective, outputs: list[Tensor], rows: _Rows
) -> dict[str, Tensor]:
    """Loss and measures of each client, (n,) each; NaN without samples."""
    every, sizes = torch.cat(outputs), torch.tensor(rows.sizes)
    owner, found = torch.arange(len(sizes)).repeat_interleave(sizes), {}
    for name, of in objective.per_sample.items():
        values = of(every, rows.targets).double()
        sums = torch.zeros(len(sizes), dtype=torch.float64).index_add(0, owner, values)
        found[name] = (sums / sizes).float()
    targets = rows.targets.split(rows.sizes)
    for name, whole in objective.of_client.items():
        each = [
            value_of(name, whole, *row) for row in zip(outputs, targets, strict=True)
        ]
        found[name] = torch.tensor(each)
    return found
