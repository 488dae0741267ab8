"""Claims about pFedMe: a loop with autograd, Moreau envelopes and limit cases."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from coterie.algorithms.fedavg import fedavg
from coterie.algorithms.pfedme import pfedme
from support.newcomers import before_newcomers, newcomers
from support.quadratics import EXACT, REAL, SAMPLES, D, hessians, quadratics, start
from support.rounds import ACTIVE, drawn, loss, simulate, solve, train

ONE = torch.eye(D, dtype=REAL)
# With curvatures 1 to 3 and lam = 1 an inner step leaves 0.34 of the way at most, so
# that 30 of them solve the inner problem to 1e-14.
SOLVED = {"inner_steps": 30, "inner_lr": 0.33, "lam": 1.0}


def proximal_points(w: torch.Tensor, lam: float) -> torch.Tensor:
    """argmin f_i(theta) + lam/2 |theta - w_i|^2 on the quadratics, for rows w_i."""
    a, b = hessians(quadratics())
    return solve(a + lam * ONE, b + lam * w)


@pytest.mark.parametrize("active", [None, ACTIVE], ids=["all", "some"])
def test_pfedme_is_torch_sgd_on_inner_problems_and_on_the_envelope(
    classification, active
):
    sizes = classification.train.size
    simulation = simulate(classification, 3)
    x = start(6, 26)
    algorithm = pfedme(
        sizes,
        lr=0.4,
        steps=2,
        inner_steps=3,
        inner_lr=0.2,
        lam=1.5,
        beta=0.7,
        weighting="samples",
        momentum=0.5,
        weight_decay=0.01,
        schedule="inverse(9)",
    )
    states, _ = train(algorithm, simulation, x, 2, active)
    who = range(6) if active is None else active.nonzero()[:, 0].tolist()

    w, theta = x.mean(0), x.clone()
    copies = {i: w.clone().requires_grad_() for i in who}
    outer = {i: torch.optim.SGD([copies[i]], lr=0.4, momentum=0.5) for i in who}
    for t in (1, 2):
        for i in who:
            copies[i].data.copy_(w)
            for r in range(2):
                batch = drawn(simulation, t, i, r)  # one for all inner steps
                point = copies[i].detach().clone().requires_grad_()
                inner = torch.optim.SGD([point], lr=0.2, weight_decay=0.01)
                for _ in range(3):
                    inner.zero_grad()
                    near = (point - copies[i].detach()).square().sum()
                    (loss(classification, point, batch) + 1.5 / 2 * near).backward()
                    inner.step()
                theta[i] = point.detach()
                copies[i].grad = 1.5 * (copies[i].detach() - theta[i])
                outer[i].param_groups[0]["lr"] = 0.4 * 9 / (9 + 2 * (t - 1) + r)
                outer[i].step()
        total = sum(float(sizes[i]) for i in who)
        mean = sum(float(sizes[i]) / total * copies[i].detach() for i in who)
        w = 0.3 * w + 0.7 * mean
    assert_close(states[-1].w, w.repeat(6, 1), **EXACT)
    assert_close(states[-1].theta, theta, **EXACT)


@pytest.mark.parametrize("lam", [1.0, 3.0])
def test_many_inner_steps_give_the_proximal_point(lam):
    # With curvatures 1 to 3 an inner step leaves 0.8 of the way at most.
    algorithm = pfedme(SAMPLES, lam=lam, inner_lr=0.3, inner_steps=120)
    states, _ = train(algorithm, simulate(quadratics()), start(), 1)
    w = states[0].w
    assert_close(states[1].theta, proximal_points(w, lam), **EXACT)


def test_a_local_round_is_a_gradient_step_on_the_moreau_envelope():
    algorithm = pfedme(SAMPLES, lr=0.4, steps=2, **SOLVED)
    states, _ = train(algorithm, simulate(quadratics()), start(), 1)
    a, b = hessians(quadratics())
    w = states[0].w.clone()
    for _ in range(2):
        w.requires_grad_()
        theta = proximal_points(w, 1.0)
        bend = torch.einsum("ni,nij,nj->n", theta, a, theta) / 2
        values = bend - (b * theta).sum(1) + (theta - w).square().sum(1) / 2
        w = (w - 0.4 * torch.autograd.grad(values.sum(), w)[0]).detach()
    assert_close(states[1].w, w.mean(0).repeat(6, 1), **EXACT)
    assert_close(states[1].theta, theta.detach(), **EXACT)


def test_pfedme_arrives_at_the_minimum_of_the_mean_envelope():
    algorithm = pfedme(SAMPLES, lr=1.5, **SOLVED)
    # The envelopes' curvatures are 1/2 to 3/4: a round leaves a quarter at most.
    states, _ = train(algorithm, simulate(quadratics()), start(), 18)
    a, b = hessians(quadratics())
    shrink = torch.linalg.inv(a + ONE)  # the envelope's gradient is shrink (a w - b)
    w = solve((shrink @ a).mean(0), torch.einsum("nij,nj->ni", shrink, b).mean(0))
    assert_close(states[-1].w, w.repeat(6, 1), **EXACT)
    assert_close(states[-1].theta, proximal_points(w.expand(6, -1), 1.0), **EXACT)


def test_without_a_pull_and_with_a_full_outer_step_it_is_fedavg(classification):
    sizes, simulation = classification.train.size, simulate(classification)
    x = start(6, 26)
    options = {"lam": 1e-6, "lr": 1e6, "inner_steps": 3, "inner_lr": 0.2}
    ours, infos = train(pfedme(sizes, **options), simulation, x, 3)
    algorithm = fedavg(sizes, lr=0.2, steps=3, weighting="uniform")
    theirs, expected = train(algorithm, simulation, x, 3)
    # What is left of the pull.
    assert_close(ours[-1].w, theirs[-1].x, rtol=0, atol=1e-5)
    assert infos == expected


def test_the_server_moves_by_beta():
    simulation = simulate(quadratics())
    after = {
        beta: train(pfedme(SAMPLES, beta=beta), simulation, start(), 1)[0][1].w
        for beta in (0.5, 1.0, 2.0)
    }
    w = start().mean(0).repeat(6, 1)
    for beta, found in after.items():
        assert_close(found, w + beta * (after[1.0] - w), **EXACT)
    assert (after[1.0] != w).all()


def test_clients_weigh_the_same_unless_asked_otherwise():
    simulation = simulate(quadratics())
    states, _ = train(pfedme(SAMPLES, lr=0.5), simulation, start(), 1)
    # With lr lam = 1/2 a client's w_i is half way to its theta_i.
    copies = (states[0].w + states[1].theta) / 2
    assert_close(states[1].w, copies.mean(0).repeat(6, 1), **EXACT)
    weighted = pfedme(SAMPLES, lr=0.5, weighting="samples")
    states, _ = train(weighted, simulation, start(), 1)
    p = SAMPLES.to(REAL) / SAMPLES.sum()
    assert_close(states[1].w, (p @ copies).repeat(6, 1), **EXACT)


@pytest.mark.parametrize("steps", [1, 2])
def test_a_newcomer_solves_the_inner_problems_of_one_round(steps):
    options = {"lr": 0.4, "steps": steps, "momentum": 0.5, **SOLVED}
    algorithm, state = before_newcomers(pfedme, 3, **options)
    found = algorithm.welcome(state, newcomers().at(3, purpose="use"))
    assert state.t == 3 * steps
    w = state.w[:1].repeat(6, 1)
    for _ in range(steps):
        theta = proximal_points(w, 1.0)
        w = w - 0.4 * (w - theta)
    assert_close(found, theta[4:], **EXACT)
