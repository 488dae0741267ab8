"""The commands of `coterie roster`: keys, certificates, and who takes part."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...checks import InputError, Problems, several
from ..terminal import err, out
from .options import STUDY

if TYPE_CHECKING:
    from ...deploy.sites.rosters import Roster

ROSTER = typer.Argument(metavar="ROSTER", help="A TOML file.")
OWN_KEY = typer.Option("--key", help="Your private key. It stays where it is.")
TO = typer.Option("--to", help="The folder for new files.")
AUTHORITIES = typer.Option(
    "--authority", help="The certificate of an authority (repeatable)."
)


def roster_request(
    name: Annotated[str, typer.Argument(help="The name of your site, or of the hub.")],
    host: Annotated[
        list[str] | None,
        typer.Option(help="Only for the hub: a name at which it listens (repeatable)."),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(help="A key that you have; default: a new one, NAME.key."),
    ] = None,
    to: Annotated[Path, TO] = Path(),
) -> None:
    """Make your key, and a request for a certificate to send to the authority."""
    from ...deploy.sites import keys
    from ...records.files import write

    keys.refuse_name("NAME", name)
    place = key or to / f"{name}.key"
    own = keys.new_key(place) if key is None else keys.read_key(place)
    path = to / f"{name}.request"
    write(path, keys.request(own, name, host or ()))
    out.print(f"key, which never leaves this machine: {place}", soft_wrap=True)
    out.print(f"request, for the authority: {path}", soft_wrap=True)
    out.print(f"fingerprint of the key: {keys.key_digest(own)}", soft_wrap=True)


def roster_authority(
    name: Annotated[str, typer.Argument(help="The name of the authority.")],
    to: Annotated[Path, TO] = Path(),
) -> None:
    """Make an authority, which signs the requests of members and of the hub."""
    from ...deploy.sites import keys

    keys.refuse_name("NAME", name)
    key = keys.new_key(to / f"{name}.key")
    path = to / f"{name}.crt"
    keys.write_certificates(path, [keys.new_authority(key, name)])
    place = to / f"{name}.key"
    out.print(f"key, which never leaves this machine: {place}", soft_wrap=True)
    out.print(f"certificate, for everybody: {path}", soft_wrap=True)
    out.print(f"fingerprint of the key: {keys.key_digest(key)}", soft_wrap=True)


def roster_sign(
    requests: Annotated[list[Path], typer.Argument(help="Files of `roster request`.")],
    key: Annotated[Path, typer.Option(help="The key of the authority.")],
    authority: Annotated[Path, typer.Option(help="The authority's certificate.")],
    days: Annotated[int, typer.Option(help="How long certificates are valid.")] = 365,
    to: Annotated[Path, TO] = Path(),
) -> None:
    """Sign requests as an authority. Ask their owners for the fingerprints first."""
    from ...deploy.sites import keys
    from ...deploy.sites.reading import content_of

    own, root = keys.read_key(key), keys.read_certificates(authority)[0]
    for path in requests:
        asked = content_of("request", path)
        found = keys.sign_request(asked, own, root, days=days)
        name = keys.name_of(found)
        keys.write_certificates(to / f"{name}.crt", [found])
        out.print(
            f"{to / f'{name}.crt'}: fingerprint of the key {keys.requested_key(asked)}",
            soft_wrap=True,
        )


def roster_make(
    study: Annotated[Path, STUDY],
    members: Annotated[
        list[Path], typer.Argument(help="Certificates of all members, in order.")
    ],
    hub: Annotated[Path, typer.Option(help="The certificate of the hub.")],
    authority: Annotated[list[Path], AUTHORITIES],
    to: Annotated[Path, typer.Option(help="The new roster.")] = Path("roster.toml"),
) -> None:
    """Write the first roster of a study, for all members to sign."""
    from ...deploy.sites import keys, rosters

    roster = rosters.make_roster(
        _hash_of(study),
        keys.read_certificates(hub),
        [keys.read_certificates(path) for path in members],
        [each for path in authority for each in keys.read_certificates(path)],
    )
    if problems := rosters.roster_problems(roster, signed=False):
        raise Problems(problems)
    rosters.write_roster(to, roster)
    out.print(f"{to}: {several(len(members), 'member')} must sign it.")


def roster_approve(
    roster: Annotated[Path, ROSTER],
    key: Annotated[Path, OWN_KEY],
    study: Annotated[Path | None, typer.Option(help="Your copy of the study.")] = None,
    old: Annotated[
        Path | None, typer.Option(help="The roster before, if this one changes it.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Show a roster, and sign it for your site."""
    from ...deploy.sites import keys, rosters

    found, own = rosters.read_roster(roster), keys.read_key(key)
    before = None if old is None else rosters.read_roster(old)
    if before is None and found.number > 1:
        raise InputError(
            f"the roster has the number {found.number}, so `--old` must name the "
            "roster that it changes."
        )
    if study is not None and found.study != (mine := _hash_of(study)):
        raise InputError(
            f"the roster must be for your study, whose hash is {mine[:16]}..., but it "
            f"is for {found.study[:16]}...."
        )
    signed = rosters.approve(found, own, before)
    _show(found)
    for line in [] if before is None else rosters.changes(before, found):
        out.print(f"change: {line}", soft_wrap=True)
    if not yes and not typer.confirm("Do you sign this roster?"):
        raise typer.Exit(1)
    rosters.write_roster(roster, signed)
    _say_unsigned(signed)


def roster_merge(
    roster: Annotated[Path, ROSTER],
    others: Annotated[list[Path], typer.Argument(help="Copies with signatures.")],
) -> None:
    """Collect the signatures of copies that members signed apart."""
    from ...deploy.sites import rosters

    copies = [rosters.read_roster(path) for path in others]
    merged = rosters.merge(rosters.read_roster(roster), copies)
    rosters.write_roster(roster, merged)
    _say_unsigned(merged)


def roster_add(
    roster: Annotated[Path, ROSTER],
    certificate: Annotated[Path, typer.Argument(help="Of the member.")],
) -> None:
    """Add a member, or give a member a new certificate. All members sign again.

    If a member has a new key, its old key is revoked.
    """
    from ...deploy.sites import keys, rosters

    found = rosters.read_roster(roster)
    after = rosters.with_member(found, keys.read_certificates(certificate))
    if problems := rosters.roster_problems(after, signed=False):
        raise Problems(problems)
    rosters.write_roster(roster, after)
    _say_changed(found, after)


def roster_revoke(
    roster: Annotated[Path, ROSTER],
    name: Annotated[str, typer.Argument(help="The member whose key is revoked.")],
) -> None:
    """Revoke a member's key, for ever. All other members sign again."""
    from ...deploy.sites import rosters

    found = rosters.read_roster(roster)
    after = rosters.revoke(found, name)
    rosters.write_roster(roster, after)
    _say_changed(found, after)


def roster_check(
    roster: Annotated[Path, ROSTER],
    study: Annotated[Path | None, typer.Option(help="Your copy of the study.")] = None,
) -> None:
    """Say whether a roster can be used, or all that is wrong with it."""
    from ...deploy.sites import rosters

    found = rosters.read_roster(roster)
    _show(found)
    rosters.check(found, found.study if study is None else _hash_of(study))
    out.print("The roster can be used: every member has signed it.")


def roster_demo(
    study: Annotated[Path, STUDY],
    names: Annotated[list[str], typer.Argument(help="The members, in order.")],
    to: Annotated[Path, TO] = Path("demo"),
    hub: Annotated[str, typer.Option(help="Where the hub listens.")] = "127.0.0.1:8443",
) -> None:
    """Make everything for a demonstration on one machine, WITH ALL KEYS.

    There is a folder for the hub and one for each member. One person who has all keys
    can pretend to be everybody, so never use these files for real data.
    """
    from ...deploy.sites.demonstrations import demonstrate

    for folder in demonstrate(study, names, to, hub):
        out.print(str(folder), soft_wrap=True)
    err.print(
        "These files hold the keys of everybody: they are for a demonstration only.",
        soft_wrap=True,
    )


def _hash_of(study: Path) -> str:
    from ...deploy.sites.reading import tables_of
    from ...study.settings.sites import study_hash

    return study_hash(tables_of("study", study))


def _show(roster: Roster) -> None:
    """Prints a roster for a person who has to judge it."""
    from ...deploy.sites.keys import days_left, fingerprint, name_of

    out.print(f"study   {roster.study}", soft_wrap=True)
    out.print(f"roster  {roster.hash}", soft_wrap=True)
    out.print(f"number  {roster.number}")
    missing, parties = roster.missing_signatures(), []
    for seat in (roster.hub, *roster.members):
        state = "has not signed" if seat.name in missing else "has signed"
        state = "the hub" if seat is roster.hub else state
        parties.append((seat.name, seat.certificate, state))
    parties += [(name_of(root), root, "authority") for root in roster.authorities]
    widest = max(len(name) for name, *_ in parties)
    out.print("fingerprints of keys, which their owners can tell by telephone:")
    for name, certificate, state in parties:
        left = several(max(0, days_left(certificate)), "day")
        shown = f"{name:<{widest}}  {fingerprint(certificate)}"
        out.print(f"{shown}  {state}, valid for {left}", soft_wrap=True)


def _say_unsigned(roster: Roster) -> None:
    missing = roster.missing_signatures()
    if missing:
        out.print(f"Still to sign: {', '.join(missing)}.")
    else:
        out.print("Every member has signed.")


def _say_changed(before: Roster, after: Roster) -> None:
    from ...deploy.sites.rosters import changes

    for line in changes(before, after):
        out.print(line, soft_wrap=True)
    _say_unsigned(after)
