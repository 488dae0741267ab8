"""One algorithm on one seed: where it stands, and what was recorded."""

from __future__ import annotations

from dataclasses import dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from ..types import State
from .files import damaged, load

SPANS = 5_000
"""So many times of computing, of the beginning of a cell, are kept for its timeline."""

SNAPSHOT_CLIENTS = 200
"""With more clients, collaboration matrices are not kept: they grow as N^2."""


@dataclass
class Cell:
    """One algorithm on one seed: where it stands and what was recorded."""

    label: str
    seed: int
    t: int = 0
    done: bool = False
    state: Any = None  # packed where it was read from a file
    gradients: float = 0.0  # of single samples, by all clients, so far
    floats: float = 0.0  # sent so far
    peer_floats: float = 0.0  # of these, from peer to peer
    seconds: float = 0.0
    rounds: list[dict[str, float]] = field(default_factory=list)  # at evaluations
    metrics: list[dict[str, Tensor]] = field(default_factory=list)  # (N,) each
    snapshot_rounds: list[int] = field(default_factory=list)
    snapshots: list[Tensor] = field(default_factory=list)  # (N, N) each
    group_rounds: list[int] = field(default_factory=list)
    # (2, N) each, whole numbers: `member` and `uses`, see `coterie.types.Info`.
    groups: list[Tensor] = field(default_factory=list)
    clients: list[int] = field(default_factory=list)  # identities; empty: 0 .. N-1
    newcomers: dict[str, Tensor] = field(default_factory=dict)  # columns, (M,) each
    # Of every test sample at the end: client, sample and measures, (M,) each.
    outcomes: dict[str, Tensor] = field(default_factory=dict)
    newcomer_outcomes: dict[str, Tensor] = field(default_factory=dict)
    # Of labels, final models on test data: columns, see `coterie.models.Tally`.
    confusion: dict[str, Tensor] = field(default_factory=dict)
    calibration: dict[str, Tensor] = field(default_factory=dict)
    time: float = 0.0  # virtual seconds, where a study has a table [time]
    updates: int = 0  # answers of clients that arrived
    delays: dict[int, int] = field(default_factory=dict)  # how often each was seen
    # Position of a client, and from when to when it computed, at the beginning.
    spans: list[tuple[int, float, float]] = field(default_factory=list)
    work: dict[str, Tensor] = field(default_factory=dict)  # columns, (N,) each
    # With [privacy], at the end: who sent to whom (-1: a server, -2: all other clients,
    # where there are many), and for what epsilon.
    releases: dict[str, Tensor] = field(default_factory=dict)
    attempt: int = 0  # at training, with noise that no seed repeats
    repeated: int = 0  # rounds that were charged again, as they may have left before
    # The round after which software and hardware were these, in the order of rounds.
    versions: list[tuple[int, dict[str, str]]] = field(default_factory=list)


CONSTANT = "constant"
LINEAR = "linear alone"
TREES = "trees alone"
POOLED = "linear pooled"
"""Labels of baselines: predictions that a method should beat."""


class Baselines(NamedTuple):
    """What the baselines of one seed scored, as records of methods that have ended.

    They are never ranked or chosen as methods.
    """

    seed: int
    cells: list[Cell]
    left_out: list[str]  # sentences that say which ones, and why


def baselines_file(folder: Path, seed: int) -> Path:
    """Where those of a seed are."""
    return folder / f"baselines-{seed}.pt"


def load_cell(path: Path) -> Cell:
    """The cell in a file."""
    values = load(path)
    try:
        return Cell(**values)
    except TypeError as error:
        raise damaged(path, error) from error


def pack(state: State) -> Any:
    """A state of nested NamedTuples and dataclasses as nested dictionaries.

    What is in lists, which may grow, is of the simplest types: tuples become lists.
    """
    if isinstance(state, tuple):
        names = getattr(state, "_fields", None) or range(len(state))
        return {
            str(name): pack(value) for name, value in zip(names, state, strict=True)
        }
    if is_dataclass(state):
        return {name: pack(value) for name, value in vars(state).items()}
    if isinstance(state, list):
        return [_listed(value) for value in state]
    return state.detach().cpu() if isinstance(state, Tensor) else state


def unpack(packed: Any, like: State) -> State:
    """The state that was packed, of the types and on the devices of `like`."""
    if isinstance(like, tuple):
        values = [
            unpack(inner, old) for inner, old in zip(packed.values(), like, strict=True)
        ]
        named = getattr(like, "_make", None)
        return named(values) if named is not None else tuple(values)
    if is_dataclass(like) and not isinstance(like, type):
        parts = {name: unpack(packed[name], old) for name, old in vars(like).items()}
        return replace(like, **parts)
    return packed.to(like.device) if isinstance(like, Tensor) else packed


def _listed(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_listed(part) for part in value]
    return value.detach().cpu() if isinstance(value, Tensor) else value
