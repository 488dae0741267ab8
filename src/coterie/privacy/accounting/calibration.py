"""How much noise keeps an epsilon, and which clients may go on within a budget.

Both follow from the releases of all rounds, which we know before training.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from ...checks import InputError
from .gaussian import NOISES
from .subsampled import (
    HOPELESS,
    Step,
    covers,
    epsilons_of_steps,
    least,
    noise_within,
    quick_epsilons,
)

ENOUGH = 1 + 1e-9
"""Factor on a budget. A plan may use up a budget, and rounding must not exceed it."""


class Limits(NamedTuple):
    """The most that may be released: mu^2, or epsilon if the unit is a sample."""

    of_all: float = math.inf  # training ends before a client exceeds it
    of_each: Float64[Tensor, " n"] | None = None  # one client drops out before its own

    def refusing(
        self, after: Float64[Tensor, " n"], counted: Bool[Tensor, " n"] | None = None
    ) -> Bool[Tensor, " n"]:
        """(N,) which clients refuse a round that would raise spending to `after`.

        Args:
            after: what each client would have spent after the round if nobody refused.
            counted: the clients that can end training for all; None: all of them.
        """
        some = after if counted is None else after[counted]
        if bool((some > self.of_all * ENOUGH).any()):
            return torch.ones_like(after, dtype=torch.bool)
        if self.of_each is None:
            return torch.zeros_like(after, dtype=torch.bool)
        return after > self.of_each * ENOUGH


def noise_for_clients(costs: Sequence[Tensor], mu: float, clip: float) -> float:
    """The smallest noise with which nobody spends more than mu in all rounds."""
    most = float(torch.stack(list(costs)).sum(0).max())
    if not math.isfinite(clip):
        raise InputError(f"`clip` must be finite if there is noise, got {clip:g}.")
    return 2 * clip * math.sqrt(most) / mu


class Noises(NamedTuple):
    """Noise in units of what it hides, for each part of the samples."""

    training: float
    held_out: float  # for losses of validation samples


def with_noise(
    rounds: Sequence[Sequence[Counter[Step]]], noises: Noises
) -> list[list[Counter[Step]]]:
    """The steps with these noises, made from steps with a noise of 1."""
    return [[_scale_noise(steps, noises) for steps in each] for each in rounds]


def noise_for_samples(
    rounds: Sequence[Sequence[Counter[Step]]],
    epsilon: float,
    delta: float,
    before: Sequence[Counter[Step]] | None = None,
) -> Noises:
    """The noise with which nobody spends more than epsilon in all rounds.

    The exact account ("pld") decides. The result exceeds the smallest noise by at most
    one part in a thousand. Training and validation samples have separate accounts.

    Args:
        rounds: the steps of each client, with a noise of 1.
        epsilon: the limit for every client.
        delta: the delta of every account.
        before: the earlier releases of each client, with their noise.
    """
    accounts = [sum(steps, Counter[Step]()) for steps in zip(*rounds, strict=True)]
    first = before or [Counter[Step]()] * len(accounts)
    training, held_out = (
        _least_noise(accounts, first, epsilon, delta, held_out=part)
        for part in (False, True)
    )
    return Noises(training, held_out or training)


def _least_noise(
    accounts: Sequence[Counter[Step]],
    before: Sequence[Counter[Step]],
    epsilon: float,
    delta: float,
    *,
    held_out: bool,
) -> float:
    """The least noise for steps on training (or held-out) samples; 0 for no steps."""

    def part(account: Counter[Step]) -> tuple[tuple[Step, int], ...]:
        return tuple(sorted(each for each in account.items() if each[0][2] == held_out))

    pairs = {(part(a), part(b)) for a, b in zip(accounts, before, strict=True)}
    whole = [(Counter(dict(new)), Counter(dict(old))) for new, old in pairs if new]
    if not whole:
        return 0.0

    def after(noise: float) -> list[Counter[Step]]:
        both = Noises(noise, noise)
        return [_scale_noise(steps, both) + old for steps, old in whole]

    def quick(noise: float) -> float:
        return float(quick_epsilons(after(noise), delta).max())

    def epsilon_at(noise: float) -> float:
        bound = quick(noise)
        if bound > HOPELESS:
            return bound
        return float(
            epsilons_of_steps(_largest_accounts(after(noise)), delta=delta).max()
        )

    if quick(NOISES[1]) > epsilon:
        raise InputError(
            "`privacy.epsilon` is too small for our accounts of the unit sample, got "
            f"{epsilon:g} with a delta of {delta:g}."
        )
    return noise_within(
        epsilon_at, epsilon, least(lambda noise: quick(noise) <= epsilon)
    )


def _largest_accounts(accounts: Sequence[Counter[Step]]) -> list[Counter[Step]]:
    """The accounts that no other account covers."""
    found: list[Counter[Step]] = []
    for one in sorted(accounts, key=lambda steps: -steps.total()):
        if not any(covers(other, one) for other in found):
            found = [other for other in found if not covers(one, other)] + [one]
    return found


def _scale_noise(steps: Counter[Step], noises: Noises) -> Counter[Step]:
    return Counter({(noises[h] * one, q, h): k for (one, q, h), k in steps.items()})
