"""What a gradient costs in each method, as a multiple of the plain local step.

    make bench          (or: python benchmarks/methods.py [--device cuda] [--batch 64])

A method that evaluates k minibatch gradients of every client for a step of training
should cost little more than k local steps. Two multiples are printed,

    plain     (time of a round / minibatch gradients of a client in it)
              / time of a local step
    without   the same with the time of products of N x N x D taken off the round

with everything else that a round does in both: averaging, projecting, drawing samples.
The aim is 1.3. All methods take turns with local training in one process, and medians
of the turns' ratios are printed, since machines are noisy. Where others work on the
same machine, `--threads 1` compares seconds of the processor.

Products are what a method of N clients does beside gradients, whatever the batch: a
product has 2 N / (3 B) of the arithmetic of the minibatch gradients of all clients.
They are gossip (N, N) x (N, D), which All-for-all does in every step, Gram matrices
(N, D) x (D, N), of which Karula's projection needs one, and inner products of the
gradients of all pairs, of which a comparison of adaptive All-for-one needs three. All
that a round does are noted, counted by their arithmetic in units of N N D, so that the
average of N models is one N-th, and done again by themselves in turn with the rounds.

A loss counts as a third of a gradient: of the three products of a layer in a gradient
(its outputs, and the slopes of its weights and inputs) it needs the first. Only IFCA
asks for losses, of every cluster model on all training data in each round.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest import mock

import torch
from speed import CASES, federation, timed
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from coterie import Simulation, methods
from coterie.checks import parameters_of
from coterie.clients import comparisons
from coterie.clients.samples import Batch
from coterie.collaboration import Halves, pair_statistics
from coterie.engine.rounds import init_oracle
from coterie.models import build, layout, ravel
from coterie.seeds import generator
from coterie.study.ingredients import RECIPES, Context, ingredients_of
from coterie.types import Algorithm

STEPS = 10  # local steps of a round, in methods that have them
OPTIONS = {
    "adaptive_all_for_one": {"every": STEPS, "samples": 80},  # compares once in a round
    "per_fedavg": {"variant": "hf"},
}
CHOICES = {
    "radius": "clusters",  # made once before training, not what is timed here
    "norm": "head",  # what `fedbn` keeps at home, since the MLP has no normalisation
}
TURNS = 15
MULTIPLIED = {  # where the two factors are among the arguments
    torch.ops.aten.mm.default: 0,
    torch.ops.aten.addmm.default: 1,
    torch.ops.aten.mv.default: 0,
    torch.ops.aten.addmv.default: 1,
}


class Ground:
    """The clients that all methods share, with gradients that are compiled once."""

    def __init__(self, device: str, batch: int) -> None:
        case = CASES[device][0]
        module = build(case.model, 0)
        data = federation(case)
        self.data = type(data)(
            **{**vars(data), "clusters": torch.arange(len(data)) % 2}
        )
        settings = {"batch_size": batch, "device": device}
        self.simulation = Simulation(self.data, module, compiled=True, **settings)
        self.uncompiled = Simulation(self.data, module, **settings)
        self.context = Context(self.data, layout(module), 0)
        self.x = ravel(module).to(device).repeat(len(data), 1)
        self.losses = 0.0  # of single samples of an average client, so far
        self._loss = self.simulation.kernel.loss
        self.simulation.kernel.loss = self._count_losses  # type: ignore[method-assign]

    def _count_losses(self, points: Tensor, batch: Batch) -> Tensor:
        self.losses += float((batch.weight != 0).sum()) / len(points)
        return self._loss(points, batch)


class Runner:
    """One method, ready to take rounds."""

    def __init__(self, name: str, ground: Ground) -> None:
        self._ground = ground
        self._algorithm = made(name, ground.context)
        self._state = self._algorithm.init(ground.x, init_oracle(ground.simulation))
        self._t = 0
        self.gradients = 0.0  # minibatch gradients of a client in the last round

    def round(self, *, compiled: bool = True) -> None:
        self._t += 1
        before, ground = self._ground.losses, self._ground
        simulation = ground.simulation if compiled else ground.uncompiled
        asked = simulation.at(self._t)
        rng = generator(0, "algorithm", self._t)
        self._state, _ = self._algorithm.step(self._state, asked, rng)
        samples = float(asked.gradients.mean()) + (ground.losses - before) / 3
        self.gradients = samples / simulation.batch_size


class Products(TorchDispatchMode):
    """The products of N x N x D in a round of a method, to be done again.

    Products of gradients are of batches of matrices, or have more than one side that is
    longer than N.
    """

    def __init__(self, runner: Runner, x: Tensor) -> None:
        super().__init__()
        self._clients, size = x.shape
        self._arithmetic = 0.0
        self._again: list[Callable[[], Tensor]] = []
        # Factors of the same shape are kept once: in a round they are at hand too.
        self._kept: dict[str, tuple[Any, Any]] = {}
        with mock.patch.object(comparisons, "pair_statistics", self._noted), self:
            runner.round(compiled=False)
        self.number = self._arithmetic / (self._clients**2 * size)

    def again(self) -> None:
        for product in self._again:
            product()

    def _note(self, do: Callable[..., Tensor], a: Any, b: Any, arithmetic: int) -> None:
        key = f"{[(part.shape, part.dtype) for part in (*a, *b)]}"
        kept = self._kept.setdefault(key, (a, b))
        self._again.append(lambda: do(*kept))
        self._arithmetic += arithmetic

    def _noted(self, reader: Halves, other: Halves) -> Tensor:
        self._note(pair_statistics, reader, other, 3 * reader[0].numel())
        return pair_statistics(reader, other)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        first = MULTIPLIED.get(func)
        if first is not None:
            a, b = args[first : first + 2]
            sides = sorted([len(a), a.shape[1], *b.shape[1:]])
            if sides[-2] <= self._clients:
                # Copies as they lie in memory, since x changes in place.
                a, b = a.clone(), b.clone()
                self._note(lambda a, b: a[0] @ b[0], (a,), (b,), math.prod(sides))
        return func(*args, **(kwargs or {}))


class Cost(NamedTuple):
    """Medians over turns, of a round."""

    gradients: float  # minibatch gradients of a client
    milliseconds: float
    beyond: float  # milliseconds of a gradient, products taken off
    products: float  # their number
    products_ms: float
    without: float  # multiples of a local step
    plain: float


def made(name: str, context: Context) -> Algorithm:
    """The method with its defaults, except for the number of steps."""
    factory = getattr(methods, name)
    given = []
    for ingredient in ingredients_of(factory):
        recipe, default = RECIPES[ingredient]
        given.append(recipe(CHOICES.get(ingredient, default), context))
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


def measure(name: str, ground: Ground, device: str) -> Cost:
    ours, plain = Runner(name, ground), Runner("local", ground)
    products = Products(ours, ground.x)
    works: list[Callable[[], None]] = [ours.round, plain.round, products.again]
    for _ in range(3):
        for work in works:
            spent(work, device)
    turns = [[spent(work, device) for work in works] for _ in range(TURNS)]
    k, steps, middle = ours.gradients, plain.gradients, statistics.median
    return Cost(
        k,
        1e3 * middle(a for a, _, _ in turns),
        1e3 * middle((a - c) / k for a, _, c in turns),
        products.number,
        1e3 * middle(c for _, _, c in turns),
        middle((a - c) / k / (b / steps) for a, b, c in turns),
        middle(a / k / (b / steps) for a, b, _ in turns),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=CASES)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("methods", nargs="*", default=dir(methods))
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    case = CASES[options.device][0]
    print(
        f"{options.device}, {case.name.partition(',')[0]}, N={case.clients}, "
        f"batch {options.batch}, {torch.get_num_threads()} threads; of a round: "
        "gradients, ms; ms of a gradient without products; products of N x N x D, ms; "
        "multiples of a local step without products and plain, aim 1.3\n"
        f"{'':26}{'gradients':>10}{'ms':>9}{'ms each':>9}{'products':>10}{'ms':>8}"
        f"{'without':>9}{'plain':>7}"
    )
    ground = Ground(options.device, options.batch)
    for name in options.methods:
        if "rounds" not in made(name, ground.context).faces:
            continue
        c = measure(name, ground, options.device)
        print(
            f"{name:26}{c.gradients:10.1f}{c.milliseconds:9.2f}{c.beyond:9.3f}"
            f"{c.products:10.2f}{c.products_ms:8.2f}{c.without:9.2f}{c.plain:7.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
