"""Speed of one vectorised pass against the usual loop over clients, in one process.

    make bench                      (or: python benchmarks/speed.py [--device cuda])

The loop has one nn.Module and one torch.optim.SGD per client; for All-for-one it does
N x N backward passes and adds up the clients' gradients with their weights. A second,
cleverer loop weighs the losses instead, so that backward passes accumulate; its ratio
is printed last. All sides draw one minibatch of each client a step. They are timed in
turns, and ratios of medians are printed, since machines are noisy.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from coterie import Simulation, Table, federate
from coterie.models import build, cnn, lenet, mlp, ravel
from coterie.optim import Descent, follow, sgd, velocity

SAMPLES = 200  # of each client


class Case(NamedTuple):
    """One comparison."""

    name: str
    model: Callable[[], nn.Module]
    shape: tuple[int, ...]
    clients: int
    steps: int  # in one timed turn
    aim: float


GREY, COLOUR = (1, 28, 28), (3, 32, 32)


def perceptron() -> nn.Module:
    return mlp((784,), 10, hidden=[80, 60])


def convolutional() -> nn.Module:
    return cnn(GREY, 10)


def le_net() -> nn.Module:
    return lenet(COLOUR, 10)


CASES = {
    "cpu": [
        Case("MLP 784-80-60-10, local", perceptron, (784,), 20, 10, 5),
        Case("MLP 784-80-60-10, All-for-one", perceptron, (784,), 20, 3, 20),
        Case("CNN 20,986, local", convolutional, GREY, 20, 5, 1.5),
        Case("CNN 20,986, All-for-one", convolutional, GREY, 20, 1, 2.5),
    ],
    "cuda": [
        Case("LeNet, local", le_net, COLOUR, 100, 20, 50),
        Case("LeNet, All-for-one", le_net, COLOUR, 20, 10, 200),
    ],
}


def federation(case: Case):
    rng = torch.Generator().manual_seed(0)
    total = case.clients * SAMPLES
    features = torch.randn(total, *case.shape, generator=rng)
    targets = torch.randint(10, (total,), generator=rng)
    owner = torch.arange(total) % case.clients
    role = torch.zeros(total, dtype=torch.long)
    role[-2 * case.clients :] = 1
    role[-case.clients :] = 2
    return federate(
        Table("noise", features, targets, "classification", 10), owner, role
    )


class Loop:
    """What one would write first: a list of modules and a list of optimisers."""

    def __init__(self, case: Case, device: str, batch: int) -> None:
        data = federation(case)
        self.batch = batch
        self.clients = case.clients
        self.rng = torch.Generator().manual_seed(0)
        self.modules = [build(case.model, 0).to(device) for _ in range(case.clients)]
        self.optimisers = [
            torch.optim.SGD(m.parameters(), lr=0.1) for m in self.modules
        ]
        self.data = []
        for k in range(case.clients):
            one = data.only(k)
            rows = one.train.index
            self.data.append(
                (one.features[rows].to(device), one.targets[rows].to(device))
            )

    def minibatch(self, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        features, targets = self.data[k]
        rows = torch.randint(len(targets), (self.batch,), generator=self.rng)
        rows = rows.to(targets.device)
        return features[rows], targets[rows]

    def local(self) -> None:
        for k in range(self.clients):
            self.optimisers[k].zero_grad()
            features, targets = self.minibatch(k)
            F.cross_entropy(self.modules[k](features), targets).backward()
            self.optimisers[k].step()

    def all_for_one(self) -> None:
        share = 1 / self.clients
        drawn = [self.minibatch(k) for k in range(self.clients)]
        for module, optimiser in zip(self.modules, self.optimisers, strict=True):
            blend = [torch.zeros_like(p) for p in module.parameters()]
            for features, targets in drawn:
                optimiser.zero_grad()
                F.cross_entropy(module(features), targets).backward()
                for total, p in zip(blend, module.parameters(), strict=True):
                    total += share * p.grad
            for total, p in zip(blend, module.parameters(), strict=True):
                p.grad = total
            optimiser.step()

    def all_for_one_accumulated(self) -> None:
        share = 1 / self.clients
        drawn = [self.minibatch(k) for k in range(self.clients)]
        for i in range(self.clients):
            self.optimisers[i].zero_grad()
            for features, targets in drawn:
                loss = F.cross_entropy(self.modules[i](features), targets)
                (share * loss).backward()
            self.optimisers[i].step()


class Ours:
    """The same steps through the oracle."""

    def __init__(self, case: Case, device: str, batch: int, compiled: bool) -> None:
        module = build(case.model, 0)
        self.simulation = Simulation(
            federation(case), module, batch_size=batch, device=device, compiled=compiled
        )
        self.rule = Descent(0.1)
        self.x = ravel(module).to(device).repeat(case.clients, 1)
        self.weights = torch.full((case.clients, case.clients), 1 / case.clients).to(
            self.x
        )
        self.t = 0

    def local(self, steps: int) -> None:
        oracle = self.simulation.at(self.t)
        v = velocity(self.rule, self.x)
        self.x, _ = oracle.each(sgd, self.x, v, rule=self.rule, steps=steps, t=0)
        self.t += 1

    def all_for_one(self, steps: int) -> None:
        oracle = self.simulation.at(self.t)
        v = velocity(self.rule, self.x)
        self.x, _ = follow(oracle, self.weights, self.rule, self.x, v, steps=steps, t=0)
        self.t += 1


def timed(work: Callable[[], None], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def measure(case: Case, device: str, batch: int, turns: int) -> dict[str, float]:
    """Median milliseconds of one step: loop, vectorised, compiled."""
    verb = "local" if case.name.endswith("local") else "all_for_one"
    loop = Loop(case, device, batch)
    sides: dict[str, Callable[[], None]] = {"loop": getattr(loop, verb)}
    if verb == "all_for_one":
        sides["clever loop"] = loop.all_for_one_accumulated
    for name, compiled in (("vectorised", False), ("compiled", True)):
        step = getattr(Ours(case, device, batch, compiled), verb)
        sides[name] = lambda step=step: step(case.steps)
    steps = {"vectorised": case.steps, "compiled": case.steps}
    for work in sides.values():
        for _ in range(3):
            timed(work, device)
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(turns):
        for name, work in sides.items():
            times[name].append(1e3 * timed(work, device) / steps.get(name, 1))
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=CASES)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--turns", type=int, default=9)
    options = parser.parse_args()
    print(
        f"{options.device}, batch {options.batch}, torch {torch.__version__}, "
        f"{torch.get_num_threads()} threads; milliseconds a step, ratio to the loop"
    )
    for case in CASES[options.device]:
        ms = measure(case, options.device, options.batch, options.turns)
        fast = {name: ms["loop"] / ms[name] for name in ("vectorised", "compiled")}
        print(
            f"{case.name:32} N={case.clients:3}  loop {ms['loop']:8.2f}  "
            f"vectorised {ms['vectorised']:7.2f} ({fast['vectorised']:5.1f}x)  "
            f"compiled {ms['compiled']:7.2f} ({fast['compiled']:5.1f}x)  "
            f"aim {case.aim}x"
            + (
                f"  (clever loop {ms['clever loop']:.2f}, "
                f"{ms['clever loop'] / ms['compiled']:.1f}x)"
                if "clever loop" in ms
                else ""
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
