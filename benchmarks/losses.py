"""Exact losses of gossip: one observer, and all pairs, with time and memory.

    python benchmarks/losses.py [--nodes 2048] [--graph hypercube] [--threads 2]
        [--observers 0]

Algorithm 6.1 with Metropolis weights and noise 1, for the thesis's number of rounds. So
many observers are accounted for, evenly chosen, 0 meaning all of them.
"""

from __future__ import annotations

import argparse
import math
import resource
import time

import torch

from coterie.graphs import contraction, edges_of, gossip_matrix
from coterie.privacy import Losses, Observer
from coterie_theory.decentralised import muffliato as theory
from coterie_theory.privacy import exact_losses, muffliato


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=2048)
    parser.add_argument("--graph", default="hypercube")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--observers", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    n = given.nodes
    matrix = gossip_matrix(edges_of(given.graph, n), n)
    rounds = theory.stopping_time(math.sqrt(1 - contraction([matrix])), n, 1.0)
    rng = torch.Generator().manual_seed(0)
    ledger = muffliato.synchronous(
        torch.zeros(n, 1), matrix, rounds=rounds, clip=0.5, noise=1.0, rng=rng
    ).ledger
    print(f"{given.graph}, {n} nodes, {rounds} rounds, {given.threads} threads")
    report("one observer", lambda: exact_losses(ledger, [Observer((0,))]))
    count = given.observers or n
    some = [Observer((v * n // count,)) for v in range(count)]
    found = report(f"{count} observers", lambda: exact_losses(ledger, some))
    print(f"mean loss {float(found.mean().mean()):.4f}, T d / n is the most")


def report(what: str, call) -> Losses:  # type: ignore[no-untyped-def]
    wall, processor = time.perf_counter(), time.process_time()
    found = call()
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    print(f"{what:16} {wall:7.1f} s, {processor:7.1f} s of CPU, {memory:.1f} GB")
    return found


if __name__ == "__main__":
    main()
