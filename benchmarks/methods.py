"""What a gradient costs in each method, as a multiple of the plain local step.

    make bench          (or: python benchmarks/methods.py [--device cuda] [--batch 64])

A method that evaluates k minibatch gradients of every client for a step of training
should cost little more than k local steps. The number printed is

    (time of a round / minibatch gradients of a client in it) / time of a local step

with everything that a round does beside gradients in it: averaging, projecting,
comparing. The aim is 1.3. All methods take turns with local training in one process,
and medians of the turns' ratios are printed, since machines are noisy. Where others
work on the same machine, `--threads 1` compares seconds of the processor.

A loss counts as a third of a gradient: of the three products of a layer in a gradient
(its outputs, and the slopes of its weights and inputs) it needs the first. Only IFCA
asks for losses, of every cluster model on all training data in each round.

Karula takes one gradient in a round and then projects: a product (N, D) x (D, N), one
(N, N) x (N, D), and several passes over all models, whatever the batch. The products
alone have 2 N / (3 B) of the arithmetic of the gradients, .83 for N = 20 and B = 16. So
it does not reach the aim there, and is measured with minibatches of 64 too.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable

import torch
from speed import CASES, federation, timed
from torch import Tensor

from coterie import Simulation
from coterie.algorithms import ALGORITHMS
from coterie.checks import parameters_of
from coterie.clients.kernels import Batch
from coterie.engine.rounds import beginning
from coterie.models.zoo import build, ravel
from coterie.seeds import generator
from coterie.study.ingredients import RECIPES, ingredients_of
from coterie.types import Algorithm

STEPS = 10  # local steps of a round, in methods that have them
OPTIONS = {
    # Compares once in a round, with as many samples as five minibatches.
    "adaptive_all_for_one": {"every": STEPS, "samples": 80},
    "per_fedavg": {"variant": "hf"},
}
LARGER = {"karula": 64}  # another batch size to print, see above
CHOICES = {"radius": "clusters"}  # made once before training, not what is timed here
TURNS = 15


class Ground:
    """The clients that all methods share, with gradients that are compiled once."""

    def __init__(self, device: str, batch: int) -> None:
        case = CASES[device][0]
        module = build(case.model, 0)
        data = federation(case)
        self.data = type(data)(
            **{**vars(data), "clusters": torch.arange(len(data)) % 2}
        )
        self.simulation = Simulation(
            self.data, module, batch_size=batch, device=device, compiled=True
        )
        self.x = ravel(module).to(device).repeat(len(data), 1)
        self.losses = 0.0  # of single samples of an average client, so far
        self._loss = self.simulation.kernel.loss
        self.simulation.kernel.loss = self._counted  # type: ignore[method-assign]

    def _counted(self, points: Tensor, batch: Batch) -> Tensor:
        self.losses += float((batch.weight != 0).sum()) / len(points)
        return self._loss(points, batch)


class Runner:
    """One method, ready to take rounds."""

    def __init__(self, name: str, ground: Ground) -> None:
        self._ground = ground
        self._algorithm = made(name, ground.data)
        self._state = self._algorithm.init(ground.x, beginning(ground.simulation))
        self._t = 0
        self.gradients = 0.0  # minibatch gradients of a client in the last round

    def round(self) -> None:
        self._t += 1
        before = self._ground.losses
        oracle = self._ground.simulation.at(self._t)
        rng = generator(0, "algorithm", self._t)
        self._state, _ = self._algorithm.step(self._state, oracle, rng)
        samples = float(oracle.gradients.mean()) + (self._ground.losses - before) / 3
        self.gradients = samples / self._ground.simulation.batch_size


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


def spent(work: Callable[[], None], device: str) -> float:
    """Seconds of the clock, or of the only thread that works."""
    if device != "cpu" or torch.get_num_threads() > 1:
        return timed(work, device)
    began = time.process_time()
    work()
    return time.process_time() - began


def measure(name: str, ground: Ground, device: str) -> tuple[float, float, float]:
    """The multiple, gradients a round, and milliseconds a round."""
    ours, plain = Runner(name, ground), Runner("local", ground)
    works: list[Callable[[], None]] = [ours.round, plain.round]
    for _ in range(3):
        for work in works:
            spent(work, device)
    turns = [[spent(work, device) for work in works] for _ in range(TURNS)]
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
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("methods", nargs="*", default=sorted(ALGORITHMS))
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    case = CASES[options.device][0]
    print(
        f"{options.device}, {case.name.partition(',')[0]}, N={case.clients}, "
        f"{torch.get_num_threads()} threads; cost of a gradient against a local step, "
        "aim 1.3"
    )
    ground = functools.cache(lambda batch: Ground(options.device, batch))
    for name in options.methods:
        for batch in sorted({options.batch, LARGER.get(name, options.batch)}):
            multiple, gradients, ms = measure(name, ground(batch), options.device)
            print(
                f"{name:26} batch {batch:3} {multiple:6.2f}   "
                f"({gradients:6.1f} gradients, {ms:8.2f} ms)",
                flush=True,
            )


if __name__ == "__main__":
    main()
