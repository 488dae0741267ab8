"""Secret noise is Gaussian to its tails, on a grid, and nothing of it comes twice."""

from __future__ import annotations

import copy
import math
import os
import pickle

import mpmath
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy.stats import kstest, norm
from torch import Tensor

from coterie import seeds
from coterie.checks import InputError
from coterie.privacy.mechanisms import noise
from coterie.privacy.mechanisms.noise.secret import (
    GaussianDraws,
    add_secret,
    refuse_inexact,
)

MOST = 2**63 - 1
HERE = torch.device("cpu")


class Given(noise.SecretStream):
    """A stream of words that a test gives, and then of one word."""

    def __init__(self, words: Tensor | list[int], then: int = 0) -> None:
        super().__init__()
        self.words, self.then = torch.as_tensor(words), then

    def fill(self, words: Tensor) -> None:
        words.fill_(self.then).view(-1)[: len(self.words)] = self.words
        self.words = self.words[:0]


def words_of(stream: noise.SecretStream, count: int) -> list[int]:
    words = torch.empty(count, dtype=torch.int64)
    stream.fill(words)
    return words.tolist()


# Bits.


@pytest.fixture
def keys(monkeypatch) -> list[bytes]:
    """What the system gives from now on."""
    given: list[bytes] = []
    true = os.urandom

    def key(size: int) -> bytes:
        given.append(true(size))
        return given[-1]

    monkeypatch.setattr(os, "urandom", key)
    return given


def test_bits_are_the_keystream_of_aes_in_counter_mode(keys):
    stream = noise.SecretStream()
    count = 2**18 + 5  # more than is taken at once
    found = words_of(stream, 3) + words_of(stream, count)
    assert [len(each) for each in keys] == [32]
    whole = Cipher(algorithms.AES256(keys[0]), modes.CTR(bytes(16))).encryptor()
    raw = bytearray(whole.update(bytes(8 * (count + 3))))
    assert found == torch.frombuffer(raw, dtype=torch.int64).tolist()


def test_no_word_comes_twice():
    stream, other = noise.SecretStream(), noise.SecretStream()
    found = words_of(stream, 5000) + words_of(stream, 5000) + words_of(other, 5000)
    # Of 15,000 words of 64 bits two are the same with chance 6e-12.
    assert len(set(found)) == 15000


@pytest.mark.parametrize("what", ["fork", "worn key"])
def test_a_forked_process_and_a_worn_key_get_a_new_key(monkeypatch, keys, what):
    monkeypatch.setattr(noise.secret, "_BLOCKS", 64)
    stream = noise.SecretStream()
    words_of(stream, 128)
    assert len(keys) == 1  # 64 blocks of two words
    if what == "fork":
        stream = noise.SecretStream()
        monkeypatch.setattr(os, "getpid", lambda: -1)
    words_of(stream, 1)
    assert len(set(keys)) == 2 + (what == "fork")


def test_a_stream_is_never_copied_written_or_shown(monkeypatch):
    monkeypatch.setattr(os, "urandom", lambda size: bytes(range(size)))
    source = noise.NoiseSource(noise.SecretStream())
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="never copied or written"):
            copied(source._stream)
    assert repr(source._stream) == "<secret stream>"
    kept = [source._stream, *vars(source._stream).values()]
    assert not any(isinstance(each, bytes | bytearray | str | Tensor) for each in kept)


# Draws.


def exact(word: int, more: tuple[int, int]) -> float:
    """Phi^-1 of what a word and those after it stand for, to 40 digits."""
    with mpmath.workdps(50):
        high, low = (each >> 11 & 2**53 - 1 for each in more)
        rest = (high + (low + mpmath.mpf(1) / 2) / 2**53) / mpmath.mpf(2) ** 53
        is_low = word < 0
        step = (word + 2**63 if is_low else MOST - word) + rest
        tail = step / mpmath.mpf(2) ** 64  # of the lower or the upper tail
        start = math.sqrt(2 * max(0.0, -float(mpmath.log(2 * tail))))

        def away(x):
            return mpmath.log(mpmath.erfc(x / mpmath.sqrt(2)) / 2) - mpmath.log(tail)

        found = mpmath.findroot(away, (start, start + 0.1))
        return float(-found if is_low else found)


def test_draws_are_quantiles_to_what_the_proof_allows():
    rng = torch.Generator().manual_seed(0)
    drawn = torch.randint(-(2**63), MOST, (60,), generator=rng).tolist()
    edge = 2**63 - 33 * 2**48  # of the tails
    edges = [sign * edge + k for sign in (1, -1) for k in (-2, -1, 0, 1)]
    outer = [MOST - 2**k for k in range(0, 56, 5)] + [2**k - 2**63 for k in (0, 30)]
    for then in (0, MOST, 12345 << 40):
        words = [*drawn, *edges, *outer, -(2**63), MOST]
        draws = GaussianDraws(Given(words, then), len(words), HERE).next(len(words))
        draws = draws * math.sqrt(2)
        wanted = [exact(word, (then, then)) for word in words]
        for word, found, true in zip(words, draws.tolist(), wanted, strict=True):
            # In the centre the bits after the first word are not used.
            assert abs(found - true) < 2.0**-45, (word, found, true)
    assert len({-edge - 1, -edge, edge - 1, edge} & set(words)) == 4


def test_noise_reaches_beyond_twelve_standard_deviations():
    for word, sign in ((-(2**63), -1), (MOST, 1)):
        found = GaussianDraws(Given([word]), 1, HERE).next(1) * math.sqrt(2)
        assert 12 < sign * float(found) < 20


def test_draws_are_gaussian_in_the_centre_and_in_the_tails():
    count = 2**21
    stream = noise.SecretStream()
    draws = GaussianDraws(stream, count, HERE).next(count) * math.sqrt(2)
    # Nothing is seeded: one run in 10^7 fails each of these.
    assert kstest(draws[:200_000].numpy(), "norm").pvalue > 1e-7
    for edge in (1.0, 2.5, 3.0, 3.28, 3.3, 4.0):
        chance = float(norm.sf(edge))
        spread = math.sqrt(count * chance * (1 - chance))
        for tail in (draws > edge, draws < -edge):
            assert abs(int(tail.sum()) - count * chance) < 5.5 * spread + 1
    pairs = float((draws[:-1] * draws[1:]).mean())
    assert abs(pairs) < 5.5 / math.sqrt(count)


# Releases.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_is_as_large_as_it_is_charged_and_hardly_larger(dtype):
    scale = torch.tensor([0.001, 3.0, 700.0], dtype=torch.float64)
    rows = torch.zeros(3, 400_000, dtype=dtype)
    add_secret(rows, noise.SecretStream(), scale, 1.0)
    found = rows.double().square().mean(1).sqrt() / scale
    wanted = 1 + 2.0**-10
    assert bool(((found - wanted).abs() < 5.5 / math.sqrt(2 * 400_000)).all())


def test_rows_leave_on_a_grid_that_does_not_depend_on_them():
    # 200 rows with the one or the other number: whoever asks whether a row less that
    # number could be noise gets the same answer for both.
    numbers = torch.tensor([1 / 3, 0.1 + 1e-9], dtype=torch.float64).repeat(100)
    rows = numbers[:, None].repeat(1, 50)
    add_secret(rows, noise.SecretStream(), torch.full((200,), 0.7).double(), 1.0)
    grid = 2.0 ** (math.floor(math.log2(0.7 * (1 + 2.0**-10))) - 8)
    assert 0.7 / 512 < grid <= 0.7 / 256
    assert torch.equal(rows / grid, (rows / grid).round())
    steps = (rows / grid).long() % 64
    for own in (steps[::2], steps[1::2]):  # which steps of the grid, all the same
        counts = own.flatten().bincount(minlength=64).double()
        excess = (counts - 5000 / 64).square().sum() / (5000 / 64)
        assert float(excess) < 63 + 6 * math.sqrt(2 * 63)


def test_a_mean_is_not_moved_by_the_grid():
    rows = torch.full((1, 400_000), 1e-4, dtype=torch.float64)  # of a step, a 40th
    add_secret(rows, noise.SecretStream(), torch.ones(1).double(), 1.0)
    assert abs(float(rows.mean()) - 1e-4) < 5.5 / math.sqrt(400_000)


def test_rows_that_only_leave_in_sums_are_not_rounded():
    rows = torch.zeros(1, 1000, dtype=torch.float64)
    add_secret(rows, noise.SecretStream(), torch.ones(1).double(), 1.0, rounded=False)
    assert not bool((rows * 256 == (rows * 256).round()).any())


def test_the_margin_pays_for_finite_precision_or_the_noise_is_refused():
    # From the docstring: mu / (1 + 2^-10) + 2 sqrt(d pi / 2) eta <= mu.
    for columns, mu in ((1, 1e-6), (10**8, 0.01), (10**6, 1e6)):
        refuse_inexact(columns, mu)
        eta = 1152 * (2.0**-44 + 2.0**-53 * (14 + mu))
        extra = 2 * math.sqrt(columns * math.pi / 2) * eta
        assert mu / (1 + 2.0**-10) + extra <= mu
    for columns, mu, reach in ((10**8, 1e-4, None), (1, 1e-8, None), (10**6, 1, 1e7)):
        with pytest.raises(InputError, match="cannot be drawn exactly enough"):
            refuse_inexact(columns, mu, reach)


# The attack that takes seeded noise off.


def unmixed(word: int) -> int:
    """The state of SplitMix64 whose output is this word."""
    mask = 2**64 - 1

    def unshifted(z: int, shift: int) -> int:
        found = z
        for _ in range(64 // shift + 1):
            found = z ^ found >> shift
        return found

    z = unshifted(word & mask, 31)
    z = unshifted(z * pow(0x94D049BB133111EB, -1, 2**64) & mask, 27)
    return unshifted(z * pow(0xBF58476D1CE4E5B9, -1, 2**64) & mask, 30)


KNOWN = [0, 1, 20, 21]
"""Places of a row of 40 whose numbers are known: two pairs of cosine and sine."""


def taken_off(z: Tensor, known: list[float]) -> Tensor:
    """The row without its noise, which is `known` at those places.

    Angles of two pairs are the halves of one word, the 11th of the sequence.
    """
    low, high = (
        round(math.atan2(sine, cosine) / (math.pi * 2.0**-31)) % 2**32
        for cosine, sine in zip(known[:2], known[2:], strict=True)
    )
    start = unmixed(high << 32 | low) - 11 * 0x9E3779B97F4A7C15
    begin = torch.tensor([(start + 2**63) % 2**64 - 2**63])
    words = torch.empty(1, 20, dtype=torch.int64)
    seeds.bits_into(words, begin, seeds.steps(20, 0, HERE))
    u, v = words.view(torch.int32).double()[0].chunk(2)
    length = (-2 * ((u.abs() + 0.5) / (2.0**31 + 0.5)).log()).sqrt()
    angle = v * math.pi * 2.0**-31
    return z - torch.cat([length * angle.cos(), length * angle.sin()])


@pytest.mark.parametrize(("name", "comes_off"), [("seed", True), ("system", False)])
def test_four_known_numbers_take_seeded_noise_off_and_leave_secret_noise(
    name, comes_off
):
    row = torch.linspace(-0.1, 0.1, 40, dtype=torch.float64)[None]
    one, names = torch.ones(1, dtype=torch.float64), torch.tensor([5])
    z = noise.source_of(name).add(row.clone(), 77, names, one, mu=1.0)
    off = taken_off(z[0], (z - row)[0, KNOWN].tolist()) - row[0]
    left = off[[j for j in range(40) if j not in KNOWN]].abs()
    assert bool((left < 1e-6).all()) == comes_off
    assert (float(left.mean()) > 0.3) != comes_off


def test_seeded_noise_is_a_function_of_its_names_and_secret_noise_is_not():
    assert noise.source_of("seed") is noise.SEEDED
    keys, names = torch.zeros(1, 1).long(), torch.arange(3)
    own = noise.source_of("system")
    assert torch.equal(noise.SEEDED.bits(keys, names, 4), seeds.bits(keys, names, 4))
    first, again = (own.bits(keys, names, 4) for _ in range(2))
    assert first.shape == (1, 3, 4) and not bool((first == again).any())
