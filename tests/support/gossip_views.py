"""Views of observers, written down as matrices by plain loops, and ledgers of them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from coterie.graphs import edges_of, gossip_matrix, linked_pairs
from coterie.privacy import Exchange, Input, Ledger


def gossip_ledger(
    matrix: Tensor,
    rounds: int,
    *,
    gamma: float = 1.0,
    steps: int = 1,
    noise: float = 1.0,
    sensitivity: float = 1.0,
) -> Ledger:
    """`steps` inputs of everybody, each followed by so many rounds with one matrix."""
    n, edges = len(matrix), linked_pairs(matrix)
    links = torch.cat([edges, edges.flip(1)])
    ledger = Ledger(n)
    for s in range(steps):
        ledger.append(Input(s, torch.ones(n).bool(), sensitivity, noise))
        for t in range(rounds):
            ledger.append(Exchange(s, links, matrix, gamma if t else 1.0))
    return ledger


def ledger_of(matrices: list[Tensor]) -> Ledger:
    """One input of everybody, then a round with each of these dense matrices."""
    n = len(matrices[0])
    ledger = Ledger(n, (Input(0, torch.ones(n).bool(), 1.0, 1.0),))
    for t, weights in enumerate(matrices):
        v, w = weights.nonzero().T
        ledger.append(Exchange(t, torch.stack([w, v], 1)[v != w], weights))
    return ledger


def metropolis(graph: str, n: int, seed: int = 0) -> Tensor:
    """Metropolis weights of a graph by name."""
    return gossip_matrix(edges_of(graph, n, seed), n)


def view(matrices: list[np.ndarray], observers: list[int]) -> np.ndarray:
    """Coefficients of what they receive, plain gossip, without what they know."""
    n = len(matrices[0])
    power, rows = np.eye(n), []
    for matrix in matrices:
        for w in range(n):
            hears = any(matrix[v, w] for v in observers) and w not in observers
            if hears:
                rows.append(power[w].copy())
        power = matrix @ power
    found = np.array(rows).reshape(-1, n)
    found[:, observers] = 0
    return found


def projected(a: np.ndarray, rtol: float = 1e-9) -> np.ndarray:
    """A^+ A, by a pseudo-inverse."""
    return np.linalg.pinv(a, rcond=rtol) @ a


def shares(matrices: list[np.ndarray], observers: list[int]) -> Tensor:
    """What they learn of each input: the diagonal of the projection."""
    return torch.from_numpy(np.diag(projected(view(matrices, observers))).copy())
