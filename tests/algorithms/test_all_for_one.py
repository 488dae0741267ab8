"""All-for-one with one client at a time: the report's asynchronous oracle."""

from __future__ import annotations

import pytest
import torch

from coterie import seeds
from coterie.algorithms.all_for_one import all_for_one
from coterie.engine.rounds import run_rounds
from support.oracles import begun, told
from support.quadratics import EXACT, REAL, hessians, quadratics, start
from support.rounds import ACTIVE, simulate

WEIGHTS = torch.tensor([[0.4, 0.2, 0.1, 0.1, 0.1, 0.1]], dtype=REAL)
WEIGHTS = torch.cat([WEIGHTS.roll(i, 1) for i in range(6)])


def one_step(rng: torch.Generator, active: torch.Tensor | None = None) -> torch.Tensor:
    simulation, x = simulate(quadratics()), start()
    method = all_for_one(WEIGHTS, lr=0.1, one_at_a_time=True)
    state, _ = method.step(begun(method, x), simulation.at(1, active), rng)
    return state.x


@pytest.mark.parametrize("active", [None, ACTIVE], ids=["all", "some"])
def test_every_reader_follows_the_one_who_computes(active):
    """x_i <- x_i - lr n l_ik g_k(x_i), by the closed form of g_k."""
    a, b = hessians(quadratics())
    x = start()
    there = torch.arange(6) if active is None else active.nonzero()[:, 0]
    weights = WEIGHTS
    if active is not None:
        used = WEIGHTS * active * active[:, None]
        weights = used / used.sum(1, keepdim=True).clamp(min=1e-12)
    candidates = []
    for k in there.tolist():
        g = x @ a[k] - b[k]  # row i is g_k(x_i)
        candidates.append(x - 0.1 * len(there) * weights[:, k, None] * g)
    seen = set()
    for seed in range(40):
        moved = one_step(seeds.generator(seed), active)
        (mine,) = [
            j
            for j, candidate in enumerate(candidates)
            if torch.allclose(moved, candidate, **EXACT)
        ]
        seen.add(mine)
    assert len(seen) == len(there)  # the chance to miss one of six is .4 per cent


def test_on_average_it_is_the_blend():
    method = all_for_one(WEIGHTS, lr=0.1)
    simulation, x = simulate(quadratics()), start()
    whole, _ = method.step(begun(method, x), simulation.at(1), seeds.generator(0))
    steps = torch.stack([one_step(seeds.generator(s)) for s in range(144)])
    error = steps.std(0) / 12  # of the mean of 144
    assert (((steps.mean(0) - whole.x) / error).abs() < 4.5).all()


def test_it_converges_to_where_the_blend_does():
    a, b = hessians(quadratics())
    mixed = torch.einsum("ik,kde->ide", WEIGHTS, a)
    optimum = torch.linalg.solve(mixed, (WEIGHTS @ b)[..., None])[..., 0]
    method = all_for_one(
        WEIGHTS, lr=0.1, steps=12, schedule="inverse(40)", one_at_a_time=True
    )
    *_, last = run_rounds(method, simulate(quadratics()), start(), rounds=40)
    off = (last.state.x - optimum).norm() / (start() - optimum).norm()
    assert float(off) < 0.1  # 480 steps of a step size that has fallen to a 12th


def test_a_step_costs_the_gradients_of_one_client():
    simulation = simulate(quadratics())
    method = all_for_one(WEIGHTS, one_at_a_time=True)
    oracle = simulation.at(1)
    _, info = method.step(begun(method, start()), oracle, seeds.generator(0))
    assert int((oracle.gradients > 0).sum()) == 1
    assert (
        told(info, oracle)["sent"] == 5 * 2 * 5
    )  # five readers beside it, D = 5, there and back
