"""Claims about client programs: their minibatches, rows and errors."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from coterie import seeds
from coterie.privacy import PrivateSimulation
from support.plain_clients import EXACT, draws, gradient, mine, twice
from support.simulated import in_round, simulate, simulated


def one_step(clients, x, *, size: float):
    return x - size * clients.grad(x)


def gradients(clients, x, y):
    """Two questions."""
    return clients.grad(x), clients.grad(y)


@pytest.mark.parametrize("loop", [False, True])
def test_a_program_does_the_same_row_by_row(classification, loop):
    simulation, x = simulated(classification, loop=loop)
    y = x.flip(0)
    at_once = simulation.at(5).each(twice, x, y)
    for k in range(6):
        site = simulate(classification.only(k))
        alone = site.at(5).each(twice, x[k, None], y[k, None])
        for whole, part in zip(at_once, alone, strict=True):
            assert_close(part[0], whole[k], **EXACT)


def test_a_program_asks_the_minibatches_that_the_streams_name(classification):
    simulation, x = simulated(classification, seed=2)
    oracle = simulation.at(4)
    oracle.each(one_step, x, size=1.0)
    (found,) = oracle.each(one_step, x, size=0.5)
    # The first question of the second program of this round.
    stream = seeds.key(simulation.at(4).key("each", 1), 0)
    for i in range(6):
        batch = draws(classification, i, 3, stream)
        expected = x[i] - 0.5 * gradient(classification, x[i], batch)
        assert_close(found[i], expected, **EXACT)


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("verb", ["grads", "each"])
def test_a_task_may_use_what_a_later_call_of_its_round_draws(
    classification, verb, private
):
    """Of `each` a call is a program with its questions, of `grads` a gradient."""
    simulation, x = simulated(classification)
    if private:  # with noise, which is that of the call too
        simulation = PrivateSimulation(simulation, clip=0.5, noise=1.0)
    oracle, n = simulation.at(4), len(x)
    ask = {"grads": oracle.grads, "each": lambda x: oracle.each(gradients, x, x)}[verb]
    expected = [ask(x) for _ in range(3)]
    task = simulation.task_clients(torch.arange(n), [4] * n, verb=verb)
    # In any order, and whatever was asked before.
    for number in (2, 0, 1, 2):
        clients = task.call(number)
        found = gradients(clients, x, x) if verb == "each" else clients.grad(x)
        assert_close(found, expected[number], **EXACT)
    assert_close(task.grad(x), task.call(0).grad(x), **EXACT)


@pytest.mark.parametrize("loop", [False, True])
def test_a_program_may_be_run_by_some_who_get_what_all_would(classification, loop):
    simulation, x = simulated(classification, loop=loop)
    some = torch.tensor([0, 1, 0, 0, 1, 1], dtype=torch.bool)
    active = torch.tensor([1, 1, 1, 0, 0, 1], dtype=torch.bool)
    (everybody,) = simulation.at(2).each(one_step, x, size=0.5)
    oracle = simulation.at(2, active)
    (found,) = oracle.each(one_step, x, who=some, size=0.5)
    asked = some & active
    assert_close(found[asked], everybody[asked], **EXACT)
    assert torch.equal(found[~asked], x[~asked])
    assert (oracle.gradients > 0).tolist() == asked.tolist()


def held_then_fresh(clients, first, second, third):
    held = clients.same_batch()
    return held.grad(first), held.grad(second), clients.grad(third)


def test_a_held_minibatch_serves_all_questions_and_others_stay_fresh(classification):
    simulation, x = simulated(classification)
    found = simulation.at(3).each(held_then_fresh, x, x / 2, x)
    call = simulation.at(3).key("each", 0)
    for i in range(6):
        for answer, point, question in zip(
            found, (x, x / 2, x), (0, 0, 1), strict=True
        ):
            batch = draws(classification, i, 3, seeds.key(call, question))
            assert_close(answer[i], gradient(classification, point[i], batch), **EXACT)


def whole_gradient(clients, x):
    return clients.whole().grad(x)


@pytest.mark.parametrize("loop", [False, True])
def test_the_whole_data_of_a_client_can_be_asked_whatever_the_minibatch(
    classification, loop
):
    oracle, x = in_round(classification, 3, loop=loop)
    found = oracle.each(whole_gradient, x)[0]
    for i in range(6):
        expected = gradient(classification, x[i], mine(classification, i))
        assert_close(found[i], expected, **EXACT)
    assert_close(oracle.gradients, classification.train.size.double())


def test_a_program_leaves_the_rows_of_inactive_clients_as_they_were(classification):
    active = torch.tensor([True, False, True, True, False, True])
    simulation, x = simulated(classification)
    everybody = simulation.at(1).each(twice, x, x)
    some = simulation.at(1, active).each(twice, x, x)
    for whole, part in zip(everybody, some, strict=True):
        assert torch.equal(part[~active], x[~active])
        assert_close(part[active], whole[active], **EXACT)
