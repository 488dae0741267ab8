"""Microseconds of a gradient by each way, and the constants of the rule between them.

    python benchmarks/ways.py

On one core, gradients of n clients are computed in one pass and one after the other.
Times are processor times, so other programs disturb little. The constants of each kind
of model, in `coterie.clients.ways.choice`, are fitted to the relative errors by
non-negative least squares.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict

import torch
from architectures import MODELS, Model
from scipy.optimize import nnls

from coterie.clients.kernels import Kernel
from coterie.clients.samples import Batch
from coterie.models import OBJECTIVES, build, ravel


def least(work, turns: int) -> float:
    """The least processor time of a call, in microseconds, after a call to warm up."""
    work()
    found = []
    for _ in range(turns):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return 1e6 * min(found)


def kernel_of(model: Model, *, by_row: bool) -> Kernel:
    rng = torch.Generator().manual_seed(0)
    features = torch.randn(256, *model.shape, generator=rng)
    targets = torch.randint(10, (256,), generator=rng)
    objective = OBJECTIVES["classification"]
    return Kernel(build(model.make, 0), objective, features, targets, by_row=by_row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--models", nargs="*", default=[*MODELS])
    parser.add_argument("--batches", nargs="*", type=int, default=[4, 16, 64])
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = defaultdict(list)
    for name in options.models:
        kernels = [kernel_of(MODELS[name], by_row=way) for way in (False, True)]
        work = kernels[0].work
        start = ravel(build(MODELS[name].make, 0))
        for samples in options.batches:
            if len(start) * samples > 2e8:  # these take long, and tell nothing new
                continue
            for n in (2, 20) if len(start) < 1e6 else (2, 4):
                rng = torch.Generator().manual_seed(1)
                index = torch.randint(256, (n, samples), generator=rng)
                batch = Batch(index, torch.full((n, samples), 1 / samples))
                x = start.repeat(n, 1)
                times = [
                    least(lambda k=k, x=x, b=batch: k.grad(x, b), options.turns)
                    for k in kernels
                ]
                million = work.products * samples / 1e6
                values = (samples * work.values + 3 * work.parameters) / 1e6
                rows[work.kind].append((work.operations, million, values, n, *times))
                print(
                    f"{name:24} {work.kind:13} {work.operations:4} "
                    f"{million:8.2f} {values:8.2f}  "
                    f"B={samples:3} n={n:3}  one pass {times[0]:10.0f}  "
                    f"alone {times[1]:10.0f}  ratio {times[0] / times[1]:.2f}",
                    flush=True,
                )
    for kind, found in rows.items():
        table = torch.tensor(found, dtype=torch.float64)
        operations, million, values, n, one_pass, alone = table.T
        fits = []
        for columns, times in (
            ((operations, n * million, n * values), one_pass),
            ((n * operations, n * million, n * values), alone),
        ):
            left = torch.stack([column / times for column in columns], 1)
            found = nnls(left.numpy(), torch.ones(len(times)).numpy())[0]
            fits.append(", ".join(f"{constant:.0f}" for constant in found))
        print(f'    "{kind}": (Cost({fits[0]}), Cost({fits[1]})),')


if __name__ == "__main__":
    main()
