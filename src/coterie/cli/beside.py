"""Modules of one's own are found beside a study, and nothing else is.

A folder on Python's path would put every file in it before installed packages: a file
`sklearn.py` beside a study would be run in place of scikit-learn. So the modules that
a study names are looked up there first, what these import is looked up there last, and
a study that names none has no such folder.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from ..models.trust import in_run_folder
from ..study import Study, read_study

_OWN = re.compile(r"""["'=\s]*(\w+)[\w.]*:\w+["'\s]*""")


@dataclass(frozen=True)
class _Beside:
    """Finds these modules in this folder; see `sys.meta_path`."""

    folder: str
    names: frozenset[str]

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Where the module is, if it is one of them and there."""
        found: ModuleSpec | None = None
        if name in self.names:
            found = PathFinder.find_spec(name, [self.folder])
        return found


def look_beside(folder: Path, texts: Sequence[str]) -> None:
    """Lets the modules that texts such as "module:function" name be found in a folder.

    Args:
        folder: where they are, before all other places.
        texts: what may name some.
    """
    named = [_OWN.fullmatch(text) for text in texts]
    names = frozenset(name[1] for name in named if name)
    if names:
        place = str(folder.resolve())
        sys.meta_path.insert(0, _Beside(place, names))
        sys.path.append(place)


def read_beside(
    path: Path, overrides: Sequence[str] | None, trust: Sequence[str] | None = None
) -> Study:
    """A study, with modules that it or an override names found beside its file.

    In a run folder, nothing is found beside it: see `read_study`.

    Args:
        path: of the study.
        overrides: as `--set` has them.
        trust: modules that the study of a run folder may name.
    """
    overrides = overrides or []
    if in_run_folder(path):
        return read_study(path, overrides, trust=trust or ())
    try:
        text = path.read_text(encoding="utf-8-sig") if path.is_file() else ""
        tables = tomllib.loads(text)
    except (OSError, ValueError, RecursionError):  # of which reading it will tell
        tables = {}
    named = (text.partition("=")[2] for text in overrides)
    look_beside(path.parent, [*_texts(tables), *named])
    return read_study(path, overrides)


def _texts(value: Any) -> Iterator[str]:
    """All texts in nested tables but those that are names for people."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from () if key == "label" else _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
