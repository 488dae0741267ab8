"""Claims about models that a CPU computes one after the other, in threads."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from coterie import models
from coterie.clients import kernels
from coterie.clients.kernels import Kernel
from coterie.clients.samples import Batch
from coterie.clients.ways import in_threads, runs_alone, work_of
from coterie.clients.ways.choice import COSTS, Cost, Work
from coterie.models import OBJECTIVES
from support.plain_clients import EXACT, twice
from support.simulated import in_round, simulated


@pytest.fixture
def threads():
    """Sets the number of threads of torch, and restores it."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def alone(monkeypatch):
    """Lets rows run one after the other, whatever the rule predicts."""
    monkeypatch.setattr(kernels, "runs_alone", lambda *given: True)


def both(clients, x, y):
    """A program of two questions, and one about all data."""
    g = clients.grad(x)
    return clients.grad(x - g), y + clients.whole().loss(g)[:, None]


@pytest.mark.parametrize("program", [twice, both])
@pytest.mark.parametrize("count", [1, 3])
def test_a_program_does_the_same_client_after_client(
    classification, monkeypatch, threads, program, count
):
    oracle, x = in_round(classification, 2)
    expected = oracle.each(program, x, x.flip(0))
    monkeypatch.setattr(kernels, "runs_alone", lambda *given: True)
    threads(count)
    again, _ = in_round(classification, 2)
    found = again.each(program, x, x.flip(0))
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, **EXACT)
    assert_close(again.gradients, oracle.gradients, rtol=0, atol=0)  # whole numbers


AT_WORK: set[int] = set()  # threads that ran the next program


def three_steps(clients, x):
    AT_WORK.add(threading.get_ident())
    for _ in range(3):
        x = x - 0.1 * clients.grad(x)
    return x


def test_the_number_of_threads_changes_no_bit(classification, alone, threads):
    def trained(count: int) -> torch.Tensor:
        threads(count)
        oracle, x = in_round(classification, 1)
        (x,) = oracle.each(three_steps, x)
        return torch.cat([x, oracle.grads(x), oracle.gradients[:, None]], 1)

    AT_WORK.clear()
    one = trained(1)
    assert {threading.get_ident()} == AT_WORK
    # A thread does the same operations for a client as any other thread.
    assert_close(trained(4), one, rtol=0, atol=0)
    assert len(AT_WORK) > 1


def test_a_program_that_encloses_values_runs_once(classification, alone, threads):
    threads(2)
    oracle, x = in_round(classification, 3)
    seen = []

    def plain(clients, x):
        return x - clients.grad(x)

    def enclosing(clients, x):
        seen.append((threading.get_ident(), len(x)))
        return plain(clients, x)

    oracle.each(enclosing, x)
    assert seen == [(threading.get_ident(), len(x))]


def test_clients_that_are_absent_keep_their_rows(classification, alone, threads):
    threads(2)
    active = torch.tensor([True, False, True, True, False, True])
    oracle, x = in_round(classification, 3, active)
    (found,) = oracle.each(three_steps, x)
    assert_close(found[~active], x[~active], rtol=0, atol=0)
    assert (found[active] != x[active]).any(1).all()


def test_an_error_in_a_thread_reaches_the_caller(classification, alone, threads):
    threads(2)
    oracle, x = in_round(classification, 0)

    def fails(clients, x):
        raise ValueError("no answer")

    with pytest.raises(ValueError, match="no answer"):
        oracle.each(fails, x)
    assert torch.get_num_threads() == 2


def test_tasks_have_one_core_each_and_come_back_in_order(threads):
    threads(3)
    together = threading.Barrier(3, timeout=10)

    def task(number: int, own: str) -> tuple[int, int, str]:
        together.wait()  # all three threads are at work
        return number, torch.get_num_threads(), own

    found = in_threads(task, 6, ["a", "b", "c"])
    assert [number for number, _, _ in found] == [0, 1, 2, 3, 4, 5]
    assert {cores for _, cores, _ in found} == {1}
    assert {own for _, _, own in found} == {"a", "b", "c"}
    assert torch.get_num_threads() == 3


def images(dtype=torch.float32) -> torch.Tensor:
    rng = torch.Generator().manual_seed(1)
    return torch.randn(9, 3, 12, 12, generator=rng, dtype=dtype)


class Viewing(nn.Module):
    """A module that some orders of memory do not suit."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Conv2d(3, 4, 3), nn.Linear(400, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.body(x)
        return self.head(h.view(len(h), -1))


def classifying(make, features, **options) -> Kernel:
    module = models.build(make, 0, features.dtype)
    targets = torch.arange(len(features)) % 3
    return Kernel(module, OBJECTIVES["classification"], features, targets, **options)


@pytest.mark.parametrize(
    ("make", "last"),
    [(Viewing, False), (lambda: models.cnn((3, 12, 12), 3, width=4), True)],
)
def test_images_have_channels_last_if_the_module_can_take_them(make, last):
    features = images()
    kernel = classifying(make, features, by_row=True)
    assert kernel._channels_last is last
    point = models.ravel(models.build(make, 0))
    batch = Batch(torch.arange(9), torch.full((1, 9), 1 / 9))
    twin = models.with_row(models.build(make, 0), point)
    loss = nn.functional.cross_entropy(twin(features), torch.arange(9) % 3)
    loss.backward()
    expected = torch.cat([p.grad.flatten() for p in twin.parameters()])
    # Sums of at most some thousand products in single precision, in another order.
    near = {"rtol": 1e-4, "atol": 1e-6}
    assert_close(kernel.grad(point[None], batch)[0], expected, **near)
    assert_close(kernel.loss(point[None], batch)[0], loss.detach(), **near)


class Half(nn.Module):
    """A module with a parameter that its outputs do not depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle = nn.Linear(4, 3), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


def test_parameters_without_influence_have_gradient_zero():
    features = torch.linspace(-1, 1, 24, dtype=torch.float64).view(6, 4)
    kernel = classifying(Half, features, by_row=True)
    module = models.build(Half, 0, torch.float64)
    points = models.ravel(module).repeat(2, 1)
    batch = Batch(torch.arange(6), torch.full((2, 6), 1 / 6, dtype=torch.float64))
    g = kernel.grad(points, batch)
    used = models.columns(module, ["used"])
    assert (g[:, ~used] == 0).all() and (g[:, used] != 0).all()


def test_work_counts_the_products_of_a_forward_pass():
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(400, 5))
    work = work_of(module, images()[:1], is_chain=False, values=7, parameters=8)
    # 4 x 10 x 10 outputs of 3 x 3 x 3 products, and 5 outputs of 400.
    assert work.products == 400 * 27 + 5 * 400
    assert (work.kind, work.values, work.parameters) == ("convolutions", 7, 8)


def test_the_rule_compares_two_predicted_times(monkeypatch):
    # With 4 samples: 12 products and 4 * 2 + 3 * 1 = 11 values.
    # In one pass: 100 + 12 n. Alone: 20 max(turns, n / 2) + 35 turns.
    monkeypatch.setitem(COSTS, "other", (Cost(10, 1e6, 0), Cost(2, 2e6, 1e6)))
    work = Work("other", operations=10, products=3, values=2, parameters=1)
    for rows, threads, expected in [
        (1, 1, True),  # 55 < 1.1 * 112
        (3, 1, False),  # 165 > 1.1 * 136
        (3, 2, True),  # two turns: 40 + 70 < 1.1 * 136
        (8, 2, False),  # four turns: 80 + 140 > 1.1 * 196
        (8, 8, True),  # one turn: 80 + 35 < 1.1 * 196
    ]:
        assert runs_alone(work, 4, rows, threads) is expected


def test_twins_are_for_threads_on_a_cpu_only(classification, alone, threads):
    threads(2)
    simulation, _ = simulated(classification)
    twins = simulation.kernel.twins(3, 6)
    assert len(twins) == 2
    assert len({id(twin.module) for twin in (simulation.kernel, *twins)}) == 3
    assert not twins[0].twins(3, 6)
    debug, _ = simulated(classification, loop=True)
    assert not debug.kernel.twins(3, 6)


def test_a_cpu_compiles_no_convolutions_and_runs_compiled_chains_in_one_pass(alone):
    chain, other = (
        classifying(lambda make=make: make((3, 12, 12), 3), images(), compiled=True)
        for make in (models.mlp, models.cnn)
    )
    assert chain.compiled and not chain.rows_alone(4, 2)
    assert not other.compiled and other.rows_alone(4, 2)


def test_chains_whose_rows_share_their_samples_run_in_one_pass(alone):
    kernel = classifying(lambda: models.mlp((3, 12, 12), 3), images())
    weight = torch.full((2, 4), 0.25)
    own, shared = (
        Batch(torch.arange(8).view(2, 4), weight),
        Batch(torch.arange(4), weight),
    )
    assert kernel._goes_alone(own) and not kernel._goes_alone(shared)


def test_few_clients_draw_ahead_what_single_questions_draw(classification):
    def answers(asks: int) -> list[torch.Tensor]:
        oracle, x = in_round(classification, 6)
        return [oracle.grads(x) for _ in range(asks)]

    for one, other in zip(answers(3), answers(20), strict=False):
        assert_close(one, other, rtol=0, atol=0)
