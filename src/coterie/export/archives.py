"""Archives: files that are safe to read, with everything needed to repeat a run.

An archive is a ZIP file with a manifest, the study, copies of the user's own modules,
versions and records. It has no data. This module imports no code from an archive.
"""

from __future__ import annotations

import hashlib
import json
import re
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from .. import __version__
from ..checks import InputError
from ..records.files import read_json, read_sealed_toml, refuse_target, writing
from ..records.versions import digest_of

MANIFEST = "manifest.json"
CODE = "code"
"""The folder with copies of the user's modules, in a run folder and in an archive."""

_FORMAT = 1

_RECORDS = (
    *("*.csv", "groups.npz", "weights.npz", "report.html", "settings-*.json"),
    *("read.json", "task.json", "spending.json"),
)
"""The files of a run that people read; checkpoints are not among them."""

_MODELS = ("models/*.pt", "model-*.json", "preparation-*.json")
"""The files from which models can be used."""

_TIME = (1980, 1, 1, 0, 0, 0)
"""The time of all files, so that the same run gives the same archive."""

_MOST_FILES = 10_000
_MOST_TEXT = 2**24  # bytes of the study, the manifest and each module
_MOST_CODE = 2**26  # bytes of all modules
_MOST_RECORDS = 2**28  # bytes of a table


class Archive(NamedTuple):
    """What an archive says about itself. No code of the archive has run."""

    path: Path
    name: str  # of the run
    modules: dict[str, str]  # module -> its file of code
    versions: dict[str, str]  # which have trained the models
    files: dict[str, str]  # checksums by name


def pack_run(folder: Path | str, to: Path | str | None = None, *, models: bool) -> Path:
    """Writes the archive of a run, and returns its path.

    Args:
        folder: the folder of the run, which may be unfinished.
        to: a new file; None: the name of the run folder with ".zip", in this folder.
        models: whether to add the models, and how features were prepared for them.
    """
    folder = Path(folder)
    if not (folder / "study.toml").is_file():
        raise InputError(f"{folder} is not a run folder: it has no study.toml.")
    to = Path(to) if to is not None else Path(f"{folder.resolve().name}.zip")
    refuse_target(to, [folder / "study.toml"], force=False)
    study = read_sealed_toml(folder / "study.toml")
    modules = _modules_of(folder)
    names = ["study.toml", *modules.values()]
    for pattern in (*_RECORDS, *(_MODELS if models else ())):
        names += [str(path.relative_to(folder)) for path in folder.glob(pattern)]
    names = sorted({name for name in names if _is_plain(folder / name)})
    manifest = {
        "format": _FORMAT,
        "name": str(study.get("name", folder.name)),
        "coterie": __version__,
        "modules": modules,
        "versions": _versions_of(folder),
        "files": {name: _sum((folder / name).read_bytes()) for name in names},
    }
    with writing(to) as file, zipfile.ZipFile(file, "w") as zipped:
        _add(zipped, MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())
        for name in names:
            _add(zipped, name, (folder / name).read_bytes())
    return to


def _is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _add(zipped: zipfile.ZipFile, name: str, content: bytes) -> None:
    info = zipfile.ZipInfo(name, _TIME)
    info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
    zipped.writestr(info, content)


def _modules_of(folder: Path) -> dict[str, str]:
    """The copies of the user's modules in a run folder; refuses changed copies."""
    read = folder / "read.json"
    known = read_json(read) if read.exists() else {}
    found = {}
    for what, digest in known.items():
        if what.startswith("the module "):
            module = what.removeprefix("the module ")
            found[module] = _copy_of(folder, module, str(digest))
    return found


def _copy_of(folder: Path, module: str, digest: str) -> str:
    """The name of the file with this digest in the folder of copies."""
    copies = sorted((folder / CODE).rglob("*.py"))
    last = module.partition(" in ")[0].rpartition(".")[2]
    # Of files with the same content, the one that is called like the module.
    copies.sort(key=lambda path: path.stem != last)
    for path in copies:
        if _is_plain(path) and digest_of([path]) == digest:
            return path.relative_to(folder).as_posix()
    raise InputError(
        f"{folder} has no copy of the module {module} as it was: run the study again, "
        "which adds it and trains nothing twice."
    )


def _versions_of(folder: Path) -> dict[str, str]:
    """The versions that trained the models; different ones of a package are joined."""
    import pandas as pd

    path = folder / "versions.csv"
    if not path.exists():
        return {}
    table = pd.read_csv(path, dtype=str).fillna("")
    names = [name for name in table if name not in ("algorithm", "seed", "round")]
    return {str(name): " and ".join(table[name].unique()) for name in names}


# Reading


def is_archive(path: Path) -> bool:
    """Whether a path leads to an archive, by its ending."""
    return path.suffix.lower() == ".zip"


def read_archive(path: Path) -> Archive:
    """What an archive says, after checks. Nothing of the archive is run or unpacked.

    Raises:
        InputError: if the file is not an archive, or could write outside its folder.
    """
    if not path.is_file():
        raise InputError(f"the archive {path} is not a file.")
    with _open_zip(path) as zipped:
        infos = zipped.infolist()
        if len(infos) > _MOST_FILES:
            raise _bad(path, f"it has more than {_MOST_FILES} files")
        names = set[str]()
        for info in infos:
            _refuse_info(path, info)
            if info.filename.casefold() in names:
                raise _bad(path, f"it has two files {info.filename!r}")
            names.add(info.filename.casefold())
        about = _json_in(path, zipped, MANIFEST)
    try:
        files = {str(k): str(v) for k, v in about["files"].items()}
        modules = {str(k): str(v) for k, v in about["modules"].items()}
        versions = {str(k): str(v) for k, v in about["versions"].items()}
        name, version = str(about["name"]), int(about["format"])
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise _bad(path, "its manifest is damaged") from error
    if version > _FORMAT:
        raise InputError(f"{path} was made by a later version of coterie: update it.")
    listed = {MANIFEST, *files}
    if {info.filename for info in infos} != listed or "study.toml" not in files:
        raise _bad(path, "its files are not those that its manifest lists")
    for module, file in modules.items():
        if file not in files or not file.startswith(f"{CODE}/"):
            raise _bad(path, f"it lacks the code of {module}")
    return Archive(path, name, modules, versions, files)


def unpack_study(archive: Archive, to: Path) -> Path:
    """Writes the study and the code of an archive into an empty folder.

    Returns the path of the study. The modules are next to it.
    """
    with _open_zip(archive.path) as zipped:
        study = _content(archive, zipped, "study.toml", _MOST_TEXT)
        for name, content in [("study.toml", study), *_code_in(archive, zipped)]:
            place = to / name.removeprefix(f"{CODE}/")
            if place.exists():
                raise _bad(archive.path, f"it has {place.name} twice")
            try:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(content)
            except OSError as error:  # a folder with the name of a file, say
                raise _bad(archive.path, f"{name} cannot be written") from error
    return to / "study.toml"


def record_in(archive: Archive, name: str) -> bytes | None:
    """A table of the archive; None if it has none."""
    if name not in archive.files:
        return None
    with _open_zip(archive.path) as zipped:
        return _content(archive, zipped, name, _MOST_RECORDS)


def code_of(archive: Archive) -> dict[str, str]:
    """The texts of all modules in an archive, by file, for a person to look at."""
    with _open_zip(archive.path) as zipped:
        found = _code_in(archive, zipped)
        return {name: content.decode("utf-8", "replace") for name, content in found}


def _code_in(archive: Archive, zipped: zipfile.ZipFile) -> Iterator[tuple[str, bytes]]:
    """The names and contents of all modules, which are refused if they are too much."""
    total = 0
    for name in sorted(archive.files):
        if name.startswith(f"{CODE}/"):
            content = _content(archive, zipped, name, _MOST_TEXT)
            total += len(content)
            if total > _MOST_CODE:
                raise _bad(archive.path, f"its code has more than {_MOST_CODE} bytes")
            yield name, content


def _open_zip(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except Exception as error:  # the type depends on where the damage is
        raise _bad(path, "it is damaged") from error


_PART = re.compile(r"[\w-][\w.-]*")


def _refuse_info(path: Path, info: zipfile.ZipInfo) -> None:
    """Refuses names that leave a folder, links, folders and encrypted files."""
    name, mode = info.filename, info.external_attr >> 16
    if not all(_PART.fullmatch(part) for part in name.split("/")):
        raise _bad(path, f"it has a file with the name {name[:100]!r}")
    if (stat.S_IFMT(mode) not in (0, stat.S_IFREG)) or info.flag_bits & 1:
        raise _bad(path, f"{name!r} is not a plain file")
    # Other methods may take as much memory as a file asks for.
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise _bad(path, f"{name!r} is compressed by an unusual method")
    if name.startswith(f"{CODE}/") and not name.endswith(".py"):
        raise _bad(path, f"{name!r} is not a module")


def _content(archive: Archive, zipped: zipfile.ZipFile, name: str, most: int) -> bytes:
    """The content of a file; refuses a large file, or a wrong checksum."""
    content = _read_file(archive.path, zipped, name, most)
    if _sum(content) != archive.files[name]:
        raise _bad(archive.path, f"{name} was changed")
    return content


def _read_file(path: Path, zipped: zipfile.ZipFile, name: str, most: int) -> bytes:
    try:
        with zipped.open(name) as file:  # its size in the header may be a lie
            content = file.read(most + 1)
    except Exception as error:  # the type depends on where the damage is
        raise _bad(path, f"{name} is missing or damaged") from error
    if len(content) > most:
        raise _bad(path, f"{name} has more than {most} bytes")
    return content


def _json_in(path: Path, zipped: zipfile.ZipFile, name: str) -> dict[str, Any]:
    try:
        values = json.loads(_read_file(path, zipped, name, _MOST_TEXT))
    except (ValueError, RecursionError) as error:
        raise _bad(path, f"{name} is damaged") from error
    if not isinstance(values, dict):
        raise _bad(path, f"{name} is not an object")
    return values


def _sum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _bad(path: Path, why: str) -> InputError:
    return InputError(
        f"{path} is not an archive of a run, because {why}: make it again with "
        "`coterie pack`."
    )
