"""Named random streams: every draw is a pure function of the names of its stream.

The names say what a stream is for, such as (seed, "step", round, "grads", count). In a
stream, each client has its own sequence. A simulation draws rows for all clients in one
call, and a site draws exactly its own row. Streams have no state.

The numbers are SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014) written on integer tensors, where products wrap modulo 2^64.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

_WORD = 2**64 - 1


def _as_signed(value: int) -> int:
    """The 64-bit pattern of `value`, as a signed integer that tensors can hold."""
    value &= _WORD
    return value - 2**64 if value >= 2**63 else value


_GOLDEN = _as_signed(0x9E3779B97F4A7C15)
_FIRST = _as_signed(0xBF58476D1CE4E5B9)
_SECOND = _as_signed(0x94D049BB133111EB)
_FACTORS = [np.uint64(factor & _WORD) for factor in (_FIRST, _SECOND)]
_SHIFTS = [np.uint64(shift) for shift in (30, 27, 31)]


def key(*names: int | str) -> int:
    """A 64-bit number that depends on all the names and on their order."""
    plain = tuple(name if isinstance(name, str) else int(name) for name in names)
    digest = hashlib.blake2b(repr(plain).encode(), digest_size=8).digest()
    return _as_signed(int.from_bytes(digest, "little"))


def generator(*names: int | str) -> torch.Generator:
    """A CPU generator for the stream of these names."""
    return torch.Generator().manual_seed(key(*names) & (2**63 - 1))


def _right(z: Any, shift: int) -> Any:
    """`z`, shifted to the right without copies of the sign bit (logical shift)."""
    z = z >> shift
    z &= (1 << (64 - shift)) - 1
    return z


def mix(z: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """The output function of SplitMix64 at these 64-bit patterns."""
    return torch.as_tensor(_mix_in_place(_working(z.clone())))


def mix_in_place(words: np.ndarray) -> np.ndarray:
    """`mix(words)`, written into these 64-bit patterns."""
    return np.asarray(_mix_in_place(words))


def _working(values: Any) -> Any:
    """The values; as an array if this is faster: on the CPU with one thread."""
    is_tensor = isinstance(values, Tensor) and values.device.type == "cpu"
    return values.numpy() if is_tensor and torch.get_num_threads() == 1 else values


def _mix_in_place(z: Any) -> Any:
    """`mix(z)`, written into `z`, an array or a tensor."""
    if isinstance(z, np.ndarray):
        _mix_unsigned(z.view(np.uint64))
        return z
    z.bitwise_xor_(_right(z, 30)).mul_(_FIRST)
    z.bitwise_xor_(_right(z, 27)).mul_(_SECOND)
    return z.bitwise_xor_(_right(z, 31))


def _mix_unsigned(z: Any) -> None:
    """Writes `mix(z)` into an array of unsigned numbers."""
    spare = z >> _SHIFTS[0]
    np.bitwise_xor(z, spare, out=z)
    for factor, shift in zip(_FACTORS, _SHIFTS[1:], strict=True):
        np.multiply(z, factor, out=z)
        np.right_shift(z, shift, out=spare)
        np.bitwise_xor(z, spare, out=z)


def bits(
    stream: int | Int[Tensor, "s _"], clients: Int[Tensor, " n"], size: int
) -> Int[Tensor, "*s n {size}"]:
    """Random 64-bit patterns: row j has `size` of them for client clients[j].

    Args:
        stream: a key; or a column of keys, which gives the result a leading dimension.
            A row of keys may also have one key for each client.
        clients: identities of the clients, not positions.
        size: the number of draws for each.
    """
    return torch.as_tensor(_bits(_working(stream), _working(clients), size))


def _bits(stream: Any, clients: Any, size: int) -> Any:
    """The result of `bits`, from arrays or from tensors."""
    count: Any
    if isinstance(clients, np.ndarray):
        count = np.arange(1, size + 1, dtype=np.int64)
    else:
        count = torch.arange(1, size + 1, device=clients.device)
    return _mix_in_place(_starts(stream, clients)[..., None] + count * _GOLDEN)


def _starts(stream: Any, clients: Any) -> Any:
    return _mix_in_place((clients + 1) * _GOLDEN + stream)


def starts(stream: Int[Tensor, " n"], clients: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    """Where the sequence of each client begins, in its own stream."""
    return torch.as_tensor(_starts(_working(stream), _working(clients)))


def steps(size: int, first: int, device: torch.device) -> Int[Tensor, " {size}"]:
    """Steps from the start of a sequence to its patterns first .. first + size - 1."""
    return torch.arange(first + 1, first + size + 1, device=device) * _GOLDEN


def bits_into(
    drawn: Int[Tensor, "n m"], begin: Int[Tensor, " n"], to: Int[Tensor, " m"]
) -> None:
    """Writes into `drawn` the patterns that lie `to` steps after the starts `begin`."""
    _mix_in_place(_working(torch.add(begin[:, None], to, out=drawn)))


def integers_below(
    limits: Int[Tensor, " n"],
    stream: int | Int[Tensor, "s _"],
    clients: Int[Tensor, " n"],
    size: int,
) -> Int[Tensor, "*s n {size}"]:
    """Uniform draws: row j has `size` whole numbers from 0 to limits[j] - 1.

    A draw is a 32-bit pattern times the limit, divided by 2^32 and rounded down. Its
    bias is at most limit / 2^32. Limits must be below 2^31, so that the product fits
    into 63 bits.
    """
    high = _right(_bits(_working(stream), _working(clients), size), 32)
    return torch.as_tensor((high * _working(limits)[:, None]) >> 32)


def words(keys: Int[Tensor, "*shape"], size: int) -> Int[Tensor, "*shape {size}"]:
    """`size` random 64-bit patterns for each key, in operations that vmap supports."""
    steps = torch.arange(1, size + 1, device=keys.device) * _GOLDEN
    z = keys[..., None] + steps
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        z = (z ^ ((z >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return z ^ ((z >> 31) & ((1 << 33) - 1))


class Stream:
    """A random stream, in which each of n clients has its own sequence.

    Every draw has a key of its own. So a draw of a client depends only on the names of
    the stream, on the client, and on the number of earlier draws.
    """

    def __init__(
        self,
        roots: int | list[int],
        clients: Int[Tensor, " n"],
        dtype: torch.dtype,
        *names: int | str,
    ) -> None:
        """Begins a stream.

        Args:
            roots: a key for all clients, or one for each.
            clients: the clients' identities.
            dtype: the type of real draws.
            names: the names of the stream.
        """
        self._roots = [roots] if isinstance(roots, int) else roots
        self._clients, self._dtype, self._names = clients, dtype, names
        self._draws = 0

    def bits(self, size: int) -> Tensor:
        """(n, size) random 64-bit patterns; a smaller `size` has the first ones."""
        names = *self._names, "draw", self._draws
        keys = [key(root, "stream", *names) for root in self._roots]
        self._draws += 1
        column = torch.tensor(keys, device=self._clients.device)
        return bits(column.reshape(1, -1), self._clients, size)[0]

    def uniform(self, *shape: int) -> Tensor:
        """(n, *shape) real numbers from 0 to 1, without 1."""
        digits = 1 - round(math.log2(torch.finfo(self._dtype).eps))
        words = _right(self.bits(math.prod(shape)), 64 - digits)
        found: Tensor = (words * 2.0**-digits).to(self._dtype)
        return found.reshape(len(self._clients), *shape)

    def normal(self, *shape: int) -> Tensor:
        """(n, *shape) standard Gaussian numbers, by Box and Muller."""
        size = math.prod(shape)
        half = -(-size // 2)
        u = (_right(self.bits(2 * half), 11).double() + 1) * 2.0**-53  # never 0
        length, angle = (-2 * u[:, :half].log()).sqrt(), 2 * math.pi * u[:, half:]
        found = torch.cat([length * angle.cos(), length * angle.sin()], 1)[:, :size]
        return found.to(self._dtype).reshape(len(self._clients), *shape)

    def integers(self, below: int, *shape: int) -> Tensor:
        """(n, *shape) whole numbers from 0 to `below` - 1, at most 2^31 - 1."""
        words = _right(self.bits(math.prod(shape)), 32)
        found: Tensor = (words * below) >> 32
        return found.reshape(len(self._clients), *shape)
