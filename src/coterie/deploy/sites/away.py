"""Mail to a member that is away: sealed with a key that the member made at its start.

    shared = X25519(fresh private key, public key of the receiver)
    key    = HKDF-SHA256(shared; "away", fresh public key, receiver's key, place, ends)
    sealed = fresh public key, ChaCha20-Poly1305(key, nonce 0, row), signature

An absent member has no keys of the attempt. Its own key lies in a file at its site, is
new in every run, and is deleted when the member has finished the run. Until then,
anybody who takes this file can read all mail of the run that has waited for the member.
The sender signs with its key of the roster.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ...checks import InputError
from .keys import Certificate, Key, sign, verify
from .masks import HASH, MessageContext, derive, pack_parts

_NONCE = bytes(12)
_FILE = "away.key"


class AwayKey:
    """The key of a member for mail that waits for it."""

    def __init__(self, private: Any) -> None:
        self._private = private
        self.public: bytes = private.public_key().public_bytes_raw()

    def secret_with(self, theirs: bytes) -> bytes:
        """The secret with the owner of a public key."""
        return _secret_with(self._private, theirs)


def away_key(folder: Path) -> AwayKey:
    """The key in a member's folder; it is made if there is none."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    path = folder / _FILE
    if path.exists():
        return AwayKey(X25519PrivateKey.from_private_bytes(path.read_bytes()))
    private = X25519PrivateKey.generate()
    made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(made, "wb") as file:
        file.write(private.private_bytes_raw())
        file.flush()
        os.fsync(file.fileno())
    return AwayKey(private)


def delete_away_key(folder: Path) -> None:
    """Deletes the key in a member's folder, which no mail waits for any more."""
    (folder / _FILE).unlink(missing_ok=True)


def _secret_with(private: Any, theirs: bytes) -> bytes:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

    try:
        return bytes(private.exchange(X25519PublicKey.from_public_bytes(theirs)))
    except ValueError:  # also a key of small order, for which anyone knows the secret
        raise InputError("a key for mail to an absent member is not valid.") from None


def _text_of(
    fresh: bytes, theirs: bytes, place: tuple[bytes, bytes, int], ends: tuple[int, int]
) -> bytes:
    study, roster, step = place
    numbers = b"".join(each.to_bytes(8, "big") for each in (step, *ends))
    return pack_parts(fresh, theirs, study, roster, numbers)


def seal_for_absent(
    row: bytes,
    theirs: bytes,
    context: MessageContext,
    sender: int,
    receiver: int,
    key: Key,
) -> bytes:
    """The row, readable by an absent member when it returns."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    private = X25519PrivateKey.generate()
    fresh = private.public_key().public_bytes_raw()
    place = (context.study, context.roster, context.round)
    told = _text_of(fresh, theirs, place, (sender, receiver))
    secret = derive(_secret_with(private, theirs), b"away", told)
    closed = fresh + ChaCha20Poly1305(secret).encrypt(_NONCE, row, told)
    signature = sign(key, b"away", told, closed)
    return len(signature).to_bytes(2, "big") + signature + closed


def open_for_absent(
    sealed: bytes,
    own: AwayKey,
    certificate: Certificate,
    place: tuple[bytes, bytes, int],
    sender: int,
    receiver: int,
) -> bytes:
    """The row in mail that waited for this member.

    Args:
        sealed: the mail.
        own: the key of this member.
        certificate: of the sender.
        place: the hashes of study and roster, and the step.
        sender: rank of the other member.
        receiver: rank of this member.

    Raises:
        InputError: if it was changed, or is for another step or member.
    """
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    end = 2 + int.from_bytes(sealed[:2], "big")
    signature, closed = sealed[2:end], sealed[end:]
    fresh = closed[:HASH]
    wrong = InputError(
        f"mail from member {sender} that waited for this member does not open: it was "
        "changed, or it is for another step."
    )
    if len(fresh) != HASH:
        raise wrong
    told = _text_of(fresh, own.public, place, (sender, receiver))
    if not verify(certificate, signature, b"away", told, closed):
        raise wrong
    secret = derive(own.secret_with(fresh), b"away", told)
    try:
        return ChaCha20Poly1305(secret).decrypt(_NONCE, closed[HASH:], told)
    except InvalidTag:
        raise wrong from None
