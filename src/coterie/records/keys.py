"""The secret key of a runs folder, and digests that say nothing without it.

Somebody who guesses a record can write the whole data file with that guess, take its
digest and compare. So what a run keeps of its data is a digest with a key (HMAC), and
the key is a file that its owner alone can read.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ..checks import InputError
from .files import unwritable

KEY = ".key"
"""The file of the key, in the runs folder."""

FINGERPRINT = "the key"
"""Under this name a run says with which key its digests were made."""

_SIZE = 32  # bytes of a key


def write_secret(path: Path, content: bytes, *, once: bool = False) -> None:
    """Replaces a file by one that its owner alone can read; durable when it returns.

    Args:
        path: where.
        content: of the file.
        once: an existing file stays as it is.
    """
    # `mkstemp` makes a file with the mode 0600.
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if once:
            with contextlib.suppress(FileExistsError):
                os.link(name, path)
        else:
            os.replace(name, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def key_of(runs: Path) -> bytes:
    """The key of a runs folder, which is made where there is none.

    Raises:
        InputError: where others may read it, or it is damaged.
    """
    path = runs / KEY
    try:
        if not path.exists():
            runs.mkdir(parents=True, exist_ok=True)
            write_secret(path, secrets.token_bytes(_SIZE), once=True)
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            mode, key = os.fstat(file.fileno()).st_mode, file.read()
    except OSError as error:
        raise unwritable(runs, error) from None
    if mode & 0o077:
        raise InputError(
            f"{path} must be readable by its owner alone: run `chmod 600 {path}`."
        )
    if len(key) != _SIZE:
        raise InputError(
            f"{path} must have {_SIZE} bytes, got {len(key)}: bring the file back, or "
            "use a new runs folder."
        )
    return key


def digest_with(key: bytes, text: str, digits: int = 32) -> str:
    """A digest of a text that nobody can repeat without the key."""
    return hmac.new(key, text.encode(), "sha256").hexdigest()[:digits]


def keyed(read: Mapping[str, str], runs: Path) -> dict[str, str]:
    """Digests of what a study reads, with the key of the runs folder.

    Those of modules stay as they are: programs are not data.

    Args:
        read: digests by what they are of.
        runs: the runs folder.
    """
    data = [what for what in read if not what.startswith("the module ")]
    if not data:
        return dict(read)
    key = key_of(runs)
    made = {what: digest_with(key, read[what]) for what in data}
    return {**read, **made, FINGERPRINT: digest_with(key, FINGERPRINT)}
