"""Claims about SCAFFOLD: a loop with autograd, invariants and limit cases."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from coterie.algorithms.fedavg import fedavg
from coterie.algorithms.scaffold import scaffold
from support.quadratics import EXACT, SAMPLES, hessians, quadratics, start
from support.rounds import ACTIVE, drawn, gradient, simulate, solve, train

OTHERS = torch.tensor([True, True, False, False, True, True])


def rounds_of(algorithm, simulation, x, who):
    """The last state after rounds with these clients, one after the other."""
    states, _ = train(algorithm, simulation, x, 0)
    state = states[0]
    for t, active in enumerate(who, start=1):
        oracle = simulation.at(t, active)
        state, _ = algorithm.step(state, oracle, torch.Generator())
    return state


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_scaffold_is_the_loop_of_the_paper_with_partial_participation(
    classification, weighting
):
    """The server adds up the changes of c_i that clients send, as in the paper."""
    sizes = classification.train.size
    simulation, x = simulate(classification, 3), start(6, 26)
    options = {"lr": 0.2, "steps": 3, "weight_decay": 0.01, "global_lr": 0.8}
    options |= {"schedule": "inverse(9)", "weighting": weighting}
    who = [ACTIVE, OTHERS, None, ACTIVE]
    state = rounds_of(scaffold(sizes, **options), simulation, x, who)

    p = sizes.double() if weighting == "samples" else torch.ones(6).double()
    w, c, c_i = x.mean(0), torch.zeros(26).double(), torch.zeros(6, 26).double()
    for t, active in enumerate(who, start=1):
        there = range(6) if active is None else active.nonzero()[:, 0].tolist()
        y, change = {}, {}
        for i in there:
            y[i], length = w.clone(), 0.0
            for question in range(3):
                lr = 0.2 * 9 / (9 + 3 * (t - 1) + question)
                batch = drawn(simulation, t, i, question)
                g = gradient(classification, y[i], batch) + 0.01 * y[i]
                y[i] = y[i] - lr * (g - c_i[i] + c)
                length += lr
            change[i] = -c + (w - y[i]) / length
        total = sum(float(p[i]) for i in there)
        for i in there:
            c_i[i] = c_i[i] + change[i]
        w = w + 0.8 * sum(float(p[i]) / total * (y[i] - w) for i in there)
        c = c + sum(float(p[i]) / float(p.sum()) * change[i] for i in there)
    assert_close(state.w, w.repeat(6, 1), **EXACT)
    assert_close(state.c, c.repeat(6, 1), **EXACT)
    assert_close(state.c_i, c_i, **EXACT)


def test_the_control_variate_of_the_server_is_the_mean_of_all_others(classification):
    """Also of clients that were absent, whose own ones do not change."""
    sizes, simulation = classification.train.size, simulate(classification, 3)
    algorithm = scaffold(sizes, lr=0.2, steps=2)
    before = rounds_of(algorithm, simulation, start(6, 26), [None, ACTIVE])
    after = rounds_of(algorithm, simulation, start(6, 26), [None, ACTIVE, ACTIVE])
    assert torch.equal(after.c_i[~ACTIVE], before.c_i[~ACTIVE])
    share = sizes.double() / sizes.sum()
    assert_close(after.c[0], share @ after.c_i, **EXACT)


def test_the_first_round_is_fedavg(classification):
    sizes, simulation = classification.train.size, simulate(classification, 3)
    x = start(6, 26)
    ours, infos = train(scaffold(sizes, lr=0.2, steps=3), simulation, x, 1, ACTIVE)
    theirs, sent = train(fedavg(sizes, lr=0.2, steps=3), simulation, x, 1, ACTIVE)
    assert_close(ours[-1].w, theirs[-1].x, **EXACT)
    assert infos == sent  # control variates send nothing in addition


def test_it_arrives_at_the_minimum_of_the_mean_loss_where_fedavg_does_not():
    options = {"lr": 0.1, "steps": 5, "weighting": "uniform"}
    a, b = hessians(quadratics())
    best = solve(a.mean(0), b.mean(0)).repeat(6, 1)
    states, _ = train(scaffold(SAMPLES, **options), simulate(quadratics()), start(), 90)
    assert_close(states[-1].w, best, rtol=0, atol=1e-8)
    theirs, _ = train(fedavg(SAMPLES, **options), simulate(quadratics()), start(), 90)
    assert float((theirs[-1].x - best).abs().max()) > 1e-3
