"""Sources of tables: a file, several, or a folder with a file for each site.

The rows of several files are put together, with an additional column, `file name`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from ...checks import InputError, brief, expand_path, suggestion
from ..reading import FRAMES, ending_of, read_frame
from .formats import UNKNOWN_FORMAT, TextFormat
from .spellings import plain_form

BY_FILE = "file name"
"""The column with the name of each row's file, without its ending."""

Place = str | Path | Sequence[str | Path]
"""A file, a folder, or several files."""


def holds_arrays(place: object) -> bool:
    """Whether a path leads to an npz file, or to a folder with `features.npy`."""
    if not isinstance(place, str | Path):
        return False
    path = Path(place).expanduser()
    return path.suffix == ".npz" or (path / "features.npy").is_file()


class TableSource(NamedTuple):
    """Files that were read, and their rows."""

    label: Path  # its name in messages and tables
    files: tuple[Path, ...]
    frames: tuple[pd.DataFrame, ...]  # one for each file
    writing: TextFormat  # of all files; empty if they differ

    def columns(self) -> list[str]:
        """The columns of any file, in order."""
        return list(dict.fromkeys(str(c) for frame in self.frames for c in frame))

    def shared_columns(self) -> list[str]:
        """The columns that are in all files."""
        return [name for name in self.columns() if all(name in f for f in self.frames)]

    def join(self) -> pd.DataFrame:
        """The rows of all files, with the columns that are in all files."""
        if len(self.frames) == 1:
            return self.frames[0]
        shared, pieces = self.shared_columns(), []
        for path, frame in zip(self.files, self.frames, strict=True):
            some = frame[shared].set_axis(
                [f"{row} ({path.name})" for row in frame.index], axis=0
            )
            if BY_FILE not in shared:
                some = some.assign(**{BY_FILE: site_of(path)})
            pieces.append(some)
        return pd.concat(pieces)

    def differences(self, left_out: Sequence[str] = ()) -> str:
        """A sentence about columns that some files lack; empty if there are none."""
        wrong = []
        for name in self.columns():
            lack = [
                path.name
                for path, frame in zip(self.files, self.frames, strict=True)
                if name not in frame
            ]
            if lack and name not in left_out:
                more = f" and {len(lack) - 3} more" if len(lack) > 3 else ""
                there = self.frames[[p.name for p in self.files].index(lack[0])].columns
                near = suggestion(
                    name, [c for c in there if c not in self.shared_columns()]
                )
                near = near.replace(" Did you mean", " (is it").replace("?", "?)")
                verb = "have" if lack[1:] else "has"
                wrong.append(
                    f"{', '.join(lack[:3])}{more} {verb} no column {brief(name)}{near}"
                )
        return "; ".join(wrong[:9])


def site_of(path: Path) -> str:
    """The name of a file without its ending.

    >>> site_of(Path("sites/bern.csv.gz"))
    'bern'
    """
    return path.name[: len(path.name) - len(ending_of(path))]


def read_source(place: Place, asked: TextFormat = UNKNOWN_FORMAT) -> TableSource:
    """The table in a file, in several, or in all files of a folder."""
    files, read, wrong = files_of(place), [], []
    for path in files:
        try:
            read.append(read_frame(path, asked))
        except InputError as error:
            wrong.append(str(error).rstrip("."))
    if wrong:
        raise InputError(f"{'; '.join(wrong)}.")
    label = files[0]
    if len(files) > 1:
        _refuse_together(files)
        folder = files[0].parent.resolve().name
        label = Path(folder or "files")
    frames = [with_names(frame, map(str, read[0][0])) for frame, _ in read]
    ways = zip(*(way for _, way in read), strict=True)
    same = TextFormat(*(some[0] if len(set(some)) == 1 else "" for some in ways))
    source = TableSource(label, files, tuple(frames), same)
    _refuse_nothing_shared(source)
    return source


def _refuse_nothing_shared(source: TableSource) -> None:
    """Refuses files without a column in common."""
    if source.shared_columns():
        return
    first, names = source.files[0].name, set(source.frames[0])
    pairs = zip(source.files, source.frames, strict=True)
    alone = [path.name for path, frame in pairs if not names & set(frame)]
    what = f"{alone[0]} has no column in common with {first}" if alone else ""
    raise InputError(
        f"{what or 'no column is in all files'}: give each column the same name in all "
        "files, or leave a file out."
    )


def with_names(frame: pd.DataFrame, names: Iterable[str]) -> pd.DataFrame:
    """The table with columns spelt as in `names`; case and blanks do not matter."""
    known = {plain_form(str(name)): str(name) for name in names}
    usual = {str(name): known.get(plain_form(str(name))) for name in frame}
    other = {a: b for a, b in usual.items() if b is not None and b not in frame}
    sound = len(set(other.values())) == len(other)
    return frame.rename(columns=other) if sound else frame


def _refuse_together(files: tuple[Path, ...]) -> None:
    """Refuses files of different kinds, and two files with the same name."""
    kinds = {FRAMES[ending_of(path)] for path in files}
    if len(kinds) > 1:
        endings = ", ".join(sorted({ending_of(path) for path in files}))
        raise InputError(
            f"the files of a study must be of one kind, got {endings}: save all of "
            "them as CSV."
        )
    names = [site_of(path) for path in files]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(
            "files must have different names, but two are called "
            f"{brief(twice)}: rename one of them."
        )


def files_of(place: Place) -> tuple[Path, ...]:
    """The files of a path, of a folder, or of a list of paths and folders."""
    if isinstance(place, str | Path):
        place = [place]
    elif not isinstance(place, list | tuple) or not place:
        raise InputError(f"`path` must be text or a list of texts, got {brief(place)}.")
    found: list[Path] = []
    for one in place:
        if not isinstance(one, str | Path):
            raise InputError(
                f"`path` must be text or a list of texts, got {brief(one)}."
            )
        path = expand_path("path", one)
        found += _inside(path) if path.is_dir() else [_check_file(path)]
    return tuple(dict.fromkeys(found))


def _inside(folder: Path) -> list[Path]:
    """The tables in a folder."""
    found = sorted(
        path
        for path in folder.iterdir()
        if path.is_file() and path.name[0] not in ".~" and ending_of(path) in FRAMES
    )
    if not found:
        raise InputError(
            f"the folder {folder} has no file that ends in {', '.join(FRAMES)}."
        )
    return found


def _check_file(path: Path) -> Path:
    """The path; refuses a path that is not a table."""
    if not path.is_file():
        raise InputError(f"there is no data file {path}.")
    if ending_of(path) not in FRAMES:
        raise InputError(
            f"a table must end in {', '.join(FRAMES)}, got {path.name}: save it as CSV."
        )
    return path
