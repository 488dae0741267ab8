"""What a method may ask whose questions depend on answers: the most, over scenarios.

A method that chooses by losses asks more where it tries something, and how often that
is nobody knows before. So it is run without data several times, with other losses, and
every round is planned as the dearest that was seen: the first round, which may be
special, by itself, and later ones of those who take part and of the others. A run that
asks for more ends; one that asks for less spends less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from jaxtyping import Bool
from torch import Tensor

SCENARIOS, _ROUNDS = 8, 16
"""How often a method is run, and for how many rounds: enough for what it may try, also
in a run of fewer."""

Cost = TypeVar("Cost")


def scenario_rounds(actives: Sequence[Bool[Tensor, " n"]]) -> list[Bool[Tensor, " n"]]:
    """Who takes part in each round of a scenario: as in the run, and then again."""
    return [actives[t % len(actives)] for t in range(_ROUNDS)]


def largest_costs(
    scenarios: Sequence[Sequence[Sequence[Cost]]],
    actives: Sequence[Bool[Tensor, " n"]],
    larger: Callable[[Cost, Cost], Cost],
    nothing: Cost,
) -> list[list[Cost]]:
    """What the beginning and each round may cost each client.

    Args:
        scenarios: of each the costs of the beginning and the rounds `scenario_rounds`.
        actives: who takes part in each round of the run.
        larger: of two costs.
        nothing: no cost.
    """
    n, tried = len(actives[0]), scenario_rounds(actives)

    later = range(2, len(tried) + 1)

    def most(rounds: Sequence[int], i: int) -> Cost:
        found = nothing
        for costs in scenarios:
            for t in rounds:
                found = larger(found, costs[t][i])
        return found

    by_client = [
        {
            active: most([t for t in later if bool(tried[t - 1][i]) == active], i)
            for active in (True, False)
        }
        for i in range(n)
    ]
    early = [[most([t], i) for i in range(n)] for t in (0, 1)]
    return early + [
        [by_client[i][bool(active[i])] for i in range(n)] for active in actives[1:]
    ]
