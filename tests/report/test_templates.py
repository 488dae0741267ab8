"""Claims about templates: they are found, they escape, and markup stands in them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest

import coterie
from coterie.report.html import _environment, render
from support.made_records import make_records, tags_of, written

PACKAGE = Path(coterie.__file__).parent
ROOMS = ("report", "planning", "cli", "export")
EVIL = "</script><b title='x' id=\"y\">&{{ 7 * 7 }}"


@pytest.mark.parametrize("room", ROOMS)
def test_templates_are_found_as_resources_of_the_package(room):
    folder = resources.files(f"coterie.{room}") / "templates"
    names = {file.name for file in folder.iterdir()}
    assert names == {path.name for path in (PACKAGE / room / "templates").iterdir()}
    for name in names:
        assert (folder / name).read_text(encoding="utf-8").endswith("\n")


def test_a_page_holds_its_style_and_its_scripts():
    page = render("page.html", title="A title", library="plotly")
    for name in ("page.css", "errors.js", "figures.js"):
        text = (PACKAGE / "report" / "templates" / name).read_text("utf-8")
        assert text.strip() in page
    assert "<title>A title</title>" in page


def test_what_a_template_is_given_is_escaped_and_not_run():
    page = render("page.html", title=EVIL)
    assert "<b " not in page and "{{ 7 * 7 }}" in page
    for room in ROOMS[:3]:
        shown = (
            _environment(room).from_string("<i title='{{ text }}'>").render(text=EVIL)
        )
        assert not re.search("[<>'\"]", shown[len("<i title='") : -2])


def test_captions_are_whole_where_they_are_read_aloud():
    """In an attribute, a quotation mark of a template would end it."""
    lines = '{% from "parts.html" import table %}'
    lines += '{% call table(["a"], []) %}\n"–" and {{ text }}\n{% endcall %}'
    shown = _environment("report").from_string(lines).render(text=EVIL)
    (label,) = re.findall('aria-label="([^"]*)"', shown)
    assert "and &lt;/script&gt;" in label and label.startswith("&#34;–&#34;")


def test_names_of_clients_classes_and_measures_are_escaped(tmp_path):
    pages = []
    for name in (EVIL, "plain"):
        records = make_records(n=3, clusters=0, labels=("local", f"a{name}"), seeds=1)
        names = (f"Chur {name}", "Bern", "Genf")
        data = {"name": name, "unit": name, "note": name}
        study = records.study | {"data": data, "name": name}
        study["privacy"] = {"epsilon": 1.0}
        said = {"left_out": (f"{name} is not there.",), "versions": {"a": name}}
        records = replace(records, names=names, study=study, **said)
        pages.append(tags_of(written(records, tmp_path)))
    assert pages[0] == pages[1]


@pytest.mark.parametrize("room", ["report", "cli"])
def test_markup_stands_in_templates_alone(room):
    markup = re.compile(r"</(p|div|table|t[dhr]|script|style|html|d[ldt]|figure|svg)>")
    for path in (PACKAGE / room).rglob("*.py"):
        assert not markup.search(path.read_text(encoding="utf-8")), path.name


def test_a_unit_of_the_data_is_text_in_figures(tmp_path):
    """Plotly reads names, titles and hover texts as HTML."""
    records = make_records(n=4, clusters=0, task="regression", seeds=1)
    study = records.study | {"data": {"name": "file", "unit": "<i>kg</i>"}}
    metrics = records.metrics.assign(test_rmse=records.metrics["test_loss"])
    records = replace(records, score="rmse", study=study, metrics=metrics)
    page = written(records, tmp_path)
    figures = re.findall(r'<script type="application/json">(.*?)</script>', page)
    texts = [text for figure in figures for text in strings(json.loads(figure))]
    assert sum("&lt;i&gt;kg&lt;" in text for text in texts) > 10
    assert not any("<i>" in text for text in texts)


def strings(told):
    """All texts of a figure."""
    if isinstance(told, str):
        return [told]
    inside = told.values() if isinstance(told, dict) else told
    inside = inside if isinstance(told, dict | list) else ()
    return [text for part in inside for text in strings(part)]
