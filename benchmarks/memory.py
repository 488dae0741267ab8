"""Peak memory of a run against N D, the size of the federation matrix.

    python benchmarks/memory.py

Beside the data, a run may take at most 6 N D values and one chunk of activations. The
resident memory is read every few milliseconds while an algorithm runs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import torch
from torch import nn

from coterie import Simulation, Table, federate, run_rounds
from coterie.algorithms import fedavg, local
from coterie.clients.kernels import _BUDGET
from coterie.models import build, lenet, linear, ravel
from coterie.types import Algorithm


def resident() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def peak(work: Callable[[], None]) -> int:
    """The most memory that was resident while `work` ran."""
    seen, done = [resident()], threading.Event()

    def watch() -> None:
        while not done.wait(0.003):
            seen.append(resident())

    thread = threading.Thread(target=watch)
    thread.start()
    work()
    done.set()
    thread.join()
    return max(seen)


def simulation(
    clients: int, samples: int, shape: tuple[int, ...], task: str, module: nn.Module
) -> Simulation:
    rng = torch.Generator().manual_seed(0)
    total = clients * samples
    targets = torch.randint(10, (total,), generator=rng)
    if task == "regression":
        targets = torch.randn(total, generator=rng)
    table = Table("noise", torch.randn(total, *shape, generator=rng), targets, task, 10)
    role = (torch.arange(total) // clients).clamp(max=samples - 1)
    role = torch.where(role < samples - 2, 0, role - samples + 3)
    federation = federate(table, torch.arange(total) % clients, role)
    return Simulation(federation, module, batch_size=8)


def case(name: str, algorithm: Algorithm, run: Simulation, module: nn.Module) -> None:
    x = ravel(module).repeat(len(run), 1)
    before = resident() - 4 * x.numel()  # the starting rows are part of the run

    def work() -> None:
        for r in run_rounds(algorithm, run, x, rounds=3):
            run.evaluate(r.state.x, "test")

    began = time.perf_counter()
    used = (peak(work) - before) / 4
    chunk = _BUDGET["cpu"]
    print(
        f"{name:28} N={len(run):6} D={x.shape[1]:6}  "
        f"peak {4 * used / 1e6:7.0f} MB = "
        f"{used / x.numel():4.1f} N D, without one chunk of activations "
        f"({4 * chunk / 1e6:.0f} MB) {max(0.0, used - chunk) / x.numel():4.1f} N D"
        f"  ({time.perf_counter() - began:.0f} s)",
        flush=True,
    )


def main() -> None:
    small = build(lambda: linear((100,), 1, bias=False), 0)
    run = simulation(10_000, 20, (100,), "regression", small)
    case("linear, local", local(lr=1e-3), run, small)
    case("linear, FedAvg", fedavg(run.federation.train.size, lr=1e-3), run, small)
    large = build(lambda: lenet((3, 32, 32), 10), 0)
    run = simulation(1_000, 20, (3, 32, 32), "classification", large)
    case("LeNet, local", local(), run, large)
    case("LeNet, local with momentum", local(momentum=0.9), run, large)
    case("LeNet, FedAvg", fedavg(run.federation.train.size), run, large)


if __name__ == "__main__":
    main()
