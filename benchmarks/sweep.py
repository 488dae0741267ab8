"""A round on a CPU: the plain loop, hand-written JAX, ours, and the floor.

    python benchmarks/sweep.py               every model, N and batch
    python benchmarks/sweep.py --methods     FedAvg, Ditto and APFL with two models
    python benchmarks/sweep.py --threads 1   one core

All sides do the same work in one process, in turns, with minibatches drawn with
replacement: every client takes local steps, then models are averaged. The plain loop
has one nn.Module and one torch.optim.SGD, into which it loads one client after the
other, as most libraries do. JAX, if it is installed, has one jit with a scan over steps
and a vmap over clients. The floor is the time that the numbers of a round need at the
rates of this machine: products at the rate of a large product of matrices, and three
passes over the models at the rate of adding large vectors.

A ratio is the time of the loop divided by the time of a side; above 1 is faster. It is
the median over turns of the ratio inside a turn, because machines are noisy.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from architectures import MODELS, Model
from torch import nn

from coterie import Simulation, Table, federate
from coterie.algorithms import apfl, ditto, fedavg
from coterie.clients.ways import Work
from coterie.models import build, ravel

try:
    import jax
    import jax.numpy as jnp
except ImportError:  # the benchmark runs without
    jax = None

SAMPLES = 200  # of each client
LR, LAM, ALPHA = 0.01, 1.0, 0.5


def federation(model: Model, n: int):
    rng = torch.Generator().manual_seed(0)
    total = n * (SAMPLES + 2)
    features = torch.randn(total, *model.shape, generator=rng)
    targets = torch.randint(10, (total,), generator=rng)
    role = torch.zeros(total, dtype=torch.long)
    role[-2 * n :], role[-n:] = 1, 2
    owner = torch.arange(total) % n
    table = Table("noise", features, targets, "classification", 10)
    return federate(table, owner, role)


class Loop:
    """Client after client, each with the steps of a round."""

    def __init__(self, model: Model, n: int, batch: int, steps: int) -> None:
        data = federation(model, n)
        self.n, self.batch, self.steps = n, batch, steps
        self.module = build(model.make, 0)
        parameters = self.module.parameters()
        self.optimiser = torch.optim.SGD(parameters, lr=LR)
        self.rng = torch.Generator().manual_seed(0)
        parts = [data.only(k) for k in range(n)]
        self.data = [
            (one.features[one.train.index], one.targets[one.train.index])
            for one in parts
        ]
        self.w = self.state()
        self.own = [self.state() for _ in range(n)]

    def state(self) -> list[torch.Tensor]:
        return [p.detach().clone() for p in self.module.parameters()]

    def load(self, state: list[torch.Tensor]) -> None:
        with torch.no_grad():
            for p, value in zip(self.module.parameters(), state, strict=True):
                p.copy_(value)

    def minibatch(self, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        features, targets = self.data[k]
        rows = torch.randint(len(targets), (self.batch,), generator=self.rng)
        return features[rows], targets[rows]

    def gradient(self, k: int, drawn=None) -> None:
        features, targets = self.minibatch(k) if drawn is None else drawn
        self.optimiser.zero_grad()
        F.cross_entropy(self.module(features), targets).backward()

    def average(self, found: list[list[torch.Tensor]]) -> None:
        parts = zip(*found, strict=True)
        self.w = [torch.stack(part).mean(0) for part in parts]

    def fedavg(self) -> None:
        found = []
        for k in range(self.n):
            self.load(self.w)
            for _ in range(self.steps):
                self.gradient(k)
                self.optimiser.step()
            found.append(self.state())
        self.average(found)

    def ditto(self) -> None:
        before = self.w
        self.fedavg()
        for k in range(self.n):
            self.load(self.own[k])
            for _ in range(self.steps):
                self.gradient(k)
                with torch.no_grad():
                    for p, w in zip(self.module.parameters(), before, strict=True):
                        p.grad.add_(p - w, alpha=LAM)
                self.optimiser.step()
            self.own[k] = self.state()

    def apfl(self) -> None:
        found = []
        for k in range(self.n):
            w, v = [p.clone() for p in self.w], self.own[k]
            for _ in range(self.steps):
                drawn = self.minibatch(k)
                mixed = [torch.lerp(a, b, ALPHA) for a, b in zip(w, v, strict=True)]
                for state, point, share in ((v, mixed, ALPHA), (w, w, 1.0)):
                    self.load(point)
                    self.gradient(k, drawn)
                    with torch.no_grad():
                        for p, q in zip(state, self.module.parameters(), strict=True):
                            p.add_(q.grad, alpha=-LR * share)
            found.append(w)
        self.average(found)


METHODS = {
    "fedavg": lambda sizes, steps: fedavg(sizes, lr=LR, steps=steps),
    "ditto": lambda sizes, steps: ditto(sizes, lr=LR, steps=steps, lam=LAM),
    "apfl": lambda sizes, steps: apfl(sizes, lr=LR, steps=steps, alpha=ALPHA),
}


def ours(
    model: Model, n: int, batch: int, steps: int, method: str, *, compiled: bool
) -> Callable[[], None]:
    """A function that runs the next round."""
    module = build(model.make, 0)
    data = federation(model, n)
    simulation = Simulation(data, module, batch_size=batch, compiled=compiled)
    algorithm = METHODS[method](simulation.sizes, steps)
    x, t = ravel(module).repeat(n, 1), 0
    state = algorithm.init(x, simulation.at(0))

    def round_() -> None:
        nonlocal state, t
        state, _ = algorithm.step(
            state, simulation.at(t), torch.Generator().manual_seed(t)
        )
        t += 1

    return round_


def in_jax(model: Model, n: int, batch: int, steps: int) -> Callable[[], None] | None:
    """A round of FedAvg for a chain of linear layers with ReLU; None for others."""
    module = build(model.make, 0)
    layers = [m for m in module.modules() if not list(m.children())]
    if jax is None or any(
        type(m) not in (nn.Linear, nn.ReLU, nn.Flatten) for m in layers
    ):
        return None
    data = federation(model, n)
    rows = [data.only(k).train.index for k in range(n)]
    features = jnp.stack(
        [jnp.asarray(data.only(k).features[r].numpy()) for k, r in enumerate(rows)]
    )
    targets = jnp.stack(
        [jnp.asarray(data.only(k).targets[r].numpy()) for k, r in enumerate(rows)]
    )
    w = [jnp.asarray(p.detach().numpy()) for p in module.parameters()]

    def loss(w, x, y):
        for i in range(0, len(w), 2):
            x = x @ w[i].T + w[i + 1]
            x = jax.nn.relu(x) if i < len(w) - 2 else x
        return -jnp.take_along_axis(jax.nn.log_softmax(x), y[:, None], 1).mean()

    def client(w, key, x, y):
        def step(w, key):
            index = jax.random.randint(key, (batch,), 0, SAMPLES)
            g = jax.grad(loss)(w, x[index], y[index])
            return [p - LR * q for p, q in zip(w, g, strict=True)], None

        return jax.lax.scan(step, w, jax.random.split(key, steps))[0]

    @jax.jit
    def round_of(w, key):
        keys = jax.random.split(key, n)
        found = jax.vmap(client, in_axes=(None, 0, 0, 0))(w, keys, features, targets)
        return [p.mean(0) for p in found]

    key = jax.random.key(0)

    def round_() -> None:
        nonlocal w, key
        key, own = jax.random.split(key)
        w = jax.block_until_ready(round_of(w, own))

    return round_


def work_of(model: Model) -> Work:
    """What a forward pass of the model needs."""
    return Simulation(federation(model, 2), build(model.make, 0)).kernel.work


def floor(model: Model, n: int, batch: int, steps: int) -> Callable[[], float]:
    """A function that measures the rates, and returns the seconds of a round."""
    work = work_of(model)
    products = 3 * work.products * batch * n * steps
    passes = 3 * 4 * work.parameters * n * steps
    a, b = torch.randn(768, 768), torch.randn(768, 768)
    x, y = torch.zeros(2**24), torch.zeros(2**24)

    def seconds() -> float:
        product = clock(lambda: a @ b) / 768**3
        byte = clock(lambda: x.add_(y)) / 12 / 2**24
        return products * product + passes * byte

    return seconds


def now() -> float:
    """Seconds: with one thread the processor time, which others disturb little."""
    alone = torch.get_num_threads() == 1
    return time.process_time() if alone else time.perf_counter()


def clock(work: Callable[[], None]) -> float:
    began = now()
    work()
    return now() - began


def point(
    model: Model, n: int, batch: int, method: str, options: argparse.Namespace
) -> dict[str, float]:
    """Milliseconds of a round of the loop, and ratios of the other sides to it."""
    steps = options.steps
    sides: dict[str, Callable[[], None]] = {
        "loop": getattr(Loop(model, n, batch, steps), method),
        "ours": ours(model, n, batch, steps, method, compiled=False),
    }
    if options.compiled:
        sides["compiled"] = ours(model, n, batch, steps, method, compiled=True)
    by_hand = in_jax(model, n, batch, steps) if method == "fedavg" else None
    if by_hand is not None:
        sides["jax"] = by_hand
    least = floor(model, n, batch, steps)
    for work in sides.values():
        work()
    ratios: dict[str, list[float]] = {}
    loops = []
    for _ in range(options.turns):
        found = {name: clock(work) for name, work in sides.items()}
        found["floor"] = min(least() for _ in range(3))
        loops.append(1e3 * found.pop("loop"))
        for name, value in found.items():
            ratios.setdefault(name, []).append(loops[-1] / 1e3 / value)
    return {
        "loop_ms": statistics.median(loops),
        **{name: statistics.median(values) for name, values in ratios.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--models", nargs="*", default=[*MODELS])
    parser.add_argument("--clients", nargs="*", type=int, default=[2, 20, 100])
    parser.add_argument("--batches", nargs="*", type=int, default=[4, 16, 64])
    parser.add_argument("--methods", nargs="*", default=["fedavg"], choices=METHODS)
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__}, {options.threads} threads; time of a round of")
    print(f"{options.steps} steps in the loop, and how many times as fast others are")
    found = []
    for name in options.models:
        work = work_of(MODELS[name])
        for n in options.clients:
            for batch in options.batches:
                # A cross of both sweeps, without rounds that take seconds.
                products = work.products * n * batch * options.steps
                if (n != 20 and batch != 16) or products > 2e10:
                    continue
                for method in options.methods:
                    one = point(MODELS[name], n, batch, method, options)
                    row = {"model": name, "n": n, "batch": batch, "method": method}
                    found.append(row | one)
                    sides = "  ".join(
                        f"{side} {value:6.2f}"
                        for side, value in one.items()
                        if side != "loop_ms"
                    )
                    print(
                        f"{name:24} {method:7} N={n:3} B={batch:3}  "
                        f"loop {one['loop_ms']:9.1f} ms  {sides}",
                        flush=True,
                    )
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
