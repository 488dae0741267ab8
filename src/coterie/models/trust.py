"""Decides which code may run when somebody else's folder is read.

A run or an export may name code: "module:factory". When its folder is read, coterie
imports this module only if the reader has named the module as trusted. A trusted module
comes from Python's own path and never from the folder.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from ..checks import InputError, brief, import_object, one_of, readable
from .zoo import MODELS

_MODULE = r"\w+(\.\w+)*"

_WORDS = (
    *("label", "target", "client", "drop", "categories", "path", "personal"),
    *("positive", "missing", "skip_clients"),
)
"""Keys of a study whose texts never name code."""


def trusted_modules(trust: Sequence[str]) -> tuple[str, ...]:
    """The names of trusted modules, if they are valid.

    >>> trusted_modules(["mymodels", "team.models"])
    ('mymodels', 'team.models')
    """
    names = [trust] if isinstance(trust, str) else list(trust)
    for name in names:
        if not isinstance(name, str) or not re.fullmatch(_MODULE, name):
            raise InputError(
                f"`trust` must name modules such as mymodels, got {brief(name)}."
            )
    return tuple(names)


def trusted_factory(
    name: str, trust: Sequence[str], folder: Path
) -> Callable[..., nn.Module]:
    """The factory that a folder names: one of ours, or one of a trusted module.

    Args:
        name: one of MODELS, or "module:factory".
        trust: modules that the reader trusts, with everything in them.
        folder: where the name was read; nothing is imported from it.
    """
    if ":" not in name:
        return MODELS[one_of("model.name", name, MODELS)]
    return readable(
        "model.name", name, import_trusted("model.name", name, trust, folder)
    )


def in_run_folder(path: Path) -> bool:
    """Whether the study file lies in the folder of a run."""
    return any((path.parent / name).exists() for name in ("cells", "read.json"))


def refuse_untrusted(
    path: Path, tables: Mapping[str, Any], trust: Sequence[str]
) -> None:
    """Refuses the study of a run folder that names code of modules not trusted.

    Args:
        path: the path of the study. A study outside run folders is the user's own and
            may name any code.
        tables: the tables of the study.
        trust: modules that the reader trusts, with everything in them.
    """
    modules = trusted_modules(trust)
    if in_run_folder(path):
        rest = {key: table for key, table in tables.items() if key != "name"}
        for where, text in _named_code(rest):
            import_trusted(where, text, modules, path.parent)


def texts_that_name_code(tables: Mapping[str, Any]) -> list[str]:
    """The texts in the tables of a study that may name code: "module:attribute"."""
    rest = {key: table for key, table in tables.items() if key != "name"}
    return [text for _, text in _named_code(rest)]


def named_modules(tables: Mapping[str, Any]) -> list[str]:
    """The modules of all code that the tables of a study name."""
    found = (text.partition(":")[0].strip() for text in texts_that_name_code(tables))
    return list(dict.fromkeys(found))


def is_trusted(module: str, trust: Sequence[str]) -> bool:
    """Whether a module, or a package that contains it, is trusted."""
    return _is_in(module, trusted_modules(trust))


def import_trusted(name: str, value: str, trust: Sequence[str], folder: Path) -> Any:
    """The object of "module:attribute", if the module is trusted and not in the folder.

    Args:
        name: the name of the setting.
        value: the value in the folder.
        trust: modules that the reader trusts, with everything in them.
        folder: where the value was read; nothing is imported from it.
    """
    module, _, attribute = value.partition(":")
    if not _is_in(module, trust):
        more = f": if you trust it, say --trust {module} (trust={[module]} in Python)"
        sound = re.fullmatch(_MODULE, module) is not None and len(module) < 100
        raise InputError(
            f"{folder} names code, `{name}` = {brief(value)}, which is not run"
            f"{more if sound else ''}."
        )
    with _path_without(folder):
        _refuse_inside(module, folder)
        found = import_object(name, value)
    owner = str(getattr(found, "__module__", module))
    if callable(found) and not _is_in(owner, trust):
        raise InputError(
            f"{folder} names code, `{name}` = {brief(value)}, but {attribute} belongs "
            f"to the module {owner}: if you trust that, say --trust {owner}, too."
        )
    return found


def _is_in(module: str, trust: Sequence[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in trust)


def _named_code(value: Any, where: str = "") -> Iterator[tuple[str, str]]:
    """Dotted keys and texts of all entries in nested tables that may name code."""
    if isinstance(value, str):
        if ":" in value and re.fullmatch(_MODULE, value.partition(":")[0].strip()):
            yield where, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            words = inner if isinstance(inner, list) else [inner]
            if key not in _WORDS or not all(isinstance(word, str) for word in words):
                yield from _named_code(inner, f"{where}.{key}" if where else str(key))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _named_code(inner, where)


def _is_inside(place: str | None, folder: Path) -> bool:
    """Whether a path is a folder or lies in it; "" is the current folder."""
    if place is None:
        return False
    try:
        found, root = Path(place).resolve(), folder.resolve()
    except (OSError, ValueError, RuntimeError):  # it cannot be imported from, then
        return False
    return found == root or root in found.parents


@contextlib.contextmanager
def _path_without(folder: Path) -> Iterator[None]:
    """A context in which Python does not find modules of the folder."""
    before = [*sys.path]
    safe = [place for place in before if not _is_inside(place, folder)]
    sys.path[:] = safe
    try:
        yield
    finally:
        sys.path[:] = [*before, *(place for place in sys.path if place not in safe)]


def _refuse_inside(module: str, folder: Path) -> None:
    """Refuses a module that lies in the folder, before any of its code runs."""
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        name = ".".join(parts[:count])
        if name in sys.modules:
            places = [getattr(sys.modules[name], "__file__", None)]
        else:
            try:
                spec = importlib.util.find_spec(name)
            except (Exception, SystemExit):  # importing it will raise it
                return
            if spec is None:
                return
            places = [spec.origin, *(spec.submodule_search_locations or ())]
        if any(_is_inside(place, folder) for place in places):
            raise InputError(
                f"the module {name} lies in {folder}, and no code of that folder is "
                "run: put the module elsewhere on PYTHONPATH."
            )
