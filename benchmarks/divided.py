"""A federation divided among processes: how much faster, and what it sends.

    python benchmarks/divided.py                        two processes on two cores
    python benchmarks/divided.py --processes 8          more of them

Both runs use one thread a process, and the same rounds of the same MLP. What is sent
between processes is what the loopback device of Linux counts while nothing else runs,
next to what the verbs say. With as many clients as processes every value that a verb
sends has to travel.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch

from coterie import Simulation, Table, federate, methods, run_rounds
from coterie.clients import SingleProcess, block
from coterie.deploy import join_processes
from coterie.models import build, mlp, ravel
from coterie.seeds import generator


def looped_back() -> int:
    """Bytes that the loopback device has received."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    return next(int(li.split()[1]) for li in lines if li.strip().startswith("lo:"))


def work(clients: int, features: int, hidden: int, name: str, rounds: int) -> None:
    """Trains, and prints seconds a round, bytes by the verbs, and bytes in between."""
    torch.set_num_threads(1)
    group = join_processes("cpu") or SingleProcess()
    rng = generator("benchmark", "divided")
    samples = 40
    x = torch.randn(clients * samples, features, generator=rng)
    table = Table("noise", x, (x[:, 0] > 0).long(), "classification", 2)
    owner = torch.arange(clients).repeat_interleave(samples)
    role = torch.tensor([0] * (samples - 2) + [1, 2]).repeat(clients)
    everybody = federate(table, owner, role)
    mine = torch.arange(clients)[block(clients, group)]
    module = build(lambda: mlp((features,), 2, hidden=(hidden,)), 0)
    simulation = Simulation(everybody.select(mine), module, group=group)
    make = getattr(methods, name)
    sizes = everybody.train.size
    weights = torch.full((clients, clients), 1 / clients)
    algorithm = make(weights if name == "all_for_all" else sizes, steps=args.steps)
    start = ravel(module).repeat(len(mine), 1)
    seconds, sent, before = [], 0.0, 0
    for r in run_rounds(algorithm, simulation, start, rounds=rounds + 1):
        if r.t == 1:  # which warms up
            before, began = looped_back(), time.perf_counter()
            continue
        seconds.append(time.perf_counter() - began)
        sent += 4 * r.traffic.total
        began = time.perf_counter()
    sent = sum(group.gather(sent))  # each counts what its own clients send
    if group.rank == 0:
        between = (looped_back() - before) / rounds
        found = {"seconds": sorted(seconds)[len(seconds) // 2]}
        found |= {
            "verbs": sent / rounds,
            "between": between,
            "parameters": len(start[0]),
        }
        print(json.dumps(found), flush=True)


def measured(processes: int, *options: str) -> dict[str, float]:
    """What one run prints."""
    module = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    command = [sys.executable, *module, __file__, "--work", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment
    )
    return json.loads(run.stdout.strip().splitlines()[-1])


def main() -> None:
    speed = ["--clients", "64", "--hidden", "256", "--steps", "20"]
    one, many = measured(1, *speed), measured(args.processes, *speed)
    print(
        f"FedAvg, 64 clients, MLP of {one['parameters']} parameters, 20 steps a round: "
        f"{one['seconds']:.3f} s in one process, {many['seconds']:.3f} s in "
        f"{args.processes}: {one['seconds'] / many['seconds']:.2f} times as fast"
    )
    for name in ("fedavg", "all_for_all"):
        few = ["--clients", str(args.processes), "--algorithm", name, "--steps", "1"]
        found = measured(args.processes, *few, "--features", "1022", "--hidden", "256")
        verbs, between = found["verbs"] / 1e6, found["between"] / 1e6
        print(
            f"{name}, one client a process: verbs say {verbs:.2f} MB a round, "
            f"{between:.2f} MB travelled"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--features", type=int, default=784)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--algorithm", default="fedavg")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--work", action="store_true", help="is one of the processes")
    args = parser.parse_args()
    if args.work:
        work(args.clients, args.features, args.hidden, args.algorithm, args.rounds)
    else:
        main()
