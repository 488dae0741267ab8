"""Claims about masks: what they hide, when they vanish, and what is refused."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import hmac
import pickle

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from coterie.checks import InputError
from coterie.deploy.sites import masks
from coterie.deploy.sites.masks import (
    AttemptKeys,
    MessageContext,
    PublicKeys,
    ReuseError,
    TooLarge,
    exponents_after,
    from_grid,
    from_narrow,
    grid_for,
    mask_row,
    open_sum,
    to_grid,
    to_narrow,
)

SIZE = 4096


def context(present=(0, 1, 2, 3), **changes) -> MessageContext:
    """The first sum of a round, or one that differs in something."""
    usual = MessageContext(
        study=bytes(32),
        roster=b"r" * 32,
        run=1,
        entry="fedavg",
        seed=0,
        round=1,
        attempt=1,
        number=0,
        present=tuple(present),
        last=bytes(32),
    )
    return dataclasses.replace(usual, **changes)


def seeded_keys(rank: int, seed: int = 0) -> AttemptKeys:
    """Keys that are the same in every run of the tests."""

    def secret(name: str) -> bytes:
        return hashlib.sha256(f"{name} {rank} {seed}".encode()).digest()

    pairs = (X25519PrivateKey.from_private_bytes(secret(n)) for n in ("masks", "mail"))
    return AttemptKeys(*pairs, secret("self"))


def members(present, seed: int = 0) -> dict[int, AttemptKeys]:
    """Keys of every present member."""
    return {rank: seeded_keys(rank, seed) for rank in present}


def rows_of(present, dtype=np.uint64, size: int = SIZE):
    """Random rows of whole numbers."""
    rng = np.random.default_rng(0)
    most = np.iinfo(dtype).max
    return {k: rng.integers(0, most, size, dtype, endpoint=True) for k in present}


def send(rows, keys, contexts):
    """The masked rows and the keys of self-masks of all members."""
    public = {rank: key.public for rank, key in keys.items()}
    sent, openings = {}, {}
    for rank, row in rows.items():
        others = {k: of for k, of in public.items() if k != rank}
        sent[rank] = mask_row(row, keys[rank], others, rank, contexts[rank])
        openings[rank] = keys[rank].opening(contexts[rank])
    return sent, openings


def total_of(rows):
    """The sum modulo 2^b, by a loop over Python's whole numbers."""
    bits = 8 * next(iter(rows.values())).itemsize
    columns = zip(*(row.tolist() for row in rows.values()), strict=True)
    return [sum(column) % 2**bits for column in columns]


def refuse_pattern(row) -> None:
    """Raises if bits of a row are not like fair coins, at five standard deviations."""
    bits = np.unpackbits(row.view(np.uint8)).astype(float)
    count = len(bits)
    assert abs(bits.mean() - 0.5) < 5 * 0.5 / count**0.5
    for apart in (1, 8, 8 * row.itemsize):
        same = (bits[apart:] == bits[:-apart]).mean()
        assert abs(same - 0.5) < 5 * 0.5 / (count - apart) ** 0.5
    # Chi-squared over bytes: 255 degrees of freedom, variance 510.
    seen = np.bincount(row.view(np.uint8), minlength=256)
    expected = seen.sum() / 256
    chi = ((seen - expected) ** 2 / expected).sum()
    assert abs(chi - 255) < 5 * 510**0.5


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
@pytest.mark.parametrize("present", [(0, 1, 2), (0, 2, 3, 7), tuple(range(8))])
def test_masks_vanish_in_the_sum_of_all_rows(dtype, present):
    rows = rows_of(present, dtype, 100)
    sent, openings = send(
        rows, members(present), dict.fromkeys(present, context(present))
    )
    assert open_sum(sent, openings).tolist() == total_of(rows)


def test_every_masked_row_looks_random():
    present = (0, 1, 2)
    rows = {rank: np.zeros(SIZE, np.uint64) for rank in present}
    sent, _ = send(rows, members(present), dict.fromkeys(present, context(present)))
    for row in sent.values():
        refuse_pattern(row)


def test_a_sum_without_one_member_is_random():
    present = (0, 1, 2, 3)
    rows = {rank: np.zeros(SIZE, np.uint64) for rank in present}
    sent, openings = send(
        rows, members(present), dict.fromkeys(present, context(present))
    )
    for lost in present:
        rest = {rank: row for rank, row in sent.items() if rank != lost}
        refuse_pattern(open_sum(rest, {rank: openings[rank] for rank in rest}))


def test_a_sum_with_one_self_mask_closed_is_random():
    present = (0, 1, 2)
    rows = {rank: np.zeros(SIZE, np.uint64) for rank in present}
    sent, openings = send(
        rows, members(present), dict.fromkeys(present, context(present))
    )
    refuse_pattern(open_sum(sent, {**openings, 1: bytes(32)}))


OTHER = {
    "study": b"s" * 32,
    "roster": bytes(32),
    "run": 2,
    "entry": "ditto",
    "seed": 1,
    "round": 2,
    "attempt": 2,
    "number": 1,
    "present": (0, 1, 2, 3, 4),
    "last": b"l" * 32,
}


@pytest.mark.parametrize(
    "field", [each.name for each in dataclasses.fields(MessageContext)]
)
def test_a_sum_is_random_if_one_member_disagrees_on_anything(field):
    present = (0, 1, 2, 3)
    keys = members((*present, 4))
    rows = {rank: np.zeros(SIZE, np.uint64) for rank in present}
    contexts = dict.fromkeys(present, context(present))
    contexts[2] = context(**{"present": present, field: OTHER[field]})
    sent, openings = send(rows, keys, contexts)
    refuse_pattern(open_sum(sent, openings))


def test_a_sum_is_random_if_somebody_swapped_a_mask_key():
    present = (0, 1, 2)
    keys, hub = members(present), seeded_keys(9)
    rows = {rank: np.zeros(SIZE, np.uint64) for rank in present}
    sent, openings = send(rows, keys, dict.fromkeys(present, context(present)))
    fresh = seeded_keys(0, seed=0)
    others = {1: hub.public, 2: keys[2].public}
    sent[0] = mask_row(rows[0], fresh, others, 0, context(present))
    refuse_pattern(open_sum(sent, openings))


def test_masks_of_collectives_and_attempts_have_nothing_in_common():
    present, row = (0, 1, 2), np.zeros(SIZE, np.uint64)
    keys = members(present)
    others = {k: keys[k].public for k in (1, 2)}
    seen = [mask_row(row, keys[0], others, 0, context(present, number=0))]
    seen.append(mask_row(row, keys[0], others, 0, context(present, number=1)))
    again = seeded_keys(0, seed=1)
    seen.append(mask_row(row, again, others, 0, context(present, attempt=2)))
    for a in range(3):
        for b in range(a):
            refuse_pattern(seen[a] - seen[b])


def test_a_mask_is_never_used_twice():
    present, row = (0, 1, 2), np.zeros(4, np.uint64)
    keys = members(present)
    others = {k: keys[k].public for k in (1, 2)}
    mask_row(row, keys[0], others, 0, context(present))
    for again in (context(present), context(present, last=b"x" * 32)):
        with pytest.raises(ReuseError, match="a mask of collective 0 in round 1"):
            mask_row(row, keys[0], others, 0, again)
    for other in ({"attempt": 2}, {"round": 2}, {"run": 2}, {"roster": bytes(32)}):
        with pytest.raises(ReuseError, match="another attempt"):
            mask_row(row, keys[0], others, 0, context(present, number=1, **other))


def test_a_smaller_set_is_never_summed_with_the_same_keys():
    keys, row = members(range(4)), np.zeros(4, np.uint64)
    others = {k: keys[k].public for k in (1, 2, 3)}
    mask_row(row, keys[0], others, 0, context((0, 1, 2, 3)))
    with pytest.raises(ReuseError, match="another attempt"):
        mask_row(row, keys[0], others, 0, context((0, 1, 2), number=1))


def test_too_few_members_and_missing_keys_are_refused():
    keys, row = members(range(4)), np.zeros(4, np.uint64)
    others = {k: keys[k].public for k in (1, 2, 3)}
    with pytest.raises(InputError, match="at least 3 members, but 2 are present"):
        mask_row(row, keys[0], others, 0, context((0, 1)))
    with pytest.raises(InputError, match="at least 4 members, but 3 are present"):
        mask_row(row, keys[0], others, 0, context((0, 1, 2)), least=4)
    with pytest.raises(InputError, match="at least 2 members, but 1 are present"):
        mask_row(row, keys[0], others, 0, context((0,)), least=0)
    with pytest.raises(InputError, match=r"keys of members \[2\] are missing"):
        mask_row(row, keys[0], {1: keys[1].public}, 0, context((0, 1, 2)))
    with pytest.raises(InputError, match="member 0 is not present"):
        mask_row(row, keys[0], others, 0, context((1, 2, 3)))
    # A refusal uses up nothing.
    mask_row(row, keys[0], others, 0, context((0, 1, 2, 3)))


def test_a_key_for_which_anyone_knows_the_secret_is_refused():
    keys, row = members(range(3)), np.zeros(4, np.uint64)
    others = {1: PublicKeys(bytes(32), bytes(32)), 2: keys[2].public}
    with pytest.raises(InputError, match="key of member 1 is not a valid key"):
        mask_row(row, keys[0], others, 0, context((0, 1, 2)))
    with pytest.raises(InputError, match="64 bytes, got 3"):
        PublicKeys.from_bytes(b"abc")
    assert PublicKeys.from_bytes(keys[0].public.to_bytes()) == keys[0].public


def test_a_self_mask_is_opened_only_in_the_context_of_its_row():
    present, row = (0, 1, 2), np.zeros(4, np.uint64)
    keys = members(present)
    with pytest.raises(InputError, match="sent no such row"):
        keys[0].opening(context(present))
    others = {k: keys[k].public for k in (1, 2)}
    mask_row(row, keys[0], others, 0, context(present))
    keys[0].opening(context(present))
    with pytest.raises(InputError, match="sent no such row"):
        keys[0].opening(context(present, last=b"x" * 32))


def test_fresh_keys_differ_and_show_nothing():
    a, b = AttemptKeys.fresh(), AttemptKeys.fresh()
    assert len({*a.public, *b.public}) == 4
    assert repr(a) == "<secrets of an attempt>"
    for copying in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="never copied"):
            copying(a)


def test_keys_are_not_used_in_a_forked_process(monkeypatch):
    keys = seeded_keys(0)
    monkeypatch.setattr(masks.os, "getpid", lambda: -1)
    with pytest.raises(ReuseError, match="forked"):
        keys.use(context(), "a mask")
    with pytest.raises(ReuseError, match="forked"):
        keys.secret_with("masks", seeded_keys(1).public.masks, 1)


# Grids.


def test_numbers_return_from_the_grid_within_half_a_step():
    grid = grid_for(2.0**20, 100.0, 8)
    values = np.random.default_rng(0).uniform(-100, 100, 1000)
    back = from_grid(to_grid(values, grid), grid)
    assert np.abs(back - values).max() <= 0.5 / 2**20


@pytest.mark.parametrize(("scale", "bits"), [(2.0**16, 32), (2.0**40, 64)])
def test_the_largest_rows_of_all_members_fit(scale, bits):
    grid = grid_for(scale, 1000.0, 8)
    assert grid.bits == bits
    for sign in (1.0, -1.0):
        rows = [to_grid(np.full(3, sign * 1000.0), grid) for _ in range(8)]
        total = sum(rows[1:], rows[0].copy())
        assert from_grid(total, grid).tolist() == [sign * 8000.0] * 3


def test_the_grid_has_as_few_bits_as_the_sum_needs():
    largest = (2**31 - 1) / 4 - 1  # 4 members
    assert grid_for(1.0, np.floor(largest) - 1, 4).bits == 32
    assert grid_for(1.0, np.floor(largest) + 1, 4).bits == 64
    with pytest.raises(InputError, match="do not fit in 64 bits"):
        grid_for(2.0**60, 8.0, 2)


# Averages in 32 bits.


@pytest.mark.parametrize("members", [2, 3, 8, 20])
@pytest.mark.parametrize("size", [1e-20, 3e-4, 1.0, 1e6])
def test_an_average_in_32_bits_is_off_by_no_more_than_its_docstring_says(members, size):
    rng = np.random.default_rng(members)
    shares = rng.integers(50, 200, (members, 1)).astype(float)
    values = size * rng.normal(size=(members, 5000))
    rows = np.concatenate([shares * values, shares], 1)
    exact = rows.sum(0)
    before = exact * rng.uniform(0.5, 1.0)  # the last sum was not larger
    scale = exponents_after(before)
    whole = [to_narrow(row, scale, members) for row in rows]
    total = from_narrow(sum(whole[1:], whole[0].copy()), scale, exact.shape)
    assert total[-1] == exact[-1]  # numbers of samples are exact
    last = np.abs(before[:-1]).max() / before[-1]
    off = np.abs((total / total[-1] - exact / exact[-1])[:-1]).max()
    step = 2.0**-scale.values / exact[-1]
    assert step / 4 < off <= members / 2 * step
    assert members / 2 * step <= members * 2.0**-27 * last * before[-1] / exact[-1]


@pytest.mark.parametrize("members", [2, 3, 8, 20])
def test_the_largest_rows_of_32_bits_do_not_wrap_around(members):
    scale = exponents_after(np.array([1.0, 8.0]))
    most = 2**31 // members - 1
    row = np.array([most * 2.0**-scale.values, -most * 2.0**-scale.shares])
    total = sum(to_narrow(row, scale, members) for _ in range(members))
    assert from_narrow(total, scale, (2,)).tolist() == (members * row).tolist()
    for place in (0, 1):
        larger = row.copy()
        larger[place] *= (most + 1) / most
        with pytest.raises(TooLarge):
            to_narrow(larger, scale, members)


def test_numbers_may_become_several_times_as_large_as_in_the_last_sum():
    """16 times in the sum; a member with a share of 1/4 in a sum of 8, 8 times."""
    scale = exponents_after(np.array([0.999, 1.0]))
    to_narrow(np.array([8 * 0.999 / 4, 0.25]), scale, 8)
    with pytest.raises(TooLarge):
        to_narrow(np.array([8.1 / 4, 0.25]), scale, 8)


@pytest.mark.parametrize("total", [[0.0, 1.0], [1.0, 0.0], [np.nan, 1.0], [1.0]])
def test_a_sum_without_a_largest_number_gives_no_scale(total):
    assert exponents_after(np.array(total)) is None


@pytest.mark.parametrize("value", [1.5, -1.5, np.nan, np.inf, -np.inf])
def test_a_value_that_does_not_fit_is_named(value):
    grid = grid_for(2.0**20, 1.0, 3)
    with pytest.raises(TooLarge, match=r"at position 2, but `sites.largest` is 1"):
        to_grid(np.array([0.0, 1.0, value]), grid)


def test_a_sum_of_rows_that_do_not_fit_together_is_refused():
    rows = rows_of((0, 1), np.uint64, 4)
    openings = dict.fromkeys(rows, bytes(32))
    with pytest.raises(InputError, match="same members"):
        open_sum(rows, {0: bytes(32)})
    with pytest.raises(InputError, match="same members"):
        open_sum({}, {})
    with pytest.raises(InputError, match="member 1 has another type or length"):
        open_sum({**rows, 1: rows[1][:3]}, openings)
    with pytest.raises(InputError, match="member 1 has another type or length"):
        open_sum({**rows, 1: rows[1].astype(np.uint32)}, openings)


# Contexts and lists.


@pytest.mark.parametrize(
    "field", [each.name for each in dataclasses.fields(MessageContext)]
)
def test_contexts_that_differ_have_different_bytes(field):
    assert context(**{field: OTHER[field]}).to_bytes() != context().to_bytes()


@pytest.mark.parametrize(
    "change",
    [
        {"study": b"short"},
        {"round": -1},
        {"attempt": True},
        {"number": 2**63},
        {"present": (1, 0)},
        {"present": (0, 0)},
        {"present": (-1, 0)},
    ],
)
def test_contexts_that_could_be_written_in_two_ways_are_refused(change):
    with pytest.raises(InputError):
        context(**change)


def test_a_member_signs_only_a_list_with_its_own_row_in_its_own_sum():
    own = context((0, 1, 2))
    digests = {k: masks.row_digest(own, k, b"row") for k in (0, 1, 2)}
    told = masks.arrival_list(own, digests)
    masks.refuse_list(told, own, 1, digests[1])
    with pytest.raises(InputError, match="another row of member 1"):
        masks.refuse_list(told, own, 1, digests[2])
    with pytest.raises(InputError, match="another sum"):
        masks.refuse_list(told, context((0, 1, 2), number=1), 1, digests[1])
    with pytest.raises(InputError, match="another sum"):
        masks.refuse_list(told + b"x", own, 1, digests[1])
    with pytest.raises(InputError, match=r"members \[0, 1\] have arrived"):
        masks.arrival_list(own, {k: digests[k] for k in (0, 1)})
    assert len(set(digests.values())) == 3


# Known answers, from the RFCs.


def test_hkdf_gives_the_answers_of_rfc_5869():
    first = masks.hkdf(
        bytes([0x0B] * 22), bytes(range(13)), bytes(range(0xF0, 0xFA)), 42
    )
    assert first.hex() == (
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"
        "34007208d5b887185865"
    )
    third = masks.hkdf(bytes([0x0B] * 22), b"", b"", 42)
    assert third.hex() == (
        "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"
        "9d201395faa4b61a96c8"
    )


def test_streams_are_those_of_rfc_8439():
    # Appendix A.1, test vectors 1 and 2: blocks 0 and 1 of the key 0.
    blocks = (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
    )
    words = masks.stream(bytes(32), 16, np.uint64)
    assert words.astype("<u8").tobytes().hex() == blocks
    assert int(words[0]) == int.from_bytes(bytes.fromhex(blocks[:16]), "little")
    short = masks.stream(bytes(32), 32, np.uint32)
    assert short.astype("<u4").tobytes().hex() == blocks


def test_shared_secrets_are_those_of_rfc_7748():
    # Section 6.1.
    alice, bob = (
        X25519PrivateKey.from_private_bytes(bytes.fromhex(key))
        for key in (
            "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a",
            "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb",
        )
    )
    a, b = AttemptKeys(alice, bob, bytes(32)), AttemptKeys(bob, alice, bytes(32))
    assert a.public.masks.hex() == (
        "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    )
    assert b.public.masks.hex() == (
        "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    )
    secret = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    assert a.secret_with("masks", b.public.masks, 1).hex() == secret
    assert b.secret_with("masks", a.public.masks, 0).hex() == secret


def test_a_pair_mask_is_the_stream_of_the_key_that_the_formula_gives():
    """HKDF by hand, with the standard library."""
    own, row = context((0, 1, 2)), np.zeros(8, np.uint32)
    pair = (0, b"a" * 32), (2, b"c" * 32)

    def part(raw: bytes) -> bytes:
        return len(raw).to_bytes(8, "big") + raw

    numbers = (own.run, own.seed, own.round, own.attempt, own.number)
    told = (
        part(own.study)
        + part(own.roster)
        + part(b"fedavg")
        + part(b"".join(each.to_bytes(8, "big") for each in numbers))
        + part(b"".join(each.to_bytes(8, "big") for each in (0, 1, 2)))
        + part(own.last)
    )
    ends = [rank.to_bytes(8, "big") + public for rank, public in pair]
    kind = bytes([4]) + (8).to_bytes(8, "big")
    parts = (b"pair", *ends, told, kind)
    info = b"coterie sites 1 " + b"".join(part(each) for each in parts)
    extracted = hmac.digest(bytes(32), b"secret", "sha256")
    key = hmac.digest(extracted, info + b"\x01", "sha256")
    expected = masks.stream(key, 8, np.uint32).tolist()
    for order in (pair, pair[::-1]):
        found = masks.pair_mask(b"secret", own, order, row)
        assert found.tolist() == expected
