"""Time to estimate models that share a subspace.

    python benchmarks/structure.py low_rank [clients] [dimensions] [rank] [samples]
    python benchmarks/structure.py nuclear [clients] [dimensions] [rank] [samples]

`low_rank` alternates between heads and subspace, until the loss falls by less than 1e-5
of itself. `nuclear` is the algorithm `nuclear_norm` in a simulation: Frank-Wolfe whose
messages are averages of single vectors, until its certified gap is 1e-3 of the loss.
Models have norm 1, noise a deviation of .5, features are Gaussian, single precision.
Prints elapsed time and processor time; the latter counts all cores.
"""

from __future__ import annotations

import sys
import time

import torch
from torch import Tensor

from coterie import Simulation, Table, federate, models, seeds
from coterie.algorithms.nuclear_norm import nuclear_norm
from coterie_theory.structure import Tasks, burer_monteiro, squared_distance, tasks


def problem(n: int, d: int, r: int, m: int) -> tuple[Tasks, Tensor, Tensor]:
    """Samples, the models behind them, and a basis of their subspace."""
    rng = torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(torch.randn(d, r, generator=rng))[0]
    heads = torch.randn(n, r, generator=rng)
    x = heads / heads.norm(dim=1, keepdim=True) @ basis.T
    features = torch.randn(n, m, d, generator=rng)
    z = (features @ x[:, :, None])[:, :, 0]
    targets = z + 0.5 * torch.randn(n, m, generator=rng)
    return tasks(features, targets), x, basis


def low_rank(n: int = 10_000, d: int = 200, r: int = 5, m: int = 20) -> None:
    """The low-rank estimator."""
    data, x, basis = problem(n, d, r, m)
    begin = time.perf_counter(), time.process_time()
    found = burer_monteiro(data, rank=r, cap=1.0, tolerance=1e-5)
    report("low rank", n, d, r, m, begin)
    error = float((found.x - x).square().sum(1).mean())
    far = squared_distance(found.basis, basis) / r
    print(f"  {found.steps} steps, error {error:.4f}, subspace {far:.5f}")


def nuclear(n: int = 1_000, d: int = 200, r: int = 5, m: int = 40) -> None:
    """The nuclear norm by averages of vectors."""
    data, _, _ = problem(n, d, r, m)
    owner = torch.arange(n).repeat_interleave(m)
    owner = torch.cat([owner, torch.arange(n), torch.arange(n)])
    part = torch.cat([torch.zeros(n * m), torch.ones(n), 2 * torch.ones(n)]).long()
    features = torch.cat([data.features.flatten(0, 1), torch.zeros(2 * n, d)])
    targets = torch.cat([data.targets.flatten(), torch.zeros(2 * n)])
    table = Table("samples", features, targets, "regression", 1)
    module = models.build(lambda: models.linear((d,), 1, bias=False), 0)
    clients = Simulation(federate(table, owner, part), module)
    # Squared errors have no half: curvatures are twice those of the features.
    method = nuclear_norm(
        rank=r, cap=1.0, lr=0.08, exchanges=d, atoms=10, corrections=12, width=90
    )
    begin = time.perf_counter(), time.process_time()
    state, t, sent = method.init(torch.zeros(n, d), clients.at(0)), 0, 0
    while True:
        t += 1
        oracle = clients.at(t)
        state, info = method.step(state, oracle, seeds.generator(0, t))
        sent += len(oracle.sent) // 2
        print(f"  round {t}: loss {info['loss']:.6f}, gap {info['relative_gap']:.5f}")
        if info["relative_gap"] <= 1e-3 or t == 60:
            break
    report("nuclear norm", n, d, r, m, begin)
    print(f"  {sent} averages of one vector, certified gap {info['relative_gap']:.1e}")


def report(
    what: str, n: int, d: int, r: int, m: int, begin: tuple[float, float]
) -> None:
    """Prints what took how long."""
    elapsed, busy = time.perf_counter() - begin[0], time.process_time() - begin[1]
    print(
        f"{what}: {n} clients, {d} dimensions, rank {r}, {m} samples each, "
        f"{torch.get_num_threads()} threads: {elapsed:.1f} s elapsed, {busy:.1f} s of "
        "processors"
    )


if __name__ == "__main__":
    {"low_rank": low_rank, "nuclear": nuclear}[sys.argv[1]](*map(int, sys.argv[2:]))
