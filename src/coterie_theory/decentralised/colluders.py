"""Private averaging if some clients, the colluders V, share all that they see.

The colluders act as one node, so n clients are n - |V| + 1 nodes. The degree d_V of the
joint node is the number of clients outside of V that have a link to V. Losses are in
units of local privacy, as in `muffliato`. To get divergences, multiply them by alpha
Delta^2 / (2 s^2).

    mean loss            d_V T / n, by `muffliato.mean_loss`                      (6.16)
    its noise            s^2 = alpha Delta^2 d_V T / (2 n epsilon), by
                         `muffliato.noise_for_mean` with degree d_V     Corollary 6.D.2
    on a secret graph    min(1, 2 T d_V / (n - |V| + 1 - d_V))          Corollary 6.D.3

With one client in V, these are the losses of `muffliato`.

References:
    Even, PhD thesis, 2024, 6.D.1, tel-04877971.

Differences (each with a test; see docs/errata.md): losses have the factor Delta^2,
which the thesis leaves out twice. A secret graph has n - |V| + 1 nodes, not n. V has
about c |V| ln n neighbours, not 1/n times this number.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from coterie import checks
from coterie.checks import InputError

from .muffliato import secret_graph_loss


def joint_degree(matrix: Float[Tensor, "n n"], colluders: Sequence[int]) -> int:
    """d_V, the number of clients outside of V that have a link to V.

    >>> line = torch.tensor([[2.0, 1, 0], [1, 1, 1], [0, 1, 2]]) / 3
    >>> joint_degree(line, [0, 1]), joint_degree(line, [0, 2])
    (1, 1)
    """
    return int((_inwards(matrix, colluders) > 0).any(1).sum())


def colluders_walk_bound(
    matrix: Float[Tensor, "n n"], rounds: int, colluders: Sequence[int]
) -> Float64[Tensor, " n"]:
    """(n,) the bound of Corollary 6.D.1 on (6.15); it is not a guarantee.

    True losses can exceed (6.15), see `coterie_theory.privacy.printed`. The bound is

    `n max_{v in V, w ~ v, w not in V} W_vw^{-2} sum_{t=1}^T P(X^t in V | X^0 = u)^2`
    for each u, where X walks with W; 0 for colluders.
    """
    links = _inwards(matrix, colluders)
    weights, inside = matrix.to_dense().double(), list(colluders)
    there = torch.zeros(len(weights), dtype=torch.float64)
    there[inside] = 1.0
    total = torch.zeros_like(there)
    for _ in range(checks.integer("rounds", rounds, at_least=1)):
        there = weights @ there
        total += there.square()
    total[inside] = 0.0
    used = links[links > 0]
    return len(weights) * total / used.min().square() if len(used) else total


def _inwards(matrix: Tensor, colluders: Sequence[int]) -> Tensor:
    """(n, |V|) the weights of links to V; the rows of colluders are 0."""
    weights, n = matrix.to_dense().double(), len(matrix)
    there = set(colluders)
    wrong = len(there) != len(colluders) or not there <= set(range(n))
    if wrong or not 0 < len(there) < n:
        raise InputError(
            f"`colluders` must be some, but not all, of clients 0 to {n - 1}, each "
            f"once, got {checks.brief(list(colluders))}."
        )
    links = weights[:, list(colluders)].clone()
    links[list(colluders)] = 0.0
    return links


# Graphs where each client knows only its own links.


def secret_colluders_loss(n: int, colluders: int, degree: int, rounds: int) -> float:
    """Corollary 6.D.3: the loss of a client without a link to a colluder.

    `min(1, 2 T d_V / (n - |V| + 1 - d_V))`, for orders up to `largest_order`. The loss
    of a client with a link is 1. A client has a link with probability `linked_chance`.

    >>> round(secret_colluders_loss(2000, 3, 24, 27), 4)
    0.6565

    Args:
        n: clients.
        colluders: |V|.
        degree: d_V.
        rounds: T.
    """
    _few(n, colluders)
    return secret_graph_loss(n - colluders + 1, degree, rounds)


def linked_chance(chance: float, colluders: int) -> float:
    """`1 - (1 - q)^|V|`, the probability of a link between a client and V.

    >>> round(linked_chance(0.1, 2), 4)
    0.19

    Args:
        chance: q, the probability of each link.
        colluders: |V|.
    """
    checks.number("chance", chance, at_least=0, at_most=1)
    return 1 - (1 - chance) ** checks.integer("colluders", colluders, at_least=1)


def expected_degree(n: int, chance: float, colluders: int) -> float:
    """`(n - |V|)(1 - (1 - q)^|V|)`, the mean of d_V.

    It is about c |V| ln n if q = c ln n / n.

    >>> round(expected_degree(2000, 0.004, 3), 2)
    23.87
    """
    _few(n, colluders)
    return (n - colluders) * linked_chance(chance, colluders)


def redrawn_graphs_loss(
    n: int,
    colluders: int,
    degrees: Sequence[int],
    linked: Sequence[float],
    exchanges: int,
) -> float:
    """Proposition 6.D.1: the loss over all steps of Muffliato-SGD with new graphs.

    `sum_t beta_t + (1 - beta_t) min(1, 2 K d_V(t) / (n - |V| + 1 - d_V(t)))`.

    The sum treats later messages and steps as if they did not depend on earlier steps,
    as (6.13) does. So it is not a guarantee. A guarantee is that the total loss is at
    most the number of steps, T.

    >>> round(redrawn_graphs_loss(2000, 3, [24] * 10, [0.0] * 9 + [1.0], 5), 3)
    2.094

    Args:
        n: clients.
        colluders: |V|.
        degrees: d_V of each step.
        linked: beta of each step: 1 if the client has a link to V, otherwise 0. To get
            the expectation, use `linked_chance` for each step.
        exchanges: K, the number of exchanges in a step.
    """
    if len(degrees) != len(linked):
        raise InputError(
            f"`degrees` and `linked` must have an entry for each step, got "
            f"{len(degrees)} and {len(linked)}."
        )
    total = 0.0
    for degree, beta in zip(degrees, linked, strict=True):
        checks.number("linked", beta, at_least=0, at_most=1)
        apart = secret_colluders_loss(n, colluders, degree, exchanges)
        total += beta + (1 - beta) * apart
    return total


def _few(n: int, colluders: int) -> None:
    checks.integer("n", n, at_least=2)
    checks.integer("colluders", colluders, at_least=1, at_most=n - 1)
