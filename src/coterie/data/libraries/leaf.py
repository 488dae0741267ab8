"""Data in the format of LEAF: JSON files with the samples of many users.

Each file holds `users` (names), `num_samples` (of each) and `user_data`, which has
lists `x` and `y` for every user. Files of training samples are in a folder `train`,
files of test samples in a folder `test`. `num_samples` is not read, because LEAF writes
numbers that are too large for the test part of Shakespeare.

Caldas et al., "LEAF: a benchmark for federated settings", 2018, arXiv:1812.01097.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...checks import InputError, brief, integer
from ..federation import Table, client_name
from .clients import ClientRows, folder_of, table_of_clients


def leaf(
    *, path: str = "", task: str = "classification", shape: Sequence[int] = ()
) -> Table:
    """Users of LEAF: JSON files in the folders `train` and `test`; each is a client.

    Args:
        path: the folder that holds `train` and `test`, or JSON files of all samples.
        task: the kind of targets.
        shape: the shape of a sample's features, such as [1, 28, 28]; (): the shape in
            the file.
    """
    for size in shape:
        integer("data.shape", size, at_least=1)
    folder = folder_of(path, "LEAF")
    places = {part: folder / part for part in ("train", "test")}
    divided = places["train"].is_dir()
    if not divided:
        places = {"train": folder}
    files = {part: _files(place) for part, place in places.items()}
    read = {part: _users(some) for part, some in files.items()}
    letters = _turn_into_codes(
        [some for part in read.values() for some in part.values()]
    )
    parts = {
        part: {who: ClientRows(*_arrays(some, shape)) for who, some in users.items()}
        for part, users in read.items()
    }
    name = (folder.parent if folder.name == "data" else folder).resolve().name
    table = table_of_clients(
        name, parts["train"], parts.get("test"), task=task, classes=len(letters) or None
    )
    used = [path for some in files.values() for path in some]
    return table._replace(files=tuple(used), classes=letters)


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise InputError(
            f"`data.path` must have a folder {folder.name}: {folder} is none."
        )
    found = sorted(folder.glob("*.json"))
    if not found:
        raise InputError(f"the folder {folder} has no files that end in .json.")
    return found


def _users(files: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """The `x` and `y` of every user, as arrays where they are numbers."""
    found: dict[str, dict[str, Any]] = {}
    for path in files:
        for who, some in _users_of(path):
            if who in found:
                raise InputError(
                    f"each user must be in one file of {path.parent.name}, but "
                    f"{client_name([who], 0)} is also in {path.name}."
                )
            found[who] = some
    return found


def _users_of(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        with path.open(encoding="utf-8") as stream:
            content = json.load(stream)
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"cannot read {path.name} as JSON: {brief(str(error))}."
        ) from None
    keys = ("users", "num_samples", "user_data")
    known = isinstance(content, dict) and all(key in content for key in keys)
    if not known or not isinstance(content["user_data"], Mapping):
        raise InputError(
            f"{path.name} must be an object with `users`, `num_samples` and "
            "`user_data`, as LEAF writes it."
        )
    users, data = content["users"], content["user_data"]
    if not isinstance(users, list) or set(map(str, users)) != set(data):
        raise InputError(
            f"`users` of {path.name} must be the names that `user_data` has."
        )
    for who, some in data.items():
        lists = isinstance(some, dict) and all(
            isinstance(some.get(key), list) for key in ("x", "y")
        )
        whose = f"{client_name([who], 0)} in {path.name}"
        if not lists:
            raise InputError(f"the data of {whose} must have lists `x` and `y`.")
        yield who, {key: _array(some[key], key, whose) for key in ("x", "y")}


def _array(values: list[Any], key: str, whose: str) -> np.ndarray:
    """The numbers, or text of one length as the codes of its characters."""
    text = [isinstance(value, str) for value in values]
    if any(text) and all(text) and len({len(value) for value in values}) == 1:
        return np.array(values)
    try:
        found = np.array(None if any(text) else values)
    except ValueError:  # lists of several lengths
        found = np.array(None)
    if found.dtype.kind not in "biuf":
        raise InputError(
            f"`{key}` of {whose} must hold numbers in lists of one length, or text of "
            f"one length, got {brief(values[0] if values else values)}."
        )
    return found.astype(np.float32) if found.dtype.kind == "f" else found


def _turn_into_codes(samples: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """The list of all characters; turns text in the samples into positions in it.

    Nothing changes unless `x` and `y` are text, as when `y` is the character after `x`.
    """
    written = [some for some in samples if len(some["y"])]
    if not any(some["y"].dtype.kind == "U" for some in written):
        return ()
    for some in written:
        if any(some[key].dtype.kind != "U" for key in ("x", "y")):
            raise InputError("if `y` of one user is text, `x` and `y` of all must be.")
        if some["y"].dtype.itemsize != 4:
            raise InputError(
                f"text in `y` must be one character, got {brief(str(some['y'][0]))}."
            )
    codes = [_code_points(some[key]) for some in written for key in ("x", "y")]
    letters = np.unique(np.concatenate([np.unique(each) for each in codes]))
    for some in written:
        some["x"] = np.searchsorted(letters, _code_points(some["x"]))
        some["y"] = np.searchsorted(letters, _code_points(some["y"]))[:, 0]
    return tuple(map(chr, letters.tolist()))


def _code_points(text: np.ndarray) -> np.ndarray:
    """(M, L) the code point of each character."""
    return text.view(np.uint32).reshape(len(text), -1)


def _arrays(
    some: dict[str, Any], shape: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    x, y = some["x"], some["y"]
    if shape and len(x):
        size = math.prod(x.shape[1:])
        if size != math.prod(shape):
            raise InputError(
                f"`data.shape` {list(shape)} needs {math.prod(shape)} features, but a "
                f"sample has {size}."
            )
        x = x.reshape(len(x), *shape)
    return x, y
