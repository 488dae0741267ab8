"""Claims about tables that go wrong: each gets one sentence that says what to do."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import coterie as co
from coterie.checks import InputError
from coterie.data.looking.findings import Findings, findings_of, look_at
from coterie.data.looking.formats import Writing
from coterie.data.looking.sources import TableSource, read_source
from coterie.data.looking.studies import completed

AGE = [f"{k * 37 % 61}.5" for k in range(80)]
SITE = [f"place {k % 4}" for k in range(80)]


def found_in(target: str = "y", **columns: list[str]) -> Findings:
    """What is found in a table whose clients are in the column `site`."""
    index = pd.RangeIndex(2, len(next(iter(columns.values()))) + 2)
    frame = pd.DataFrame(columns, index=index, dtype=object)
    path = Path("t.csv")
    source = TableSource(path, (path,), (frame,), Writing(",", ".", "utf-8"))
    return findings_of(look_at(source), "site", target)


def write_sites(folder: Path, **values: list[str]) -> Path:
    """A file for each site, whose targets go through its values in turn."""
    for name, some in values.items():
        rows = [f"{k * 37 % 61}.5,{some[k * k % 7 % len(some)]}" for k in range(30)]
        (folder / f"{name}.csv").write_text("\n".join(["age,outcome", *rows]))
    return folder


CODINGS = [
    (["ill", "well"], "a.csv has 'ill' and 'well', b.csv and 1 more have 0 and 1"),
    (["1", "2"], "b.csv and 1 more have 0 and 1, a.csv has 1 and 2"),
    (["-1", "1"], "a.csv has -1 and 1, b.csv and 1 more have 0 and 1"),
    (["true", "false"], "a.csv has 'false' and 'true', b.csv and 1 more have 0 and 1"),
]


@pytest.mark.parametrize(("values", "words"), CODINGS)
def test_files_that_code_the_target_differently_are_refused(tmp_path, values, words):
    folder = write_sites(tmp_path, a=values, b=["0", "1"], c=["1", "0"])
    sentence = (
        f"the codings of the target 'outcome' differ by file: {words}; use the same "
        "values in all files"
    )
    look = look_at(read_source(folder))
    assert findings_of(look, "file name", "outcome").problems == (sentence,)
    for more in ({}, {"client": "file name", "target": "outcome"}):
        with pytest.raises(InputError) as error:
            completed({"path": str(folder), **more}, {})
        assert str(error.value) == f"{sentence}."
    # Who names the task means what the files say.
    said = {"client": "file name", "target": "outcome", "task": "classification"}
    assert completed({"path": str(folder), **said}, {})[0]["task"] == "classification"


def test_a_client_that_codes_the_target_differently_is_refused():
    words = [["no", "yes"], ["0", "1"], ["0", "1"], ["0", "1"]]
    target = [words[k % 4][k * k % 7 > 2] for k in range(80)]
    assert found_in(site=SITE, age=AGE, y=target).problems == (
        "the codings of the target 'y' differ by client: place 0 has 'no' and 'yes', "
        "place 1 and 2 more have 0 and 1; use the same values for all clients",
    )
    frame = pd.DataFrame({"site": SITE, "age": map(float, AGE), "y": target})
    with pytest.raises(InputError, match="codings of the target 'y' differ by client"):
        co.train(frame, client="site", target="y")


def test_clients_with_other_classes_of_one_coding_are_not_refused():
    # Three classes; nobody has all of them, and some have one.
    some = ["01", "12", "00", "22"]
    target = [some[k % 4][k * k % 7 > 2] for k in range(80)]
    assert not found_in(site=SITE, age=AGE, y=target).problems
    # Grades from 0 to 4, of which one client has two.
    some = ["01", "0123", "1234", "01234"]
    target = [some[k % 4][k * k % 7 % len(some[k % 4])] for k in range(80)]
    assert not found_in(site=SITE, age=AGE, y=target).problems
    # Quantities, of which no two clients have the same.
    target = [f"{k % 4}{k * 37 % 61}.25" for k in range(80)]
    assert not found_in(site=SITE, age=AGE, y=target).problems


def test_a_feature_that_is_coded_differently_is_said():
    sex = [("fm" if k % 4 == 3 else "12")[k * k % 7 > 2] for k in range(80)]
    told = found_in(site=SITE, age=AGE, sex=sex, y=["0", "1", "1"] * 26 + ["0", "1"])
    assert not told.problems
    assert (
        "the codings of column 'sex' differ by client: place 3 has 'f' and 'm', place "
        "0 and 2 more have 1 and 2; use the same values for all clients" in told.notes
    )


def test_a_client_without_any_target_is_named():
    target = ["" if k % 4 == 2 else "01"[k * k % 7 > 2] for k in range(80)]
    told = found_in(site=SITE, age=AGE, y=target)
    assert "place 2 has no target and will be left out" in told.notes


def test_files_without_a_shared_column_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text("u,v\n1,2\n")
    (tmp_path / "b.csv").write_text("u,w\n1,2\n")
    (tmp_path / "c.csv").write_text("w,x\n1,2\n")
    advice = "give each column the same name in all files, or leave a file out."
    with pytest.raises(InputError) as error:
        read_source(tmp_path)
    assert str(error.value) == f"c.csv has no column in common with a.csv: {advice}"
    (tmp_path / "c.csv").write_text("w,v\n1,2\n")
    with pytest.raises(InputError) as error:
        read_source(tmp_path)
    assert str(error.value) == f"no column is in all files: {advice}"
