"""Claims about joining: what is checked before a site takes part, and what it gets."""

from __future__ import annotations

import datetime
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pandas as pd
import pytest

import coterie
from coterie.checks import DisconnectedError, Problems
from coterie.deploy.sites import participation
from coterie.deploy.sites.channel import HubChannel
from coterie.deploy.sites.demonstrations import demonstrate
from coterie.deploy.sites.joining import ready_to_join, study_at
from coterie.deploy.sites.keys import new_key, pem, read_key, request, sign_request
from coterie.deploy.sites.participation import OpenHours, take_part
from coterie.deploy.sites.rosters import approve, read_roster, revoke, write_roster
from coterie.deploy.sites.serving import follow, read_hub, refuse_listen, serving
from coterie.deploy.sites.wire import Parcel
from support.called import called
from support.refusals import refusal, refuses
from support.site_folders import NAMES, STUDY, change_site, site_folders
from support.sites import wait_for


def problems(study, site) -> tuple[str, ...]:
    with pytest.raises(Problems) as caught:
        ready_to_join(study, site)
    return caught.value.sentences


def resigned(folder, roster, *names: str) -> None:
    """Writes a roster that these members have signed into all folders."""
    for name in names:
        roster = approve(roster, read_key(folder / "demo" / name / f"{name}.key"))
    for path in folder.glob("demo/*/roster.toml"):
        write_roster(path, roster)


@pytest.fixture
def three(tmp_path):
    return site_folders(tmp_path)


def test_three_sites_train_and_each_has_its_own_results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    study, sites = site_folders(tmp_path)
    files = read_hub(study, tmp_path / "demo" / "hub" / "roster.toml", None)
    heard: list[str] = []
    with serving(files, "127.0.0.1:0", tmp_path / "hub") as (hub, port):
        for path in sites.values():
            change_site(path, hub=f"127.0.0.1:{port}")

        def at(name: str):
            return take_part(ready_to_join(study, sites[name]), heard.append)

        with ThreadPoolExecutor(4) as pool:
            ended = pool.submit(follow, hub, heard.append)
            folders = dict(zip(NAMES, pool.map(at, NAMES), strict=True))
            assert ended.result(60) == "done"
    assert {"Aarau is there.", "Basel is there.", "Bern is there."} <= {*heard}
    for name, folder in folders.items():
        run = coterie.load(folder)
        assert run.records.clients["name"].unique().tolist() == [name]
        left = json.loads(called("log", str(folder), "--json")[1])["departures"]
        rows = [one for one in left if one["bytes"]]
        assert rows[-1]["what"] == "fedavg, seed 0, round 3"
        said = called("log", str(folder))[1].splitlines()[-1]
        assert said.startswith(f"{len(left)} messages with ")
        assert "member" in {path.name for path in folder.iterdir()}
        others = [other for other in NAMES if other != name]
        text = (folder / "metrics.csv").read_text()
        assert name in text and not any(other in text for other in others)
    code, shown, _ = called("export", str(folders["Bern"]))[:3]
    assert code == 0 and "model of Bern" in shown
    rows = pd.read_csv(tmp_path / "demo" / "Bern" / "Bern.csv")
    rows.assign(hospital="Bern").to_csv("own.csv", index=False)
    code, shown, errors = called("predict", "exports/Bern", "own.csv")[:3]
    assert code == 0 and "accuracy" in shown + errors  # the client and target may stay


def test_a_site_is_ready_if_all_its_files_agree(three):
    study, sites = three
    joining = ready_to_join(study, sites["Basel"])
    assert (joining.rank, joining.site.name) == (1, "Basel")
    assert joining.run_name == joining.roster.run_name
    own, table = study_at(joining)
    assert len(table.rows) > 10 and own.run.rounds == 3


def test_everything_that_is_wrong_is_said_at_once(three, tmp_path):
    study, sites = three
    study.write_text(STUDY.replace("fedavg", "scaffold").replace("patience", "masks"))
    study.write_text(study.read_text().replace("= 20", "= false"))
    change_site(sites["Aarau"], key="../Basel/Basel.key", certificate="../hub/hub.crt")
    found = problems(study, sites["Aarau"])
    for words in (
        "`allow.methods` of this site must name 'scaffold'",
        "`sites.masks` must be true",
        "hub.crt must be that of the key",
        "the roster must be for this study",
        "must be that of Aarau in the roster, but it is another one",
    ):
        assert sum(words in sentence for sentence in found) == 1, (words, found)
    assert not (tmp_path / "demo" / "Aarau" / "runs").exists()


def test_missing_files_are_all_named(three):
    study, sites = three
    names = {"key": "no.key", "certificate": "no.crt", "roster": "no.toml"}
    change_site(sites["Bern"], **names)
    found = problems(study, sites["Bern"])
    assert [any(name in text for text in found) for name in names.values()] == [
        True
    ] * 3


def test_a_replaced_roster_is_refused_after_the_new_one_was_seen(three, tmp_path):
    study, sites = three
    old = read_roster(tmp_path / "demo" / "hub" / "roster.toml")
    ready_to_join(study, sites["Bern"])
    new = revoke(old, "Basel")
    resigned(tmp_path, new, "Aarau", "Bern")
    ready_to_join(study, sites["Bern"])
    (said,) = problems(study, sites["Basel"])
    assert said.startswith("the roster has no member 'Basel'.")
    resigned(tmp_path, old)
    refuses("it was replaced", ready_to_join, study, sites["Bern"])


def test_a_hub_refuses_wrong_files(three, tmp_path):
    study, _ = three
    hub = tmp_path / "demo" / "hub"
    key = tmp_path / "demo" / "Bern" / "Bern.key"
    refuses("must be that of the hub hub", read_hub, study, hub / "roster.toml", key)
    whole = read_roster(hub / "roster.toml")
    resigned(tmp_path, revoke(whole, "Basel"), "Aarau")
    refuses("did not: Bern", read_hub, study, hub / "roster.toml", None)
    resigned(tmp_path, revoke(whole, "Basel"), "Aarau", "Bern")
    said = refusal(read_hub, study, hub / "roster.toml", None)
    assert said.startswith(
        "the roster must have at least `sites.least_members` members"
    )
    study.write_text(STUDY + "largest = 1e12\n")
    refuses("this study has the hash", read_hub, study, hub / "roster.toml", None)
    for listen in ("8443", "host:", "host:x", "host:99999"):
        refuses("`--listen` must be HOST:PORT", refuse_listen, listen)


def ask(joining, port: int, **changes) -> Parcel:
    """The answer of the hub at a port to a sign of life."""
    own = joining.credentials()._replace(**changes)
    channel = HubChannel(f"127.0.0.1:{port}", own, "hub", give_up=0.0)
    try:
        return channel.ask(Parcel({"kind": "alive"}), patiently=False)
    finally:
        channel.close()


def test_a_hub_hears_nobody_who_is_not_on_its_roster(three, tmp_path):
    study, sites = three
    files = read_hub(study, tmp_path / "demo" / "hub" / "roster.toml", None)
    demonstrate(study, NAMES, tmp_path / "other", "127.0.0.1:1")
    root = read_key(tmp_path / "demo" / "authority.key")
    key = new_key(tmp_path / "west.key")
    asked = request(key, "west").encode()
    west = sign_request(asked, root, files.roster.authorities[0])
    with serving(files, "127.0.0.1:0", tmp_path / "log") as (_, port):
        joining = ready_to_join(study, sites["Aarau"])
        assert "step" in ask(joining, port).header
        stranger = ready_to_join(study, tmp_path / "other" / "Aarau" / "site.toml")
        hub = joining.credentials().authority
        with pytest.raises(DisconnectedError):  # of another authority
            ask(stranger, port, authority=hub)
        own = {"certificate": pem(west).encode()}
        own["key"] = (tmp_path / "west.key").read_bytes()
        with pytest.raises(DisconnectedError, match="is not on the roster"):
            ask(joining, port, **own)  # of the same authority


def test_a_hub_does_not_hear_a_member_whose_key_is_stolen(three, tmp_path):
    study, sites = three
    files = read_hub(study, tmp_path / "demo" / "hub" / "roster.toml", None)
    place = "127.0.0.1:0", tmp_path / "log"
    with serving(files, *place, without=["Bern"]) as (_, port):
        assert "step" in ask(ready_to_join(study, sites["Aarau"]), port).header
        with pytest.raises(DisconnectedError, match="is not on the roster"):
            ask(ready_to_join(study, sites["Bern"]), port)
    with pytest.raises(ValueError, match="has no member 'Chur'"):
        with serving(files, *place, without=["Chur"]):
            pass


def test_a_member_believes_no_other_hub_even_with_a_certificate_of_the_authority(
    three, tmp_path
):
    study, sites = three
    files = read_hub(study, tmp_path / "demo" / "hub" / "roster.toml", None)
    root = read_key(tmp_path / "demo" / "authority.key")
    place = tmp_path / "false.key"
    asked = request(new_key(place), "hub", ["127.0.0.1"]).encode()
    forged = sign_request(asked, root, files.roster.authorities[0])
    own = files.credentials._replace(
        certificate=pem(forged).encode(), key=place.read_bytes()
    )
    false = files._replace(credentials=own)
    joining = ready_to_join(study, sites["Aarau"])
    with serving(false, "127.0.0.1:0", tmp_path / "log") as (_, port):
        with pytest.raises(DisconnectedError):
            ask(joining, port)


def test_a_closed_site_is_silent_and_waits(three, monkeypatch):
    study, sites = three
    change_site(sites["Bern"], allow={"hours": "20:00-06:00"})
    site = ready_to_join(study, sites["Bern"]).site
    now = [datetime.datetime(2030, 1, 7, 6, 0)]
    monkeypatch.setattr(
        type(site), "is_open", lambda self, moment=None: now[0].hour >= 20
    )
    evening = datetime.datetime(2030, 1, 7, 20, 0)
    monkeypatch.setattr(type(site), "opens", lambda self: evening)
    monkeypatch.setattr(
        participation.time, "sleep", lambda seconds: now.__setitem__(0, evening)
    )
    asked, said = [], []

    class Channel:
        def ask(self, parcel, *, patiently=True):
            asked.append(parcel)
            return parcel

        def close(self) -> None:
            asked.append("closed")

    channel = OpenHours(Channel(), site, said.append)
    with pytest.raises(DisconnectedError):  # a sign of life is not sent
        channel.ask(Parcel({"kind": "alive"}), patiently=False)
    assert asked == []
    channel.ask(Parcel({"kind": "begin"}))
    assert len(asked) == 1
    assert said == ["closed until Monday 20:00, by `allow.hours` of this site"]
    channel.close()
    assert asked[-1] == "closed"


class Sites:
    """Three sites that take part in a study, each in a thread."""

    def __init__(self, study, sites) -> None:
        self.study, self.sites = study, sites
        self.said: list[str] = []
        self.found: dict[str, str] = {}

    def _at(self, name: str) -> None:
        try:
            site = ready_to_join(self.study, self.sites[name])
            self.found[name] = str(take_part(site, self.said.append))
        except (ValueError, RuntimeError) as error:
            self.found[name] = str(error)

    def begin(self) -> list[threading.Thread]:
        threads = [threading.Thread(target=self._at, args=(name,)) for name in NAMES]
        for thread in threads:
            thread.start()
        return threads


def test_members_hear_why_a_hub_ends_and_wait_for_its_next_start(three, tmp_path):
    """Bern has another column at first. When it is corrected, all take part again."""
    study, sites = three
    data = sites["Bern"].parent / "Bern.csv"
    right = data.read_text()
    data.write_text(right.replace("age", "years", 1))
    files = read_hub(study, tmp_path / "demo" / "hub" / "roster.toml", None)
    three_sites, lines = Sites(study, sites), list[str]()
    with serving(files, "127.0.0.1:0", tmp_path / "hub") as (hub, port):
        for path in sites.values():
            change_site(path, hub=f"127.0.0.1:{port}")
        threads = three_sites.begin()
        ended = follow(hub, lines.append)  # it ends when all know, and not in 20 s
        for thread in threads:
            thread.join(30)
        assert ended.startswith("failed") and hub.all_told()
        found = three_sites.found
        assert all("'years'" in found[name] for name in NAMES), found
        data.write_text(right)
        threads = three_sites.begin()
        wait_for(lambda: sum("is about to end" in s for s in three_sites.said) == 3)
    with serving(files, f"127.0.0.1:{port}", tmp_path / "hub") as (hub, _):
        for thread in threads:
            thread.join(60)
        assert hub.ended == "done"
    folders = dict(three_sites.found)
    assert all("three-" in folder for folder in folders.values()), folders
    for thread in three_sites.begin():  # there is no hub now
        thread.join(30)
    assert three_sites.found == folders
    said = three_sites.said[-3:]
    assert all(line.startswith("the run is done at ") for line in said), said


def test_only_a_folder_of_a_site_has_a_log(tmp_path):
    refuses("is not the run folder of a site", called, "log", str(tmp_path))
