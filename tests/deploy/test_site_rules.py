"""Claims about `site.toml`: what a site allows, and that nothing else happens."""

from __future__ import annotations

import datetime
import re
import tomllib
from hashlib import sha256
from pathlib import Path

import pytest

from coterie.algorithms.fedamp import fedamp
from coterie.checks import Problems
from coterie.deploy.sites.rules import (
    _ALLOW,
    _KEYS,
    Site,
    read_site,
    site_of,
    study_problems,
)
from coterie.study.settings.sites import LOCAL
from support.refusals import refuses

TEXT = """\
name = "north"
hub = "hub.example.org:8443"
roster = "roster.toml"
certificate = "north.crt"
key = "/keys/north.key"

[data]
path = "north.csv"
decimal = ","

[allow]
methods = ["local", "fedavg"]
"""

STUDY = {
    "data": {"path": "all.csv", "target": "ill"},
    "run": {"rounds": 3},
    "algorithm": [{"name": "local"}, {"name": "fedavg"}],
}


def tables(**changes) -> dict:
    given = {
        "name": "north",
        "hub": "hub:8443",
        "roster": "roster.toml",
        "certificate": "north.crt",
        "key": "north.key",
        "data": {"path": "north.csv"},
        "allow": {"methods": ["local", "fedavg"]},
    }
    return {k: v for k, v in {**given, **changes}.items() if v is not None}


def site(**allow) -> Site:
    allowed = {"methods": ["local", "fedavg"], **allow}
    return site_of(tables(allow=allowed), Path())


def test_a_file_is_read_with_its_paths_and_careful_defaults(tmp_path):
    (tmp_path / "site.toml").write_text(TEXT)
    found = read_site(tmp_path / "site.toml")
    assert (found.name, found.hub) == ("north", "hub.example.org:8443")
    assert found.roster == tmp_path / "roster.toml"
    assert found.key == Path("/keys/north.key")
    assert found.folder == tmp_path / "runs"
    assert found.data == {"path": str(tmp_path / "north.csv"), "decimal": ","}
    allow = found.allow
    assert allow.methods == ("local", "fedavg") and allow.programs == ()
    assert (allow.least_members, allow.clear_rows) == (3, False)
    assert study_problems(found, STUDY) == []


def test_all_problems_of_a_file_are_found_at_once(tmp_path):
    text = TEXT.replace('"north"', '"no rth"').replace(":8443", "")
    text = text.replace('key = "/keys/north.key"\n', "")
    text = text.replace("decimal", "target").replace("methods", "method")
    (tmp_path / "site.toml").write_text(text + "clear_rows = 1\nhours = '25:00-1'\n")
    with pytest.raises(Problems) as caught:
        read_site(tmp_path / "site.toml")
    assert caught.value.sentences == (
        "`name` must have at most 63 letters, digits, dots and hyphens, and begin and "
        "end with a letter or digit, got 'no rth'.",
        "`hub` must be HOST:PORT, such as hub.example.org:8443, got 'hub.example.org'.",
        "a site needs `key`.",
        "`data` of a site may only have path, separator, decimal, encoding, because "
        "the study says the rest, got 'target'.",
        "[allow] has no option 'method'. Did you mean 'methods'?",
        "a site needs `allow.methods`.",
        "`allow.clear_rows` must be true or false, got 1.",
        "`allow.hours` must have texts such as 'Mon-Fri 20:00-06:00', got '25:00-1'.",
    )


WRONG = {
    "a site has no key 'hubb'. Did you mean 'hub'?": {"hubb": ""},
    "a site needs `allow`.": {"allow": None},
    "`allow` must be a table, got 3.": {"allow": 3},
    "`data` must be a table, got 'x'.": {"data": "x"},
    "`data.path` must be a file or a list of files, got 3.": {"data": {"path": 3}},
    "`roster` must be a path, got ''.": {"roster": ""},
    "`hub` must be at most 65535, got 99999.": {"hub": "h:99999"},
    "`allow.methods` must be a list of names, got 'local'.": {"methods": "local"},
    "`allow.largest_message` must be greater than 0, got 0.": {"largest_message": 0},
    "`allow.least_members` must be at least 1, got 0.": {"least_members": 0},
    "`allow.budget` must be greater than 0, got -1.": {"budget": -1},
    "`allow.delta` must be less than 1, got 1.": {"delta": 1},
    "`allow.modules.mine` must be a SHA-256 of 64 hexadecimal digits, got 'x'.": {
        "modules": {"mine": "x"}
    },
    "`allow.programs` must name modules or functions (module:function), got '*'.": {
        "programs": ["*"]
    },
}


@pytest.mark.parametrize("sentence", WRONG)
def test_a_wrong_value_is_named_with_its_rule(sentence):
    change = WRONG[sentence]
    top = {"hubb", "allow", "data", "roster", "hub"}
    if not change.keys() & top:
        change = {"allow": {"methods": [], **change}}
    with pytest.raises(Problems) as caught:
        site_of(tables(**change), Path())
    assert caught.value.sentences == (sentence,)


def test_files_that_are_not_toml_are_refused(tmp_path):
    path = tmp_path / "site.toml"
    refuses("the site .* cannot be read: No such file", read_site, path)
    path.write_text("name = ")
    refuses("the site .* is not valid TOML", read_site, path)
    path.write_bytes(b"\xff")
    refuses("is not text in UTF-8", read_site, path)


def test_everything_that_a_study_may_not_do_is_named_at_once():
    study = {
        **STUDY,
        "algorithm": [{"name": "local"}, {"name": "scaffold"}],
        "model": {"name": "mine:net"},
        "sites": {
            "largest_message": 500,
            "least_members": 2,
            "masks": False,
            "trust_coordinator": True,
        },
        "privacy": {"epsilon": 9.0, "delta": 0.01},
    }
    assert study_problems(site(budget=2.0), study) == [
        "`allow.methods` of this site must name 'scaffold' for this study; it names "
        "local, fedavg.",
        "`sites.modules` of the study must have the SHA-256 of the module 'mine', "
        "whose code it names.",
        "`sites.largest_message` must be at most 64 MB at this site, got 500 MB.",
        "`sites.least_members` must be at least 3 at this site, got 2.",
        "`sites.masks` must be true, because `allow.clear_rows` of this site is false: "
        "the hub would see its rows.",
        "`sites.trust_coordinator` must be false, because `allow.clear_rows` of this "
        "site is false: the hub would see its rows.",
        "`privacy.epsilon` must be at most 2 at this site, got 9.",
        "`privacy.delta` must be at most 1e-05 at this site, got 0.01.",
    ]
    wider = site(clear_rows=True, least_members=2, largest_message=500)
    assert len(study_problems(wider, study)) == 2


def test_a_site_with_a_budget_refuses_a_study_without_privacy():
    (said,) = study_problems(site(budget=2.0), STUDY)
    assert "must have a table [privacy]" in said


def test_own_code_must_be_the_code_that_study_and_site_name():
    good, other = sha256(b"good").hexdigest(), sha256(b"other").hexdigest()
    study = {**STUDY, "model": {"name": "mine:net"}, "sites": {"modules": {}}}
    agreed = {**study, "sites": {"modules": {"mine": good}}}
    assert "must have the SHA-256" in study_problems(site(), study)[0]
    assert "it has nothing." in study_problems(site(), agreed)[0]
    assert study_problems(site(modules={"mine": good}), agreed) == []
    (said,) = study_problems(site(modules={"mine": other}), agreed)
    assert other[:16] in said and good[:16] in said


def test_a_study_without_methods_is_refused():
    for entries in ([], {}, [3]):
        (said,) = study_problems(site(), {**STUDY, "algorithm": entries})
        assert "must name its [[algorithm]]s" in said


def test_programs_of_the_hub_are_allowed_by_name_or_module():
    def elsewhere() -> None: ...

    for names in ([], ["coterie.algorithms.fedavg", f"{fedamp.__module__}:attend"]):
        said = "must name 'coterie.algorithms.fedamp:fedamp'"
        refuses(said, site(programs=names).refuse_program, fedamp)
    for name in (fedamp.__module__, f"{fedamp.__module__}:fedamp"):
        site(programs=[name]).refuse_program(fedamp)
    refuses("must name", site(programs=[fedamp.__module__]).refuse_program, elsewhere)


def test_hours_are_of_the_day_on_which_they_begin():
    def moment(day: int, time: str) -> datetime.datetime:
        return datetime.datetime.fromisoformat(f"2030-01-0{day} {time}")

    assert moment(7, "00:00").weekday() == 0  # a Monday
    nights = site(hours=["Mon-Fri 20:00-06:00", "Sun 00:00-24:00"])
    for day, time, is_open in (
        (7, "19:59", False),
        (7, "20:00", True),
        (8, "05:59", True),
        (8, "06:00", False),
        (7, "05:59", False),  # it was not open on Sunday evening
        (5, "05:59", True),  # Saturday morning, since Friday
        (5, "20:00", False),
        (6, "23:59", True),
    ):
        assert nights.is_open(moment(day, time)) == is_open, (day, time)
    assert nights.opens(moment(7, "06:30")) == moment(7, "20:00")
    around = site(hours="Fri-Mon 10:00-11:00")
    opens = [around.is_open(moment(day, "10:30")) for day in (4, 5, 6, 7, 8)]
    assert opens == [True] * 4 + [False]
    assert site().is_open()


def test_the_page_of_sites_shows_a_good_file_and_names_every_key():
    page = (Path(__file__).parents[2] / "docs" / "sites.md").read_text()
    (text,) = re.findall(r"^```toml\n(.*?)^```$", page, re.M | re.S)
    shown = site_of(tomllib.loads(text), Path())
    assert len(shown.allow.hours) == 2
    for key in (*_ALLOW, *_KEYS, *LOCAL["data"]):
        if key not in ("data", "allow"):
            assert re.search(rf"^\|.*`(?:data\.)?{key}`.*\|", page, re.M), key
