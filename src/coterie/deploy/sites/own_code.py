"""Own modules at a site: only code that the site allows is imported.

A study may name own code, `module:function`. At a site, the file of such a module must
have the SHA-256 that `site.toml` names. The bytes that were hashed are the bytes that
run: nothing is read twice, and compiled files (`__pycache__`) are not used. The folder
of the study is not on Python's path, so a module next to it that the site does not
name cannot be imported.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from ...checks import InputError
from .reading import content_of


@dataclass(frozen=True)
class _Source:
    """The loader of a module from bytes whose hash was checked."""

    text: bytes
    place: str

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """None: Python makes the module as usual."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Runs the code of the module."""
        exec(compile(self.text, self.place, "exec"), module.__dict__)


@dataclass(frozen=True)
class HashedModules:
    """An entry of `sys.meta_path` that finds these modules, and checks their hashes."""

    folder: Path
    digests: Mapping[str, str]  # SHA-256 by module

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The place of a module that the site names; None for other modules."""
        if name not in self.digests:
            above = name.rpartition(".")[0]
            if above in self.digests:  # Python would find it in the package's folder
                raise InputError(
                    f"`allow.modules` of this site must have the module {name}, which "
                    f"{above} imports."
                )
            return None
        found = PathFinder.find_spec(name, path or [str(self.folder)])
        found = found or PathFinder.find_spec(name, path)
        if found is None or found.origin is None:
            return None
        text, package = content_of("module", Path(found.origin)), found.origin
        digest = sha256(text).hexdigest()
        if digest != self.digests[name]:
            raise InputError(
                f"the module {name} must have the SHA-256 "
                f"{self.digests[name][:16]}..., which this site allows, but that of "
                f"{found.origin} is {digest[:16]}...."
            )
        places = found.submodule_search_locations
        return importlib.util.spec_from_file_location(
            name,
            package,
            loader=_Source(text, package),  # type: ignore[arg-type]
            submodule_search_locations=places,
        )


def allow_modules(folder: Path, digests: Mapping[str, str]) -> None:
    """Lets Python import these modules, from the folder of a study or its own path.

    Raises:
        InputError: if one of them was imported already, so that it was not checked.
    """
    for name in digests:
        if name in sys.modules:
            raise InputError(
                f"the module {name} was imported before its SHA-256 was checked."
            )
    if digests:
        sys.meta_path.insert(0, HashedModules(folder.resolve(), dict(digests)))
