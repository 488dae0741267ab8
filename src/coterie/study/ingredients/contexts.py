"""What an ingredient is made from: its text, the clients, a model's columns, a file."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from ...checks import InputError, brief, expand_path
from ...data.federation import Federation
from ...models import Layout
from ...privacy.mechanisms.partners import PartnerMechanism

ON_GRAPH = " on graph"


class Context(NamedTuple):
    """What an ingredient is made from, besides its text."""

    federation: Federation
    layout: Layout  # the columns of a model
    seed: int  # of the study
    edges: Int[Tensor, "e 2"] | None = None  # positions of clients joined by [graph]
    kind: str = "metropolis"  # of gossip matrices
    choosing: PartnerMechanism | None = None  # how clients release data, with [privacy]


def places_in_files(federation: Federation) -> tuple[int, Tensor]:
    """The number of clients in a file, and the positions of these clients in it.

    A file also has the clients that are held out of training.
    """
    if federation.everybody is None:
        return len(federation), torch.arange(len(federation))
    return federation.everybody, federation.clients


def without_graph(choice: str) -> str:
    """The choice without its ending " on graph"."""
    return choice.removesuffix(ON_GRAPH)


def file_of(choice: str) -> Path | None:
    """The file that a choice names, if it names one."""
    choice = without_graph(choice)
    is_file = Path(choice).suffix in (".csv", ".npy")
    return expand_path("the file of an ingredient", choice) if is_file else None


def from_file(name: str, path: Path) -> Tensor:
    """The values of a CSV or NumPy file."""
    try:
        with warnings.catch_warnings():  # that a file is empty: its shape is checked
            warnings.simplefilter("ignore", UserWarning)
            is_csv = path.suffix == ".csv"
            values = np.loadtxt(path, delimiter=",") if is_csv else np.load(path)
        if not np.isrealobj(values):
            raise TypeError("it must hold real numbers, got complex ones")
        return torch.tensor(values, dtype=torch.float32)
    except (OSError, EOFError, ValueError, TypeError) as error:
        reason = _bad_row(path) or str(error).splitlines()[0].rstrip(".")
        raise InputError(f"`{name}` cannot be read from {path}: {reason}.") from None


def _bad_row(path: Path) -> str:
    """What is wrong with a CSV file's first bad row, counted from 1; "" if nothing."""
    width = 0
    try:
        lines = (
            path.read_text(encoding="utf-8").splitlines()
            if path.suffix == ".csv"
            else []
        )
    except (OSError, UnicodeError):
        return ""
    for row, line in enumerate(lines, 1):
        cells = line.partition("#")[0].split(",")
        if cells == [""] or not "".join(cells).strip():
            continue
        width = width or len(cells)
        if len(cells) != width:
            return f"row {row} has {len(cells)} cells, but the first one has {width}"
        for place, cell in enumerate(cells, 1):
            try:
                float(cell)
            except ValueError:
                return f"row {row}, column {place} must be a number, got {brief(cell)}"
    return ""
