"""The table [privacy] of a study."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from ...checks import InputError, integer, number, one_of, suggestion
from ..accounting.calibration import Limits, noise_for_clients
from ..accounting.gaussian import (
    EPSILONS,
    NOISES,
    mu_of,
    refuse_clip,
    refuse_epsilon,
    refuse_noise,
)
from .noise import LEAST_DELTA, SEED, SOURCES, source_of
from .partners import PartnerMechanism
from .per_sample.losses import refuse_loss_clip
from .rows import Mechanism

_PARTNERS = 0.25
"""The share of mu^2 for choosing partners, where none is given."""


@dataclass(frozen=True)
class Privacy:
    """What is promised to clients: for which unit, and with how much noise."""

    clip: float = 1.0  # how far a row may be from its reference, in L2
    noise: float | None = None  # standard deviation of every coordinate, in clips
    epsilon: float | None = None  # instead of noise: what all rounds may cost
    delta: float = 1e-5
    unit: str = "client"  # or sample: what may change without anybody noticing
    aggregation: str = "local"  # or secure: others see only sums of averaged rows
    budget: float | Mapping[str, float] | None = None  # in epsilon, also by client
    noise_source: str = "seed"  # for simulations; or system: secret noise
    loss_clip: float | None = None  # the most that the loss of a sample counts
    partners: float | None = None  # share of mu^2 for choosing partners by data
    colluders: int | None = None  # clients that help the server look into sums

    def __post_init__(self) -> None:
        """Refuses settings that promise nothing."""
        one_of("privacy.unit", self.unit, ("client", "sample"))
        one_of("privacy.aggregation", self.aggregation, ("local", "secure"))
        one_of("privacy.noise_source", self.noise_source, SOURCES)
        if number("privacy.delta", self.delta, above=0, below=1) < LEAST_DELTA:
            raise InputError(
                f"`privacy.delta` must be at least {LEAST_DELTA:g}, got "
                f"{self.delta:g}: our noise is not exact enough to promise less."
            )
        refuse_clip("privacy.clip", self.clip)
        if (self.noise is None) == (self.epsilon is None):
            got = "neither" if self.noise is None else "both"
            raise InputError(
                "[privacy] must have either `noise` or `epsilon`, from which we find "
                f"the noise, got {got}."
            )
        if self.noise is not None:
            refuse_noise("privacy.noise", self.noise)
        if self.epsilon is not None:
            refuse_epsilon("privacy.epsilon", self.epsilon)
        if self.unit == "sample":
            self._refuse_for_samples()
        if self.clip == math.inf and self.noise != 0:
            raise InputError(
                "`privacy.clip` must be finite if there is noise, got inf."
            )
        if self.loss_clip is not None:
            refuse_loss_clip("privacy.loss_clip", self.loss_clip, self.noise)
        if self.partners is not None:
            number("privacy.partners", self.partners, above=0, below=1)
            if self.epsilon is None:
                raise InputError(
                    "`privacy.partners` is a share of `privacy.epsilon`, so it cannot "
                    "be used without it."
                )
        if self.colluders is not None:
            self._refuse_colluders(self.colluders)
        self._refuse_budgets()

    def _refuse_budgets(self) -> None:
        for name, budget in self._budgets().items():
            number(name, budget, above=0, at_most=EPSILONS[1])
            if self.noise == 0:
                raise InputError(
                    f"`{name}` cannot be used when `privacy.noise` is 0, because the "
                    "first round would exceed every budget."
                )

    def _refuse_for_samples(self) -> None:
        if self.aggregation != "local":
            raise InputError(
                "`privacy.aggregation` must be 'local' for the unit sample, got "
                f"{self.aggregation!r}."
            )

    def _refuse_colluders(self, colluders: int) -> None:
        integer("privacy.colluders", colluders, at_least=1)
        if not self.secure:
            raise InputError(
                f"`privacy.colluders` needs `privacy.aggregation` secure, got "
                f"{colluders}: without sums the promise holds against all others "
                "together."
            )

    def _budgets(self) -> dict[str, Any]:
        if self.budget is None:
            return {}
        if not isinstance(self.budget, Mapping):
            return {"privacy.budget": self.budget}
        return {f"privacy.budget.{name}": b for name, b in self.budget.items()}

    def table(self) -> dict[str, Any]:
        """The settings as a table in a file."""
        return {
            name: dict(value) if isinstance(value, Mapping) else value
            for name, value in vars(self).items()
            if value is not None
        }

    @property
    def secure(self) -> bool:
        """Whether others see only sums of averaged rows."""
        return self.aggregation == "secure"

    @property
    def assumed_colluders(self) -> int:
        """The number of clients that we assume to help the server look into sums."""
        return self.colluders or 1

    @property
    def partner_share(self) -> float:
        """The share of mu^2 for choosing partners."""
        return self.partners or _PARTNERS

    def partner_mechanism(
        self, seed: int, secret: bytes | None = None
    ) -> PartnerMechanism:
        """How clients release means for the choice of partners, once.

        Args:
            seed: names the noise.
            secret: the key for secret noise, if the same noise must come again.
        """
        if self.epsilon is not None:
            noise = 1 / (
                math.sqrt(self.partner_share) * mu_of(self.epsilon, self.delta)
            )
        else:
            noise = self.noise or 0.0
            noise = noise / 2 if self.unit == "client" else noise
        if self.noise_source == SEED:
            return PartnerMechanism(self.unit, noise, seed)
        return PartnerMechanism(self.unit, noise, seed, secret or os.urandom(32))

    def mechanism(
        self,
        costs: Sequence[Tensor],
        seed: int,
        loss_clip: float,
        before: float = 0.0,
    ) -> Mechanism:
        """How rows are clipped and get noise.

        Args:
            costs: the costs of the beginning and each round; see `methods.costs_of`.
            seed: names the noise.
            loss_clip: the bound of losses, if the settings have none.
            before: mu^2 that is already spent.
        """
        if self.epsilon is not None:
            mu = math.sqrt(mu_of(self.epsilon, self.delta) ** 2 - before)
            noise = noise_for_clients(costs, mu, self.clip)
            if noise > NOISES[1] * self.clip:
                raise InputError(
                    f"`privacy.epsilon` {self.epsilon:g} needs a noise of "
                    f"{noise / self.clip:g} clips, but the most is {NOISES[1]:g}."
                )
        else:
            noise = self.noise * self.clip if self.noise else 0.0
        if self.loss_clip is not None:
            loss_clip = self.loss_clip
        elif math.isinf(self.clip):
            loss_clip = math.inf
        return Mechanism(
            self.clip,
            noise,
            seed,
            source_of(self.noise_source),
            self.secure,
            loss_clip,
            self.assumed_colluders,
        )

    def limits(self, places: Mapping[str, int]) -> Limits:
        """The budgets: mu^2, or epsilon for the unit sample.

        Args:
            places: maps every name of a client to its position.
        """
        if self.budget is None:
            return Limits()
        if not isinstance(self.budget, Mapping):
            return Limits(self.limit(self.budget))
        own = torch.full((max(places.values()) + 1,), math.inf, dtype=torch.float64)
        for name, budget in self.budget.items():
            if name not in places:
                raise InputError(
                    f"`privacy.budget` names {name!r}, which is not a client."
                    f"{suggestion(name, places)}"
                )
            place = places[name]
            if math.isfinite(own[place]):
                raise InputError(
                    f"`privacy.budget` must name every client once, got {name!r} and "
                    "another name of the same client."
                )
            own[place] = self.limit(budget)
        return Limits(of_each=own)

    def limit(self, budget: float) -> float:
        """The limit for an epsilon: mu^2, or epsilon itself for the unit sample."""
        return budget if self.unit == "sample" else mu_of(budget, self.delta) ** 2


def privacy_of(table: Mapping[str, Any]) -> Privacy:
    """The settings in a table."""
    known = [field.name for field in fields(Privacy)]
    for name, value in table.items():
        if name not in known:
            raise InputError(
                f"[privacy] has no option {name!r}.{suggestion(name, known)}"
            )
        is_text = name in ("unit", "aggregation", "noise_source")
        if is_text and not isinstance(value, str):
            raise InputError(f"`privacy.{name}` must be text, got {value!r}.")
    return Privacy(**table)
