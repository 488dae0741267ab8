"""Where noise comes from: from a seed, for simulations, or from secret bits."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from .... import seeds
from ....checks import one_of
from .secret import SecretStream, add_secret, poisson_words
from .seeded import add_noise

SEED, SYSTEM = "seed", "system"

SOURCES = (SEED, SYSTEM)
"""What `noise_source` may be."""

SIMULATION_ONLY = "simulation only"
"""What is said wherever an epsilon is shown for noise that comes from a seed."""


def simulated_text(noise_source: str) -> str:
    """What is said next to an epsilon whose noise comes from a seed; else nothing."""
    if noise_source != SEED:
        return ""
    return (
        f"{SIMULATION_ONLY.capitalize()}: the noise comes from the seed of the study "
        'and can be taken off again. Real data need `noise_source = "system"`.'
    )


@runtime_checkable
class NoiseSource(Protocol):
    """Gives noise to rows, and the coins by which samples are chosen."""

    secret: bool  # or whoever knows the seed knows the noise

    def bits(
        self, stream: Int[Tensor, "s _"], clients: Int[Tensor, " n"], size: int
    ) -> Int[Tensor, "s n {size}"]:
        """Random words of 64 bits of each client; see `coterie.seeds.bits`."""

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
        """Adds to row j, in place, noise of the standard deviation scale[j].

        Args:
            rows: what is hidden, less what is known of it.
            stream: names the noise, where it comes from a seed.
            clients: identities of the clients, which name it too.
            scale: the standard deviation that is charged.
            mu: by how many of it a row may move.
            reach: how many of it a row may be from 0; None: mu.
            rounded: whether rows leave one by one, and not only in sums.
        """


class SeededNoise:
    """Noise that is a function of its names: a simulation repeats."""

    secret = False

    def bits(
        self, stream: Int[Tensor, "s _"], clients: Int[Tensor, " n"], size: int
    ) -> Int[Tensor, "s n {size}"]:
        """Words of each client in its stream."""
        return seeds.bits(stream, clients, size)

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
        """Adds noise in place; see `NoiseSource`."""
        return add_noise(rows, stream, clients, scale.to(rows))


class SecretNoise:
    """Noise that nobody can repeat, not even this process; see `secret`."""

    secret = True

    def __init__(self, key: bytes | None = None) -> None:
        """Prepares to draw.

        Args:
            key: 32 bytes that nobody else has; None: from the operating system.
        """
        self._stream = SecretStream(key)

    def bits(
        self, stream: Int[Tensor, "s _"], clients: Int[Tensor, " n"], size: int
    ) -> Int[Tensor, "s n {size}"]:
        """The next words, whatever the names."""
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
        """Adds noise in place, whatever the names; see `NoiseSource`."""
        return add_secret(rows, self._stream, scale, mu, reach=reach, rounded=rounded)


SEEDED = SeededNoise()
"""It keeps nothing."""


def source_of(name: str) -> NoiseSource:
    """The source of that name; a secret one has a key of its own.

    Args:
        name: as in `noise_source`.
    """
    one_of("noise_source", name, SOURCES)
    return SEEDED if name == SEED else SecretNoise()
