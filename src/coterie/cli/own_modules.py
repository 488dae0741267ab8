"""Finds the user's own modules in the folder of a study, and no other modules.

A folder in front of Python's path would hide installed packages: a file `sklearn.py`
next to a study would run in place of scikit-learn. So only the modules that a study
names are looked up in its folder first. If these modules import others, the folder of
the study comes last. If a study names no module, Python's path does not change.

A text counts as the name of a module only in settings that may name code, see
`models.trust`. Otherwise an archive could name a module in another setting, such as
`data.target`, and the user would not be asked about it.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from ..models.trust import in_run_folder, texts_that_name_code
from ..study import Study, read_study

_OWN = re.compile(r"""["'=\s]*(\w+)[\w.]*:\w+["'\s]*""")


@dataclass(frozen=True)
class _OwnModules:
    """An entry of `sys.meta_path` that finds these modules in this folder."""

    folder: str
    names: frozenset[str]

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The module's place, if it is one of these modules and in this folder."""
        return PathFinder.find_spec(name, [self.folder]) if name in self.names else None


def find_own_modules(folder: Path, texts: Sequence[str]) -> None:
    """Lets Python find modules in a folder if texts such as "module:f" name them."""
    matches = [_OWN.fullmatch(text) for text in texts]
    names = frozenset(match[1] for match in matches if match)
    if names:
        place = str(folder.resolve())
        sys.meta_path.insert(0, _OwnModules(place, names))
        sys.path.append(place)


def read_study_file(
    path: Path, overrides: Sequence[str] | None, trust: Sequence[str] | None = None
) -> Study:
    """The study in a file; the file's folder may hold modules that the study names.

    A run folder is not searched for modules: see `read_study`.
    """
    overrides = overrides or []
    if in_run_folder(path):
        return read_study(path, overrides, trust=trust or ())
    try:
        text = path.read_text(encoding="utf-8-sig") if path.is_file() else ""
        tables = tomllib.loads(text)
    except (OSError, ValueError, RecursionError):  # `read_study` raises it again
        tables = {}
    values = (text.partition("=")[2] for text in overrides)
    find_own_modules(path.parent, [*texts_that_name_code(tables), *values])
    return read_study(path, overrides)
