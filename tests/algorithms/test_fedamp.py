"""Claims about FedAMP: a loop with autograd over pairs, and limit cases."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from coterie.algorithms.fedamp import fedamp
from coterie.algorithms.local import local
from support.quadratics import EXACT, start
from support.rounds import ACTIVE, drawn, loss, simulate, train

OTHERS = torch.tensor([True, True, False, False, True, True])
OPTIONS = {"lr": 0.2, "steps": 3, "momentum": 0.5, "weight_decay": 0.01}


def after(algorithm, simulation, x, who):
    """The last state and info after rounds with these clients."""
    state, info = train(algorithm, simulation, x, 0)[0][0], {}
    for t, active in enumerate(who, start=1):
        oracle = simulation.at(t, active)
        state, info = algorithm.step(state, oracle, torch.Generator())
    return state, info


@pytest.mark.parametrize(("relative", "sigma"), [(True, 0.8), (False, 30.0)])
def test_fedamp_is_a_loop_over_pairs(classification, relative, sigma):
    """With partial participation."""
    simulation, x = simulate(classification, 3), start(6, 26)
    who = [None, ACTIVE, OTHERS]
    options = {"lam": 0.7, "share": 0.6, "sigma": sigma, "relative": relative}
    algorithm = fedamp(**options, **OPTIONS)
    state, info = after(algorithm, simulation, x, who)

    rows = [row.clone().requires_grad_() for row in x]
    optimisers = [torch.optim.SGD([row], lr=0.2, momentum=0.5) for row in rows]
    for t, active in enumerate(who, start=1):
        there = range(6) if active is None else active.nonzero()[:, 0].tolist()
        u, xi = {}, torch.zeros(6, 6).double()
        pairs = [(i, j) for i in there for j in there if j != i]
        apart = [(rows[i] - rows[j]).detach().square().sum() for i, j in pairs]
        unit = sigma * float(sum(apart)) / len(pairs) if relative else sigma
        for i in there:
            u[i], rest = torch.zeros(26).double(), 1.0
            for j in there:
                if j != i:
                    far = float((rows[i] - rows[j]).detach().square().sum())
                    xi[i, j] = 0.6 / (len(there) - 1) * math.exp(-far / unit)
                    u[i] += xi[i, j] * rows[j].detach()
                    rest -= float(xi[i, j])
            xi[i, i] = rest
            u[i] += rest * rows[i].detach()
        for i in there:
            for question in range(3):
                optimisers[i].zero_grad()
                found = loss(classification, rows[i], drawn(simulation, t, i, question))
                found = found + 0.7 / 2 * (rows[i] - u[i]).square().sum()
                (found + 0.01 / 2 * rows[i].square().sum()).backward()
                optimisers[i].step()
    assert_close(state.x, torch.stack([row.detach() for row in rows]), **EXACT)
    assert_close(info["weights"], xi, **EXACT)
    assert 0.01 < float(xi[0, 1]) < 0.19  # neither all nor nothing


def test_absent_clients_neither_move_nor_count(classification):
    simulation, x = simulate(classification, 3), start(6, 26)
    state, info = after(fedamp(lr=0.2), simulation, x, [ACTIVE])
    assert torch.equal(state.x[~ACTIVE], x[~ACTIVE])
    assert not info["weights"][:, ~ACTIVE].any()
    assert_close(info["weights"][ACTIVE].sum(1), torch.ones(4).double(), **EXACT)


@pytest.mark.parametrize("change", [{"lam": 0.0}, {"share": 1.0, "sigma": 1e-9}])
def test_without_a_pull_clients_train_alone(classification, change):
    """With `lam` 0, or with a pull to their own models where others are too far."""
    simulation, x = simulate(classification, 3), start(6, 26)
    ours, _ = after(fedamp(lr=0.2, **change), simulation, x, [None])
    theirs, _ = after(local(lr=0.2), simulation, x, [None])
    assert_close(ours.x, theirs.x, **EXACT)


def test_relative_weights_do_not_depend_on_the_scale_of_models(classification):
    simulation, x = simulate(classification), start(6, 26)
    _, info = after(fedamp(sigma=0.5), simulation, x, [None])
    _, far = after(fedamp(sigma=0.5), simulation, 1e3 * x, [None])
    assert_close(info["weights"], far["weights"], **EXACT)
    _, far = after(fedamp(sigma=0.5, relative=False), simulation, 1e3 * x, [None])
    assert torch.equal(far["weights"], torch.eye(6).double())


@pytest.mark.parametrize("relative", [True, False])
def test_equal_models_share_as_said(classification, relative):
    x, algorithm = start(6, 26)[:1].repeat(6, 1), fedamp(share=0.4, relative=relative)
    _, info = after(algorithm, simulate(classification), 0 * x, [None])
    _, again = after(algorithm, simulate(classification), x, [None])
    assert_close(again["weights"], info["weights"], rtol=0.01, atol=0)
    expected = torch.full_like(info["weights"], 0.4 / 5).fill_diagonal_(0.6)
    assert_close(info["weights"], expected, **EXACT)
