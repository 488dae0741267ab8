"""Small files that people wrote or received: refused in one sentence if unreadable."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from ...checks import InputError, within_64_bits

_LARGEST = 16 * 2**20


def content_of(what: str, path: Path) -> bytes:
    """The bytes of a small plain file; `what` names it in errors."""
    try:
        if path.exists() and not path.is_file():  # a pipe would never end
            raise InputError(f"the {what} {path} must be a plain file.")
        with path.open("rb") as file:
            found = file.read(_LARGEST + 1)
    except OSError as error:
        reason = f"the {what} {path} cannot be read: {error.strerror}."
        raise InputError(reason) from None
    if len(found) > _LARGEST:
        raise InputError(f"the {what} {path} must have at most 16 MB.")
    return found


def tables_of(what: str, path: Path) -> dict[str, Any]:
    """The tables of a TOML file; `what` names it in errors."""
    try:
        text = content_of(what, path).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"the {what} {path} is not text in UTF-8.") from None
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also for a number of 5000 digits
        reason = str(error).partition(";")[0].rstrip(".")
        raise InputError(f"the {what} {path} is not valid TOML: {reason}.") from None
    within_64_bits("", tables)
    return tables
