"""Claims about `join --check` and `join --rehearse`: what they find and do."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from coterie.deploy.sites import checkups
from coterie.deploy.sites.checkups import FAILED, OK, WARNING, look
from coterie.deploy.sites.joining import ready_to_join, study_at
from coterie.deploy.sites.member_store import MemberStore
from coterie.deploy.sites.rehearsals import made_up, rehearse
from coterie.deploy.sites.serving import read_hub, serving
from coterie.privacy.mechanisms.settings import Privacy
from support.called import called
from support.site_folders import NAMES, STUDY, change_site, site_folders


@pytest.fixture
def three(tmp_path):
    return site_folders(tmp_path)


@pytest.fixture
def running(three, tmp_path):
    """The study and sites of three members, whose hub serves."""
    study, sites = three
    files = read_hub(study, tmp_path / "demo" / "hub" / "roster.toml", None)
    with serving(files, "127.0.0.1:0", tmp_path / "hub") as (hub, port):
        for path in sites.values():
            change_site(path, hub=f"127.0.0.1:{port}")
        yield study, sites, hub


def results(study, site) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for what, outcome, text in look(ready_to_join(study, site)):
        found.setdefault(what, []).append((outcome, text))
    return found


def test_a_ready_site_is_told_so_and_changes_nothing(running, tmp_path):
    study, sites, hub = running
    code, shown, _ = called("join", str(study), "--site", str(sites["Bern"]), "--check")
    assert code == 0 and shown.endswith("This site is ready.\n")
    assert "failed" not in shown
    found = results(study, sites["Bern"])
    assert found["run"] == [(OK, "the hub is at step 0 of the run")]
    assert (OK, "sex: f, m") in found["column"]
    assert "numbers from 29 to 85" in dict(found["column"][0:1])[OK]
    assert hub.step == 0 and not hub.status()["members"][2]["there"]
    assert not list((tmp_path / "demo" / "Bern" / "runs").glob("three-*"))


def test_a_hub_that_is_not_there_or_another_is_named(three, running, tmp_path):
    study, sites, _ = running
    change_site(sites["Bern"], hub="127.0.0.1:1")
    assert results(study, sites["Bern"])["hub"] == [
        (FAILED, "127.0.0.1:1: nobody listens there.")
    ]
    words = ["join", str(study), "--site", str(sites["Bern"]), "--check"]
    code, shown, _ = called(*words)
    assert code == 1 and "1 test failed" in shown


def test_clocks_versions_and_runs_that_differ_are_found(running, monkeypatch):
    study, sites, hub = running
    hub._torch[0] = "1.0"
    hub._run = "another"
    monkeypatch.setattr("coterie.deploy.sites.hub.PROTOCOL", 9)
    now = checkups.time.time
    monkeypatch.setattr("coterie.deploy.sites.hub.time", Late(now))
    found = results(study, sites["Basel"])
    assert found["run"] == [(FAILED, "the hub has another study or another roster")]
    assert (FAILED, "the protocol of the hub is 9, and that of this site 1") in (
        found["version"]
    )
    assert any(
        outcome == WARNING and text.startswith("Aarau has torch 1.0")
        for outcome, text in found["version"]
    )
    ((outcome, text),) = found["clock"]
    assert outcome == FAILED and "3600" in text


class Late:
    """A clock that is an hour behind."""

    def __init__(self, now) -> None:
        self.time = lambda: now() - 3600
        self.monotonic = checkups.time.monotonic


def test_a_full_disk_a_closed_site_and_a_wrong_column_are_found(three, monkeypatch):
    study, sites = three
    hours = {"hours": "Mon 00:00-00:01"}
    change_site(sites["Bern"], allow=hours, hub="127.0.0.1:1")
    monkeypatch.setattr(checkups.shutil, "disk_usage", lambda path: Disk())
    data = sites["Bern"].parent / "Bern.csv"
    data.write_text(data.read_text().replace("outcome", "result", 1))
    found = results(study, sites["Bern"])
    assert found["disk"][0][0] == FAILED
    assert found["hours"][0][0] == WARNING
    ((outcome, text),) = found["data"]
    assert outcome == FAILED and "'outcome'" in text


class Disk:
    free = 1000


def test_what_only_simulations_do_is_found(tmp_path):
    text = STUDY.replace("rounds = 3\n", "") + "[time]\n"
    study, sites = site_folders(tmp_path, text, hub="127.0.0.1:1")
    found = results(study, sites["Bern"])
    said = [text for _, text in found["study"]]
    assert said[0].startswith("[time] is a simulation of time")


def change_table(site, *pairs: tuple[str, str]) -> None:
    path = site.parent / f"{site.parent.name}.csv"
    text = path.read_text()
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)


def test_a_column_that_differs_is_named_with_its_site_before_the_run(running):
    study, sites, hub = running
    change_table(sites["Bern"], ("age", "years"), (",f,", ",F,"))
    assert results(study, sites["Aarau"])["columns"] == [
        (OK, "Basel, Bern did not look yet, so nothing is known of them")
    ]
    assert results(study, sites["Basel"])["columns"][0] == (
        OK,
        "those of Aarau are the same",
    )
    found = results(study, sites["Bern"])
    failed = [text for outcome, text in found["columns"] if outcome == FAILED]
    assert failed == [
        "column 'years' is at Bern, but not at Aarau.",
        "column 'age' is at Aarau, but not at Bern.",
        "column 'years' is at Bern, but not at Basel.",
        "column 'age' is at Basel, but not at Bern.",
    ]
    assert found["words"] == [
        (WARNING, "only this site has 'F' in column 'sex': is that spelled right?")
    ]
    change_table(sites["Bern"], ("years", "age"), (",F,", ",f,"))
    found = results(study, sites["Bern"])
    assert found["columns"] == [(OK, "those of Aarau, Basel are the same")]
    assert "words" not in found and hub.step == 0
    told = b"".join(hub._columns.values())  # no word and no value of a table
    assert b"age" in told and b'"f"' not in told and b"typical" not in told


def test_another_kind_of_column_and_other_classes_are_named(running):
    study, sites, _ = running
    results(study, sites["Aarau"])
    path = sites["Bern"].parent / "Bern.csv"
    table = pd.read_csv(path)
    table["age"] = table["age"].map(lambda value: f"{value} years")
    table["outcome"] = (table["outcome"] == table["outcome"][0]).astype(int)
    table.to_csv(path, index=False)
    failed = [text for _, text in results(study, sites["Bern"])["columns"]]
    assert failed[0].startswith("column 'age' holds words at Bern, but numbers at A")
    assert failed[1].startswith("the target holds numbers at Bern, but words at Aar")


def test_what_others_tell_of_their_columns_is_not_trusted(running):
    study, sites, hub = running
    for told in (b"?", b"[1, 2]", b"[[" * 9999, b'["binary", [["a", "b"]]]'):
        hub._columns[0] = told
        ((outcome, text),) = results(study, sites["Bern"])["columns"]
        assert outcome == FAILED and "what Aarau tells of its columns" in text


def test_another_unit_is_found_if_the_study_has_ranges(tmp_path):
    text = STUDY + "ranges = {age = [0, 120], pressure = [50, 140]}\n"
    study, sites = site_folders(tmp_path, text, hub="127.0.0.1:1")
    path = sites["Bern"].parent / "Bern.csv"
    table = pd.read_csv(path)
    table.assign(age=12 * table["age"]).to_csv(path, index=False)  # in months
    few = int((table["pressure"] > 140).sum())
    (_, age), (_, pressure) = found = results(study, sites["Bern"])["unit"]
    assert [outcome for outcome, _ in found] == [FAILED, WARNING]
    assert "'age' lie outside 0 to 120" in age and "another unit?" in age
    assert pressure.startswith(f"{few} of ")


def test_with_privacy_a_table_is_compared_at_home(running, monkeypatch):
    """The words of the study decide, and the hub hears nothing of the columns."""
    study, sites, hub = running
    whole = checkups.study_at

    def private(joining):
        found, table = whole(joining)
        return replace(found, privacy=Privacy(epsilon=1.0)), table

    monkeypatch.setattr(checkups, "study_at", private)
    said = [text for _, text in results(study, sites["Bern"])["study"]]
    assert any("`sites.categories` must have column 'sex'" in text for text in said)
    assert not hub._columns


def test_a_study_must_draw_enough_members_for_a_sum(tmp_path):
    text = STUDY.replace("rounds = 3", "rounds = 3\nparticipation = 0.5")
    study, sites = site_folders(tmp_path, text, hub="127.0.0.1:1")
    ((outcome, said),) = results(study, sites["Bern"])["data"]
    assert outcome == FAILED
    assert said.startswith("`run.participation` of 3 members must draw at least")


def test_a_rehearsal_trains_every_method_and_sends_nothing(three, tmp_path):
    study, sites = three
    change_site(sites["Bern"], hub="127.0.0.1:1")
    lines = list(rehearse(ready_to_join(study, sites["Bern"])))
    assert lines[0] == "local: one round, and 0 bytes for each member"
    assert lines[1].startswith("fedavg: one round, and ")
    assert lines[2].startswith("everything took ")
    assert not list((tmp_path / "demo" / "Bern" / "runs").glob("three-*"))
    words = ["join", str(study), "--site", str(sites["Bern"]), "--rehearse"]
    assert called(*words)[1].startswith("local: one round")


def test_made_up_rows_are_no_rows_of_the_table(three):
    study, sites = three
    _, table = study_at(ready_to_join(study, sites["Bern"]))
    made = made_up(table, NAMES)
    assert made.names == NAMES and made.group.bincount().tolist() == [60, 60, 60]
    own = {tuple(row) for row in table.features.nan_to_num(-1).tolist()}
    drawn = [tuple(row) for row in made.features.nan_to_num(-1).tolist()]
    assert sum(row in own for row in drawn) == 0
    for place in range(table.features.shape[1]):
        known = set(table.features[:, place].nan_to_num(-1).tolist())
        assert set(made.features[:, place].nan_to_num(-1).tolist()) <= known


def test_a_check_leaves_no_log_of_departures(running, tmp_path):
    study, sites, _ = running
    results(study, sites["Aarau"])
    assert not list(tmp_path.rglob("site.db"))
    assert MemberStore(tmp_path / "new").departures() == []
