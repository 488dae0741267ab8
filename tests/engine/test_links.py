"""Messages between clients: gossip that arrives late, tokens, and what is counted."""

from __future__ import annotations

import io
from dataclasses import dataclass

import pytest
import torch

from coterie import seeds
from coterie.algorithms.all_for_all import all_for_all
from coterie.algorithms.ditto import ditto
from coterie.algorithms.server_sgd import server_sgd
from coterie.checks import InputError
from coterie.engine import Delays, EventLoop, Rings, clock
from coterie.records import pack, unpack
from coterie.types import Algorithm, Flow, Task, TaskKind
from support.paces import EXACT, UNEVEN, question
from support.quadratics import REAL, SAMPLES, D, hessians, quadratics, start
from support.refusals import refuses

EDGES = torch.tensor([[0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [5, 0], [1, 4]])
RATES = torch.tensor([1.0, 0.5, 2.0, 0.7, 1.5, 0.3, 0.9], dtype=REAL)
RINGS = Rings(EDGES, RATES, seed=2)
TRAVEL = [0.3, 1.7, 0.2, 0.9, 2.5, 0.4, 1.1]  # seconds, of each edge


class ByEdge:
    """Links of which each has a time of its own."""

    def delays(self, edges, first, count):
        pairs = {frozenset(edge): j for j, edge in enumerate(EDGES.tolist())}
        rows = [TRAVEL[pairs[frozenset(edge)]] for edge in edges.tolist()]
        return torch.tensor(rows, dtype=REAL)[:, None].repeat(1, count)

    def relay_delays(self, clients, first, count):
        raise AssertionError("nothing goes by way of a server.")


@dataclass
class Models:
    x: torch.Tensor  # (N, D)


def no_task(state, client, time):
    raise AssertionError("nobody computes.")


def gossip(step, seen=None):
    """Two ends move towards what the other one was: x_v <- x_v - step (v - w)."""

    def meet(state, now):
        v, w = now.ends
        change = step * (now.sent[0] - now.sent[1])
        state.x[v] -= change
        state.x[w] += change
        if seen is not None:
            seen.append((now.time, now.since, now.ends))

    flow = Flow(
        lambda x: Models(x.clone()),
        no_task,
        lambda state, now: [],
        lambda state: state.x,
        starts=(),
        send=lambda state, client, time: state.x[client],
        meet=meet,
        edges=EDGES,
        messages="direct",
    )
    return Algorithm(flow=flow)


class Skewed:
    """Every fourth duration is ten times as long: their mean is not their median."""

    def __init__(self, lengths):
        self.lengths = lengths

    def durations(self, clients, first, count):
        number = first[:, None] + torch.arange(count)
        long = torch.where(number % 4 == 0, 10.0, 1.0).to(REAL)
        return torch.tensor(self.lengths, dtype=REAL)[clients][:, None] * long

    def delays(self, edges, first, count):
        pairs = {frozenset(edge): j for j, edge in enumerate(EDGES.tolist())}
        rows = torch.tensor([pairs[frozenset(edge)] for edge in edges.tolist()])
        return self.durations(rows, first, count) / 100

    def relay_delays(self, clients, first, count):
        raise AssertionError("nothing goes by way of a server.")

    def ready(self, client, time):
        return time


def test_flows_learn_the_mean_times_of_tasks_and_messages(simulation):
    """(10 + 1 + 1 + 1) / 4 = 3.25; a client that never ends is as slow as the slowest.

    A task of two passes has two gradients for each minibatch of the client.
    """
    seconds, seen = (1.0, 2.0, 3.0, 4.0, 5.0, float("inf")), []
    flow = gossip(0.5).flow._replace(ringing=lambda state, tempo: seen.append(tempo))
    for kind in (TaskKind(), TaskKind(passes=2)):
        EventLoop(
            Algorithm(flow=flow._replace(kinds=(kind,))),
            simulation,
            start(),
            clock=Skewed(seconds),
            rings=RINGS,
            links=Skewed(TRAVEL),
        )
    one, whole = seen
    mean = torch.tensor([*seconds[:5], 5.0], dtype=REAL) * 13 / 4
    assert torch.equal(one.edges, EDGES) and torch.equal(one.rates, RATES)
    torch.testing.assert_close(one.lengths, mean)
    travel = torch.tensor(TRAVEL, dtype=REAL) / 100 * 13 / 4
    torch.testing.assert_close(one.delays, travel)
    passes = 2 * simulation.sizes / simulation.batch_counts
    torch.testing.assert_close(whole.lengths, mean * passes)


def rung(until):
    """All rings up to a time: when, and which edge."""
    found = RINGS.until(until)
    return list(zip(found.times.tolist(), found.which.tolist(), strict=True))


def read_and_written(x, step, until, travel):
    """Algorithm 4.1 with every reading and every writing in the order of time."""
    happens = []
    for number, (time, edge) in enumerate(rung(until)):
        happens += [(time, 0, number, edge), (time + travel[edge], 1, number, edge)]
    x, read = x.clone(), {}
    for time, writes, number, edge in sorted(happens):
        v, w = EDGES[edge].tolist()
        if not writes:
            read[number] = x[v].clone(), x[w].clone()
        elif time <= until:
            change = step * (read[number][0] - read[number][1])
            x[v], x[w] = x[v] - change, x[w] + change
    return x


@pytest.mark.parametrize("until", [0.5, 5.0, 20.0])
def test_late_gossip_writes_what_was_read_before(simulation, until):
    x, seen = start(), []
    method = gossip(0.3, seen)
    run = EventLoop(method, simulation, x, clock=UNEVEN, rings=RINGS, links=ByEdge())
    assert list(run.until(until)) == []
    expected = read_and_written(x, 0.3, until, TRAVEL)
    torch.testing.assert_close(run.personal(), expected, **EXACT)
    torch.testing.assert_close(run.personal().mean(0), x.mean(0), **EXACT)
    # Both ends send their model whenever their edge rings.
    assert run.sent == (0, 2 * D * len(rung(until)))
    for time, since, ends in seen:
        edge = EDGES.tolist().index(list(ends))
        assert time == pytest.approx(since + TRAVEL[edge], rel=1e-12)


def test_gossip_without_links_is_written_when_it_is_read(simulation):
    x = start()
    run = EventLoop(gossip(0.5), simulation, x, clock=UNEVEN, rings=RINGS)
    list(run.until(8.0))
    for _, edge in rung(8.0):
        pair = EDGES[edge]
        x[pair] = x[pair].mean(0)
    torch.testing.assert_close(run.personal(), x, **EXACT)


def in_a_file(moment, like):
    file = io.BytesIO()
    torch.save(pack(moment), file)
    file.seek(0)
    return unpack(torch.load(file, weights_only=True), like)


def test_what_travels_survives_a_file(simulation):
    x, options = start(), {"clock": UNEVEN, "rings": RINGS, "links": ByEdge()}
    whole = EventLoop(gossip(0.3), simulation, x, **options)
    list(whole.until(4.0))
    assert len(whole.moment().letters) > 2
    like = EventLoop(gossip(0.3), simulation, x, **options).moment()
    kept = in_a_file(whole.moment(), like)
    rest = EventLoop(gossip(0.3), simulation, x, **options, start=kept)
    for run in (whole, rest):
        list(run.until(12.0))
    assert torch.equal(whole.personal(), rest.personal())
    assert whole.sent == rest.sent


@dataclass
class Accelerated:
    x: torch.Tensor  # (N, D)
    z: torch.Tensor  # (N, D)
    at: torch.Tensor  # (N,) the time of each


def mixed(x, z, seconds, eta):
    """x' = eta (z - x), z' = eta (x - z), exactly."""
    e = torch.as_tensor(seconds, dtype=REAL).mul(-2 * eta).exp()[..., None]
    mean, half = (x + z) / 2, (x - z) / 2 * e
    return mean + half, mean - half


def test_meetings_know_their_time(simulation):
    """Accelerated gossip: nodes mix when they meet, or all of them all the time."""
    eta, step, x = 0.3, 0.8, start()

    def send(state, client, time):
        here = state.x[client], state.z[client]
        there = mixed(*here, time - state.at[client], eta)
        state.x[client], state.z[client] = there
        state.at[client] = time
        return state.x[client]

    def meet(state, now):
        (v, w), (a, b) = now.ends, now.sent
        assert now.time == now.since == float(state.at[v])
        state.x[v] = state.x[w] = (a + b) / 2
        state.z[v] += step * (b - a)
        state.z[w] -= step * (b - a)

    flow = gossip(0.5).flow._replace(
        init=lambda x: Accelerated(x.clone(), x.clone(), torch.zeros(6, dtype=REAL)),
        send=send,
        meet=meet,
    )
    run = EventLoop(Algorithm(flow=flow), simulation, x, clock=UNEVEN, rings=RINGS)
    list(run.until(6.0))
    z, last = x.clone(), 0.0
    for time, edge in rung(6.0):
        x, z = mixed(x, z, time - last, eta)
        (v, w), last = EDGES[edge].tolist(), time
        away = x[w] - x[v]
        x[v], x[w] = x[v] + away / 2, x[w] - away / 2
        z[v], z[w] = z[v] + step * away, z[w] - step * away
    x, z = mixed(x, z, 6.0 - last, eta)
    state = run.state
    found = mixed(state.x, state.z, 6.0 - state.at, eta)
    torch.testing.assert_close(found[0], x, **EXACT)
    torch.testing.assert_close(found[1], z, **EXACT)


@dataclass
class Token:
    x: torch.Tensor  # (D,)
    at: int  # who has it
    to: int  # who gets it


def walk(following, first=0, lr=0.1):
    """SGD of one model that goes from client to client."""

    def arrive(state, now):
        state.x -= lr * now.answers[0][0]
        state.at, state.to = now.clients[0], following(now)
        return [state.to]

    flow = Flow(
        lambda x: Token(x.mean(0), first, first),
        lambda state, client, time: Task((state.x,), peer=state.at),
        arrive,
        lambda state: state.x.repeat(6, 1),
        kinds=(TaskKind(up=()),),  # the model stays where it was computed
        starts=(first,),
        messages="direct",
    )
    return Algorithm(flow=flow)


def around(now):
    return (now.clients[0] + 1) % 6


def test_a_token_walks_on_a_ring(simulation):
    """One client computes at a time; message number c of an edge is that of lap c."""
    links, x = Delays("exponential(0.5)", seed=3), start()
    run = EventLoop(walk(around), simulation, x, clock=UNEVEN, links=links)
    model, time, at = x.mean(0), 0.0, 0
    ring = torch.tensor([[i, (i + 1) % 6] for i in range(6)])
    none = torch.zeros(6, dtype=torch.long)
    travels = links.delays(ring, none, 4).tolist()
    takes = UNEVEN.durations(torch.arange(6), none, 4).tolist()
    for visit in range(20):
        lap = visit // 6
        time += takes[at][lap]
        model = model - 0.1 * question(simulation, at, lap + 1, model)
        event = run.step()
        assert (event.clients, event.delays) == ([at], [1])
        assert event.time == pytest.approx(time, rel=1e-12)
        torch.testing.assert_close(event.state.x, model, **EXACT)
        # The model has gone on to the next one already.
        assert run.sent == (0, D * (visit + 1))
        time += travels[at][lap]
        at = (at + 1) % 6
    assert run.tasks == [4, 4, 3, 3, 3, 3]
    busy = [sum(takes[i][: run.tasks[i]]) for i in range(6)]
    assert run.idle == pytest.approx([run.time - b for b in busy], rel=1e-12)


def lazy(now):
    """Stays, or goes on in the ring, with equal chances."""
    stays = int(torch.randint(2, (1,), generator=now.generator()))
    return now.clients[0] if stays else around(now)


def test_a_token_that_stays_sends_nothing_and_loses_no_time(simulation):
    x, links = start(), Delays("constant(10)")
    run = EventLoop(walk(lazy, 2), simulation, x, clock=UNEVEN, links=links, seed=4)
    time, at, hops, visits = 0.0, 2, 0, [0] * 6
    for k in range(30):
        who, number = torch.tensor([at]), torch.tensor([visits[at]])
        time += float(UNEVEN.durations(who, number, 1))
        visits[at] += 1
        event = run.step()
        assert event.clients == [at]
        assert event.time == pytest.approx(time, rel=1e-12)
        rng = seeds.generator(4, "events", k)
        if not int(torch.randint(2, (1,), generator=rng)):
            at, time, hops = (at + 1) % 6, time + 10, hops + 1
    assert 5 < hops < 25
    assert run.sent == (0, hops * D)


def test_a_token_under_way_survives_a_file(simulation):
    x, links = start(), Delays("exponential(2)", seed=1)
    options = {"clock": UNEVEN, "links": links, "seed": 4}
    whole = EventLoop(walk(lazy), simulation, x, **options)
    for _ in range(9):
        whole.step()
    like = EventLoop(walk(lazy), simulation, x, **options).moment()
    kept = in_a_file(whole.moment(), like)
    rest = EventLoop(walk(lazy), simulation, x, **options, start=kept)
    for _ in range(20):
        assert whole.step()[:4] == rest.step()[:4]
    assert torch.equal(whole.personal(), rest.personal())
    assert whole.sent == rest.sent


class Formulas:
    """Clients without data: the gradient of client i is A_i x - b_i."""

    def __init__(self):
        self.a, self.b = hessians(quadratics())
        self.names = torch.tensor([7, 3, 9, 1, 0, 4])
        self.batch_counts = self.sizes = torch.ones(6, dtype=REAL)

    def __len__(self):
        return 6

    def width(self, clients):
        return clients

    def task_clients(self, who, rounds, *, verb="grads"):
        return Answering(self.a[who], self.b[who])


@dataclass
class Answering:
    a: torch.Tensor
    b: torch.Tensor

    def grad(self, points):
        return torch.einsum("nde,ne->nd", self.a, points) - self.b

    def loss(self, points):
        raise NotImplementedError

    losses = hvp = same_batch = whole = validation = loss
    evaluate = class_counts = stream = loss


def test_whoever_answers_can_be_asked():
    clients, x = Formulas(), start()
    paces = clock("constant(1)", speeds=[1.0] * 10)
    speeds = torch.tensor([1.0, 1.1, 1.3, 1.7, 2.3, 3.1], dtype=REAL)

    class Unequal:
        def durations(self, names, first, count):
            places = [clients.names.tolist().index(name) for name in names.tolist()]
            return speeds[places][:, None].repeat(1, count)

        ready = staticmethod(paces.ready)

    run = EventLoop(server_sgd(lr=0.05), clients, x, clock=Unequal())
    model, began = x.mean(0), [x.mean(0)] * 6
    ends = speeds.tolist()
    for _ in range(40):
        i = min(range(6), key=ends.__getitem__)
        model = model - 0.05 * (clients.a[i] @ began[i] - clients.b[i])
        event = run.step()
        assert event.clients == [i]
        torch.testing.assert_close(event.state.x, model, **EXACT)
        began[i], ends[i] = model, ends[i] + float(speeds[i])


def test_personal_models_stay_at_home_and_gradients_go_to_partners(simulation):
    """Ditto sends w there and back; All-for-all a gradient to those who share."""
    x = start()
    run = EventLoop(ditto(SAMPLES), simulation, x, clock=UNEVEN)
    for _ in range(10):
        run.step()
    assert run.sent == ((6 + 2 * 10) * D, 0)
    pairs = torch.block_diag(*[torch.full((2, 2), 0.5, dtype=REAL)] * 3)
    run = EventLoop(all_for_all(pairs), simulation, x, clock=UNEVEN)
    for _ in range(10):
        run.step()
    assert run.sent == (0, 10 * D)


def test_what_does_not_fit_is_refused(simulation):
    x, options = start(), {"clock": UNEVEN}
    refuses("needs `rings`", EventLoop, gossip(0.5), simulation, x, **options)
    half = Algorithm(flow=gossip(0.5).flow._replace(send=None))
    with pytest.raises(InputError, match="both `send` and `meet`, or neither"):
        EventLoop(half, simulation, x, rings=RINGS, **options)
    nobody = Algorithm(flow=walk(around).flow._replace(starts=(6,)))
    refuses("clients from 0 to 5, got 6", EventLoop, nobody, simulation, x, **options)
    lost = Algorithm(flow=walk(around).flow._replace(messages="pigeons"))
    refuses("`messages` must be one of", EventLoop, lost, simulation, x, **options)
