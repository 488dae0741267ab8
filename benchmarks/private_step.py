"""What hiding every sample costs: a private step against an ordinary one, and Opacus.

    python benchmarks/private_step.py [--batch 64] [--threads 1] [--turns 15]
        [--device cuda]

An ordinary step draws a minibatch of each client, computes gradients and descends. A
private step draws Poisson minibatches, clips the gradient of every sample, and adds
noise: from a seed, for simulations, or secret, for real data. Opacus
(https://opacus.ai), where it is installed, does the same for one model, in a loop over
clients: with gradients of samples, and by its ghost clipping. All sides take turns in
one process; medians of the turns' ratios of processor time (on a GPU: of time) are
printed, since machines are noisy.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from speed import CASES, Case, federation

from coterie import Simulation
from coterie.models import build, ravel
from coterie.privacy import PrivateSimulation

CLIP, NOISE, LR = 1.0, 1.0, 0.1


class Ours:
    """Local steps of all clients, ordinary or private."""

    def __init__(self, case: Case, batch: int, device: str, noise_source: str = ""):
        data = federation(case).to(device, torch.float32)
        module = build(case.model, 0).to(device)
        self.clients: Any = Simulation(data, module, batch_size=batch, device=device)
        if noise_source:
            self.clients = PrivateSimulation(
                self.clients, clip=CLIP, noise=NOISE, noise_source=noise_source
            )
        self.x = ravel(module).repeat(case.clients, 1)
        self.t = 0

    def step(self) -> None:
        self.t += 1
        self.x = self.x - LR * self.clients.at(self.t).grads(self.x)


class Opacus:
    """The same for a list of models, by Opacus."""

    def __init__(self, case: Case, batch: int, *, ghost: bool) -> None:
        import opacus
        from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
        from opacus.utils.fast_gradient_clipping_utils import (
            DPLossFastGradientClipping,
        )

        self.batch, self.rng = batch, torch.Generator().manual_seed(0)
        data, self.parts = federation(case), []
        for k in range(case.clients):
            one = data.only(k)
            module = build(case.model, 0)
            settings = {"noise_multiplier": NOISE, "max_grad_norm": CLIP}
            settings["expected_batch_size"] = batch
            sgd = torch.optim.SGD(module.parameters(), lr=LR)
            if ghost:
                kind = opacus.grad_sample.GradSampleModuleFastGradientClipping
                module = kind(module, max_grad_norm=CLIP, use_ghost_clipping=True)
                optimiser = DPOptimizerFastGradientClipping(sgd, **settings)
                loss = DPLossFastGradientClipping(
                    module, optimiser, torch.nn.CrossEntropyLoss(reduction="mean")
                )
            else:
                module = opacus.GradSampleModule(module)
                optimiser = DPOptimizer(sgd, **settings)
                loss = F.cross_entropy
            rows = one.train.index
            features, targets = one.features[rows], one.targets[rows]
            self.parts.append((module, optimiser, loss, features, targets))

    def step(self) -> None:
        for module, optimiser, loss, features, targets in self.parts:
            rate = self.batch / len(targets)
            chosen = torch.rand(len(targets), generator=self.rng) < rate
            if not chosen.any():
                continue
            optimiser.zero_grad()
            loss(module(features[chosen]), targets[chosen]).backward()
            optimiser.step()


def sides_of(case: Case, batch: int, device: str) -> dict[str, Callable[[], None]]:
    sides: dict[str, Any] = {
        "ordinary": Ours(case, batch, device),
        "private, seed": Ours(case, batch, device, "seed"),
        "private, secret": Ours(case, batch, device, "system"),
    }
    if device != "cpu":
        return {name: side.step for name, side in sides.items()}
    try:
        sides["Opacus"] = Opacus(case, batch, ghost=False)
        sides["Opacus, ghost"] = Opacus(case, batch, ghost=True)
    except ImportError:
        print("Opacus is not installed: pip install opacus")
    return {name: side.step for name, side in sides.items()}


def measured(case: Case, batch: int, turns: int, device: str) -> None:
    sides = sides_of(case, batch, device)
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(turns + 1):
        for name, step in sides.items():
            start = _now(device)
            for _ in range(case.steps):
                step()
            if turn:  # the first one warms up
                taken[name].append((_now(device) - start) / case.steps)
    print(f"{case.name}, {case.clients} clients, batches of {batch}")
    for name, seconds in taken.items():
        ratios = [s / o for s, o in zip(seconds, taken["ordinary"], strict=True)]
        print(
            f"  {name:<15} {1e3 * statistics.median(seconds):8.2f} ms a step, "
            f"{statistics.median(ratios):5.2f} of an ordinary one"
        )
    both = zip(taken["private, secret"], taken["private, seed"], strict=True)
    ratio = statistics.median(secret / seed for secret, seed in both)
    print(f"  secret noise takes {ratio:.2f} of the private step with a seed")


def _now(device: str) -> float:
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--device", default="cpu", choices=CASES)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.filterwarnings("ignore")  # of Opacus, about its hooks
    for many in [case for case in CASES[options.device] if "local" in case.name]:
        one = many._replace(name=many.name.removesuffix(", local"), clients=1)
        given = options.batch, options.turns, options.device
        measured(many._replace(name=one.name), *given)
        measured(one._replace(steps=2 * one.steps), *given)


if __name__ == "__main__":
    main()
