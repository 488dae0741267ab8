"""Clips a row around a reference that everybody knows, and adds Gaussian noise.

    z = ref + clip_C(x - ref) + N(0, s^2 I),    clip_C(y) = y min(1, C / |y|)

clip_C(x - ref) has a norm of at most C. So replacing all data of a client moves z by at
most 2 C, the sensitivity of z. `ref` is computed from earlier releases only.

If a row or its norm is not finite, the client releases `ref` with noise in its place.
The ledger counts this release like any other.

Noise from a seed has a stream with the name (seed, "privacy", round, verb, client), so
that a simulation can be repeated. Every run needs its own seed: if two runs had the
same seed, noise would cancel in their difference. Studies derive the seed from all
their settings. Secret noise has no names, and cannot be repeated
(`coterie.privacy.mechanisms.noise`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Num
from torch import Tensor

from ...checks import InputError
from ..accounting.accounts import remaining
from .noise import MARGIN, SEEDED, DueNoise, NoiseSource

_LESS = 1 - 2.0**-30
"""Factor on a bound in double precision, so that rounding cannot exceed it."""


class Mechanism(NamedTuple):
    """How rows are clipped and get noise."""

    clip: float  # C
    noise: float  # s, the standard deviation of every coordinate
    seed: int = 0  # names the streams of one run: `seeds.key(seed, "its name")`
    source: NoiseSource = SEEDED
    secure: bool = False  # only sums of averaged rows are seen, and noise is shared
    loss_clip: float = math.inf  # the most that the loss of a sample counts
    colluders: int = 1  # clients that may help the server to look into sums

    @property
    def sensitivity(self) -> float:
        """How far a row moves when all data of its client are replaced."""
        return 2 * self.clip

    @property
    def drawn_noise(self) -> float:
        """The standard deviation that we draw, slightly more than we charge for."""
        return self.noise * (1 + MARGIN) if self.source.secret else self.noise

    @property
    def for_losses(self) -> Mechanism:
        """The mechanism for mean losses in [0, C]: clip C / 2, noise relative to it."""
        clip = self.loss_clip / 2
        if self.noise and math.isinf(clip):
            raise InputError("`loss_clip` must be finite if there is noise, got inf.")
        noise = self.noise * clip / self.clip if self.noise else 0.0
        return Mechanism(clip, noise, self.seed, self.source)

    def noise_share(
        self,
        shares: Num[Tensor, "*g n"],
        present: Bool[Tensor, " n"],
        planned: Bool[Tensor, " n"],
    ) -> float:
        """The noise that each client adds to its row in an average, in units of s.

        For a secure sum of m rows, each client adds 1 / sqrt(m). If some clients
        refuse, the other clients add more noise. Otherwise the sum would reveal more
        than planned to the server and its `colluders`. Between organisations, m is the
        number of all members, also of the absent ones: `colluders` counts those who may
        be absent.

        Args:
            shares: the shares of clients in each average; a secure sum has only one
                average.
            present: which clients take part.
            planned: which clients would take part if none refused.
        """
        if not self.secure or not bool(present.any()):
            return 1.0
        if self.source.whole is not None:
            return 1 / math.sqrt(len(present))
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
        """The rows as they leave their clients: clipped, with noise.

        Args:
            x: the rows.
            ref: the references of the rows, which everybody knows.
            stream: names the noise.
            clients: identities of the clients, which name it too.
            share: the part of the noise that each client adds.
            summed: whether others see only a sum of the rows.
        """
        if not self.noise:
            return self._clip(x, ref)
        if summed and self.source.whole is not None:  # its noise is due later
            return self._clip_exactly(x, ref) + ref
        scale, mu = self.noise * share, self.sensitivity / (self.noise * share)
        if self.source.secret:
            z = self._clip_exactly(x, ref)
        else:
            z = self._clip(x, ref).clone()
        each = z.new_full((len(z),), scale)
        z = self.source.add(z, stream, clients, each, mu=mu, rounded=not summed)
        return (z + ref).to(x) if self.source.secret else z

    def due(
        self, shares: Tensor, own: int, share: float, ref: Tensor | float
    ) -> DueNoise | None:
        """The noise of a row in a secure sum that is added later, if it is.

        Args:
            shares: (N,) of all clients in the sum.
            own: position of this client.
            share: the part of the noise that each client adds.
            ref: what everybody knows of this client's row.
        """
        if not self.noise or not self.secure or self.source.whole is None:
            return None
        told = tuple(shares.double().tolist())
        known = float(ref.abs().max()) if isinstance(ref, Tensor) else abs(ref)
        reach = known + self.clip
        return DueNoise(self.noise * share, self.sensitivity, told, own, reach)

    def _clip(self, x: Tensor, ref: Tensor | float) -> Tensor:
        """The rows, moved to within the distance `clip` of `ref`."""
        if math.isinf(self.clip):
            return x
        away = x - ref
        norm = away.norm(dim=1, keepdim=True)
        # A row within its bound is not rounded.
        shorter = ref + away * (self.clip / norm.clamp(min=self.clip))
        z = torch.where(norm <= self.clip, x, shorter)
        return torch.where(norm.isfinite(), z, ref)

    def _clip_exactly(self, x: Tensor, ref: Tensor | float) -> Tensor:
        """The clipped differences from `ref`, in double precision.

        The account of secret noise needs that rounding never makes them longer than the
        bound.
        """
        away, most = x.double() - ref, self.clip * _LESS
        norm = away.norm(dim=1, keepdim=True)
        return torch.where(norm.isfinite(), away * (most / norm.clamp(min=most)), 0.0)
