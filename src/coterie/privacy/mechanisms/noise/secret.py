"""Secret random bits, and Gaussian noise on a grid that is made of them.

**Bits.** They are the keystream of AES-256 in counter mode. The key comes from the
operating system when a stream is made. The key stays in memory, and is never written,
shown or copied. A stream only moves forward, so every bit is used once. A resumed run,
a repeated round, another run, another process and a forked process all have their own
keys. There is one exception: for means that clients release before training, the key is
made of a secret and of all settings and data. So a resumed run releases the same means
once more, which reveals nothing new. AES is a permutation, so after b blocks it differs
from random by at most b^2 / 2^129. A new key after 2^30 blocks keeps this difference
below 2^-69.

**Draws.** A word of 64 bits is a sign and a probability v of 63 bits. In the centre,
|v| < 1 - 33 / 2^15, the draw is sqrt(2) erfinv(v). In the tails we draw 106 more bits,
so that the probability of the tail has all digits of a double down to 2^-117. The draw
is Phi^-1 of it, so noise reaches beyond 12 standard deviations.

**Release.** A row y, with noise of standard deviation s, leaves as

    z = g rint((y + s' W) / g),   s' = (1 + 2^-10) s,   g = 2^k in (s'/512, s'/256].

**Why this release is private.** Let D be how far y moves in L2, d its length and mu = D
/ s. If W were Gaussian, y + s' W would be a Gaussian release of D / s'. We compute z
from this release by a function that does not depend on data. So rounding costs nothing,
and the low bits of z reveal nothing of y. (Without rounding, the low bits reveal y:
Mironov, "On significance of the least significant bits for differential privacy", CCS
2012.)

We compute W in double precision. Each word stands for an interval of probability. So
there is a Gaussian W' such that |W - W'| <= e, with probability 1 - 2^-116:

    e <= 2^-44 + 2^-53 (14 + r)          the draw, and the sum y + s' W, |y| <= r s.

For a cell of the grid, let p be its chance under W', and q its chance under W. Then q
is at most the p of a cell that is larger by e on both sides, and at least the p of a
cell that is smaller by e on both sides. The cell is at least s' / 512 wide, and within
it the density changes by at most 6 %, 14 standard deviations away. So |ln(q / p)| <=
eta = 1152 e. Two distributions with |ln(q / p)| <= eta are sqrt(pi / 2) eta-Gaussian
private from each other. For d numbers, this becomes sqrt(d pi / 2) eta. So the
mechanism that we draw is

    mu / (1 + 2^-10) + 2 sqrt(d pi / 2) eta

Gaussian private (Dong, Roth, Su, "Gaussian differential privacy", JRSS B 2022, Theorems
2.14 and 3.2). Accountants charge mu. The mechanism costs at most mu if

    sqrt(d) e <= mu / (2.96e6),

and `refuse_inexact` refuses anything else. Two small terms remain: a chance of 2^-116
for each number, and the difference between AES and random bits. Their sum is below
`LEAST_DELTA`, the smallest delta that we promise.

**What is not proved.** The sum of several rounded rows is not a rounded sum. So if
others see only a sum of rows (secure sums), we do not round rows. Then epsilon holds
only for exact arithmetic. Epsilon also holds only for exact arithmetic if a client sees
only mixtures of another client's rows.
"""

from __future__ import annotations

import math
import os
import threading
from typing import Any, NoReturn

import numpy as np
import torch
from jaxtyping import Float, Float64, Int, Int64
from torch import Tensor

from ....checks import InputError

LEAST_DELTA = 1e-15
"""The smallest delta: below it, the generator itself may reveal more."""

MARGIN = 2.0**-10
"""Relative extra noise that we do not charge for: it pays for finite precision."""

_STEPS = 8
"""A standard deviation has at least 2^8 steps of the grid."""

_OUTER = 33
"""Steps of probability in each tail, out of 2^15 on each side."""

_BLOCKS = 2**30
"""Blocks of 16 bytes from one key."""

_ZEROS = bytes(2**20)

_WORDS = 2**18
"""Numbers that we draw at once on the CPU: more would exceed its cache."""


class SecretStream:
    """Random bits from a key that nobody knows; each bit comes once."""

    def __init__(self, key: bytes | None = None) -> None:
        """Prepares to draw.

        Args:
            key: 32 bytes that nobody else has; None: from the operating system.
        """
        self._lock = threading.Lock()
        self._renew(key)

    def _renew(self, key: bytes | None = None) -> None:
        # Imported here, because training without privacy does not need it.
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        cipher = Cipher(algorithms.AES256(key or os.urandom(32)), modes.CTR(bytes(16)))
        self._stream: Any = cipher.encryptor()
        self._left, self._process = 16 * _BLOCKS, os.getpid()

    def fill(self, words: Int64[Tensor, "*shape"]) -> None:
        """Writes the next words of 64 bits into a contiguous tensor."""
        if words.device.type != "cpu":
            here = torch.empty(words.shape, dtype=words.dtype)
            self.fill(here)
            words.copy_(here)
            return
        raw = words.view(-1).numpy().data.cast("B")
        with self._lock:
            for first in range(0, len(raw), len(_ZEROS)):
                part = raw[first : first + len(_ZEROS)]
                self._left -= len(part)
                if self._left < 0 or self._process != os.getpid():  # or after a fork
                    self._renew()
                self._stream.update_into(_ZEROS[: len(part)], part)

    def __repr__(self) -> str:
        return "<secret stream>"

    def __reduce__(self) -> NoReturn:
        """Refuses copies, which would repeat noise, and files, which would keep noise.

        Raises:
            TypeError: always.
        """
        raise TypeError("a secret stream is never copied or written.")


class GaussianDraws:
    """Standard Gaussian draws, some at a time, in memory that is reused."""

    def __init__(self, stream: SecretStream, most: int, device: torch.device) -> None:
        """Prepares to draw.

        Args:
            stream: the stream of the bits.
            most: the most numbers at once.
            device: the device of the numbers.
        """
        self._stream = stream
        self._words = torch.empty(most, dtype=torch.int64, device=device)
        self._drawn = torch.empty(most, dtype=torch.float64, device=device)

    def next(self, count: int) -> Float64[Tensor, " {count}"]:
        """The next draws divided by sqrt(2), valid until the next call."""
        words, drawn = self._words[:count], self._drawn[:count]
        self._stream.fill(words)
        tails = _tails(words)
        drawn.copy_(words).mul_(2.0**-63).erfinv_()
        return drawn.index_copy_(0, tails, self._in_tails(words.index_select(0, tails)))

    def _in_tails(self, words: Int64[Tensor, " n"]) -> Float64[Tensor, " n"]:
        most = torch.iinfo(torch.int64).max
        # A word stands for [word, word + 1) / 2^63; this is its distance from -1 or 1.
        steps = torch.where(words < 0, words & most, most - words).double()
        more = words.new_empty(2, len(words))
        self._stream.fill(more)
        high, low = (more >> 11 & 2**53 - 1).double()
        rest = (high + (low + 0.5) * 2.0**-53) * 2.0**-53  # with all digits of a double
        away = torch.special.ndtri((steps + rest) * 2.0**-64) * math.sqrt(0.5)
        return torch.where(words < 0, away, -away)


def _tails(words: Int64[Tensor, " n"]) -> Int64[Tensor, " m"]:
    """Which words stand for a draw in a tail."""
    # In the highest 16 bits, both tails lie next to each other.
    high = words.view(torch.int16)[3::4]
    if words.device.type != "cpu":
        return (high + _OUTER < 2 * _OUTER - 2**15).nonzero()[:, 0]
    # NumPy finds a few among many several times as fast.
    found = np.flatnonzero(high.numpy() + np.int16(_OUTER) < 2 * _OUTER - 2**15)
    return torch.from_numpy(found)


def refuse_inexact(columns: int, mu: float, reach: float | None = None) -> None:
    """Refuses rows if we cannot draw their noise as exactly as accounts assume.

    Args:
        columns: d, of a row.
        mu: how far a row may move, in standard deviations.
        reach: how far a row may be from 0, in standard deviations; None: mu.
    """
    error = 2.0**-44 + 2.0**-53 * (14 + (mu if reach is None else reach))
    eta = 1152 * error
    extra = 2 * math.sqrt(columns * math.pi / 2) * eta
    if not mu / (1 + MARGIN) + extra <= mu:
        raise InputError(
            f"noise of {1 / mu:g} times what it hides cannot be drawn exactly enough "
            f"for rows of {columns} numbers: take less noise."
        )


def add_secret(
    rows: Float[Tensor, "n d"],
    stream: SecretStream,
    scale: Float[Tensor, " n"],
    mu: float,
    *,
    reach: float | None = None,
    rounded: bool = True,
) -> Float[Tensor, "n d"]:
    """Adds noise with the standard deviation scale[j] to row j, in place.

    The arguments are the same as for `NoiseSource.add`.
    """
    n, d = rows.shape
    if not n or not d:
        return rows
    refuse_inexact(d, mu, reach)
    deviation = scale.double() * (1 + MARGIN)
    grid = torch.ldexp(torch.ones_like(deviation), deviation.frexp()[1] - 1 - _STEPS)
    at_once = _WORDS if rows.device.type == "cpu" else rows.numel()
    width = min(d, at_once)
    high = max(1, at_once // width)
    # Grids are powers of two, so that dividing by them rounds nothing.
    unit = grid if rounded else torch.ones_like(grid)
    factors = deviation * math.sqrt(2) / unit, 1 / unit, unit
    equal = bool((scale == scale[0]).all())  # numbers are faster than columns
    draws = GaussianDraws(stream, min(n, high) * width, rows.device)
    for left in range(0, d, width):
        for top in range(0, n, high):
            some = slice(top, top + high)
            block = rows[some, left : left + width]
            spread, inverse, step = (
                float(each[0]) if equal else each[some, None] for each in factors
            )
            noisy = draws.next(block.numel()).view(block.shape).mul_(spread)
            if isinstance(inverse, float):
                noisy.add_(block, alpha=inverse)
            else:
                noisy.add_(block * inverse)
            if rounded:
                noisy.round_()
            block.copy_(noisy.mul_(step))
    return rows


def poisson_words(
    stream: SecretStream, clients: Int[Tensor, " n"], size: int
) -> Int64[Tensor, "1 n {size}"]:
    """Random words that choose samples of clients, in the shape of `seeds.bits`."""
    words = torch.empty(1, len(clients), size, dtype=torch.int64, device=clients.device)
    stream.fill(words)
    return words
