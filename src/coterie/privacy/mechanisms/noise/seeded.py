"""Gaussian noise from named streams: a pure function of the names of a stream.

We use the method of Box and Muller. Two 32-bit words from `coterie.seeds` give u and v,
and these two numbers give two draws:

    sqrt(-2 ln u) cos(v)  and  sqrt(-2 ln u) sin(v),   u in [2^-32, 1], v in [-pi, pi)

So |noise| is at most sqrt(64 ln 2) = 6.66, which a Gaussian exceeds with chance 3e-11.
Keys have 64 bits. With torch's own CPU generator, seeds have 32 bits, so among a
hundred thousand streams, two would have the same noise.

**Simulation only.** Anybody who knows the seed can subtract this noise. Anybody who
knows a few numbers of a row can do this, too, because the generator is invertible.
Rounding in floating point reveals more, and noise never exceeds 6.66 standard
deviations. For real data take secret noise (`coterie.privacy.mechanisms.noise.secret`).
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .... import seeds

_COLUMNS = 2**19
"""How many numbers of a row we draw together."""

_AT_ONCE = 2**18
"""Numbers in a block on the CPU: fewer need more calls, more exceed its cache."""


def normals(
    streams: int | Int[Tensor, " n"],
    clients: Int[Tensor, " n"],
    size: int,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "n {size}"]:
    """Row j holds `size` standard Gaussian draws of client clients[j].

    Args:
        streams: a key for all, or one for each row.
        clients: identities of the clients.
        size: how many to draw for each.
        dtype: the type of the draws.
    """
    out = torch.zeros(len(clients), size, dtype=dtype, device=clients.device)
    return add_noise(out, streams, clients, torch.ones_like(out[:, 0]))


def add_noise(
    rows: Float[Tensor, "n d"],
    streams: int | Int[Tensor, " n"],
    clients: Int[Tensor, " n"],
    scale: Float[Tensor, " n"],
) -> Float[Tensor, "n d"]:
    """Adds scale[j] times the draws of clients[j] to row j, in place."""
    keys = torch.as_tensor(streams, device=rows.device).expand(len(rows))
    begin, squares = seeds.starts(keys, clients), -2 * scale[:, None].square()
    for left in range(0, rows.shape[1], _COLUMNS):
        part = rows[:, left : left + _COLUMNS]
        some = len(rows) if rows.is_cuda else _AT_ONCE // part.shape[1]
        pairs: _Pairs | None = None
        cut = (each.split(max(1, some)) for each in (part, begin, squares))
        for block in zip(*cut, strict=True):
            if pairs is None or len(pairs.drawn) != len(block[0]):
                pairs = _Pairs(block[0], left // 2)
            pairs.add_to(*block)
    return rows


class _Pairs:
    """Draws of a block, in memory that is reused because new memory costs more."""

    def __init__(self, like: Tensor, first: int) -> None:
        """Allocates memory for blocks like this one; sequences begin after `first`."""
        n, size = like.shape
        half = -(-size // 2)
        self._steps = seeds.steps(half, first, like.device)
        self.drawn = like.new_empty(n, half, dtype=torch.int64)
        self._integers = self.drawn.view(torch.int32)  # each from -2^31
        self._words = like.new_empty(n, 2 * half)
        self._u, self._angle = self._words.chunk(2, 1)
        self._cosine = self.drawn.view(like.dtype)[:, :half]  # once `drawn` is used up
        self._rest = slice(0, size - half)

    def add_to(self, part: Tensor, begin: Tensor, squares: Tensor) -> None:
        """Adds noise to the rows of a block; `squares` are squared scales, times -2."""
        seeds.bits_into(self.drawn, begin, self._steps)
        self._words.copy_(self._integers)
        # u is never 0, and floats are dense near 0, where lengths are large.
        u = self._u.abs_().add_(0.5).mul_(1 / (2.0**31 + 0.5))
        length = u.log_().mul_(squares).sqrt_()
        angle = self._angle.mul_(math.pi * 2.0**-31)
        cosines, sines = part.tensor_split([length.shape[1]], 1)
        cosines.addcmul_(torch.cos(angle, out=self._cosine), length)
        sines.addcmul_(angle.sin_()[:, self._rest], length[:, self._rest])
