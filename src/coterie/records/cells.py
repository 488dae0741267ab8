"""One algorithm with one seed: its state, and what was recorded."""

from __future__ import annotations

from dataclasses import dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from ..types import State
from .files import damage_error, load

SPANS = 5_000
"""The most computations at the beginning of a cell that are kept for its timeline."""

SNAPSHOT_CLIENTS = 200
"""With more clients, collaboration matrices are not kept, because they grow as N^2."""


@dataclass
class Cell:
    """One algorithm with one seed: its state, and what was recorded."""

    label: str
    seed: int
    t: int = 0
    done: bool = False
    state: Any = None  # packed if it was read from a file
    gradients: float = 0.0  # of single samples, by all clients, so far
    floats: float = 0.0  # that were sent so far
    peer_floats: float = 0.0  # those of `floats` that went from peer to peer
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
    # For every test sample at the end: client, sample and measures, (M,) each.
    outcomes: dict[str, Tensor] = field(default_factory=dict)
    newcomer_outcomes: dict[str, Tensor] = field(default_factory=dict)
    # For labels, of final models on test data: columns, see `coterie.models.Tally`.
    confusion: dict[str, Tensor] = field(default_factory=dict)
    calibration: dict[str, Tensor] = field(default_factory=dict)
    time: float = 0.0  # virtual seconds, if the study has a table [time]
    updates: int = 0  # answers of clients that arrived
    delays: dict[int, int] = field(default_factory=dict)  # delay -> how often
    # Position of a client, and the beginning and end of a computation, for the first.
    spans: list[tuple[int, float, float]] = field(default_factory=list)
    work: dict[str, Tensor] = field(default_factory=dict)  # columns, (N,) each
    # With [privacy], at the end: sender, receiver (-1: a server, -2: all other clients,
    # if there are many), and epsilon.
    releases: dict[str, Tensor] = field(default_factory=dict)
    attempt: int = 0  # number of the attempt at training with secret noise
    repeated: int = 0  # rounds that were charged twice, as they may have left before
    # (round, versions): software and hardware from this round on, in order of rounds.
    versions: list[tuple[int, dict[str, str]]] = field(default_factory=list)


CONSTANT = "constant"
LINEAR = "linear alone"
TREES = "trees alone"
POOLED = "linear pooled"
"""Labels of the baselines, which are predictions that a method should beat."""


class Baselines(NamedTuple):
    """The scores of the baselines of one seed, in the form of finished cells.

    Baselines are never ranked or chosen like methods.
    """

    seed: int
    cells: list[Cell]
    left_out: list[str]  # sentences that say which ones, and why


def baselines_file(folder: Path, seed: int) -> Path:
    """The file of the baselines of a seed."""
    return folder / f"baselines-{seed}.pt"


def load_cell(path: Path) -> Cell:
    """The cell in a file."""
    values = load(path)
    try:
        return Cell(**values)
    except TypeError as error:
        raise damage_error(path, error) from error


def pack(state: State) -> Any:
    """A state of nested NamedTuples and dataclasses as nested dictionaries.

    Lists may grow, so their contents become the simplest types: tuples become lists.
    """
    if isinstance(state, tuple):
        names = getattr(state, "_fields", None) or range(len(state))
        pairs = zip(names, state, strict=True)
        return {str(name): pack(value) for name, value in pairs}
    if is_dataclass(state):
        return {name: pack(value) for name, value in vars(state).items()}
    if isinstance(state, list):
        return [_as_lists(value) for value in state]
    return state.detach().cpu() if isinstance(state, Tensor) else state


def unpack(packed: Any, like: State) -> State:
    """The state that was packed, with the types and devices of `like`."""
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


def _as_lists(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_as_lists(part) for part in value]
    return value.detach().cpu() if isinstance(value, Tensor) else value
