"""A row is clipped around what everybody knows already, and gets Gaussian noise.

    z = ref + clip_C(x - ref) + N(0, s^2 I),    clip_C(y) = y min(1, C / |y|)

Whatever the data of a client are, clip_C(x - ref) has norm C at most, so that replacing
all of them moves z by 2 C at most: its sensitivity. `ref` is made of earlier releases
alone.

Noise is drawn from a stream named by (seed, "privacy", round, verb, client), so that a
simulation repeats and a client alone draws its own row (`coterie.privacy.noise`, which
says what such noise is good for); or, where a seed would be a secret to keep, from the
operating system's cryptographic generator. A seed is of one run alone: of two runs with
the same one, noise cancels in the difference. Studies make it of all that they are.
"""

from __future__ import annotations

import math
import os
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int, Num
from torch import Tensor

from ...checks import InputError
from ..accounts import remaining
from ..noise import add_noise

SOURCES = ("seed", "system")


def from_system(rows: int, size: int) -> Float64[Tensor, "{rows} {size}"]:
    """N(0, 1) draws of the system's cryptographic generator, which no seed repeats."""
    half = -(-size // 2)
    raw = bytearray(os.urandom(16 * rows * half) or bytes(16))
    bits = torch.frombuffer(raw, dtype=torch.int64, count=2 * rows * half)
    uniform = ((bits.reshape(rows, 2 * half) >> 11 & 2**53 - 1).double() + 0.5) / 2**53
    u, v = uniform.chunk(2, 1)
    length, angle = (-2 * u.log()).sqrt(), 2 * math.pi * v
    return torch.cat([length * angle.cos(), length * angle.sin()], 1)[:, :size]


class Mechanism(NamedTuple):
    """How rows are clipped and noised."""

    clip: float  # C
    noise: float  # s, the standard deviation of every coordinate
    seed: int = 0  # names the streams, of one run: `seeds.key(seed, "its name")`
    source: str = "seed"
    secure: bool = False  # only sums of averaged rows are seen, and noise is shared
    loss_clip: float = math.inf  # what a sample's loss counts for at most
    colluders: int = 1  # with whom the server may share what it sees of sums

    @property
    def sensitivity(self) -> float:
        """How far a row moves when all data of its client are replaced."""
        return 2 * self.clip

    @property
    def of_losses(self) -> Mechanism:
        """How mean losses are: within C / 2 of C / 2, with as much noise in clips."""
        clip = self.loss_clip / 2
        if self.noise and math.isinf(clip):
            raise InputError(
                "`loss_clip` must be finite where there is noise, got inf."
            )
        noise = self.noise * clip / self.clip if self.noise else 0.0
        return Mechanism(clip, noise, self.seed, self.source)

    def of_sum(
        self,
        shares: Num[Tensor, "*g n"],
        present: Bool[Tensor, " n"],
        planned: Bool[Tensor, " n"],
    ) -> float:
        """The noise that everybody adds to a row that is averaged, in units of s.

        Of a secure sum of m rows it is 1 / sqrt(m), and more where somebody refuses
        without whom the sum would tell the server and `colluders` more of anybody than
        was planned.

        Args:
            shares: of the average, one where it is secure.
            present: who is in it.
            planned: these, and who refuses.
        """
        if not self.secure or not bool(present.any()):
            return 1.0
        after, before = (
            int(who.sum()) * float(remaining(shares[who], self.colluders).max())
            for who in (present.to(shares.device), planned.to(shares.device))
        )
        raised = math.sqrt(max(1.0, after / before)) if before else 1.0
        return raised / math.sqrt(int(present.sum()))

    def released(
        self,
        x: Float[Tensor, "n d"],
        ref: Float[Tensor, "n d"] | float,
        stream: int | Int[Tensor, " n"],
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
        scale = self.noise * share
        if self.source == "system":
            return z + scale * from_system(*z.shape).to(z)
        return add_noise(z.clone(), stream, clients, z.new_full((len(z),), scale))
