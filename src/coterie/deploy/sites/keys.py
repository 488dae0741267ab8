"""Keys, certificates and signatures of members, of the hub, and of authorities.

Everybody makes an own key on the curve P-256. Its file can be read by its owner only,
and nothing here copies or sends it. An authority signs a request for a certificate,
which holds the public key and a name. The same key secures connections (TLS) and signs
rosters, lists and commits. A signature covers its purpose and the length of every part,
so a signature for one purpose or one division into parts is never valid for another.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path

from ...checks import InputError, brief, integer
from ...records.files import write
from .reading import content_of

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509 import verification
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError:  # pragma: no cover
    raise InputError(
        "studies between organisations need more packages: pip install coterie[sites]."
    ) from None

Key = ec.EllipticCurvePrivateKey
PublicKey = ec.EllipticCurvePublicKey
Certificate = x509.Certificate

_MALFORMED = (
    *(ValueError, UnsupportedAlgorithm, x509.DuplicateExtension, x509.InvalidVersion),
    x509.UnsupportedGeneralNameType,
)
"""What reading a certificate or request raises if it is not as it should be."""

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,61}[A-Za-z0-9])?")
_CLOCKS = datetime.timedelta(minutes=5)
"""Certificates are valid this long before they were signed, since clocks differ."""
_SOON = datetime.timedelta(days=30)


def refuse_name(key: str, name: object) -> str:
    """Returns a name of a member or hub if certificates and files can hold it."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InputError(
            f"`{key}` must have at most 63 letters, digits, dots and hyphens, and "
            f"begin and end with a letter or digit, got {brief(name)}."
        )
    return name


def new_key(path: Path) -> Key:
    """A new key, written to a file that only its owner can read.

    Raises:
        InputError: if the file exists, because a lost key cannot be made again.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    text = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        handle = os.open(path, flags, 0o600)
    except FileExistsError:
        raise InputError(
            f"the key {path} exists already; it is never replaced, so remove it or "
            "choose another name."
        ) from None
    with os.fdopen(handle, "wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return key


def read_key(path: Path) -> Key:
    """The key in a file, if only its owner can read this file."""
    text = content_of("key", path)
    mode = stat.S_IMODE(path.stat().st_mode)
    if os.name == "posix" and mode & 0o077:
        raise InputError(
            f"the key {path} must be readable by its owner only (chmod 600), but its "
            f"mode is {mode:o}."
        )
    try:
        key = serialization.load_pem_private_key(text, None)
    except TypeError:
        raise InputError(
            f"the key {path} must not be encrypted, because nobody is there to type "
            "its password when a member starts again."
        ) from None
    except ValueError:
        raise InputError(f"{path} does not hold a private key in PEM.") from None
    if not isinstance(key, Key) or not isinstance(key.curve, ec.SECP256R1):
        raise InputError(f"the key {path} must be on the curve P-256.")
    return key


def read_certificates(path: Path) -> tuple[Certificate, ...]:
    """The certificates in a PEM file: first its owner's, then those in between."""
    return certificates_in(str(path), content_of("certificate", path))


def certificates_in(where: str, text: bytes) -> tuple[Certificate, ...]:
    """The certificates in PEM text."""
    if b"PRIVATE KEY" in text:
        raise InputError(
            f"{where} must hold certificates only, but it has a private key; keep that "
            "in its own file, and give it to nobody."
        )
    try:
        found = tuple(x509.load_pem_x509_certificates(text))
        for each in found:  # certificates are only read when asked
            _ = each.subject, each.issuer, each.extensions, each.signature
    except _MALFORMED:
        raise InputError(f"{where} does not hold certificates in PEM.") from None
    return found


def write_certificates(path: Path, certificates: Sequence[Certificate]) -> None:
    """Writes certificates as PEM."""
    write(path, "".join(pem(each) for each in certificates))


def pem(certificate: Certificate) -> str:
    """A certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def name_of(certificate: Certificate) -> str:
    """The name in a certificate.

    Raises:
        InputError: if there is not exactly one name, or not one that we allow.
    """
    found = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if len(found) != 1:
        raise InputError(
            f"a certificate must have one common name, but one has {len(found)}."
        )
    return refuse_name("common name", found[0].value)


def public_key(certificate: Certificate) -> PublicKey:
    """The public key of a member or hub.

    Raises:
        InputError: if it is not on the curve P-256.
    """
    try:
        key = certificate.public_key()
    except _MALFORMED:
        key = None
    if not isinstance(key, PublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise InputError("a certificate must have a key on the curve P-256.")
    return key


def holds(certificate: Certificate, key: Key) -> bool:
    """Whether a certificate is about this key."""
    return public_key(certificate) == key.public_key()


def request(key: Key, name: str, hosts: Sequence[str] = ()) -> str:
    """A request for a certificate, as PEM; it does not hold the private key.

    Args:
        key: of the one who asks.
        name: of a member or hub.
        hosts: names and addresses at which a hub listens.
    """
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    refuse_name("name", name)
    known = [_host(host) for host in dict.fromkeys([name, *hosts])]
    asked = x509.CertificateSigningRequestBuilder().subject_name(subject)
    asked = asked.add_extension(x509.SubjectAlternativeName(known), critical=False)
    signed = asked.sign(key, hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.PEM).decode()


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(refuse_name("host", host))


def new_authority(key: Key, name: str, *, days: int = 3650) -> Certificate:
    """The certificate of an authority, signed by itself."""
    refuse_name("name", name)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    built = _builder(subject, subject, key.public_key(), key, days)
    built = built.add_extension(x509.BasicConstraints(True, 0), critical=True)
    built = built.add_extension(_usage(authority=True), critical=True)
    return built.sign(key, hashes.SHA256())


def sign_request(
    asked: bytes, key: Key, authority: Certificate, *, days: int = 365
) -> Certificate:
    """The certificate for a request, signed by an authority.

    Only the name, the hosts and the public key are taken from the request. It cannot
    ask for other rights, such as to sign certificates.
    """
    integer("days", days, at_least=1, at_most=3650)
    if not holds(authority, key):
        raise InputError("the key must be that of the authority's certificate.")
    try:
        found = x509.load_pem_x509_csr(asked)
        proven, extensions = found.is_signature_valid, found.extensions
        common = found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        theirs = found.public_key()
    except _MALFORMED:
        raise InputError("this does not hold a request in PEM.") from None
    if not proven:
        raise InputError(
            "the request is not signed by its own key, so somebody has changed it."
        )
    if not isinstance(theirs, PublicKey) or not isinstance(theirs.curve, ec.SECP256R1):
        raise InputError("the key of a request must be on the curve P-256.")
    if len(common) != 1:
        raise InputError(f"a request must have one common name, got {len(common)}.")
    name = refuse_name("common name", common[0].value)
    names = _hosts_in(extensions)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    built = _builder(subject, authority.subject, theirs, key, days)
    for extension, critical in (
        (x509.BasicConstraints(False, None), True),
        (_usage(authority=False), True),
        (x509.ExtendedKeyUsage(_PURPOSES), False),
        (x509.SubjectAlternativeName(names or [x509.DNSName(name)]), False),
    ):
        built = built.add_extension(extension, critical=critical)
    return built.sign(key, hashes.SHA256())


_PURPOSES = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]


def requested_key(asked: bytes) -> str:
    """The SHA-256 of the public key in a request, to compare by telephone."""
    try:
        key = x509.load_pem_x509_csr(asked).public_key()
    except _MALFORMED:
        raise InputError("this does not hold a request in PEM.") from None
    return _digest_of(key)


def key_digest(key: Key) -> str:
    """The SHA-256 of the public key that belongs to a key."""
    return _digest_of(key.public_key())


def fingerprint(certificate: Certificate) -> str:
    """The SHA-256 of the public key in a certificate: the same as in its request."""
    return _digest_of(public_key(certificate))


def _digest_of(key: object) -> str:
    if not isinstance(key, PublicKey):
        raise InputError("the key of a request must be on the curve P-256.")
    hashed = hashes.Hash(hashes.SHA256())
    hashed.update(_der(key))
    return hashed.finalize().hex()


def _der(key: PublicKey) -> bytes:
    return key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _hosts_in(extensions: x509.Extensions) -> list[x509.GeneralName]:
    """The names and addresses that a request asks for, checked."""
    try:
        asked = extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    names: list[x509.GeneralName] = []
    for name in asked.value:
        if isinstance(name, x509.DNSName):
            refuse_name("host", name.value)
        elif not isinstance(name, x509.IPAddress):
            raise InputError("a request may only name hosts and addresses.")
        names.append(name)
    return names


def _usage(*, authority: bool) -> x509.KeyUsage:
    others = dict.fromkeys(
        ("key_encipherment", "data_encipherment", "key_agreement"), False
    )
    return x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
        **others,
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, theirs: PublicKey, signs: Key, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    built = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer)
    built = built.public_key(theirs).serial_number(x509.random_serial_number())
    built = built.not_valid_before(now - _CLOCKS)
    built = built.not_valid_after(now + datetime.timedelta(days=days))
    own = x509.SubjectKeyIdentifier.from_public_key(theirs)
    issuers = x509.AuthorityKeyIdentifier.from_issuer_public_key(signs.public_key())
    built = built.add_extension(own, critical=False)
    return built.add_extension(issuers, critical=False)


def certificate_problems(
    certificates: Sequence[Certificate],
    authorities: Sequence[Certificate],
    *,
    name: str,
    now: datetime.datetime | None = None,
) -> list[str]:
    """What is wrong with the certificate of a member or hub, one sentence each.

    Args:
        certificates: its certificate, then those between it and an authority.
        authorities: the authorities whose signature counts.
        name: the name that it must have.
        now: the time; by default that of this machine's clock.
    """
    now = now or datetime.datetime.now(datetime.UTC)
    own = certificates[0]
    who = f"the certificate of {name}"
    problems = []
    try:
        public_key(own)
        found = name_of(own)
        if found != name:
            problems.append(f"{who} must have this name, but it is about {found}.")
    except InputError as error:
        problems.append(f"{who} cannot be used: {error}")
    begins, ends = own.not_valid_before_utc, own.not_valid_after_utc
    if now < begins:
        problems.append(
            f"{who} is valid from {_time(begins)}, but the clock of this machine says "
            f"{_time(now)}."
        )
    elif now > ends:
        problems.append(
            f"{who} has expired at {_time(ends)}, and the clock of this machine says "
            f"{_time(now)}: its owner asks for a new one."
        )
    if not problems and (reason := _wrong_chain(certificates, authorities, now)):
        problems.append(
            f"{who} must be signed by an authority of the roster, but it is not: "
            f"{reason}."
        )
    return problems


def _time(moment: datetime.datetime) -> str:
    return moment.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


def _wrong_chain(
    certificates: Sequence[Certificate],
    authorities: Sequence[Certificate],
    now: datetime.datetime,
) -> str:
    """Why no authority has signed a certificate; "" if one has."""
    if not authorities:
        return "there is no authority"
    rules = verification.PolicyBuilder().time(now).max_chain_depth(3)
    rules = rules.store(verification.Store(list(authorities)))
    try:
        rules.build_client_verifier().verify(certificates[0], list(certificates[1:]))
    except verification.VerificationError as error:
        return (str(error).splitlines() or ["the chain is not valid"])[0].rstrip(".")
    except ValueError:  # a certificate with extensions that cannot be read
        return "the chain cannot be read"
    return ""


def days_left(certificate: Certificate, now: datetime.datetime | None = None) -> int:
    """The number of whole days for which a certificate is still valid."""
    now = now or datetime.datetime.now(datetime.UTC)
    return (certificate.not_valid_after_utc - now).days


def expires_soon(
    certificate: Certificate, now: datetime.datetime | None = None
) -> bool:
    """Whether a certificate is valid for less than 30 days."""
    now = now or datetime.datetime.now(datetime.UTC)
    return certificate.not_valid_after_utc - now < _SOON


def sign(key: Key, purpose: bytes, *parts: bytes) -> bytes:
    """A signature of these parts in this order, for one purpose."""
    return key.sign(frame(purpose, *parts), ec.ECDSA(hashes.SHA256()))


def verify(
    of: Certificate | PublicKey, signature: bytes, purpose: bytes, *parts: bytes
) -> bool:
    """Whether the owner of a certificate or key has signed these parts."""
    key = of if isinstance(of, PublicKey) else public_key(of)
    try:
        key.verify(signature, frame(purpose, *parts), ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


def frame(*parts: bytes) -> bytes:
    """Parts as one text, from which they can be told apart: each after its length.

    >>> frame(b"a", b"bc") == frame(b"ab", b"c")
    False
    """
    lengths = [len(part).to_bytes(8, "big") + part for part in parts]
    return b"coterie" + b"".join(lengths)
