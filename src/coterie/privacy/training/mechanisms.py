"""A row is clipped around what everybody knows already, and gets Gaussian noise.

    z = ref + clip_C(x - ref) + N(0, s^2 I),    clip_C(y) = y min(1, C / |y|)

Whatever the data of a client are, clip_C(x - ref) has norm C at most, so that replacing
all of them moves z by 2 C at most: its sensitivity. `ref` is made of earlier releases
alone.

Noise is drawn from a stream named by (seed, "privacy", round, verb, client), so that a
simulation repeats and a client alone draws its own row; or, where a seed would be a
secret to keep, from the operating system's cryptographic generator. Either way numbers
are those of a computer: they have 53 random bits and arithmetic rounds, which a
promise about real numbers does not cover (Mironov, "On significance of the least
significant bits for differential privacy", CCS 2012).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ... import seeds

Draw = Callable[[int | Tensor, Tensor, int], Tensor]
"""Of a stream, for clients (n,) by their identities, so many N(0, 1) draws each."""

_AT_ONCE = 2**15
"""Numbers that are drawn at once."""

SOURCES = ("seed", "system")


def from_system(stream: int | Tensor, clients: Int[Tensor, " n"], size: int) -> Tensor:
    """N(0, 1) draws that no seed repeats: the names of the stream are not used."""
    even = size + size % 2
    raw = bytearray(os.urandom(8 * len(clients) * even) or b"\0")
    patterns = torch.frombuffer(raw, dtype=torch.int64, count=len(clients) * even)
    found = seeds.gaussian(patterns.reshape(len(clients), even))[:, :size]
    return found.to(clients.device)


class Mechanism(NamedTuple):
    """How rows are clipped and noised."""

    clip: float  # C
    noise: float  # s, the standard deviation of every coordinate
    seed: int = 0  # names the streams
    source: str = "seed"
    secure: bool = False  # only sums of averaged rows are seen, and noise is shared

    @property
    def sensitivity(self) -> float:
        """How far a row moves when all data of its client are replaced."""
        return 2 * self.clip

    def released(
        self,
        x: Float[Tensor, "n d"],
        ref: Float[Tensor, "n d"] | float,
        stream: int | Tensor,
        clients: Int[Tensor, " n"],
        share: float = 1.0,
    ) -> Float[Tensor, "n d"]:
        """The rows as they leave, `share` of whose noise is each client's own."""
        z = x
        if math.isfinite(self.clip):
            away = x - ref
            norm = away.norm(dim=1, keepdim=True)
            # A row within its bound is released as it is: no rounding by the way.
            shorter = ref + away * (self.clip / norm.clamp(min=self.clip))
            z = torch.where(norm <= self.clip, x, shorter)
        if not self.noise:
            return z
        z = z.clone()
        draw: Draw = from_system if self.source == "system" else seeds.normals
        # Some rows at once: the numbers are many, and made by some ten operations.
        for some in torch.arange(len(x)).split(max(1, _AT_ONCE // x.shape[1])):
            part = slice(int(some[0]), int(some[-1]) + 1)
            keys = stream[:, part] if isinstance(stream, Tensor) else stream
            drawn = draw(keys, clients[part], x.shape[1]).reshape(len(some), -1)
            z[part] += (self.noise * share * drawn).to(z)
        return z
