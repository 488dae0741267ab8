"""Asynchronous events: tasks in flight computed together, against one by one.

    python benchmarks/events.py [--device cuda] [--law "exponential(1)"] [--spread 1]
        [--events 3000] [--compile] [--million]

100 clients with an MLP, batch 16, at paces of a law around speeds that differ by a
factor `spread`. Both ways go through the same events in turns in one process; the
median of the turns' ratios is printed. With `--compile` both ways use compiled
gradients, and a third, one by one without, is compared as well. `--million` times
1,000,000 events of 1,000 clients with a linear model.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time

import torch

from coterie import Simulation
from coterie.algorithms.server_sgd import server_sgd
from coterie.data import Federation, Table, divide, federate, load
from coterie.engine.clocks import clock
from coterie.engine.events import EventLoop
from coterie.models import build, linear, mlp, ravel

TURNS = 5


def images(clients: int) -> Federation:
    rng = torch.Generator().manual_seed(0)
    samples = 40 * clients
    table = Table(
        "noise",
        torch.randn(samples, 784, generator=rng),
        torch.randint(10, (samples,), generator=rng),
        "classification",
        10,
    )
    owner = torch.arange(samples) % clients
    role = torch.zeros(samples, dtype=torch.long)
    role[: 2 * clients] = torch.arange(2).repeat_interleave(clients) + 1
    return federate(table, owner, role)


def speeds(clients: int, spread: float = 10.0) -> list[float]:
    return torch.logspace(0, math.log10(spread), clients).tolist()


def advance(run: EventLoop, events: int, device: str) -> float:
    goal, start = run.updates + events, time.perf_counter()
    while run.updates < goal:
        run.step()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def grouped_and_single(
    device: str, events: int, law: str, spread: float, compiled: bool
) -> None:
    data = images(100)
    module = build(lambda: mlp((784,), 10, hidden=[80, 60]), 0)
    x = ravel(module).to(device).repeat(100, 1)
    paces = clock(law, speeds=speeds(100, spread))
    ways = [(True, compiled), (False, compiled)] + [(False, False)] * compiled
    runs = []
    for grouped, compiles in ways:
        clients = Simulation(
            data, module, batch_size=16, device=device, compiled=compiles
        )
        if not grouped:
            clients.width = lambda count: count  # type: ignore[method-assign]
        runs.append(
            EventLoop(server_sgd(lr=0.01), clients, x, clock=paces, grouped=grouped)
        )
    for run in runs:
        advance(run, 200, device)
    turns = [[advance(run, events, device) for run in runs] for _ in range(TURNS)]
    ms = 1e3 * statistics.median(turn[0] for turn in turns) / events
    print(f"MLP 784-80-60-10, N=100, batch 16, {device}, {law}, ", end="")
    print(f"speeds differ by {spread:g}, {ms:.3f} ms an event: ", end="")
    names = ["compiled one by one" if compiled else "one by one", "one by one"]
    for j, name in enumerate(names[: len(ways) - 1], start=1):
        ratio = statistics.median(turn[j] / turn[0] for turn in turns)
        print(f"{ratio:.1f}x {name}", end=". " if j == len(ways) - 1 else ", ")
    print()


def million(events: int) -> None:
    table = load("linear", clients=1000, dimension=20, samples=20, noise=1.0)
    data = divide(table, "natural", seed=0)
    module = build(lambda: linear((20,), 1, bias=False), 0)
    clients = Simulation(data, module, batch_size=1)
    x = ravel(module).repeat(1000, 1)
    paces = clock("lognormal(1, 0.3)", speeds=speeds(1000))
    run = EventLoop(server_sgd(lr=1e-4), clients, x, clock=paces)
    spent = advance(run, events, "cpu")
    print(f"linear model, N=1,000: {events:,} events in {spent:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--events", type=int, default=1000)
    parser.add_argument("--law", default="lognormal(1, 0.3)")
    parser.add_argument("--spread", type=float, default=10.0)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--million", action="store_true")
    given = parser.parse_args()
    if given.million:
        million(1_000_000)
    else:
        grouped_and_single(
            given.device, given.events, given.law, given.spread, given.compile
        )


if __name__ == "__main__":
    main()
