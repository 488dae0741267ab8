"""Time and memory of a round of coteries, compared with one of FedAvg.

    python benchmarks/coteries_round.py

There are two cases: 10,000 clients who all take part, and 1,000 of whom 5 % do. Both
methods take their rounds in turn, with the same clients, and the ratio is that of times
in one run. There are two groups of clients, so that coteries goes through its phases. A
contest trains three models, so its ratio cannot be below 3.

Memory is that of live tensors. A storage counts from the operation that makes it until
it is freed. Data, and the state before the round, do not count. All that a round makes
does: new rows of the state, gradients, minibatches and activations. The numbers are
divided by D times the number of clients who take part.
"""

from __future__ import annotations

import argparse
import statistics
import time
import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from coterie import Simulation, Table, federate
from coterie.algorithms import coteries, fedavg
from coterie.engine.rounds import init_oracle, run_rounds
from coterie.models import build, mlp, ravel
from coterie.types import Algorithm

FEATURES, CLASSES = 25, 10
HELD_OUT = 10
PHASES = "rest", "trial", "contest", "pieces"


class Case(NamedTuple):
    """How many clients, which share of them takes part, and for how long."""

    clients: int
    share: float
    rounds: int


CASES = Case(10_000, 1.0, 24), Case(1_000, 0.05, 400)


class LiveTensors(TorchDispatchMode):
    """Counts bytes of the storages that operations make, until they are freed."""

    def __init__(self) -> None:
        """Begins with nothing: what is known already does not count."""
        super().__init__()
        self.now = self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Runs an operation, and counts what it makes."""
        for tensor in tree_leaves((args, kwargs)):
            self._count(tensor, new=False)
        found = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(found):
            self._count(tensor, new=True)
        self.peak = max(self.peak, self.now)
        return found

    def _count(self, tensor: Any, *, new: bool) -> None:
        if not isinstance(tensor, Tensor):
            return
        storage = tensor.untyped_storage()
        name, size = storage._cdata, storage.nbytes() if new else 0
        if name not in self._seen:
            self._seen.add(name)
            self.now += size
            weakref.finalize(storage, self._free, name, size)

    def _free(self, name: int, size: int) -> None:
        self._seen.discard(name)
        self.now -= size


def simulation(case: Case, train: int, hidden: int, seed: int = 0) -> Simulation:
    """Clients of two groups, each with a linear rule of its own."""
    rng = torch.Generator().manual_seed(seed)
    each = train + HELD_OUT + 1
    owner = torch.arange(case.clients * each) % case.clients
    features = torch.randn(len(owner), FEATURES, generator=rng)
    rules = torch.randn(2, FEATURES, CLASSES, generator=rng)
    found = [(features @ rule).argmax(1) for rule in rules]
    targets = torch.where(owner % 2 == 0, *found)
    place = torch.arange(len(owner)) // case.clients
    role = (place >= train).long() + (place >= train + HELD_OUT)
    table = Table("groups", features, targets, "classification", CLASSES)
    module = build(lambda: mlp((FEATURES,), CLASSES, hidden=[hidden]), 0)
    data = federate(table, owner, role)
    return Simulation(data, module, batch_size=8, seed=seed)


class Run:
    """A method on its way, one round after the other."""

    def __init__(self, algorithm: Algorithm, run: Simulation, case: Case) -> None:
        """Before the first round."""
        x = ravel(run.kernel.module).repeat(case.clients, 1)
        self.state = algorithm.init(x, init_oracle(run))
        self._rounds = run_rounds(
            *(algorithm, run, x),
            rounds=case.rounds,
            participation=case.share,
            start=(0, self.state),
            in_place=True,
        )

    def round(self) -> None:
        """The next round."""
        self.state = next(self._rounds).state

    def timed(self) -> float:
        """Seconds of the processor that the next round takes."""
        began = time.process_time()
        self.round()
        return time.process_time() - began

    def measured(self) -> tuple[int, int]:
        """Bytes of live tensors that the next round adds: the most, and at its end."""
        with LiveTensors() as live:
            self.round()
        return live.peak, live.now

    def phase(self) -> str:
        """The phase of coteries, in which the next round begins."""
        return PHASES[self.state.server.clock.phase]


def report(case: Case, train: int, hidden: int) -> None:
    """Times of both methods round by round, and then memory."""
    run = simulation(case, train, hidden)
    sizes, d = run.federation.train.size, len(ravel(run.kernel.module))
    clients = round(case.share * case.clients)
    methods = coteries(sizes, steps=5), fedavg(sizes, steps=5)
    print(
        f"\n{case.clients} clients, {clients} take part, {d} parameters, 5 steps of 8 "
        f"of {train} samples, {HELD_OUT} held out; torch {torch.__version__}, "
        f"{torch.get_num_threads()} thread(s)"
    )
    ours, other = (Run(method, run, case) for method in methods)
    times = []
    for _ in range(case.rounds):
        times.append((ours.phase(), ours.timed(), other.timed()))
    ours, other = (Run(method, run, case) for method in methods)
    memory = []
    for _ in range(case.rounds):
        found = *ours.measured(), *other.measured()
        memory.append([bytes_ / (4 * d * clients) for bytes_ in found])
    for phase in ("all", *PHASES):
        # The first round has much to prepare.
        here = [t for t in range(1, case.rounds) if phase in ("all", times[t][0])]
        if here:
            show(phase, [times[t][1:] for t in here], [memory[t] for t in here])


def show(
    phase: str, times: list[tuple[float, float]], memory: list[list[float]]
) -> None:
    """A line about the rounds of a phase."""
    ours, other = zip(*times, strict=True)
    a, b = (1e3 * statistics.median(some) for some in (ours, other))
    peak, new, peak_b, new_b = max(memory)
    print(
        f"{phase:8} {len(times):4} rounds  median {a:7.1f} ms, FedAvg {b:6.1f} ms, "
        f"ratio {a / b:4.2f}, of sums {sum(ours) / sum(other):4.2f}  peak {peak:6.1f} "
        f"D, {new:6.1f} of it new state; FedAvg {peak_b:5.1f} D, {new_b:5.1f}",
        flush=True,
    )


def main() -> None:
    """Reports on both cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", type=int, default=40, help="samples of a client")
    parser.add_argument("--hidden", type=int, default=20, help="20: 730 parameters")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the first case")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for case in CASES[options.first :]:
        report(case, options.train, options.hidden)


if __name__ == "__main__":
    main()
