"""Masks: random numbers that hide a row, and that vanish in the sum of all rows.

The hub adds up rows of whole numbers modulo 2^b, where b is 64 or 32. The member of
rank i sends

    y_i = x_i + s_i + sum_{k > i} m_ik - sum_{k < i} m_ki     (mod 2^b)

The pair mask m_ik is known to members i and k alone, and the self-mask s_i to member i.
In the sum over all present members, every pair mask occurs with both signs:

    sum_i y_i = sum_i x_i + sum_i s_i     (mod 2^b)

So one missing row leaves the sum uniformly random. The self-masks hide the sum until
every member has seen that all rows have arrived, and opens its self-mask.

**Keys.** For every attempt at a round, a member makes new secrets:

    shared_ik = X25519(private_i, public_k)
    pair_ik   = HKDF-SHA256(shared_ik; "pair", both ranks and public keys, context)
    m_ik      = ChaCha20(pair_ik), from block 0 with nonce 0: every key is used once
    self_i    = HKDF-SHA256(secret_i; "self", context),   s_i = ChaCha20(self_i)

The context names the sum, the members in it, and the last average before it. Two
members whose contexts differ in any bit have different pair masks. So members that do
not agree on everything get a random sum, and reveal nothing.

**What masks do not hide:** the sum itself, and what follows from sums of different
sets of members. Nothing proves that a member has sent the right row.

Nobody who lacks the secrets can tell the masks from random numbers, if X25519, HKDF and
ChaCha20 are what they are believed to be. This file needs no torch.

References:
    Bonawitz et al., "Practical secure aggregation for privacy-preserving machine
    learning", CCS 2017. There, members that are left help to remove the masks of a
    lost member. Here nobody does: a lost member ends the attempt.
    RFC 7748 (X25519), RFC 5869 (HKDF), RFC 8439 (ChaCha20).
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from ...checks import InputError, number

Row = NDArray[np.unsignedinteger[Any]]

HASH = 32
"""The number of bytes of a hash, of a public key and of a derived key."""

LEAST_MEMBERS = 3
"""The fewest members of a sum, unless the study says otherwise."""

_MOST = 2**31
"""The most numbers in a row: the stream of one key has 2^38 bytes."""

_WORD = b"coterie sites 1 "
"""The start of everything that we derive or sign: nothing else uses these keys."""


class TooLarge(InputError):
    """An error for a row with a value that does not fit on the grid of the study."""


class ReuseError(RuntimeError):
    """An error if a mask or a key of mail would be used a second time."""


# What masks and mail belong to.


def pack_parts(*parts: bytes) -> bytes:
    """The parts, each after its length, so that no two lists give the same bytes.

    >>> pack_parts(b"a", b"bc") != pack_parts(b"ab", b"c")
    True
    """
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)


@dataclass(frozen=True)
class MessageContext:
    """The sum, or the exchange of mail, to which a row belongs."""

    study: bytes  # hash of the study
    roster: bytes  # hash of the roster
    run: int
    entry: str  # label of the algorithm
    seed: int
    round: int
    attempt: int
    number: int  # which collective of the attempt, from 0
    present: tuple[int, ...]  # ranks, sorted
    last: bytes  # hash of the last average that all members have

    def __post_init__(self) -> None:
        """Refuses what two members might write in different ways."""
        for name in ("study", "roster", "last"):
            if len(getattr(self, name)) != HASH:
                raise InputError(f"`{name}` must be a hash of {HASH} bytes.")
        for name in ("run", "seed", "round", "attempt", "number"):
            value = getattr(self, name)
            if type(value) is not int or not 0 <= value < 2**63:
                raise InputError(f"`{name}` must be a whole number, got {value!r}.")
        ranks = self.present
        whole = all(type(rank) is int and rank >= 0 for rank in ranks)
        if not whole or any(a >= b for a, b in itertools.pairwise(ranks)):
            raise InputError(f"`present` must be sorted ranks, got {ranks!r}.")

    def to_bytes(self) -> bytes:
        """The bytes on which members must agree; different contexts differ in them."""
        numbers = (self.run, self.seed, self.round, self.attempt, self.number)
        return pack_parts(
            self.study,
            self.roster,
            self.entry.encode(),
            b"".join(each.to_bytes(8, "big") for each in numbers),
            b"".join(rank.to_bytes(8, "big") for rank in self.present),
            self.last,
        )

    @property
    def attempt_bytes(self) -> bytes:
        """What is the same for all collectives of an attempt."""
        numbers = (self.run, self.seed, self.round, self.attempt)
        return pack_parts(
            self.study,
            self.roster,
            self.entry.encode(),
            b"".join(each.to_bytes(8, "big") for each in numbers),
            b"".join(rank.to_bytes(8, "big") for rank in self.present),
        )


# Whole numbers for real ones.


class Grid(NamedTuple):
    """How real numbers become whole ones: value v is rint(v * scale), modulo 2^bits."""

    scale: float
    largest: float  # of the absolute values of a row
    bits: int

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger[Any]]:
        """The type of the whole numbers."""
        return np.dtype(np.uint32 if self.bits == 32 else np.uint64)


def grid_for(scale: float, largest: float, members: int) -> Grid:
    """The smallest grid on which the sum of rows of all members fits.

    >>> grid_for(2.0**30, 100.0, 8).bits, grid_for(2.0**16, 100.0, 8).bits
    (64, 32)

    Args:
        scale: steps of the grid in 1.
        largest: the largest absolute value in a row.
        members: the most members of a sum.

    Raises:
        InputError: if the sum does not fit modulo 2^64.
    """
    number("scale", scale, above=0)
    number("largest", largest, above=0)
    most = members * (math.ceil(largest * scale) + 1)
    for bits in (32, 64):
        if most < 2 ** (bits - 1):
            return Grid(float(scale), float(largest), bits)
    raise InputError(
        f"sums of {members} rows with values up to {largest:g} do not fit in 64 bits "
        f"with the scale {scale:g}: set a smaller `sites.scale` or `sites.largest`."
    )


def to_grid(values: NDArray[Any], grid: Grid) -> Row:
    """The row as whole numbers.

    >>> to_grid(np.array([0.5, -0.25]), Grid(4.0, 1.0, 32))
    array([         2, 4294967295], dtype=uint32)

    Raises:
        TooLarge: if a value is not finite, or larger than the study allows.
    """
    row = np.asarray(values, dtype=np.float64).reshape(-1)
    wrong = ~(np.abs(row) <= grid.largest)  # also NaN
    if wrong.any():
        place = int(wrong.argmax())
        raise TooLarge(
            f"a row that this site would send has the value {row[place]:g} at position "
            f"{place}, but `sites.largest` is {grid.largest:g}."
        )
    steps = np.rint(row * grid.scale).astype(np.int64)
    return steps.astype(grid.dtype)


def from_grid(total: Row, grid: Grid) -> NDArray[np.float64]:
    """The real numbers of a sum of rows.

    >>> from_grid(np.array([2, 4294967295], np.uint32), Grid(4.0, 1.0, 32))
    array([ 0.5 , -0.25])
    """
    signed = np.int32 if grid.bits == 32 else np.int64
    return total.view(signed).astype(np.float64) / grid.scale


# Averages in 32 bits.


class Exponents(NamedTuple):
    """The scales of an average in 32 bits: values times 2^values, shares 2^shares.

    They follow from the last sum at the same place of a round, which everybody knows:
    its largest number has 27 bits. So the numbers of the next sum may become 16 times
    as large.

    Let m rows be in the sum, and A be the largest value of the last average. Every row
    is rounded by at most half a step, so the average is off by at most m 2^-27 A. With
    m = 8, this is the rounding of single precision at A, 2^-24 A.
    """

    values: int
    shares: int


_KNOWN_BITS, _FARTHEST = 27, 400


def exponents_after(total: NDArray[Any]) -> Exponents | None:
    """The scales after a sum; None if one of them has no largest number.

    >>> exponents_after(np.array([0.5, -0.75, 8.0]))
    Exponents(values=27, shares=23)

    Args:
        total: a sum of rows of values; the last column has the shares.
    """
    found = []
    for part in _values_and_shares(total):
        most = float(np.abs(part).max(initial=0.0))
        if not 0 < most < math.inf:
            return None
        found.append(_KNOWN_BITS - math.frexp(most)[1])
    return Exponents(*found) if max(map(abs, found)) < _FARTHEST else None


def to_narrow(row: NDArray[Any], exponents: Exponents, members: int) -> Row:
    """The row of an average as whole numbers of 32 bits.

    Args:
        row: of values; the last column has the shares.
        exponents: the scales.
        members: how many rows are in the sum.

    Raises:
        TooLarge: if a number is so large that the sum might not fit.
    """
    most = 2**31 // members - 1
    pieces = [
        to_grid(part, Grid(2.0**e, most * 2.0**-e, 32)).reshape(part.shape)
        for part, e in zip(_values_and_shares(row), exponents, strict=True)
    ]
    return np.concatenate(pieces, -1).reshape(-1)


def from_narrow(
    total: Row, exponents: Exponents, shape: tuple[int, ...]
) -> NDArray[np.float64]:
    """The real numbers of a sum of rows of 32 bits."""
    found = total.view(np.int32).astype(np.float64).reshape(shape)
    for part, e in zip(_values_and_shares(found), exponents, strict=True):
        part *= 2.0**-e
    return found


def _values_and_shares(row: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    return row[..., :-1], row[..., -1:]


# Secrets of an attempt.


class PublicKeys(NamedTuple):
    """What others get from a member at the beginning of an attempt, signed by it."""

    masks: bytes
    mail: bytes

    def to_bytes(self) -> bytes:
        """Both keys, as they are sent and signed."""
        return self.masks + self.mail

    @staticmethod
    def from_bytes(raw: bytes) -> PublicKeys:
        """The keys that another member has sent."""
        if len(raw) != 2 * HASH:
            raise InputError(f"keys must have {2 * HASH} bytes, got {len(raw)}.")
        return PublicKeys(raw[:HASH], raw[HASH:])


class AttemptKeys:
    """The secrets of a member for one attempt, and what they were used for.

    They stay in memory. They are never written, copied, or used in a forked process.
    """

    def __init__(self, masks: Any, mail: Any, secret: bytes) -> None:
        """Holds the secrets; use `fresh`, except in tests.

        Args:
            masks: private X25519 key for pair masks.
            mail: private X25519 key for mail.
            secret: 32 bytes for self-masks.
        """
        self._private = {"masks": masks, "mail": mail}
        self._secret, self._process = secret, os.getpid()
        self._lock = threading.Lock()
        self._attempt: bytes | None = None
        self._used: dict[tuple[object, ...], bytes] = {}
        self.public = PublicKeys(
            masks.public_key().public_bytes_raw(), mail.public_key().public_bytes_raw()
        )

    @staticmethod
    def fresh() -> AttemptKeys:
        """New secrets from the generator of the operating system."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        generate = X25519PrivateKey.generate
        return AttemptKeys(generate(), generate(), os.urandom(HASH))

    def use(self, context: MessageContext, *what: object) -> None:
        """Notes a use, before anything is made of it.

        Raises:
            ReuseError: if there was such a use already, or one in another attempt.
        """
        with self._lock:
            self._refuse_fork()
            if self._attempt not in (None, context.attempt_bytes):
                raise ReuseError(
                    "keys of an attempt must not be used in another attempt."
                )
            if (*what, context.number) in self._used:
                raise ReuseError(
                    f"{what[0]} of collective {context.number} in round "
                    f"{context.round} must not be used twice."
                )
            self._attempt = context.attempt_bytes
            self._used[(*what, context.number)] = context.to_bytes()

    def opening(self, context: MessageContext) -> bytes:
        """The key of the self-mask: the hub removes the mask of the sum with it.

        Raises:
            InputError: if this member has not sent a row in just this context.
        """
        self._refuse_fork()
        if self._used.get(("a mask", context.number)) != context.to_bytes():
            raise InputError(
                "a self-mask must only be opened in the context of its row: this "
                f"member has sent no such row in round {context.round}."
            )
        return derive(self._secret, b"self", context.to_bytes())

    def secret_with(self, purpose: str, theirs: bytes, rank: int) -> bytes:
        """The secret of X25519 that only this member and another one have."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        self._refuse_fork()
        try:
            other = X25519PublicKey.from_public_bytes(theirs)
            return bytes(self._private[purpose].exchange(other))
        except (
            ValueError
        ):  # also a key of small order, for which anyone knows the secret
            raise InputError(f"the key of member {rank} is not a valid key.") from None

    def _refuse_fork(self) -> None:
        if self._process != os.getpid():
            raise ReuseError("keys of an attempt must not be used in a forked process.")

    def __repr__(self) -> str:
        return "<secrets of an attempt>"

    def __reduce__(self) -> NoReturn:
        """Refuses copies and files.

        Raises:
            TypeError: always.
        """
        raise TypeError("secrets of an attempt are never copied or written.")


def derive(secret: bytes, purpose: bytes, *parts: bytes) -> bytes:
    """HKDF-SHA256: a key of 32 bytes for this purpose and these parts."""
    return hkdf(secret, b"", _WORD + pack_parts(purpose, *parts), HASH)


def hkdf(secret: bytes, salt: bytes, info: bytes, size: int) -> bytes:
    """HKDF-SHA256 of RFC 5869."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), size, salt or None, info).derive(secret)


def stream(key: bytes, size: int, dtype: Any) -> Row:
    """The first numbers of the ChaCha20 stream of a key, as little-endian words."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    if not 0 <= size < _MOST:
        raise InputError(f"a row must have fewer than {_MOST} numbers, got {size}.")
    kind = np.dtype(dtype).newbyteorder("<")
    # The first 4 of these 16 bytes are the number of the first block.
    cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    raw = cipher.update(bytes(size * kind.itemsize))
    return np.frombuffer(raw, kind).astype(dtype, copy=False)


def _of_row(row: Row) -> bytes:
    """What members must also agree on: the type and length of their rows."""
    return row.dtype.itemsize.to_bytes(1, "big") + len(row).to_bytes(8, "big")


def pair_mask(
    shared: bytes,
    context: MessageContext,
    pair: tuple[tuple[int, bytes], tuple[int, bytes]],
    like: Row,
) -> Row:
    """The mask that two members share, for a row like this one.

    Args:
        shared: secret of X25519.
        context: of the sum.
        pair: rank and public key of both members, in any order.
        like: a row of the same type and length.
    """
    ends = [rank.to_bytes(8, "big") + public for rank, public in sorted(pair)]
    key = derive(shared, b"pair", *ends, context.to_bytes(), _of_row(like))
    return stream(key, len(like), like.dtype)


def self_mask(opening: bytes, like: Row) -> Row:
    """The self-mask of a member, for a row like this one."""
    return stream(derive(opening, b"self-mask", _of_row(like)), len(like), like.dtype)


# Rows and their sum.


def mask_row(
    row: Row,
    keys: AttemptKeys,
    others: Mapping[int, PublicKeys],
    rank: int,
    context: MessageContext,
    *,
    least: int = LEAST_MEMBERS,
) -> Row:
    """The row as it leaves this site.

    Args:
        row: whole numbers from `to_grid`.
        keys: of this member, for this attempt.
        others: keys of the other present members, whose signatures were checked.
        rank: of this member.
        context: of the sum.
        least: the fewest members of a sum.

    Raises:
        InputError: if too few members are present, or a key is missing.
        ReuseError: if these keys have masked a row of this collective already.
    """
    present = context.present
    if rank not in present:
        raise InputError(f"member {rank} is not present in round {context.round}.")
    if len(present) < max(2, least):
        raise InputError(
            f"a sum must have at least {max(2, least)} members, but "
            f"{len(present)} are present in round {context.round}."
        )
    missing = [k for k in present if k != rank and k not in others]
    if missing:
        raise InputError(f"the keys of members {missing} are missing.")
    keys.use(context, "a mask")
    own = rank, keys.public.masks
    total = row + self_mask(keys.opening(context), row)
    for k in present:
        if k == rank:
            continue
        theirs = others[k].masks
        mask = pair_mask(
            keys.secret_with("masks", theirs, k), context, (own, (k, theirs)), row
        )
        if k > rank:
            total += mask
        else:
            total -= mask
    return total


def open_sum(rows: Mapping[int, Row], openings: Mapping[int, bytes]) -> Row:
    """The sum of the rows of all present members, without their self-masks.

    If the members did not agree on the context, or if one row is missing or changed,
    the result is random.

    Raises:
        InputError: if rows and openings are not from the same members, or do not fit.
    """
    if not rows or rows.keys() != openings.keys():
        raise InputError(
            f"a sum needs rows and self-masks of the same members, got rows of "
            f"{sorted(rows)} and self-masks of {sorted(openings)}."
        )
    total = np.zeros_like(next(iter(rows.values())))
    for rank, row in rows.items():
        if (row.dtype, row.shape) != (total.dtype, total.shape):
            raise InputError(f"the row of member {rank} has another type or length.")
        total += row
        total -= self_mask(openings[rank], row)
    return total


# What members sign before self-masks are opened.


def row_digest(context: MessageContext, rank: int, payload: bytes) -> bytes:
    """The hash of a masked row as a member sends it."""
    told = pack_parts(b"row", rank.to_bytes(8, "big"), context.to_bytes(), payload)
    return hashlib.sha256(_WORD + told).digest()


def arrival_list(context: MessageContext, digests: Mapping[int, bytes]) -> bytes:
    """What all present members sign: these rows have arrived at the hub.

    Raises:
        InputError: if the list does not have exactly the rows of the present members.
    """
    if sorted(digests) != list(context.present):
        raise InputError(
            f"the rows of members {sorted(digests)} have arrived, but members "
            f"{list(context.present)} are present."
        )
    if any(len(digest) != HASH for digest in digests.values()):
        raise InputError(f"every hash of a row must have {HASH} bytes.")
    return _WORD + pack_parts(
        b"arrived",
        context.to_bytes(),
        b"".join(digests[rank] for rank in context.present),
    )


def refuse_list(told: bytes, own: MessageContext, rank: int, digest: bytes) -> None:
    """Refuses a list of arrivals that is not about this member's sum and row.

    Args:
        told: the list, as the hub sends it.
        own: the context of this member.
        rank: of this member.
        digest: of the row that this member has sent.
    """
    count = len(own.present)
    empty = arrival_list(own, dict.fromkeys(own.present, bytes(HASH)))
    start = len(empty) - count * HASH
    if len(told) != len(empty) or told[:start] != empty[:start]:
        raise InputError(
            f"the list of arrivals in round {own.round} is about another sum than this "
            "member's."
        )
    place = start + own.present.index(rank) * HASH
    if told[place : place + HASH] != digest:
        raise InputError(
            f"the list of arrivals in round {own.round} has another row of member "
            f"{rank} than the one that it sent."
        )
