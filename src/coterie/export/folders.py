"""The folder of an exported model: complete and checked, or not there at all."""

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
from ..data.looking.sources import is_npz
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
from .runs import Run, Trained

CARD = "README.md"

_FILES = {CARD, ABOUT, WEIGHTS, PROGRAM, ONNX}


class Export(NamedTuple):
    """What was written where, and what was not, in words."""

    folder: Path
    label: str
    seed: int
    skipped: tuple[str, ...]


def default_label(records: Records) -> str:
    """The algorithm whose model is exported unless one is named.

    It is the one of the headline: of those that are neither training alone nor told the
    truth, the one with the best mean validation score at the last round. Training alone
    where there is no other.
    """
    local = local_label(records)
    others = [a for a in labels_of(records) if a != local and a not in records.oracles]
    if lacks_choice(records):
        raise InputError(
            f"`algorithm` must be one of {', '.join(labels_of(records))}: there are no "
            "validation data to choose by."
        )
    if others:
        return favourite_of(records)
    if local is None:
        raise InputError(
            "`algorithm` must be named: all that have results are told the truth, got "
            "none."
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
    """Writes the model of one client into a folder of its own, checked.

    Args:
        run: from `load`.
        client: its name, or its position among all clients.
        to: the folder, which must not exist.
        label: of the algorithm; None: see `default_label`.
        seed: None: the first of the study that has models of it.
        overwrite: take the place of an earlier export in `to`.
    """
    to = Path(to)
    _refuse_other(to, overwrite)
    label, seed, chosen = _meant(run, label, seed)
    trained = _usable(run, client, label, seed)
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
    """Writes the models of all clients, each into a folder of its own, by name.

    Args:
        run: from `load`.
        to: the folder of these folders, which are named after the clients.
        label: of the algorithm; None: see `default_label`.
        seed: None: the first of the study that has models of it.
        overwrite: take the place of earlier exports.
        progress: called with the number of models that are written, and of all.

    Raises:
        InputError: before anything is written, with all that is in the way.
    """
    known, seed, _ = _meant(run, label, seed)
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
    """Refuses what cannot be written, all of it at once."""
    there = [place for place in places.values() if (place / ABOUT).is_file()]
    there = [] if overwrite else there
    problems = []
    if there:
        problems.append(
            f"{some_of(list(map(str, there)), most=3)} hold exported models already, "
            "so name another folder, or say --force"
        )
    for client, place in places.items():
        try:
            if place not in there:
                _refuse_other(place, overwrite)
            _usable(run, client, label, seed)
        except InputError as error:
            problems.append(str(error).rstrip("."))
    if problems:
        raise InputError(f"nothing was written: {'; '.join(problems)}.")


def folder_names(clients: Sequence[str]) -> list[str]:
    """What folders of clients' models are called, each in a way of its own.

    >>> folder_names(["St. Gallen/2", "..", "Bern", "BERN", "北京", "CON"])
    ['St._Gallen_2', 'client', 'Bern', 'BERN-2', '北京', 'CON_']
    """
    found: list[str] = []
    for client in clients:
        name = folder_name(client)
        taken = {_alike(other) for other in found}
        others = (f"{name}-{k}" for k in itertools.count(2))
        tried = itertools.chain([name], others)
        found.append(next(each for each in tried if _alike(each) not in taken))
    return found


def folder_name(client: str) -> str:
    """A name that every file system takes, with the letters of any script.

    It has at most 120 bytes, begins with no dot, and is no device of Windows.
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
    """Whether it is a letter, a mark of one, a digit, or `.`, `_` or `-`."""
    return character in "._-" or unicodedata.category(character)[0] in "LMN"


def _alike(name: str) -> str:
    """The same for names that some disks do not tell apart."""
    return unicodedata.normalize("NFKC", name).casefold()


_MOST_BYTES = 120
"""File systems take 255; the rest is for what is added to a name."""

_NUMBERED = (f"{device}{k}" for device in ("COM", "LPT") for k in "123456789¹²³")
_DEVICES = frozenset(["CON", "PRN", "AUX", "NUL", *_NUMBERED])
"""What Windows takes for a device, whatever follows behind a dot."""


def _meant(
    run: Run, label: str | None, seed: int | None
) -> tuple[str, int | None, str]:
    """Algorithm and seed that are meant, and how the algorithm was chosen."""
    chosen = ""
    if label is None:
        label = default_label(run.records)
        checked = (run.records.clients["validation"] > 0).any()
        chosen = _CHOSEN if checked else _ONLY
        chosen = _ALONE if label == local_label(run.records) else chosen
    if seed is None:
        seed = next((s for a, s in run.ended() if a == label), None)
    return label, seed, chosen


def _usable(run: Run, client: int | str, label: str, seed: int | None) -> Trained:
    """The model of a client, which is finite."""
    trained = run.trained(client, label, seed)
    if not all(bool(p.isfinite().all()) for p in trained.model.parameters()):
        who = full_name(run.records.names, trained.client)
        raise InputError(
            f"the model of {who} by {label} is not finite, so it predicts nothing: its "
            "training failed. Name another algorithm."
        )
    return trained


_CHOSEN = (
    "Of the algorithms of its study it was chosen by validation data: the best mean "
    "validation score over clients, of those that are told no truth."
)


_ONLY = "Its study has nothing else besides training alone and what is told the truth."

_ALONE = "It was trained alone: its study has nothing else that is told no truth."


def _refuse_other(to: Path, overwrite: bool) -> None:
    """Refuses a place where something is, but an export that may be replaced."""
    if not to.exists() and not to.is_symlink():
        return
    if not (to / ABOUT).is_file():
        raise InputError(f"`to` must be a new folder, but {to} is something else.")
    if not overwrite:
        raise InputError(
            f"`to` must be a new folder, but {to} is an exported model: name another "
            "folder, or say --force."
        )
    strange = sorted({path.name for path in to.iterdir()} - _FILES)
    if strange:
        raise InputError(
            f"{to} cannot be replaced: it holds {strange[0]!r}, which no export wrote."
        )


def _take_place(new: Path, target: Path, old: Path) -> None:
    """Puts the new folder in its place, and the one that was there elsewhere."""
    if target.exists():
        target.rename(old)
    try:
        new.rename(target)
    except OSError:
        if old.exists():
            old.rename(target)
        raise


def _fill(folder: Path, run: Run, trained: Trained, chosen: str) -> tuple[str, ...]:
    """Writes all files into a new folder; says what was left out, and why."""
    records, module = run.records, trained.module
    samples = trained.inputs.samples(trained.preparation)
    tolerance = TOLERANCE[trained.architecture.dtype]
    write_weights(folder / WEIGHTS, trained.model)
    program = write_program(folder / PROGRAM, module, samples)
    gap = difference(program_in(folder / PROGRAM), module, samples)
    if gap > tolerance:
        raise InputError(
            f"the model as a program differs from the module by {gap:.2g}, more than "
            f"{tolerance:g}: it computes something else on other rows."
        )
    files: dict[str, dict[str, Any]] = {PROGRAM: {"difference": gap}}
    files[ONNX] = _onnx(folder / ONNX, program, trained, samples, tolerance)
    files[WEIGHTS] = {"difference": 0.0}
    about = about_model(records, trained, files) | {
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
            f"the model that was written differs from the one of the run by "
            f"{again:.2g}: its factory gives another one each time."
        )
    write(folder / CARD, card(records, trained, about))
    why = files[ONNX].get("skipped")
    return (f"{ONNX} was not written: {why}.",) if why else ()


def _onnx(
    path: Path, program: Any, trained: Trained, samples: torch.Tensor, tolerance: float
) -> dict[str, Any]:
    """How far the ONNX file is from the module, or why there is none."""
    why = write_onnx(path, program, samples)
    if why:
        return {"skipped": why}
    try:
        gap = difference(onnx_in(path), trained.module, samples)
    except Exception as error:  # of whatever runs it
        gap, why = float("inf"), f"it cannot be run: {reason_of(error)}"
    if gap > tolerance:
        path.unlink()
        more = f"it differs from the module by {gap:.2g}, more than {tolerance:g}"
        return {"skipped": why or more}
    return {"difference": gap}


def about_model(
    records: Records, trained: Trained, files: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """What model.json says."""
    made, how, data = trained.architecture, trained.preparation, records.study["data"]
    of_table = "path" in data and not is_npz(data["path"])
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
        "versions": {"trained": _trained_with(records, trained), "exported": _now()},
    }


def _measure(records: Records, scaled: bool) -> dict[str, str]:
    """The score of the run where new rows can be scored by it, else the usual one.

    Args:
        records: of the run.
        scaled: whether losses are of targets in deviations, unlike new rows.
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


def _trained_with(records: Records, trained: Trained) -> dict[str, str]:
    """The software and hardware of the last round of a cell."""
    table = records.made_by
    if table.empty:
        return {}
    mine = (table["algorithm"] == trained.label) & (table["seed"] == trained.seed)
    rows = table[mine].drop(columns=["algorithm", "seed", "round", "source"])
    return {} if rows.empty else {str(k): str(v) for k, v in rows.iloc[-1].items()}


def _now() -> dict[str, str]:
    return {
        "coterie": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "safetensors": version("safetensors"),
        "system": platform.system(),
    }
