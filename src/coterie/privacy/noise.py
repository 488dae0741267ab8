"""Gaussian noise from named streams: a pure function of the names it is drawn under.

By Box and Muller, of 32-bit words of the draws of `coterie.seeds`,

    sqrt(-2 ln u) cos(v)  and  sqrt(-2 ln u) sin(v),   u in [2^-32, 1], v in [-pi, pi)

so that |noise| is at most sqrt(64 ln 2) = 6.66, which a Gaussian exceeds with chance
3e-11. Keys have 64 bits: seeds of torch's own CPU generator have 32, and among a
hundred thousand draws two would have the same noise.

Whoever knows the seed can take this noise off again: it is for simulations, and for
sites that keep their seed to themselves and trust the generator, which is not a
cryptographic one. Rounding in floating point leaks too (Mironov, "On significance of
the least significant bits for differential privacy", CCS 2012); no accountant counts
that.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .. import seeds

_AT_ONCE = 2**18
"""Draws of a block on the CPU: fewer cost more calls, more do not fit its cache."""


def normals(
    streams: int | Int[Tensor, " n"],
    clients: Int[Tensor, " n"],
    size: int,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "n {size}"]:
    """Row j holds `size` standard Gaussian draws of client clients[j] in its stream.

    Args:
        streams: a key for all, or one for each row.
        clients: identities of the clients.
        size: how many to draw for each.
        dtype: of the draws.
    """
    out = torch.zeros(len(clients), size, dtype=dtype, device=clients.device)
    return add_noise(out, streams, clients, torch.ones_like(out[:, 0]))


def add_noise(
    rows: Float[Tensor, "n d"],
    streams: int | Int[Tensor, " n"],
    clients: Int[Tensor, " n"],
    scale: Float[Tensor, " n"],
) -> Float[Tensor, "n d"]:
    """Adds to row j, in place, scale[j] times the draws of clients[j] in its stream."""
    size = rows.shape[1]
    keys = torch.as_tensor(streams, device=rows.device).expand(len(rows))
    at_once = rows.numel() if rows.is_cuda else 2 * _AT_ONCE
    columns = min(size, at_once)
    some = max(1, at_once // max(1, columns))
    for top in range(0, len(rows), some):
        block = slice(top, top + some)
        for left in range(0, size, columns):
            part = rows[block, left : left + columns]
            names = keys[block], clients[block]
            _add_block(part, names, scale[block, None], left // 2)
    return rows


def _add_block(
    part: Tensor, names: tuple[Tensor, Tensor], scale: Tensor, first: int
) -> None:
    half = -(-part.shape[1] // 2)
    drawn = seeds.bits(names[0][None], names[1], half, first)[0]
    words = drawn.view(torch.int32).to(part.dtype)  # (n, 2 half), each from -2^31
    u, angle = words[:, :half], words[:, half:].mul_(math.pi * 2.0**-31)
    # Near 0, where lengths are large, floats are dense; and it is never 0 itself.
    u = u.abs_().add_(0.5).mul_(1 / (2.0**31 + 0.5))
    length = u.log_().mul_(-2).sqrt_().mul_(scale)
    cosine = torch.cos(angle, out=drawn.view(part.dtype)[:, :half])  # memory at hand
    part[:, :half].addcmul_(cosine, length)
    rest = part.shape[1] - half
    part[:, half:].addcmul_(angle[:, :rest].sin_(), length[:, :rest])
