"""Folders that somebody else has changed, with checksums that fit again."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coterie.records.files import sealed_json, sealed_toml

RUNS_BASH = {
    "name": "subprocess:run",
    "executable": "/bin/bash",
    "input": "touch PWNED",
    "text": True,
}
"""A table [model] whose factory is a program: `subprocess.run((), 1, executable=...)`.

The first argument is the shape of features, and must be () for the command to run.
"""


def forge_study(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes study.toml of a run, and its checksum with it."""
    path = folder / "study.toml"
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    change(tables)
    path.write_text(sealed_toml(tables), encoding="utf-8")


def forge_json(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes a JSON file of a run or an export, and its checksum with it."""
    values = json.loads(path.read_text(encoding="utf-8"))
    values.pop("checksum", None)
    change(values)
    path.write_text(json.dumps(sealed_json(values)), encoding="utf-8")
