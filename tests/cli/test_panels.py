"""Claims about pictures of reproductions: one legend that is true of all panels."""

from __future__ import annotations

import pytest

from coterie.checks import InputError
from coterie.cli import Line, Panel, draw_panels
from coterie.cli.panels import colours_of


def line(name, **options):
    return Line(name, [1.0, 2.0, 3.0], [0.1, None, 1e-4], **options)


def test_a_name_has_one_colour_in_all_panels_and_one_entry_in_the_legend(tmp_path):
    """Panels have other lines, in another order."""
    panels = [
        Panel([line("a"), line("b"), line("c")]),
        Panel([line("c"), line("b", mode="markers"), line("d")]),
        Panel([line("d"), line("a", dashed=True), line("a")]),
    ]
    figure = draw_panels(tmp_path / "picture.html", panels)
    colours = colours_of(panels)
    assert len(set(colours.values())) == 4
    shown = [trace.name for trace in figure.data if trace.showlegend]
    assert shown == ["a", "b", "c", "d"]
    for trace in figure.data:
        assert trace.line.color == trace.marker.color == colours[trace.name]
        assert trace.legendgroup == trace.name
    page = (tmp_path / "picture.html").read_text(encoding="utf-8")
    assert 'src="http' not in page  # it needs no network


def test_every_panel_has_its_own_kinds_of_axes(tmp_path):
    panels = [
        Panel([line("a")], x="rounds", log_y=True),
        Panel([line("a")], log_x=True, log_y=True, between=(0.1, 100.0)),
        Panel([line("a")], axes=False),
    ]
    layout = draw_panels(tmp_path / "picture.html", panels).layout
    assert (layout.xaxis.type, layout.yaxis.type) == (None, "log")
    assert (layout.xaxis2.type, layout.yaxis2.type) == ("log", "log")
    assert layout.xaxis2.range == (-1.0, 2.0) and layout.xaxis.title.text == "rounds"
    assert layout.xaxis2.dtick == "D2"  # the axis is longer than the line
    assert layout.xaxis3.visible is False and layout.yaxis3.visible is False


def test_a_short_logarithmic_axis_has_whole_numbers_at_its_ticks(tmp_path):
    panels = [Panel([Line("a", [1, 2], [0.007, 0.04])], log_y=True)]
    axis = draw_panels(tmp_path / "picture.html", panels).layout.yaxis
    shown = dict(zip(axis.ticktext, axis.tickvals, strict=True))
    assert {"0.007", "0.01", "0.02", "0.03"} <= set(shown)
    assert all(value == pytest.approx(float(text)) for text, value in shown.items())


def test_long_lines_keep_some_of_their_points(tmp_path):
    long = Line("a", range(9001), [1 / (k + 1) for k in range(9001)])
    (trace,) = draw_panels(tmp_path / "picture.html", [Panel([long])]).data
    assert list(trace.x) == list(range(0, 9001, 2))
    assert trace.y[1] == 0.3333


def test_more_names_than_colours_are_refused(tmp_path):
    panels = [Panel([line(str(k)) for k in range(13)])]
    with pytest.raises(InputError, match="at most 12 names of lines, got 13"):
        draw_panels(tmp_path / "picture.html", panels)
