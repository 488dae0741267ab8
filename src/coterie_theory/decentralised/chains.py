"""Markov chains: mixing and relaxation times, and paths.

    tau_mix(eps) = inf{t >= 1 : max_v d_TV(P^t(v, .), pi) <= eps},   tau_mix at pi_min/2
    tau_rel = 1 / (1 - max |lambda|)

where lambda is any eigenvalue except 1. P, pi and hitting times are defined in
`coterie.graphs.chains`. Mixing times are computed with dense matrices, in milliseconds
for 200 states and a minute for 1500.

References:
    Even, PhD thesis, 2024, chapter 7, tel-04877971.
    Levin, Peres, Wilmer, "Markov chains and mixing times", 2006.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Int
from scipy.sparse.csgraph import breadth_first_order
from torch import Tensor

from coterie.checks import InputError, integer, number
from coterie.graphs.chains import Chain, irreducible, stationary_law
from coterie.graphs.spectra import contraction


def mixing_time(chain: Chain, eps: float | None = None) -> int:
    """tau_mix(eps), by default tau_mix = tau_mix(pi_min / 2).

    Raises:
        InputError: for a periodic chain, which never forgets its start.
    """
    law = stationary_law(chain)
    steps = period(chain)
    if steps > 1:
        raise InputError(
            f"`chain` must not be periodic, but it has period {steps}. A walk that may "
            "stay where it is mixes."
        )
    target = float(law.min()) / 2 if eps is None else number("eps", eps, above=0)

    def far(power: Tensor) -> bool:
        return float((power - law).abs().sum(1).max()) / 2 > target

    # The distance never grows with t. So we try powers of two, and then bisect.
    powers = [chain.to_dense().double().cpu()]
    if not far(powers[0]):
        return 1
    while far(powers[-1]):
        powers.append(powers[-1] @ powers[-1])
    t, reached = 2 ** (len(powers) - 2), powers[-2]
    for k in range(len(powers) - 3, -1, -1):
        further = reached @ powers[k]
        if far(further):
            t, reached = t + 2**k, further
    return t + 1


def relaxation_time(chain: Chain) -> float:
    """tau_rel = 1 / lambda_P, infinite for a periodic chain.

    For a symmetric matrix, the computation is sparse.
    """
    matrix = irreducible(chain)
    if abs(matrix - matrix.T).max() < 1e-12:
        largest = contraction([chain])
    else:
        found = np.sort(np.abs(np.linalg.eigvals(matrix.toarray())))
        largest = float(found[-2]) if len(found) > 1 else 0.0
    return 1 / (1 - largest) if largest < 1 - 1e-12 else math.inf


def period(chain: Chain) -> int:
    """The greatest common divisor of the lengths of all paths back to a state."""
    matrix = irreducible(chain)
    order, before = breadth_first_order(matrix, 0)
    level = np.zeros(matrix.shape[0], dtype=np.int64)
    for state in order[1:]:
        level[state] = level[before[state]] + 1
    v, w = matrix.nonzero()
    return int(np.gcd.reduce(level[v] + 1 - level[w])) or 1


def paths(
    chain: Chain, start: Int[Tensor, " r"], steps: int, rng: torch.Generator
) -> Int[Tensor, "t r"]:
    """The states of walks from `start` at times 0, ..., steps."""
    rows = irreducible(chain)
    ends = torch.from_numpy(rows.indptr.astype(np.int64))
    sums = torch.from_numpy(np.cumsum(rows.data))
    to = torch.from_numpy(rows.indices.astype(np.int64))
    before = torch.cat([sums.new_zeros(1), sums])[ends]  # of all earlier rows
    first, last, total = ends[:-1], ends[1:] - 1, before.diff()
    integer("steps", steps, at_least=0)
    found = torch.empty(steps + 1, len(start), dtype=torch.long)
    found[0] = at = start
    draws = torch.rand(steps, len(start), generator=rng, dtype=sums.dtype)
    for t, draw in enumerate(draws, 1):
        place = torch.searchsorted(sums, before[at] + draw * total[at], right=True)
        # Rounding may lead to a neighbouring row.
        found[t] = at = to[place.clamp(first[at], last[at])]
    return found
