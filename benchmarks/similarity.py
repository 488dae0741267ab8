"""Time to compare the data of 500 clients, with 200 samples of each.

    python benchmarks/similarity.py [clients] [samples] [dimensions]

Prints elapsed time and processor time; the latter counts all cores.
"""

from __future__ import annotations

import sys
import time

import torch

from coterie.similarity import (
    Samples,
    fourier_distances,
    moment_distances,
    sliced_distances,
)


def main(clients: int = 500, samples: int = 200, dimensions: int = 20) -> None:
    rng = torch.Generator().manual_seed(0)
    values = torch.randn(clients, samples, dimensions, generator=rng)
    data = Samples(values, torch.full((clients,), samples))
    cases = {
        "means": moment_distances,
        "second moments": lambda some: moment_distances(some, order=2),
        "MMD by frequencies": fourier_distances,
        "sliced Wasserstein": sliced_distances,
    }
    print(
        f"{clients} clients, {samples} samples each, {dimensions} dimensions, "
        f"{torch.get_num_threads()} threads"
    )
    for name, estimate in cases.items():
        elapsed, busy = time.perf_counter(), time.process_time()
        estimate(data)
        elapsed, busy = time.perf_counter() - elapsed, time.process_time() - busy
        print(f"{name:20} {elapsed:6.2f} s elapsed {busy:6.2f} s of processors")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
