"""Files of a run: replaced as a whole, with checksums, and refused if damaged.

A file of tensors holds the output of `torch.save`, followed by its checksum. So
`torch.load` can read it, and no byte can change unnoticed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import stat
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import tomli_w

from ..checks import InputError

try:
    import fcntl
except ImportError:  # see `refuse_other_systems`
    fcntl = None  # type: ignore[assignment]

_DIGEST = 16  # bytes of a checksum
_UNREADABLE = (ValueError, RecursionError, OSError)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A context with a temporary file, which replaces `path` if nothing is raised."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        error.filename = str(path)
        raise
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        if error.errno is not None:  # the error of a full disk names no file
            error.filename, error.filename2 = str(path), None
        raise
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Path]:
    """As `replacing`, but if the file cannot be written, raises an InputError."""
    try:
        with replacing(path) as file:
            try:
                yield file
            except RuntimeError as error:
                if shutil.disk_usage(path.parent).free >= 2**20:
                    raise
                # Torch does not say that the disk is full.
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
    except (OSError, RuntimeError) as error:
        reason = str(getattr(error, "strerror", None) or error).splitlines()[0]
        raise InputError(
            f"{path} cannot be written: {reason.rstrip('.')}; what was saved before is "
            "intact."
        ) from error


def link_file(source: Path, target: Path) -> None:
    """Makes `target` the same file as `source`, or a copy if that is not possible.

    Files of a run are never changed in place, only replaced. So if one of the two files
    is replaced, the other still has the old content.
    """
    with writing(target) as temporary:
        temporary.unlink()
        try:
            os.link(source, temporary, follow_symlinks=False)
        except OSError:
            shutil.copyfile(source, temporary)


def file_name(label: str, seed: int) -> str:
    """A name for the files of one cell, which every file system accepts.

    >>> file_name("local", 0)
    'local-0'
    >>> file_name("a/b", 0)
    'a_b-82badf67-0'
    """
    # Some file systems ignore the case of letters.
    plain = re.sub(r"[^a-z0-9._-]+", "_", label.lower())[:60]
    if plain != label or re.search(r"-[0-9a-f]{8}$", label):
        plain += "-" + hashlib.blake2b(label.encode(), digest_size=4).hexdigest()
    return f"{plain}-{seed}"


def write(path: Path, text: str) -> None:
    """Replaces the content of a file by this text."""
    with writing(path) as file:
        file.write_text(text, encoding="utf-8")


def read_toml(path: Path) -> dict[str, Any]:
    """The tables in a TOML file."""
    try:
        return tomllib.loads(_text_of(path))
    except _UNREADABLE as error:
        raise damage_error(path, error) from error


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    try:
        values = json.loads(_text_of(path))
        if isinstance(values, dict):
            return values
        raise ValueError
    except _UNREADABLE as error:
        raise damage_error(path, error) from error


def _text_of(path: Path) -> str:
    if path.exists() and not path.is_file():  # a pipe would never end
        raise ValueError
    return path.read_text(encoding="utf-8")


_SEAL = "# checksum "
"""How the last line of a sealed TOML file begins."""


def sealed_toml(tables: dict[str, Any]) -> str:
    """Tables as text that `read_sealed_toml` takes: its last line is a checksum."""
    text = tomli_w.dumps(tables)
    return f"{text}{_SEAL}{_sum(text)}\n"


def read_sealed_toml(path: Path) -> dict[str, Any]:
    """The tables of a file that `sealed_toml` made; refused if they have changed."""
    tables = read_toml(path)
    text, seal, found = _text_of(path).rpartition(_SEAL)
    refuse_changed(path, found.strip() if seal else None, _sum(text))
    return tables


def is_sealed(path: Path) -> bool:
    """Whether a TOML file has the right checksum, which files of old runs lack."""
    try:
        return bool(read_sealed_toml(path))
    except InputError:
        return False


def sealed_json(values: dict[str, Any]) -> dict[str, Any]:
    """The values in types of JSON, with the checksum that `read_sealed_json` needs."""
    plain = json.loads(json.dumps(values, default=str))
    return {**plain, "checksum": _sum(json.dumps(plain, sort_keys=True))}


def read_sealed_json(path: Path) -> dict[str, Any]:
    """The values of a file that `sealed_json` made; refused if they have changed."""
    values = read_json(path)
    found = values.pop("checksum", None)
    refuse_changed(path, found, _sum(json.dumps(values, sort_keys=True)))
    return values


def refuse_changed(path: Path, found: Any, expected: str) -> None:
    """Refuses a file whose checksum does not match its content.

    This finds damage and edits. It does not stop somebody who also changes the
    checksum.
    """
    if found is None:
        raise InputError(
            f"{path} has no checksum, so it was changed or made by an older version: "
            "make it again with this version."
        )
    if found != expected:
        raise InputError(
            f"{path} was changed after it was written, as its checksum does not match: "
            "restore the old file, or delete it and make it again."
        )


def _sum(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def save(path: Path, values: Any) -> None:
    """Replaces the content of a file by these values and their checksum."""
    import torch  # takes seconds, and files of text do not need it

    with writing(path) as file:
        torch.save(values, file)
        with file.open("r+b") as stream:
            stream.write(_digest(stream, file.stat().st_size))


def load(path: Path) -> Any:
    """The values that were saved; refused if a byte has changed."""
    import torch

    try:
        if not path.is_file():  # a pipe would never end
            raise ValueError
        with path.open("rb") as stream:
            digest = _digest(stream, path.stat().st_size - _DIGEST)
            end = stream.read()
            stream.seek(0)
            # Old versions of `torch.save` wrote a bare pickle; so may an attacker.
            if end != digest or stream.read(4) != b"PK\x03\x04":
                raise ValueError
        return torch.load(path, weights_only=True)
    except Exception as error:  # the type depends on where the damage is
        raise damage_error(path, error) from error


def _digest(stream: BinaryIO, size: int) -> bytes:
    """The checksum of the first `size` bytes."""
    hashed = hashlib.blake2b(digest_size=_DIGEST)
    while chunk := stream.read(min(1 << 20, size - stream.tell())):
        hashed.update(chunk)
    return hashed.digest()


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[bool]:
    """A context in which no other process may lock this folder, made if needed.

    The context gives True. It gives False if the file system has no locks, so that
    other processes can still write. The lock ends with the process, even if the process
    is killed.

    Raises:
        InputError: if another process has the lock, or the system has no locks.
    """
    refuse_other_systems()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = _open_lock(folder, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise write_error(folder, error) from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        has_locks = True
    except BlockingIOError:
        os.close(handle)
        raise InputError(
            f"{folder} is in use by another process: wait until it ends, or use "
            "another folder."
        ) from None
    except OSError:
        has_locks = False
    try:
        if has_locks:
            drop_temporary_files(folder)
        yield has_locks
    finally:
        os.close(handle)


def in_use(folder: Path) -> bool | None:
    """Whether a process has locked the folder; None if its file system cannot tell."""
    refuse_other_systems()
    if not os.path.lexists(folder / "lock"):
        return False
    handle = _open_lock(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return None
    finally:
        os.close(handle)
    return False


def _open_lock(folder: Path, flags: int) -> int:
    """The open lock file of a folder; it is not emptied, and no link is followed."""
    path = folder / "lock"
    # Non-blocking, because a pipe in its place would make us wait.
    more = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        handle = os.open(path, flags | more, 0o644)
    except OSError as error:
        if path.is_symlink() or path.is_dir():
            raise _no_lock(path) from error
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise _no_lock(path)
    return handle


def _no_lock(path: Path) -> InputError:
    return InputError(
        f"{path} must be a plain file, but it is a link, a folder or a device: check "
        "what it is, and delete it."
    )


def refuse_other_systems() -> None:
    """Refuses systems on which two processes could write into one run folder."""
    if fcntl is None:
        raise InputError(
            f"run folders need the file locks of Linux or macOS, which {sys.platform} "
            "does not have: on Windows, use WSL."
        )


_TEMPORARY = re.compile(r"\.(.+)\.[a-z0-9_]{8}")
"""The names that `replacing` gives to its temporary files."""

_BY_OTHERS = ("report.html", "watch.html")
"""Files that processes without the lock also write."""


def drop_temporary_files(folder: Path) -> None:
    """Deletes the temporary files of a killed run; the caller has the folder's lock."""
    for place in (folder, *(folder / name for name in ("cells", "models", "tuning"))):
        if place != folder and (place.is_symlink() or not place.is_dir()):
            continue
        for path in place.iterdir():
            name = _TEMPORARY.fullmatch(path.name)
            if name is None or path.is_symlink() or not path.is_file():
                continue
            age = time.time() - path.stat().st_mtime
            if name[1] not in _BY_OTHERS or age > 3600:
                path.unlink(missing_ok=True)


def refuse_target(target: Path, inputs: Iterable[Path], *, force: bool) -> None:
    """Refuses an output file that exists, or that would be in a run or an export.

    With `force`, the file may exist. It may never be one of the `inputs`.
    """
    for path in inputs:
        if target.exists() and path.exists() and target.samefile(path):
            raise InputError(f"`--out` must not be the input, but {target} is {path}.")
    place = target.resolve()
    for folder in (place.parent, place.parent.parent):
        is_export = (folder / "model.json").is_file()
        if is_export or (
            (folder / "study.toml").is_file() and (folder / "cells").exists()
        ):
            raise InputError(
                "`--out` must not be in the folder of "
                f"{'an exported model' if is_export else 'a run'}, got {target}."
            )
    if target.is_dir():
        raise InputError(f"`--out` must be a file, but {target} is a folder.")
    if target.exists() and not target.is_file():  # a device, a pipe or a socket
        raise InputError(f"`--out` must be a plain file, but {target} is not.")
    if target.name in ("study.toml", "model.json"):
        raise InputError(f"`--out` must be a table, but {target.name} is not.")
    if os.path.lexists(target) and not force:
        raise InputError(
            f"`--out` must be a new file, but {target} exists: name another file, or "
            "use --force."
        )


def write_error(folder: Path, error: OSError) -> InputError:
    """The error to raise if a folder cannot be written."""
    return InputError(f"the run folder {folder} cannot be written: {error.strerror}.")


def damage_error(path: Path, error: Exception) -> InputError:
    """The error to raise if a file cannot be read, with the remedy."""
    return InputError(
        f"{path} is damaged and cannot be read ({type(error).__name__}); delete it and "
        "run the study again to replace it."
    )
