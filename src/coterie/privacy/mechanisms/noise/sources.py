"""Where noise comes from: from a seed, for simulations, or from secret bits."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

from .... import seeds
from ....checks import one_of
from .secret import SecretStream, add_secret, poisson_words
from .seeded import add_noise

SEED, SYSTEM = "seed", "system"

SOURCES = (SEED, SYSTEM)
"""The values of `noise_source`."""

SIMULATION_ONLY = "simulation only"
"""What we say wherever we show an epsilon for noise from a seed."""


def simulated_text(noise_source: str) -> str:
    """The warning next to an epsilon for noise from a seed; otherwise nothing."""
    if noise_source != SEED:
        return ""
    return (
        f"{SIMULATION_ONLY.capitalize()}: the noise comes from the seed of the study "
        'and can be taken off again. Real data need `noise_source = "system"`.'
    )


class NoiseSource:
    """Noise for rows, and the random bits that choose samples."""

    def __init__(self, stream: SecretStream | None = None) -> None:
        """Takes all bits from a secret stream; None: from the names of the noise."""
        self._stream = stream

    @property
    def secret(self) -> bool:
        """Whether nobody can repeat the noise; otherwise the seed gives it away."""
        return self._stream is not None

    def bits(
        self, stream: Int[Tensor, "s _"], clients: Int[Tensor, " n"], size: int
    ) -> Int[Tensor, "s n {size}"]:
        """Random words of 64 bits of each client; see `coterie.seeds.bits`."""
        if self._stream is None:
            return seeds.bits(stream, clients, size)
        return poisson_words(self._stream, clients, size)

    def add(
        self,
        rows: Float[Tensor, "n d"],
        stream: int | Int[Tensor, " n"],
        clients: Int[Tensor, " n"],
        scale: Float[Tensor, " n"],
        *,
        mu: float,
        reach: float | None = None,
        rounded: bool = True,
    ) -> Float[Tensor, "n d"]:
        """Adds noise with the standard deviation scale[j] to row j, in place.

        Args:
            rows: the rows to hide, minus their references, which everybody knows.
            stream: names noise that comes from a seed.
            clients: identities of the clients, which also name the noise.
            scale: the standard deviation that we charge for.
            mu: how far a row may move, in units of `scale`.
            reach: how far a row may be from 0, in units of `scale`; None: mu.
            rounded: whether rows leave one by one. If they leave only in sums, they are
                not rounded.
        """
        if self._stream is None:
            return add_noise(rows, stream, clients, scale.to(rows))
        return add_secret(rows, self._stream, scale, mu, reach=reach, rounded=rounded)


SEEDED = NoiseSource()
"""Noise from names alone: a simulation can be repeated."""


def source_of(name: str) -> NoiseSource:
    """The source with that name of `noise_source`; a secret one gets a new key."""
    one_of("noise_source", name, SOURCES)
    return SEEDED if name == SEED else NoiseSource(SecretStream())
