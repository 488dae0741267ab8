"""Markov chains: stationary distributions and hitting times.

A chain is given by its (n, n) matrix P of transition probabilities, sparse or dense.
From every state, the chain must be able to reach every other state; pi is its
stationary distribution. Hitting times are defined as in the reference:

    tau_hit = max_{v,w} E[tau_w | v_0 = v],   tau_w = inf{t >= 1 : v_t = w}

So tau_hit includes returns: for v = w the mean time is 1 / pi_w. Computing hitting
times takes a dense matrix, and milliseconds for 200 states, a second for 1500.

References:
    Even, "Towards decentralization, asynchrony, privacy and personalization in
    federated learning", PhD thesis, 2024, chapter 7, hal tel-04877971.
    Levin, Peres, Wilmer, "Markov chains and mixing times", 2006.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Float64
from scipy.sparse import csr_array, diags_array, eye_array
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import splu
from torch import Tensor

from ..checks import InputError, stochastic
from .spectra import as_scipy
from .walks import Walk, transition

Chain = Float[Tensor, "n n"]


def stationary_law(chain: Chain) -> Float64[Tensor, " n"]:
    """The distribution pi = pi P, also of a periodic chain, by a sparse linear system.

    >>> stationary_law(torch.tensor([[0.0, 1.0], [0.5, 0.5]]))
    tensor([0.3333, 0.6667], dtype=torch.float64)
    """
    matrix = irreducible(chain)
    n = matrix.shape[0]
    if n == 1:
        return torch.ones(1, dtype=torch.float64)
    # With pi_0 = 1, the other entries follow from all equations but the first.
    system = (eye_array(n) - matrix.T).tocsc()
    rest = splu(system[1:, 1:]).solve(-system[1:, [0]].toarray()[:, 0])
    law = np.append(1.0, rest)
    return torch.from_numpy(law / law.sum())


def hitting_times(chain: Chain) -> Float64[Tensor, "n n"]:
    """Mean times E[tau_w | v_0 = v] at (v, w); the diagonal has return times 1 / pi.

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
    """The hitting time tau_hit of a token's walk, over all pairs of states.

    >>> hitting_time_of(Walk("iid", ((1, 2), (0, 2), (0, 1))))
    3.0
    """
    n = len(walk.neighbours)
    if walk.kind == "reshuffled":
        # The first client of an epoch is at a uniformly random position in the next
        # epoch. So it waits n - 1 + (n + 1) / 2 steps on average.
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
    """The longest mean time from any state until the chain is in one of `there`."""
    matrix = as_scipy(chain)
    away = matrix @ diags_array((~there).astype(float))
    system = (eye_array(len(there)) - away).tocsc()
    return float(splu(system).solve(np.ones(len(there))).max())


def irreducible(chain: Tensor) -> csr_array:
    """Returns the chain as a sparse matrix if every state leads to every other."""
    matrix = as_scipy(stochastic("chain", chain, len(chain)))
    parts, part = connected_components(matrix, connection="strong")
    if parts > 1:
        other = int((part != part[0]).argmax())
        raise InputError(
            "`chain` must lead from every state to every other, but there is no way "
            f"from 0 to {other} and back."
        )
    return matrix
