"""Pairwise gossip in layers of meetings that do not touch, against one by one.

    python benchmarks/gossip.py [--nodes 10000] [--events 1000000] [--dimension 100]
        [--graph "expander(4)"] [--threads 2]

Both ways go through the same meetings, the plain loop through the first twentieth of
them, whose time is multiplied by twenty; the rows after these are compared bit by bit.
Then accelerated gossip on the same meetings, with a pace that is safe for any graph of
so many nodes, and rounds of x <- W x with a sparse W, whose cost for an edge is printed
for a graph of twice the degree as well.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from coterie.graphs import RingTimes, edges_of, eigengap, gossip_matrix
from coterie_theory.gossip import (
    accelerated,
    layers,
    pace_of,
    plain,
    poisson_rings,
    randomised,
)


def spent(call: Callable[[], torch.Tensor]) -> tuple[float, torch.Tensor]:
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def one_by_one(x: torch.Tensor, edges: torch.Tensor, rings: RingTimes) -> torch.Tensor:
    x = x.clone()
    for v, w in edges[rings.which].tolist():
        mean = (x[v] + x[w]) * 0.5
        x[v] = mean
        x[w] = mean
    return x


def pairs(x: torch.Tensor, edges: torch.Tensor, events: int) -> None:
    rates = torch.full((len(edges),), 1 / len(edges), dtype=torch.float64)
    rng = torch.Generator().manual_seed(0)
    until = torch.tensor([float(events)], dtype=torch.float64)
    rings = poisson_rings(rates, float(events), rng)
    few = RingTimes(*(part[: len(rings.times) // 20] for part in rings))
    depth = len(layers(edges[rings.which], len(x)))
    print(f"{len(rings.times)} meetings in {depth} layers")
    wall, _ = spent(lambda: randomised(x, edges, rings, until)[0])
    loop, slow = spent(lambda: one_by_one(x, edges, few))
    _, fast = spent(lambda: randomised(x, edges, few, until)[0])
    same = "equal bit by bit" if torch.equal(slow, fast) else "DIFFERENT"
    print(f"randomised   {wall:7.2f} s, one by one {20 * loop:7.1f} s", end="")
    print(f", {20 * loop / wall:.0f} times; {same}")
    pace = pace_of(eigengap(edges, rates), float(1 / rates.min()))
    wall, _ = spent(lambda: accelerated(x, edges, rings, until, pace).x[0])
    print(f"accelerated  {wall:7.2f} s")


def rounds(x: torch.Tensor, degree: int, count: int = 20) -> None:
    edges = edges_of(f"expander({degree})", len(x))
    matrix = gossip_matrix(edges, len(x))
    plain(x, matrix, rounds=2)
    wall, _ = spent(lambda: plain(x, matrix, rounds=count))
    each = 1e9 * wall / count / len(edges)
    print(f"rounds       {1e3 * wall / count:7.2f} ms for {len(edges)} edges", end="")
    print(f", {each:.0f} ns for an edge")


def main() -> None:
    parser = argparse.ArgumentParser(description="Time of gossip.")
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--dimension", type=int, default=100)
    parser.add_argument("--graph", default="expander(4)")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(given.nodes, given.dimension, generator=rng)
    print(
        f"{given.graph} of {given.nodes} nodes, dimension {given.dimension}, ", end=""
    )
    print(f"float32, {torch.get_num_threads()} threads")
    pairs(x, edges_of(given.graph, given.nodes), given.events)
    for degree in (4, 8):
        rounds(x, degree)


if __name__ == "__main__":
    main()
