"""Experiment 7 on chapter 5: FedBuff and asynchronous FedAvg are AGRAF with buffers."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import torch
from torch import Tensor

from coterie.algorithms.agraf import agraf
from coterie.cli import Claim
from coterie.engine.clocks import Clock, clock

from .events import follow
from .problems import LAW, REAL, Problem, same_data


def one_by_one(paces: Clock, nodes: int) -> Iterator[tuple[int, int]]:
    """Who finishes next, and the number of that gradient from 1 on."""
    zero = torch.zeros(nodes, dtype=torch.long)
    times = paces.durations(torch.arange(nodes), zero, 400).cumsum(1).tolist()
    queue = [(own[0], v, 1) for v, own in enumerate(times)]
    heapq.heapify(queue)
    while True:
        _, v, number = heapq.heappop(queue)
        yield v, number
        heapq.heappush(queue, (times[v][number], v, number + 1))


def gradient(problem: Problem, v: int, number: int, point: Tensor) -> Tensor:
    """A node's stochastic gradient of that number, by the oracle of rounds."""
    who = torch.arange(len(problem.simulation)) == v
    points = point.repeat(len(who), 1)
    return problem.simulation.at(number, who).grads(points)[v]


def averaged_buffers(
    problem: Problem, lr: float, buffer: int, order: Iterator[tuple[int, int]], k: int
) -> Tensor:
    """Models of nodes that go on alone, and are averaged after each `buffer` steps."""
    nodes = len(problem.simulation)
    models = [torch.zeros(20, dtype=REAL) for _ in range(nodes)]
    began, held = [model.clone() for model in models], 0
    for _ in range(k):
        v, number = next(order)
        models[v] = models[v] - lr * gradient(problem, v, number, began[v])
        held += 1
        if held == buffer:
            mean = sum(models[1:], models[0]) / nodes
            models, held = [mean.clone() for _ in range(nodes)], 0
        began[v] = models[v].clone()
    return torch.stack(models)


def server_buffers(
    problem: Problem, lr: float, buffer: int, order: Iterator[tuple[int, int]], k: int
) -> list[float]:
    """Gaps of FedBuff: clients begin at the server's model, which moves by buffers.

    The sum of a buffer moves it by lr / n each, as the mean of all nodes moves.
    """
    nodes = len(problem.simulation)
    server, held, gaps = torch.zeros(20, dtype=REAL), torch.zeros(20, dtype=REAL), []
    began = [server.clone() for _ in range(nodes)]
    for j in range(1, k + 1):
        v, number = next(order)
        held = held + gradient(problem, v, number, began[v])
        if j % buffer == 0:
            server, held = server - lr / nodes * held, torch.zeros_like(held)
        began[v] = server.clone()
        gaps.append(problem.gap(server[None]))
    return gaps


def buffer_claims(share: float, seed: int) -> list[Claim]:
    """FedBuff and asynchronous FedAvg are AGRAF with J at every B-th gradient."""
    nodes = 16
    problem = same_data(nodes, seed)
    paces = clock(LAW, speeds=[1.0] * 14 + [10.0, 50.0], seed=seed)
    x, lr = torch.zeros(nodes, 20, dtype=REAL), 0.2 / problem.beta
    mean = torch.full((nodes, nodes), 1 / nodes, dtype=REAL)
    updates, found = max(80, int(1600 * share)), []
    for name, buffer in (("FedBuff, B = 4", 4), ("async FedAvg, H = 5", 5 * nodes)):
        method = agraf(mean, lr=lr, every=buffer)
        run = follow(method, problem.simulation, x, problem.gap, updates, paces=paces)
        models = averaged_buffers(
            problem, lr, buffer, one_by_one(paces, nodes), updates
        )
        off = float((run.state.x - models).abs().max())
        found.append(
            Claim(
                f"7, {name}: largest difference to a loop of its own",
                "0",
                f"{off:.1g}",
                off < 1e-10,
                f"after {updates} gradients; sums in another order",
            )
        )
        if buffer == 4:
            gaps = server_buffers(problem, lr, 4, one_by_one(paces, nodes), updates)
            tail = updates // 4
            theirs = sum(gaps[-tail:]) / tail
            last = run.value[-(tail // nodes) :]  # nodes have just been averaged
            ours = sum(last) / len(last)
            found.append(
                Claim(
                    "7, gap at the end, AGRAF with buffers and FedBuff",
                    "the same up to the order of steps",
                    f"{ours:.2g} and {theirs:.2g}",
                    0.5 <= ours / theirs <= 2,
                    "clients of FedBuff begin at the server's model; "
                    "equal mean steps, a factor of 2 is allowed",
                )
            )
    return found
