"""Where noise comes from: from a seed, for simulations, or from secret bits."""

from __future__ import annotations

from typing import NamedTuple

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


class DueNoise(NamedTuple):
    """Noise that a row must get when it becomes a row of whole numbers."""

    deviation: float  # of the row before it is multiplied by its share; we charge it
    sensitivity: float  # how far the row may move
    shares: tuple[float, ...]  # of all clients in the sum, this one's too
    own: int  # position of this client
    reach: float  # the largest value in the row, at most


class WholeNoise:
    """Noise for sums of whole numbers, which is added where rows become whole.

    A row of a secure sum passes through the oracle without noise. Its noise is due at
    the very next message that leaves, which must be that sum (`noise.whole`).
    """

    def __init__(self, stream: SecretStream) -> None:
        """Draws noise from this stream."""
        self.stream = stream
        self._due: DueNoise | None = None

    def add_due(self, due: DueNoise) -> None:
        """Says that the next row that leaves must get this noise."""
        assert self._due is None, "a row has left without its noise"
        self._due = due

    def take_due(self) -> DueNoise | None:
        """The noise that a sum must get; None: its row is known already."""
        due, self._due = self._due, None
        return due

    def refuse_due(self) -> None:
        """Refuses to send anything while noise is due.

        Raises:
            RuntimeError: if noise is due. Only a bug can cause this.
        """
        if self._due is not None:
            raise RuntimeError("a row must not leave without its noise.")

    def forget(self) -> None:
        """Forgets the noise of an attempt that has ended: its row has not left."""
        self._due = None


class NoiseSource:
    """Noise for rows, and the random bits that choose samples."""

    def __init__(
        self, stream: SecretStream | None = None, whole: WholeNoise | None = None
    ) -> None:
        """Prepares to draw.

        Args:
            stream: of all bits; None: they come from the names of the noise.
            whole: adds the noise of secure sums later, as whole numbers.
        """
        self._stream, self.whole = stream, whole

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
        assert rounded or self.whole is None, "noise of sums is added later"
        if self._stream is None:
            return add_noise(rows, stream, clients, scale.to(rows))
        return add_secret(rows, self._stream, scale, mu, reach=reach, rounded=rounded)


SEEDED = NoiseSource()
"""Noise from names alone: a simulation can be repeated."""


def source_of(name: str) -> NoiseSource:
    """The source with that name of `noise_source`; a secret one gets a new key."""
    one_of("noise_source", name, SOURCES)
    return SEEDED if name == SEED else NoiseSource(SecretStream())
