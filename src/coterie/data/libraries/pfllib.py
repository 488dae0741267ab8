"""Data in the format of PFLlib: folders `train` and `test` with a file for each client.

A file is called 0.npz, 1.npz, ... and has an array `data`, which holds one dictionary
with the arrays `x` and `y`. `config.json` has the number of classes, `num_classes`.

Zhang et al., "PFLlib: a beginner-friendly and comprehensive personalized federated
learning library and benchmark", JMLR 2025, arXiv:2312.04992.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from ...checks import InputError, brief, integer
from ..federation import Table
from ..files import in_order
from .clients import ClientRows, folder_of, table_of_clients
from .pickles import read_pickled


def pfllib(*, path: str = "", task: str = "classification") -> Table:
    """Clients of PFLlib: npz files in the folders `train` and `test`.

    Args:
        path: the folder with `train`, `test` and `config.json`, such as MNIST.
        task: the kind of targets.
    """
    folder = folder_of(path, "PFLlib")
    files = {part: _files(folder / part) for part in ("train", "test")}
    parts = {
        part: {who: _samples(file) for who, file in some.items()}
        for part, some in files.items()
    }
    config = folder / "config.json"
    classes = _classes(config) if config.is_file() else None
    name = folder.resolve().name
    table = table_of_clients(
        name, parts["train"], parts["test"], task=task, classes=classes
    )
    used = [path for some in files.values() for path in some.values()]
    return table._replace(files=(*used, *([config] if config.is_file() else [])))


def _files(folder: Path) -> dict[str, Path]:
    """The file of each client, by its number."""
    if not folder.is_dir():
        raise InputError(
            f"`data.path` must have a folder {folder.name}: {folder} is none."
        )
    found = {path.stem: path for path in folder.glob("*.npz")}
    other = [stem for stem in found if not (stem.isascii() and stem.isdigit())]
    if other or not found:
        got = f"got {sorted(other)[0]}.npz" if other else "there are none"
        raise InputError(
            f"the files in {folder} must be called 0.npz, 1.npz, and so on, but {got}."
        )
    return {stem: found[stem] for stem in in_order(set(found))}


def _classes(config: Path) -> int | None:
    """The number of classes, if the file of settings says it."""
    try:
        content = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"cannot read {config.name} as JSON: {brief(str(error))}."
        ) from None
    said = content.get("num_classes") if isinstance(content, dict) else None
    return None if said is None else integer("num_classes", said, at_least=1)


def _samples(path: Path) -> ClientRows:
    """The samples in the file of one client."""
    place = f"{path.parent.name}/{path.name}"
    try:
        found = _data(path)
    except (OSError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise InputError(f"cannot read {place}: {reason[:200]}.") from None
    if not isinstance(found, dict) or not {"x", "y"} <= found.keys():
        raise InputError(f"`data` of {place} must be a dictionary with `x` and `y`.")
    for key in ("x", "y"):
        if not isinstance(found[key], np.ndarray) or found[key].ndim == 0:
            raise InputError(
                f"`{key}` of {place} must be one array of numbers, got "
                f"{brief(found[key])}."
            )
    return ClientRows(found["x"], found["y"])


def _data(path: Path) -> Any:
    """What the array `data` of an npz file holds."""
    with zipfile.ZipFile(path) as archive:
        if "data.npy" not in archive.namelist():
            raise ValueError("it has no array 'data'")
        with archive.open("data.npy") as file:
            version = np.lib.format.read_magic(file)
            header = np.lib.format.read_array_header_1_0
            if version != (1, 0):
                header = np.lib.format.read_array_header_2_0
            shape, _, kind = header(file)
            if kind.kind != "O" or shape != ():
                raise ValueError("its array 'data' is not a dictionary")
            return read_pickled(file.read())
