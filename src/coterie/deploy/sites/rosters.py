"""The roster: the members of a study, which every one of them signs.

A roster names the study by its hash, the hub, and the members in their order. Member i
of the roster is client i of the study. Each is named with the fingerprint of its
certificate, so no authority can put another key in its place. A roster counts only if
every member has signed it. So nobody can add a member, remove one or change the study
without all others, and that includes the hub.

A changed roster has the next number and the hash of the roster before it, and begins a
new run. A member keeps the largest number that it has seen, and refuses all smaller
ones. The key of a member that is revoked, or that has a new key, never returns.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import tomli_w

from ...checks import InputError, Problems, brief, integer, several, suggestion
from ...records.files import write
from .keys import (
    Certificate,
    Key,
    certificate_problems,
    certificates_in,
    fingerprint,
    holds,
    name_of,
    pem,
    public_key,
    refuse_name,
    sign,
    verify,
)
from .reading import tables_of

PROTOCOL = 1
"""The version of the messages between members and hub, and of rosters."""

MOST = 1000
"""The largest number of members."""

_PURPOSE = b"roster"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_FIELDS = (
    *("protocol", "number", "previous", "study", "authorities", "revoked"),
    *("hub", "member", "signatures"),
)
_SEAT = ("name", "fingerprint", "certificate")


@dataclass(frozen=True)
class Seat:
    """The hub or a member: its name, and its certificate with those up to a root."""

    name: str
    certificates: tuple[Certificate, ...]

    @property
    def certificate(self) -> Certificate:
        """Its own certificate."""
        return self.certificates[0]

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of its public key, which its owner saw when making the key."""
        return fingerprint(self.certificate)

    def content(self) -> dict[str, Any]:
        """What members sign about it."""
        found = {"name": self.name, "fingerprint": self.fingerprint}
        found["certificate"] = "".join(pem(each) for each in self.certificates)
        return found


@dataclass(frozen=True)
class Roster:
    """The members and the hub of a study, with the signatures of members."""

    study: str  # its hash
    hub: Seat
    members: tuple[Seat, ...]
    authorities: tuple[Certificate, ...]
    number: int = 1
    previous: str = ""  # hash of the roster before it
    revoked: tuple[str, ...] = ()  # SHA-256 of public keys that may not take part
    protocol: int = PROTOCOL
    signatures: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all members in order."""
        return tuple(member.name for member in self.members)

    def content(self) -> dict[str, Any]:
        """Everything in the roster that members sign."""
        return {
            "protocol": self.protocol,
            "number": self.number,
            "previous": self.previous,
            "study": self.study,
            "revoked": list(self.revoked),
            "authorities": [pem(each) for each in self.authorities],
            "hub": self.hub.content(),
            "member": [member.content() for member in self.members],
        }

    @property
    def hash(self) -> str:
        """The SHA-256 of the content, in 64 hexadecimal digits.

        The content is written as JSON with sorted keys and without spaces, so that the
        same roster has the same hash everywhere.
        """
        text = json.dumps(
            self.content(), sort_keys=True, separators=(",", ":"), ensure_ascii=True
        )
        return sha256(text.encode()).hexdigest()

    @property
    def run_name(self) -> str:
        """A name of the run: every roster has its own."""
        return self.hash

    def rank_named(self, name: str) -> int:
        """The position of the member with this name."""
        if name not in self.names:
            raise InputError(
                f"the roster has no member {brief(name)}.{suggestion(name, self.names)}"
            )
        return self.names.index(name)

    def missing_signatures(self) -> list[str]:
        """The members that have not signed this roster."""
        signed = bytes.fromhex(self.hash)
        return [
            member.name
            for member in self.members
            if member.name not in self.signatures
            or not verify(
                member.certificate, self.signatures[member.name], _PURPOSE, signed
            )
        ]

    @property
    def signed_by_all(self) -> bool:
        """Whether every member has signed."""
        return not self.missing_signatures()


def make_roster(
    study: str,
    hub: Sequence[Certificate],
    members: Iterable[Sequence[Certificate]],
    authorities: Sequence[Certificate],
) -> Roster:
    """The first roster of a study, which nobody has signed yet.

    Args:
        study: its hash.
        hub: the certificate of the hub, then those up to an authority.
        members: the same of each member, in the order of the clients.
        authorities: whose signatures on certificates count.
    """
    seats = [Seat(name_of(some[0]), tuple(some)) for some in members]
    roster = Roster(
        study, Seat(name_of(hub[0]), tuple(hub)), tuple(seats), tuple(authorities)
    )
    _refuse_content(roster)
    return roster


def approve(roster: Roster, key: Key, old: Roster | None = None) -> Roster:
    """The roster with the signature of the member that has this key.

    Args:
        roster: the new roster.
        key: of the member.
        old: the roster before, if there is one; the change is checked.

    Raises:
        Problems: if the roster cannot be used, with all reasons.
    """
    if old is not None:
        refuse_change(old, roster)
    mine = [seat.name for seat in roster.members if holds(seat.certificate, key)]
    if not mine:
        raise InputError("the key must be that of a member of the roster.")
    if problems := roster_problems(roster, signed=False):
        raise Problems(problems)
    signature = sign(key, _PURPOSE, bytes.fromhex(roster.hash))
    return replace(roster, signatures={**roster.signatures, mine[0]: signature})


def merge(roster: Roster, others: Iterable[Roster]) -> Roster:
    """The roster with the signatures of its copies, which members signed apart."""
    signatures = dict(roster.signatures)
    for other in others:
        if other.hash != roster.hash:
            raise InputError(
                "copies of a roster must have the same content, but their hashes are "
                f"{roster.hash[:16]}... and {other.hash[:16]}...."
            )
        missing = other.missing_signatures()
        signatures |= {n: s for n, s in other.signatures.items() if n not in missing}
    return replace(roster, signatures=signatures)


def revoke(roster: Roster, name: str) -> Roster:
    """The next roster, without this member; all others have to sign it."""
    gone = roster.members[roster.rank_named(name)]
    members = tuple(seat for seat in roster.members if seat is not gone)
    if not members:
        raise InputError(f"the roster must keep a member, but {name} is the last one.")
    revoked = (*roster.revoked, fingerprint(gone.certificate))
    return next_roster(roster, members=members, revoked=revoked)


def with_member(roster: Roster, certificates: Sequence[Certificate]) -> Roster:
    """The next roster, with a new member or a new certificate of a member.

    If a member has a new key, its old key is revoked.
    """
    seat = Seat(name_of(certificates[0]), tuple(certificates))
    if seat.name not in roster.names:
        return next_roster(roster, members=(*roster.members, seat))
    rank, revoked = roster.rank_named(seat.name), roster.revoked
    old = fingerprint(roster.members[rank].certificate)
    if fingerprint(seat.certificate) != old:
        revoked = (*revoked, old)
    members = (*roster.members[:rank], seat, *roster.members[rank + 1 :])
    return next_roster(roster, members=members, revoked=revoked)


def next_roster(roster: Roster, **changes: Any) -> Roster:
    """A changed roster with the next number, which nobody has signed yet."""
    after = replace(
        roster,
        number=roster.number + 1,
        previous=roster.hash,
        signatures={},
        **changes,
    )
    _refuse_content(after)
    return after


def refuse_change(old: Roster, new: Roster) -> None:
    """Refuses a roster that does not follow another one, with all reasons.

    A change may revoke members, add members at the end, give a member a new certificate
    and replace the hub. It may not change the study, nor the order of members.
    """
    problems = []
    if new.number != old.number + 1:
        problems.append(
            f"the `number` of the roster must be {old.number + 1}, one more than "
            f"before, got {new.number}."
        )
    if new.previous != old.hash:
        problems.append(
            f"`previous` must be the hash of the roster before, {old.hash[:16]}..., "
            f"got {new.previous[:16] or 'nothing'}...."
        )
    if new.study != old.study:
        problems.append(
            f"the roster must stay that of the study {old.study[:16]}..., got "
            f"{new.study[:16]}...."
        )
    stay = tuple(name for name in old.names if name in new.names)
    if new.names[: len(stay)] != stay:
        problems.append(
            f"members must keep their order, got {', '.join(new.names)} in place of "
            f"{', '.join(old.names)}."
        )
    keys = {fingerprint(seat.certificate) for seat in new.members}
    gone = {fingerprint(seat.certificate): seat.name for seat in old.members}
    for key, name in gone.items():
        if key not in keys and key not in new.revoked:
            problems.append(f"the old key of {name} must be revoked.")
    if not {*old.revoked} <= {*new.revoked}:
        problems.append("a key that was revoked must stay so.")
    if problems:
        raise Problems(problems)


def roster_problems(
    roster: Roster, *, signed: bool = True, now: datetime.datetime | None = None
) -> list[str]:
    """All that is wrong with a roster, one sentence each.

    Args:
        roster: the roster.
        signed: whether all signatures must be there.
        now: the time; by default that of this machine's clock.
    """
    problems = []
    if roster.protocol != PROTOCOL:
        problems.append(
            f"the `protocol` of the roster must be {PROTOCOL}, which this version of "
            f"coterie uses, got {roster.protocol}."
        )
    for seat in (roster.hub, *roster.members):
        problems += certificate_problems(
            seat.certificates, roster.authorities, name=seat.name, now=now
        )
    if signed and (missing := roster.missing_signatures()):
        problems.append(
            f"every member must sign the roster, but {several(len(missing), 'member')} "
            f"did not: {', '.join(missing)}."
        )
    return problems


def check(
    roster: Roster, study: str, *, now: datetime.datetime | None = None
) -> Roster:
    """Returns a roster that can be used for a study.

    Raises:
        Problems: with everything that is wrong.
    """
    problems = roster_problems(roster, now=now)
    if roster.study != study:
        problems.insert(
            0,
            f"the roster is for the study with the hash {roster.study[:16]}..., but "
            f"this study has the hash {study[:16]}...: somebody changed one of them.",
        )
    if problems:
        raise Problems(problems)
    return roster


def accept(
    roster: Roster,
    study: str,
    newest: Path,
    *,
    now: datetime.datetime | None = None,
) -> Roster:
    """Returns a roster that a member may use now; see `check` and `refuse_older`.

    Args:
        roster: the roster.
        study: the hash of the study.
        newest: the member's file of the newest rosters.
        now: the time; by default that of this machine's clock.
    """
    check(roster, study, now=now)
    refuse_older(roster, newest)
    return roster


def changes(old: Roster, new: Roster) -> list[str]:
    """What changes from one roster to the next, for the person who signs it."""
    before = {seat.name: seat for seat in old.members}
    found = [f"{name} is revoked." for name in old.names if name not in new.names]
    if old.hub != new.hub:
        found.append(f"The hub is now {new.hub.name}, {new.hub.fingerprint[:16]}....")
    if old.authorities != new.authorities:
        found.append("The authorities have changed.")
    for seat in new.members:
        was = before.get(seat.name)
        if was is None:
            found.append(f"{seat.name} joins.")
        elif public_key(seat.certificate) != public_key(was.certificate):
            found.append(f"{seat.name} has another KEY: ask its owner.")
        elif seat != was:
            found.append(f"{seat.name} has a new certificate for the same key.")
    return found


def refuse_older(roster: Roster, path: Path) -> None:
    """Refuses a roster that was replaced, and remembers the newest one durably.

    Two rosters with the same number are refused, too: somebody made both.

    Args:
        roster: whose signatures are checked.
        path: a file of the member, which holds the newest roster of each study.
    """
    newest = tables_of("file of rosters", path) if path.exists() else {}
    known = newest.get(roster.study, {"number": 0, "hash": ""})
    if (roster.number, roster.hash) == (known["number"], known["hash"]):
        return
    if roster.number < known["number"]:
        raise InputError(
            f"the roster must have at least the number {known['number']}, which this "
            f"member has seen, got {roster.number}: it was replaced, and may hold a "
            "member that was revoked."
        )
    if roster.number == known["number"]:
        raise InputError(
            f"this member knows another roster with the number {roster.number}: its "
            f"hash is {known['hash'][:16]}..., and that of this one is "
            f"{roster.hash[:16]}...."
        )
    now = {"number": roster.number, "hash": roster.hash}
    write(path, tomli_w.dumps({**newest, roster.study: now}))


def read_roster(path: Path) -> Roster:
    """The roster in a file; only its form is checked, see `check` for the rest."""
    return roster_in(tables_of("roster", path))


def write_roster(path: Path, roster: Roster) -> None:
    """Writes a roster as TOML."""
    signatures = {
        name: base64.b64encode(signature).decode()
        for name, signature in sorted(roster.signatures.items())
    }
    content = roster.content() | {"signatures": signatures}
    write(path, tomli_w.dumps(content, multiline_strings=True))


def roster_in(tables: Mapping[str, Any]) -> Roster:
    """The roster in the tables of a file."""
    for key in tables:
        if key not in _FIELDS:
            raise InputError(
                f"a roster has no key {brief(key)}.{suggestion(key, _FIELDS)}"
            )
    for key in _FIELDS:
        if key not in tables:
            raise InputError(f"a roster needs `{key}`.")
    members = tables["member"]
    if not isinstance(members, list) or not 1 <= len(members) <= MOST:
        raise InputError(f"a roster must have 1 to {MOST} tables [[member]].")
    roots = tables["authorities"]
    if not isinstance(roots, list) or not all(isinstance(root, str) for root in roots):
        raise InputError("`authorities` must be a list of certificates in PEM.")
    roster = Roster(
        _digest("study", tables["study"]),
        _seat("hub", tables["hub"]),
        tuple(_seat("member", member) for member in members),
        tuple(
            each
            for root in roots
            for each in certificates_in("`authorities`", _pem(root))
        ),
        integer("number", tables["number"], at_least=1, at_most=2**31),
        _digest("previous", tables["previous"]) if tables["previous"] != "" else "",
        _digests("revoked", tables["revoked"]),
        integer("protocol", tables["protocol"], at_least=1, at_most=2**31),
        _signatures(tables["signatures"]),
    )
    _refuse_content(roster)
    return roster


def _digest(key: str, value: object) -> str:
    if not isinstance(value, str) or not _DIGEST.fullmatch(value):
        raise InputError(
            f"`{key}` of a roster must have 64 hexadecimal digits, got {brief(value)}."
        )
    return value


def _digests(key: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise InputError(f"`{key}` of a roster must be a list, got {brief(value)}.")
    return tuple(_digest(key, each) for each in value)


def _seat(key: str, table: object) -> Seat:
    """The hub or a member in a table of a file."""
    if not isinstance(table, dict) or {*table} != {*_SEAT}:
        raise InputError(
            f"`{key}` of a roster must be a table with {', '.join(_SEAT)}."
        )
    name = refuse_name("name", table["name"])
    if not isinstance(table["certificate"], str):
        raise InputError(f"the certificate of {name} must be text in PEM.")
    found = certificates_in(f"the certificate of {name}", _pem(table["certificate"]))
    if fingerprint(found[0]) != table["fingerprint"]:
        raise InputError(
            f"the fingerprint of {name} must be that of the key in its "
            f"certificate, {fingerprint(found[0])}, got {brief(table['fingerprint'])}."
        )
    return Seat(name, found)


def _pem(text: str) -> bytes:
    return text.encode("ascii", "replace")


def _signatures(table: object) -> dict[str, bytes]:
    if not isinstance(table, dict):
        raise InputError("`signatures` of a roster must be a table.")
    found = {}
    for name, value in table.items():
        try:
            found[name] = base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError, TypeError):
            raise InputError(
                f"the signature of {name} must be in base64, got {brief(value)}."
            ) from None
    return found


def _refuse_content(roster: Roster) -> None:
    """Refuses two seats with the same name or key, and signatures of strangers."""
    seats = (roster.hub, *roster.members)
    names = [seat.name.lower() for seat in seats]
    keys = [public_key(seat.certificate).public_numbers() for seat in seats]
    for seat, name, key in zip(seats, names, keys, strict=True):
        if names.count(name) > 1:
            raise InputError(f"two parties of the roster have the name {seat.name}.")
        if keys.count(key) > 1:
            raise InputError(f"the key of {seat.name} is also that of another party.")
    for name in roster.signatures:
        if name not in roster.names:
            raise InputError(f"the roster has a signature of {name}, not a member.")
    for seat in seats:
        if fingerprint(seat.certificate) in roster.revoked:
            raise InputError(f"the key of {seat.name} is revoked: it needs a new one.")
    if (roster.number == 1) != (roster.previous == ""):
        raise InputError(
            "the first roster of a study has the `number` 1 and no `previous`; every "
            f"later one has both, got {roster.number} and {brief(roster.previous)}."
        )
