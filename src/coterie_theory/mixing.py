"""Mixing constants of averaging along a graph, as AGRAF needs them.

Matrices W_0, W_1, ... mix with constants rho and k_rho if, for all k and x,

    E |W_{k+k_rho-1} ... W_k x - x_bar|^2 <= (1 - rho)^2 |x - x_bar|^2         (5.5)

whatever happened before step k. Rates depend on rho_bar, which is about rho / k_rho and
satisfies

    E |W_{k+l-1} ... W_k x - x_bar|^2 <= 2 (1 - rho_bar)^{2l} |x - x_bar|^2    (5.9)

for all k, l. Graphs are (E, 2) lists of edges between nodes 0, ..., n - 1, and J is the
matrix with entries 1 / n. Edges are neighbours, e' ~ e, if they share a node; so e ~ e.
The eigengap lambda_2 of weights w is the eigengap of the Laplacian Delta(w), with `y'
Delta(w) y = sum_e w_e (y_v - y_w)^2`.

References:
    Even, PhD thesis, 2024, chapter 5, tel-04877971.
    Even, Koloskova, Massoulié, "Asynchronous SGD on graphs: a unified framework for
    asynchronous decentralized and federated optimization", AISTATS 2024, arXiv
    2311.00465.

Differences (each with a test; see docs/errata.md): matrices must be doubly stochastic,
but need not be symmetric. In Proposition 5.A.1, k_rho is a sum of logarithms, and
rho_bar uses rho up to a limit if k_rho > 1. Logarithms of Theorem 5.5 are positive.
Theorem 5.6 has half the printed weights, and Corollary 5.C.1 has k_rho = 3 T.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from coterie import checks
from coterie.checks import InputError
from coterie.graphs.capacities import most_around
from coterie.graphs.families import degrees, nodes_of
from coterie.graphs.spectra import contraction, eigengap

_SHARE = 1 - math.exp(-1)
# An edge rings within 1 / p seconds with probability 1 - 1/e, and is idle with 1/e.
_TRIES = -1 / math.log1p(-_SHARE / math.e)  # 3.7782


@dataclass(frozen=True)
class Mixing:
    """Constants of (5.5)."""

    rho: float
    window: int = 1  # k_rho

    def __post_init__(self) -> None:
        """Checks that something is mixed at all."""
        checks.number("rho", self.rho, above=0.0, at_most=1.0)
        checks.integer("window", self.window, at_least=1)

    @property
    def rho_bar(self) -> float:
        """`(1 - 1/e) rho / k_rho`; if k_rho > 1, rho counts as at most 1 - 1/sqrt(2).

        This is Proposition 5.A.1(1). Its proof assumes this limit of rho without saying
        so. Without the limit, (5.9) fails just before the end of a window.

        >>> round(Mixing(0.5).rho_bar, 4), round(Mixing(1.0, window=10).rho_bar, 4)
        (0.3161, 0.0185)
        """
        cap = 1.0 if self.window == 1 else 1 - math.sqrt(0.5)
        return _SHARE * min(self.rho, cap) / self.window


def window_of(rho: float, rho_bar: float) -> int:
    """A k_rho with which (5.9) for rho_bar implies (5.5) for rho; Proposition 5.A.1(2).

    It is `ceil((ln(2) / 2 - ln(1 - rho)) / -ln(1 - rho_bar))`. The thesis prints a
    product of logarithms.

    >>> window_of(0.5, 0.1)
    10
    """
    checks.number("rho", rho, above=0.0, below=1.0)
    checks.number("rho_bar", rho_bar, above=0.0, below=1.0)
    needed = math.log(2) / 2 - math.log1p(-rho)
    return math.ceil(needed / -math.log1p(-rho_bar))


# Constants of schedules.


def fixed_mixing(matrix: Float[Tensor, "n n"]) -> Mixing:
    """The same W at every step: `1 - rho = |W - J|_2`.

    For a symmetric W, the norm is max(|lambda_2|, |lambda_n|). A sparse W may be large.
    """
    return periodic_mixing(matrix[None])


def periodic_mixing(
    matrices: Float[Tensor, "p n n"], window: int | None = None
) -> Mixing:
    """W_0, ..., W_{p-1} in turn: `1 - rho = max_k |W_{k+k_rho-1} ... W_k - J|_2`.

    Args:
        matrices: one period, doubly stochastic, sparse or dense.
        window: k_rho, one period if None.
    """
    period = len(matrices)
    window = period if window is None else checks.integer("window", window, at_least=1)
    turn = [
        checks.doubly_stochastic(f"matrix {k}", matrices[k], matrices.shape[1])
        for k in range(period)
    ]
    norms = [
        contraction([turn[(k + step) % period] for step in range(window)])
        for k in range(period)
    ]
    return Mixing(_rho_of("matrices", max(norms)), window)


def random_mixing(
    matrices: Float[Tensor, "m n n"], probabilities: Float[Tensor, " m"]
) -> Mixing:
    """Independent draws: `(1 - rho)^2 = lambda_max(E[W' W] - J)`, k_rho = 1."""
    checks.positive("probabilities", probabilities, len(matrices))
    total = float(probabilities.sum())
    if abs(total - 1) > 1e-5:
        raise InputError(f"`probabilities` must sum to 1, but they sum to {total:.4g}.")
    double = _doubly_stochastic(matrices)
    second = torch.einsum("m,mji,mjk->ik", probabilities.double(), double, double)
    largest = float(torch.linalg.eigvalsh(_minus_mean(second))[-1])
    return Mixing(_rho_of("matrices", math.sqrt(max(0.0, largest))))


def pairwise_mixing(
    edges: Int[Tensor, "e 2"], probabilities: Float[Tensor, " e"]
) -> Mixing:
    """One edge averages in a step: `rho = 1 - sqrt(1 - lambda_2(pi) / 2)`, k_rho = 1.

    Edge e averages with probability pi_e. Probabilities may sum to less than 1.

    >>> cycle = torch.tensor([[v, (v + 1) % 10] for v in range(10)])
    >>> round(pairwise_mixing(cycle, torch.full((10,), 0.1)).rho, 7)
    0.0095952
    """
    total = float(probabilities.sum())
    if total > 1 + 1e-5:
        raise InputError(
            f"`probabilities` must sum to at most 1, but they sum to {total:.4g}."
        )
    return Mixing(1 - math.sqrt(max(0.0, 1 - eigengap(edges, probabilities) / 2)))


def every(steps: int, mixing: Mixing | None = None) -> Mixing:
    """Averaging only at each `steps`-th step, exactly or with the given mixing."""
    checks.integer("steps", steps, at_least=1)
    rho, window = (1.0, 1) if mixing is None else (mixing.rho, mixing.window)
    return Mixing(rho, steps * window)


def estimated_rho_bar(
    draw: Callable[[torch.Generator], Float[Tensor, "k n n"]],
    rng: torch.Generator,
    *,
    runs: int = 100,
) -> float:
    """The rate of decay of `max E |W_{k-1} ... W_0 x - x_bar|^2` over |x - x_bar| = 1.

    It is `1 - e^{slope / 2}`, with the slope of the logarithm over the second half of
    the steps. Use it for schedules without a closed form. The estimate may miss rare
    runs that mix badly.

    Args:
        draw: the matrices W_0, ..., W_{K-1} of one run.
        rng: the generator for `draw`.
        runs: the number of runs in the mean.
    """
    checks.integer("runs", runs, at_least=1)
    moments: list[Tensor] = []
    for _ in range(runs):
        matrices = _doubly_stochastic(draw(rng))
        checks.integer("number of matrices", len(matrices), at_least=4)
        product = torch.eye(matrices.shape[1], dtype=torch.float64)
        products = [product := matrix @ product for matrix in matrices]
        moved = _minus_mean(torch.stack(products))
        moments.append(moved.mT @ moved / runs)
    curve = torch.linalg.eigvalsh(torch.stack(moments).sum(0))[:, -1].log()
    half = curve[len(curve) // 2 :]
    time = torch.arange(len(half), dtype=torch.float64)
    time -= time.mean()
    slope = float((time @ half) / time.square().sum())
    return -math.expm1(slope / 2)


# Loss networks: a pair of nodes is busy while it computes and exchanges models, and
# nobody waits for busy nodes.


def busy_times(
    edges: Int[Tensor, "e 2"],
    links: Float[Tensor, " e"],
    computing: Float[Tensor, " n"],
) -> Float[Tensor, " e"]:
    """`tau'_vw = tau_vw + max(tau_v, tau_w)`: how long an exchange keeps nodes busy."""
    checks.positive("links", links, len(edges))
    checks.positive("computing", computing, nodes_of(edges))
    return links + computing[edges].amax(1)


def loss_eigengap(edges: Int[Tensor, "e 2"], rates: Float[Tensor, " e"]) -> float:
    """Lambda, the order of rho / k_rho in a loss network, per exchange; Theorem 5.5.

    Lambda is the eigengap of the weights `min_{e' ~ e} p_e' / (d_max sum_e'' p_e'')`.
    Logarithms are left out. The appendix has d_max^2 and, by (5.33), `p_e^2 / max
    p_e'`.
    """
    checks.positive("rates", rates, len(edges))
    least = 1 / most_around(edges, 1 / rates)
    return eigengap(edges, least / (int(degrees(edges).max()) * rates.sum()))


def waiting_times(
    edges: Int[Tensor, "e 2"],
    rates: Float[Tensor, " e"],
    busy: Float[Tensor, " e"],
    *,
    chance: float,
) -> Float[Tensor, " e"]:
    """Times within which edges are used, except with probability delta; Lemma 5.C.2.

    `l_e = ln(1 / delta) (1 / p_e + max_{e' ~ e} tau'_e') / |ln(1 - (1 - 1/e) / e)|`,
    where one over the logarithm is 3.7782. The printed logarithm is negative.
    """
    checks.number("chance", chance, above=0.0, below=1.0)
    tries = _TRIES * math.log(1 / chance)
    return tries * (1 / rates + most_around(edges, busy))


# Any order of edges.


@dataclass(frozen=True, eq=False)  # tensors do not compare
class Activations:
    """What is known about the order of edges, one per step; Assumption 5.C.1."""

    lengths: Tensor  # (E,) l_e, a scale of the time between two uses of edge e
    a: float  # edge e is used in every a l_e steps
    b: float  # a neighbour e' at most ceil(b l_e / l_e') times between two uses of e
    window: int  # T steps in which every edge is used


def activation_gap(edges: Int[Tensor, "e 2"], known: Activations) -> float:
    """g: the rate per step at which the mean of |x^l - x_bar|^2 over T steps falls.

    By Theorem 5.6, g is the eigengap of `nu_e / 2`, with `nu_e = C min_{e' ~ e} l_e' /
    l_e^2` and `C = 1 / (2 a + 8 d_max^2 a b)`. The statement lacks the 2 of its proof
    (5.33).
    """
    lengths = checks.positive("lengths", known.lengths, len(edges))
    least = 1 / most_around(edges, 1 / lengths)
    most = int(degrees(edges).max())
    scale = 1 / (2 * known.a + 8 * most**2 * known.a * known.b)
    return eigengap(edges, scale / 2 * least / lengths.square())


def likely_mixing(gap: float, window: int) -> Mixing:
    """The mixing constants if `Activations` hold with probability 1/2; Corollary 5.C.1.

    `(1 - rho)^2 = (1 - g)^{T/3} / 4 + 3/4`, k_rho = 3 T. The printed proof takes the
    mean over T steps to be at least half its first term. It is only at least its last
    term.
    """
    checks.number("gap", gap, above=0.0, at_most=1.0)
    return Mixing(1 - math.sqrt(0.25 * (1 - gap) ** (window / 3) + 0.75), 3 * window)


def loss_activations(
    edges: Int[Tensor, "e 2"], rates: Float[Tensor, " e"]
) -> Activations:
    """`Activations` that hold in a loss network with probability 1/2; 5.C.3.

    `loss_rates` gives the rates p. With l_e = 1 / p_e, I = sum_e p_e, and c the factor
    3.7782 of `waiting_times`: `T = 2 I max_e (1 / p_e) c ln(6 |E|)`, `a = I b` and `b =
    2 e c ln(6 |E| T)`.
    """
    lengths = 1 / checks.positive("rates", rates, len(edges))
    total = float(rates.sum())
    tries = _TRIES * math.log(6 * len(edges))
    window = math.ceil(2 * total * float(lengths.max()) * tries)
    b = 2 * math.e * _TRIES * math.log(6 * len(edges) * window)
    return Activations(lengths, total * b, b, window)


def _doubly_stochastic(matrices: Tensor) -> Tensor:
    """The matrices in double precision; refuses one that is not doubly stochastic."""
    sums = torch.stack([matrices.sum(-1), matrices.sum(-2)])
    if (matrices >= 0).all() and (sums - 1).abs().max() < 1e-5:
        return matrices.double()
    for k, matrix in enumerate(matrices):  # to say which row of which one is wrong
        checks.doubly_stochastic(f"matrix {k}", matrix, len(matrix))
    return matrices.double()


def _minus_mean(matrices: Tensor) -> Tensor:
    """`W - J`."""
    return matrices - 1 / matrices.shape[-1]


def _rho_of(name: str, norm: float) -> float:
    """The constant rho = 1 - norm; refuses matrices that do not mix."""
    if norm > 1 - 1e-12:
        raise InputError(
            f"`{name}` must mix within the window, but |W - J| is 1: some nodes never "
            "meet, or they only swap."
        )
    return 1 - norm
