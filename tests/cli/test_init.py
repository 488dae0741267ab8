"""Claims about `coterie init`: it prints its assumptions and writes a study."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from coterie.checks import InputError
from coterie.cli.examples import installed_folder
from coterie.study.config import read_study
from coterie.study.setup import federation_of
from support.browser import Browser
from support.called import called, refused
from support.messy_files import HOSPITALS, WRITERS, write_hospital, write_wide


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


DATA = {
    "hospital": {
        "path": "spital.csv",
        "client": "Spital",
        "target": "Diagnose",
        "task": "binary",
        "positive": "krank",
        "separator": ";",
        "decimal": ",",
        "encoding": "cp1252",
        "skip_empty": True,
        "skip_clients": ["Sion"],
        "missing": ["<5"],
        "drop": ["Bemerkung", "Fall-ID"],
        "dates": {"Eintritt": "%d.%m.%Y"},
    },
    "plants": {
        "path": "plants.tsv.gz",
        "client": "plant",
        "target": "output_kg",
        "task": "regression",
        "drop": ["record_no"],
        "dates": {"day": "ISO8601"},
    },
    "sites": {
        "path": "sites",
        "client": "file name",
        "target": "healthy",
        "task": "binary",
    },
    "ratings": {
        "path": "ratings.txt",
        "client": "shop",
        "target": "rating",
        "task": "classification",
        "separator": "|",
        "categories": ["rating", "zip"],
        "drop": ["verdict"],
    },
}
# One patient of Geneva has no diagnosis, and Sion too few.
SIZES = {"hospital": [24, 30, 40, 59], "plants": [20] * 7, "sites": [24] * 3}
SIZES |= {"ratings": [30] * 4, "wide": [20] * 3}


@pytest.mark.parametrize("kind", WRITERS)
def test_what_it_writes_of_a_messy_file_is_a_study_with_its_clients(here, kind):
    words = ["--target", "weight_kg"] if kind == "wide" else []
    code, said, _ = called("init", str(WRITERS[kind](here)), *words)
    assert code == 0
    assert said.endswith("study: study.toml\nnext:  coterie run study.toml\n")
    tables = tomllib.loads((here / "study.toml").read_text(encoding="utf-8"))
    assert tables["data"] == DATA.get(kind, tables["data"])
    assert set(tables) <= {"data", "split", "run"}
    federation = federation_of(read_study(here / "study.toml"), 0)
    parts = (federation.train, federation.validation, federation.test)
    assert sorted(sum(part.size for part in parts).tolist()) == SIZES[kind]


RUN = ["--set", "run.rounds=2", "--set", "run.seeds=[0]", "--quiet"]


# Of each kind: the client whose model is exported, and what its predictions score.
WHOLE_WAY = [
    # Without the one patient who has no diagnosis.
    ("hospital", "Bern", "f1 for krank on 155 rows with a label: 0."),
    ("plants", "plant 3", "rmse on 140 rows with a label: "),
    ("sites", "north", "accuracy on 24 rows with a label: "),
    ("ratings", "shop 2", "accuracy on 120 rows with a label: "),
    ("wide", "b", "rmse on 60 rows with a label: "),
]


@pytest.mark.parametrize(("kind", "client", "score"), WHOLE_WAY)
def test_a_messy_file_leads_to_a_model_that_predicts_it(here, kind, client, score):
    path = WRITERS[kind](here)
    target = ["--target", "weight_kg"] if kind == "wide" else []
    assert called("init", str(path), *target)[0] == 0
    more = ["--set", "model.score=f1"] if kind == "hospital" else []
    code, said, _ = called("run", "study.toml", *RUN, *more)
    assert code == 0 and "report: runs" in said
    (folder,) = (f for f in Path("runs").iterdir() if f.name[0] != ".")
    assert called("report", str(folder))[0] == 0
    assert called("export", str(folder), "--client", client, "--to", "model")[0] == 0
    file = path / "north.csv" if kind == "sites" else path
    code, said, _ = called("predict", "model", str(file), "--out", "new.csv")
    assert code == 0
    assert score in said and "Settings were found automatically" not in said
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "Settings found automatically" in page and "scikit-learn" in page
    card = Path("model", "README.md").read_text(encoding="utf-8")
    dated = "days since 1970-01-01, written" in card
    assert dated == (kind in ("hospital", "plants"))
    assert ("about the class krank" in card) == (kind == "hospital")


@pytest.mark.browser
@pytest.mark.parametrize("kind", ["hospital", "plants"])
def test_a_browser_shows_the_verdict_of_a_messy_file(here, browser: Browser, kind):
    assert called("init", str(WRITERS[kind](here)))[0] == 0
    assert called("run", "study.toml", *RUN)[0] == 0
    (page,) = here.glob("runs/*/report.html")
    browser.open(page, height=1000)
    document = browser.document()
    figure = document[document.index('<figure id="verdict-figure"') :]
    assert 'class="main-svg"' in figure[: figure.index("</figure>")]
    # The verdict, the picture and the cost come before any other section.
    body = document[document.index("<body>") :]
    assert body.index("verdict-figure") < body.index("Cost") < body.index("<h2")


def test_it_says_what_each_column_holds_and_what_was_assumed(here):
    _, said, _ = called("init", str(write_hospital(here)))
    flat = " ".join(said.split())
    for words in (
        "spital.csv: 156 rows, 7 columns; separator semicolon, decimal comma, "
        "encoding cp1252",
        "Fall-ID identifier left out",
        "Eintritt dates, such as 01.01.2018 used, as a number of days",
        "Bemerkung free text left out",
        "- 1 row without 'Diagnose' will be left out.",
        "- Sion will be left out, with fewer than 4 rows.",
        "- '<5' among numbers will count as gaps.",
        "'BERN' is read as 'Bern'",
    ):
        assert words in flat


def test_many_columns_that_are_alike_share_a_line(here):
    _, said, _ = called("init", str(write_wide(here)), "--target", "weight_kg")
    assert "gene0, gene1, gene2 and 57 more" in said
    assert "gene3" not in said


def test_a_study_is_replaced_only_when_that_is_asked_for(here):
    path = str(write_hospital(here))
    (here / "study.toml").write_text("mine")
    message = refused("init", path)
    assert message.startswith("study.toml exists: name another file with --out")
    assert (here / "study.toml").read_text() == "mine"
    assert called("init", path, "--out", "other.toml")[0] == 0
    assert called("init", path, "--force")[0] == 0
    assert "client" in (here / "study.toml").read_text(encoding="utf-8")
    # The data are never what is replaced.
    message = refused("init", path, "--out", path, "--force")
    assert message == "`--out` must end in .toml, got spital.csv."


def test_the_path_is_relative_to_the_study(here):
    path = write_hospital(here)
    (here / "studies").mkdir()
    assert called("init", str(path), "--out", "studies/one.toml")[0] == 0
    tables = tomllib.loads((here / "studies" / "one.toml").read_text("utf-8"))
    assert tables["data"]["path"] == "../spital.csv"
    assert set(federation_of(read_study("studies/one.toml"), 0).names) == {
        *HOSPITALS
    } - {"Sion"}


ROWS = [f"{'ab'[k % 2]},{k * 7 % 31 + 0.5},{k * 5 % 17 + 0.25}" for k in range(40)]


def test_in_a_pipe_it_says_which_flag_to_give(here):
    (here / "t.csv").write_text("\n".join(["hospital,age,dose", *ROWS]))
    message = refused("init", "t.csv")
    assert message == (
        "t.csv does not say which column is to be predicted; it may be 'dose', 'age': "
        "name it by --target."
    )
    assert called("init", "t.csv", "--target", "dose")[0] == 0


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ["Bern", "BERN", "Bern"],
            "column 'hospital' names one client, 'Bern' ('BERN' is read as it), but a "
            "study needs two: name another column by --client, or correct it.",
        ),
        (
            ["Bern"],
            "column 'hospital' names one client, 'Bern', but a study needs two: name "
            "another column by --client, or correct it.",
        ),
        (
            [f"H{k}" for k in range(20)],
            "column 'hospital' names 20 clients in 40 rows, too few for each: name "
            "another column by --client, or correct it.",
        ),
    ],
)
def test_a_column_called_like_a_client_that_is_none_is_named(here, names, message):
    rows = [
        f"{names[k % len(names)]},{k * 7 % 31}.5,{k * k % 7 % 2}" for k in range(40)
    ]
    (here / "t.csv").write_text("\n".join(["hospital,age,outcome", *rows]))
    assert refused("init", "t.csv") == message


def test_columns_that_some_file_lacks_are_named(here):
    rows = [f"{k * 7 % 31}.5,{k * 5 % 17}.5,{k * k % 7 % 2}" for k in range(40)]
    for name, last in (("a", "outcome"), ("b", "result")):
        (here / f"{name}.csv").write_text("\n".join([f"age,dose,{last}", *rows]))
    lack = "b.csv has no column 'outcome'"
    message = refused("init", "a.csv", "b.csv")
    assert f"predicted (only columns that are in all files count, but {lack}" in message
    message = refused("init", ".", "--target", "outcome")
    assert message == (
        f"--target must name a column of all files, but {lack}: give it the same name "
        "in all files."
    )
    (here / "b.csv").write_text("\n".join(["alter,menge,outcome", *rows]))
    message = refused("init", "a.csv", "b.csv")
    assert message.startswith("b.csv has no column 'age'") and message.endswith(
        "so no column is left to predict from: give columns the same names in all "
        "files."
    )


def test_all_problems_are_shown_at_once(here):
    (here / "t.csv").write_text(
        "\n".join(["u,v,w", *[f"{k}.5,{k}.25,{k}.75" for k in range(40)]])
    )
    with pytest.raises(InputError, match="because of the 2 problems above"):
        called("init", "t.csv")


def test_in_a_terminal_it_asks(here, monkeypatch):
    (here / "t.csv").write_text("\n".join(["hospital,age,dose", *ROWS]))
    for stream in ("stdin", "stdout"):
        monkeypatch.setattr(f"coterie.cli.commands.inits.sys.{stream}", Terminal())
    monkeypatch.delenv("CI", raising=False)
    answers = iter(["doze", "dose"])
    monkeypatch.setattr("typer.prompt", lambda *args, **options: next(answers))
    from coterie.cli.commands.inits import init

    init([Path("t.csv")])
    assert 'target = "dose"' in (here / "study.toml").read_text()


class Terminal:
    """A stream of a terminal where a person types."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        pass


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--client", "hospitl"], "none called 'hospitl'. Did you mean"),
        (["--client", "age", "--target", "age"], "must differ, both are 'age'"),
        (
            ["--out", "none/study.toml"],
            "must be in a folder that exists, but none does",
        ),
    ],
)
def test_bad_flags_are_refused(here, words, message):
    (here / "t.csv").write_text("\n".join(["hospital,age,outcome", *ROWS]))
    assert message in refused("init", "t.csv", *words)


def test_run_says_what_it_found_in_a_study_that_names_only_the_file(here):
    write_hospital(here)
    (here / "alone.toml").write_text('[data]\npath = "spital.csv"\n')
    words = ["--set", "run.rounds=1", "--set", "data.decimal=,", "--quiet"]
    code, _, said = called("run", "alone.toml", *words)
    assert code == 0
    line = next(line for line in said.splitlines() if line.startswith("found"))
    assert 'client = "Spital", target = "Diagnose"' in line and "decimal" not in line


def test_init_writes_the_unit_of_a_quantity_and_refuses_that_of_classes(here):
    examples = installed_folder("examples")
    code, _, _ = called("init", str(examples / "plants.csv"), "--unit", "kg")
    assert code == 0
    assert tomllib.loads(Path("study.toml").read_text())["data"]["unit"] == "kg"
    assert read_study("study.toml").data["unit"] == "kg"
    words = ["init", str(examples / "hospitals.csv"), "--unit", "kg", "--force"]
    assert refused(*words) == (
        "`--unit` must be left out, because column 'outcome' holds classes and not a "
        "quantity."
    )
