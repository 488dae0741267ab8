"""Claims about what is found in a table that nobody has described."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_iris

from coterie.data.looking.columns import profile_of
from coterie.data.looking.dates import days, form_of, month_first
from coterie.data.looking.findings import look_at
from coterie.data.looking.formats import decode_text, points_for_commas, separator_of
from coterie.data.looking.roles import client_guess, positive_guess, target_guess
from coterie.data.looking.sources import read_source
from coterie.data.looking.studies import complete_study, study_text
from coterie.data.looking.units import other_units
from support.looking import AGE, SITE, column, findings, found_in, inspect_columns
from support.refusals import refusal, refuses


@pytest.mark.parametrize(
    ("text", "separator"),
    [
        ("a,b\n1,2\n", ","),
        ("a;b\n1,5;2\n3,5;4\n", ";"),
        ("a\tb\tc\n1\t2,5\t3\n", "\t"),
        ("a|b\n1|2\n", "|"),
        ('a;b\n"x;y";2\n', ";"),
        ("a;b;c\n1;2;3\n4;5\n6;7;8\n9;1;2\n", ";"),  # one broken row
        ("a\n1\n2\n", ","),
        ("name,first;last\nx,1;2\ny,3;4\n", ","),
    ],
)
def test_the_separator_is_the_one_that_makes_rows_alike(text, separator):
    assert separator_of(text, ",") == separator


@pytest.mark.parametrize(
    ("cells", "separator", "expected", "decimal"),
    [
        (["1,5", "2", ""], ";", ["1.5", "2", ""], ","),
        (["1.234,5", "1.000", "-2,25"], ";", ["1234.5", "1000", "-2.25"], ","),
        (["1,234", "12", "1,234.5"], ",", ["1234", "12", "1234.5"], "."),
        (["1,5", "high", "2,5"], ";", ["1.5", "high", "2.5"], ","),
        (["a, b", "c", "1,5", "d"], ";", ["a, b", "c", "1,5", "d"], "."),
        (["1.5", "2.5"], ";", ["1.5", "2.5"], "."),
    ],
)
def test_numbers_with_a_comma_get_a_point(cells, separator, expected, decimal):
    columns, sign = points_for_commas({"x": np.array(cells, object)}, separator)
    assert columns["x"].tolist() == expected
    assert sign == decimal


def test_a_decimal_sign_that_is_said_is_not_looked_for():
    cells = {"x": np.array(["1,234", "5,678"], object)}
    assert points_for_commas(cells, ",", ",")[0]["x"].tolist() == ["1.234", "5.678"]
    assert points_for_commas(cells, ";", ".")[0]["x"].tolist() == ["1,234", "5,678"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_the_encoding_is_found(encoding):
    text, name = decode_text("Zürich, Genève\n".encode(encoding), "a.csv")
    assert (text, name) == ("Zürich, Genève\n", encoding)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (
            "Genève\n".encode() + "Zürich\n".encode("latin-1"),
            "row 1 is UTF-8 and row 2",
        ),
        (b"\x00\xff\xfe", "is not a file of text"),
        (b"a\n\x81\n", "row 2 of a.csv is neither UTF-8 nor cp1252"),
    ],
)
def test_what_is_not_one_encoding_is_refused(raw, message):
    refuses(message, decode_text, raw, "a.csv")


@pytest.mark.parametrize(
    ("word", "form"),
    [
        ("2024-03-31", "ISO8601"),
        ("2024-03-31 14:05", "ISO8601"),
        ("31.03.2024", "%d.%m.%Y"),
        ("31/03/2024", "%d/%m/%Y"),
        ("03/31/2024", "%m/%d/%Y"),
        ("31 Mar 2024", "%d %b %Y"),
        ("20240331", "%Y%m%d"),
    ],
)
def test_dates_are_days_however_they_are_written(word, form):
    assert form_of([word]) == form
    assert np.floor(days([word], form)) == 19813  # 54 years, 13 leap days, 31 + 29 + 30


@pytest.mark.parametrize("word", ["soon", "12.5", "2024", "1.2.3", "5-3", "10:30"])
def test_other_words_are_no_dates(word):
    assert form_of([word]) == ""


def test_days_that_may_be_months_are_known():
    assert month_first(["01/02/2024", "03/04/2024"], "%d/%m/%Y")
    assert not month_first(["01/02/2024", "13/04/2024"], "%d/%m/%Y")


MANY = range(120)


@pytest.mark.parametrize(
    ("name", "words", "kind"),
    [
        ("x", [f"{k}.5" for k in MANY], "number"),
        ("x", ["true", "False "] * 9, "truth"),
        ("x", ["a", "b"] * 20, "words"),
        ("x", [f"2024-01-{k % 28 + 1:02d}" for k in MANY], "date"),
        ("x", [f"A{k}" for k in MANY], "identifier"),
        ("patient_id", [str(7 * k % 1009) for k in MANY], "identifier"),
        ("patients", [str(7 * k % 1009) for k in MANY], "number"),
        ("x", [str(k) for k in MANY], "identifier"),  # it counts rows
        ("x", [f"he had number {k} today" for k in MANY], "text"),
        ("x", [f"word{k % 110}" for k in range(300)], "many"),
        ("zip_code", [str(8000 + k % 9) for k in MANY], "codes"),
        ("x", ["5"] * 9, "constant"),
        ("x", ["", "NA"] * 9, "empty"),
        ("x", ["1.5", "2.5", "3", "<5"] * 9, "number"),
    ],
)
def test_kinds_of_columns_are_told_apart(name, words, kind):
    assert profile_of(column(words, name), Path("t.csv")).kind == kind


ILL = [("ill", "well")[k * k % 7 > 2] for k in range(80)]


def test_client_and_target_are_found_by_their_names():
    look = inspect_columns(age=AGE, Klinik=SITE, outcome=ILL, sex=["f", "m"] * 40)
    assert client_guess(look.profiles)[:2] == ("Klinik", True)
    assert target_guess(look.profiles, "Klinik")[:2] == ("outcome", True)


def test_of_several_that_are_called_like_a_target_it_is_the_last_column():
    look = inspect_columns(result=ILL, age=AGE, grade=["a", "b"] * 40)
    assert target_guess(look.profiles)[:2] == ("grade", True)
    look = inspect_columns(result=ILL, grade=["a", "b"] * 40, age=AGE)
    assert target_guess(look.profiles) == ("", False, ("result", "grade", "age"))


def test_a_name_that_is_different_in_every_row_names_no_client():
    look = inspect_columns(site=[f"s{k}" for k in range(80)], age=AGE, outcome=ILL)
    assert client_guess(look.profiles, "outcome") == ("", False, ())


@pytest.mark.parametrize(
    ("words", "task", "more"),
    [
        (ILL, "binary", {"positive": "ill"}),
        (["0", "1", "1", "1"] * 20, "binary", {}),
        (["true", "false"] * 40, "binary", {}),
        (["1", "2", "2", "2"] * 20, "binary", {"positive": "1", "categories": ["y"]}),
        (["a", "b", "c", "a"] * 20, "classification", {}),
        (["0", "1", "2", "1"] * 20, "classification", {}),
        (["1", "2", "3", "1"] * 20, "classification", {"categories": ["y"]}),
        ([f"{k % 9}.5" for k in range(80)], "regression", {}),
        ([str(100 * k % 997) for k in range(80)], "regression", {}),
    ],
)
def test_the_task_follows_from_the_target(words, task, more):
    told = found_in(site=SITE, age=AGE, y=words).data
    assert told == {"client": "site", "target": "y", "task": task, **more}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ill"] * 80, "'y' is always 'ill'"),
        ([f"2024-01-{k % 28 + 1:02d}" for k in range(80)], "'y' holds dates"),
        ([f"A{k}" for k in range(80)], "'y' names samples"),
        ([""] * 80, "'y' is empty"),
    ],
)
def test_what_cannot_be_predicted_is_a_problem(words, message):
    (problem, *_) = found_in(site=SITE, age=AGE, y=words).problems
    assert message in problem and problem.endswith("choose another by --target")


def test_ten_thousand_words_are_no_classes():
    words = [f"w{k // 2}" for k in range(20_000)]
    look = inspect_columns(site=[f"p{k % 5}" for k in range(20_000)], y=words)
    assert "holds 10,000 different words, too many" in findings(look).problems[0]


def test_a_column_that_is_the_target_in_disguise_is_left_out_by_name():
    codes = [{"ill": "K1", "well": "K0"}[word] for word in ILL]
    told = found_in(site=SITE, age=AGE, code=codes, y=ILL)
    assert told.data["drop"] == ["code"]
    assert any(
        "'code' determines the target of every row" in note for note in told.notes
    )
    grams = [f"{1000 * float(age) + 5:.0f}" for age in AGE]
    told = found_in(site=SITE, dose=ILL, grams=grams, y=AGE)
    assert told.data["drop"] == ["grams"]


def test_small_clients_and_clients_of_one_class_are_named():
    site = ["A"] * 40 + ["B"] * 37 + ["C"] * 3
    sick = ["ill", "well"] * 20 + ["well"] * 37 + ["ill"] * 3
    told = found_in(site=site, age=AGE, y=sick)
    assert told.data["skip_clients"] == ["C"]
    assert told.split == {"min_classes": 1}
    assert "C will be left out, with fewer than 4 rows" in told.notes
    assert "B has almost only one class, and may train on one alone" in told.notes


def test_one_client_is_a_problem():
    (problem,) = found_in(site=["A"] * 78 + ["B"] * 2, age=AGE, y=ILL).problems
    assert "names 1 client with at least 4 rows" in problem


def test_clients_that_differ_only_by_case_are_one_and_that_is_said():
    site = ["Bern", "BERN", "Chur", "Bern "] * 20
    told = found_in(site=site, age=AGE, y=ILL)
    assert told.columns[0].kind == "2 words: Bern, Chur"
    assert any("'BERN' is read as 'Bern'" in note for note in told.notes)


@pytest.mark.parametrize(
    ("name", "usual", "place", "factor", "said"),
    [
        # Glucose of 4 to 8 mmol/l, and in one place the same in mg/dl.
        ("glucose", [4 + k // 4 / 5 for k in range(80)], 1, 18.02, "18"),
        ("weight", [60 + k % 9 for k in range(80)], 2, 1000, "1,000"),
    ],
)
def test_another_unit_is_said_with_client_column_and_factor(
    name, usual, place, factor, said
):
    values = [str((factor if k % 4 == place else 1) * v) for k, v in enumerate(usual)]
    (note,) = found_in(site=SITE, age=AGE, y=ILL, **{name: values}).notes
    assert note == (
        f"column '{name}' of place {place} is about {said} times that of the others: "
        "check its unit"
    )


@pytest.mark.parametrize(
    ("factors", "expected"),
    [
        ((1, 1000), {1: 1000}),
        ((1, 1, 0.001), {2: 0.001}),
        ((1, 1, 1, 5), {}),
        ((1, 1, 1, 10), {3: 10}),
        ((1, 38.67, 1), {1: 38.67}),  # mg/dl of cholesterol in place of mmol/l
        ((1, 1, 1 / 18.02), {2: 1 / 18.02}),  # the opposite, of glucose
        ((1, 1, 1000, 1000, 1), {2: 1000, 3: 1000}),
        ((1,), {}),
    ],
)
def test_another_unit_is_a_factor_that_no_spread_explains(factors, expected):
    values = np.concatenate([factor * np.arange(5.0, 15.0) for factor in factors])
    assert other_units(values, np.repeat(np.arange(len(factors)), 10)) == pytest.approx(
        expected
    )
    # Numbers that reach as far elsewhere are of the same unit.
    wide = np.concatenate([values, np.geomspace(1e-3, 1e6, 40)])
    owner = np.repeat(np.arange(len(factors)), 10)
    assert other_units(wide, np.concatenate([owner, np.full(40, 9)])) == {}


def test_clients_that_differ_by_nature_have_no_other_unit():
    # Three species of iris: the petals of one are about a tenth as wide.
    iris = load_iris()
    for values in iris.data.T:
        assert other_units(values, iris.target) == {}
    # Plants of all sizes, and numbers of both signs.
    sizes = np.concatenate([size * np.arange(5.0, 9.0, 0.5) for size in (1, 4, 15, 60)])
    assert other_units(sizes, np.repeat(np.arange(4), 8)) == {}
    signs = np.concatenate([np.arange(-5.0, 6.0), 100 * np.arange(-5.0, 6.0)])
    assert other_units(signs, np.repeat([0, 1], 11)) == {}


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"well": 5, "ill": 90}, "ill"),
        ({"disease": 50, "no disease": 40}, "disease"),
        ({"A": 50, "B": 40}, "B"),
        ({"ja": 5, "nein": 3}, "ja"),
    ],
)
def test_the_positive_class_is_the_one_that_people_look_for(counts, expected):
    assert positive_guess(counts) == expected


def test_the_study_that_is_written_says_what_was_found():
    look = inspect_columns(
        **{
            "site": SITE,
            "a\tb \"q'": AGE,
            "y": ILL,
            "id no": [f"A{k}" for k in range(80)],
        }
    )
    told = findings(look)
    text = study_text(told, look, ["../t.csv"], "s.toml")
    tables = tomllib.loads(text)
    assert tables["data"] == {"path": "../t.csv", **told.data}
    assert tables["run"] == {"seeds": [0, 1, 2]}
    assert "coterie run s.toml" in text
    for key in ("lr", "steps", "rounds", "batch_size"):
        assert key not in text.replace("two steps", "")
    assert max(map(len, text.splitlines())) < 100


def write_csv(folder: Path, **columns: list[str]) -> str:
    path = folder / "t.csv"
    pd.DataFrame(columns).to_csv(path, index=False)
    return str(path)


def test_what_a_study_does_not_say_is_found(tmp_path):
    path = write_csv(
        tmp_path, site=SITE, id=[f"A{k}" for k in range(80)], age=AGE, outcome=ILL
    )
    data, _ = complete_study({"name": "file", "path": path}, {})
    assert data == {
        "name": "file",
        "path": path,
        "client": "site",
        "target": "outcome",
        "task": "binary",
        "positive": "ill",
        "drop": ["id"],
    }


def test_what_a_study_says_is_never_changed(tmp_path):
    when = [f"{k % 28 + 1}.01.2024" for k in range(80)]
    path = write_csv(
        tmp_path, site=SITE, id=[f"A{k}" for k in range(80)], when=when, outcome=ILL
    )
    given = {"name": "file", "path": path, "client": "site", "target": "outcome"}
    more = {"drop": ["id"], "dates": {"when": "%d.%m.%Y"}}
    assert complete_study(given, {}) == ({**given, **more}, {})
    said = {**given, "drop": [], "dates": {}}
    assert complete_study(said, {"name": "natural"}) == (said, {"name": "natural"})
    said = {**given, "drop": ["id", "when"]}
    assert complete_study(said, {}) == (said, {})


def test_columns_that_a_study_drops_are_not_looked_at(tmp_path):
    when = [f"{k % 28 + 1}.01.2024" for k in range(80)]
    path = write_csv(tmp_path, site=SITE, age=AGE, when=when, outcome=ILL)
    data, _ = complete_study({"name": "file", "path": path, "drop": ["when"]}, {})
    assert data["drop"] == ["when"] and "dates" not in data


def test_a_split_that_pools_all_rows_needs_no_client(tmp_path):
    path = write_csv(tmp_path, age=AGE, dose=AGE[::-1], outcome=ILL)
    data, split = complete_study({"name": "file", "path": path}, {"name": "iid"})
    assert (data["client"], data["target"]) == ("", "outcome")
    assert split == {"name": "iid"}


def test_a_study_that_leaves_a_doubt_is_refused_with_the_candidates(tmp_path):
    path = write_csv(tmp_path, site=SITE, age=AGE, dose=AGE[::-1])
    assert refusal(complete_study, {"name": "file", "path": path}, {}) == (
        "t.csv does not say which column is to be predicted; it may be 'dose', 'age': "
        "name it by `target` in [data]."
    )


def test_columns_of_several_files_are_spelt_as_in_the_first(tmp_path):
    (tmp_path / "a.csv").write_text("age,Dose\n1,2\n")
    (tmp_path / "b.csv").write_text("Age ,dose,more\n1,2,3\n")
    source = read_source(tmp_path)
    assert source.shared_columns() == ["age", "Dose"]
    assert source.differences() == "a.csv has no column 'more'"
    assert source.join()["file name"].tolist() == ["a", "b"]


def test_problems_of_all_files_are_named_at_once(tmp_path):
    (tmp_path / "a.csv").write_text("")
    (tmp_path / "b.csv").write_text("u,v\n1\n")
    refuses(r"a\.csv has no columns.*; row 2 of b\.csv", read_source, tmp_path)


def test_a_client_whose_name_is_a_word_among_numbers_is_one():
    site = ["1", "2", "north", "2"] * 20
    told = found_in(site=site, age=AGE, y=ILL)
    assert told.columns[0].kind == "3 words: 2, 1, north"
    assert "missing" not in told.data and "skip_empty" not in told.data


def test_a_number_of_the_client_is_left_out():
    number = [word[-1] for word in SITE]
    look = inspect_columns(site_no=number, site=SITE, age=AGE, outcome=ILL)
    assert client_guess(look.profiles)[:2] == ("site", True)
    assert findings(look, target="outcome").data["drop"] == ["site_no"]


def test_numbers_that_may_stand_for_a_gap_are_said():
    bmi = ["-999" if k % 20 == 3 else str(20 + k % 9) for k in range(80)]
    (note,) = found_in(site=SITE, bmi=bmi, y=ILL).notes
    assert "'bmi' holds -999 in 4 rows; add it to `missing`" in note


def test_a_column_is_test_must_say_which_rows_are_for_testing():
    assert not found_in(site=SITE, age=AGE, is_test=["0", "1"] * 40, y=ILL).problems
    (problem,) = found_in(site=SITE, age=AGE, is_test=AGE, y=ILL).problems
    assert "must hold 0 or 1" in problem


def test_words_that_look_alike_are_said_and_not_merged():
    site = ["Geneve", "Genève", "Bern", "Chur"] * 20
    told = found_in(site=site, age=AGE, y=ILL)
    assert told.columns[0].kind.startswith("4 words")
    assert told.notes[-1] == (
        "column 'site': 'Geneve' and 'Genève' look alike; correct the file if they are "
        "one"
    )


def test_a_parquet_file_is_looked_at(tmp_path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "t.parquet"
    when = pd.date_range("2024-01-01", periods=80)
    numbers = {"age": np.arange(80) % 7 + 0.5, "smokes": np.arange(80) % 3 == 0}
    pd.DataFrame({"site": SITE, "when": when, **numbers, "outcome": ILL}).to_parquet(
        path
    )
    told = findings(look_at(read_source(path)), target="outcome")
    assert told.data["dates"] == {"when": "ISO8601"}
    assert [column.kind for column in told.columns[2:4]] == [
        "numbers, 0.5 to 6.5",
        "true or false",
    ]
