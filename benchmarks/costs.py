"""Gradients and numbers sent of every method, as multiples of those of FedAvg.

    python benchmarks/costs.py [METHOD ...]

Twenty clients in two groups train an MLP of 12,000 parameters for 20 rounds, with
minibatches of 8 samples. All take part. Methods that have local steps take 10 in a
round; other options have their defaults. Gradients are of single samples, as in
`rounds.csv`, and numbers are all that clients and the server send. Methods that need
virtual time have no rounds and are left out.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import torch
from methods import made

from coterie import Simulation, Table, federate, methods
from coterie.engine.rounds import init_oracle
from coterie.models import build, layout, mlp, ravel
from coterie.seeds import generator
from coterie.study.ingredients import Context
from coterie.types import traffic_of

CLIENTS, TRAIN, HELD_OUT, ROUNDS = 20, 50, 12, 20
FEATURES, HIDDEN, CLASSES = 25, [128, 64], 10


class Cost(NamedTuple):
    """What all rounds of a method cost together."""

    gradients: float
    numbers: float


class Clients:
    """The clients that all methods share: two groups, each with a rule of its own."""

    def __init__(self) -> None:
        rng = torch.Generator().manual_seed(0)
        owner = torch.arange(CLIENTS * (TRAIN + HELD_OUT + 1)) % CLIENTS
        features = torch.randn(len(owner), FEATURES, generator=rng)
        rules = torch.randn(2, FEATURES, CLASSES, generator=rng)
        labels = [(features @ rule).argmax(1) for rule in rules]
        targets = torch.where(owner % 2 == 0, *labels)
        place = torch.arange(len(owner)) // CLIENTS
        role = (place >= TRAIN).long() + (place >= TRAIN + HELD_OUT)
        table = Table("groups", features, targets, "classification", CLASSES)
        data = federate(table, owner, role)
        clusters = torch.arange(CLIENTS) % 2
        data = type(data)(**{**vars(data), "clusters": clusters})
        module = build(lambda: mlp((FEATURES,), CLASSES, hidden=HIDDEN), 0)
        self.simulation = Simulation(data, module, batch_size=8)
        self.context = Context(data, layout(module), 0)
        self.x = ravel(module).repeat(CLIENTS, 1)


def cost_of(name: str, clients: Clients) -> Cost | None:
    """The cost of a method, or None if it has no rounds."""
    algorithm = made(name, clients.context)
    if "rounds" not in algorithm.faces:
        return None
    state = algorithm.init(clients.x, init_oracle(clients.simulation))
    gradients = numbers = 0.0
    for t in range(1, ROUNDS + 1):
        oracle = clients.simulation.at(t)
        state, _ = algorithm.step(state, oracle, generator(0, "algorithm", t))
        gradients += float(oracle.gradients.sum())
        numbers += traffic_of(oracle.sent).total
    return Cost(gradients, numbers)


def main() -> None:
    """Prints a row for every method."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("methods", nargs="*", default=dir(methods))
    clients = Clients()
    one = cost_of("fedavg", clients)
    assert one is not None
    print(f"{'times FedAvg':26}{'gradients':>10}{'numbers':>10}")
    for name in parser.parse_args().methods:
        if found := cost_of(name, clients):
            ratios = (a / b for a, b in zip(found, one, strict=True))
            print(f"{name:26}" + "".join(f"{r:10.2f}" for r in ratios), flush=True)


if __name__ == "__main__":
    main()
