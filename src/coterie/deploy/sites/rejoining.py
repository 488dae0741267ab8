"""A member that was away for longer than the log of the hub takes part again.

The answers of the oldest steps are gone, so the member cannot do them as an absent one.
In most methods that does not matter: an absent client keeps what is its own, and what
all share is replaced in the next round. `SiteRun` computes whether this holds. It puts
two different sets of random numbers in the place of the answers that are gone, with
other members present. If the state after the first step with answers does not depend on
them, it is the state that the member would have with all answers.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ... import seeds
from ...checks import InputError
from ...clients.simulation import Simulation
from ...engine.rounds import init_oracle
from ...types import Algorithm, State
from .comparing import mask
from .link import BlankGroup


class RandomGroup:
    """The members of a group whose rows nobody knows any more: random numbers."""

    def __init__(self, blank: BlankGroup, which: int) -> None:
        """Replaces a group; `which` names the draw."""
        self.rank, self.size, self.sizes = blank.rank, blank.size, blank.sizes
        self._rng, self._blank = seeds.generator(which, "forgotten"), blank

    def _random(self, like: Tensor) -> Tensor:
        drawn = torch.rand(like.shape, generator=self._rng, dtype=torch.float64) + 0.5
        return drawn.to(like)

    def sum(self, values: Tensor) -> Tensor:
        """Random numbers."""
        return self._random(values)

    def join(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """Random rows."""
        return torch.cat(self.exchange([rows] * self.size, counts))

    def exchange(self, parts: Sequence[Tensor], counts: Sequence[int]) -> list[Tensor]:
        """Random rows, and this member's own part."""
        found = [self._random(rows) for rows in self._blank.exchange(parts, counts)]
        found[self.rank] = parts[self.rank]
        return found

    def collect(
        self, rows: Sequence[Tensor], counts: Sequence[int]
    ) -> Sequence[Tensor] | None:
        """Never anything: what a coordinator remembers cannot be left out."""
        raise InputError("a coordinator takes part in every round.")

    def hand_out(
        self, rows: Sequence[Tensor] | str | None, counts: Sequence[int]
    ) -> Sequence[Tensor]:
        """Never anything, as in `collect`."""
        raise InputError("a coordinator takes part in every round.")

    def gather(self, value: Any) -> list[Any]:
        """The value of this member, for all."""
        return [value] * self.size


def state_without_answers(
    algorithm: Algorithm,
    simulation: Simulation,
    blank: BlankGroup,
    state: State | None,
    rounds: range,
    seed: int,
    which: int,
    *,
    x: Tensor,
    epochs: bool,
) -> State:
    """The state after rounds in which this member was absent, without their answers.

    Args:
        algorithm: the method.
        simulation: of the site's client.
        blank: the members.
        state: before the rounds; None: the method has not begun.
        rounds: that are missing.
        seed: of the study.
        which: names the random numbers, and who is present.
        x: the first model.
        epochs: whether the method counts in epochs.
    """
    asked = copy.copy(simulation)
    asked.group = RandomGroup(blank, which)
    clients: Any = asked.in_epochs() if epochs else asked
    others = [rank for rank in range(blank.size) if rank != blank.rank]
    present = mask(others if which else others[:1], blank.size)
    if state is None:
        state = algorithm.init(x.clone(), init_oracle(clients))
    for t in rounds:
        rng = seeds.generator(seed, "algorithm", t)
        state, _ = algorithm.step(state, clients.at(t, present), rng)
    return state
