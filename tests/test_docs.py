"""Claims about the documentation: what it shows runs, and nothing is left out."""

from __future__ import annotations

import doctest
import re
import runpy
import shutil
import sys
import tomllib
from dataclasses import fields
from html import escape
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import typer.main

import coterie as co
from coterie.algorithms import ALGORITHMS, GROUPS
from coterie.checks import parameters_of
from coterie.cli.completion import light_app
from coterie.report.privacy.officer import NOT_COVERED, ROLES, SIGHTS
from coterie.study.config import RunTable, study_of
from coterie.study.ingredients import RECIPES, ingredients_of
from coterie.study.setup import prepare

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [
    page for page in (ROOT / "README.md", *sorted(DOCS.rglob("*.md"))) if page.exists()
]
OURS = ("docs", "examples", "benchmarks", "reproductions", "src", "tests")
MARKDOWN = sorted(
    [
        *ROOT.glob("*.md"),
        *(page for name in OURS for page in (ROOT / name).rglob("*.md")),
    ]
)
_FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TESTS = re.compile(r"tests/[\w/*]+\.py")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a page in a language, except those marked no-run."""
    text = page.read_text(encoding="utf-8")
    found = _FENCE.findall(text)
    return [
        code for kind, mark, code in found if (kind, mark.strip()) == (language, "")
    ]


def run_block(code: str, names: dict[str, Any], where: str) -> None:
    """Executes a block: a session, a file to write, or plain code."""
    file = re.match(r"# (\w+\.py)\n", code)
    if file:
        Path(file[1]).write_text(code, encoding="utf-8")
    elif code.startswith(">>>"):
        test = doctest.DocTestParser().get_doctest(code, names, where, None, 0)
        doctest.DebugRunner(verbose=False).run(test, clear_globs=False)
        names.update(test.globs)
    else:
        exec(compile(code, where, "exec"), names)


@pytest.fixture(scope="module")
def given(tmp_path_factory) -> dict[str, Any]:
    """Names that a page may use for what its reader has already."""
    tables = {
        "data": {"name": "digits"},
        "split": {"name": "label_swap", "clients": 3, "max_samples": 20},
        "model": {"name": "linear"},
        "run": {"rounds": 1},
        "algorithm": [{"name": "local"}],
    }
    folder = tmp_path_factory.mktemp("given")
    result = co.run_study(study_of(tables), runs=folder)
    setup = prepare(result.study, 0)
    return {
        "np": np,
        "result": result,
        "records": result.records,
        "path": folder / "report.html",
        "federation": setup.federation,
        "module": setup.module,
        "x": setup.x,
        "algorithm": setup.algorithm(result.study.algorithms[0]),
        "images": np.zeros((8, 4)),
        "labels": np.zeros(8),
        "clinics": np.repeat([0, 1], 4),
    }


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_blocks_run(page, given, tmp_path, monkeypatch):
    code = blocks(page, "python")
    if not code:
        return
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    # In a module of its own, for what looks itself up there.
    module = SimpleNamespace(__name__=f"docs_{page.stem}", **given)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    try:
        for number, block in enumerate(code, start=1):
            run_block(block, vars(module), f"{name_of(page)}, block {number}")
    finally:
        for name in set(sys.modules) - before:
            origin = getattr(sys.modules[name], "__file__", None) or ""
            if origin.startswith(str(tmp_path)):
                monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_toml_blocks_are_valid_and_whole_studies_are_accepted(page):
    for block in blocks(page, "toml"):
        tables = tomllib.loads(block)
        if {"data", "algorithm"} <= tables.keys():
            study_of(tables)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_has_a_page_that_gives_its_parameters_and_defaults(name):
    text = (DOCS / "algorithms" / f"{name}.md").read_text(encoding="utf-8")
    for parameter in parameters_of(ALGORITHMS[name]).values():
        default = parameter.default
        shown = f'"{default}"' if isinstance(default, str) else repr(default)
        row = f"| `{parameter.name}` | `{shown}` |"
        assert row in text, f"the page of {name} has no row {row}"
    for ingredient in ingredients_of(ALGORITHMS[name]):
        row = f'| `{ingredient}` | `"{RECIPES[ingredient][1]}"` |'
        assert row in text, f"the page of {name} has no row {row}"


HEADINGS = [
    *("What it does", "When to use it", "Update", "Options"),
    *("Cost and who sees what", "Differences from the paper"),
]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_page_of_an_algorithm_has_the_same_headings_and_begins_briefly(name):
    text = (DOCS / "algorithms" / f"{name}.md").read_text(encoding="utf-8")
    text = _FENCE.sub("", text)
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == HEADINGS
    assert text.startswith(f"# {name}\n\n## What it does\n\n")
    first = text.split("\n\n")[2]
    assert 1 <= len(re.findall(r"[.!?](?:\s|$)", first)) <= 2, first


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_page_of_an_algorithm_says_who_sees_what_as_reports_do(name):
    text = (DOCS / "algorithms" / f"{name}.md").read_text(encoding="utf-8")
    part = text[text.index("\n## Cost and who sees what") :]
    (sight,) = (sight for sight in SIGHTS if name in sight.methods)
    assert f"| {sight.server} | {sight.partner} | {sight.private} |" in part


def test_every_page_of_an_algorithm_is_of_one_that_exists():
    assert {page.stem for page in (DOCS / "algorithms").glob("*.md")} == set(ALGORITHMS)


def test_the_table_of_who_sees_what_names_every_algorithm_and_no_other():
    text = (DOCS / "privacy.md").read_text(encoding="utf-8")
    table = text[text.index("| verb | methods |") :].split("\n\n")[0]
    cells = [row.split("|")[2] for row in table.splitlines()[2:]]
    assert set(re.findall(r"`(\w+)`", " ".join(cells))) == set(ALGORITHMS)


def test_the_page_of_a_data_protection_officer_says_what_reports_say():
    """Every method stands in one row, and the words are those that reports show."""
    methods = [name for sight in SIGHTS for name in sight.methods]
    assert sorted(methods) == sorted(ALGORITHMS)
    text = (DOCS / "data_protection.md").read_text(encoding="utf-8")
    for sight in SIGHTS:
        names = ", ".join(f"`{name}`" for name in sight.methods)
        row = f"| {names} | {sight.server} | {sight.partner} | {sight.private} |"
        assert row in text, row
    for role, words in ROLES.items():
        assert f"| {role} | {words} |" in text, role
    lines = " ".join(text.split())  # long items are wrapped
    for words in NOT_COVERED:
        assert f"- {words} " in lines, words


@pytest.mark.parametrize("key", fields(RunTable), ids=lambda key: key.name)
def test_every_key_of_run_is_described_with_its_default(key):
    text = (DOCS / "studies.md").read_text(encoding="utf-8")
    default = key.default
    shown = {True: "true", False: "false"}.get(default) if key.type == "bool" else None
    if shown is None:
        shown = f'"{default}"' if isinstance(default, str) else repr(default)
    if isinstance(default, tuple):
        shown = str(list(default))
    row = f"| `{key.name}` | `{shown}` |"
    assert row in text, f"docs/studies.md has no row {row}"


@pytest.mark.parametrize("page", MARKDOWN, ids=name_of)
def test_relative_links_lead_somewhere(page):
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    for link in _LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, place = link.partition("#")
        file = (page.parent / target) if target else page
        assert file.exists(), f"{link} leads nowhere"
        if place:
            headings = re.findall(r"^#+ (.*)$", file.read_text("utf-8"), re.MULTILINE)
            assert place in {anchor(heading) for heading in headings}, link


def anchor(heading: str) -> str:
    """The name under which a heading can be linked to."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The built site; building it stops at any warning."""
    pytest.importorskip("zensical", reason="the extra `docs` is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS / "site")
        build = import_module("build_site").build
    folder = tmp_path_factory.mktemp("site")
    build(folder / "working", folder / "built")
    return folder / "built"


def test_the_site_is_built_without_warnings_and_has_every_page(site):
    pages = {page.relative_to(DOCS).with_suffix(".html") for page in DOCS.rglob("*.md")}
    assert not {page for page in pages if not (site / page).is_file()}
    home = (site / "index.html").read_text(encoding="utf-8")
    assert len(re.findall(r'class="md-tabs__link"', home)) == 7


def test_every_page_is_once_in_the_navigation_of_the_site(monkeypatch):
    monkeypatch.syspath_prepend(DOCS / "site")
    tables = import_module("build_site").settings(["coterie"])["project"]["nav"]
    places = []
    while tables:
        (place,) = tables.pop().values()
        places += [place] if isinstance(place, str) else []
        tables += place if isinstance(place, list) else []
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert len(places) == len(set(places))
    assert pages == {
        place for place in places if not place.startswith(("api/", "project/"))
    }


def test_the_site_lists_every_option_of_every_command(site):
    shown = (site / "commands.html").read_text(encoding="utf-8")
    group = typer.main.get_command(light_app())
    for name, command in group.commands.items():
        assert f"<code>coterie {name}</code>" in shown
        for option in getattr(command, "params", ()):
            assert escape(option.opts[-1]) in shown, (name, option.opts)


def test_pages_of_the_site_load_nothing_from_elsewhere(site):
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|iframe|link)\b[^>]*https?://[^>]*>", text)
        assert not loaded, f"{page.name}: {loaded[:1]}"


def test_the_version_is_the_same_in_all_files():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"\nversion: {project['version']}\n" in citation
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8")
    headings = re.findall(r"^## (\S+)", changes, re.MULTILINE)
    assert headings[:2] == ["Unreleased", project["version"]]


def test_the_table_of_public_names_has_all_of_them():
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    cells = [row.split("|")[1] for row in text.splitlines() if row.startswith("| `")]
    assert set(re.findall(r"`(\w+)`", " ".join(cells))) == set(co.__all__)


def test_the_map_shows_methods_in_the_groups_of_the_code():
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    section = re.search(r"^## Methods$(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    assert section
    parts = re.split(r"^### (.*)$", section[1], flags=re.MULTILINE)[1:]
    assert parts[::2] == [group.title for group in GROUPS]
    for group, part in zip(GROUPS, parts[1::2], strict=True):
        rows = re.findall(r"^\| \[\w+\]\(algorithms/(\w+)\.md\)", part, re.MULTILINE)
        assert tuple(rows) == (group.methods or group.also), group.title
    # The navigation of the site has every page once, where it stands first.
    rows = re.findall(r"^\| \[\w+\]\(algorithms/(\w+)\.md\)", text, re.MULTILINE)
    assert [*dict.fromkeys(rows)] == [name for g in GROUPS for name in g.methods]


def test_methods_and_options_named_for_users_of_pfllib_exist():
    text = (DOCS / "coming_from_pfllib.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\|.*\]\(algorithms/(\w+)\.md\)(.*)\|$", text, re.MULTILINE)
    named = {
        (method, option)
        for method, cells in rows
        for option in re.findall(r"(?:`-\w+`: |with )`(\w+)", cells)
    }
    assert {("pfedme", "inner_lr"), ("scaffold", "weighting")} <= named
    for method, option in named:
        assert option in parameters_of(ALGORITHMS[method]), (method, option)


@pytest.mark.parametrize("page", MARKDOWN, ids=name_of)
def test_files_of_tests_that_a_page_names_exist(page):
    for place in _TESTS.findall(page.read_text(encoding="utf-8")):
        assert list(ROOT.glob(place)), f"there is no {place}"


def errata() -> dict[str, str]:
    """Sections of the page of errata by their headings."""
    text = (DOCS / "errata.md").read_text(encoding="utf-8")
    parts = re.split(r"^## (.*)$", text, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


@pytest.mark.parametrize("section", errata(), ids=lambda name: anchor(name)[:40])
def test_every_erratum_names_a_test_that_is_in_a_file_which_its_section_names(section):
    text, there = errata()[section], set()
    for place in _TESTS.findall(text):
        for file in ROOT.glob(place):
            source = file.read_text(encoding="utf-8")
            there |= set(re.findall(r"^def (test_\w+)", source, re.MULTILINE))
    named = set(re.findall(r"[`:](test_\w+)`", text))
    assert named, f"{section} names no test"
    assert named <= there, f"not in the files of {section}: {named - there}"
    for row in re.findall(r"^\|(.*)\|$", text, re.MULTILINE)[2:]:
        last = re.split(r"(?<!\\)\|", row)[-1]
        assert "`test_" in last, f"no test shows {row}"


def test_a_block_that_fails_is_noticed(tmp_path):
    with pytest.raises(ZeroDivisionError):
        run_block("1 / 0\n", {}, "here")
    with pytest.raises(doctest.DocTestFailure):
        run_block(">>> 1 + 1\n3\n", {}, "here")
    page = tmp_path / "page.md"
    page.write_text("```python no-run\n1 / 0\n```\n\n```python\nx = 1\n```\n")
    assert blocks(page, "python") == ["x = 1\n"]


@pytest.mark.parametrize(
    "script", sorted((DOCS / "pictures").glob("*.py")), ids=lambda path: path.stem
)
def test_scripts_of_pictures_find_what_they_use(script, monkeypatch):
    """They measure for minutes, so nothing is drawn here."""
    monkeypatch.syspath_prepend(script.parent)
    assert {"photograph", "PAGES"} & runpy.run_path(str(script)).keys()
