"""A row is clipped around what everybody knows already, and gets Gaussian noise.

    z = ref + clip_C(x - ref) + N(0, s^2 I),    clip_C(y) = y min(1, C / |y|)

Whatever the data of a client are, clip_C(x - ref) has norm C at most, so that replacing
all of them moves z by 2 C at most: its sensitivity. `ref` is made of earlier releases
alone.

A row that is not finite, or whose norm is not, has no bound: it leaves as `ref` with
noise, and is written down as any other.

Where noise comes from a seed, its stream is named by (seed, "privacy", round, verb,
client), so that a simulation repeats. A seed is of one run alone: of two runs with the
same one, noise cancels in the difference. Studies make it of all that they are. Secret
noise has no names, and nothing repeats it (`coterie.privacy.mechanisms.noise`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Num
from torch import Tensor

from ...checks import InputError
from ..accounting.accounts import remaining
from .noise import MARGIN, SEEDED, NoiseSource

_LESS = 1 - 2.0**-30
"""Of a bound in double precision, so that rounding takes no norm beyond it."""


class Mechanism(NamedTuple):
    """How rows are clipped and noised."""

    clip: float  # C
    noise: float  # s, the standard deviation of every coordinate
    seed: int = 0  # names the streams, of one run: `seeds.key(seed, "its name")`
    source: NoiseSource = SEEDED
    secure: bool = False  # only sums of averaged rows are seen, and noise is shared
    loss_clip: float = math.inf  # what a sample's loss counts for at most
    colluders: int = 1  # with whom the server may share what it sees of sums

    @property
    def sensitivity(self) -> float:
        """How far a row moves when all data of its client are replaced."""
        return 2 * self.clip

    @property
    def drawn_noise(self) -> float:
        """The standard deviation as it is drawn, somewhat more than is charged."""
        return self.noise * (1 + MARGIN) if self.source.secret else self.noise

    @property
    def for_losses(self) -> Mechanism:
        """How mean losses are: within C / 2 of C / 2, with as much noise in clips."""
        clip = self.loss_clip / 2
        if self.noise and math.isinf(clip):
            raise InputError(
                "`loss_clip` must be finite where there is noise, got inf."
            )
        noise = self.noise * clip / self.clip if self.noise else 0.0
        return Mechanism(clip, noise, self.seed, self.source)

    def noise_share(
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

    def release(
        self,
        x: Float[Tensor, "n d"],
        ref: Float[Tensor, "n d"] | float,
        stream: int | Int[Tensor, " n"],
        clients: Int[Tensor, " n"],
        share: float = 1.0,
        *,
        summed: bool = False,
    ) -> Float[Tensor, "n d"]:
        """The rows as they leave.

        Args:
            x: the rows.
            ref: what everybody knows of them.
            stream: names the noise.
            clients: identities of the clients, which name it too.
            share: the part of the noise that is each client's own.
            summed: whether only a sum of the rows is promised to be seen.
        """
        if not self.noise:
            return self._clip(x, ref)
        scale, mu = self.noise * share, self.sensitivity / (self.noise * share)
        if self.source.secret:
            z = self._clip_exactly(x, ref)
        else:
            z = self._clip(x, ref).clone()
        each = z.new_full((len(z),), scale)
        z = self.source.add(z, stream, clients, each, mu=mu, rounded=not summed)
        return (z + ref).to(x) if self.source.secret else z

    def _clip(self, x: Tensor, ref: Tensor | float) -> Tensor:
        """The rows within their bound."""
        if math.isinf(self.clip):
            return x
        away = x - ref
        norm = away.norm(dim=1, keepdim=True)
        # A row within its bound is released as it is: no rounding by the way.
        shorter = ref + away * (self.clip / norm.clamp(min=self.clip))
        z = torch.where(norm <= self.clip, x, shorter)
        return torch.where(norm.isfinite(), z, ref)

    def _clip_exactly(self, x: Tensor, ref: Tensor | float) -> Tensor:
        """How far they are from what is known, in double precision, within the bound.

        No rounding takes them beyond it, as secret noise is charged for exactly that.
        """
        away, most = x.double() - ref, self.clip * _LESS
        norm = away.norm(dim=1, keepdim=True)
        return torch.where(norm.isfinite(), away * (most / norm.clamp(min=most)), 0.0)
