"""Sealed mail: rows from one member to another, which the hub relays but cannot read.

    key    = HKDF-SHA256(X25519(private_i, public_k); "mail", sender, receiver, context)
    sealed = ChaCha20-Poly1305(key, nonce 0, row; associated data: the same words)

The key belongs to one message: one context, one sender and one receiver. It is used
once, so its nonce can be 0. A message that was changed, or that belongs to another
round, attempt, pair or present set, does not open.

The hub still sees who writes to whom, when, and how many bytes.

References:
    RFC 7748 (X25519), RFC 5869 (HKDF), RFC 8439 (ChaCha20-Poly1305).
"""

from __future__ import annotations

from ...checks import InputError
from .masks import AttemptKeys, MessageContext, PublicKeys, derive, pack_parts

OVERHEAD = 16
"""Bytes by which a sealed row is longer than the row."""

_NONCE = bytes(12)


def seal(
    row: bytes,
    keys: AttemptKeys,
    theirs: PublicKeys,
    context: MessageContext,
    sender: int,
    receiver: int,
) -> bytes:
    """The row, readable by the receiver alone.

    Args:
        row: the bytes to send.
        keys: of the sender, for this attempt.
        theirs: keys of the receiver, whose signature was checked.
        context: of the exchange.
        sender: rank of this member.
        receiver: rank of the other member.

    Raises:
        ReuseError: if these keys have sealed a message to this member already, in this
            collective.
    """
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    _refuse_absent(context, sender, receiver)
    keys.use(context, "a key of mail", receiver)
    ends = (sender, keys.public.mail), (receiver, theirs.mail)
    told = _ends_and_context(context, *ends)
    key = derive(keys.secret_with("mail", theirs.mail, receiver), b"mail", told)
    return ChaCha20Poly1305(key).encrypt(_NONCE, row, told)


def open_mail(
    sealed: bytes,
    keys: AttemptKeys,
    theirs: PublicKeys,
    context: MessageContext,
    sender: int,
    receiver: int,
) -> bytes:
    """The row in a sealed message to this member.

    Args:
        sealed: the message.
        keys: of the receiver, for this attempt.
        theirs: keys of the sender, whose signature was checked.
        context: of the exchange.
        sender: rank of the other member.
        receiver: rank of this member.

    Raises:
        InputError: if the message was changed, or is not for this exchange.
    """
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    _refuse_absent(context, sender, receiver)
    ends = (sender, theirs.mail), (receiver, keys.public.mail)
    told = _ends_and_context(context, *ends)
    key = derive(keys.secret_with("mail", theirs.mail, sender), b"mail", told)
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, sealed, told)
    except InvalidTag:
        raise InputError(
            f"mail from member {sender} in round {context.round} does not open: it was "
            "changed, or it is not for this exchange."
        ) from None


def _ends_and_context(context: MessageContext, *ends: tuple[int, bytes]) -> bytes:
    """Sender, receiver and context."""
    who = (rank.to_bytes(8, "big") + public for rank, public in ends)
    return pack_parts(*who, context.to_bytes())


def _refuse_absent(context: MessageContext, sender: int, receiver: int) -> None:
    if sender == receiver or not {sender, receiver} <= set(context.present):
        raise InputError(
            f"mail must go between two present members, got {sender} to {receiver}."
        )
