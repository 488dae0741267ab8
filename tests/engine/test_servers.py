"""Claims about server optimisers: they are the formulas of their papers."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from coterie.algorithms import (
    aruba,
    ditto,
    fedavg,
    fedrep,
    ifca,
    local,
)
from coterie.checks import InputError
from coterie.clients.simulation import Simulation
from coterie.engine import SERVERS, run_rounds, with_server
from coterie.engine.rounds import participants
from coterie.models import linear
from support.linear_groups import linear_clients

REAL = torch.float64
SIZES = torch.tensor([4, 9, 6, 5])
ROUNDS, STEPS, SHARE = 5, 2, 0.5


@pytest.fixture(scope="module")
def federation():
    rng = torch.Generator().manual_seed(3)
    theta = torch.randn(4, 4, generator=rng, dtype=REAL)
    return linear_clients(theta, train=SIZES.tolist(), noise=0.3)


def simulation_of(federation, **more):
    return Simulation(federation, linear((4,), 1), batch_size=0, dtype=REAL, **more)


@pytest.fixture(scope="module")
def x():
    rng = torch.Generator().manual_seed(5)
    return torch.randn(1, 5, generator=rng, dtype=REAL).repeat(4, 1)


def slope(federation, i, row):
    index, mask = federation.train.rows(torch.tensor([i]))
    some = index[0][mask[0]]
    features = torch.cat([federation.features[some], torch.ones(len(some), 1)], 1)
    features = features.to(REAL)
    error = features @ row - federation.targets[some].to(REAL).reshape(-1)
    return 2 * features.T @ error / len(some)


def by_loop(federation, x, name, lr, b, c=0.0, tau=0.0):
    """The server's model after every round, entry by entry as in the papers."""
    model, m = x[0].clone(), torch.zeros(5, dtype=REAL)
    v, seen = torch.full((5,), tau**2, dtype=REAL), []
    for number in range(1, ROUNDS + 1):
        here = participants(4, SHARE, 0, number).nonzero()[:, 0].tolist()
        total, change = sum(int(SIZES[i]) for i in here), torch.zeros(5, dtype=REAL)
        for i in here:
            row = model.clone()
            for _ in range(STEPS):
                row = row - 0.05 * slope(federation, i, row)
            change += int(SIZES[i]) / total * (row - model)
        for j in range(5):
            d = float(change[j])
            if name == "momentum":
                m[j] = b * m[j] + d
                model[j] += lr * m[j]
                continue
            m[j] = b * m[j] + (1 - b) * d
            if name == "adam":
                v[j] = c * v[j] + (1 - c) * d**2
            else:
                sign = 1 if v[j] > d**2 else -1
                v[j] = v[j] - (1 - c) * d**2 * sign
            model[j] += lr * m[j] / (float(v[j]) ** 0.5 + tau)
        seen.append(model.clone())
    return torch.stack(seen)


CASES = {
    "momentum": {"lr": 0.7, "momentum": 0.6},
    "adam": {"lr": 0.2, "momentum": 0.5, "beta2": 0.8, "tau": 0.01},
    "yogi": {"lr": 0.2, "momentum": 0.5, "beta2": 0.8, "tau": 0.01},
}


def rounds_of(method, federation, x, **more):
    simulation = simulation_of(federation, **more)
    return list(run_rounds(method, simulation, x, rounds=ROUNDS, participation=SHARE))


@pytest.mark.parametrize("name", CASES)
def test_the_server_makes_the_steps_of_its_paper(federation, x, name):
    server = SERVERS[name](**CASES[name])
    method = with_server(fedavg(SIZES, lr=0.05, steps=STEPS), server, "fedavg")
    found = rounds_of(method, federation, x)
    options = list(CASES[name].values())
    expected = by_loop(federation, x, name, *options)
    for r, row in zip(found, expected, strict=True):
        for mine in r.state.state.x:  # also of absent clients
            assert_close(mine, row, rtol=0, atol=1e-9)


def test_a_step_of_one_without_momentum_is_the_average(federation, x):
    plain = fedavg(SIZES, lr=0.05, steps=STEPS)
    method = with_server(plain, SERVERS["momentum"](lr=1.0, momentum=0.0), "fedavg")
    one, two = (rounds_of(m, federation, x)[-1].state for m in (plain, method))
    assert_close(two.state.x, one.x, rtol=0, atol=1e-12)


def test_the_servers_step_costs_nobody_a_byte(federation, x):
    plain = fedavg(SIZES, lr=0.05)
    method = with_server(plain, SERVERS["adam"](), "fedavg")
    one, two = (rounds_of(m, federation, x) for m in (plain, method))
    assert [r.traffic for r in one] == [r.traffic for r in two]
    assert all(
        torch.equal(a.gradients, b.gradients) for a, b in zip(one, two, strict=True)
    )


def test_going_on_from_a_round_is_not_stopping(federation, x):
    method = with_server(fedavg(SIZES, lr=0.05), SERVERS["yogi"](), "fedavg")
    simulation, how = simulation_of(federation), {"participation": SHARE}
    whole = list(run_rounds(method, simulation, x, rounds=4, **how))
    start = (2, whole[1].state)
    rest = list(run_rounds(method, simulation, x, rounds=4, start=start, **how))
    assert torch.equal(rest[-1].state.state.x, whole[-1].state.state.x)
    pairs = zip(rest[-1].state.memory, whole[-1].state.memory, strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_personal_columns_stay_with_their_clients(federation, x):
    """Without a step of the server, they are what they are without a server."""
    home = torch.tensor([False, False, False, True, True])
    plain = fedavg(SIZES, lr=0.05, steps=STEPS)
    server = SERVERS["momentum"](lr=1.0, momentum=0.0)
    method = with_server(plain, server, "fedavg")
    one = rounds_of(plain, federation, x, home=home)[-1].state.x
    two = rounds_of(method, federation, x, home=home)[-1].state.state.x
    assert_close(two, one, rtol=0, atol=1e-12)
    assert len(two[:, 4].unique()) > 1


@pytest.mark.parametrize("make", [ditto, fedrep])
def test_other_methods_that_average_models_have_a_server_too(federation, x, make):
    """With a step of one and no momentum, they are as they are."""
    head = (torch.tensor([False, False, False, True, True]),) * (make is fedrep)
    plain = make(SIZES, *head, lr=0.05)
    server = SERVERS["momentum"](lr=1.0, momentum=0.0)
    method = with_server(plain, server, "it")
    one, two = (rounds_of(m, federation, x)[-1].state for m in (plain, method))
    assert_close(two.state.w, one.w, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (local(), "rounds that average models, and it has none"),
        (aruba(SIZES), "but it averages several"),
        (ifca(SIZES, clusters=2), "but it averages several"),
    ],
)
def test_methods_without_one_average_of_models_are_refused(
    federation, x, method, message
):
    with pytest.raises(InputError, match=message):
        rounds_of(with_server(method, SERVERS["adam"](), "it"), federation, x)


def test_defaults_are_those_of_the_papers():
    assert SERVERS["momentum"]().momentum == 0.9
    for name in ("adam", "yogi"):
        server = SERVERS[name]()
        assert (server.momentum, server.beta2, server.tau) == (0.9, 0.99, 1e-3)
