"""Runs of a study of four hospitals, and of models of one's own, that take a moment."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coterie.checks import InputError
from coterie.study.config import study_of
from coterie.study.experiment import Result, run_study
from support.hospitals import HOSPITALS, write_hospitals

OWN = """
import torch
from torch import nn
from coterie import Table

def sentences(*, clients: int = 3, seed: int = 0):
    # Whether the first word of a sentence is one of the later half of the words.
    rng = torch.Generator().manual_seed(seed)
    words = torch.randint(1, 9, (30 * clients, 4), generator=rng)
    group = torch.arange(30 * clients) // 30
    return Table("words", words, (words[:, 0] > 4).long(), "binary", 1, group=group)

def pictures(*, clients: int = 2, seed: int = 0):
    rng = torch.Generator().manual_seed(seed)
    images = torch.randn(40 * clients, 1, 6, 6, generator=rng)
    group = torch.arange(40 * clients) // 40
    labels = torch.arange(40 * clients) % 3
    return Table("pictures", images, labels, "classification", 3, group=group)

class Reader(nn.Module):
    def __init__(self, outputs, width, kind):
        super().__init__()
        self.words = nn.Embedding(9, width)
        self.recurrent = kind(width, width, batch_first=True)
        self.head = nn.Linear(width, outputs)

    def forward(self, sentences):
        return self.head(self.recurrent(self.words(sentences))[0][:, -1])

def gru(shape, outputs, *, width: int = 4):
    return Reader(outputs, width, nn.GRU)

class Reshaping(nn.Module):
    # Layers whose code asks for the number of samples.
    def __init__(self, shape, outputs):
        super().__init__()
        self.body = nn.Linear(shape[-1], 4)
        self.head = nn.Linear(4 * shape[-2], outputs)
        self.frozen = nn.Parameter(torch.randn(1), requires_grad=False)
        self.register_buffer("shift", torch.ones(1))

    def forward(self, x):
        rows = x.shape[0]
        tall = self.body(x.reshape(-1, x.shape[-1])) + self.shift * self.frozen
        return self.head(tall.reshape(rows, -1))

def reshaping(shape, outputs):
    return Reshaping(shape, outputs)

class Counting(nn.Linear):
    # What it computes depends on the number of samples, as no program may.
    def forward(self, x):
        return super().forward(x) if len(x) > 2 else -super().forward(x)

def counting(shape, outputs):
    return Counting(shape[0], outputs)
"""

TENSORS = {
    "data": {"name": "linear", "clients": 2, "dimension": 2, "samples": 20},
    "model": {"name": "linear"},
    "run": {"rounds": 1},
    "algorithm": [{"name": "local"}],
}
"""A study of two clients, whose data are no tables."""

TABLES: dict[str, Any] = {
    "name": "hospitals",
    "split": {"name": "natural"},
    "model": {"name": "mlp", "hidden": [4]},
    "run": {"rounds": 2, "batch_size": 8, "checkpoint_seconds": 0.0},
    "algorithm": [
        {"name": "local", "lr": 0.3},
        {"name": "fedavg", "lr": 0.3},
        {"name": "adaptive_all_for_one", "label": "adaptive", "lr": 0.3, "every": 1},
    ],
}


def tables_of(
    folder: Path, *, names: tuple[str, ...] = HOSPITALS, **changes: Any
) -> dict[str, Any]:
    """The tables of a study of `patients.csv`, with tables replaced."""
    path = folder / "patients.csv"
    if not path.exists():
        write_hospitals(path, names=names)
    columns = {"client": "hospital", "target": "outcome"}
    data = {"name": "file", "path": str(path), **columns}
    return {**copy.deepcopy(TABLES), "data": data, **changes}


def run(folder: Path, tables: dict[str, Any], **options: Any) -> Result:
    """The result of a study, of whose odd data nothing is said."""
    study = study_of(tables)
    return run_study(study, runs=folder / "runs", notice=lambda _: None, **options)


def damage(path: Path, read: Callable[[], object], rng: random.Random) -> None:
    """Raises unless a file can be read, or is refused in a sentence, however broken."""
    whole, refused = path.read_bytes(), 0
    for _ in range(60):
        at = rng.randrange(len(whole))
        new = rng.choice((b"", b"0", b"]", b'"', b"-1", whole[at : at + 9] * 2))
        path.write_bytes(whole[:at] + new + whole[at + rng.choice((1, 1, 5, 60)) :])
        try:
            read()
        except InputError as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused > 20


def own_module(folder: Path, name: str) -> str:
    """Writes the module of models above under a name of its own."""
    (folder / f"{name}.py").write_text(OWN)
    return name
