"""Step rules that depend on clients' own data, against plain loops."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from coterie.algorithms import ditto, fedavg, local
from coterie.checks import InputError
from coterie.clients.simulation import Simulation
from coterie.models import linear, mlp
from coterie.optim.steps import LocalDescent, rule_in_numbers, sgd, velocity
from support.linear_groups import linear_clients

REAL = torch.float64
SIZES = [4, 9, 6]
STEPS = 7


@pytest.fixture(scope="module")
def federation():
    rng = torch.Generator().manual_seed(3)
    theta = torch.randn(3, 4, generator=rng, dtype=REAL)
    return linear_clients(theta, train=SIZES, noise=0.3)


def begun(federation, model=linear):
    module = model((4,), 1).to(REAL)
    simulation = Simulation(federation, module, batch_size=0, dtype=REAL)
    rng = torch.Generator().manual_seed(5)
    d = sum(p.numel() for p in module.parameters())
    x = torch.randn(1, d, generator=rng, dtype=REAL).repeat(len(federation), 1)
    simulation.measure(x, products=300)
    return simulation, x, module


def samples_of(federation, i):
    index, mask = federation.train.rows(torch.tensor([i]))
    rows = index[0][mask[0]]
    return federation.features[rows].to(REAL), federation.targets[rows].to(REAL)


def hessian(federation, i):
    """The Hessian of the squared error of a linear model with a bias, which is last."""
    x, _ = samples_of(federation, i)
    x = torch.cat([x, torch.ones(len(x), 1, dtype=REAL)], 1)
    return 2 * x.T @ x / len(x)


def test_curvature_is_the_largest_eigenvalue_of_each_clients_hessian(federation):
    simulation, *_ = begun(federation)
    for i, found in enumerate(simulation.samples.measurements.curvature):
        assert_close(found, torch.linalg.eigvalsh(hessian(federation, i))[-1])


def test_measuring_costs_two_gradients_of_all_data_a_product(federation):
    simulation, x, _ = begun(federation)
    assert simulation.measure(x, products=3).tolist() == [6 * size for size in SIZES]


@pytest.mark.parametrize("together", [1.0, 3.0])
def test_steps_are_those_of_a_loop_with_the_clients_own_numbers(federation, together):
    simulation, x, _ = begun(federation)
    rule = LocalDescent("curvature(0.5)", 0.8, "samples(2, 6)")
    found, _ = simulation.at(1).each(
        sgd, x, velocity(rule, x), rule=rule, steps=STEPS, t=0, together=together
    )
    for i, size in enumerate(SIZES):
        features, targets = samples_of(federation, i)
        k = 2 if together == 1 else 6
        decay = k / (size * together)
        lr = 0.5 / (torch.linalg.eigvalsh(hessian(federation, i))[-1] + decay)
        weights, bias = x[i, :4].clone(), x[i, 4].clone()
        speed, bias_speed = torch.zeros(4, dtype=REAL), torch.zeros((), dtype=REAL)
        for _ in range(STEPS):
            error = features @ weights + bias - targets.reshape(-1)
            speed = 0.8 * speed + 2 * features.T @ error / size + decay * weights
            bias_speed = 0.8 * bias_speed + 2 * error.mean()  # which does not decay
            weights, bias = weights - lr * speed, bias - lr * bias_speed
        assert_close(found[i], torch.cat([weights, bias[None]]), rtol=0, atol=1e-9)


def test_adam_is_that_of_torch(federation):
    simulation, x, module = begun(federation, mlp)
    rule = LocalDescent("adam(0.03)", 0.0, "samples(2)")
    oracle = simulation.at(1)
    found, v = oracle.each(sgd, x, velocity(rule, x), rule=rule, steps=4, t=0)
    found, _ = oracle.each(sgd, found, v, rule=rule, steps=3, t=4)
    for i, size in enumerate(SIZES):
        features, targets = samples_of(federation, i)
        torch.nn.utils.vector_to_parameters(x[i].clone(), module.parameters())
        is_weight = {True: [], False: []}
        for parameter in module.parameters():
            is_weight[parameter.dim() > 1].append(parameter)
        optimiser = torch.optim.AdamW(
            [
                {"params": is_weight[True], "weight_decay": 2 / size},
                {"params": is_weight[False], "weight_decay": 0.0},
            ],
            lr=0.03,
        )
        for _ in range(7):
            optimiser.zero_grad()
            loss = (module(features) - targets.reshape(-1, 1)).square().mean()
            loss.backward()
            optimiser.step()
        row = torch.nn.utils.parameters_to_vector(module.parameters()).detach()
        assert_close(found[i], row, rtol=0, atol=1e-9)


def test_the_mean_decay_of_a_shared_model_is_k_over_all_samples(federation):
    simulation, x, _ = begun(federation)
    seen = []

    def look(clients, rows):
        seen.append(
            rule_in_numbers(LocalDescent(1.0, 0.0, "samples(5)"), clients, rows, 3.0)
        )
        return rows

    simulation.at(1).each(look, x)
    shares = torch.tensor(SIZES, dtype=REAL) / sum(SIZES)
    assert float(shares @ seen[0].weight_decay[:, 0]) == pytest.approx(5 / sum(SIZES))
    assert not seen[0].weight_decay[:, -1].any()  # of the bias


def test_a_pull_counts_as_curvature_so_that_steps_do_not_overshoot(federation):
    """With curvatures below `lam`, a step of 1 / L_i would be unstable."""
    simulation, x, _ = begun(federation)
    algorithm = ditto(torch.tensor(SIZES), lr="curvature(1)", lam=1e4, steps=20)
    state = algorithm.init(x, simulation.at(0))
    for t in range(1, 4):
        state, _ = algorithm.step(state, simulation.at(t), torch.Generator())
    assert float((state.v - state.w).norm()) < 1.0


def test_one_client_alone_trains_fedavg_as_local_training_does(federation):
    x = begun(federation)[1]
    rule = {"lr": "curvature(1)", "momentum": 0.9, "weight_decay": "samples(1)"}
    alone = Simulation(
        federation.select(torch.tensor([1])), linear((4,), 1), batch_size=0, dtype=REAL
    )
    alone.measure(x[:1])
    ends = []
    for algorithm in (
        local(**rule, steps=5),
        fedavg(torch.tensor([9]), **rule, steps=5),
    ):
        state = algorithm.init(x[:1], alone.at(0))
        state, _ = algorithm.step(state, alone.at(1), torch.Generator())
        ends.append(state.x)
    assert_close(*ends)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        (
            "lr",
            "0.1",
            r"`lr` must be a number or curvature\(1\), adam\(1\), sgd\(1\), got '0.1'",
        ),
        ("lr", "curvature(0)", "`lr curvature` must be greater than 0"),
        ("lr", "adam(0.1, 2)", "`lr` adam takes 1 number, got"),
        (
            "lr",
            "adam",
            r"`lr` 'adam' needs a number in brackets, such as .adam\(0.005\)",
        ),
        (
            "weight_decay",
            "samples",
            r"needs a number in brackets, such as .samples\(1\)",
        ),
        ("lr", "newton(1)", "must be a number or curvature"),
        (
            "weight_decay",
            "samples(-1)",
            "`weight_decay samples` must be greater than 0",
        ),
        ("weight_decay", "curvature(1)", r"must be a number or samples\(1\)"),
        ("weight_decay", -1.0, "`weight_decay` must be at least 0"),
    ],
)
def test_a_rule_that_cannot_be_is_refused(option, value, message):
    with pytest.raises(InputError, match=message):
        local(**{option: value})


def test_clients_that_did_not_measure_are_told_to(federation):
    simulation = Simulation(federation, linear((4,), 1), batch_size=0, dtype=REAL)
    x = torch.zeros(3, 5, dtype=REAL)
    rule = LocalDescent("curvature(1)")
    message = r"must be numbers, unless `Simulation\.measure`"
    with pytest.raises(InputError, match=message):
        simulation.at(1).each(sgd, x, velocity(rule, x), rule=rule, steps=1, t=0)
