"""Files of a run: replaced as a whole, with checksums, refused where they are damaged.

A file of tensors is what `torch.save` writes, which `torch.load` reads, and behind it
the checksum of all that, so that no byte can change unnoticed.
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
except ImportError:  # of which `refuse_other_systems` tells
    fcntl = None  # type: ignore[assignment]

_DIGEST = 16  # bytes of a checksum
_UNREADABLE = (ValueError, RecursionError, OSError)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path`, which takes its place if all goes well."""
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
        if error.errno is not None:  # a full disk does not say of which file
            error.filename, error.filename2 = str(path), None
        raise
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Path]:
    """The same, with one sentence where it cannot be written."""
    try:
        with replacing(path) as file:
            try:
                yield file
            except RuntimeError as error:
                if shutil.disk_usage(path.parent).free >= 2**20:
                    raise
                # Of which torch says nothing.
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
    except (OSError, RuntimeError) as error:
        reason = str(getattr(error, "strerror", None) or error).splitlines()[0]
        raise InputError(
            f"{path} cannot be written: {reason.rstrip('.')}; what was saved before is "
            "intact."
        ) from error


def file_name(label: str, seed: int) -> str:
    """A name for the files of a cell that every file system takes, of this cell alone.

    >>> file_name("local", 0)
    'local-0'
    >>> file_name("a/b", 0)
    'a_b-82badf67-0'
    """
    # Some file systems do not tell capitals from small letters.
    plain = re.sub(r"[^a-z0-9._-]+", "_", label.lower())[:60]
    if plain != label or re.search(r"-[0-9a-f]{8}$", label):
        plain += "-" + hashlib.blake2b(label.encode(), digest_size=4).hexdigest()
    return f"{plain}-{seed}"


def write(path: Path, text: str) -> None:
    """Replaces a file by one with this text."""
    with writing(path) as file:
        file.write_text(text, encoding="utf-8")


def read_toml(path: Path) -> dict[str, Any]:
    """The tables in a TOML file."""
    try:
        return tomllib.loads(_text_of(path))
    except _UNREADABLE as error:
        raise damaged(path, error) from error


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    try:
        values = json.loads(_text_of(path))
        if isinstance(values, dict):
            return values
        raise ValueError
    except _UNREADABLE as error:
        raise damaged(path, error) from error


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
    """The tables of a file that `sealed_toml` made, if nothing was changed."""
    tables = read_toml(path)
    text, seal, found = _text_of(path).rpartition(_SEAL)
    refuse_changed(path, found.strip() if seal else None, _sum(text))
    return tables


def is_sealed(path: Path) -> bool:
    """Whether a TOML file has a checksum that fits, which those of old runs lack."""
    try:
        return bool(read_sealed_toml(path))
    except InputError:
        return False


def sealed_json(values: dict[str, Any]) -> dict[str, Any]:
    """The values as JSON has them, and the checksum that `read_sealed_json` wants."""
    plain = json.loads(json.dumps(values, default=str))
    return {**plain, "checksum": _sum(json.dumps(plain, sort_keys=True))}


def read_sealed_json(path: Path) -> dict[str, Any]:
    """The values of a file that `sealed_json` made, if nothing was changed."""
    values = read_json(path)
    found = values.pop("checksum", None)
    refuse_changed(path, found, _sum(json.dumps(values, sort_keys=True)))
    return values


def refuse_changed(path: Path, found: Any, expected: str) -> None:
    """Refuses a file whose checksum is not the one of its content.

    This finds damage and edits. Who forges a file can forge its checksum as well.
    """
    if found is None:
        raise InputError(
            f"{path} has no checksum, so it was changed or made by an older version: "
            "make it again with this version."
        )
    if found != expected:
        raise InputError(
            f"{path} is not as it was written, since its checksum does not fit: bring "
            "the old file back, or delete it and make it again."
        )


def _sum(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def save(path: Path, values: Any) -> None:
    """Replaces a file by one with these values and their checksum."""
    import torch  # which takes seconds, and texts do not need it

    with writing(path) as file:
        torch.save(values, file)
        with file.open("r+b") as stream:
            stream.write(_digest(stream, file.stat().st_size))


def load(path: Path) -> Any:
    """The values that were saved.

    Raises:
        InputError: where a byte is not as it was.
    """
    import torch

    try:
        if not path.is_file():  # a pipe would never end
            raise ValueError
        with path.open("rb") as stream:
            digest = _digest(stream, path.stat().st_size - _DIGEST)
            end = stream.read()
            stream.seek(0)
            # What `torch.save` wrote long ago is a bare pickle, and so is what others
            # put in its place.
            if end != digest or stream.read(4) != b"PK\x03\x04":
                raise ValueError
        return torch.load(path, weights_only=True)
    except Exception as error:  # of many types, depending on where the damage is
        raise damaged(path, error) from error


def _digest(stream: BinaryIO, size: int) -> bytes:
    """The checksum of so many bytes from the beginning."""
    hashed = hashlib.blake2b(digest_size=_DIGEST)
    while chunk := stream.read(min(1 << 20, size - stream.tell())):
        hashed.update(chunk)
    return hashed.digest()


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Makes the folder, if need be; no other process may have it meanwhile.

    The system lets go when a process ends, however it does. Gives False where the file
    system of the folder has no locks: then nothing keeps others away.

    Raises:
        InputError: where another process has it, or this system has no locks.
    """
    refuse_other_systems()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = _open_lock(folder, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise unwritable(folder, error) from None
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
    """Whether a process has the folder; None where its file system cannot tell."""
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
    """The lock of a folder, opened as it is: nothing is emptied, no link followed."""
    path = folder / "lock"
    # Without waiting: a pipe in its place would keep us.
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
        f"{path} must be a plain file, but it is a link, a folder or a device: look "
        "what it is, and delete it."
    )


def refuse_other_systems() -> None:
    """Refuses systems on which two processes could write into one run folder."""
    if fcntl is None:
        raise InputError(
            f"run folders need the file locks of Linux or macOS, and {sys.platform} "
            "has none that coterie knows: on Windows, use WSL."
        )


_TEMPORARY = re.compile(r"\.(.+)\.[a-z0-9_]{8}")
"""How `replacing` calls a file until it is whole."""

_BY_OTHERS = ("report.html", "watch.html")
"""Files that are also written by who does not hold the lock."""


def drop_temporary_files(folder: Path) -> None:
    """Deletes what a run that was killed had not finished writing.

    Args:
        folder: of the run, of which the caller holds the lock.
    """
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
    """Refuses to write where something is, or where it would belong to something else.

    Args:
        target: the file that would be written.
        inputs: files that are read, which are never replaced.
        force: whether another file may be replaced.
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
                f"`--out` must lie elsewhere, but {target} belongs to "
                f"{'an exported model' if is_export else 'a run'}."
            )
    if target.is_dir():
        raise InputError(f"`--out` must be a file, but {target} is a folder.")
    if target.exists() and not target.is_file():  # a device, a pipe or a socket
        raise InputError(f"`--out` must be a plain file, but {target} is not.")
    if target.name in ("study.toml", "model.json"):
        raise InputError(f"`--out` must be a table, but {target.name} is none.")
    if os.path.lexists(target) and not force:
        raise InputError(
            f"`--out` must be a new file, but {target} exists: name another one, or "
            "say --force."
        )


def unwritable(folder: Path, error: OSError) -> InputError:
    """What to raise where nothing can be written into a folder."""
    return InputError(f"the run folder {folder} cannot be written: {error.strerror}.")


def damaged(path: Path, error: Exception) -> InputError:
    """What to raise where a file cannot be read, with the remedy."""
    return InputError(
        f"{path} is damaged and cannot be read ({type(error).__name__}); delete it and "
        "run the study again to make it anew."
    )
