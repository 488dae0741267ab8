"""Claims about Ditto: a loop with autograd, closed forms and limit cases."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from coterie import seeds
from coterie.algorithms.ditto import ditto
from coterie.algorithms.fedavg import fedavg
from coterie.algorithms.local import local
from support.newcomers import before_newcomers, newcomers
from support.quadratics import EXACT, REAL, SAMPLES, D, hessians, quadratics, start
from support.rounds import ACTIVE, STEPS, drawn, loss, simulate, solve, train


@pytest.mark.parametrize("active", [None, ACTIVE], ids=["all", "some"])
def test_ditto_is_torch_sgd_on_two_losses_of_every_client(classification, active):
    sizes = classification.train.size
    simulation = simulate(classification, 3)
    x = start(6, 26)
    states, _ = train(ditto(sizes, lam=0.7, **STEPS), simulation, x, 2, active)
    who = range(6) if active is None else active.nonzero()[:, 0].tolist()

    w = x.mean(0)
    copies = {i: w.clone().requires_grad_() for i in who}
    own = {i: x[i].clone().requires_grad_() for i in range(6)}
    settings = {"lr": 0.2, "momentum": 0.5, "weight_decay": 0.01}
    of_w = {i: torch.optim.SGD([copies[i]], **settings) for i in who}
    of_v = {i: torch.optim.SGD([own[i]], **settings) for i in who}
    for t in (1, 2):
        for i in who:
            copies[i].data.copy_(w)
            for s in range(3):
                lr = 0.2 * 9 / (9 + 3 * (t - 1) + s)
                near = (own[i] - w).square().sum()  # w as received
                losses = [
                    loss(classification, copies[i], drawn(simulation, t, i, s)),
                    loss(classification, own[i], drawn(simulation, t, i, 3 + s))
                    + 0.7 / 2 * near,
                ]
                for objective, optimiser in zip(
                    losses, (of_w[i], of_v[i]), strict=True
                ):
                    optimiser.param_groups[0]["lr"] = lr
                    optimiser.zero_grad()
                    objective.backward()
                    optimiser.step()
        total = sum(float(sizes[i]) for i in who)
        w = sum(float(sizes[i]) / total * copies[i].detach() for i in who)
    assert_close(states[-1].w, w.repeat(6, 1), **EXACT)
    expected = torch.stack([own[i].detach() for i in range(6)])
    assert_close(states[-1].v, expected, **EXACT)


def test_without_a_pull_personal_models_are_those_of_local_training():
    simulation = simulate(quadratics())
    ours, _ = train(ditto(SAMPLES, lam=0.0, **STEPS), simulation, start())
    alone, _ = train(local(**STEPS), simulation, start())
    assert torch.equal(ours[-1].v, alone[-1].x)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_the_global_model_is_that_of_fedavg(classification, weighting):
    sizes, simulation = classification.train.size, simulate(classification, 3)
    x = start(6, 26)
    options = {**STEPS, "weighting": weighting}
    ours, infos = train(ditto(sizes, lam=5.0, **options), simulation, x, 3, ACTIVE)
    theirs, expected = train(fedavg(sizes, **options), simulation, x, 3, ACTIVE)
    # With the same minibatches: a round asks for those of the global steps first.
    assert_close(ours[-1].w, theirs[-1].x, **EXACT)
    assert infos == expected  # the personal models are not sent


@pytest.mark.parametrize("lam", [0.5, 2.0])
def test_ditto_arrives_at_the_closed_form_on_quadratics(lam):
    federation = quadratics()
    a, b = hessians(federation)
    # Curvatures are 1 to 3, so that 0.7^65 of the way is left.
    algorithm = ditto(SAMPLES, lam=lam, lr=0.3)
    states, _ = train(algorithm, simulate(federation), start(), 65)
    p = SAMPLES.to(REAL) / SAMPLES.sum()
    w = solve(torch.einsum("n,nij->ij", p, a), p @ b)
    assert_close(states[-1].w, w.repeat(6, 1), **EXACT)
    v = solve(a + lam * torch.eye(D, dtype=REAL), b + lam * w)
    assert_close(states[-1].v, v, **EXACT)


@pytest.mark.parametrize("steps", [1, 3])
def test_a_pull_of_one_over_lr_leaves_a_gradient_step_from_the_model_received(steps):
    federation = quadratics()
    a, b = hessians(federation)
    algorithm = ditto(SAMPLES, lr=0.02, lam=50.0, steps=steps)
    states, _ = train(algorithm, simulate(federation), start(), 2)
    v, w = states[1].v, states[1].w
    for _ in range(steps):
        v = w - 0.02 * (torch.einsum("nij,nj->ni", a, v) - b)
    assert_close(states[2].v, v, **EXACT)


def test_personal_models_of_clients_that_take_no_part_stay_and_go_on_later():
    simulation = simulate(quadratics())
    algorithm = ditto(SAMPLES, momentum=0.9)
    states, infos = train(algorithm, simulation, start(), 2, ACTIVE)
    later, _ = algorithm.step(states[-1], simulation.at(3), seeds.generator(0))
    assert torch.equal(states[-1].v[~ACTIVE], start()[~ACTIVE])
    assert not states[-1].v_velocity[~ACTIVE].any()
    assert (states[-1].w != states[0].w).all()
    # From its start, pulled to a global model that others have trained meanwhile.
    a, b = hessians(quadratics())
    g = torch.einsum("nij,nj->ni", a, start()) - b + (start() - states[-1].w)
    assert_close(later.v[~ACTIVE], (start() - 0.1 * g)[~ACTIVE], **EXACT)
    assert infos[0]["sent"] == 2 * 4 * D


def test_a_newcomer_arrives_where_it_would_be_with_this_global_model():
    algorithm, state = before_newcomers(ditto, 20, lam=2.0, lr=0.3, steps=3)
    a, b = hessians(quadratics())
    expected = solve(a + 2 * torch.eye(D, dtype=REAL), b + 2 * state.w[0])[4:]
    # 60 steps, each of which leaves half the way at most.
    found = algorithm.welcome(state, newcomers().at(1, purpose="use"))
    assert_close(found, expected, **EXACT)


def test_a_newcomer_takes_as_many_steps_as_there_were_in_training():
    algorithm, state = before_newcomers(ditto, 4, lam=0.0, **STEPS)
    assert state.t == 12
    alone = local(**{**STEPS, "steps": 12})
    expected, _ = train(alone, newcomers(), state.w[:2], 1)
    found = algorithm.welcome(state, newcomers().at(1, purpose="use"))
    assert_close(found, expected[-1].x, **EXACT)
