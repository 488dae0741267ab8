"""Experiments 2 and 4 on chapter 5: graphs, and local steps, without delays."""

from __future__ import annotations

import math

import numpy as np

from coterie.cli import Claim
from coterie.graphs import edges_of, gossip_matrix
from coterie_theory import agraf, mixing

from .walks import random, slope

GRAPHS = ("complete", "expander(4)", "grid", "ring", "line")


def heterogeneous(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Curvatures a and optima b of f_v(x) = sum_j a_vj (x_j - b_vj)^2 / 2, (n, 8)."""
    rng = random(seed, "heterogeneous")
    return rng.uniform(0.5, 1.5, (n, 8)), rng.normal(size=(n, 8))


def gradients_needed(
    mixing: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    *,
    every: int = 1,
    target: float,
    most: int,
) -> tuple[float, bool]:
    """The fewest gradients until the mean of f(x_bar^k) - f^* is at the target.

    Over 33 steps gamma from 1e-4 to 1, and whether the best is inside. All nodes take
    part, and `mixing` is applied at each `every`-th step. The target is a share of
    f(x^0) - f^*.
    """
    lr = np.logspace(-4, 0, 33)[:, None, None]
    x = np.zeros((33, *a.shape))
    best, curve = (a * b).sum(0) / a.sum(0), a.mean(0)
    level = target * float((curve * best**2).sum() / 2)
    total = np.zeros(33)
    with np.errstate(over="ignore", invalid="ignore"):  # some steps are too long
        for k in range(1, most + 1):
            off = x.mean(1) - best
            total += (curve * off**2).sum(1) / 2
            reached = (total <= level * k).nonzero()[0]
            if len(reached):
                return float(k * len(a)), bool(0 < reached[0] and reached[-1] < 32)
            x = (mixing @ x if k % every == 0 else x) - lr * a * (x - b)
    return math.inf, False


def topology_claims(share: float, seed: int) -> list[Claim]:
    """N against 1 / rho_bar where losses differ and nothing is random."""
    n, most = 16, max(50, int(200_000 * share))
    a, b = heterogeneous(n, seed)
    needed, inverse, inside = [], [], True
    for text in GRAPHS:
        matrix = gossip_matrix(edges_of(text, n), n).to_dense()
        inverse.append(1 / mixing.fixed_mixing(matrix).rho_bar)
        found, good = gradients_needed(
            matrix.numpy(), a, b, target=0.003 if share == 1 else 0.3, most=most
        )
        needed.append(found)
        inside &= good
    found = slope(inverse, needed) if np.isfinite(needed).all() else math.inf
    return [
        Claim(
            f"2, {', '.join(GRAPHS)}: slope of ln N over ln 1/rho_bar",
            "at most 1",
            f"{found:.2f}",
            found <= 1.1,
            "each graph with its best step; a tenth for the grid of steps; N = "
            + ", ".join(f"{value:.3g}" for value in needed)
            + ", 1/rho_bar = "
            + ", ".join(f"{value:.3g}" for value in inverse)
            + ("" if inside else "; a best step is at an end of the grid"),
        )
    ]


def statistical_claims(share: float, seed: int) -> list[Claim]:
    """Where noise dominates, the graph does not matter: Theorem 5.3.1, equal losses."""
    n, runs, sigma = 16, max(8, int(200 * share)), 100.0
    steps = max(200, int(20000 * share))
    gaps = []
    for text in GRAPHS:
        matrix = gossip_matrix(edges_of(text, n), n).to_dense()
        network = agraf.EqualNodes(
            n, mixing.fixed_mixing(matrix).rho_bar, n * steps, variance=sigma**2
        )
        lr = agraf.smooth_tradeoff(1.0, n, network).step
        rng, x, total = random(seed, "noise", text), np.ones((n, runs)), np.zeros(runs)
        gossip = matrix.numpy()
        for _ in range(steps):
            total += x.mean(0)
            x = gossip @ x - lr * (x + sigma * rng.normal(size=x.shape))
        gaps.append(float(((total / steps) ** 2).mean() / 2))
    ratio = max(gaps) / min(gaps)
    return [
        Claim(
            "2, the same with much noise: gap after N gradients, largest over smallest",
            "1",
            f"{ratio:.2f}",
            ratio <= 1.5,
            f"5 deviations of a mean of {runs} squares; gaps "
            + ", ".join(f"{gap:.2g}" for gap in gaps),
        )
    ]


def local_claims(share: float, seed: int) -> list[Claim]:
    """H gradients for each communication: rho_bar and the number of gradients."""
    n, numbers = 16, (1, 2, 5, 10, 50)
    matrix = gossip_matrix(edges_of("expander(4)", n), n).to_dense()
    a, b = heterogeneous(n, seed)
    needed, rates = [], []
    contraction = 1 - mixing.fixed_mixing(matrix).rho
    for steps in numbers:
        found, _ = gradients_needed(
            matrix.numpy(),
            a,
            b,
            every=steps,
            target=0.003 if share == 1 else 0.3,
            most=max(100, int(1_000_000 * share)),
        )
        needed.append(found)
        rates.append(measured_rate(matrix.numpy(), steps, seed))
    order = slope(numbers, rates)
    found = slope(numbers, needed) if np.isfinite(needed).all() else math.inf
    return [
        Claim(
            "4, H = 1 2 5 10 50 gradients a communication: slope of ln rho_bar",
            "-1",
            f"{order:.2f}",
            -1.1 <= order <= -0.9,
            "measured decay of |x - x_bar| per step "
            + ", ".join(f"{rate:.2g}" for rate in rates)
            + f"; 1 - |W - J| = {1 - contraction:.2g}",
        ),
        Claim(
            "4, slope of ln N over ln H",
            "at most 1",
            f"{found:.2f}",
            found <= 1.1,
            "each with its best step; N = "
            + ", ".join(f"{value:.3g}" for value in needed),
        ),
    ]


def measured_rate(mixing: np.ndarray, every: int, seed: int) -> float:
    """The decay of |x - x_bar| per step, W at each `every`-th, from a random start."""
    x = random(seed, "rate").normal(size=len(mixing))
    x -= x.mean()
    spread = []
    for k in range(1, 40 * every + 1):
        if k % every == 0:
            x = mixing @ x
            x -= x.mean()
        spread.append(float(np.linalg.norm(x)))
    half = len(spread) // 2
    ratio = spread[-1] / spread[half - 1]
    return 1 - ratio ** (1 / (len(spread) - half))
