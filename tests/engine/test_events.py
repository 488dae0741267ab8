"""The event engine: virtual time, tasks in flight, and what must not depend on them."""

from __future__ import annotations

import heapq
import math

import pytest
import torch
from torch.testing import assert_close

from coterie.algorithms.agraf import agraf
from coterie.algorithms.all_for_all import all_for_all
from coterie.algorithms.ditto import ditto
from coterie.algorithms.local import local
from coterie.algorithms.server_sgd import server_sgd
from coterie.checks import InputError, TrainingError
from coterie.clients.simulation import Simulation
from coterie.engine.clocks import Delays, Rings
from coterie.engine.events import EventLoop, run_events
from coterie.engine.rounds import run_rounds
from coterie.records import pack, unpack
from coterie.types import Algorithm, Flow, Task, TaskKind
from coterie_theory.asynchrony import practical_steps
from coterie_theory.delays import applied_steps, delays_of
from support.paces import EQUAL, EXACT, UNEVEN, Paces, question
from support.quadratics import REAL, D, hessians, quadratics
from support.rounds import simulate

ORDINARY = Paces(1.0, 2.0, 0.7, 5.0, 1.3, 17.0)


@pytest.fixture(scope="module")
def x() -> torch.Tensor:
    return torch.linspace(-1, 1, D, dtype=REAL).repeat(6, 1)


def plain_loop(simulation, x, clock, updates, step):
    """Algorithm 3.1, one gradient after the other; yields x_k and (client, tau)."""
    model, prev, numbers = x[0].clone(), [0] * 6, [1] * 6
    began = [model.clone() for _ in range(6)]
    queue = []

    def duration(i, number):
        return float(clock.durations(torch.tensor([i]), torch.tensor([number]), 1))

    for i in range(6):
        heapq.heappush(queue, (duration(i, 0), i, i))
    for k in range(1, updates + 1):
        time, _, i = heapq.heappop(queue)
        g = question(simulation, i, numbers[i], began[i])
        tau = k - prev[i]
        model = model - step(tau) * g
        yield model, (i, tau)
        heapq.heappush(queue, (time + duration(i, numbers[i]), 5 + k, i))
        prev[i], began[i] = k, model.clone()
        numbers[i] += 1


@pytest.mark.parametrize("rule", ["constant", "adaptive"])
def test_events_are_algorithm_3_1(simulation, x, rule):
    def step(tau):
        return 0.05 * (min(1.0, 6 / tau) if rule == "adaptive" else 1.0)

    method = server_sgd(lr=0.05, late=rule)
    events = run_events(method, simulation, x, clock=ORDINARY, updates=100)
    expected = plain_loop(simulation, x, ORDINARY, 100, step)
    most = 0
    for event in events:
        for client, tau in zip(event.clients, event.delays, strict=True):
            model, (who, delay) = next(expected)
            assert (client, tau) == (who, delay)
            most = max(most, tau)
        assert_close(event.state.x, model, **EXACT)
    assert most > 50  # the slow client's


def test_delays_sum_to_updates_times_workers(simulation, x):
    """The delays of K answers and of what is in flight: K M, whatever the order."""
    run = EventLoop(server_sgd(), simulation, x, clock=ORDINARY)
    total = 0
    last = [0] * 6
    for _ in range(150):
        event = run.step()
        total += sum(event.delays)
        for j, client in enumerate(event.clients):
            last[client] = event.updates - len(event.clients) + j + 1
    k = run.updates
    # tau(k, m) of an answer at update k counts it; what is in flight has K - prev.
    assert total + sum(k - prev for prev in last) == k * 6


def test_tasks_under_way_are_computed_together(simulation, x, monkeypatch):
    sizes = []
    staggered = Simulation.task_clients

    def counted(self, who, rounds, *, verb="grads"):
        sizes.append(len(who))
        return staggered(self, who, rounds, verb=verb)

    monkeypatch.setattr(Simulation, "task_clients", counted)
    clock = Paces(1.0, 1.1, 1.2, 1.3, 1.4, 1.5, jitter=0.0)
    for _ in run_events(server_sgd(), simulation, x, clock=clock, updates=60):
        pass
    assert sum(sizes) >= 60
    assert sum(sizes) / len(sizes) > 4


def test_a_barrier_takes_as_long_as_its_slowest_client(simulation, x):
    clock = Paces(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, jitter=0.0)
    run = EventLoop(server_sgd(wait=6), simulation, x, clock=clock)
    while run.updates < 18:
        run.step()
    assert run.time == 18.0  # three rounds of 6
    assert run.idle == pytest.approx([15.0, 12.0, 9.0, 6.0, 3.0, 0.0])


def test_one_worker_is_sgd(x):
    alone = quadratics().select(torch.tensor([2]))
    clients = simulate(alone, batch_size=3)
    model = x[0].clone()
    run = EventLoop(server_sgd(lr=0.1), clients, x[:1], clock=Paces(9.0, 9.0, 9.0))
    for t in range(1, 21):
        model = model - 0.1 * clients.at(t).grads(model[None])[0]
        assert run.step().delays == [1]
        assert_close(run.state.x, model, **EXACT)


def test_equal_paces_are_round_robin_with_delay_m(simulation, x):
    method = server_sgd()
    clock = Paces(*[1.0 + i / 100 for i in range(6)], jitter=0.0)
    events = list(run_events(method, simulation, x, clock=clock, updates=30))
    assert [e.clients[0] for e in events] == [0, 1, 2, 3, 4, 5] * 5
    assert [e.delays[0] for e in events] == [min(k, 6) for k in range(1, 31)]


def test_virtual_iterates_differ_by_what_is_in_flight(simulation, x):
    """x_k - x^_k = sum over workers, but the last, of steps that are under way."""
    lr = 0.07
    run = EventLoop(server_sgd(lr=lr), simulation, x, clock=ORDINARY)

    def in_flight():
        now = run.moment()
        return torch.stack(
            [
                question(simulation, i, client.tasks, now.rows[0][i])
                for i, client in enumerate(now.clients)
            ]
        )

    virtual = x[0] - lr * in_flight().sum(0)
    for _ in range(25):
        (client,) = run.step().clients
        pending = in_flight()
        virtual = virtual - lr * pending[client]
        assert_close(run.state.x - virtual, lr * pending.sum(0), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("method", "capacity"),
    [
        (server_sgd(late="adaptive", average=True), None),
        (server_sgd(wait=4), None),
        (server_sgd(assign="random"), None),
        (server_sgd(assign="random"), 2),
    ],
    ids=["adaptive", "buffer", "random", "places"],
)
def test_going_on_from_a_moment_is_not_having_stopped(simulation, x, method, capacity):
    """Neither in memory nor in a file, where tuples come back as lists."""
    options = {"clock": ORDINARY, "seed": 3, "capacity": capacity}
    whole = EventLoop(method, simulation, x, **options)
    for _ in range(37):
        whole.step()
    while capacity and not (
        whole.moment().queued and any(c.waiting for c in whole.moment().clients)
    ):
        whole.step()
    moment = whole.moment()
    fresh = EventLoop(method, simulation, x, **options).moment()
    rests = [
        EventLoop(method, simulation, x, **options, start=start)
        for start in (moment, unpack(pack(moment), fresh))
    ]
    for _ in range(60):
        event = whole.step()
        assert [rest.step()[:4] for rest in rests] == [event[:4]] * 2
    for rest in rests:
        assert torch.equal(whole.personal(), rest.personal())
        assert whole.idle == rest.idle


def test_a_moment_is_a_copy(simulation, x):
    run = EventLoop(server_sgd(), simulation, x, clock=ORDINARY)
    run.step()
    moment = run.moment()
    before = moment.state.x.clone()
    for _ in range(10):
        run.step()
    assert torch.equal(moment.state.x, before)
    assert moment.totals.updates == 1


def test_who_never_returns_slows_nobody_but_a_barrier(simulation, x):
    clock = Paces(1.0, 1.0, 1.0, 1.0, 1.0, math.inf)
    run = EventLoop(server_sgd(), simulation, x, clock=clock)
    for _ in range(100):
        assert 5 not in run.step().clients
    stuck = EventLoop(server_sgd(wait=6), simulation, x, clock=clock)
    with pytest.raises(TrainingError, match=r"all wait for clients .*5"):
        for _ in range(100):
            stuck.step()


def limit(simulation, x, method, clock, updates):
    """Where the model settles: the mean over the last half of the updates."""
    total, count = torch.zeros(D, dtype=REAL), 0
    for event in run_events(method, simulation, x, clock=clock, updates=updates):
        if event.updates > updates / 2:
            total, count = total + event.state.x, count + 1
    return total / count


def weighted_optimum(weights):
    """argmin sum_m w_m f_m for the losses of `quadratics`: normal equations."""
    a, b = hessians(quadratics())
    w = torch.tensor(weights, dtype=REAL)
    mean = torch.einsum("n,nde->de", w, a)
    return torch.linalg.solve(mean, torch.einsum("n,nd->d", w, b))


def test_fast_clients_count_more_unless_tasks_are_assigned_at_random(x):
    """Constant steps lead to the optimum of sum_m (1 / s_m) F_m, random ones to F's."""
    full = simulate(quadratics())
    paces = (1.0, 1.0, 1.0, 4.0, 4.0, 4.0)
    clock = Paces(*paces, jitter=0.0)
    rates = weighted_optimum([1 / s for s in paces])
    even = weighted_optimum([1.0] * 6)
    apart = float((rates - even).norm())
    fast = limit(full, x, server_sgd(lr=0.02), clock, 900)
    fair = limit(full, x, server_sgd(lr=0.02, assign="random"), clock, 900)
    # Steps of .02 leave some hundredths of the distance.
    assert float((fast - rates).norm()) < 0.15 * apart
    assert float((fair - even).norm()) < 0.3 * apart


@pytest.mark.parametrize("updates", [4, 40, 81])
def test_the_average_is_of_models_weighted_by_applied_steps(simulation, x, updates):
    """Section 3.2: sum_k gamma_hat_k x_k, with gradients on their way at the stop."""
    run = EventLoop(
        server_sgd(lr=0.05, late="adaptive", average=True),
        simulation,
        x,
        clock=ORDINARY,
    )
    models, order = [], []
    for _ in range(updates):
        event = run.step()
        models.append(event.state.x.clone())
        order += event.clients
    steps = applied_steps(delays_of(torch.tensor(order), 6), practical_steps(0.05, 6))
    expected = (steps[:, None] * torch.stack(models)).sum(0) / steps.sum()
    assert_close(run.personal()[0], expected, **EXACT)


WEIGHTS = torch.block_diag(
    torch.tensor([[0.75, 0.25, 0.0], [0.25, 0.5, 0.25], [0.0, 0.25, 0.75]]),
    torch.tensor([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.25, 0.25, 0.5]]),
).to(REAL)


@pytest.mark.parametrize(
    ("rule", "most"), [("constant", 80), ("adaptive", 6), ("heterogeneous", 3)]
)
def test_all_for_all_moves_partners_by_stale_gradients(simulation, x, rule, most):
    """One gradient after the other, written out; `most` is what is not yet late."""
    start = x * torch.arange(1, 7)[:, None]
    method = all_for_all(WEIGHTS, lr=0.1, late=rule, safe=False)
    run = EventLoop(method, simulation, start, clock=UNEVEN)
    models = WEIGHTS @ start
    began, prev, numbers = models.clone(), [0] * 6, [1] * 6
    for k in range(1, 51):
        (i,) = run.step().clients
        g = question(simulation, i, numbers[i], began[i])
        late = min(1.0, most / (k - prev[i]))
        for j in range(6):
            models[j] -= 0.1 * late * float(WEIGHTS[j] @ WEIGHTS[i]) * g
        began[i], prev[i], numbers[i] = models[i], k, numbers[i] + 1
        assert_close(run.personal(), models, **EXACT)


@pytest.mark.parametrize("rule", ["constant", "adaptive", "heterogeneous"])
def test_all_for_all_of_one_model_is_asynchronous_sgd(simulation, x, rule):
    everybody = torch.full((6, 6), 1 / 6, dtype=REAL)
    method = all_for_all(everybody, lr=0.3, late=rule)
    run = EventLoop(method, simulation, x, clock=UNEVEN)
    server = EventLoop(server_sgd(lr=0.3 / 6, late=rule), simulation, x, clock=UNEVEN)
    for _ in range(35):
        assert run.step().delays == server.step().delays
        assert_close(run.personal(), server.personal(), **EXACT)


@pytest.mark.parametrize("rule", ["constant", "adaptive"])
def test_a_slow_client_slows_nobody(x, rule):
    """Two groups with optima of their own: all get there, in the time of the fast."""
    full = simulate(quadratics())
    groups = torch.block_diag(torch.ones(3, 3), torch.ones(3, 3)).to(REAL) / 3
    clock = Paces(1.0, 1.1, 1.2, 1.3, 1.4, 500.0)
    run = EventLoop(all_for_all(groups, lr=0.05, late=rule), full, x, clock=clock)
    while run.time < 150:
        run.step()
    # The slow client has not answered: the optimum of those who have, by their rates.
    optimum = weighted_optimum([0, 0, 0, 1 / 1.3, 1 / 1.4, 0])
    # Steps of .05 / 3 circle around it.
    assert float((run.personal()[3] - optimum).norm()) < 0.1 * float(optimum.norm())
    assert_close(run.personal()[5], run.personal()[3], **EXACT)


def test_ditto_without_waiting_ends_near_what_rounds_end_at(x):
    """The fixed point does not depend on the pace where all work equally fast."""
    full = simulate(quadratics())
    sizes = torch.ones(6)
    lasts = []
    for r in run_rounds(ditto(sizes, lr=0.05, lam=2.0), full, x, rounds=80):
        lasts.append(r.state.v)
    clock = Paces(*[1.0 + i / 50 for i in range(6)], jitter=0.0)
    method = ditto(sizes, lr=0.05, lam=2.0, late="adaptive")
    *_, event = run_events(method, full, x, clock=clock, updates=480)
    # Clients differ in pace by a tenth, and so do their shares in w.
    apart = float((event.state.v - lasts[-1]).norm()) / float(lasts[-1].norm())
    assert apart < 0.05


def test_bad_runs_are_refused(simulation, x):
    with pytest.raises(InputError, match=r"`wait` must be .* 6"):
        EventLoop(server_sgd(wait=7), simulation, x, clock=EQUAL)
    with pytest.raises(InputError, match="`x` must have 6 rows"):
        EventLoop(server_sgd(), simulation, x[:4], clock=EQUAL)
    with pytest.raises(InputError, match="`updates` must be"):
        next(run_events(server_sgd(), simulation, x, clock=EQUAL, updates=0))
    with pytest.raises(InputError, match="`capacity` must be at least 1, got 0"):
        EventLoop(server_sgd(), simulation, x, clock=EQUAL, capacity=0)


def test_a_method_may_be_a_program_of_many_steps(simulation, x):
    """Local training by tasks of three steps is that of rounds, at any pace."""
    from functools import partial

    from coterie.optim.steps import Descent, sgd

    steps = partial(sgd, rule=Descent(0.1), steps=3, t=0)

    def arrive(state, now):
        state[now.clients] = now.answers[0]
        return now.clients

    none = torch.zeros(0, dtype=REAL)
    method = local_steps(
        task=lambda state, i, time: Task((state[i], none), work=3),
        arrive=arrive,
        kinds=(TaskKind(steps, "each"),),
    )
    run = EventLoop(method, simulation, x, clock=ORDINARY)
    finished = [0] * 6
    history = [
        r.state.x for r in run_rounds(local(lr=0.1, steps=3), simulation, x, rounds=40)
    ]
    for _ in range(60):
        for client in run.step().clients:
            finished[client] += 1
    for client, count in enumerate(finished):
        if 0 < count <= 40:
            assert_close(run.personal()[client], history[count - 1][client], **EXACT)


def local_steps(**changes) -> Algorithm:
    """Every client takes steps of its own model, the state."""

    def arrive(state, now):
        state[now.clients] -= 0.1 * now.answers[0]
        return now.clients

    flow = Flow(
        lambda models: models.clone(),
        lambda state, client, time: Task((state[client],)),
        arrive,
        lambda state: state,
    )
    return Algorithm(flow=flow._replace(**changes))


def arrivals(run, count):
    """Times and clients of the next answers."""
    events = [run.step() for _ in range(count)]
    return [(event.time, *event.clients) for event in events]


STEADY = Paces(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, jitter=0.0)


def test_messages_travel_to_a_client_and_back(simulation, x):
    links = Delays("constant(0.25)")
    run = EventLoop(server_sgd(), simulation, x, clock=STEADY, links=links)
    assert arrivals(run, 4) == [(1.5, 0), (2.5, 1), (3.0, 0), (3.5, 2)]
    # Client 0 computes from 0.25 to 1.25, and again from 1.75 to 2.75.
    assert run.idle[0] == pytest.approx(3.5 - 2 - 0.25)


def test_messages_of_a_client_have_numbers_of_their_own(simulation, x):
    links = Delays("exponential(1)", seed=7)
    run = EventLoop(server_sgd(), simulation, x, clock=STEADY, links=links)
    names, none = torch.arange(6), torch.zeros(6, dtype=torch.long)
    drawn = links.relay_delays(names, none, 6).tolist()
    free, number = [0.0] * 6, [0] * 6
    for _ in range(12):
        event = run.step()
        (i,) = event.clients
        there, back = drawn[i][2 * number[i] : 2 * number[i] + 2]
        assert event.time == pytest.approx(free[i] + there + i + 1 + back, rel=1e-12)
        free[i], number[i] = event.time, number[i] + 1
        if number[i] == 3:
            break


def test_with_one_place_everybody_has_its_turn(simulation, x):
    """SGD on the clients one after the other, with nothing late."""
    run = EventLoop(server_sgd(lr=0.1), simulation, x, clock=STEADY, capacity=1)
    model, time = x[0].clone(), 0.0
    for turn in range(1, 4):
        for i in range(6):
            model = model - 0.1 * question(simulation, i, turn, model)
            time += i + 1
            event = run.step()
            assert (event.time, event.clients, event.delays) == (time, [i], [1])
            assert_close(event.state.x, model, **EXACT)


def test_places_are_taken_in_the_order_in_which_clients_wait(simulation, x):
    run = EventLoop(server_sgd(), simulation, x, clock=STEADY, capacity=2)
    # 0: 0-1, 1: 0-2, 2: 1-4, 3: 2-6, 4: 4-9, 5: 6-12, and 0 again: 9-10.
    found = arrivals(run, 7)
    assert found == [(1, 0), (2, 1), (4, 2), (6, 3), (9, 4), (10, 0), (12, 5)]
    assert run.idle[:2] == [10.0, 8.0]  # client 1 is at work from 10 to 12


def test_never_more_are_at_work_than_there_are_places(simulation, x):
    methods = [
        server_sgd(),
        server_sgd(wait=4),
        server_sgd(assign="random"),
        local_steps(),
    ]
    for method in methods:
        run = EventLoop(method, simulation, x, clock=ORDINARY, capacity=3, seed=1)
        spans = []
        for _ in range(60):
            spans += run.step().spans
        for _, begin, _ in spans:
            assert sum(b <= begin < e for _, b, e in spans) <= 3
        assert {client for client, _, _ in spans} == set(range(6))


def test_until_a_time_is_event_by_event(simulation, x):
    """Stopping at times changes nothing, and nothing after a time has happened."""
    steps = EventLoop(server_sgd(), simulation, x, clock=ORDINARY)
    ticks = EventLoop(server_sgd(), simulation, x, clock=ORDINARY)
    for tick in range(1, 30):
        events = list(ticks.until(0.9 * tick))
        assert ticks.time == 0.9 * tick
        for event in events:
            other = steps.step()
            assert event[:4] == other[:4]
            assert 0.9 * (tick - 1) < event.time <= 0.9 * tick
        assert torch.equal(steps.state.x, ticks.state.x)
    assert list(ticks.until(ticks.time)) == []


def test_what_ends_at_a_time_has_ended(simulation, x):
    clock = Paces(*[0.1] * 6, jitter=0.0)
    run = EventLoop(local_steps(), simulation, x, clock=clock)
    for tick in range(1, 40):  # sums of 0.1 are larger or smaller than products
        list(run.until(tick * 0.1))
        assert run.tasks == [tick] * 6
        assert run.idle == [0.0] * 6


def test_a_task_takes_as_long_as_its_work(simulation, x):
    def three(clients, rows):
        return clients.grad(rows) + clients.grad(rows) + clients.grad(rows)

    method = local_steps(
        kinds=(TaskKind(three, "each"),),
        task=lambda state, client, time: Task((state[client],), work=3),
    )
    run = EventLoop(method, simulation, x, clock=STEADY)
    assert arrivals(run, 3) == [(3, 0), (6, 1), (6, 0)]
    assert run.gradients.tolist() == [18, 9, 0, 0, 0, 0]  # minibatches of three
    # Single samples that a task says beside: one more is a third of a minibatch.
    method = local_steps(
        task=lambda state, client, time: Task((state[client],), work=1, samples=1.0)
    )
    run = EventLoop(method, simulation, x, clock=STEADY)
    assert arrivals(run, 1) == [(1 + 1 / 3, 0)]
    assert run.gradients.tolist() == [4, 0, 0, 0, 0, 0]


def test_a_task_may_name_the_round_whose_samples_it_uses(simulation, x):
    method = local_steps(
        task=lambda state, client, time: Task((state[client],), round=70 + client)
    )
    run = EventLoop(method, simulation, x, clock=STEADY)
    run.step()
    g = question(simulation, 0, 70, x[0])
    assert_close(run.personal()[0], x[0] - 0.1 * g, **EXACT)


@pytest.mark.parametrize("grouped", [True, False])
def test_kinds_have_their_own_programs_and_arrive_apart(simulation, x, grouped):
    """Clients 0 to 2 add what others subtract, and answers of two kinds never mix."""

    def pair(clients, rows):
        return rows, -clients.grad(rows)

    seen = []

    def arrive(state, now):
        seen.append((now.kind, now.clients, now.delays))
        state[now.clients] -= 0.1 * now.answers[now.kind]
        return now.clients

    method = local_steps(
        kinds=(TaskKind(), TaskKind(pair)),
        task=lambda state, client, time: Task((state[client],), kind=int(client < 3)),
        arrive=arrive,
        together=True,
    )
    run = EventLoop(method, simulation, x, clock=EQUAL, grouped=grouped)
    models = x.clone()
    # In the order in which tasks were handed out, which is then that of the kinds.
    orders = [[0, 1, 2, 3, 4, 5], [3, 4, 5, 0, 1, 2], [3, 4, 5, 0, 1, 2]]
    for number, order in enumerate(orders, 1):
        seen.clear()
        assert run.step().clients == order
        late = [order.index(client) + 1 for client in range(6)]
        assert seen == [(0, [3, 4, 5], late[3:]), (1, [0, 1, 2], late[:3])]
        for i in range(6):
            sign = 1 if i < 3 else -1
            models[i] += sign * 0.1 * question(simulation, i, number, models[i])
        assert_close(run.personal(), models, **EXACT)


def test_a_buffer_takes_the_mean_of_its_answers_and_lets_all_go_on(simulation, x):
    """FedBuff: the server's model moves at every third answer, nobody waits."""
    run = EventLoop(
        server_sgd(lr=0.1, wait=3, go_on=True), simulation, x, clock=UNEVEN, seed=1
    )
    began, numbers = [x[0].clone() for _ in range(6)], [1] * 6
    model, kept = x[0].clone(), []
    for _ in range(60):
        event = run.step()
        (client,) = event.clients
        kept.append(question(simulation, client, numbers[client], began[client]))
        numbers[client] += 1
        if len(kept) == 3:
            model = model - 0.1 * torch.stack(kept).mean(0)
            kept = []
        began[client] = model.clone()
        assert_close(event.state.x, model, **EXACT)
    assert max(run.idle) == 0


def test_a_task_that_waits_travels_meanwhile(simulation, x):
    """It begins when it has come and the client is free, not when the answer is back.

    Every message takes 10 s and every task 1 s. Client 0 gets three tasks at time 0,
    which come at 10 and are done at 11, 12 and 13; answers arrive at 21, 22 and 23.
    """

    def arrive(state, now):
        state.append((now.time, now.clients[0]))
        return [0, 0] if now.clients == [5] and now.k == 0 else []

    none = torch.zeros(1, dtype=REAL)
    method = local_steps(
        init=lambda models: [],
        task=lambda state, client, time: Task((none,)),
        arrive=arrive,
        kinds=(TaskKind(lambda clients, rows: rows),),
    )
    paces = Paces(1.0, 1.0, 1.0, 1.0, 1.0, 0.0, jitter=0.0)
    run = EventLoop(method, simulation, x, clock=paces, links=Delays("constant(10)"))
    for _ in run.until(100.0):
        pass
    # Client 5 answers at 20; then client 0, which is free since 11, gets two tasks.
    assert [time for time, client in run.state if client == 0] == [21.0, 41.0, 42.0]


@pytest.mark.parametrize("time", [math.nan, math.inf, -1.0])
def test_a_time_to_stop_at_is_a_number(simulation, x, time):
    with pytest.raises(InputError, match="`time` must be"):
        list(EventLoop(server_sgd(), simulation, x, clock=EQUAL).until(time))


def test_who_gets_a_task_is_a_client(simulation, x):
    for wrong in (-1, 6):
        method = local_steps(arrive=lambda state, now, wrong=wrong: [wrong])
        with pytest.raises(InputError, match=f"from 0 to 5, got {wrong}"):
            EventLoop(method, simulation, x, clock=EQUAL).step()


def test_rings_join_everybody_and_instant_messages_have_no_links(simulation, x):
    matrix = torch.full((6, 6), 1 / 6, dtype=REAL)
    apart = Rings(torch.tensor([[0, 1], [2, 3], [4, 5]]), torch.ones(3, dtype=REAL))
    with pytest.raises(InputError, match="no way from node 0 to 2"):
        EventLoop(agraf(matrix, mix="pairs"), simulation, x, clock=EQUAL, rings=apart)
    links = Delays("constant(5)")
    with pytest.raises(InputError, match="`links` cannot be set"):
        EventLoop(agraf(matrix), simulation, x, clock=EQUAL, links=links)
