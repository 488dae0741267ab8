"""Claims about FedProx: a loop with autograd, and limit cases."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from coterie.algorithms.fedavg import fedavg
from coterie.algorithms.fedprox import fedprox
from support.quadratics import EXACT, SAMPLES, D, hessians, quadratics, start
from support.rounds import ACTIVE, STEPS, drawn, loss, simulate, solve, train


@pytest.mark.parametrize("active", [None, ACTIVE], ids=["all", "some"])
def test_fedprox_is_torch_sgd_on_the_loss_with_the_proximal_term(
    classification, active
):
    sizes = classification.train.size
    simulation, x = simulate(classification, 3), start(6, 26)
    states, _ = train(fedprox(sizes, lam=0.7, **STEPS), simulation, x, 3, active)
    who = range(6) if active is None else active.nonzero()[:, 0].tolist()

    w = x.mean(0)
    copies = {i: w.clone().requires_grad_() for i in who}
    optimisers = {
        i: torch.optim.SGD([copies[i]], momentum=0.5, weight_decay=0.01) for i in who
    }
    for t in (1, 2, 3):
        for i in who:
            copies[i].data.copy_(w)
            for question in range(3):
                past = 3 * (t - 1) + question
                optimisers[i].param_groups[0]["lr"] = 0.2 * 9 / (9 + past)
                optimisers[i].zero_grad()
                near = (copies[i] - w).square().sum()
                batch = drawn(simulation, t, i, question)
                (loss(classification, copies[i], batch) + 0.7 / 2 * near).backward()
                optimisers[i].step()
        total = sum(float(sizes[i]) for i in who)
        w = sum(float(sizes[i]) / total * copies[i].detach() for i in who)
    assert_close(states[-1].x, w.repeat(6, 1), **EXACT)


def test_without_a_pull_it_is_fedavg(classification):
    sizes, simulation = classification.train.size, simulate(classification, 3)
    ours, infos = train(fedprox(sizes, lam=0.0, **STEPS), simulation, start(6, 26))
    theirs, expected = train(fedavg(sizes, **STEPS), simulation, start(6, 26))
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.equal(mine.x, other.x)
    assert infos == expected


def test_many_local_steps_average_the_proximal_points():
    """argmin f_i(w_i) + lam/2 |w_i - w|^2 in every round, in closed form."""
    # With curvatures 1 to 3 and lam = 2 a step leaves 0.4 of the way at most.
    algorithm = fedprox(SAMPLES, lr=0.2, steps=60, lam=2.0, weighting="uniform")
    states, _ = train(algorithm, simulate(quadratics()), start(), 3)
    a, b = hessians(quadratics())
    w = start().mean(0)
    for _ in range(3):
        w = solve(a + 2.0 * torch.eye(D, dtype=w.dtype), b + 2.0 * w).mean(0)
    assert_close(states[-1].x, w.repeat(6, 1), **EXACT)
