"""Keys, certificates and rosters of a few sites, made once for all tests."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import NamedTuple

from coterie.deploy.sites.keys import (
    Certificate,
    Key,
    new_authority,
    new_key,
    request,
    sign_request,
)
from coterie.deploy.sites.rosters import Roster, approve, make_roster

STUDY = "5" * 64


class Party(NamedTuple):
    """A member, hub or authority."""

    key: Key
    certificate: Certificate


def a_key() -> Key:
    with tempfile.TemporaryDirectory() as folder:
        return new_key(Path(folder) / "key")


def authority(name: str = "authority") -> Party:
    return _authority(name)


@functools.cache
def _authority(name: str) -> Party:
    key = a_key()
    return Party(key, new_authority(key, name))


def party(name: str, of: str = "authority") -> Party:
    """A member or hub with a certificate of this authority."""
    return _party(name, of)


@functools.cache
def _party(name: str, of: str) -> Party:
    key, root = a_key(), authority(of)
    asked = request(key, name).encode()
    return Party(key, sign_request(asked, root.key, root.certificate))


NAMES = ("north", "east", "south")


def draft(*names: str, study: str = STUDY) -> Roster:
    """A roster that nobody has signed."""
    members = [[party(name).certificate] for name in names or NAMES]
    root = [authority().certificate]
    return make_roster(study, [party("hub").certificate], members, root)


def signed(roster: Roster, *names: str) -> Roster:
    """The roster with the signatures of these members; by default all."""
    for name in names or [seat.name for seat in roster.members]:
        roster = approve(roster, party(name).key)
    return roster
