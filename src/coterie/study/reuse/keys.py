"""The key of a cell: digests of everything that its results depend on.

The number of rounds does not belong to the key, because training can go on.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...clients.compiling import can_compile
from ...records.digests import code_digest
from ...records.versions import method_files, shared_files, sources_of, used_methods
from ..config import Entry, algorithm_factory
from ..setup import Setup, wants_compiling

Key = dict[str, str]
"""Digests of the parts, by name."""

_NOT_IN_RUN = (
    *("rounds", "seeds", "evaluate_every", "compile"),
    *("checkpoint_seconds", "log", "baselines"),
)
"""Options of [run] that do not change the models of a round."""

_NOT_SHARED = (
    *("name", "data", "split", "model", "algorithm", "run", "tune"),
    "optimizer",  # each entry knows what it uses of it
)
"""Tables that have a part of their own, or none."""

PARTS = {
    "data": "its data have",
    "split": "its split has",
    "model": "its model has",
    "run": "[run] has",
    "tables": "another table of the study has",
    "seed": "its seed has",
    "method": "its options have",
    "code": "its code has",
    "shared": "code of coterie that it needs has",
    "versions": "the version of torch or NumPy has",
}
"""The parts of a key, as the beginning of a sentence that ends with "changed"."""


def seed_key(setup: Setup, read: Mapping[str, str]) -> Key:
    """The parts of keys that all cells of a seed share.

    Args:
        setup: the setup of the seed.
        read: digests of the study's files and data, made with the key of the runs
            folder.
    """
    study = setup.study
    tables = {k: v for k, v in study.tables().items() if k not in _NOT_SHARED}
    run = {k: v for k, v in asdict(study.run).items() if k not in _NOT_IN_RUN}
    device = study.run.place
    run["compiled"] = wants_compiling(study, device) and can_compile(device)
    return {
        "data": _digest(_data_of(setup, read)),
        "split": _digest(study.split),
        "model": _digest([study.model, _own_code(study.model)]),
        "run": _digest(run),
        "tables": _digest([tables, _files("graph.edges", "time.trace", read=read)]),
        "seed": _digest(setup.seed),
        "shared": _shared_code(),
        "versions": _digest([str(torch.__version__), np.__version__]),
    }


def cell_key(setup: Setup, entry: Entry, read: Mapping[str, str]) -> Key:
    """The key of an entry of a study on one seed.

    Its label counts only with [privacy], where each entry has noise of its own.
    """
    tune, study = None, setup.study
    if entry.tune and study.tune is not None:
        tune = {**asdict(study.tune), "space": None}
    settings = {**entry.options, **entry.tune}
    label = "" if study.privacy is None else entry.label
    written = [asdict(replace(entry, label=label, own_optimizer={})), tune]
    return seed_key(setup, read) | {
        "method": _digest([written, _files(*settings, read=read)]),
        "code": _digest([_method_code(entry), _own_code(settings)]),
    }


def key_digest(key: Key) -> str:
    """One digest of all parts."""
    return _digest(sorted(key.items()))


def _data_of(setup: Setup, read: Mapping[str, str]) -> Any:
    """The table [data] with file names and digests in place of paths."""
    table = dict(setup.study.data)
    paths = table.pop("path", [])
    names = [Path(str(p)).name for p in (paths if isinstance(paths, list) else [paths])]
    digests = {}
    for what, digest in read.items():
        _, drawn, seed = what.rpartition(" with seed ")
        other = bool(drawn) and seed != str(setup.seed)
        if what.startswith(("the data", "the columns of ")) and not other:
            digests[what] = digest
    return [table, names, digests]


def _files(*names: str, read: Mapping[str, str]) -> dict[str, str]:
    """Digests of the files that these settings name."""
    starts = tuple(f"`{name}` " for name in names)
    return {what: digest for what, digest in read.items() if what.startswith(starts)}


def _own_code(settings: Mapping[str, Any]) -> list[str]:
    """Digests of the user's modules that settings name as "module:attribute"."""
    found = []
    for value in settings.values():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and ":" in text:
                found += _module_code(text.partition(":")[0].strip())
    return found


def _method_code(entry: Entry) -> list[str]:
    """Digests of the files that make the method of an entry."""
    named = entry.name.partition(":")[0] if ":" in entry.name else ""
    made = algorithm_factory(entry.name).__module__
    if not named:
        return [_package_code(made)]
    # The factory may come from another module than the one that the study names.
    return [*_module_code(named), *_module_code(made)]


def _module_code(module: str) -> list[str]:
    """The digest of a user's module, its helpers and our methods that it uses."""
    files = sources_of(module)
    if not files:
        return []
    ours = used_methods(module) | method_files(module)
    return [code_digest(files.values()), code_digest(sorted(ours - _shared_files()))]


@functools.cache
def _package_code(module: str) -> str:
    return code_digest(sorted(method_files(module) - _shared_files()))


@functools.cache
def _shared_files() -> set[Path]:
    return shared_files()


@functools.cache
def _shared_code() -> str:
    return code_digest(sorted(_shared_files()))


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
