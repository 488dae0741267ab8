"""What an optimiser costs: local steps of all clients in one pass, against plain SGD.

    python benchmarks/optimisers.py [--batch 32] [--threads 1] [--turns 15]
        [--device cuda]

All optimisers take the same steps from the same minibatches. They take turns in one
process, and medians of the turns' ratios of processor time (on a GPU: of time) are
printed, since machines are noisy.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from speed import CASES, Case, federation

from coterie import Simulation
from coterie.models import build, ravel
from coterie.optim import LocalDescent, sgd, velocity

RULES = {
    "SGD": LocalDescent(0.01),
    "SGD again": LocalDescent(0.01),
    "momentum": LocalDescent(0.01, 0.9),
    "Nesterov": LocalDescent("sgd(0.01, nesterov=true)", 0.9),
    "SGD, clipped": LocalDescent("sgd(0.01, clip=1)"),
    "Adam": LocalDescent("adam(0.001, decoupled=false)"),
    "AdamW": LocalDescent("adam(0.001)", 0.0, 0.01),
    "AdamW, clipped": LocalDescent("adam(0.001, clip=1)", 0.0, 0.01),
}


def measured(case: Case, batch: int, turns: int, device: str) -> None:
    data = federation(case).to(device, torch.float32)
    module = build(case.model, 0).to(device)
    simulation = Simulation(data, module, batch_size=batch, device=device)
    start = ravel(module).repeat(case.clients, 1)
    states = {name: (start, velocity(rule, start)) for name, rule in RULES.items()}
    taken: dict[str, list[float]] = {name: [] for name in RULES}
    for turn in range(turns + 1):
        for name, rule in RULES.items():
            begin = _now(device)
            states[name] = simulation.at(turn).each(
                sgd, *states[name], rule=rule, steps=case.steps, t=turn * case.steps
            )
            if turn:  # the first one warms up
                taken[name].append((_now(device) - begin) / case.steps)
    print(f"{case.name}, {case.clients} clients, batches of {batch}")
    for name, seconds in taken.items():
        ratios = [s / o for s, o in zip(seconds, taken["SGD"], strict=True)]
        print(
            f"  {name:<17} {1e3 * statistics.median(seconds):8.2f} ms a step, "
            f"{statistics.median(ratios):5.2f} of SGD"
        )


def _now(device: str) -> float:
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--device", default="cpu", choices=CASES)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for case in [case for case in CASES[options.device] if "local" in case.name]:
        named = case._replace(name=case.name.removesuffix(", local"))
        measured(named, options.batch, options.turns, options.device)


if __name__ == "__main__":
    main()
