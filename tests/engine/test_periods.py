"""Rounds of equal virtual time: how long turns take, who is idle, what is refused."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
import torch

from coterie.algorithms import ALGORITHMS
from coterie.algorithms.ditto import ditto
from coterie.algorithms.fedavg import fedavg
from coterie.algorithms.local import local
from coterie.algorithms.server_sgd import server_sgd
from coterie.checks import InputError
from coterie.engine.clocks import Delays, Rings, clock
from coterie.engine.events import EventLoop
from coterie.engine.periods import (
    Pace,
    run_waiting,
    run_without_waiting,
    start_flow,
    start_waiting,
)
from coterie.engine.rounds import run_rounds
from coterie.graphs import edges_of, gossip_matrix
from coterie.records import pack, unpack
from coterie.types import Algorithm, Flow, Task
from support.quadratics import REAL, SAMPLES, D, start
from support.refusals import refuses

SPEEDS = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
HALF = Delays("constant(0.5)")
# Sums in another order, over some dozens of steps in float64.
CLOSE = {"rtol": 1e-11, "atol": 1e-12}


@dataclass
class Given:
    """A clock of given times of a gradient, and of when a client may begin first."""

    seconds: tuple[float, ...] = SPEEDS
    first: dict[int, float] = field(default_factory=dict)

    def durations(self, clients, first, count):
        return torch.tensor(self.seconds, dtype=REAL)[clients][:, None].repeat(1, count)

    def ready(self, client, time):
        return max(time, self.first.get(client, 0.0))


def waiting(simulation, pace, rounds=1, *, steps=2, **options):
    """FedAvg, whose clients take two gradients in a turn."""
    algorithm = fedavg(SAMPLES, lr=0.1, steps=steps)
    return list(
        run_waiting(algorithm, simulation, start(), pace=pace, rounds=rounds, **options)
    )


def not_waiting(simulation, method, pace, rounds=1, **options):
    return list(
        run_without_waiting(
            method, simulation, start(), pace=pace, rounds=rounds, **options
        )
    )


# Client i computes for 2 (i + 1) seconds; a message travels for half a second. With two
# places, each takes the one that is free first: 0-3, 0-5, 3-10, 5-14, 10-21, 14-27.
TURNS = [
    (Pace(Given(), 1.0), 12.0),
    (Pace(Given(), 1.0, HALF), 13.0),
    (Pace(Given(), 1.0, HALF, capacity=2), 27.0),
    (Pace(Given(), 1.0, HALF, capacity=1), 2 * 21 + 6.0),
    (Pace(Given(), 1.0, HALF, capacity=9), 13.0),
    (Pace(Given(first={5: 4.0}), 1.0, HALF), 4 + 12 + 0.5),
    # The last place is held by client 5 until it may begin.
    (Pace(Given(first={5: 20.0}), 1.0, HALF, capacity=2), 20 + 12 + 0.5),
]
NAMES = ["alone", "links", "two", "one", "enough", "late", "late and two"]


@pytest.mark.parametrize(("pace", "seconds"), TURNS, ids=NAMES)
def test_a_turn_takes_as_long_as_its_slowest_client(simulation, pace, seconds):
    just, early = (
        waiting(simulation, pace._replace(period=period))[0]
        for period in (seconds, seconds * (1 - 1e-6))
    )
    assert just.state.time == pytest.approx(seconds, rel=1e-12)
    assert (just.state.turns, early.state.turns) == (1, 0)
    assert (just.lapse.updates, early.lapse.updates) == (6, 0)
    assert (float(just.gradients.sum()), float(early.gradients.sum())) == (36, 0)
    assert just.traffic.total > early.traffic.total == 0


@pytest.mark.parametrize(("pace", "seconds"), TURNS[:4], ids=NAMES[:4])
def test_first_answers_arrive_when_a_turn_would_end(simulation, pace, seconds):
    """Both ways of going on have the same links, places and times."""
    method = ditto(SAMPLES, lr=0.1)  # two gradients in a task
    pace = pace._replace(period=seconds)
    (r,) = not_waiting(simulation, method, pace)
    assert min(r.lapse.tasks.tolist()) == 1
    (r,) = not_waiting(simulation, method, pace._replace(period=seconds * (1 - 1e-6)))
    assert min(r.lapse.tasks.tolist()) == 0


@pytest.mark.parametrize("period", [0.5, 5.0, 30.0])
@pytest.mark.parametrize("capacity", [None, 2])
def test_clients_are_busy_or_idle_all_the_time(simulation, period, capacity):
    pace = Pace(Given(first={3: 7.0}), period, HALF, capacity)
    method = ditto(SAMPLES, lr=0.1)
    for rounds in (
        waiting(simulation, pace, 4),
        not_waiting(simulation, method, pace, 4),
    ):
        for r in rounds:
            both = r.lapse.busy + r.lapse.idle
            assert both.tolist() == pytest.approx([r.t * period] * 6, rel=1e-9)
            assert r.lapse.time == r.t * period
            assert min(r.lapse.busy.tolist()) >= 0 <= min(r.lapse.idle.tolist())


def test_in_a_turn_that_goes_on_only_the_time_until_now_counts(simulation):
    """Client i computes for 2 (i + 1) s from 0 on, and client 5 from 4 s on."""
    (r,) = waiting(simulation, Pace(Given(first={5: 4.0}), 3.0))
    assert r.lapse.busy.tolist() == [2.0, 3.0, 3.0, 3.0, 3.0, 0.0]
    assert r.lapse.idle.tolist() == [1.0, 0.0, 0.0, 0.0, 0.0, 3.0]


def test_who_waits_is_idle_by_hand(simulation):
    """Turns take 12 s, in which client i computes for 2 (i + 1) of them."""
    *_, r = waiting(simulation, Pace(Given(), 6.0), 5)
    # Two turns and a half, so far that all but two have finished their third share.
    assert r.lapse.busy.tolist() == [6.0, 12.0, 18.0, 22.0, 26.0, 30.0]
    assert r.lapse.tasks.tolist() == [2] * 6
    *_, r = not_waiting(simulation, local(steps=2), Pace(Given(), 6.0), 5)
    assert r.lapse.idle.tolist() == [0.0] * 6
    assert r.lapse.tasks.tolist() == [15, 7, 5, 3, 3, 2]  # 30 / (2 (i + 1))


@pytest.mark.parametrize("value", [0.01, 1.2345, 1e-9, 1e9 / 3])
def test_equal_times_make_no_round_late_by_rounding(simulation, value):
    """A sum of t times may exceed t times one of them in the last digit."""
    pace = Pace(clock(f"constant({value!r})"), value)
    for r in waiting(simulation, pace, 20, steps=1):
        assert r.state.turns == r.t
    for r in not_waiting(simulation, local(), pace, 20):
        assert r.lapse.tasks.tolist() == [r.t] * 6


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_turns_are_the_rounds_of_the_algorithm(simulation, participation):
    algorithm, x = fedavg(SAMPLES, lr=0.1, steps=2), start()
    pace = Pace(clock("constant(3)"), 6.0)
    options = {"participation": participation, "seed": 5, "rounds": 6}
    rounds = run_rounds(algorithm, simulation, x, **options)
    turns = run_waiting(algorithm, simulation, x, pace=pace, **options)
    for a, b in zip(rounds, turns, strict=True):
        assert torch.equal(a.state.x, b.state.state.x)
        assert a.info == b.info
        assert torch.equal(a.gradients, b.gradients)
        assert torch.equal(a.active, b.active)


def test_a_straggler_slows_those_who_wait_and_nobody_else(simulation):
    paces = Given((1.0, 1.0, 1.0, 1.0, 1.0, 40.0))
    *_, slow = waiting(simulation, Pace(paces, 10.0), 12, steps=1)
    assert slow.state.turns == 3  # of 40 s in 120
    for method in (local(), server_sgd()):
        *_, r = not_waiting(simulation, method, Pace(paces, 10.0), 12)
        assert r.lapse.tasks.tolist() == [120] * 5 + [3]


def test_several_turns_in_a_round_are_summed_up(simulation):
    pace = Pace(clock("constant(1)"), 6.0)
    (r,) = waiting(simulation, pace)
    # Three turns of two gradients of three samples, and a model there and back.
    assert (r.state.turns, r.lapse.updates) == (3, 18)
    assert r.gradients.tolist() == [18.0] * 6
    assert r.traffic == (3 * 2 * 6 * D, 0)
    assert len(r.lapse.spans) == 18


def test_what_goes_out_with_the_first_tasks_is_counted(simulation):
    """Models to all at time 0; six answers and models at each of times 2, 4, 6."""
    pace = Pace(clock("constant(1)"), 6.0)
    (r,) = not_waiting(simulation, ditto(SAMPLES), pace)
    assert r.traffic.total == (1 + 3 * 2) * 6 * D
    ticks = not_waiting(simulation, ditto(SAMPLES), pace._replace(period=1.5), rounds=4)
    assert [r.traffic.total for r in ticks] == [6 * D, 12 * D, 12 * D, 12 * D]


def test_messages_cost_no_time_where_nothing_is_sent(simulation):
    pace = Pace(Given(), 30.0, Delays("constant(100)"))
    (r,) = not_waiting(simulation, local(), pace)
    assert r.lapse.tasks.tolist() == [30, 15, 10, 7, 6, 5]
    algorithm = local(lr=0.1)
    (r,) = run_waiting(algorithm, simulation, start(), pace=pace, rounds=1)
    assert r.state.turns == 5


def stored(state, like):
    """As it is after a checkpoint was written and read."""
    return unpack(pack(state), like)


PACES = Pace(
    clock("lognormal(1, 0.5)", [1, 2, 1, 1, 3, 20], "on_off(5, 2)", seed=4),
    1.7,
    Delays("exponential(0.4)", seed=1),
    capacity=4,
)


@pytest.mark.parametrize("stop", [1, 6])
def test_going_on_with_a_method_that_waits_equals_not_stopping(simulation, stop):
    algorithm, x = fedavg(SAMPLES, lr=0.1, steps=2), start()
    options = {"pace": PACES, "rounds": 9, "participation": 0.7}
    whole = list(run_waiting(algorithm, simulation, x, **options))
    kept = stored(whole[stop - 1].state, start_waiting(algorithm, simulation, x))
    rest = list(run_waiting(algorithm, simulation, x, **options, start=(stop, kept)))
    same_rounds(whole[stop:], rest)


@pytest.mark.parametrize("stop", [1, 6])
@pytest.mark.parametrize(
    "method",
    [ditto(SAMPLES, late="adaptive"), server_sgd(assign="random"), local()],
    ids=["ditto", "random", "local"],
)
def test_going_on_with_one_that_does_not_equals_not_stopping(simulation, method, stop):
    options = {"pace": PACES, "rounds": 9, "seed": 3}
    whole = not_waiting(simulation, method, **options)
    like = start_flow(method, simulation, start(), PACES, 3)
    kept = stored(whole[stop - 1].state, like)
    rest = not_waiting(simulation, method, **options, start=(stop, kept))
    same_rounds(whole[stop:], rest)


def same_rounds(first, second):
    for a, b in zip(first, second, strict=True):
        assert a.t == b.t
        assert a.traffic == b.traffic
        assert torch.equal(a.gradients, b.gradients)
        for x, y in zip(a.lapse, b.lapse, strict=True):
            if isinstance(x, torch.Tensor):
                assert torch.equal(x, y)
            else:
                assert [*map(list, x)] == [*map(list, y)] if is_nested(x) else x == y
    assert str(pack(first[-1].state)) == str(pack(second[-1].state))


def is_nested(value):
    return isinstance(value, list) and bool(value) and not isinstance(value[0], int)


CASES = {
    "agraf": lambda m: ALGORITHMS["agraf"](m, mix="neighbours"),
    "pairs": lambda m: ALGORITHMS["agraf"](m, mix="pairs"),
    "ditto": lambda m: ALGORITHMS["ditto"](SAMPLES, steps=2),
    "local": lambda m: ALGORITHMS["local"](steps=2, momentum=0.5),
    "random": lambda m: ALGORITHMS["server_sgd"](assign="random", lr=0.02),
    "buffer": lambda m: ALGORITHMS["server_sgd"](wait=4, lr=0.02),
    "all_for_all": lambda m: ALGORITHMS["all_for_all"](m.to_dense(), late="adaptive"),
    "loss_network": lambda m: ALGORITHMS["loss_network"](m),
}
LAWS = [
    "constant(1)",
    "uniform(0, 1)",
    "exponential(1e-6)",
    "pareto(1, 0.5)",
    "lognormal(1, 3)",
]


@pytest.mark.parametrize("number", range(16))
def test_any_order_of_arrivals_keeps_the_books(simulation, number):
    """Random laws, links, places and methods, by number."""
    rng = torch.Generator().manual_seed(number)

    def one_of(choices):
        return choices[int(torch.randint(len(choices), (1,), generator=rng))]

    matrix = gossip_matrix(edges_of(one_of(["ring", "star", "complete"]), 6), 6)
    method = list(CASES.values())[number % len(CASES)](matrix.to(REAL))
    speeds = (10 ** torch.randn(6, generator=rng).double()).tolist()
    # Edges ring every ten seconds, which would be very often in the longest ones.
    flow = method.flow
    laws = LAWS if flow.edges is None else LAWS[:2]
    options = {
        "clock": clock(one_of(laws), speeds, one_of([None, "on_off(9, 3)"]), number),
        "links": one_of([None, Delays(one_of(laws), number)]),
        "capacity": None if flow.couples else one_of([None, 1, 2, 5]),
    }
    if flow.edges is not None:
        rates = torch.full((len(flow.edges),), 0.1, dtype=REAL)
        options["rings"] = Rings(flow.edges, rates)
    together, alone = (
        EventLoop(method, simulation, start(), **options, grouped=way)
        for way in (True, False)
    )
    begins, total, at = [0] * 6, 0, 0.0
    for _ in range(20):
        event, other = together.step(), alone.step()
        assert event[:4] == other[:4]
        assert event.time >= at
        assert len(set(event.clients)) == len(event.clients)
        at, k = event.time, event.updates - len(event.clients)
        for j, (client, delay) in enumerate(
            zip(event.clients, event.delays, strict=True), 1
        ):
            # An answer is late by those since its task was made, itself with them.
            assert 1 <= delay <= k + j - begins[client]
            total += delay
    now = together.moment().clients
    flight = [together.updates - client.began for client in now if client.busy]
    waits = [together.updates - v for client in now for _, v, _ in client.waiting]
    # Every answer adds one to all that are under way and to those that wait: there
    # are never more of them than clients.
    assert total + sum(flight) + sum(waits) <= 6 * together.updates
    if options["capacity"] is None and flow.meet is None and not flow.couples:
        held = len(getattr(together.state, "held", []))
        assert len(flight) + len(waits) + held == 6
    torch.testing.assert_close(together.personal(), alone.personal(), **CLOSE)


def either(simulation, pace, wait):
    if wait:
        return waiting(simulation, pace, steps=1)
    return not_waiting(simulation, server_sgd(), pace)


@pytest.mark.parametrize("value", [-1.0, math.nan])
@pytest.mark.parametrize("wait", [True, False])
def test_a_clock_must_give_times(simulation, value, wait):
    pace = Pace(Given((1.0, 1.0, value, 1.0, 1.0, 1.0)), 1.0)
    words = (
        rf"`clock` must give times of at least 0, got {value}.* for client 2, task 0"
    )
    refuses(words, either, simulation, pace, wait)


class Wrong(Given):
    def ready(self, client, time):
        return self.first.get(client, time)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
@pytest.mark.parametrize("wait", [True, False])
def test_a_clock_must_not_go_backwards(simulation, value, wait):
    pace = Pace(Wrong(first={4: value}), 1.0)
    words = rf"`clock` must let client 4 begin at 0.0 or at a later time, got {value}"
    refuses(words, either, simulation, pace, wait)


def test_who_never_returns_holds_up_those_who_wait(simulation):
    pace = Pace(Given((1.0, 1.0, math.inf, 1.0, 1.0, 1.0)), 4.0)
    *_, r = waiting(simulation, pace, 3, steps=1)
    assert r.state.turns == 0
    assert r.lapse.busy.tolist() == [1.0, 1.0, 12.0, 1.0, 1.0, 1.0]
    *_, r = not_waiting(simulation, server_sgd(), pace, 3)
    assert r.lapse.tasks.tolist() == [12, 12, 0, 12, 12, 12]
    assert r.lapse.idle.tolist() == [0.0] * 6


def test_what_takes_no_time_is_refused_and_not_for_ever(simulation):
    @dataclass
    class State:
        x: torch.Tensor

    asks_nothing = Algorithm(
        lambda x, oracle: State(x), lambda state, oracle, rng: (state, {})
    )
    flow = Flow(
        State,
        lambda state, client, time: Task((state.x[client],), work=0),
        lambda state, now: now.clients,
        lambda state: state.x,
    )
    no_work = Algorithm(flow=flow)
    pace = Pace(clock("constant(1)"), 1.0)
    with pytest.raises(InputError, match="must take time, but at 0 virtual seconds"):
        list(run_waiting(asks_nothing, simulation, start(), pace=pace, rounds=1))
    with pytest.raises(InputError, match="must take time, but at 0 virtual seconds"):
        not_waiting(simulation, no_work, pace)
