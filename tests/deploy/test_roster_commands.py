"""Claims about `coterie roster`, from a key to a roster that all have signed."""

from __future__ import annotations

import tomllib

import pytest

from coterie.checks import Problems
from coterie.deploy.sites import keys, rosters
from coterie.deploy.sites.rules import read_site
from support.called import called, refused
from support.refusals import refusal, refuses

STUDY = """\
name = "three"
[data]
path = "all.csv"
target = "ill"
[[algorithm]]
name = "fedavg"
lr = 0.1
[run]
rounds = 2
batch_size = 8
"""
NAMES = ("north", "east", "south")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.toml").write_text(STUDY)
    return tmp_path


def make() -> None:
    """A roster that nobody has signed, as its parties make it step by step."""
    called("roster", "authority", "authority")
    called("roster", "request", "hub", "--host", "127.0.0.1")
    for name in NAMES:
        called("roster", "request", name)
    words = ["--key", "authority.key", "--authority", "authority.crt"]
    requests = [f"{name}.request" for name in ("hub", *NAMES)]
    called("roster", "sign", *requests, *words)
    certificates = [f"{name}.crt" for name in NAMES]
    words = ["--hub", "hub.crt", "--authority", "authority.crt"]
    called("roster", "make", "study.toml", *certificates, *words)


def approve(name: str, *words: str, roster: str = "roster.toml") -> str:
    words = ("--key", f"{name}.key", "--study", "study.toml", "--yes", *words)
    return called("roster", "approve", roster, *words)[1]


def test_a_roster_from_the_first_key_to_the_last_signature(here):
    make()
    for name in NAMES[:2]:
        said = approve(name)
    assert said.endswith("Still to sign: south.\n")
    said = refusal(called, "roster", "check", "roster.toml", "--study", "study.toml")
    assert said == "every member must sign the roster, but 1 member did not: south."
    assert approve("south").endswith("Every member has signed.\n")
    said = called("roster", "check", "roster.toml", "--study", "study.toml")[1]
    assert "The roster can be used: every member has signed it." in said
    roster = rosters.read_roster(here / "roster.toml")
    assert roster.names == NAMES and roster.hub.name == "hub"
    for path in here.glob("*.key"):
        assert path.stat().st_mode & 0o777 == 0o600


def test_everybody_sees_the_same_fingerprint_of_a_key(here):
    make()
    refuses("exists already", called, "roster", "request", "north")
    shown = called("roster", "request", "north", "--key", "north.key")[1].split()[-1]
    words = ["--key", "authority.key", "--authority", "authority.crt"]
    assert called("roster", "sign", "north.request", *words)[1].split()[-1] == shown
    assert shown == keys.key_digest(keys.read_key(here / "north.key"))
    lines = [line.split() for line in approve("north").splitlines()]
    assert next(line[1] for line in lines if line[0] == "north") == shown
    tables = tomllib.loads((here / "roster.toml").read_text())
    assert tables["member"][0]["fingerprint"] == shown


def test_signatures_may_be_collected_from_copies(here):
    make()
    text = (here / "roster.toml").read_text()
    copies = [f"{name}.toml" for name in NAMES]
    for name, copy in zip(NAMES, copies, strict=True):
        (here / copy).write_text(text)
        approve(name, roster=copy)
    said = called("roster", "merge", "roster.toml", *copies)[1]
    assert said == "Every member has signed.\n"


def test_nobody_signs_a_roster_of_another_study_or_without_saying_yes(here):
    make()
    (here / "study.toml").write_text(STUDY.replace("rounds = 2", "rounds = 3"))
    refuses("the roster must be for your study", approve, "north")
    words = ["roster", "approve", "roster.toml", "--key", "north.key"]
    code, shown, _ = called(*words)  # there is nobody to answer
    assert code == 1 and "Do you sign this roster?" in shown
    assert len(rosters.read_roster(here / "roster.toml").signatures) == 0


def test_a_change_is_shown_and_signed_by_all_who_remain(here):
    make()
    for name in NAMES:
        approve(name)
    (here / "old.toml").write_text((here / "roster.toml").read_text())
    said = called("roster", "revoke", "roster.toml", "east")[1]
    assert said == "east is revoked.\nStill to sign: north, south.\n"
    refuses("`--old` must name the roster", approve, "north")
    said = approve("north", "--old", "old.toml")
    assert "change: east is revoked." in said
    approve("south", "--old", "old.toml")
    code, said, _ = called("roster", "check", "roster.toml")
    assert code == 0 and "east" not in said
    called("roster", "request", "west")
    words = ["--key", "authority.key", "--authority", "authority.crt"]
    called("roster", "sign", "west.request", *words)
    said = called("roster", "add", "roster.toml", "west.crt")[1]
    assert said == "west joins.\nStill to sign: north, south, west.\n"
    refuses(
        "key of east is revoked", called, "roster", "add", "roster.toml", "east.crt"
    )


def test_a_demonstration_has_a_folder_for_each_party_and_says_that_it_is_one(here):
    code, said, warned = called("roster", "demo", "study.toml", *NAMES)
    assert code == 0 and "for a demonstration only" in warned
    assert said.split() == [f"demo/{name}" for name in ("hub", *NAMES)]
    for name in NAMES:
        site = read_site(here / "demo" / name / "site.toml")
        assert site.allow.methods == ("fedavg",)
        roster = rosters.read_roster(site.roster)
        assert roster.signed_by_all
        key, (certificate,) = (
            keys.read_key(site.key),
            keys.read_certificates(site.certificate),
        )
        assert keys.holds(certificate, key)
        assert roster.members[roster.rank_named(name)].certificate == certificate
    refuses("must be new or empty", called, "roster", "demo", "study.toml", *NAMES)


def test_only_a_demonstration_writes_keys_next_to_each_other(here):
    make()
    text = (here / "roster.toml").read_text() + "".join(
        path.read_text() for path in [*here.glob("*.crt"), *here.glob("*.request")]
    )
    assert "PRIVATE" not in text


def test_all_problems_are_printed_one_a_line(here, capsys):
    from coterie.cli import commands

    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr("sys.argv", ["coterie", "roster", "nothing"])

        def fail() -> None:
            raise Problems(["one is wrong.", "two are wrong."])

        patch.setattr(commands, "_requested_app", lambda: fail)
        commands.main()
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["Error: one is wrong.", "Error: two are wrong."]


def test_errors_are_one_sentence(here):
    said = refused("roster", "check", "none.toml")
    assert said == "the roster none.toml cannot be read: No such file or directory."
