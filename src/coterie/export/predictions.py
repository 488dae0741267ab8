"""Predictions of an exported model, from its folder alone, without run or data.

The module is made from its architecture and `weights.safetensors`, which cannot hide
code. The programs in the folder are for users without coterie.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from ..checks import InputError, brief, describe_error, one_of, several, suggestion
from ..data.files import checked_path, known_words, raw_values
from ..data.looking.sources import with_names
from ..data.preparation import LIMIT, Preparation, preparation_of
from ..data.reading import (
    FRAMES,
    cells_of,
    finite_numbers,
    read_arrays,
    read_frame,
)
from ..models import (
    MEASURES,
    OBJECTIVES,
    Architecture,
    OfClient,
    loss_named,
    trusted_factory,
    trusted_modules,
)
from ..models.measures import measure_words, predicted_classes, probabilities
from ..records.files import read_json, read_sealed_json
from ..records.shapes import holds
from .modules import PreparedModel
from .programs import WEIGHTS, read_weights, size_of_weights

ABOUT = "model.json"

FORMAT = "coterie export 1"

_AT_ONCE = 2**14
"""The number of rows in one pass."""

_FAR = 4.0
"""If half of all rows are this number of deviations away, their unit may be wrong.

In a unit that is too large, numbers are near zero. So they are about as far from the
mean as zero is, which may be less than `LIMIT` deviations.
"""

_SOME = 5
"""The fewest rows for `_FAR`: of fewer rows, half may be far away by chance."""

_SHAPE = {
    "format": str,
    "client": str,
    "task": str,
    "classes": [str],
    "measure": {"name": str, "loss": str},
    "table": {"target": str, "others": [str]},
    "input": {"dtype": str},
    "model": {
        "name": str,
        "options": dict,
        "shape": [int],
        "outputs": int,
        "dtype": str,
    },
    "checksums": {WEIGHTS: str},
}


class ExportedModel(NamedTuple):
    """A model that was read from its folder."""

    module: nn.Module
    about: dict[str, Any]  # the content of model.json
    preparation: Preparation | None


class Predictions(NamedTuple):
    """The predictions of a model for the rows of a file, and their score."""

    table: pd.DataFrame  # row, predicted, and the probability of each class
    measure: str  # the name of the score
    words: str  # the name of the score, perhaps with a class
    score: float  # of the rows that have a label; NaN if there are none
    labelled: int  # the number of rows that have a label
    notes: tuple[str, ...]  # sentences about unusual rows


def read_export(folder: Path | str, *, trust: Sequence[str] = ()) -> ExportedModel:
    """The model in an exported folder, in evaluation mode.

    Args:
        folder: the folder of the export. Code that it names is not run, except models
            of coterie.
        trust: modules whose models may be made, as in `trust=["mymodels"]`.
    """
    folder = Path(folder)
    about, path = read_about(folder), folder / ABOUT
    if checksum(folder / WEIGHTS) != about["checksums"][WEIGHTS]:
        raise _damage_error(folder / WEIGHTS)
    model = about["model"]
    one_of("dtype", model["dtype"], ("float32", "float64"))
    name, shape = model["name"], tuple(model["shape"])
    made = Architecture(
        name, model["options"], shape, model["outputs"], model["dtype"], seed=0
    )
    make = trusted_factory(name, trusted_modules(trust), folder)
    size = made.size(make)
    if size not in (None, size_of_weights(folder / WEIGHTS)):
        raise InputError(
            f"{folder / WEIGHTS} does not hold the weights of this model, which has "
            f"{size:,} numbers."
        )
    module, how = made.build(make), None
    read_weights(folder / WEIGHTS, module)
    if about["preparation"] is not None:
        try:
            how = preparation_of(about["preparation"])
            module = PreparedModel(how, module, getattr(torch, model["dtype"]))
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise _damage_error(path) from error
        numbers = torch.tensor([how.mean, how.scale])
        if not numbers.isfinite().all() or not (numbers[1] > 0).all():
            raise _damage_error(path)
    return ExportedModel(module.eval(), about, how)


def read_about(folder: Path) -> dict[str, Any]:
    """The content of model.json."""
    path = folder / ABOUT
    if not path.is_file():
        raise InputError(
            f"{str(folder)!r} is not the folder of an exported model: it has no "
            f"{ABOUT}."
        )
    try:
        about = read_json(path)
    except InputError as error:
        raise _damage_error(path) from error
    if about.get("format", FORMAT) != FORMAT:
        raise InputError(
            f"{path} has the format {about['format']!r}, but this version of coterie "
            f"reads {FORMAT!r}."
        )
    about = read_sealed_json(path)
    if (
        not holds(about, _SHAPE)
        or "preparation" not in about
        or not _is_consistent(about)
    ):
        raise _damage_error(path)
    return about


def _is_consistent(about: dict[str, Any]) -> bool:
    """Whether task, classes, measure and model are known, and fit together."""
    task, model, measure = about["task"], about["model"], about["measure"]
    if task not in OBJECTIVES or min([*model["shape"], model["outputs"]]) < 1:
        return False
    known = measure["name"] in ("loss", *MEASURES)
    labelled = OBJECTIVES[task].labelled
    many = len(about["classes"]) in (0, max(2, model["outputs"])) or not labelled
    # An export never names a loss of the user's own.
    return known and many and ":" not in measure["loss"]


def _damage_error(path: Path) -> InputError:
    return InputError(f"{path} is damaged or missing: export the model again.")


def checksum(path: Path) -> str:
    """The SHA-256 of a file; empty if it cannot be read."""
    if not path.is_file():  # a pipe would never end
        return ""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError:
        return ""


def predict(
    folder: Path | str, file: Path | str, *, trust: Sequence[str] = ()
) -> Predictions:
    """The predictions of an exported model for the rows of a table or an npz file.

    Args:
        folder: the folder of the exported model.
        file: a table with the columns that the model was trained on and perhaps the
            target, or an npz file with an array `features` and perhaps `targets`.
        trust: modules whose models may be made; see `read_export`.
    """
    exported = read_export(folder, trust=trust)
    about, how = exported.about, exported.preparation
    path = checked_path(file, (*FRAMES, ".npz"))
    if about["task"] == "segmentation":
        raise InputError(
            f"the model in {folder} gives masks, which a table cannot hold: use it "
            "from Python, as its README.md shows."
        )
    if path.suffix == ".npz":
        frame, raw = _arrays(path, exported)
        found = _predict_raw(exported, frame, raw, path, "targets")
        return found._replace(notes=tuple(_distance_notes(frame, how, raw)))
    if how is None:
        raise InputError(
            f"the model in {folder} takes features of shape "
            f"{tuple(about['model']['shape'])}, not the columns of a table: give it an "
            f"npz file with an array `features` of shape {_expected_shape(exported)}."
        )
    return predict_cells(exported, how, read_frame(path)[0], path)


def predict_cells(
    exported: ExportedModel, how: Preparation, frame: pd.DataFrame, path: Path
) -> Predictions:
    """The predictions of a model for the rows of a table in memory."""
    table = exported.about["table"]
    known = [*(c.name for c in how.columns), table["target"], *table["others"]]
    frame = with_names(frame, known)
    _refuse_columns(frame, path, how, table)
    raw = raw_values(frame, path, how)
    found = _predict_raw(exported, frame, raw, path, table["target"])
    notes = [*_category_notes(frame, path, how, raw), *_distance_notes(frame, how, raw)]
    return found._replace(notes=tuple(notes))


def _predict_raw(
    exported: ExportedModel, frame: pd.DataFrame, raw: Tensor, path: Path, target: str
) -> Predictions:
    """The predictions of a model for raw values, with a score if there are targets."""
    about, outputs = exported.about, _outputs(exported.module, raw, path)
    bad = np.flatnonzero(~outputs.flatten(1).isfinite().all(1).numpy())
    if len(bad):
        raise InputError(
            f"the model's output for row {frame.index[bad[0]]} of {path.name} is not "
            "finite, because its values are too large."
        )
    has, targets = _targets(frame, path, about, outputs, target)
    measure, score = _score(about, outputs[has], targets)
    table = _table(frame, about, outputs)
    words = measure_words(measure, about["task"], about["classes"])
    return Predictions(table, measure, words, score, int(has.sum()), ())


def _outputs(module: nn.Module, raw: Tensor, path: Path) -> Tensor:
    """The outputs of the model for all rows."""
    try:
        with torch.no_grad():
            return torch.cat([module(some) for some in raw.split(_AT_ONCE)])
    except (IndexError, RuntimeError) as error:  # such as a word id out of range
        raise InputError(
            f"the model cannot take the rows of {path.name}: {describe_error(error)}."
        ) from error


def _expected_shape(exported: ExportedModel) -> str:
    """The shape of the features that the model takes, in words."""
    how, shape = exported.preparation, exported.about["model"]["shape"]
    sizes = shape if how is None else [len(how.columns)]
    return f"({', '.join(['rows', *map(str, sizes)])})"


def _arrays(path: Path, exported: ExportedModel) -> tuple[pd.DataFrame, Tensor]:
    """The labels of an npz file, if it has some, and its features for the model."""
    arrays, about = read_arrays(path, needed=["features"]), exported.about
    features, wanted = arrays["features"], _expected_shape(exported)
    if f"({', '.join(['rows', *map(str, features.shape[1:])])})" != wanted:
        raise InputError(
            f"array 'features' of {path.name} must have the shape {wanted}, got "
            f"{features.shape}."
        )
    kinds = ("float64", "float32", "int64", "int32", "int16", "int8", "uint8", "bool")
    dtype = getattr(torch, one_of("dtype", about["input"]["dtype"], kinds))
    if features.dtype.kind == "f" and not dtype.is_floating_point:
        raise InputError(
            f"array 'features' of {path.name} must hold whole numbers, got "
            f"{features.dtype}."
        )
    _refuse_codes(features, path, exported.preparation)
    frame = pd.DataFrame(index=np.arange(1, len(features) + 1))
    targets = arrays.get("targets")
    if targets is not None:
        if targets.ndim != 1:
            raise InputError(
                f"array 'targets' of {path.name} must have one target per row, shape "
                f"({len(features)},), got {targets.shape}: leave it out to predict "
                "without a score."
            )
        frame["targets"] = targets
    # Types that every version of torch reads, whatever types the file has.
    plain = np.float64 if dtype.is_floating_point else np.int64
    return frame, torch.from_numpy(features.astype(plain)).to(dtype)


def _refuse_codes(features: np.ndarray, path: Path, how: Preparation | None) -> None:
    """Refuses raw columns with codes that stand for no category or truth value."""
    for place, column in enumerate([] if how is None else how.columns):
        known = len(column.categories or ())
        rule = f"-1 (no category of training) to {known - 1}, whole numbers"
        allowed = np.arange(-1, known)
        if column.truth:
            rule, allowed = "0 or 1, for false or true", np.arange(2)
        elif column.categories is None:
            continue
        bad = np.flatnonzero(~np.isin(features[:, place], allowed))
        if len(bad):
            raise InputError(
                f"column {place + 1} of 'features' in {path.name}, which is "
                f"{column.name!r}, must hold {rule}, but row {bad[0] + 1} holds "
                f"{features[bad[0], place]:g}."
            )


def _refuse_columns(
    frame: pd.DataFrame, path: Path, how: Preparation, table: dict[str, Any]
) -> None:
    """Refuses a table with columns that the model does not know."""
    needed = [column.name for column in how.columns]
    known = {*needed, table["target"], *table["others"]}
    for name in frame.columns:
        if name not in known:
            absent = [column for column in needed if column not in frame]
            raise InputError(
                f"{path.name} has a column {brief(name)}, which the model does not "
                f"know: leave it out.{suggestion(name, absent)}"
            )


def _category_notes(
    frame: pd.DataFrame, path: Path, how: Preparation, raw: Tensor
) -> list[str]:
    """One sentence for each column with categories that training did not have."""
    notes = []
    for place, column in enumerate(how.columns):
        if column.categories is None:
            continue
        rows = np.flatnonzero(raw[:, place].numpy() == -1)
        if len(rows):
            word = cells_of(frame[column.name], path).text[rows[0]]
            hold = "holds" if len(rows) == 1 else "hold"
            some = f"{len(rows):,} of {several(len(frame), 'row')} {hold}"
            notes.append(
                f"column {column.name!r}: {some} a category that training did not "
                f"have, such as {brief(word)} in row {frame.index[rows[0]]}; it counts "
                "as no category."
            )
    return notes


def _distance_notes(
    frame: pd.DataFrame, how: Preparation | None, raw: Tensor
) -> list[str]:
    """One sentence for each column with numbers far from its training data.

    Distances are in deviations of training data. There are no sentences if the features
    were not scaled.
    """
    if how is None or not any(mean or scale != 1 for mean, scale in _moments(how)):
        return []
    notes = []
    for place, (mean, scale) in enumerate(_moments(how)):
        column = how.columns[place]
        if column.categories is not None or column.truth:
            continue
        away = ((raw[:, place].double() - mean) / scale).abs()
        middle = float(away.nanmedian()) if len(away) >= _SOME else 0.0
        limit, words = (_FAR, "four") if middle >= _FAR else (LIMIT, "ten")
        rows = np.flatnonzero((away >= limit).numpy())
        if len(rows):
            check = "dates" if column.date else "unit"
            lie = "lies" if len(rows) == 1 else "lie"
            some = f"{len(rows):,} of {several(len(frame), 'row')} {lie}"
            notes.append(
                f"column {column.name!r}: {some} {words} or more deviations from what "
                f"the model was trained on, such as row {frame.index[rows[0]]}; check "
                f"the {check} of this column, as these predictions mean little."
            )
    return notes


def _moments(how: Preparation) -> list[tuple[float, float]]:
    return list(zip(how.mean, how.scale, strict=True))


def _class_names(about: dict[str, Any], outputs: Tensor) -> list[str]:
    return about["classes"] or [str(k) for k in range(max(2, outputs.shape[1]))]


def _table(frame: pd.DataFrame, about: dict[str, Any], outputs: Tensor) -> pd.DataFrame:
    """One line for each row, with the row number that a person sees in the file."""
    columns: dict[str, Any] = {"row": frame.index.to_numpy()}
    if OBJECTIVES[about["task"]].labelled:
        names = _class_names(about, outputs)
        columns["predicted"] = np.array(names, dtype=object)[
            predicted_classes(outputs).numpy()
        ]
        chances = probabilities(outputs)
        columns |= {f"probability of {n}": chances[:, j] for j, n in enumerate(names)}
    else:
        values = outputs.reshape(len(frame), -1).numpy()
        several = values.shape[1] > 1
        for j, value in enumerate(values.T):
            columns[f"predicted {j}" if several else "predicted"] = value
    return pd.DataFrame(columns)


def _targets(
    frame: pd.DataFrame, path: Path, about: dict[str, Any], outputs: Tensor, name: str
) -> tuple[np.ndarray, Tensor]:
    """Which rows have a label, and these labels in the form of the objective."""
    labelled = OBJECTIVES[about["task"]].labelled
    if name not in frame:
        return np.zeros(len(frame), bool), torch.empty(0)
    cells = cells_of(frame[name], path)
    has = ~cells.missing
    if not labelled or not about["classes"]:
        numbers = finite_numbers(cells, path, gaps=True)[has]
        if not labelled:
            if outputs.flatten(1).shape[1] > 1:
                raise InputError(
                    f"column {name!r} of {path.name} has one target per row, but the "
                    f"model predicts {outputs.flatten(1).shape[1]}: leave it out."
                )
            return has, torch.tensor(numbers, dtype=outputs.dtype)
        known = [float(label) for label in range(max(2, outputs.shape[1]))]
        places = {label: int(label) for label in known}
        found: list[Any] = numbers.tolist()
    else:
        places = {word: k for k, word in enumerate(about["classes"])}
        found = known_words([str(word) for word in cells.text[has]], about["classes"])
    for row, label in zip(cells.row[has], found, strict=True):
        if label not in places:
            raise InputError(
                f"column {name!r} of {path.name} must name a class of the model, but "
                f"row {row} holds {brief(str(label))}; the classes are "
                f"{', '.join(_class_names(about, outputs)[:20])}."
            )
    return has, torch.tensor([places[label] for label in found], dtype=torch.int64)


def _score(
    about: dict[str, Any], outputs: Tensor, targets: Tensor
) -> tuple[str, float]:
    """The measure of the export and its value on the rows that have a label."""
    name, task = about["measure"]["name"], about["task"]
    if not len(targets):
        return name, float("nan")
    if name == "loss":
        text = about["measure"]["loss"]
        loss = loss_named("loss", text, task) if text else OBJECTIVES[task].loss
        return name, float(loss(outputs, targets).double().mean())
    measure = MEASURES[one_of("measure", name, MEASURES)].measure
    if isinstance(measure, OfClient):
        return name, float(measure.measure(outputs, targets))
    return name, float(measure(outputs, targets).double().mean())
