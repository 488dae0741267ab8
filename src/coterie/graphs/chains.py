"""Markov chains: where they are in the long run, and how long they take to be there.

A chain is its (n, n) matrix P of chances, sparse or dense, which must lead from every
state to every other; pi is its stationary law. Times are as in the reference:

    tau_mix(eps) = inf{t >= 1 : max_v d_TV(P^t(v, .), pi) <= eps},   tau_mix at pi_min/2
    tau_hit = max_{v,w} E[tau_w | v_0 = v],   tau_w = inf{t >= 1 : v_t = w}
    tau_cov = max_v E[max_w tau_w | v_0 = v],   tau_rel = 1 / (1 - max |lambda|)

so that tau_hit counts returns, 1 / pi_w for v = w, and lambda is any eigenvalue but 1.
Hitting and mixing times take dense matrices: milliseconds for 200 states; for 1500 a
second to hit and a minute to mix.

References:
    Even, "Towards decentralization, asynchrony, privacy and personalization in
    federated learning", PhD thesis, 2024, chapter 7, hal tel-04877971.
    Levin, Peres, Wilmer, "Markov chains and mixing times", 2006.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float, Float64, Int
from scipy.sparse import csr_array, diags_array, eye_array
from scipy.sparse.csgraph import breadth_first_order, connected_components
from scipy.sparse.linalg import splu
from torch import Tensor

from ..checks import InputError, integer, number, stochastic
from .spectra import as_scipy, contraction
from .walks import Walk, transition

Chain = Float[Tensor, "n n"]


def stationary_law(chain: Chain) -> Float64[Tensor, " n"]:
    """The law pi = pi P, from one sparse system, also of a chain that is periodic.

    >>> stationary_law(torch.tensor([[0.0, 1.0], [0.5, 0.5]]))
    tensor([0.3333, 0.6667], dtype=torch.float64)
    """
    matrix = _irreducible(chain)
    n = matrix.shape[0]
    if n == 1:
        return torch.ones(1, dtype=torch.float64)
    # With pi_0 = 1, the others follow from all equations but the first.
    system = (eye_array(n) - matrix.T).tocsc()
    rest = splu(system[1:, 1:]).solve(-system[1:, [0]].toarray()[:, 0])
    law = np.append(1.0, rest)
    return torch.from_numpy(law / law.sum())


def hitting_times(chain: Chain) -> Float64[Tensor, "n n"]:
    """Entry (v, w) is E[tau_w | v_0 = v]; the diagonal has return times 1 / pi.

    By the fundamental matrix Z = (I - P + 1 pi')^-1: H_vw = (Z_ww - Z_vw) / pi_w.
    """
    law = stationary_law(chain)
    full = chain.to_dense().double().cpu()
    z = torch.linalg.inv(torch.eye(len(law), dtype=law.dtype) - full + law)
    times = (z.diagonal() - z) / law
    return times.fill_diagonal_(0) + (1 / law).diag()


def hitting_time(chain: Chain) -> float:
    """tau_hit, the largest of `hitting_times`."""
    return float(hitting_times(chain).max())


def hitting_time_of(walk: Walk) -> float:
    """tau_hit of a token, from any client and whatever it remembers.

    >>> hitting_time_of(Walk("iid", ((1, 2), (0, 2), (0, 1))))
    3.0
    """
    n = len(walk.neighbours)
    if walk.kind == "reshuffled":
        # A client that was the first of an epoch may be the last of the next one, in
        # the middle of which it is on average: n - 1 + (n + 1) / 2.
        return (3 * n - 1) / 2
    if n == 1 or walk.kind in ("cyclic", "iid"):
        return float(n)
    pairs = [(v, w) for v in range(n) for w in walk.neighbours[v] if v < w]
    edges = torch.tensor(pairs)
    chain = transition(walk.kind, edges, n)
    if walk.kind != "non_backtracking":
        return hitting_time(chain)
    heads = torch.cat([edges[:, 1], edges[:, 0]]).numpy()
    return max(_time_to(chain, heads == w) for w in range(n))


def _time_to(chain: Tensor, there: np.ndarray) -> float:
    """The longest mean time to be in one of several states, from any."""
    matrix = as_scipy(chain)
    away = matrix @ diags_array((~there).astype(float))
    system = (eye_array(len(there)) - away).tocsc()
    return float(splu(system).solve(np.ones(len(there))).max())


def mixing_time(chain: Chain, eps: float | None = None) -> int:
    """tau_mix(eps), and tau_mix = tau_mix(pi_min / 2) where eps is None.

    Raises:
        InputError: for a periodic chain, which never forgets where it began.
    """
    law = stationary_law(chain)
    steps = period(chain)
    if steps > 1:
        raise InputError(
            f"`chain` must not be periodic to mix, but it has period {steps}; a walk "
            "that may stay where it is has none."
        )
    target = float(law.min()) / 2 if eps is None else number("eps", eps, above=0)

    def far(power: Tensor) -> bool:
        return float((power - law).abs().sum(1).max()) / 2 > target

    # The distance never grows with t: powers of two until it is there, then between.
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

    That of a symmetric matrix is found without a dense one.
    """
    matrix = _irreducible(chain)
    if abs(matrix - matrix.T).max() < 1e-12:
        largest = contraction([chain])
    else:
        found = np.sort(np.abs(np.linalg.eigvals(matrix.toarray())))
        largest = float(found[-2]) if len(found) > 1 else 0.0
    return 1 / (1 - largest) if largest < 1 - 1e-12 else math.inf


def period(chain: Chain) -> int:
    """The greatest common divisor of the lengths of all ways back to a state."""
    matrix = _irreducible(chain)
    order, before = breadth_first_order(matrix, 0)
    level = np.zeros(matrix.shape[0], dtype=np.int64)
    for state in order[1:]:
        level[state] = level[before[state]] + 1
    v, w = matrix.nonzero()
    return int(np.gcd.reduce(level[v] + 1 - level[w])) or 1


def paths(
    chain: Chain, start: Int[Tensor, " r"], steps: int, rng: torch.Generator
) -> Int[Tensor, "t r"]:
    """Where walks that begin there are at times 0, ..., steps."""
    rows = _irreducible(chain)
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


def cover_time(chain: Chain, rng: torch.Generator, *, runs: int = 400) -> float:
    """tau_cov, by so many walks from every state, of which the worst counts.

    A maximum of means is a little too large; their deviations are about tau_cov / 2
    divided by the root of `runs`.
    """
    n = len(_irreducible(chain).indptr) - 1
    integer("runs", runs, at_least=1)
    at = torch.arange(n).repeat_interleave(runs)
    met = torch.zeros(len(at), n, dtype=torch.bool)
    took = torch.zeros(len(at), dtype=torch.float64)
    going, t = torch.arange(len(at)), 0
    while len(going):
        piece = paths(chain, at[going], 64, rng)[1:]
        for now in piece:
            t += 1
            met[going, now] = True
            done = met[going].all(1) & (took[going] == 0)
            took[going[done]] = t
        at[going] = piece[-1]
        going = going[took[going] == 0]
    return float(took.view(n, runs).mean(1).max())


def _irreducible(chain: Tensor) -> csr_array:
    """The chain, if it leads from every state to every other."""
    matrix = as_scipy(stochastic("chain", chain, len(chain)))
    parts, part = connected_components(matrix, connection="strong")
    if parts > 1:
        other = int((part != part[0]).argmax())
        raise InputError(
            "`chain` must lead from every state to every other, but there is no way "
            f"from 0 to {other} and back."
        )
    return matrix
