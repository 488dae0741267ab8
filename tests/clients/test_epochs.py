"""Claims about epochs: every sample once, real steps counted, and those of a loop."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from coterie import seeds
from coterie.algorithms import apfl, coteries, ditto, fedavg, fedrep, local, per_fedavg
from coterie.checks import InputError
from coterie.clients.epochs import PADDING, EpochMinibatches, packs_of
from coterie.clients.simulation import Simulation
from coterie.conformance.divided import run_divided
from coterie.engine import run_rounds
from coterie.engine.rounds import participants
from coterie.models import linear, ravel
from coterie.models.layers import with_batch_statistics, with_own_layers
from coterie.optim import step_numbers
from coterie.study.settings.optimisers import OPTIMISERS
from support.linear_groups import linear_clients

REAL = torch.float64
SIZES = [3, 11, 6, 4, 25]
BATCHES = [1, 3, 2, 1, 7]  # of at most four samples
N, BATCH, ROUNDS, EPOCHS, SHARE = 5, 4, 3, 2, 0.6


@pytest.fixture(scope="module")
def federation():
    rng = torch.Generator().manual_seed(3)
    theta = torch.randn(N, 4, generator=rng, dtype=REAL)
    return linear_clients(theta, train=SIZES, noise=0.3)


def simulation_of(federation, batch_size=BATCH, **more):
    made = Simulation(
        federation, linear((4,), 1), batch_size=batch_size, dtype=REAL, **more
    )
    return made.in_epochs()


@pytest.fixture(scope="module")
def x():
    rng = torch.Generator().manual_seed(5)
    return torch.randn(1, 5, generator=rng, dtype=REAL).repeat(N, 1)


def joined(lists):
    return [one for some in lists for one in some]


@pytest.mark.parametrize(
    "counts", [[1] * 7, [1, 2, 4, 8, 16], list(range(1, 60)), [9, 2, 10, 2], [5]]
)
def test_packs_hold_everybody_once_and_little_padding(counts):
    packs = packs_of(counts)
    assert sorted(joined(packs)) == list(range(len(counts)))
    for pack in packs:
        real = [counts[place] for place in pack]
        assert sum(real) >= (1 - PADDING) * max(real) * len(real) - 1e-9
    assert packs_of([4] * 1000) == [list(range(1000))]


def test_every_sample_comes_once_in_an_epoch(federation):
    simulation, who = simulation_of(federation), torch.tensor([1, 4, 0])
    draws = EpochMinibatches(simulation.samples, who, lambda number: 17 + number)
    seen = {int(i): [] for i in who}
    for _ in draws.step_numbers(0, 2):
        batch = draws()
        for i, index, weight in zip(
            who.tolist(), batch.index, batch.weight, strict=True
        ):
            used = index[weight > 0].tolist()
            seen[i].append(used)
            assert not used or weight.sum() == pytest.approx(1.0)
    for i, batches in seen.items():
        steps = [some for some in batches if some]
        assert len(steps) == 2 * BATCHES[i]
        index, mask = federation.train.rows(torch.tensor([i]))
        everything = sorted(index[0][mask[0]].tolist())
        first, second = steps[: BATCHES[i]], steps[BATCHES[i] :]
        assert sorted(joined(first)) == sorted(joined(second)) == everything
    assert seen[4][:7] != [seen[4][7 + j] for j in range(7)]  # another order


def order_of(federation, i, call, epoch):
    """The samples of client i in the order of an epoch of a call of `each`."""
    index, mask = federation.train.rows(torch.tensor([i]))
    samples = index[0][mask[0]]
    key = torch.tensor([[seeds.key(call, epoch)]])
    bits = seeds.bits(key, federation.clients[i : i + 1], len(samples))[0, 0]
    return samples[bits.argsort()]


def loss(federation, row, samples):
    features = federation.features[samples].to(REAL)
    targets = federation.targets[samples].to(REAL).reshape(-1)
    return (features @ row[:4] + row[4] - targets).square().mean()


def by_loop(federation, x, make, *, pull=None, rate=None):
    """FedAvg client by client, with one optimiser of torch for each client.

    With `pull`, also Ditto's personal models, whose steps come after those of w.
    """
    w, t = x[0].clone(), 0
    rows = [x[0].clone().requires_grad_() for _ in range(N)]
    own = [x[0].clone().requires_grad_() for _ in range(N)]
    optimisers = [(make([a]), make([b])) for a, b in zip(rows, own, strict=True)]
    for number in range(1, ROUNDS + 1):
        here = participants(N, SHARE, 0, number).nonzero()[:, 0].tolist()
        call = seeds.key(0, "step", number, "each", 0)
        for i in here:
            rows[i].data = w.clone()
            for which in range(1 if pull is None else 2):
                row, optimiser = (rows[i], own[i])[which], optimisers[i][which]
                step = t * BATCHES[i]
                for epoch in range(which * EPOCHS, (which + 1) * EPOCHS):
                    order = order_of(federation, i, call, epoch)
                    for first in range(0, len(order), BATCH):
                        optimiser.zero_grad()
                        value = loss(federation, row, order[first : first + BATCH])
                        if which:
                            value = value + pull / 2 * (row - w).square().sum()
                        value.backward()
                        if rate is not None:
                            optimiser.param_groups[0]["lr"] = rate(step)
                        optimiser.step()
                        step += 1
        total = sum(SIZES[i] for i in here)
        w = sum(SIZES[i] / total * rows[i].detach() for i in here)
        t += EPOCHS
    return w, torch.stack([row.detach() for row in own])


RULES = {
    "plain": ({"name": "sgd", "lr": 0.05}, lambda p: torch.optim.SGD(p, lr=0.05)),
    "momentum": (
        {"name": "sgd", "lr": 0.05, "momentum": 0.8, "weight_decay": 0.1},
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.8, weight_decay=0.1),
    ),
    "adamw": (
        {"name": "adamw", "lr": 0.03, "weight_decay": 0.2},
        lambda p: torch.optim.AdamW(p, lr=0.03, weight_decay=0.2),
    ),
}


def options(table):
    made = OPTIMISERS[table["name"]](**{k: v for k, v in table.items() if k != "name"})
    return made._asdict()


def last_round(method, federation, x, **more):
    simulation = simulation_of(federation, **more)
    how = {"rounds": ROUNDS, "participation": SHARE}
    return list(run_rounds(method, simulation, x, **how))[-1]


@pytest.mark.parametrize("case", RULES)
def test_fedavg_is_that_of_a_loop_with_the_same_orders(federation, x, case):
    table, make = RULES[case]
    method = fedavg(torch.tensor(SIZES), steps=EPOCHS, **options(table))
    expected, _ = by_loop(federation, x, make)
    for loop in (False, True):  # all clients in packs, and one by one
        found = last_round(method, federation, x, loop=loop).state.x
        assert_close(found[0], expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("case", RULES)
def test_personal_models_of_ditto_are_those_of_a_loop(federation, x, case):
    table, make = RULES[case]
    method = ditto(torch.tensor(SIZES), steps=EPOCHS, lam=0.4, **options(table))
    w, v = by_loop(federation, x, make, pull=0.4)
    state = last_round(method, federation, x).state
    assert_close(state.w[0], w, rtol=0, atol=1e-9)
    assert_close(state.v, v, rtol=0, atol=1e-9)


SCHEDULES = {
    "step(5, 0.5)": lambda t: 0.5 ** (t // 5),
    "inverse(4)": lambda t: 4 / (4 + t),
    "cosine(20)": lambda t: (1 + math.cos(math.pi * min(1, t / 20))) / 2,
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules_and_warm_up_count_each_clients_own_steps(federation, x, schedule):
    table = {"name": "adam", "lr": 0.03, "warmup": 4, "schedule": schedule}
    method = fedavg(torch.tensor(SIZES), steps=EPOCHS, **options(table))

    def rate(t):
        return 0.03 * min(1, (t + 1) / 4) * SCHEDULES[schedule](t)

    expected, _ = by_loop(
        federation, x, lambda p: torch.optim.Adam(p, lr=0.03), rate=rate
    )
    found = last_round(method, federation, x).state.x[0]
    assert_close(found, expected, rtol=0, atol=1e-9)


METHODS = {
    "local": (lambda: local(steps=2), 2),
    "fedavg": (lambda: fedavg(torch.tensor(SIZES), steps=2), 2),
    "ditto": (lambda: ditto(torch.tensor(SIZES), steps=2), 4),
    "apfl": (lambda: apfl(torch.tensor(SIZES), steps=2, adaptive=True), 4),
    "fedrep": (
        lambda: fedrep(torch.tensor(SIZES), torch.arange(5) > 3, steps=2, head_steps=3),
        5,
    ),
}


@pytest.mark.parametrize("name", METHODS)
def test_gradients_count_real_samples_and_bytes_do_not_change(federation, x, name):
    """An epoch has a gradient of every sample, and padding counts nothing."""
    make, epochs = METHODS[name]
    plain = Simulation(federation, linear((4,), 1), batch_size=BATCH, dtype=REAL)
    how = {"rounds": 2, "participation": SHARE}
    for r, s in zip(
        run_rounds(make(), simulation_of(federation), x, **how),
        run_rounds(make(), plain, x, **how),
        strict=True,
    ):
        expected = epochs * torch.tensor(SIZES).double() * r.active
        assert torch.equal(r.gradients, expected)
        assert r.traffic == s.traffic


def test_all_data_in_a_step_are_one_step_in_an_epoch(federation, x):
    """Batches of everything need no order: epochs are steps."""
    plain = Simulation(federation, linear((4,), 1), batch_size=0, dtype=REAL)
    for method in (local(steps=3), per_fedavg(torch.tensor(SIZES), steps=3)):
        one = list(run_rounds(method, plain, x, rounds=2))[-1].state
        epochs = simulation_of(federation, batch_size=0)
        two = list(run_rounds(method, epochs, x, rounds=2))[-1].state
        assert_close(two.x, one.x, rtol=0, atol=1e-12)


def test_a_client_with_less_than_a_batch_takes_one_step_with_all_it_has(federation, x):
    found = list(run_rounds(local(lr=0.1), simulation_of(federation), x, rounds=1))
    row = x[0].clone().requires_grad_()
    index, mask = federation.train.rows(torch.tensor([0]))
    loss(federation, row, index[0][mask[0]]).backward()
    expected = (row - 0.1 * row.grad).detach()
    assert_close(found[-1].state.x[0], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("processes", [2, 5])
def test_processes_divide_clients_and_change_nothing(federation, x, processes):
    method = ditto(torch.tensor(SIZES), lr="adam(0.03)", steps=EPOCHS)
    whole = last_round(method, federation, x).state

    def run(group):
        cuts = torch.arange(N).tensor_split(processes)[group.rank]
        mine = federation.select(cuts)
        return last_round(method, mine, x[cuts], group=group).state

    parts = run_divided(run, processes)
    for name in ("w", "v", "v_velocity"):
        found = torch.cat([getattr(part, name) for part in parts])
        assert_close(found, getattr(whole, name), rtol=0, atol=1e-12)


def test_going_on_from_a_round_is_not_stopping(federation, x):
    simulation, how = simulation_of(federation), {"participation": SHARE}
    method = coteries(torch.tensor(SIZES), lr="adam(0.03)", steps=2)
    whole = list(run_rounds(method, simulation, x, rounds=4, **how))
    start = (2, whole[1].state)
    rest = list(run_rounds(method, simulation, x, rounds=4, start=start, **how))
    assert torch.equal(rest[-1].state.own, whole[-1].state.own)
    assert torch.equal(rest[-1].state.group.rows, whole[-1].state.group.rows)


def own_loop(clients, x, *, steps):
    for _ in range(steps):
        x = x - 0.1 * clients.grad(x)
    return x


def numbered_loop(clients, x, *, steps):
    for _ in step_numbers(clients, 0, steps):
        x = x - 0.1 * clients.grad(x)
    return x


def test_a_program_that_does_not_number_its_steps_is_refused(federation, x):
    oracle = simulation_of(federation).at(1)
    with pytest.raises(InputError, match=r"a loop over `coterie\.optim\.step_numbers`"):
        oracle.each(own_loop, x, steps=2)
    found = oracle.each(numbered_loop, x, steps=2)[0]
    assert (found != x).any(1).all()
    assert oracle.gradients.tolist() == [2.0 * size for size in SIZES]


def normalised(*layers):
    body = nn.Sequential(*layers, nn.Linear(3, 1))
    return with_batch_statistics(with_own_layers(body)).to(REAL)


def test_masks_do_not_depend_on_who_shares_a_pack(federation):
    """A client alone has the models that it has among others, with dropout, too."""
    module = normalised(nn.Linear(4, 3), nn.Dropout(0.4))
    simulation = Simulation(federation, module, batch_size=BATCH, dtype=REAL)
    x = ravel(module).repeat(N, 1)
    whole = list(run_rounds(local(steps=2), simulation.in_epochs(), x, rounds=2))
    for i in range(N):
        one = Simulation(
            federation.select(torch.tensor([i])), module, batch_size=BATCH, dtype=REAL
        )
        rounds = run_rounds(local(steps=2), one.in_epochs(), x[:1], rounds=2)
        alone = list(rounds)[-1].state.x[0]
        assert_close(alone, whole[-1].state.x[i], rtol=0, atol=1e-12)


def test_clients_that_wait_have_no_statistics_of_a_batch():
    rng = torch.Generator().manual_seed(3)
    theta = torch.randn(3, 4, generator=rng, dtype=REAL)
    federation = linear_clients(theta, train=[16, 14, 11], noise=0.3)
    module = normalised(nn.Linear(4, 3), nn.BatchNorm1d(3))
    x = ravel(module).repeat(3, 1)
    for make in (local, lambda **o: apfl(torch.ones(3), adaptive=True, **o)):
        ends = []
        for loop in (False, True):
            how = {"batch_size": 3, "dtype": REAL, "loop": loop}
            simulation = Simulation(federation, module, **how)
            if simulation.batch_size == 3 and not loop:
                with pytest.raises(
                    InputError, match="last one in an epoch of client 0"
                ):
                    simulation.in_epochs()
            simulation = Simulation(federation, module, **{**how, "batch_size": 4})
            rounds = run_rounds(make(steps=2), simulation.in_epochs(), x, rounds=2)
            ends.append(list(rounds)[-1].state)
        for one, other in zip(*ends, strict=True):
            assert_close(one, other, rtol=0, atol=1e-9)
