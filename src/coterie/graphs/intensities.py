"""How often to use each edge, and which edges not to use (Braess's paradox).

The two ends of edge e average their values p_e times a second. Their messages take
tau_e seconds. We write e' ~ e if two edges share a node; also e ~ e. Late values may do
harm. So an edge must take small steps if edges near it are used often or have long
delays. The gain of edge e is

    K_e = p_e / (1 + S_e),   S_e = sum_{e' ~ e} p_e' (tau_e + e tau_e'),   e = 2.718...

Then all differences vanish at a rate of order lambda_2(Delta(K)). One slow edge slows
down all edges near it, so the network may be faster without the slow edge. The best
rates maximise

    Phi(p) = lambda_2(Delta(K(p))) - price sum_e p_e tau_e

over p >= 0; edges with p_e = 0 are not used. Phi is neither concave nor smooth, so the
result may not be the best one. It is at least as good as p_e = 1 / tau_e on all edges.
It is also at least as good as the rates p_e = 1 / tau_e on only those edges whose
delays are below some limit.

References:
    Even, "Towards decentralization, asynchrony, privacy and personalization in
    federated learning", PhD thesis, 2024, sections 4.2.3 and 4.6, hal tel-04877971.

Differences: the thesis leaves `price` open. Our default is proportional to the eigengap
of p_e = 1 / tau_e, so that time may have any unit.
"""

from __future__ import annotations

import math

import numpy as np
import scipy.linalg
import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from .. import checks
from ..checks import InputError
from .families import nodes_of, not_negative, refuse_apart
from .spectra import eigengap

MOST_TUNED = 500
"""The largest number of nodes: tuning takes many dense eigenvectors."""


def delayed_gains(
    edges: Int[Tensor, "e 2"], rates: Float[Tensor, " e"], delays: Float[Tensor, " e"]
) -> Float64[Tensor, " e"]:
    """The gain K_e of every edge: the largest that (4.11) allows.

    >>> delayed_gains(torch.tensor([[0, 1]]), torch.ones(1), torch.zeros(1))
    tensor([1.], dtype=torch.float64)
    """
    return rates.double() / slowdowns(edges, rates, delays)


def slowdowns(
    edges: Int[Tensor, "e 2"], rates: Float[Tensor, " e"], delays: Float[Tensor, " e"]
) -> Float64[Tensor, " e"]:
    """1 + S_e: the factor by which the steps of edge e must be shorter."""
    p, tau = rates.double().cpu().numpy(), delays.double().cpu().numpy()
    _, around = _moves(edges.cpu().numpy(), nodes_of(edges), p, tau)
    return torch.from_numpy(1 + around).to(rates.device)


def delayed_shares(
    edges: Int[Tensor, "e 2"], rates: Float[Tensor, " e"], delays: Float[Tensor, " e"]
) -> Float64[Tensor, " e"]:
    """The shares s_e = K_e / (2 p_e), also for edges that never ring.

    >>> alone = torch.tensor([[0, 1]])
    >>> delayed_shares(alone, torch.ones(1), torch.zeros(1))
    tensor([0.5000], dtype=torch.float64)
    """
    not_negative("rates", rates, len(edges))
    not_negative("delays", delays, len(edges))
    return 0.5 / slowdowns(edges, rates, delays)


def delayed_gap(
    edges: Int[Tensor, "e 2"], rates: Float[Tensor, " e"], delays: Float[Tensor, " e"]
) -> float:
    """The eigengap lambda_2(Delta(K)) for these rates, which may be 0 on some edges.

    Raises:
        InputError: if edges of positive rates do not connect all nodes.
    """
    return eigengap(edges, delayed_gains(edges, rates, delays))


def tuned_rates(
    edges: Int[Tensor, "e 2"],
    delays: Float[Tensor, " e"],
    *,
    price: float | None = None,
    steps: int = 2000,
) -> Float64[Tensor, " e"]:
    """Rates p with a large Phi(p); an edge that slows others down too much has rate 0.

    Args:
        edges: they must join all nodes 0, ..., n - 1.
        delays: tau_e, positive.
        price: the price of a link that is always in use. By default, all links together
            cost a thirtieth of the eigengap of p = 1 / tau.
        steps: the number of steps of Adam on `p_e tau_e`, which stays at 0 or above.

    Raises:
        InputError: if a delay is not positive, or with more than 500 nodes.
    """
    n = nodes_of(edges)
    refuse_apart("edges", edges, n)
    tau = checks.positive("delays", delays, len(edges)).double().cpu().numpy()
    checks.integer("steps", steps, at_least=1)
    refuse_many(n)
    ends = edges.cpu().numpy()
    if price is None:
        price = _phi(ends, n, 1 / tau, tau, 0.0) / (30 * len(ends))
    price = checks.number("price", price, at_least=0)
    start = max(_without_slow(ends, n, tau), key=lambda p: _phi(ends, n, p, tau, price))
    best = _climb(ends, n, start, tau, price, steps)
    return torch.from_numpy(best)


def refuse_many(nodes: int) -> None:
    """Refuses a network with more nodes than `MOST_TUNED`."""
    if nodes > MOST_TUNED:
        raise InputError(
            f"rates can be tuned for at most {MOST_TUNED} nodes, got {nodes}."
        )


def _without_slow(ends: np.ndarray, n: int, tau: np.ndarray) -> list[np.ndarray]:
    """Candidates: rates 1 / tau on edges up to some delay that connect all nodes."""
    # Tries at most 20 of the delays.
    some = np.unique(np.quantile(tau, np.linspace(0, 1, 20), method="inverted_cdf"))
    found = [np.where(tau <= most, 1 / tau, 0) for most in some]
    return [p for p in found if _phi(ends, n, p, tau, 0.0) > 1e-12 * p.max()]


def _climb(
    ends: np.ndarray,
    n: int,
    p: np.ndarray,
    tau: np.ndarray,
    price: float,
    steps: int,
) -> np.ndarray:
    """The best of the rates through which Adam goes, with shorter and shorter steps."""
    use, best = p * tau, p
    most = _phi(ends, n, p, tau, price)
    mean, square = np.zeros_like(use), np.zeros_like(use)
    for t in range(1, steps + 1):
        value, slope = phi_slope(ends, n, use / tau, tau, price)
        if value > most:
            most, best = value, use / tau
        slope = slope / tau
        mean = 0.9 * mean + 0.1 * slope
        square = 0.99 * square + 0.01 * slope**2
        step = (mean / (1 - 0.9**t)) / (np.sqrt(square / (1 - 0.99**t)) + 1e-300)
        use = np.clip(use + 0.1 * 0.01 ** (t / steps) * step, 0, None)
    return best


def phi_slope(
    ends: np.ndarray, n: int, p: np.ndarray, tau: np.ndarray, price: float
) -> tuple[float, np.ndarray]:
    """Phi and its gradient in p.

    If lambda_2 is almost a double eigenvalue, the gradient is a mean over eigenvectors.
    With a unit eigenvector u of lambda_2, `d lambda_2 / d K_e = (u_v - u_w)^2`.

    Args:
        ends: edges, (E, 2).
        n: the number of nodes.
        p: rates.
        tau: delays.
        price: the price of `p tau`.
    """
    gains, around = _moves(ends, n, p, tau)
    count = min(n - 1, 6)
    values, vectors = scipy.linalg.eigh(
        _laplacian(ends, n, gains), subset_by_index=[1, count]
    )
    near = np.exp(-(values - values[0]) / (0.01 * max(values[0], 1e-300)))
    steep = (vectors[ends[:, 0]] - vectors[ends[:, 1]]) ** 2 @ (near / near.sum())
    lost = steep * p / (1 + around) ** 2
    slope = steep / (1 + around)
    slope -= _over_adjacent(ends, n, lost * tau)
    slope -= math.e * tau * _over_adjacent(ends, n, lost)
    return float(values[0] - price * (p @ tau)), slope - price * tau


def _phi(
    ends: np.ndarray, n: int, p: np.ndarray, tau: np.ndarray, price: float
) -> float:
    gains, _ = _moves(ends, n, p, tau)
    values = scipy.linalg.eigvalsh(_laplacian(ends, n, gains), subset_by_index=[1, 1])
    return float(values[0] - price * (p @ tau))


def _moves(
    ends: np.ndarray, n: int, p: np.ndarray, tau: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """K and S of all edges."""
    around = tau * _over_adjacent(ends, n, p)
    around += math.e * _over_adjacent(ends, n, p * tau)
    return p / (1 + around), around


def _over_adjacent(ends: np.ndarray, n: int, values: np.ndarray) -> np.ndarray:
    """For each edge, the sum over itself and the edges that share a node with it."""
    at = np.bincount(ends.ravel(), np.repeat(values, 2), minlength=n)
    return at[ends].sum(1) - values


def _laplacian(ends: np.ndarray, n: int, weights: np.ndarray) -> np.ndarray:
    matrix = np.zeros((n, n))
    matrix[ends[:, 0], ends[:, 1]] = matrix[ends[:, 1], ends[:, 0]] = -weights
    matrix[np.diag_indices(n)] = np.bincount(
        ends.ravel(), np.repeat(weights, 2), minlength=n
    )
    return matrix
