"""Folders of exported models: a folder is complete and checked, or does not exist."""

from __future__ import annotations

import itertools
import json
import platform
import tempfile
import unicodedata
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .. import __version__
from ..checks import InputError
from ..data.federation import full_name
from ..data.given import GIVEN
from ..data.looking.sources import holds_arrays
from ..models import MEASURES, OBJECTIVES
from ..records import Records
from ..records.files import sealed_json, write
from ..scores.finals import labels_of, local_label
from ..scores.summaries import favourite_of, lacks_choice
from ..scores.words import some_of
from .cards import card
from .modules import ROWS
from .predictions import ABOUT, FORMAT, checksum, read_export
from .programs import (
    ONNX,
    PROGRAM,
    TOLERANCE,
    WEIGHTS,
    difference,
    onnx_in,
    program_in,
    reason_of,
    write_onnx,
    write_program,
    write_weights,
)
from .runs import Run, TrainedModel

CARD = "README.md"

_FILES = {CARD, ABOUT, WEIGHTS, PROGRAM, ONNX}


class Export(NamedTuple):
    """A model that was written to a folder."""

    folder: Path
    label: str
    seed: int
    skipped: tuple[str, ...]  # sentences: which files were not written, and why


def default_label(records: Records) -> str:
    """The algorithm whose model is exported by default.

    The default is the algorithm of the headline: the one with the best mean validation
    score at the last round. Oracles and training alone are not considered. If there is
    no other algorithm, the default is training alone.
    """
    local = local_label(records)
    others = [a for a in labels_of(records) if a != local and a not in records.oracles]
    if lacks_choice(records):
        raise InputError(
            f"`algorithm` must be one of {', '.join(labels_of(records))}, because "
            "there are no validation data to choose by."
        )
    if others:
        return favourite_of(records)
    if local is None:
        raise InputError(
            "`algorithm` must be given, because all algorithms with results know the "
            "true clusters or optima."
        )
    return local


def export_model(
    run: Run,
    client: int | str,
    to: Path | str,
    *,
    label: str | None = None,
    seed: int | None = None,
    overwrite: bool = False,
) -> Export:
    """Writes the model of one client into a folder of its own, and checks it.

    Args:
        run: a result of `load`.
        client: the name of the client, or its position among all clients.
        to: the folder, which must not exist.
        label: the label of the algorithm; None: see `default_label`.
        seed: None: the first seed of the study that has models of the algorithm.
        overwrite: whether to replace an earlier export in `to`.
    """
    to = Path(to)
    _refuse_other(to, overwrite)
    label, seed, chosen = _resolve_cell(run, label, seed)
    trained = _finite_model(run, client, label, seed)
    target = to.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        dir=target.parent, prefix=f".{target.name}."
    ) as place:
        new = Path(place) / "new"
        new.mkdir()
        skipped = _fill(new, run, trained, chosen)
        _take_place(new, target, Path(place) / "old")
    return Export(to, trained.label, trained.seed, skipped)


def export_all(
    run: Run,
    to: Path | str,
    *,
    label: str | None = None,
    seed: int | None = None,
    overwrite: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Export]:
    """Writes the models of all clients, each into its own folder; returns them by name.

    The folders in `to` are named after the clients. `progress` is called with the
    number of models written so far, and the number of all. The other arguments are the
    same as in `export_model`.

    Raises:
        InputError: before anything is written; it names all problems.
    """
    known, seed, _ = _resolve_cell(run, label, seed)
    clients = run.clients_of(known, seed)
    names = {client: full_name(run.records.names, client) for client in clients}
    places = dict(zip(clients, folder_names(list(names.values())), strict=True))
    _refuse_any(run, {k: Path(to) / places[k] for k in clients}, known, seed, overwrite)
    found = {}
    for done, client in enumerate(clients):
        progress(done, len(clients))
        place = Path(to) / places[client]
        found[names[client]] = export_model(
            run, client, place, label=label, seed=seed, overwrite=overwrite
        )
    progress(len(clients), len(clients))
    return found


def _refuse_any(
    run: Run, places: dict[int, Path], label: str, seed: int | None, overwrite: bool
) -> None:
    """Refuses models that cannot be written; the error names all problems at once."""
    old = [place for place in places.values() if (place / ABOUT).is_file()]
    old = [] if overwrite else old
    problems = []
    if old:
        problems.append(
            f"{some_of(list(map(str, old)), most=3)} hold exported models already, "
            "so name another folder, or use --force"
        )
    for client, place in places.items():
        try:
            if place not in old:
                _refuse_other(place, overwrite)
            _finite_model(run, client, label, seed)
        except InputError as error:
            problems.append(str(error).rstrip("."))
    if problems:
        raise InputError(f"nothing was written: {'; '.join(problems)}.")


def folder_names(clients: Sequence[str]) -> list[str]:
    """Names for the folders of clients' models, all different.

    >>> folder_names(["St. Gallen/2", "..", "Bern", "BERN", "北京", "CON"])
    ['St._Gallen_2', 'client', 'Bern', 'BERN-2', '北京', 'CON_']
    """
    found: list[str] = []
    for client in clients:
        name = folder_name(client)
        taken = {_disk_name(other) for other in found}
        others = (f"{name}-{k}" for k in itertools.count(2))
        choices = itertools.chain([name], others)
        found.append(next(each for each in choices if _disk_name(each) not in taken))
    return found


def folder_name(client: str) -> str:
    """A name that every file system accepts, with letters of any script.

    It has at most 120 bytes, does not begin with a dot, and never names a device of
    Windows.
    """
    letters = unicodedata.normalize("NFC", client)
    name = "".join(c if _is_plain(c) else " " for c in letters)
    name = "_".join(name.split()).lstrip("._")
    name = name.encode()[:_MOST_BYTES].decode(errors="ignore").rstrip(".")
    if not any(c.isalnum() for c in name):
        return "client"
    first, dot, rest = name.partition(".")
    return f"{first}_{dot}{rest}" if first.upper() in _DEVICES else name


def _is_plain(character: str) -> bool:
    """Whether a character is a letter, an accent, a digit, or `.`, `_` or `-`."""
    return character in "._-" or unicodedata.category(character)[0] in "LMN"


def _disk_name(name: str) -> str:
    """A form of a name; names that some disks cannot distinguish have the same form."""
    return unicodedata.normalize("NFKC", name).casefold()


_MOST_BYTES = 120
"""The most bytes of a name. File systems allow 255; the rest is for additions."""

_NUMBERED = (f"{device}{k}" for device in ("COM", "LPT") for k in "123456789¹²³")
_DEVICES = frozenset(["CON", "PRN", "AUX", "NUL", *_NUMBERED])
"""Names of devices on Windows, even with an ending after a dot."""


def _resolve_cell(
    run: Run, label: str | None, seed: int | None
) -> tuple[str, int | None, str]:
    """The algorithm and the seed, and a sentence on how the algorithm was chosen."""
    chosen = ""
    if label is None:
        label = default_label(run.records)
        has_validation = (run.records.clients["validation"] > 0).any()
        chosen = _CHOSEN if has_validation else _ONLY
        chosen = _ALONE if label == local_label(run.records) else chosen
    if seed is None:
        seed = next((s for a, s in run.models_available() if a == label), None)
    return label, seed, chosen


def _finite_model(
    run: Run, client: int | str, label: str, seed: int | None
) -> TrainedModel:
    """The model of a client; refused if its numbers are not finite."""
    trained = run.trained_model(client, label, seed)
    if not all(bool(p.isfinite().all()) for p in trained.model.parameters()):
        who = full_name(run.records.names, trained.client)
        raise InputError(
            f"the model of {who} by {label} is not finite, because its training "
            "failed: name another algorithm."
        )
    return trained


_CHOSEN = (
    "It was chosen by validation data: it has the best mean validation score over "
    "clients, among the algorithms that do not know the true clusters or optima."
)

_ONLY = (
    "Apart from training alone and algorithms that know the true clusters or optima, "
    "its study has no other algorithm."
)

_ALONE = (
    "It was trained alone: all other algorithms of its study know the true clusters or "
    "optima, or there are none."
)


def _refuse_other(to: Path, overwrite: bool) -> None:
    """Refuses a path where something exists, except an export that may be replaced."""
    if not to.exists() and not to.is_symlink():
        return
    if not (to / ABOUT).is_file():
        raise InputError(f"`to` must be a new folder, but {to} is something else.")
    if not overwrite:
        raise InputError(
            f"`to` must be a new folder, but {to} is an exported model: name another "
            "folder, or use --force."
        )
    strange = sorted({path.name for path in to.iterdir()} - _FILES)
    if strange:
        raise InputError(
            f"{to} cannot be replaced: it holds {strange[0]!r}, which is not part of "
            "an export."
        )


def _take_place(new: Path, target: Path, old: Path) -> None:
    """Moves the new folder to its place; a folder already there moves to `old`."""
    if target.exists():
        target.rename(old)
    try:
        new.rename(target)
    except OSError:
        if old.exists():
            old.rename(target)
        raise


def _fill(
    folder: Path, run: Run, trained: TrainedModel, chosen: str
) -> tuple[str, ...]:
    """Writes all files into a new folder; returns what was not written, and why."""
    records, module = run.records, trained.module
    samples = trained.inputs.samples(trained.preparation)
    tolerance = TOLERANCE[trained.architecture.dtype]
    write_weights(folder / WEIGHTS, trained.model)
    program = write_program(folder / PROGRAM, module, samples)
    gap = difference(program_in(folder / PROGRAM), module, samples)
    if gap > tolerance:
        raise InputError(
            f"the exported program differs from the module by {gap:.2g}, more than "
            f"{tolerance:g}, so it would predict something else."
        )
    files: dict[str, dict[str, Any]] = {PROGRAM: {"difference": gap}}
    files[ONNX] = _onnx(folder / ONNX, program, trained, samples, tolerance)
    files[WEIGHTS] = {"difference": 0.0}
    about = describe_model(records, trained, files) | {
        "chosen": chosen,
        "tried": ROWS,
        "tolerance": tolerance,
        "checksums": {path.name: checksum(path) for path in sorted(folder.iterdir())},
    }
    text = json.dumps(sealed_json(about), indent=1, ensure_ascii=False)
    write(folder / ABOUT, text + "\n")
    again = difference(read_export(folder, trust=run.trust).module, module, samples)
    if again:
        raise InputError(
            f"the exported model differs from the model of the run by {again:.2g}: its "
            "factory makes another model in each call."
        )
    write(folder / CARD, card(records, trained, about))
    why = files[ONNX].get("skipped")
    return (f"{ONNX} was not written: {why}.",) if why else ()


def _onnx(
    path: Path,
    program: Any,
    trained: TrainedModel,
    samples: torch.Tensor,
    tolerance: float,
) -> dict[str, Any]:
    """The difference of outputs of the ONNX file and the module, or why it failed."""
    why = write_onnx(path, program, samples)
    if why:
        return {"skipped": why}
    try:
        gap = difference(onnx_in(path), trained.module, samples)
    except Exception as error:  # from the library that runs it
        gap, why = float("inf"), f"it cannot be run: {reason_of(error)}"
    if gap > tolerance:
        path.unlink()
        more = f"it differs from the module by {gap:.2g}, more than {tolerance:g}"
        return {"skipped": why or more}
    return {"difference": gap}


def describe_model(
    records: Records, trained: TrainedModel, files: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """The content of model.json."""
    made, how, data = trained.architecture, trained.preparation, records.study["data"]
    of_table = data.get("name") == "file" and not holds_arrays(data.get("path"))
    of_table = of_table or (data.get("name") == GIVEN and "target" in data)
    target = str(data.get("target", "target")) if of_table else ""
    others = [str(data.get("client", "client")), "is_test", *data.get("drop", [])]
    features = how.names if how is not None else records.features
    return {
        "format": FORMAT,
        "client": full_name(records.names, trained.client),
        "study": str(records.study.get("name", "")),
        "algorithm": trained.label,
        "seed": trained.seed,
        "task": records.task,
        "classes": list(records.classes),
        "measure": _measure(records, how is not None and how.unit is not None),
        "table": {"target": target, "others": others if of_table else []},
        "input": {
            "shape": ["rows", *trained.inputs.shape],
            "dtype": trained.inputs.dtype,
            "columns": [] if how is None else [c.name for c in how.columns],
        },
        "features": list(features),
        "preparation": None if how is None else how.plain(),
        "model": {
            "name": made.name,
            "options": made.options,
            "shape": list(made.shape),
            "outputs": made.outputs,
            "dtype": made.dtype,
        },
        "files": files,
        "versions": {
            "trained": _training_versions(records, trained),
            "exported": _current_versions(),
        },
    }


def _measure(records: Records, scaled: bool) -> dict[str, str]:
    """The measure of the run; the usual measure if the run's needs more than new rows.

    Losses may be `scaled`: then they are of targets that new rows do not have.
    """
    usual, name = OBJECTIVES[records.task].score, records.score
    model = records.study.get("model", {})
    loss = str(model.get("loss", ""))
    own = ":" in loss or ":" in str(model.get("objective", ""))
    if scaled:
        usual, own = "rmse", own or loss not in ("", "squared", "absolute")
    known = (name in MEASURES and records.task in MEASURES[name].tasks) or (
        name == "loss" and not own
    )
    return {"name": name if known else usual, "loss": "" if own else loss}


def _training_versions(records: Records, trained: TrainedModel) -> dict[str, str]:
    """The software and hardware that trained the last round of a cell."""
    table = records.made_by
    if table.empty:
        return {}
    mine = (table["algorithm"] == trained.label) & (table["seed"] == trained.seed)
    rows = table[mine].drop(columns=["algorithm", "seed", "round", "source"])
    return {} if rows.empty else {str(k): str(v) for k, v in rows.iloc[-1].items()}


def _current_versions() -> dict[str, str]:
    return {
        "coterie": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "safetensors": version("safetensors"),
        "system": platform.system(),
    }
