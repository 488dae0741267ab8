"""Claims about rosters: nobody can change who takes part without all others."""

from __future__ import annotations

import dataclasses
import datetime

import pytest

from coterie.deploy.sites import rosters
from coterie.deploy.sites.keys import request, sign_request
from coterie.deploy.sites.rosters import Seat
from support.refusals import refusal, refuses
from support.site_rosters import (
    NAMES,
    STUDY,
    Party,
    a_key,
    authority,
    draft,
    party,
    signed,
)

DAY = datetime.timedelta(days=1)


def refused(roster: rosters.Roster, study: str = STUDY, **options) -> str:
    """Everything that is wrong with a roster."""
    return refusal(rosters.check, roster, study, **options)


def changed(roster: rosters.Roster, **changes) -> rosters.Roster:
    return dataclasses.replace(roster, **changes)


def seat_of(some: Party, name: str) -> Seat:
    return Seat(name, (some.certificate,))


def test_a_roster_counts_when_all_members_have_signed(tmp_path):
    roster = draft()
    assert roster.missing_signatures() == [*NAMES]
    two = signed(roster, "north", "south")
    assert "1 member did not: east." in refused(two)
    whole = signed(two, "east")
    assert whole.signed_by_all and rosters.check(whole, STUDY) is whole
    rosters.write_roster(tmp_path / "roster.toml", whole)
    again = rosters.read_roster(tmp_path / "roster.toml")
    assert again == whole and again.hash == whole.hash and again.signed_by_all


def test_an_added_member_invalidates_all_signatures():
    whole = signed(draft())
    more = (*whole.members, seat_of(party("stranger"), "stranger"))
    said = refused(changed(whole, members=more))
    assert "4 members did not: north, east, south, stranger." in said


def test_swapped_members_and_a_changed_study_invalidate_all_signatures():
    whole = signed(draft())
    assert "3 members" in refused(changed(whole, members=whole.members[::-1]))
    other = "6" * 64
    said = refused(changed(whole, study=other), other)
    assert "3 members did not" in said
    said = refused(whole, other)
    assert "this study has the hash 6666666666666666" in said
    hub = seat_of(party("other-hub"), "other-hub")
    assert "3 members" in refused(changed(whole, hub=hub))
    roots = (*whole.authorities, authority("other").certificate)
    assert "3 members" in refused(changed(whole, authorities=roots))
    later = {"number": 2, "previous": "0" * 64}
    assert "3 members" in refused(changed(whole, **later))


def test_a_forged_member_is_found():
    """The authority, or someone with its key, makes a second certificate of a name."""
    whole, key, root = signed(draft()), a_key(), authority()
    asked = request(key, "north").encode()
    forged = Party(key, sign_request(asked, root.key, root.certificate))
    put = changed(whole, members=(seat_of(forged, "north"), *whole.members[1:]))
    # The forger can sign for itself, and the others have not signed this.
    mine = rosters.approve(put, key)
    assert "2 members did not: east, south." in refused(mine)
    assert put.members[0].fingerprint != whole.members[0].fingerprint


def test_a_signature_counts_for_its_member_and_its_roster_only():
    whole = signed(draft())
    moved = {**whole.signatures, "east": whole.signatures["north"]}
    assert "1 member did not: east." in refused(changed(whole, signatures=moved))
    other = signed(draft(study="6" * 64))
    assert "3 members" in refused(changed(whole, signatures=other.signatures))
    gone = {n: s for n, s in whole.signatures.items() if n != "south"}
    assert "did not: south." in refused(changed(whole, signatures=gone))
    assert "3 members" in refused(changed(whole, signatures=dict.fromkeys(NAMES, b"")))


def test_expired_and_not_yet_valid_certificates_are_all_named():
    whole, now = signed(draft()), datetime.datetime.now(datetime.UTC)
    late = refused(whole, now=now + 400 * DAY)
    assert all(f"certificate of {n} has expired" in late for n in (*NAMES, "hub"))
    assert "north is valid from" in refused(whole, now=now - DAY)


def test_a_certificate_of_another_authority_is_refused_by_those_who_sign_and_check():
    members = [[party(name).certificate] for name in NAMES[:2]]
    members += [[party("south", "other").certificate]]
    root, hub = [authority().certificate], [party("hub").certificate]
    roster = rosters.make_roster(STUDY, hub, members, root)
    said = refusal(rosters.approve, roster, party("north").key)
    assert "the certificate of south must be signed by an authority" in said
    assert "south must be signed by an authority" in refused(roster)
    both = [*root, authority("other").certificate]
    assert not rosters.roster_problems(
        rosters.make_roster(STUDY, hub, members, both), signed=False
    )


def test_a_change_needs_all_remaining_signatures_and_follows_its_roster():
    old = signed(draft())
    new = rosters.revoke(old, "east")
    assert (new.number, new.previous) == (2, old.hash)
    assert rosters.changes(old, new) == ["east is revoked."]
    assert "2 members did not: north, south." in refused(new)
    one = rosters.approve(new, party("north").key, old)
    assert "did not: south." in refused(one)
    whole = rosters.approve(one, party("south").key, old)
    assert rosters.check(whole, STUDY)
    refuses("a member of the roster", rosters.approve, new, party("east").key)
    refuses("has no member 'nort'. Did you mean", rosters.revoke, whole, "nort")


def test_a_change_that_does_not_follow_is_refused_with_all_reasons():
    old = signed(draft())
    gone = rosters.revoke(old, "east")
    back = rosters.next_roster(gone, members=old.members, revoked=())
    said = refusal(rosters.refuse_change, gone, back)
    assert said.endswith("a key that was revoked must stay so.")
    refuses("key of east is revoked", rosters.next_roster, gone, members=old.members)
    said = refusal(rosters.refuse_change, old, back)
    assert "must be 2, one more than before, got 3" in said and "`previous`" in said
    moved = rosters.next_roster(old, members=old.members[::-1], study="6" * 64)
    said = refusal(rosters.refuse_change, old, moved)
    assert "must keep their order" in said and "must stay that of the study" in said
    silent = rosters.next_roster(old, members=old.members[1:])
    said = refusal(rosters.refuse_change, old, silent)
    assert said == "the old key of north must be revoked."
    more = (*old.members, seat_of(party("west"), "west"))
    rosters.refuse_change(old, rosters.next_roster(old, members=more))
    refuses("must keep a member", rosters.revoke, signed(draft("north")), "north")


def test_a_revoked_key_never_returns_but_its_member_may_with_another():
    old, root = signed(draft()), authority()
    gone = rosters.revoke(old, "east")
    refuses("key of east is revoked", rosters.with_member, gone, [party("east")[1]])
    again = request(party("east").key, "other").encode()
    renewed = sign_request(again, root.key, root.certificate)
    refuses("key of other is revoked", rosters.with_member, gone, [renewed])
    fresh = request(a_key(), "east").encode()
    other = [sign_request(fresh, root.key, root.certificate)]
    back = rosters.with_member(gone, other)
    assert back.names == ("north", "south", "east")
    rosters.refuse_change(gone, back)
    changed_key = rosters.with_member(old, other)
    assert changed_key.names == NAMES and len(changed_key.revoked) == 1
    rosters.refuse_change(old, changed_key)


def test_every_roster_has_a_run_of_its_own():
    old = signed(draft())
    others = [rosters.revoke(old, "east"), draft(study="6" * 64), draft(*NAMES[::-1])]
    assert len({roster.run_name for roster in (old, *others)}) == 4
    assert old.run_name == draft().run_name


def test_a_changed_key_is_shown_to_those_who_sign():
    old, key, root = signed(draft()), a_key(), authority()
    asked = request(key, "north").encode()
    other = Seat("north", (sign_request(asked, root.key, root.certificate),))
    new = rosters.with_member(old, other.certificates)
    assert rosters.changes(old, new) == ["north has another KEY: ask its owner."]
    asked = request(party("north").key, "north").encode()
    same = Seat("north", (sign_request(asked, root.key, root.certificate),))
    new = rosters.next_roster(old, members=(same, *old.members[1:]))
    assert "for the same key" in rosters.changes(old, new)[0]


def test_an_old_roster_is_not_accepted_after_a_newer_one(tmp_path):
    newest, old = tmp_path / "newest.toml", signed(draft())
    new = signed(rosters.revoke(old, "east"))
    for roster in (old, old, new, new):
        rosters.accept(roster, STUDY, newest)
    said = refusal(rosters.accept, old, STUDY, newest)
    assert "at least the number 2, which this member has seen, got 1" in said
    # Another roster with the same number, also signed by all who remain in it.
    other = signed(rosters.revoke(old, "south"))
    said = refusal(rosters.accept, other, STUDY, newest)
    assert "knows another roster with the number 2" in said
    # A roster that is refused leaves no trace.
    unsigned = rosters.revoke(new, "south")
    refuses("did not: north", rosters.accept, unsigned, STUDY, newest)
    rosters.accept(new, STUDY, newest)
    elsewhere = signed(draft(study="6" * 64))
    rosters.accept(elsewhere, "6" * 64, newest)
    rosters.accept(new, STUDY, newest)


def test_copies_that_were_signed_apart_are_merged():
    roster = draft()
    copies = [signed(roster, name) for name in NAMES]
    assert rosters.merge(roster, copies).signed_by_all
    other = signed(draft("north", "east"))
    refuses("must have the same content", rosters.merge, roster, [other])
    # A wrong signature in a copy does not replace a right one.
    bad = changed(copies[0], signatures={"north": b"x"})
    assert rosters.merge(copies[0], [bad]).signatures == copies[0].signatures


def test_two_parties_share_neither_name_nor_key():
    refuses("(?i)have the name north", draft, "north", "North")
    refuses("have the name hub", draft, "north", "hub")
    key, root = party("north").key, authority()
    asked = request(key, "copy").encode()
    copy = [sign_request(asked, root.key, root.certificate)]
    members = [[party("north").certificate], copy]
    hub, roots = [party("hub").certificate], [root.certificate]
    said = refusal(rosters.make_roster, STUDY, hub, members, roots)
    assert said == "the key of north is also that of another party."


def test_another_protocol_is_refused():
    assert "`protocol` of the roster must be 1" in refused(changed(draft(), protocol=2))


CHANGES = {
    "a roster has no key 'extra'": {"extra": 1},
    "a roster needs `hub`": {"hub": None},
    r"1 to 1000 tables": {"member": []},
    "`study` of a roster must have 64": {"study": "x"},
    "`previous` of a roster must have 64": {"previous": 3},
    "`number` must be at least 1": {"number": 0},
    "the first roster": {"number": 2},
    "every later one has both": {"previous": "0" * 64},
    "`revoked` of a roster must be a list": {"revoked": "x"},
    "`revoked` of a roster must have 64": {"revoked": ["x"]},
    "`authorities` must be a list": {"authorities": "x"},
    "does not hold certificates": {"authorities": ["x"]},
    "`signatures` of a roster must be a table": {"signatures": []},
    "must be in base64": {"signatures": {"north": "?"}},
    "a signature of stranger, not a member": {"signatures": {"stranger": ""}},
    "must be a table with name": {"hub": {"name": "hub"}},
}


@pytest.mark.parametrize("sentence", CHANGES)
def test_a_file_of_another_form_is_refused(sentence):
    tables = {**draft().content(), "signatures": {}, **CHANGES[sentence]}
    tables = {key: value for key, value in tables.items() if value is not None}
    refuses(sentence, rosters.roster_in, tables)


def test_a_fingerprint_that_is_not_of_its_certificate_is_refused():
    tables = {**draft().content(), "signatures": {}}
    seat = tables["member"][0]
    for key, value, sentence in (
        ("fingerprint", "0" * 64, "must be that of the key in its certificate"),
        ("certificate", 3, "must be text in PEM"),
        ("name", "a b", "letters, digits"),
        ("extra", 1, "must be a table with name"),
    ):
        member = [{**seat, key: value}, *tables["member"][1:]]
        refuses(sentence, rosters.roster_in, {**tables, "member": member})
