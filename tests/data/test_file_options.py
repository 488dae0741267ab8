"""Claims about options of your own files: several files, dates, spellings, classes."""

from __future__ import annotations

import datetime
import gzip
from pathlib import Path

import pandas as pd
import pytest
import torch

from coterie.checks import InputError
from coterie.data.datasets import load
from coterie.data.files import raw_columns, table
from coterie.data.parts import contents
from coterie.data.preparation import Column, preparation_of
from coterie.data.splits import divide
from coterie.study.config import study_of
from coterie.study.setup import federation_of
from support.refusals import refusal, refuses

ROWS = """age;seen;ward;outcome
50,5;01.02.1970;A;ill
60;03.01.1970;b;Well
<20;;B ;well
<20;;B;well
"""
OPTIONS = {"client": "", "target": "outcome", "dates": {"seen": "%d.%m.%Y"}}


def write_csv(folder: Path, text: str = ROWS, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_dates_are_days_and_words_among_numbers_gaps(tmp_path):
    got = table(write_csv(tmp_path), **OPTIONS, missing=["<20"])
    columns = (
        Column("age", gaps=("<20",)),
        Column("seen", date="%d.%m.%Y"),
        Column("ward", ("A", "B")),
    )
    assert got.schema.columns == columns
    gap = float("nan")
    expected = torch.tensor([[50.5, 31, 0], [60, 2, 1], *[[gap, gap, 1]] * 2]).double()
    torch.testing.assert_close(got.features, expected, equal_nan=True)


def test_words_that_differ_by_case_are_one_unless_that_is_said(tmp_path):
    path, options = write_csv(tmp_path), {**OPTIONS, "missing": ["<20"]}
    assert table(path, **options).classes == ("ill", "well")
    assert "'Well' is read as 'well'" in table(path, **options).note
    assert table(path, **options, merge_case=False).classes == ("Well", "ill", "well")


def test_a_preparation_reads_new_rows_as_it_read_those_of_training(tmp_path):
    got = table(write_csv(tmp_path), **OPTIONS, missing=["<20"])
    numbers = {"fill": [0] * 3, "mean": [0] * 3, "scale": [1] * 3}
    kinds = [
        {"name": "age", "kind": "number", "categories": [], "gaps": ["<20"]},
        {"name": "seen", "kind": "date", "categories": [], "date": "%d.%m.%Y"},
        {"name": "ward", "kind": "category", "categories": ["A", "B"]},
    ]
    plain = {"columns": [{**kind, "indicator": False} for kind in kinds], **numbers}
    how = preparation_of(plain)
    assert how.columns == got.schema.columns
    assert preparation_of(how.plain()) == how
    new = write_csv(tmp_path, "seen,age,ward\n1.2.1970,<20,a\n,7,C\n", "new.csv")
    gap = float("nan")
    expected = torch.tensor([[gap, 31, 0], [7, gap, -1]]).double()
    torch.testing.assert_close(raw_columns(new, how), expected, equal_nan=True)
    bad = write_csv(tmp_path, "seen,age,ward\nsoon,1,A\n", "bad.csv")
    message = r"dates that are written %d\.%m\.%Y, but row 2"
    refuses(message, raw_columns, bad, how)


PAIRS = [("ill", "well")[k % 3 > 0] for k in range(40)]
TWO = "client,x,target\n" + "".join(
    f"{'ab'[k % 2]},{k}.5,{word}\n" for k, word in enumerate(PAIRS)
)


def test_the_positive_class_is_class_1_and_moves_no_sample(tmp_path):
    path = write_csv(tmp_path, TWO)
    usual, turned = table(path), table(path, positive="ill")
    assert usual.classes == ("ill", "well") and turned.classes == ("well", "ill")
    assert turned.targets.tolist() == (1 - usual.targets).tolist()
    assert "classes in order: well, ill" in turned.note
    assert torch.equal(contents(usual), contents(turned))
    one, two = (divide(t, "natural", seed=0) for t in (usual, turned))
    assert torch.equal(one.test.index, two.test.index)


def test_the_positive_class_of_numbers_may_be_0(tmp_path):
    path = write_csv(tmp_path, TWO.replace("ill", "0").replace("well", "1"))
    assert table(path, positive="1").classes == ()
    turned = table(path, positive="0")
    assert turned.classes == ("1", "0")
    assert turned.targets.tolist() == [int(word == "ill") for word in PAIRS]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"positive": "il"}, "must be one of 'ill', 'well', got 'il'. Did you mean"),
        (
            {"target": "x", "task": "regression", "positive": "1"},
            "is for targets of two",
        ),
        ({"separator": ";;"}, "`data.separator` must be one character"),
        ({"decimal": "'"}, "`data.decimal` must be '.' or ','"),
        ({"encoding": "utf-9"}, "`data.encoding` must be one that Python knows"),
        ({"encoding": "ascii", "path": "z.csv"}, "z.csv is not written in ascii"),
        ({"dates": "x"}, "`data.dates` must say how each column writes dates"),
        ({"dates": {"x": 3}}, "`data.dates` must say how each column writes dates"),
        ({"dates": {"y": "%d"}}, "`data.dates` must name columns of features"),
        ({"dates": {"x": "%d.%m.%Y"}}, "dates that are written %d.%m.%Y, but row 2"),
        ({"skip_clients": ["c"]}, "`data.skip_clients` must name clients"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    unchecked, tmp_path, monkeypatch, options, message
):
    monkeypatch.chdir(tmp_path)
    (
        write_csv(tmp_path, TWO),
        write_csv(tmp_path, TWO.replace("ill", "mädchen"), "z.csv"),
    )
    assert message in refusal(load, "file", **{"path": "t.csv", **options})


def test_rows_without_a_target_are_left_out_where_that_is_said(tmp_path):
    path = write_csv(tmp_path, TWO + "a,1.5,\nb,1.5,NA\n,2.5,ill\n")
    refuses(r"row 42 holds nothing.*`data\.skip_empty`", table, path)
    got = table(path, skip_empty=True)
    assert len(got.targets) == 40 and "3 rows without target or client" in got.note
    assert table(path, skip_empty=True, skip_clients=["a"]).names == ("b",)


def test_numbers_may_name_classes(tmp_path):
    text = TWO.replace("ill", "10").replace("well", "9")
    got = table(write_csv(tmp_path, text), categories=["target"])
    assert got.classes == ("9", "10") and got.task == "binary"


def test_a_file_for_each_site_is_a_federation(tmp_path):
    text = TWO.replace("client,", "sort,")
    for name in ("bern.csv", "chur.csv.gz", ".hidden.csv"):
        raw = text.encode()
        (tmp_path / name).write_bytes(gzip.compress(raw) if "gz" in name else raw)
    (tmp_path / "readme.md").write_text("no table")
    study = {"data": {"path": str(tmp_path)}, "run": {"rounds": 1}}
    federation = federation_of(study_of(study), 0)
    assert federation.names == ("bern", "chur")
    assert federation.columns == ("sort = a", "sort = b", "x")
    several = [str(tmp_path / "bern.csv"), str(tmp_path / "chur.csv.gz")]
    got = table(several, client="file name")
    assert got.group.tolist() == [0] * 40 + [1] * 40
    assert [path.name for path in got.files] == ["bern.csv", "chur.csv.gz"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("c.csv", "client,x,target\na,high,ill\n", r"but row 2 \(c.csv\) holds 'high'"),
        ("c.csv", "client,z,target\na,1,ill\n", "c.csv has no column 'x'"),
        ("c.tsv.csv", TWO, ""),
        ("t.txt", TWO, "two are called 't'"),
        ("c.parquet", "", "reading c.parquet needs pyarrow|as Parquet"),
    ],
)
def test_files_that_do_not_fit_together_are_refused(tmp_path, name, text, message):
    write_csv(tmp_path, TWO), write_csv(tmp_path, text, name)
    if not message:
        assert len(table(tmp_path).targets) == 80
        return
    refuses(message, table, tmp_path)


def test_columns_that_some_files_lack_may_be_dropped(tmp_path):
    write_csv(tmp_path, TWO)
    lines = ["client,more,x,target", *(f"a,1,{k},{w}" for k, w in enumerate(PAIRS))]
    write_csv(tmp_path, "\n".join(lines), "u.csv")
    refuses(r"t\.csv has no column 'more'.*`data\.drop`", table, tmp_path)
    assert [c.name for c in table(tmp_path, drop=["more"]).schema.columns] == ["x"]


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ([f"2024-01-{k % 28 + 1:02d}" for k in range(60)], "holds dates, which cannot"),
        ([f"w{k // 2}" for k in range(400)], "200 different words in 400 rows"),
    ],
)
def test_targets_that_are_no_classes_are_refused(tmp_path, targets, message):
    lines = [f"a,1,{word}" for word in targets]
    path = write_csv(tmp_path, "\n".join(["client,x,target", *lines]))
    refuses(message, table, path)


def test_one_class_in_all_is_refused(tmp_path):
    path = write_csv(tmp_path, TWO.replace("well", "ill"))
    with pytest.raises(InputError, match="'target' has one value"):
        federation_of(study_of({"data": {"path": str(path), "target": "target"}}), 0)


def test_rows_that_say_nothing_and_counts_of_rows_are_left_out(tmp_path):
    lines = [f"{k},{line}" for k, line in enumerate(TWO.splitlines())]
    lines[0] = lines[0][1:]
    got = table(write_csv(tmp_path, "\n".join([*lines, ",,,", "NA,NA,NA,NA"])))
    assert len(got.targets) == 40
    assert [column.name for column in got.schema.columns] == ["x"]


def test_what_spreadsheets_add_is_left_out(tmp_path):
    lines = [line.replace(",", ";") + ";" for line in TWO.splitlines()]
    got = table(write_csv(tmp_path, "\n".join(["sep=;", *lines])))
    assert [column.name for column in got.schema.columns] == ["x"]
    bad = "\n".join(["sep=;", *lines, "a;high;ill;"])
    with pytest.raises(InputError, match="row 43 holds 'high'"):  # as one sees it
        table(write_csv(tmp_path, bad))


def test_a_table_without_names_of_columns_is_refused(tmp_path):
    with pytest.raises(InputError, match="holds numbers, not names: add a row"):
        table(write_csv(tmp_path, "1,2.5,0\n2,3.5,1\n"))


def test_a_number_may_stand_for_a_gap(tmp_path):
    path = write_csv(tmp_path, TWO.replace(",3.5", ",-999"))
    got = table(path, missing=["-999"])
    assert int(got.features.isnan().sum()) == 1


def test_an_excel_file_is_read_as_its_csv_would_be(tmp_path, monkeypatch):
    day = datetime.datetime(2024, 3, 31)
    cells = [
        ["client", "when", "x", "smokes", "target"],
        *(["ab"[k % 2], day, k + 0.5, k > 5, PAIRS[k]] for k in range(18)),
        [None] * 5,
    ]
    read = pd.DataFrame(cells, dtype=object)
    monkeypatch.setattr("pandas.read_excel", lambda *args, **options: read)
    path = write_csv(tmp_path, "", "t.xlsx")
    got = table(path, dates={"when": "ISO8601"})
    names = [(c.name, c.truth, c.date) for c in got.schema.columns]
    assert names == [("smokes", True, ""), ("when", False, "ISO8601"), ("x", False, "")]
    assert got.features[7].tolist() == [1, 19813, 7.5]


def test_excel_needs_openpyxl(tmp_path, monkeypatch):
    def none(*args, **options):
        raise ImportError("no engine")

    monkeypatch.setattr("pandas.read_excel", none)
    message = r"needs openpyxl: pip install coterie\[excel\]"
    refuses(message, table, write_csv(tmp_path, "", "t.xlsx"))
