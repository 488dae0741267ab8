"""Claims about keys and certificates of sites: what is made, and what is refused."""

from __future__ import annotations

import datetime
import os

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from coterie.deploy.sites import keys
from support.refusals import refuses
from support.site_rosters import Party, a_key, authority, party

DAY = datetime.timedelta(days=1)


def problems(some: Party, name: str, *roots: Party, **options) -> str:
    certificates = [root.certificate for root in roots or [authority()]]
    found = keys.certificate_problems(
        [some.certificate], certificates, name=name, **options
    )
    return " ".join(found)


def test_a_key_file_is_for_its_owner_only_and_is_never_replaced(tmp_path):
    path = tmp_path / "north.key"
    key = keys.new_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert keys.read_key(path).private_numbers() == key.private_numbers()
    refuses("exists already; it is never replaced", keys.new_key, path)
    path.chmod(0o640)
    if os.name == "posix":
        refuses(r"by its owner only \(chmod 600\), .* is 640", keys.read_key, path)


def test_other_keys_are_refused(tmp_path):
    path = tmp_path / "other.key"
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    plain = serialization.NoEncryption()
    locked = serialization.BestAvailableEncryption(b"word")
    for key, lock, sentence in (
        (ec.generate_private_key(ec.SECP384R1()), plain, "the curve P-256"),
        (rsa.generate_private_key(65537, 2048), plain, "the curve P-256"),
        (a_key(), locked, "must not be encrypted"),
    ):
        path.write_bytes(key.private_bytes(*form, lock))
        path.chmod(0o600)
        refuses(sentence, keys.read_key, path)
    path.write_text("nothing")
    refuses("does not hold a private key", keys.read_key, path)
    refuses("cannot be read: No such file", keys.read_key, tmp_path / "none")
    os.mkfifo(tmp_path / "pipe")
    refuses("must be a plain file", keys.read_key, tmp_path / "pipe")


def test_a_signed_certificate_is_about_its_name_and_key_and_can_be_read_again(tmp_path):
    some = party("north")
    assert problems(some, "north") == ""
    assert keys.name_of(some.certificate) == "north"
    assert keys.holds(some.certificate, some.key)
    assert not keys.holds(some.certificate, a_key())
    keys.write_certificates(tmp_path / "c", [some.certificate, party("hub")[1]])
    assert keys.read_certificates(tmp_path / "c")[0] == some.certificate
    assert 363 <= keys.days_left(some.certificate) <= 365
    assert not keys.expires_soon(some.certificate)


def test_a_wrong_name_time_or_authority_is_named():
    some, now = party("north"), datetime.datetime.now(datetime.UTC)
    assert "must have this name, but it is about north" in problems(some, "east")
    late = problems(some, "north", now=now + 366 * DAY)
    assert "has expired at" in late and "the clock of this machine" in late
    assert "is valid from" in problems(some, "north", now=now - DAY)
    wrong = "must be signed by an authority of the roster"
    assert wrong in problems(some, "north", authority("other"))
    # Another authority with the same name has another key.
    again = a_key()
    same = Party(again, keys.new_authority(again, "authority"))
    assert wrong in problems(some, "north", same)
    assert problems(some, "north", same, authority()) == ""


def test_a_member_cannot_sign_certificates_for_others():
    member, mine = party("north"), a_key()
    asked = keys.request(mine, "east").encode()
    forged = keys.sign_request(asked, member.key, member.certificate)
    chain = [forged, member.certificate]
    for authorities in ([authority().certificate], [member.certificate]):
        found = keys.certificate_problems(chain, authorities, name="east")
        assert "must be signed by an authority" in " ".join(found)
    own = keys.new_authority(mine, "east")  # signed by itself
    assert "must be signed" in problems(Party(mine, own), "east")


def test_a_request_gets_no_rights_that_it_asks_for():
    key, root = a_key(), authority()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "north")])
    asked = x509.CertificateSigningRequestBuilder().subject_name(subject)
    asked = asked.add_extension(x509.BasicConstraints(True, 3), critical=True)
    text = asked.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    found = keys.sign_request(text, root.key, root.certificate)
    about = found.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert not about.ca
    use = found.extensions.get_extension_for_class(x509.KeyUsage).value
    assert not use.key_cert_sign


def test_changed_or_strange_requests_are_refused():
    root = authority()

    def refused(sentence: str, text: bytes, key=root.key) -> None:
        refuses(sentence, keys.sign_request, text, key, root.certificate)

    good = x509.load_pem_x509_csr(keys.request(a_key(), "north").encode())
    der = bytearray(good.public_bytes(serialization.Encoding.DER))
    der[der.index(b"north")] = ord("N")
    changed = x509.load_der_x509_csr(bytes(der))
    refused("somebody has changed it", changed.public_bytes(serialization.Encoding.PEM))
    refused("does not hold a request", b"nothing")
    refused("the authority's", keys.request(a_key(), "north").encode(), a_key())
    names = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "../north")])
    odd = x509.CertificateSigningRequestBuilder().subject_name(names)
    pem = odd.sign(a_key(), hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    refused("letters, digits, dots and hyphens", pem)
    other = ec.generate_private_key(ec.SECP384R1())
    fine = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "north")])
    odd = x509.CertificateSigningRequestBuilder().subject_name(fine)
    pem = odd.sign(other, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    refused("the curve P-256", pem)


@pytest.mark.parametrize("name", ["", "-a", "a" * 64, "a b", "é", "a/b", "a\n", 3])
def test_names_that_files_or_certificates_cannot_hold_are_refused(name):
    refuses("letters, digits, dots and hyphens", keys.refuse_name, "name", name)


def test_a_certificate_file_with_a_private_key_is_refused(tmp_path):
    keys.new_key(tmp_path / "both")
    refuses("it has a private key", keys.read_certificates, tmp_path / "both")


def test_a_signature_is_for_one_purpose_and_one_division_into_parts():
    key, certificate = party("north")
    signature = keys.sign(key, b"list", b"ab", b"c")
    assert keys.verify(certificate, signature, b"list", b"ab", b"c")
    assert keys.verify(key.public_key(), signature, b"list", b"ab", b"c")
    wrong = [(b"list", b"a", b"bc"), (b"listab", b"c"), (b"roster", b"ab", b"c")]
    for parts in (*wrong, (b"list", b"ab"), (b"list", b"ab", b"c", b"")):
        assert not keys.verify(certificate, signature, *parts)
    assert not keys.verify(party("east")[1], signature, b"list", b"ab", b"c")
    for forged in (b"", b"\x00" * 64, signature[:-1]):
        assert not keys.verify(certificate, forged, b"list", b"ab", b"c")
