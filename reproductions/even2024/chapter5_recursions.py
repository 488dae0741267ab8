"""Chapter 5 of Even's thesis: the recursion (5.3) step by step, without a clock.

    x^{k+1} = W_k x^k - gamma g^k,  g_v^k = g_v(x_v^{s(k,v)}) if v in I_k else 0   (5.3)

Many runs, or many step sizes, are the first axis of x. W_k averages a random edge, or
is a gossip matrix. The chapter has no experiments: each of these is about one of
its statements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from coterie.cli import Claim
from coterie.graphs import edges_of, gossip_matrix
from coterie.seeds import key
from coterie.theory.agraf import (
    Homogeneous,
    lipschitz_rate,
    lipschitz_step,
    smooth_bound,
)
from coterie.theory.mixing import fixed_mixing, pairwise_mixing

GRAPHS = ("complete", "expander(4)", "grid", "ring", "line")
Gradient = Callable[[np.ndarray, np.ndarray, np.random.Generator], np.ndarray]
"""Gradients at points of these nodes."""


def claims(folder: Path, share: float, seed: int) -> list[Claim]:
    """Experiments 2 to 4, and the reference values of B5."""
    return [
        *lipschitz_claims(share, seed),
        *topology_claims(share, seed),
        *statistical_claims(share, seed),
        *sampling_claims(share, seed),
        *local_claims(share, seed),
    ]


def random(seed: int, *names: str) -> np.random.Generator:
    """A stream of these names."""
    return np.random.default_rng(key(seed, "chapter5", *names) & (2**63 - 1))


def rho_bar_of(text: str, n: int) -> float:
    """The mixing constant of averaging a random edge at each step."""
    edges = edges_of(text, n)
    chance = torch.full((len(edges),), 1 / len(edges), dtype=torch.float64)
    return pairwise_mixing(edges, chance).rho_bar


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Of ln y over ln x, by least squares."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


# One node at a time, or all, while random edges average.


def walk(
    edges: np.ndarray,
    who: np.ndarray,
    gradient: Gradient,
    lr: np.ndarray | float,
    x: np.ndarray,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Sums of x_v^k over active nodes, and of x_bar^k, one for each run.

    Args:
        edges: (E, 2).
        who: (K, A) active nodes of every step, the same in all runs, or (K, R, 1).
        gradient: noisy gradients.
        lr: gamma, one for all or (n,) for each node.
        x: (R, n) the start, which is changed.
        rng: for edges and noise.
    """
    runs, n = x.shape
    row = np.arange(runs)
    each = np.broadcast_to(lr, n)
    active, means = np.zeros(runs), np.zeros(runs)
    pending = gradient(x, np.arange(n)[None], rng)
    for now in who:
        now = np.broadcast_to(now, (runs, now.shape[-1]))
        active += np.take_along_axis(x, now, 1).sum(1)
        means += x.mean(1)
        v, w = edges[rng.integers(len(edges), size=runs)].T
        x[row, v] = x[row, w] = (x[row, v] + x[row, w]) / 2
        late = np.take_along_axis(pending, now, 1)
        new = np.take_along_axis(x, now, 1) - each[now] * late
        np.put_along_axis(x, now, new, 1)
        np.put_along_axis(pending, now, gradient(new, now, rng), 1)
    return active, means


def lipschitz_claims(share: float, seed: int) -> list[Claim]:
    """Theorem 5.1 with F(x, xi) = |x - xi| on a ring of ten, |x^0 - x^*| = 5, B = 1."""
    n, steps, runs = 10, max(200, int(20000 * share)), max(4, int(40 * share))
    edges, rho_bar = edges_of("ring", n).numpy(), rho_bar_of("ring", n)
    rng = random(seed, "lipschitz")

    def signs(x: np.ndarray, _: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return np.sign(x - rng.normal(size=x.shape))

    late = rng.integers(1, n, (steps, runs, 1))
    period = max(2, steps // 20)
    late[period - 1 :: period] = 0
    schedules = {
        "one node at random": (rng.integers(n, size=(steps, runs, 1)), 0.642),
        f"node 0 only at each {period}-th": (late, 0.641),
        "all nodes": (np.arange(n)[None].repeat(steps, 0), 0.072),
    }
    gaps, result = [], []
    for name, (who, reference) in schedules.items():
        gradients = steps * who.shape[-1]
        network = Homogeneous(n, rho_bar, gradients)
        lr = lipschitz_step(5.0, 1.0, network)
        active, _ = walk(edges, who, signs, lr, np.full((runs, n), 5.0), rng)
        gaps.append(float(folded(active / gradients).mean()))
        bound = lipschitz_rate(5.0, 1.0, network)
        result.append(
            Claim(
                f"Theorem 5.1, {name}: gap",
                f"{reference:g} (bound {bound:.3g})",
                f"{gaps[-1]:.3g}",
                gaps[-1] <= bound,
                "judged against the bound; the noise of the reference is not known",
            )
        )
    ratio = gaps[1] / gaps[0]
    return [
        *result,
        Claim(
            "Theorem 5.1, a node that comes rarely changes the gap by a factor",
            "0.998",
            f"{ratio:.3f}",
            0.8 <= ratio <= 1.25,
            "the bound has no longest delay; a quarter for chance",
        ),
    ]


def folded(x: np.ndarray) -> np.ndarray:
    """E |x - xi| - E |xi| for a normal xi."""
    tail = np.array([math.erf(value / math.sqrt(2)) for value in x])
    return math.sqrt(2 / math.pi) * np.expm1(-(x**2) / 2) + x * tail


# Experiment 2: graphs.


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
        matrix = gossip_matrix(edges_of(text, n), n)
        inverse.append(1 / fixed_mixing(matrix).rho_bar)
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
        matrix = gossip_matrix(edges_of(text, n), n)
        network = Homogeneous(
            n, fixed_mixing(matrix).rho_bar, n * steps, variance=sigma**2
        )
        lr = smooth_bound(1.0, n, network).step
        rng, x, total = random(seed, "noise", text), np.ones((n, runs)), np.zeros(runs)
        mixing = matrix.numpy()
        for _ in range(steps):
            total += x.mean(0)
            x = mixing @ x - lr * (x + sigma * rng.normal(size=x.shape))
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


# Experiment 3: losses that differ, nodes that differ in how often they come.


def stationary(
    a: np.ndarray, b: np.ndarray, p: np.ndarray, lr: np.ndarray | float, text: str
) -> float:
    """The limit of E x_bar^k for f_v(x) = a_v (x - b_v)^2 / 2, by a linear system.

    Node v is the one that comes with chance p_v, independently of the edge, and y_v is
    where its gradient was taken:

        x = W x - gamma p a (y - b),    y = W x - gamma a (y - b),   W = E W_k.
    """
    n = len(a)
    edges = edges_of(text, n)
    mean = np.eye(n)
    for v, w in edges.tolist():
        mean[[v, w], [v, w]] -= 1 / (2 * len(edges))
        mean[[v, w], [w, v]] += 1 / (2 * len(edges))
    step = lr * a
    system = np.block(
        [
            [np.eye(n) - mean, np.diag(p * step)],
            [-mean, np.diag(1 + step)],
        ]
    )
    found = np.linalg.solve(system, np.concatenate([p * step * b, step * b]))
    return float(found[:n].mean())


class Losses(NamedTuple):
    """f_v(x) = a_v (x - b_v)^2 / 2 of nodes that come with chance p_v at each step."""

    a: np.ndarray  # (n,)
    b: np.ndarray  # (n,)
    p: np.ndarray  # (n,)

    @property
    def weighted(self) -> float:
        """The optimum with weights p."""
        return float((self.p * self.a * self.b).sum() / (self.p * self.a).sum())

    @property
    def uniform(self) -> float:
        """The optimum with equal weights."""
        return float((self.a * self.b).sum() / self.a.sum())


def unequal(n: int, rng: np.random.Generator) -> Losses:
    """Nodes with small optima come more often, up to six times."""
    a, b = rng.uniform(0.5, 2.0, n), 3 * rng.normal(size=n)
    p = np.linspace(3.0, 0.5, n)[b.argsort().argsort()]
    return Losses(a, b, p / p.sum())


def sampling_claims(share: float, seed: int) -> list[Claim]:
    """What is minimised if nodes do not come equally often, and how far off it is."""
    n, graphs = 8, ("complete", "expander(4)", "ring", "line")
    rng = random(seed, "sampling")
    losses = unequal(n, rng)
    a, _, p = losses
    weighted, uniform = losses.weighted, losses.uniform
    apart = abs(weighted - uniform)
    steps = np.array([0.02, 0.01, 0.005, 0.002, 0.001])
    limits = [stationary(*losses, lr, "ring") for lr in steps]
    fixed = [stationary(*losses, lr / (n * p), "ring") for lr in steps]
    found, error = simulated(losses, 0.02, share, rng)
    many = [unequal(n, rng) for _ in range(50)]

    def bias(lr: float, text: str) -> float:
        off = [stationary(*each, lr, text) - each.weighted for each in many]
        return math.sqrt(np.square(off).mean())

    order = slope(steps[2:], [bias(lr, "ring") for lr in steps[2:]])
    over = [bias(0.001, text) for text in graphs]
    across = slope([1 / rho_bar_of(text, n) for text in graphs], over)
    same = abs(stationary(a, np.full(n, 1.5), p, 0.02, "ring") - 1.5)
    return [
        Claim(
            "3, mean model for gamma = .02, simulated and by a linear system",
            f"{limits[0]:.3f}",
            f"{found:.3f}",
            abs(found - limits[0]) <= 4 * error,
            f"4 standard errors of {error:.2g} are allowed",
        ),
        Claim(
            "3, mean model for gamma = .02 .01 .005 .002 .001",
            f"to {weighted:.3f}, the optimum with weights p (uniform: {uniform:.3f})",
            ", ".join(f"{limit:.3f}" for limit in limits),
            abs(limits[-1] - weighted) <= 0.1 * apart,
            "a tenth of their distance at the end; reference, other losses: -1.91, "
            "-2.08 (.005), -2.14 (.001) to -2.163 (uniform: -1.428)",
        ),
        Claim(
            "3, slope of ln bias over ln gamma",
            "1",
            f"{order:.2f}",
            order >= 0.8,
            "O(gamma / rho_bar); the three smallest steps, 50 draws of losses",
        ),
        Claim(
            f"3, {', '.join(graphs)}: slope of ln bias over ln 1/rho_bar",
            "at most 1",
            f"{across:.2f}",
            across <= 1.1,
            "gamma = .001; bias " + ", ".join(f"{value:.2g}" for value in over),
        ),
        Claim(
            "3, with steps gamma p_bar / p_v: mean model for the same gamma",
            f"to {uniform:.3f}",
            ", ".join(f"{limit:.3f}" for limit in fixed),
            abs(fixed[-1] - uniform) <= 0.1 * apart,
            "a tenth of the distance at the end",
        ),
        Claim(
            "3, losses with the same optimum (zeta = 0): bias for gamma = .02",
            "0",
            f"{same:.1g}",
            same < 1e-10,
            "rounding of a linear system",
        ),
    ]


def simulated(
    losses: Losses, lr: float, share: float, rng: np.random.Generator
) -> tuple[float, float]:
    """The mean model in the long run, and its standard error over runs."""
    a, b, p = losses
    n, runs, steps = len(a), max(8, int(100 * share)), max(3000, int(20000 * share))

    def slopes(x: np.ndarray, v: np.ndarray, _: np.random.Generator) -> np.ndarray:
        return a[v] * (x - b[v])

    edges = edges_of("ring", n).numpy()
    x = np.full((runs, n), losses.weighted)
    for part in (steps // 2, steps):  # the first to forget the start
        who = rng.choice(n, (part, runs, 1), p=p)
        _, means = walk(edges, who, slopes, lr, x, rng)
    means = means / steps
    return float(means.mean()), float(means.std(ddof=1) / math.sqrt(runs))


# Experiment 4: local steps.


def local_claims(share: float, seed: int) -> list[Claim]:
    """H gradients for each communication: rho_bar and the number of gradients."""
    n, numbers = 16, (1, 2, 5, 10, 50)
    matrix = gossip_matrix(edges_of("expander(4)", n), n)
    a, b = heterogeneous(n, seed)
    needed, rates = [], []
    contraction = 1 - fixed_mixing(matrix).rho
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
