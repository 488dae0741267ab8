"""Claims about sealed mail."""

from __future__ import annotations

import dataclasses

import pytest
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from coterie.checks import InputError
from coterie.deploy.sites.mail import OVERHEAD, open_mail, seal
from coterie.deploy.sites.masks import AttemptKeys, MessageContext, ReuseError

CONTEXT = MessageContext(
    bytes(32), bytes(32), 1, "cobo", 0, 1, 1, 0, present=(0, 1, 2), last=bytes(32)
)
OTHER = {
    "study": b"s" * 32,
    "roster": b"r" * 32,
    "run": 2,
    "entry": "mix",
    "seed": 1,
    "round": 2,
    "attempt": 2,
    "number": 1,
    "present": (0, 1),
    "last": b"l" * 32,
}


@pytest.fixture(scope="module")
def keys():
    """Keys of three members."""
    return [AttemptKeys.fresh() for _ in range(3)]


def sealed_by(keys, receiver=1, context=CONTEXT):
    """A message of member 0, with keys of its own."""
    sender = AttemptKeys.fresh()
    return sender.public, seal(
        b"a row", sender, keys[receiver].public, context, 0, receiver
    )


def test_the_receiver_reads_what_the_sender_sealed(keys):
    public, sent = sealed_by(keys)
    assert len(sent) == len(b"a row") + OVERHEAD
    assert b"a row" not in sent
    assert open_mail(sent, keys[1], public, CONTEXT, 0, 1) == b"a row"


def test_nobody_else_reads_it(keys):
    public, sent = sealed_by(keys)
    for who, receiver in ((2, 1), (2, 2), (0, 1)):
        with pytest.raises(InputError, match="mail from member 0 in round 1"):
            open_mail(sent, keys[who], public, CONTEXT, 0, receiver)
    with pytest.raises(InputError, match="does not open"):
        open_mail(sent, keys[1], keys[2].public, CONTEXT, 0, 1)
    with pytest.raises(InputError, match="does not open"):
        open_mail(sent, keys[1], public, CONTEXT, 2, 1)


@pytest.mark.parametrize("place", [0, 4, 5, -1])
def test_changed_and_cut_mail_does_not_open(keys, place):
    public, sent = sealed_by(keys)
    changed = bytearray(sent)
    changed[place] ^= 1
    for wrong in (bytes(changed), sent[:-1], sent + b"x", b""):
        with pytest.raises(InputError, match="does not open"):
            open_mail(wrong, keys[1], public, CONTEXT, 0, 1)


@pytest.mark.parametrize("field", OTHER)
def test_mail_of_another_exchange_does_not_open(keys, field):
    public, sent = sealed_by(keys)
    with pytest.raises(InputError, match="does not open"):
        other = dataclasses.replace(CONTEXT, **{field: OTHER[field]})
        open_mail(sent, keys[1], public, other, 0, 1)


def test_a_key_of_mail_is_used_once(keys):
    sender = AttemptKeys.fresh()
    seal(b"a", sender, keys[1].public, CONTEXT, 0, 1)
    with pytest.raises(ReuseError, match="a key of mail of collective 0"):
        seal(b"b", sender, keys[1].public, CONTEXT, 0, 1)
    seal(b"b", sender, keys[2].public, CONTEXT, 0, 2)
    seal(b"b", sender, keys[1].public, dataclasses.replace(CONTEXT, number=1), 0, 1)
    with pytest.raises(ReuseError, match="another attempt"):
        later = dataclasses.replace(CONTEXT, attempt=2, number=2)
        seal(b"b", sender, keys[1].public, later, 0, 1)


def test_equal_rows_to_two_members_have_nothing_in_common(keys):
    sender = AttemptKeys.fresh()
    row = bytes(4096)
    one = seal(row, sender, keys[1].public, CONTEXT, 0, 1)
    two = seal(row, sender, keys[2].public, CONTEXT, 0, 2)
    equal = sum(a == b for a, b in zip(one, two, strict=True))
    assert equal < 16 + 5 * 4  # about one byte in 256


def test_mail_goes_between_two_present_members(keys):
    for sender, receiver in ((0, 0), (0, 3), (3, 0)):
        with pytest.raises(InputError, match="between two present members"):
            seal(b"", keys[0], keys[1].public, CONTEXT, sender, receiver)


def test_sealing_is_that_of_rfc_8439():
    # Section 2.8.2: the library that seals gives the printed answer.
    key, told = bytes(range(0x80, 0xA0)), bytes.fromhex("50515253c0c1c2c3c4c5c6c7")
    nonce = bytes.fromhex("070000004041424344454647")
    text = (
        b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip "
        b"for the future, sunscreen would be it."
    )
    sealed = ChaCha20Poly1305(key).encrypt(nonce, text, told)
    assert sealed[:16].hex() == "d31a8d34648e60db7b86afbc53ef7ec2"
    assert sealed[-16:].hex() == "1ae10b594f09e26a7e902ecbd0600691"
