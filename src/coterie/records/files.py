"""Files of a run: replaced as a whole, read with a sentence where they are damaged."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ..checks import InputError


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path`, which takes its place if all goes well."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def file_name(label: str, seed: int) -> str:
    """A name for the files of a cell that every file system takes.

    >>> file_name("local", 0)
    'local-0'
    >>> file_name("a/b", 0) == file_name("a:b", 0)
    False
    """
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", label)[:60]
    if plain != label:
        plain += "-" + hashlib.blake2b(label.encode(), digest_size=4).hexdigest()
    return f"{plain}-{seed}"


def write(path: Path, text: str) -> None:
    """Replaces a file by one with this text."""
    with replacing(path) as file:
        file.write_text(text, encoding="utf-8")


def read_toml(path: Path) -> dict[str, Any]:
    """The tables in a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise damaged(path, error) from error


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise damaged(path, error) from error


def save(path: Path, values: Any) -> None:
    """Replaces a file by one with these values."""
    try:
        with replacing(path) as file:
            torch.save(values, file)
    except (OSError, RuntimeError) as error:  # torch's own for a full disk
        raise InputError(
            f"the checkpoint {path} cannot be written: {error}; what was saved before "
            "is intact."
        ) from error


def load(path: Path) -> Any:
    """The values that were saved."""
    try:
        return torch.load(path, weights_only=True)
    except Exception as error:  # of many types, depending on where the damage is
        raise damaged(path, error) from error


def damaged(path: Path, error: Exception) -> InputError:
    """What to raise where a file cannot be read, with the remedy."""
    return InputError(
        f"{path} is damaged and cannot be read ({type(error).__name__}); delete it and "
        "run the study again to make it anew."
    )
