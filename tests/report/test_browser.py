"""Pages in headless Chromium."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from coterie import report
from support.made_records import make_records, make_timed, rendered


@pytest.mark.browser
def test_a_browser_draws_every_figure(tmp_path: Path) -> None:
    evil = "<script>document.title='owned'</script><b>x</b>"
    records = make_records(labels=("local", "fedavg", evil))
    page = report.write_report(records, tmp_path / "report.html")
    document, log = rendered(page, tmp_path / "profile")
    body = document[document.index("<body>") :]
    # The instructions of a drawing are no drawing.
    body = re.sub(r"<script.*?</script>", "", body, flags=re.DOTALL)
    figures = {
        part.split('"', 1)[0]: part for part in re.split(r'<figure id="', body)[1:]
    }
    plots = ["gains", "curves", "spread", "partners", "clients"]
    matrices = [f"collaboration-{number}" for number in range(3)]
    assert set(figures) == {*(f"{plot}-figure" for plot in plots), *matrices}
    for name, drawn in figures.items():
        assert 'class="main-svg"' in drawn, name
        assert "gtitle" in drawn, name
    titles = {
        "gains-figure": " cannot tell",
        "curves-figure": "Mean over clients during training",
        "spread-figure": "Final scores of the clients",
        "collaboration-0": "Who learns from whom: fedavg, seed 0",
        "partners-figure": "Number of partners",
        "clients-figure": "Data and final score of each client",
    }
    for name, title in titles.items():
        assert title in figures[name], name
    assert figures["gains-figure"].count('class="point"') == 12
    # Line and band of three algorithms in each of two panels.
    assert len(re.findall(r'class="trace scatter', figures["curves-figure"])) == 12
    assert figures["spread-figure"].count('class="trace boxes"') == 3
    assert all('class="hm"' in figures[name] for name in matrices)
    assert figures["clients-figure"].count('class="trace bars"') == 3
    assert 'class="notice script-error"' not in document
    assert "CONSOLE" not in log
    assert "<title>A study: coterie report</title>" in document


@pytest.mark.browser
def test_menus_and_slider_change_what_is_drawn(tmp_path: Path) -> None:
    records = make_records()
    path = report.write_report(records, tmp_path / "report.html")
    act = """<script>
    const plot = (key) => document.getElementById(key + "-plot");
    const say = (key, value) => { document.body.dataset[key] = JSON.stringify(value); };
    const press = (key, number) => {
      const button = plot(key).layout.updatemenus[0].buttons[number];
      return Plotly.update(plot(key), button.args[0], button.args[1]);
    };
    const select = document.querySelector("select");
    select.value = "collaboration-1";
    select.dispatchEvent(new Event("change"));
    (async () => {
      await press("curves-figure", 2);
      say("bytes", Array.from(plot("curves-figure").data.at(-1).x));
      await press("gains-figure", 1);
      say("gain", plot("gains-figure").layout.title.text);
      const step = plot("collaboration-1").layout.sliders[0].steps[0];
      await Plotly.animate(plot("collaboration-1"), step.args[0], step.args[1]);
      say("first", plot("collaboration-1")._fullData[0].z[0][1]);
      say("width", plot("collaboration-1").clientWidth);
    })();
    </script></body>"""
    path.write_text(path.read_text("utf-8").replace("</body>\n", act), "utf-8")
    document, log = rendered(path, tmp_path / "profile")
    found = dict(re.findall(r'data-(\w+)="([^"]*)"', document))
    assert "CONSOLE" not in log, log
    assert found["bytes"] == "[24000,96000,192000,288000,384000]"  # 24000 stands for 0
    assert "ditto: " in found["gain"]
    assert float(found["first"]) == pytest.approx(1 / 12)
    assert int(found["width"]) > 500
    shown = re.findall(r'<figure id="collaboration-(\d)"[^>]*?( hidden="")?>', document)
    assert [bool(hidden) for _, hidden in shown] == [True, False, True]


@pytest.mark.browser
def test_a_browser_draws_the_edge_cases(tmp_path: Path) -> None:
    options = {"n": 1, "clusters": 0, "seeds": 1, "rounds": 1, "task": "regression"}
    page = report.write_report(make_records(**options), tmp_path / "report.html")
    document, log = rendered(page, tmp_path / "profile")
    assert 'class="notice script-error"' not in document
    assert "CONSOLE" not in log
    assert document.count("plotly-graph-div") >= 8


@pytest.mark.browser
def test_a_browser_draws_a_study_in_virtual_time(tmp_path: Path) -> None:
    records = make_timed(labels=("local", "fedavg", "asgd"), seeds=1)
    path = report.write_report(records, tmp_path / "report.html")
    act = """<script>
    (async () => {
      const plot = document.getElementById("timeline-figure-plot");
      const button = plot.layout.updatemenus[0].buttons[2];
      await Plotly.update(plot, button.args[0], button.args[1]);
      const bars = plot.querySelectorAll(".trace.bars .point").length;
      document.body.dataset.bars = bars;
      document.body.dataset.heading = plot.querySelector(".gtitle").textContent;
    })();
    </script></body>"""
    path.write_text(path.read_text("utf-8").replace("</body>\n", act), "utf-8")
    document, log = rendered(path, tmp_path / "profile")
    assert 'class="notice script-error"' not in document
    assert "CONSOLE" not in log, log
    found = dict(re.findall(r'data-(\w+)="([^"]*)"', document))
    # A grey bar for each of twelve clients; eleven compute 16 times and one four times.
    assert int(found["bars"]) == 12 + 11 * 16 + 4
    assert found["heading"] == "asgd: idle 0 % of the time"
    delays = document[document.index('<figure id="delays-figure"') :]
    assert "How late answers arrived" in delays[: delays.index("</figure>")]
