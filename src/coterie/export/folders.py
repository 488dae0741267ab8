"""The folder of an exported model: complete and checked, or not there at all."""

from __future__ import annotations

import json
import platform
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .. import __version__
from ..checks import InputError
from ..data.federation import full_name
from ..data.looking.sources import is_npz
from ..models import MEASURES, OBJECTIVES
from ..records import Records
from ..records.files import sealed_json, write
from ..scores.finals import baseline_of, labels_of
from ..scores.summaries import favourite_of
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
    local = baseline_of(records)
    others = [a for a in labels_of(records) if a != local and a not in records.oracles]
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
    chosen = ""
    if label is None:
        label = default_label(run.records)
        chosen = _ALONE if label == baseline_of(run.records) else _CHOSEN
    if seed is None:
        seed = next((s for a, s in run.ended() if a == label), None)
    trained = run.trained(client, label, seed)
    if not all(bool(p.isfinite().all()) for p in trained.model.parameters()):
        who = full_name(run.records.names, trained.client)
        raise InputError(
            f"the model of {who} by {label} is not finite, so it predicts nothing: its "
            "training failed. Name another algorithm."
        )
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


_CHOSEN = (
    "Of the algorithms of its study it was chosen by validation data: the best mean "
    "validation score over clients, of those that are told no truth."
)


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
            "folder, or say --overwrite."
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
    about = _about(records, trained, files) | {
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


def _about(
    records: Records, trained: Trained, files: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """What model.json says."""
    made, how, data = trained.architecture, trained.preparation, records.study["data"]
    of_table = "path" in data and not is_npz(data["path"])
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
