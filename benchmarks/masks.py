"""What masks and whole-number noise cost a member, against its local training.

    python benchmarks/masks.py [--members 8] [--turns 31]

A member masks the row of an MLP of 68,270 parameters for a sum: it agrees on a secret
with each other member, makes a mask with each and one of its own, and adds them. The
hub adds up all rows and takes off the self-masks. Noise is whole-number noise for the
same row. The other side is ten local steps with minibatches of 16 samples, which
`fedavg` with `steps = 10` does in a round. All sides take turns in one process; medians
of milliseconds, and of the turns' ratios of processor time, are printed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from speed import Case, federation, perceptron

from coterie import Simulation
from coterie.deploy.sites.masks import (
    AttemptKeys,
    MessageContext,
    grid_for,
    mask_row,
    open_sum,
    to_grid,
)
from coterie.models import ravel
from coterie.privacy.mechanisms.noise import SecretStream, discrete_gaussian

STEPS = 10


def training() -> Callable[[], object]:
    """Ten local steps of one client."""
    module = perceptron()
    data = federation(Case("", perceptron, (784,), 1, 1, 1)).to("cpu", torch.float32)
    clients = Simulation(data, module, batch_size=16)
    x = ravel(module)[None]

    def steps() -> None:
        nonlocal x
        for t in range(STEPS):
            x = x - 0.1 * clients.at(t).grads(x)

    return steps


def masking(values: np.ndarray, members: int, scale: float) -> dict[str, Callable]:
    """What a member and the hub do for one sum; every call is of another attempt."""
    present, grid = tuple(range(members)), grid_for(scale, 100.0, members)
    attempt = 0

    def send(rank: int, keys: list[AttemptKeys], context: MessageContext):
        others = {k: keys[k].public for k in present if k != rank}
        return mask_row(to_grid(values, grid), keys[rank], others, rank, context)

    def begin() -> tuple[list[AttemptKeys], MessageContext]:
        nonlocal attempt
        attempt += 1
        numbers = dict(run=1, entry="fedavg", seed=0, round=1, attempt=attempt)
        hashes = dict.fromkeys(("study", "roster", "last"), bytes(32))
        context = MessageContext(**hashes, **numbers, number=0, present=present)
        return [AttemptKeys.fresh() for _ in present], context

    # The keys of the others and the rows of the others are not this member's work.
    waiting = [begin() for _ in range(200)]
    keys, context = begin()
    rows = {rank: send(rank, keys, context) for rank in present}
    openings = {rank: keys[rank].opening(context) for rank in present}
    return {
        "mask": lambda: send(0, *waiting.pop()),
        "open": lambda: open_sum(rows, openings),
    }


def measure(members: int, turns: int) -> None:
    """Prints a line for each kind of grid."""
    torch.set_num_threads(1)
    train, stream = training(), SecretStream()
    size = ravel(perceptron()).numel()
    values = np.random.default_rng(0).normal(size=size)
    print(f"{size:,} numbers, {members} members, {turns} turns")
    for scale in (2.0**16, 2.0**30):
        bits = grid_for(scale, 100.0, members).bits
        sides = masking(values, members, scale)
        sides["noise"] = lambda: discrete_gaussian(stream, 2**20 + 1, size)
        sides["train"] = train
        taken: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(turns):
            for name, side in sides.items():
                began = time.process_time()
                side()
                taken[name].append(time.process_time() - began)
        words = []
        for name, seconds in taken.items():
            pairs = zip(seconds, taken["train"], strict=True)
            ratio = statistics.median(a / b for a, b in pairs)
            words.append(
                f"{name} {1000 * statistics.median(seconds):.2f} ({ratio:.2f})"
            )
        print(f"{bits} bits, ms (ratio to training): " + ", ".join(words))


if __name__ == "__main__":
    asked = argparse.ArgumentParser()
    asked.add_argument("--members", type=int, default=8)
    asked.add_argument("--turns", type=int, default=31)
    given = asked.parse_args()
    measure(given.members, given.turns)
