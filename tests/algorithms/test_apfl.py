"""Claims about APFL: a loop with autograd, closed forms and limit cases."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from coterie import seeds
from coterie.algorithms.apfl import apfl
from coterie.algorithms.fedavg import fedavg
from coterie.algorithms.local import local
from coterie.conformance.suite import CHECKS, Case
from support.federations import error, similar_clients
from support.newcomers import before_newcomers, newcomers
from support.oracles import begun
from support.plain_clients import mine
from support.quadratics import EXACT, REAL, SAMPLES, D, hessians, quadratics, start
from support.rounds import ACTIVE, STEPS, drawn, loss, simulate, solve, train


@pytest.mark.parametrize("adaptive", [False, True], ids=["fixed", "adaptive"])
@pytest.mark.parametrize("active", [None, ACTIVE], ids=["all", "some"])
def test_apfl_is_descent_of_two_losses_in_w_v_and_a(classification, adaptive, active):
    sizes = classification.train.size
    simulation = simulate(classification, 3)
    x = start(6, 26)
    algorithm = apfl(sizes, alpha=0.3, adaptive=adaptive, **STEPS)
    states, infos = train(algorithm, simulation, x, 2, active)
    who = range(6) if active is None else active.nonzero()[:, 0].tolist()

    w = x.mean(0)
    copies = {i: w.clone().requires_grad_() for i in who}
    own = {i: x[i].clone().requires_grad_() for i in range(6)}
    share = {i: torch.tensor(0.3, dtype=REAL, requires_grad=True) for i in range(6)}
    settings = {"lr": 0.2, "momentum": 0.5, "weight_decay": 0.01}
    both = {i: torch.optim.SGD([copies[i], own[i]], **settings) for i in who}
    for t in (1, 2):
        for i in who:
            copies[i].data.copy_(w)
            for s in range(3):
                lr = 0.2 * 9 / (9 + 3 * (t - 1) + s)
                batch = drawn(simulation, t, i, s)  # the same for both losses
                a = share[i]
                mixture = a * own[i] + (1 - a) * copies[i].detach()
                both[i].param_groups[0]["lr"] = lr
                both[i].zero_grad()
                loss(classification, copies[i], batch).backward()
                slope = torch.autograd.grad(
                    loss(classification, mixture, batch), [own[i], a]
                )
                own[i].grad = slope[0]
                both[i].step()
                if adaptive:
                    a.data = (a.data - lr * slope[1]).clamp(0, 1)
        total = sum(float(sizes[i]) for i in who)
        w = sum(float(sizes[i]) / total * copies[i].detach() for i in who)
    v = torch.stack([own[i].detach() for i in range(6)])
    a = torch.stack([share[i].detach() for i in range(6)])
    assert_close(states[-1].w, w.expand(6, -1), **EXACT)
    assert_close(states[-1].v, v, **EXACT)
    assert_close(states[-1].a, a, **EXACT)
    assert (a == 0.3).all() != adaptive
    assert_close(infos[-1]["mixture"], a, **EXACT)
    # Everybody mixes with the new global model.
    expected = a[:, None] * v + (1 - a[:, None]) * w
    used = algorithm.personal(states[-1], simulation.at(2, active, purpose="use"))
    assert_close(used, expected, **EXACT)


@pytest.mark.parametrize("batch_size", [0, 3])
@pytest.mark.parametrize("alpha", [0.0, 1.0], ids=["fedavg", "local"])
def test_without_local_models_it_is_fedavg_and_without_the_global_one_local_training(
    classification, alpha, batch_size
):
    sizes, simulation = classification.train.size, simulate(classification, batch_size)
    algorithm, x = apfl(sizes, alpha=alpha, **STEPS), start(6, 26)
    ours, infos = train(algorithm, simulation, x, 3, ACTIVE)
    limit = local(**STEPS) if alpha else fedavg(sizes, **STEPS)
    theirs, expected = train(limit, simulation, x, 3, ACTIVE)
    found = algorithm.personal(ours[-1], simulation.at(3, purpose="use"))
    # With the same minibatches, since one serves both gradients of a step.
    assert_close(found, theirs[-1].x, **EXACT)
    if not alpha:
        assert [info["sent"] for info in infos] == [info["sent"] for info in expected]


@pytest.mark.parametrize("lr", [0.01, 10.0])
def test_the_mixture_moves_to_the_model_that_fits_and_stays_between_0_and_1(lr):
    federation = quadratics()
    a, b = hessians(federation)
    best = solve(a, b)
    algorithm = apfl(SAMPLES, adaptive=True, lr=lr)
    state = begun(algorithm, start())
    # One of the two is the client's best model. For the first three it is the local.
    is_local = (torch.arange(6) < 3)[:, None]
    other = torch.ones(6, D, dtype=REAL)
    w, v = torch.where(is_local, other, best), torch.where(is_local, best, other)
    after, _ = algorithm.step(
        state._replace(w=w, v=v), simulate(federation).at(1), seeds.generator(0)
    )
    # The loss is (1 - a)^2 q / 2 or a^2 q / 2, with a slope of q / 2 in size at 1/2.
    q = torch.einsum("ni,nij,nj->n", v - w, a, v - w)
    slope = torch.where(is_local[:, 0], -q, q) / 2
    assert_close(after.a, (0.5 - lr * slope).clamp(0, 1), **EXACT)


def test_in_the_long_run_a_fixed_mixture_leads_to_the_clients_own_optimum():
    federation = quadratics()
    simulation = simulate(federation)
    algorithm = apfl(SAMPLES, alpha=0.7, lr=0.6)
    states, _ = train(algorithm, simulation, start(), 80)
    found = algorithm.personal(states[-1], simulation.at(80, purpose="use"))
    # Curvatures are 1 to 3: 1 - 0.6 alpha^2 of v is left by a step, and 0.8 of w.
    assert_close(found, solve(*hessians(federation)), rtol=0, atol=10 * 0.8**80)


def test_the_global_model_is_in_memory_once():
    states, _ = train(apfl(SAMPLES), simulate(quadratics()), start(), 1)
    for state in states:
        assert state.w.shape == (6, D)
        assert state.w.untyped_storage().nbytes() == D * 8


def test_adapting_finds_the_client_that_is_unlike_the_others():
    federation = similar_clients()
    targets, optima = federation.targets.clone(), federation.optima.clone()
    targets[mine(federation, 0)] += 2
    optima[0] += 2
    federation = replace(federation, targets=targets, optima=optima)
    simulation, sizes = simulate(federation), federation.train.size
    x = torch.zeros(12, 10, dtype=REAL)
    errors = {}
    for adaptive in (False, True):
        algorithm = apfl(sizes, alpha=0.1, adaptive=adaptive)
        states, _ = train(algorithm, simulation, x, 10)
        found = algorithm.personal(states[-1], simulation.at(10, purpose="use"))
        errors[adaptive] = error(federation, found)
    assert states[-1].a[0] == 1
    assert states[-1].a[1:].mean() < 0.3
    together = train(fedavg(sizes), simulation, x, 10)[0][-1].x
    assert errors[True] < 0.5 * min(errors[False], error(federation, together))


@pytest.mark.parametrize("adaptive", [False, True], ids=["fixed", "adaptive"])
def test_a_newcomer_trains_a_mixture_with_the_global_model_as_it_is(adaptive):
    options = {"adaptive": adaptive, "alpha": 0.4, "lr": 0.1, "steps": 2}
    algorithm, state = before_newcomers(apfl, 3, **options)
    found = algorithm.welcome(state, newcomers().at(3, purpose="use"))
    hessian, b = (tensor[4:] for tensor in hessians(quadratics()))
    w = state.w[:2]
    v, a = w, state.a.mean().expand(2)
    for _ in range(6):  # as many steps as in training
        u = a[:, None] * v + (1 - a[:, None]) * w
        g = torch.einsum("nij,nj->ni", hessian, u) - b
        slope = ((v - w) * g).sum(1)
        v = v - 0.1 * a[:, None] * g
        if adaptive:
            a = (a - 0.1 * slope).clamp(0, 1)
    assert state.t == 6
    assert_close(found, a[:, None] * v + (1 - a[:, None]) * w, **EXACT)


def test_a_newcomer_without_local_models_gets_the_global_one():
    algorithm, state = before_newcomers(apfl, 3, alpha=0.0)
    found = algorithm.welcome(state, newcomers().at(3, purpose="use"))
    assert torch.equal(found, state.w[:2])


SOME = "inputs_untouched shapes_and_dtype info relabelling client_by_client divided"


@pytest.mark.parametrize("check", [*SOME.split(), "resuming"])
def test_the_adaptive_variant_passes_the_checks_that_it_could_fail(check):
    CHECKS[check].run(Case(apfl, {"adaptive": True}))
