"""Claims about FedDyn: a loop with autograd, invariants and a fixed point."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from coterie.algorithms.fedavg import fedavg
from coterie.algorithms.feddyn import feddyn
from support.quadratics import EXACT, SAMPLES, hessians, quadratics, start
from support.rounds import ACTIVE, drawn, loss, simulate, solve, train

OTHERS = torch.tensor([True, True, False, False, True, True])


def rounds_of(algorithm, simulation, x, who):
    """The last state after rounds with these clients, one after the other."""
    state = train(algorithm, simulation, x, 0)[0][0]
    for t, active in enumerate(who, start=1):
        state, _ = algorithm.step(state, simulation.at(t, active), torch.Generator())
    return state


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_feddyn_is_torch_sgd_on_the_dynamic_loss_with_partial_participation(
    classification, weighting
):
    sizes = classification.train.size
    simulation, x, alpha = simulate(classification, 3), start(6, 26), 0.4
    options = {"lr": 0.2, "steps": 3, "momentum": 0.5, "weight_decay": 0.01}
    options |= {"schedule": "inverse(9)", "weighting": weighting, "alpha": alpha}
    who = [ACTIVE, OTHERS, None, ACTIVE]
    state = rounds_of(feddyn(sizes, **options), simulation, x, who)

    p = sizes.double() if weighting == "samples" else torch.ones(6).double()
    w, h, h_i = x.mean(0), torch.zeros(26).double(), torch.zeros(6, 26).double()
    copies = [w.clone().requires_grad_() for _ in range(6)]
    optimisers = [
        torch.optim.SGD([row], momentum=0.5, weight_decay=0.01) for row in copies
    ]
    for t, active in enumerate(who, start=1):
        there = range(6) if active is None else active.nonzero()[:, 0].tolist()
        for i in there:
            copies[i].data.copy_(w)
            for question in range(3):
                past = 3 * (t - 1) + question
                optimisers[i].param_groups[0]["lr"] = 0.2 * 9 / (9 + past)
                optimisers[i].zero_grad()
                found = loss(
                    classification, copies[i], drawn(simulation, t, i, question)
                )
                found = found - h_i[i] @ copies[i]
                found = found + alpha / 2 * (copies[i] - w).square().sum()
                found.backward()
                optimisers[i].step()
        theta = [row.detach() for row in copies]
        total = sum(float(p[i]) for i in there)
        for i in there:
            h_i[i] = h_i[i] - alpha * (theta[i] - w)
        h = h - alpha * sum(float(p[i] / p.sum()) * (theta[i] - w) for i in there)
        w = sum(float(p[i]) / total * theta[i] for i in there) - h / alpha
    assert_close(state.w, w.repeat(6, 1), **EXACT)
    assert_close(state.h, h.repeat(6, 1), **EXACT)
    assert_close(state.h_i, h_i, **EXACT)


def test_the_term_of_the_server_is_the_mean_of_all_others(classification):
    """Also of clients that were absent, whose own terms do not change."""
    sizes, simulation = classification.train.size, simulate(classification, 3)
    algorithm = feddyn(sizes, lr=0.2, steps=2)
    before = rounds_of(algorithm, simulation, start(6, 26), [None, ACTIVE])
    after = rounds_of(algorithm, simulation, start(6, 26), [None, ACTIVE, ACTIVE])
    assert torch.equal(after.h_i[~ACTIVE], before.h_i[~ACTIVE])
    share = sizes.double() / sizes.sum()
    assert_close(after.h[0], share @ after.h_i, **EXACT)


def test_terms_become_gradients_where_clients_solve_their_problems():
    a, b = hessians(quadratics())
    options = {"lr": 0.2, "steps": 120, "alpha": 0.5, "weighting": "uniform"}
    state = rounds_of(
        feddyn(SAMPLES, **options), simulate(quadratics()), start(), [None] * 2
    )
    # f_i' - h_i + alpha (theta_i - w) = 0 before, so that h_i is f_i' afterwards.
    before = train(feddyn(SAMPLES, **options), simulate(quadratics()), start(), 1)[0]
    w, h_i = before[1].w, before[1].h_i
    eye = torch.eye(a.shape[1], dtype=a.dtype)
    theta = solve(a + 0.5 * eye, b + h_i + 0.5 * w)
    slopes = torch.einsum("nij,nj->ni", a, theta) - b
    assert_close(state.h_i, slopes, **EXACT)


def test_it_arrives_at_the_minimum_of_the_mean_loss_where_fedavg_does_not():
    options = {"lr": 0.1, "steps": 5, "weighting": "uniform"}
    a, b = hessians(quadratics())
    best = solve(a.mean(0), b.mean(0)).repeat(6, 1)
    simulation = simulate(quadratics())
    states, _ = train(feddyn(SAMPLES, alpha=1.0, **options), simulation, start(), 150)
    assert_close(states[-1].w, best, rtol=0, atol=1e-8)
    theirs, _ = train(fedavg(SAMPLES, **options), simulation, start(), 150)
    assert float((theirs[-1].x - best).abs().max()) > 1e-3


def test_the_first_step_goes_twice_as_far_as_that_of_fedavg(classification):
    """All terms are 0 before, and then h / alpha is the way of the mean."""
    sizes, simulation = classification.train.size, simulate(classification, 3)
    x = start(6, 26)
    ours, infos = train(feddyn(sizes, lr=0.2, alpha=0.3), simulation, x, 1)
    theirs, sent = train(fedavg(sizes, lr=0.2), simulation, x, 1)
    w = theirs[0].x + 2 * (theirs[1].x - theirs[0].x)
    assert_close(ours[1].w, w, **EXACT)
    assert infos == sent
