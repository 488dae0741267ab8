"""What a gradient costs in each method, as a multiple of the plain local step.

    make bench                      (or: python benchmarks/methods.py [--device cuda])

A method that evaluates k minibatch gradients of every client for a step of training
should cost little more than k local steps. The number printed is

    (time of a round / minibatch gradients of a client in it) / time of a local step

with everything that a round does beside gradients in it: averaging, projecting,
comparing. The aim is 1.3. All methods take turns with local training in one process,
and medians of the turns' ratios are printed, since machines are noisy.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import torch
from speed import CASES, federation, timed

from coterie import Simulation
from coterie.algorithms import ALGORITHMS
from coterie.checks import parameters_of
from coterie.ingredients import RECIPES, ingredients_of
from coterie.models import build, ravel
from coterie.seeds import generator
from coterie.types import Algorithm

STEPS = 10  # local steps of a round, in methods that have them
OPTIONS = {
    # Compares once in a round, with as many samples as five minibatches.
    "adaptive_all_for_one": {"every": STEPS, "samples": 80},
    "per_fedavg": {"variant": "hf"},
}
CHOICES = {"radius": "clusters"}  # made once before training, not what is timed here
TURNS = 15


class Runner:
    """One method, ready to take rounds."""

    def __init__(self, name: str, device: str, batch: int) -> None:
        case = CASES[device][0]
        module = build(case.model, 0)
        data = federation(case)
        data = type(data)(**{**vars(data), "clusters": torch.arange(len(data)) % 2})
        self._simulation = Simulation(
            data, module, batch_size=batch, device=device, compiled=True
        )
        self._batch = batch
        self._algorithm = made(name, data)
        x = ravel(module).to(device).repeat(len(data), 1)
        self._state = self._algorithm.init(x)
        self._t = 0
        self.gradients = 0.0  # minibatch gradients of a client in the last round

    def round(self) -> None:
        self._t += 1
        oracle = self._simulation.at(self._t)
        rng = generator(0, "algorithm", self._t)
        self._state, _ = self._algorithm.step(self._state, oracle, rng)
        self.gradients = float(oracle.gradients.mean()) / self._batch


def made(name: str, data) -> Algorithm:
    """The method with its defaults, except for the number of steps."""
    factory = ALGORITHMS[name]
    given = []
    for ingredient in ingredients_of(factory):
        recipe, default = RECIPES[ingredient]
        given.append(recipe(CHOICES.get(ingredient, default), data))
    options = {"lr": 0.01, "steps": STEPS, **OPTIONS.get(name, {})}
    known = parameters_of(factory)
    return factory(*given, **{k: v for k, v in options.items() if k in known})


def measure(name: str, device: str, batch: int) -> tuple[float, float, float]:
    """The multiple, gradients a round, and milliseconds a round."""
    ours, plain = Runner(name, device, batch), Runner("local", device, batch)
    works: list[Callable[[], None]] = [ours.round, plain.round]
    for _ in range(3):
        for work in works:
            timed(work, device)
    turns = [[timed(work, device) for work in works] for _ in range(TURNS)]
    cost = [(a / ours.gradients) / (b / plain.gradients) for a, b in turns]
    return (
        statistics.median(cost),
        ours.gradients,
        1e3 * statistics.median(a for a, _ in turns),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=CASES)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("methods", nargs="*", default=sorted(ALGORITHMS))
    options = parser.parse_args()
    case = CASES[options.device][0]
    print(
        f"{options.device}, {case.name.partition(',')[0]}, N={case.clients}, "
        f"batch {options.batch}; cost of a gradient against a local step, aim 1.3"
    )
    for name in options.methods:
        multiple, gradients, ms = measure(name, options.device, options.batch)
        print(
            f"{name:22} {multiple:5.2f}   ({gradients:6.1f} gradients, {ms:8.2f} ms)",
            flush=True,
        )


if __name__ == "__main__":
    main()
