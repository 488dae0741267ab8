"""How often each client will answer with [time], found in advance without data.

Clocks, links and walks do not depend on data. So random answers come as often as true
answers, and at the same times.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from .... import seeds
from ....engine.periods import run_without_waiting
from ....privacy.accounting.calibration import Limits
from ....privacy.mechanisms import Mechanism, make_private_in_time
from ....privacy.mechanisms.dry_run.doubles import DoubleClients, small_stage
from ....types import Algorithm, ClientsInTime
from ...paces import pace_of
from ...setup import Setup


class _Doubles:
    """Clients without data that take as long as these; see `types.ClientsInTime`."""

    def __init__(self, clients: ClientsInTime) -> None:
        self.names, self.sizes = clients.names, clients.sizes
        self.batch_counts, self._clients = clients.batch_counts, len(clients)

    def __len__(self) -> int:
        return self._clients

    def task_clients(
        self, who: Int[Tensor, " m"], rounds: Sequence[int], *, verb: str = "grads"
    ) -> DoubleClients:
        """These clients, with random answers."""
        return DoubleClients(seeds.generator("privacy", "time", *rounds), who)

    def width(self, clients: int) -> int:
        """The number of clients to ask."""
        return clients


def answers_of(setup: Setup, method: Algorithm, label: str) -> Float64[Tensor, " n"]:
    """How many answers with noise each client will give until the end."""
    return answers_until(setup, method, label)[-1]


def answers_until(
    setup: Setup, method: Algorithm, label: str
) -> list[Float64[Tensor, " n"]]:
    """How many answers with noise each client will give until the end of each round."""
    n = len(setup.federation)
    unit = Mechanism(0.5, 1.0)  # every release of it costs 1
    counted = make_private_in_time(
        method, unit, torch.arange(n), label=label, limits=Limits()
    )
    rounds = run_without_waiting(
        counted,
        _Doubles(setup.simulation),
        small_stage(n, False).start,
        pace=pace_of(setup, method),
        rounds=setup.study.run.rounds,
        seed=setup.seed,
    )
    nothing = torch.zeros(n, dtype=torch.float64)
    return [nothing, *(r.state.state.spent.clone() for r in rounds)]
