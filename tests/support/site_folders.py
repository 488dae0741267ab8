"""Folders of three sites and their hub, as `coterie roster demo` makes them."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import tomli_w

from coterie.deploy.sites.demonstrations import demonstrate

NAMES = ("Aarau", "Basel", "Bern")

STUDY = """\
name = "three"
[data]
target = "outcome"
client = "hospital"
[split]
test = 0.3
[model]
name = "logistic"
[run]
rounds = 3
batch_size = 16
seeds = [0]
[[algorithm]]
name = "local"
lr = 0.1
[[algorithm]]
name = "fedavg"
lr = 0.1
[sites]
patience = 20
"""


def site_folders(
    folder: Path, study: str = STUDY, hub: str = "127.0.0.1:8443"
) -> tuple[Path, dict[str, Path]]:
    """The study file, and the `site.toml` of every member, with its rows next to it."""
    path = folder / "study.toml"
    path.write_text(study)
    demonstrate(path, NAMES, folder / "demo", hub)
    rows = pd.read_csv(Path(__file__).parents[2] / "examples" / "hospitals.csv")
    for name in NAMES:
        own = rows[rows["hospital"] == name].drop(columns="hospital")
        own.to_csv(folder / "demo" / name / f"{name}.csv", index=False)
    return path, {name: folder / "demo" / name / "site.toml" for name in NAMES}


def change_site(path: Path, **changes: Any) -> None:
    """Changes keys of a `site.toml`; None removes one, and a table is merged."""
    tables = tomllib.loads(path.read_text())
    for key, value in changes.items():
        if value is None:
            del tables[key]
        elif isinstance(value, dict):
            tables[key] = {**tables.get(key, {}), **value}
        else:
            tables[key] = value
    path.write_text(tomli_w.dumps(tables))


def all_files(folder: Path, pattern: str) -> Sequence[Path]:
    """The files below a folder whose names fit a pattern, in order."""
    return sorted(folder.rglob(pattern))
