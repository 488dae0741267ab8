"""The secret key of a runs folder, and digests that reveal nothing without it.

Without a key, digests could be used to test guesses: write the whole data file with a
guessed record, compute its digest, and compare. So a run keeps only a digest of its
data with a key (HMAC). The key is in a file that only its owner can read.
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
from .files import write_error

KEY = ".key"
"""The file of the key, in the runs folder."""

FINGERPRINT = "the key"
"""The name under which a run keeps a digest that identifies its key."""

_SIZE = 32  # bytes of a key


def write_secret(path: Path, content: bytes, *, once: bool = False) -> None:
    """Writes a file that only its owner can read; it is on disk when this returns.

    With `once`, an existing file stays as it is.
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
    """The key of a runs folder, made if missing; refused if others may read it."""
    path = runs / KEY
    try:
        if not path.exists():
            runs.mkdir(parents=True, exist_ok=True)
            write_secret(path, secrets.token_bytes(_SIZE), once=True)
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            mode, key = os.fstat(file.fileno()).st_mode, file.read()
    except OSError as error:
        raise write_error(runs, error) from None
    if mode & 0o077:
        raise InputError(
            f"{path} must be readable only by its owner: run `chmod 600 {path}`."
        )
    if len(key) != _SIZE:
        raise InputError(
            f"{path} must have {_SIZE} bytes, got {len(key)}: restore the file, or use "
            "a new runs folder."
        )
    return key


def digest_with(key: bytes, text: str, digits: int = 32) -> str:
    """A digest of a text that nobody can compute without the key."""
    return hmac.new(key, text.encode(), "sha256").hexdigest()[:digits]


def digests_with_key(read: Mapping[str, str], runs: Path) -> dict[str, str]:
    """Digests of the files and data of a study, made with the key of the runs folder.

    Digests of modules stay as they are, because programs are not data.
    """
    data = [what for what in read if not what.startswith("the module ")]
    if not data:
        return dict(read)
    key = key_of(runs)
    digests = {what: digest_with(key, read[what]) for what in data}
    return {**read, **digests, FINGERPRINT: digest_with(key, FINGERPRINT)}
