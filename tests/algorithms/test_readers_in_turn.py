"""Adaptive All-for-one without waiting: against rounds, and against plain processes."""

from __future__ import annotations

import heapq
import math
from dataclasses import replace

import pytest
import torch

import coterie as co
from coterie.algorithms.adaptive_all_for_one import adaptive_all_for_one
from coterie.checks import InputError
from coterie.data.datasets import load
from coterie.data.splits import divide
from coterie.engine.clocks import clock
from coterie.engine.events import EventLoop
from coterie.engine.rounds import run_rounds
from coterie.models import build, linear
from support.quadratics import SAMPLES, hessians, quadratics, start
from support.rounds import simulate

REAL = torch.float64
EXACT = {"rtol": 1e-11, "atol": 1e-12}  # sums in another order, in float64
OPTIONS = {"lr": 0.05, "every": 2}


@pytest.mark.parametrize("criterion", ["binary", "continuous"])
@pytest.mark.parametrize("estimator", ["split", "plain"])
@pytest.mark.parametrize("samples", [0, 4])
@pytest.mark.parametrize("rule", ["paper", "normalised"])
def test_where_no_time_passes_it_is_that_of_rounds(criterion, estimator, samples, rule):
    """Also if clients have different numbers of readers."""
    simulation, x = simulate(quadratics(), batch_size=3), start()
    options = {"criterion": criterion, "estimator": estimator, "samples": samples}
    method = adaptive_all_for_one(
        None, rule=rule, late="adaptive", **OPTIONS, **options
    )
    run = EventLoop(method, simulation, x, clock=clock("constant(0)"))
    gradients, sent = torch.zeros(6, dtype=REAL), 0.0
    for r in run_rounds(method, simulation, x, rounds=5):  # comparing in three
        while min(run.state.turns) < r.t:
            run.step()
        torch.testing.assert_close(run.personal(), r.state.x, **EXACT)
        torch.testing.assert_close(run.state.alpha, r.info["weights"], **EXACT)
        gradients, sent = gradients + r.gradients, sent + r.traffic.total
        assert torch.equal(run.gradients, gradients)
        # All begin with readers of their own, who send nothing.
        assert run.sent == (0, sent)
    readers = (run.state.alpha > 0).sum(0).tolist()
    assert 1 < max(readers)


def test_plain_weights_are_those_of_equation_1_at_any_pace():
    """Steps have length 0; some clients have an odd number of samples."""
    federation, x = quadratics(), start()
    a, b = hessians(federation)
    g = torch.einsum("kde,ie->ikd", a, x) - b  # of client k at the model of i
    own = g[range(6), range(6)]
    ratio = 1 - (own[:, None] - g).square().sum(2) / own.square().sum(1)[:, None]
    ratio = ratio.clamp(min=0)
    sizes = SAMPLES.double()
    expected = sizes * ratio / (sizes * ratio**2).sum(1, keepdim=True)
    method = adaptive_all_for_one(
        sizes,
        estimator="plain",
        criterion="continuous",
        memory=0.0,
        confidence=0.0,
        every=2,
        lr=1e-30,
    )
    paces = clock("lognormal(1, 0.4)", speeds=[1, 1.5, 1, 1, 2, 1])
    for seed in range(2):
        simulation = simulate(federation, batch_size=3)
        simulation.seed = seed
        run = EventLoop(method, simulation, x, clock=paces)
        for _ in run.until(60.0):  # all have been compared at 50
            pass
        torch.testing.assert_close(run.state.alpha, expected, **EXACT)
    assert int((ratio > 0.01).sum()) > 8  # some others than oneself


def twins(clients: int = 6, size: int = 30, groups: int = 2) -> co.Simulation:
    """Groups of equally many clients, far from each other, with equal amounts."""
    table = load("linear", clients=clients, clusters=groups, samples=size, noise=0.1)
    module = build(lambda: linear((10,), 1, bias=False), 0)
    federation = divide(table, "natural", seed=0)
    return co.Simulation(federation, module, batch_size=4, dtype=REAL)


def half_gradients(simulation, k, t, point, samples):
    """The half-gradients of client k in round t at a point, asked alone."""
    stream = co.seeds.key(simulation.seed, "step", t, "compare", 0)
    first, second, _ = simulation.samples.halves(torch.tensor([k]), stream, samples)
    grad = simulation.kernel.grad
    return grad(point[None], first)[0], grad(point[None], second)[0]


class Plain:
    """Every client as a process, which yields how long it takes."""

    def __init__(self, simulation, x, paces, *, lr, every, lam, samples):
        n = len(x)
        self.simulation, self.paces = simulation, paces
        self.lr, self.every, self.lam, self.samples = lr, every, lam, samples
        self.x = x.clone()
        self.shown, self.scores = {}, [{} for _ in range(n)]
        self.alpha, self.turns = torch.eye(n, dtype=REAL), [0] * n
        self.answers, self.order = 0, 0

    def client(self, k):
        n = len(self.x)
        others = [(k + j) % n for j in range(1, n)]
        size = int(self.simulation.federation.train.size[k])
        used = min(size, self.samples) / self.simulation.batch_size
        while True:
            t = self.turns[k] + 1
            if self.turns[k] % self.every == 0:
                at = self.x[k].clone()
                mine = half_gradients(self.simulation, k, t, at, self.samples)
                yield used
                self.shown[k] = at, *mine
                self.scores[k][k] = float(mine[0] @ mine[1])
                for i in [i for i in others if i in self.shown]:
                    at, a, b = self.shown[i]
                    c, d = half_gradients(self.simulation, k, t, at, self.samples)
                    distance = float((a - c) @ (b - d))
                    yield used
                    self.scores[i][k] = distance
                for reader in range(n):
                    self.learn(reader)
            for i in [i for i in [k, *others] if self.alpha[i, k] > 0]:
                if self.alpha[i, k] == 0:
                    continue
                g, began = self.gradient(k, t, self.x[i]), self.answers
                yield 1.0
                late = min(1.0, n / (self.answers - began))
                self.x[i] -= self.lr * late * float(self.alpha[i, k]) * g
            self.turns[k] += 1

    def gradient(self, k, t, point):
        """By the oracle's blend with a weight for one pair."""
        points = point.repeat(len(self.x), 1)
        weights = torch.zeros(len(self.x), len(self.x), dtype=REAL)
        weights[0, k] = 1
        return self.simulation.at(t).blended(points, weights)[0]

    def learn(self, k):
        """Equal precisions; without memory the newest ratio counts."""
        found = self.scores[k]
        if not found.keys() - {k}:
            return
        self.own[k] = found.get(k, self.own[k])
        own = self.own[k]
        for i, distance in found.items():
            if i != k:
                ratio = max(0.0, 1 - distance / own) if own > 0 else 0.0
                self.ratios[k, i] = min(1.0, ratio)
        trusted = (self.ratios[k] >= self.lam).double()
        self.alpha[k] = trusted / trusted.sum()
        self.scores[k] = {}

    def run(self, until):
        n = len(self.x)
        self.ratios, self.own = torch.eye(n, dtype=REAL), [0.0] * n
        processes, queue, numbers = [self.client(k) for k in range(n)], [], [0] * n

        def ask(k, time):
            work = next(processes[k])
            name, number = torch.tensor([k]), torch.tensor([numbers[k]])
            gradients = int(work)  # which is a whole number here
            length = float(self.paces.durations(name, number, gradients).sum())
            numbers[k] += gradients
            heapq.heappush(queue, (time + length, k))

        for k in range(n):
            ask(k, 0.0)
        while queue[0][0] <= until:
            time, k = heapq.heappop(queue)
            self.answers += 1
            ask(k, time)


def test_at_any_pace_clients_are_independent_processes():
    simulation = twins()
    x = torch.zeros(6, 10, dtype=REAL)
    paces = clock("lognormal(1, 0.4)", speeds=[1, 2, 1.5, 3, 1, 5], seed=3)
    options = {"lr": 0.01, "every": 3, "lam": 0.2, "samples": 12}
    plain = Plain(simulation, x, paces, **options)
    plain.run(150.0)
    method = adaptive_all_for_one(
        torch.ones(6, dtype=REAL),
        memory=0.0,
        confidence=0.0,
        rule="normalised",
        late="adaptive",
        **options,
    )
    run = EventLoop(method, simulation, x, clock=paces)
    for _ in run.until(150.0):
        pass
    assert run.updates == plain.answers > 250
    assert run.state.turns == plain.turns
    assert min(plain.turns) >= options["every"]  # then the slowest compares again
    torch.testing.assert_close(run.state.alpha, plain.alpha, **EXACT)
    torch.testing.assert_close(run.personal(), plain.x, rtol=1e-9, atol=1e-10)


def test_a_slow_client_slows_nobody_and_groups_are_found():
    simulation = twins(8, 200)
    federation = simulation.federation
    x = torch.zeros(8, 10, dtype=REAL)
    # A small step: one wrong comparison, on another processor, must not matter.
    options = {"lr": 0.05, "every": 20, "samples": 20}
    method = adaptive_all_for_one(None, **options)
    ended = []
    for slow in (1.0, 1000.0):
        paces = clock("lognormal(1, 0.2)", speeds=[slow, *[1.0] * 7], seed=1)
        run = EventLoop(method, simulation, x, clock=paces)
        for _ in run.until(300.0):
            pass
        ended.append(run.state.turns)
    assert min(ended[1][1:]) >= 0.9 * min(ended[0][1:])
    same = federation.clusters[:, None] == federation.clusters
    fast = torch.arange(8) > 0
    found = run.state.alpha[fast][:, fast] > 0
    assert bool((found == same[fast][:, fast]).double().mean() > 0.9)
    wrong = (run.personal() - federation.optima).square().sum(1)[fast]
    # A pair that was compared wrongly last costs its two readers much, not the others.
    assert float(wrong.sort().values[4]) < 0.1
    assert not math.isnan(float(run.personal().sum()))


def test_a_newcomer_gets_the_mean_of_its_best_fits_partners():
    simulation = twins()
    x = torch.zeros(6, 10, dtype=REAL)
    method = adaptive_all_for_one(None, lr=0.05, samples=8)
    run = EventLoop(method, simulation, x, clock=clock("constant(1)"))
    for _ in run.until(30.0):
        pass
    rows = method.flow.welcome(run.state, simulation.at(1, purpose="welcome"))
    losses = torch.stack(
        [simulation.evaluate(row.repeat(6, 1), "train")["loss"] for row in run.state.x]
    )
    for row, best in zip(rows, losses.argmin(0).tolist(), strict=True):
        alpha = run.state.alpha[best]
        torch.testing.assert_close(row, alpha @ run.state.x / alpha.sum(), **EXACT)


def test_a_single_sample_cannot_be_compared():
    federation = quadratics()
    size = federation.train.size.clone()
    size[3] = 1
    few = replace(federation, train=federation.train._replace(size=size))
    method = adaptive_all_for_one(None)
    run = EventLoop(method, simulate(few, 3), start(), clock=clock("constant(1)"))
    with pytest.raises(InputError, match=r"two training samples .* client 3 has one"):
        run.step()


@pytest.mark.parametrize(
    "options",
    [{"steps": 2}, {"momentum": 0.5}, {"weight_decay": 0.1}, {"schedule": "cosine(9)"}],
)
def test_options_of_rounds_are_refused_in_time(options):
    (name,) = options
    method = adaptive_all_for_one(None, **options)
    with pytest.raises(InputError, match=f"`{name}` is for rounds"):
        EventLoop(method, simulate(quadratics()), start(), clock=clock("constant(1)"))
