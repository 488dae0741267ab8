"""Claims about tables that go wrong: each gets one sentence that says what to do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr
from sklearn import datasets

import coterie as co
from coterie.checks import InputError
from coterie.data import load
from coterie.data.looking.disguises import disguise_note, least_wrong, rank_correlation
from coterie.data.looking.findings import findings_of, look_at
from coterie.data.looking.sources import read_source
from coterie.data.looking.studies import complete_study
from support.looking import AGE, SITE, found_in
from support.refusals import refusal, refuses


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
        data = {"path": str(folder), **more}
        assert refusal(complete_study, data, {}) == f"{sentence}."
    # Who names the task means what the files say.
    data, _ = complete_study({**data, "task": "classification"}, {})
    assert data["task"] == "classification"


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
    said = refusal(read_source, tmp_path)
    assert said == f"c.csv has no column in common with a.csv: {advice}"
    (tmp_path / "c.csv").write_text("w,v\n1,2\n")
    assert refusal(read_source, tmp_path) == f"no column is in all files: {advice}"


ILL = ["01"[k * k % 7 > 2] for k in range(80)]


def write_table(folder: Path, **columns: list[str]) -> dict[str, str]:
    """The options of a study of a table whose clients are in the column `site`."""
    path = folder / "t.csv"
    pd.DataFrame(columns).to_csv(path, index=False)
    return {"path": str(path), "client": "site", "target": "y"}


def test_numbers_that_are_not_finite_count_as_gaps_once_a_study_says_so(tmp_path):
    age = ["inf" if k == 3 else "1e300" if k == 7 else AGE[k] for k in range(80)]
    told = found_in(site=SITE, age=age, y=ILL)
    assert told.data["missing"] == ["1e300", "inf"]
    assert told.notes == ("'1e300' and 'inf' among numbers will count as gaps",)
    assert told.columns[1].kind == "numbers, 0.5 to 60.5, 2 % empty"
    given = write_table(tmp_path, site=SITE, age=age, y=ILL)
    table = load("file", **given, missing=told.data["missing"])
    assert table.features[:, 0].isnan().nonzero()[:, 0].tolist() == [3, 7]
    assert refusal(load, "file", **given) == (
        "column 'age' of t.csv must hold finite numbers, but row 5 holds 'inf': "
        "correct it, or list it in `data.missing` if it stands for a gap, "
        "or leave the column out by `data.drop`."
    )


def test_a_frame_with_infinite_numbers_is_treated_like_a_file():
    age = [float("inf") if k == 3 else float(AGE[k]) for k in range(80)]
    frame = pd.DataFrame({"site": SITE, "age": age, "y": [*map(int, ILL)]})
    with pytest.raises(InputError, match=r"row 4 holds 'inf': .* `data\.missing`"):
        co.study_of({"data": {"client": "site", "target": "y"}}, data=frame)
    said = {"client": "site", "target": "y", "missing": ["inf", "60.50"]}
    table = co.study_of({"data": said}, data=frame).given
    gaps = [k for k in range(80) if k == 3 or float(AGE[k]) == 60.5]
    assert table.features[:, 0].isnan().nonzero()[:, 0].tolist() == gaps


def test_where_client_and_target_are_named_words_are_gaps_and_inf_is_not(tmp_path):
    age = ["inf" if k == 3 else "<5" if k == 7 else AGE[k] for k in range(80)]
    given = write_table(tmp_path, site=SITE, age=age, y=ILL)
    data, _ = complete_study(given, {})
    assert data == {**given, "missing": ["<5"]}
    refuses(r"row 5 holds 'inf': .* `data\.missing`", load, "file", **data)
    named_nothing, _ = complete_study({"path": given["path"], "client": "site"}, {})
    assert named_nothing["missing"] == ["<5", "inf"]


def test_targets_that_are_not_finite_are_left_out(tmp_path):
    weight = ["-inf" if k == 3 else f"{k * 7 % 31}.25" for k in range(80)]
    told = found_in(site=SITE, age=AGE, y=weight)
    assert (told.data["missing"], told.data["skip_empty"]) == (["-inf"], True)
    given = write_table(tmp_path, site=SITE, age=AGE, y=weight)
    assert len(load("file", **given, missing=["-inf"], skip_empty=True).targets) == 79
    refuses("and set `data", load, "file", **given)


def test_a_column_of_numbers_that_are_too_large_is_left_out():
    large = [f"{k + 1}e{200 + k}" for k in range(80)]
    told = found_in(site=SITE, age=AGE, large=large, y=ILL)
    assert told.data["drop"] == ["large"]
    assert told.columns[2][1:] == ("numbers too large", "left out")
    (problem,) = found_in(site=SITE, age=AGE, y=large).problems
    assert problem == (
        "column 'y' holds numbers above 3e+38, which no model can predict: choose "
        "another by --target"
    )


def without_target(*places: int) -> list[str]:
    return ["" if k % 4 in places else ILL[k] for k in range(80)]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            without_target(2),
            "must hold a target in every row, but row 4 holds nothing, and place 2 has "
            "no target at all: fill it in, or set `data.skip_empty` to leave such rows "
            "out, and place 2 with them.",
        ),
        (
            without_target(0, 1, 3),
            "must hold a target in every row, but row 2 holds nothing, and place 0, "
            "place 1, place 3 have no target at all: fill it in for two clients, or "
            "choose another `target`.",
        ),
        (without_target(0, 1, 2, 3), "is empty: choose another `target`."),
    ],
)
def test_advice_about_missing_targets_works(tmp_path, target, message):
    given = write_table(tmp_path, site=SITE, age=AGE, y=target)
    assert refusal(load, "file", **given) == f"column 'y' of t.csv {message}"


def test_a_client_without_targets_can_be_skipped_in_two_ways(tmp_path):
    given = write_table(tmp_path, site=SITE, age=AGE, y=without_target(2))
    for more in ({}, {"skip_clients": ["place 2"]}):
        table = load("file", **given, skip_empty=True, **more)
        assert table.names == ("place 0", "place 1", "place 3")
        assert "clients without a target left out: place 2" in table.note


MANY_SITES = [f"place {k % 4}" for k in range(200)]
MANY_AGES = [f"{k * 37 % 61}.5" for k in range(200)]
MANY_ILL = [("ill", "well")[k * k % 7 > 2] for k in range(200)]
AFTER = "add it to `drop` if it is known only after the target"


def test_a_column_that_is_the_target_but_for_two_percent_is_said():
    codes = [{"ill": "K1", "well": "K0"}[word] for word in MANY_ILL]
    for k in (3, 50, 77, 120):
        codes[k] = {"K1": "K0", "K0": "K1"}[codes[k]]
    # A score that is above 10 for those who are ill, but for the same four.
    score = [f"{10 * (code == 'K1') + k // 7 % 9}.5" for k, code in enumerate(codes)]
    told = found_in(site=MANY_SITES, age=MANY_AGES, code=codes, score=score, y=MANY_ILL)
    assert told.notes == (
        f"column 'code' alone predicts the target of 98.0 % of rows; {AFTER}",
        f"column 'score' alone predicts the target of 98.0 % of rows; {AFTER}",
    )
    assert "drop" not in told.data


def test_a_column_that_is_the_target_and_a_little_noise_is_said():
    rng = np.random.default_rng(0)
    kilos = rng.gamma(3, 20, 200)
    pounds = 2.2046 * kilos + rng.normal(0, 1, 200)
    like = spearmanr(kilos, pounds).statistic
    columns = {"pounds": [*map(str, pounds)], "y": [*map(str, kilos)]}
    told = found_in(site=MANY_SITES, age=MANY_AGES, **columns)
    assert told.notes == (
        f"column 'pounds' alone predicts the order of the targets (rank correlation "
        f"{like:.3f}); {AFTER}",
    )


@pytest.mark.parametrize("name", ["iris", "wine", "breast_cancer", "digits"])
def test_strong_columns_of_ordinary_tables_are_not_the_target_in_disguise(name):
    values, labels = getattr(datasets, f"load_{name}")(return_X_y=True)
    for column in values.T:
        assert disguise_note("x", column, labels, labelled=True) == ""


def test_strong_columns_of_ordinary_quantities_are_not_the_target_in_disguise():
    values, targets = datasets.load_diabetes(return_X_y=True)
    for column in values.T:
        assert disguise_note("x", column, targets, labelled=False) == ""


def test_what_a_column_gets_wrong_is_counted():
    labels = np.repeat([0, 1, 2], [10, 10, 5])
    stretches = np.arange(25.0)
    assert least_wrong(stretches, labels) == pytest.approx((0, 15 / 25))
    stretches[[0, 24]] = stretches[[24, 0]]
    assert least_wrong(stretches, labels) == pytest.approx((2 / 25, 15 / 25))
    gaps = np.where(labels == 1, np.nan, 0.0)  # which tell one class
    assert least_wrong(gaps, labels) == pytest.approx((5 / 25, 15 / 25))


def test_rank_correlations_are_those_of_scipy():
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 9, (2, 60)).astype(float)  # with ties
    found = rank_correlation(a, b)
    assert found == pytest.approx(abs(spearmanr(a, b).statistic), rel=1e-12)


def test_numbers_with_a_unit_are_said():
    weight = [f"{k * 7 % 31} kg" for k in range(80)]
    told = found_in(site=SITE, age=AGE, weight=weight, y=ILL)
    sentence = "column 'weight' seems to hold numbers with a unit, such as '0 kg'"
    assert told.notes == (f"{sentence}; write plain numbers to use it",)
    share = [f"{k * 7 % 211}.5 %" for k in range(160)]
    notes = found_in(site=SITE * 2, age=AGE * 2, load=share, y=ILL * 2).notes
    assert any("'load' seems to hold numbers with a unit" in note for note in notes)
    told = found_in(target="weight", site=SITE, age=AGE, weight=weight)
    assert told.problems == (f"{sentence}: write plain numbers to predict it",)
