"""Pages in headless Chromium."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pytest
from PIL import Image

from coterie import report
from support.browser import Browser
from support.made_records import make_records, make_timed, with_baselines


@pytest.mark.browser
@pytest.mark.parametrize(
    "script",
    [
        "console.log('here')",
        "throw new Error('here')",
        "setTimeout(() => { throw new Error('here') }, 9000)",
        "new Image().src = 'missing.png'",
        "new Image().src = 'https://example.invalid/a.png'",
    ],
)
def test_what_a_page_complains_of_is_noticed(
    browser: Browser, tmp_path: Path, script: str
) -> None:
    policy = "default-src 'unsafe-inline' file:"
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    page = tmp_path / "page.html"
    for code, count in ((script, 1), ("'quiet'", 0)):
        page.write_text(f"<!DOCTYPE html>{head}<script>{code}</script>")
        browser.open(page)
        assert len(browser.spoken()) == count


@pytest.mark.browser
def test_a_browser_draws_every_figure(browser: Browser, tmp_path: Path) -> None:
    evil = "<script>document.title='owned'</script><b>x</b>"
    records = make_records(labels=("local", "fedavg", evil))
    page = report.write_report(records, tmp_path / "report.html")
    browser.open(page, height=2000)
    document = browser.document()
    body = document[document.index("<body>") :]
    figures = {
        part.split('"', 1)[0]: part for part in re.split(r'<figure id="', body)[1:]
    }
    plots = ["verdict", "gains", "curves", "spread", "partners", "clients"]
    matrices = [f"collaboration-{number}-{k}" for number in range(3) for k in range(3)]
    assert set(figures) == {*(f"{plot}-figure" for plot in plots), *matrices}
    # Local comes last, and what is hidden is drawn when it is chosen.
    first = "collaboration-1-0"
    for name in [*(f"{plot}-figure" for plot in plots), first]:
        assert 'class="main-svg"' in figures[name], name
    titles = {
        "verdict-figure": "Better or worse than training alone",
        "gains-figure": " not sure",
        "curves-figure": "Mean over clients during training",
        "spread-figure": "Final scores of the clients",
        first: "Who learns from whom: &lt;script&gt;document.title=",
        "partners-figure": "Number of partners",
        "clients-figure": "Data and final score of each client",
    }
    for name, title in titles.items():
        assert re.search(f"<figcaption>[^<]*{re.escape(title)}", figures[name]), name
    assert figures["gains-figure"].count('class="point"') == 12
    # Line and band of three algorithms in each of two panels.
    assert len(re.findall(r'class="trace scatter', figures["curves-figure"])) == 12
    assert figures["spread-figure"].count('class="trace boxes"') == 3
    assert [name for name in matrices if 'class="hm"' in figures[name]] == [first]
    assert figures["clients-figure"].count('class="trace bars"') == 3
    assert "<title>A study: coterie report</title>" in document


_PLAY = """
const pause = () => new Promise((done) => setTimeout(done, 500));
const plot = (key) => document.getElementById(key + "-plot");
const caption = (key) => document.querySelector("#" + key + " figcaption").textContent;
const press = (key, number) => {
  const button = plot(key).layout.updatemenus[0].buttons[number];
  return Plotly.update(plot(key), button.args[0], button.args[1]);
};
const choose = async (group, values) => {
  const lists = all(`select[data-chooses=${group}]`);
  values.forEach((value, k) => { lists[k].value = value; });
  lists.at(-1).dispatchEvent(new Event("change"));
  await pause();
};
const shown = (group) => all("." + group).filter((p) => !p.hidden).map((p) => p.id);
"""


@pytest.mark.browser
def test_menus_lists_and_slider_change_what_is_drawn(
    browser: Browser, tmp_path: Path
) -> None:
    page = report.write_report(make_records(), tmp_path / "report.html")
    probe = f"""{_PLAY}
    const opened = shown("matrix");
    await press("curves-figure", 2);
    const ticks = [...plot("curves-figure").querySelectorAll(".x2tick text")];
    await press("gains-figure", 0);
    await choose("matrix", ["collaboration-0", "2"]);
    const step = plot("collaboration-0-2").layout.sliders[0].steps[0];
    Plotly.animate(plot("collaboration-0-2"), step.args[0], step.args[1]);
    await pause();
    Plotly.Fx.hover(plot("collaboration-0-2"), {{ xval: 1, yval: 0 }});
    return {{
      hover: plot("collaboration-0-2").querySelector(".hovertext").textContent,
      opened, bytes: [...plot("curves-figure").data.at(-1).x].slice(1),
      ticks: ticks.map((text) => text.textContent), gain: caption("gains-figure"),
      places: plot("gains-figure").querySelectorAll(".xtick text").length,
      shown: shown("matrix"), matrix: caption("collaboration-0-2"),
      first: plot("collaboration-0-2")._fullData[0].z[0][1],
      width: plot("collaboration-0-2").clientWidth,
    }}"""
    found = browser.seen(page, probe)
    # Ditto is shown above, and stands second among those with matrices.
    assert found["opened"] == ["collaboration-1-0"]
    assert found["bytes"] == [96000, 192000, 288000, 384000]
    assert found["ticks"] == ["0", "50 kB", "100 kB", "200 kB"]
    assert found["gain"].startswith("fedavg: ")
    assert found["places"] == 12
    assert found["shown"] == ["collaboration-0-2"]
    assert found["matrix"] == "Who learns from whom: fedavg, seed 2"
    assert found["first"] == pytest.approx(1 / 12)
    assert found["hover"].startswith("client 0 learns from client 2")
    assert found["width"] > 500


HOSPITALS = ("Chur", "Bern", "Zürich", "Lausanne University Hospital", "Genève")
HOSPITALS += ("Basel", "01234", "1234")


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a study of hospitals."""
    records = replace(make_records(n=8, clusters=0), names=HOSPITALS)
    half = np.arange(3 * 8 * 20).reshape(3, 8, 20) % 2
    labels = ("constant", "linear alone", "trees alone", "linear pooled")
    records = with_baselines(records, dict.fromkeys(labels, half))
    return report.write_report(records, tmp_path_factory.mktemp("r") / "report.html")


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1280])
def test_a_report_fits_a_phone_and_a_desk_light_and_dark(
    browser: Browser, hospitals: Path, width: int
) -> None:
    probe = """
    const inside = (part, box) => {
      const a = part.getBoundingClientRect(), b = box.getBoundingClientRect();
      return a.left >= b.left - 1 && a.right <= b.right + 1;
    };
    const figures = all("figure:not([hidden])");
    const names = (key, axis) => [...document.querySelectorAll(
      `#${key}-plot .${axis}tick text`)].map((text) => text.textContent);
    return {
      over: over(document.documentElement),
      scrolled: all(".scroll").filter((box) => over(box) > 0).length,
      captions: figures.map((f) => f.querySelector("figcaption").textContent),
      outside: figures.filter((f) => !inside(f, document.body)).length,
      cut: figures.flatMap((f) => [...f.querySelectorAll(
        ".updatemenu-header, .updatemenu-button, .xtick text, .legendtext, .xtitle"
        )].filter((part) => !inside(part, f)).map((part) => part.textContent)),
      gains: names("gains-figure", "x"), rows: names("collaboration-1-0", "y"),
      paper: getComputedStyle(document.body).backgroundColor,
      filter: getComputedStyle(all(".plotly-graph-div")[0]).filter,
    }"""
    long = "Lausanne University Hos…" if width == 1280 else "Lausanne Un…"
    names = sorted(long if len(name) > 12 else name for name in HOSPITALS)
    browser.open(hospitals, width=width)
    for dark in (False, True):
        browser.prefer(dark=dark)
        found = browser.probe(probe)
        assert (found["over"], found["outside"], found["cut"]) == (0, 0, [])
        assert (found["scrolled"] > 0) == (width == 390)
        assert all(found["captions"]) and len(found["captions"]) == 7
        assert sorted(found["gains"]) == names
        assert {"01234", "1234", "Chur"} <= set(found["rows"])
        assert len(found["rows"]) == 8
        assert found["paper"] == ("rgb(22, 22, 22)" if dark else "rgb(255, 255, 255)")
        assert (found["filter"] != "none") == dark
    assert not browser.spoken()


@pytest.mark.browser
def test_a_saved_figure_opens_and_can_be_read_light_and_dark(
    browser: Browser, tmp_path: Path
) -> None:
    path = report.write_figure(report.gains(make_records()), tmp_path / "gains.html")
    browser.open(path, width=800, height=600)
    document = browser.document()
    assert 'class="main-svg"' in document
    assert re.search("<figcaption>ditto: .* not sure</figcaption>", document)
    for dark in (False, True):
        browser.prefer(dark=dark)
        with Image.open(io.BytesIO(browser.picture())) as picture:
            pixels = np.asarray(picture.convert("L"), dtype=float)
        # The page and the figure have one background, and text stands out from both.
        paper = pixels[5, 5]
        assert paper == pytest.approx(22 if dark else 255, abs=1)
        figure = pixels[80:560, 30:770]
        assert (np.abs(figure - paper) <= 1).mean() > 0.6
        ends = (figure.max(), figure.min())
        contrast = [(value / 255) ** 2.2 + 0.05 for value in ends]
        assert contrast[0] / contrast[1] > 7  # as the strictest rules for text ask


@pytest.mark.browser
def test_a_figure_of_ones_own_is_saved_too(browser: Browser, tmp_path: Path) -> None:
    figure = go.Figure(go.Scatter(x=[1, 2], y=[3, 4]))
    path = report.write_figure(figure, tmp_path / "own.html")
    probe = (
        'return [all(".scatterlayer .point").length, over(document.documentElement)]'
    )
    assert browser.seen(path, probe, width=390) == [2, 0]


@pytest.mark.browser
def test_clients_are_found_in_their_table(browser: Browser, tmp_path: Path) -> None:
    records = make_records(n=30, clusters=0, weights=False)
    page = report.write_report(records, tmp_path / "report.html")
    probe = f"""{_PLAY}
    const rows = () => all(".client-table:not([hidden]) tbody tr")
      .filter((row) => !row.hidden).map((row) => row.cells[0].textContent);
    const before = [shown("client-table"), rows().length];
    await choose("client-table", ["clients-1"]);
    const input = document.querySelector("input");
    input.value = "NT 2";
    input.dispatchEvent(new Event("input"));
    return [...before, shown("client-table"), rows()]"""
    first, count, then, rows = browser.seen(page, probe)
    assert (first, count, then) == (["clients-2"], 30, ["clients-1"])
    assert rows == ["client 2", *(f"client 2{k}" for k in range(10))]


@pytest.mark.browser
def test_a_browser_draws_the_edge_cases(browser: Browser, tmp_path: Path) -> None:
    options = {"n": 1, "clusters": 0, "seeds": 1, "rounds": 1, "task": "regression"}
    page = report.write_report(make_records(**options), tmp_path / "report.html")
    browser.open(page, height=2000)
    assert browser.document().count('class="main-svg"') >= 8


@pytest.mark.browser
def test_a_browser_draws_a_study_in_virtual_time(
    browser: Browser, tmp_path: Path
) -> None:
    records = make_timed(labels=("local", "fedavg", "asgd"), seeds=1)
    path = report.write_report(records, tmp_path / "report.html")
    probe = f"""{_PLAY}
    await press("timeline-figure", 2);
    const bars = plot("timeline-figure").querySelectorAll(".trace.bars .point");
    return [bars.length, caption("timeline-figure")]"""
    # A grey bar for each of twelve clients; eleven compute 16 times and one four times.
    wanted = [12 + 11 * 16 + 4, "asgd: idle 0.0 % of the time"]
    assert browser.seen(path, probe) == wanted
    document = browser.document()
    delays = document[document.index('<figure id="delays-figure"') :]
    assert "How late answers arrived" in delays[: delays.index("</figure>")]
