"""Time of one projection of 200 models of 100,000 parameters onto all their ties.

    python benchmarks/projection.py [--threads 2] [--clients 200] [--parameters 100000]

Instances but the last have squared radii t D_ij with D_ij the absolute differences of
points, as from transport plans, and t so small that all pairs are too far apart at
first. `signal` are models that follow those points, with noise; `noise` are independent
models; `clusters` are five groups of models whose points are close. `next round` is
the third of three noisy gradient steps from there, which starts from the multipliers of
the second, as training does.

In `all` every pair is tied at the solution too: squared radii are .81 of the squared
distances, so that the solution is 9/10 of the way out from the mean, with the same
multiplier 1 / (9 n) for all pairs.

Wall-clock seconds are the best of three; on a machine with other work on it, look at
the seconds of the processor (of all threads) with `--threads 1`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor

from coterie.optim import Projection, project

POINTS = 8  # columns of the points behind D


def instance(name: str, n: int, d: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Models (n, d) and squared radii (n, n), all of which are violated."""
    if name == "all":
        x = torch.randn(n, d, generator=rng) / d**0.5
        return x, 0.81 * torch.cdist(x.double(), x.double()).square()
    points = torch.randn(n, POINTS, generator=rng)
    strength = {"signal": 1.0, "noise": 0.0, "clusters": 1.0}[name]
    noise = {"signal": 1.0, "noise": 3.0, "clusters": 2.0}[name]
    if name == "clusters":
        centres = 2 * torch.randn(5, POINTS, generator=rng)
        points = centres[torch.arange(n) % 5] + 0.3 * points
    x = noise * torch.randn(n, d, generator=rng)
    x += strength * points @ torch.randn(POINTS, d, generator=rng)
    x /= d**0.5
    dissimilarity = torch.cdist(points, points, p=1.0).double()
    pairs = torch.triu_indices(n, n, 1)
    squared = torch.cdist(x, x).double().square()
    ratio = squared[pairs[0], pairs[1]] / dissimilarity[pairs[0], pairs[1]]
    return x, 0.9 * ratio.min() * dissimilarity


def best(call: Callable[[], object], times: int = 3) -> tuple[float, float]:
    """Least wall-clock and processor seconds of a few calls."""
    spent = []
    for _ in range(times):
        wall, processor = time.perf_counter(), time.process_time()
        call()
        spent.append((time.perf_counter() - wall, time.process_time() - processor))
    return min(wall for wall, _ in spent), min(processor for _, processor in spent)


def report(name: str, spent: tuple[float, float], found: Projection) -> None:
    n = len(found.multipliers)
    share = int((found.multipliers > 0).sum()) / (n * (n - 1))
    print(
        f"{name:24} {spent[0]:8.2f} {spent[1]:10.2f} {found.steps:7d} {share:8.1%}"
        f" {found.gap / (found.distance**2 / 2):13.1e}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Time of projections.")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--parameters", type=int, default=100_000)
    given = parser.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    print(f"{given.clients} models, {given.parameters} parameters, float32, ", end="")
    print(f"{torch.get_num_threads()} threads\n")
    print(f"{'':24} {'wall, s':>8} {'CPU, s':>10} {'Newton':>7} {'active':>8}", end="")
    print(f" {'relative gap':>13}")
    for name in ("signal", "noise", "clusters", "all"):
        rng = torch.Generator().manual_seed(0)
        x, radius = instance(name, given.clients, given.parameters, rng)
        small = torch.eye(len(x))
        spent = best(lambda x=x, small=small: (x @ x.T, small @ x))
        print(f"{name + ', two products':24} {spent[0]:8.2f} {spent[1]:10.2f}")
        found = project(x, radius)
        report(f"{name}, cold", best(lambda x=x, r=radius: project(x, r)), found)
        for _ in range(3):  # steps towards x, with noise
            noise = 0.1 * torch.randn(x.shape, generator=rng) / given.parameters**0.5
            start = found.multipliers
            near = found.x + 0.1 * (x - found.x) + noise
            found = project(near, radius, start=start)
        spent = best(lambda v=near, r=radius, s=start: project(v, r, start=s))
        report(f"{name}, next round", spent, found)


if __name__ == "__main__":
    main()
