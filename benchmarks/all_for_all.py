"""A step of All-for-all against a local step and one product of N x N by N x D.

    python benchmarks/all_for_all.py [--clients 1000] [--parameters 10000]

A linear model with as many parameters, minibatches of 8. All take turns in one process;
the median of (All-for-all) / (local step + product) is printed; the aim is 1.5.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from coterie import Simulation, Table, federate
from coterie.algorithms.all_for_all import all_for_all
from coterie.algorithms.local import local
from coterie.engine.rounds import init_oracle
from coterie.models import build, linear, ravel
from coterie.seeds import generator
from coterie.types import Algorithm

TURNS = 7


def rounds_of(
    algorithm: Algorithm, clients: Simulation, x: torch.Tensor
) -> Callable[[], None]:
    """A function that takes the next round."""
    state, t = algorithm.init(x, init_oracle(clients)), 0

    def step() -> None:
        nonlocal state, t
        t += 1
        state, _ = algorithm.step(state, clients.at(t), generator(0, t))

    return step


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--parameters", type=int, default=10_000)
    given = parser.parse_args()
    n, d = given.clients, given.parameters
    rng = torch.Generator().manual_seed(0)
    # Three samples of each client: to train on, to choose and to test with.
    features = torch.randn(3 * n, d, generator=rng)
    table = Table("noise", features, torch.randn(3 * n, generator=rng), "regression", 1)
    data = federate(
        table, torch.arange(n).repeat(3), torch.arange(3).repeat_interleave(n)
    )
    module = build(lambda: linear((d,), 1, bias=False), 0)
    clients = Simulation(data, module, batch_size=8)
    x = ravel(module).repeat(n, 1)
    weights = torch.rand(n, n, generator=rng)
    weights /= weights.sum(1, keepdim=True)
    works = [
        rounds_of(all_for_all(weights, lr=1e-6), clients, x),
        rounds_of(local(lr=1e-6), clients, x),
        lambda: weights @ x,
    ]
    for work in works:
        work()
    turns = [[timed(work) for work in works] for _ in range(TURNS)]
    ratio = statistics.median(a / (b + c) for a, b, c in turns)
    seconds = [statistics.median(turn[k] for turn in turns) for k in range(3)]
    print(f"N={n}, D={d}, {torch.get_num_threads()} threads: ", end="")
    print(f"All-for-all {seconds[0]:.3f} s, local {seconds[1]:.3f} s, ", end="")
    print(f"product {seconds[2]:.3f} s: {ratio:.2f}, aim 1.5")


if __name__ == "__main__":
    main()
