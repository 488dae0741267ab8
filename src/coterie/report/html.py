"""The skeleton of every page: head, style, scripts, tables and lists to choose from.

Drawing is not needed here, so that a page without figures begins quickly.
"""

from __future__ import annotations

import json
from html import escape

import numpy as np

from ..scores.words import percent

# Okabe and Ito's colours without yellow and black, then two of Tol's: distinct in
# the common kinds of colour blindness, and dark enough on white.
COLOURS = "#0072B2 #D55E00 #009E73 #CC79A7 #E69F00 #56B4E9 #882255 #999933".split()
GREY = "#666666"

# Figures are drawn for a light page. In the dark they are turned: white becomes the
# page's #161616 (22 = 1.2 * 255 * (1 - 0.9281)), and hues stay what they are.
_CSS = """
:root { color-scheme: light dark; --ink: #222; --paper: #fff; --soft: #555;
  --line: #ddd; --link: #005a9c; --tint: #f3f7fb; --warning: #fff6ef;
  --good: #e3f1e7; --code: #f6f6f6; }
@media screen and (prefers-color-scheme: dark) {
  :root { --ink: #ddd; --paper: #161616; --soft: #aaa; --line: #444; --link: #8cf;
    --tint: #1b2530; --warning: #33241a; --good: #1e3d2a; --code: #232323; }
  .plotly-graph-div { filter: invert(0.9281) hue-rotate(180deg) brightness(1.2); }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1320px; padding: 24px 20px 64px; color: var(--ink);
  background: var(--paper); font: 16px/1.55 system-ui, -apple-system, "Segoe UI",
  Roboto, "Helvetica Neue", Arial, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 56px 0 8px; padding-top: 16px;
  border-top: 1px solid var(--line); }
p { margin: 8px 0; max-width: 46em; }
nav { font-size: 0.92rem; margin: 16px 0; }
nav a { margin-right: 1.1em; white-space: nowrap; }
a { color: var(--link); }
.notice { border-left: 4px solid #d55e00; background: var(--warning);
  padding: 8px 14px; max-width: none; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 18px;
  margin: 14px 0; }
.verdict { margin: 12px 0 16px; padding: 12px 18px; border-left: 4px solid #0072b2;
  background: var(--tint); }
.verdict p { max-width: 60em; } .lead { font-size: 1.3rem; font-weight: 600;
  line-height: 1.4; margin: 0 0 6px; }
dl.facts { font-size: 1.05rem; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
.scroll { overflow: auto; max-height: 34em; margin: 4px 0 16px; }
table { border-collapse: separate; border-spacing: 0; font-size: 0.92rem;
  font-variant-numeric: tabular-nums; }
.caption { color: var(--soft); font-size: 0.92rem; margin: 14px 0 0;
  max-width: 60em; }
th, td { padding: 5px 9px; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
thead th { border-bottom: 2px solid #888; vertical-align: bottom; position: sticky;
  top: 0; z-index: 1; white-space: normal; min-width: 5em; background: var(--paper); }
th:first-child { text-align: left; padding-left: 0; white-space: normal; left: 0;
  position: sticky; min-width: 8em; background: var(--paper); }
thead th:first-child { z-index: 2; }
td.words { white-space: normal; min-width: 15em; }
tr.part th { padding-top: 12px; color: var(--soft); font-weight: 400; }
td.best { background: var(--good); font-weight: 700; }
figure { margin: 20px 0 12px; }
figure.matrix { max-width: 720px; }
figcaption { font-weight: 700; font-size: 0.95rem; }
.plotly-graph-div .gtitle { display: none; }
label { display: inline-block; margin-right: 14px; max-width: 100%; }
select, input { font: inherit; padding: 3px 6px; max-width: 100%; }
progress { width: 100%; }
.all { max-height: none; } .narrow { width: 100%; } .narrow td { width: 1%; }
svg.curves { width: 100%; height: auto; }
svg.curves polyline { fill: none; stroke-width: 2.5; stroke-linejoin: round; }
svg.curves text { fill: var(--ink); font-size: 13px; }
svg.curves path { stroke: var(--line); fill: none; }
.key { display: inline-block; width: 1.6em; height: 0.35em; vertical-align: middle;
  margin-right: 0.5em; }
pre { background: var(--code); padding: 14px; overflow-x: auto; font-size: 0.85rem; }
@media (max-width: 600px) {
  body { padding: 16px 12px 48px; font-size: 15px; }
  dl { grid-template-columns: 1fr; gap: 0; } dt { margin-top: 6px; }
  .verdict { padding: 8px 10px; } .lead { font-size: 1.12rem; }
  th, td { padding: 5px 7px; } thead th { min-width: 4em; }
  th:first-child { min-width: 6em; }
  .narrow th, .narrow td { padding: 5px 3px; }
  .narrow { font-size: 0.85rem; } .narrow thead th { min-width: 0; }
  .narrow th:first-child { overflow-wrap: anywhere; }
}
@media print {
  nav, select, input { display: none; }
  .scroll { max-height: none; overflow: visible; }
  figure, table { break-inside: avoid; } body { max-width: none; }
}
"""

_ON_ERROR = """
["error", "unhandledrejection"].forEach(function (kind) {
  window.addEventListener(kind, function (event) {
    var line = document.createElement("p");
    line.className = "notice script-error";
    line.textContent = "A figure could not be drawn: " +
      (event.message || event.reason);
    document.body.prepend(line);
  });
});
"""

# Figures are drawn from their JSON when they are seen first. Their title is text of
# the page, which can take several lines. A phone has less room for names of clients.
_SCRIPT = """
(function () {
  var narrow = matchMedia("(max-width: 600px)");
  function cut(text, most) {
    var whole = text.length <= most || /[&<]/.test(text);
    return whole ? text : text.slice(0, most - 1) + "…";
  }
  function fit(layout) {
    layout.margin = Object.assign({ t: 64 }, layout.margin);
    layout.margin.t -= 26;
    if (!narrow.matches) { return; }
    Object.assign(layout.margin, { l: 48, r: 8 });
    layout.font = Object.assign({}, layout.font, { size: 12 });
    layout.dragmode = false;  // a finger scrolls the page
    var square = "scaleanchor" in (layout.yaxis || {});
    if (square) { layout.height = Math.min(layout.height, innerWidth + 200); }
    Object.keys(layout).forEach(function (key) {
      var axis = layout[key];
      if (!/^[xy]axis/.test(key) || !axis.ticktext) { return; }
      var most = key[0] === "x" || square ? 12 : 20, count = axis.ticktext.length;
      axis.ticktext = axis.ticktext.map(function (text) { return cut(text, most); });
      if (key[0] === "x" && count > 12) {
        Object.assign(axis, { tickangle: -90, tickfont: { size: 10 } });
      }
      if (most === 12 && count > 24) {
        Object.assign(axis, { showticklabels: false, ticks: "" });
        if (square) { axis.title = { text: "" }; }
      }
    });
  }
  function draw(figure) {
    var box = figure.querySelector(".plotly-graph-div");
    var told = JSON.parse(figure.querySelector("script").textContent);
    fit(told.layout);
    box.style.height = (told.layout.height || 450) + "px";
    told.config = { displaylogo: false, responsive: true,
      displayModeBar: narrow.matches ? false : "hover",
      modeBarButtons: [["toImage", "resetScale2d"]] };
    return Plotly.newPlot(box, told).then(function () {
      function entitle() {
        var title = box.querySelector(".gtitle");
        figure.querySelector("figcaption").textContent = title && title.textContent;
      }
      box.on("plotly_afterplot", entitle);
      entitle();
    });
  }
  function drawSeen() {
    document.querySelectorAll("figure:not([hidden])").forEach(draw);
  }
  document.querySelectorAll("select[data-chooses]").forEach(function (select) {
    var group = select.dataset.chooses;
    var lists = document.querySelectorAll("select[data-chooses=" + group + "]");
    select.addEventListener("change", function () {
      var key = Array.from(lists).map(function (one) { return one.value; }).join("-");
      document.querySelectorAll("." + group).forEach(function (part) {
        part.hidden = part.id !== key;
        if (!part.hidden && part.matches("figure")) { draw(part); }
      });
    });
  });
  document.querySelectorAll("input[data-finds]").forEach(function (input) {
    input.addEventListener("input", function () {
      var rows = document.querySelectorAll("." + input.dataset.finds + " tbody tr");
      rows.forEach(function (row) {
        var name = row.cells[0].textContent.toLowerCase();
        row.hidden = !name.includes(input.value.toLowerCase());
      });
    });
  });
  narrow.addEventListener("change", drawSeen);
  drawSeen();
})();
"""

# Shows the counts of the client and algorithm that were chosen.
_COUNTS_SCRIPT = """
(function () {
  var told = JSON.parse(document.getElementById("counts-data").textContent);
  var lists = document.querySelectorAll("select[data-counts]");
  var lines = document.querySelectorAll("#counts tbody tr");
  function show() {
    var chosen = told[lists[0].value][lists[1].value];
    lines.forEach(function (line, i) {
      var row = new Array(lines.length).fill(0), total = 0;
      chosen.forEach(function (entry) {
        if (entry[0] === i) { row[entry[1]] = entry[2]; total += entry[2]; }
      });
      line.querySelectorAll("td").forEach(function (cell, k) {
        var share = total ? row[Math.min(k, row.length - 1)] / total : 0;
        cell.textContent = row[k];
        if (k === row.length) {
          share = 0;
          cell.textContent = total ? (100 * row[i] / total).toFixed(1) + " %" : "–";
        }
        cell.style.background = "rgba(0, 114, 178, " + (share / 2).toFixed(2) + ")";
      });
    });
  }
  lists.forEach(function (list) { list.addEventListener("change", show); });
  show();
})();
"""

_LONG = 36
"""Letters of a cell that may take several lines."""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_SCRIPTED = f"{_POLICY}; script-src 'unsafe-inline'; img-src data: blob:"


def document(title: str, body: str, *, library: str = "", reload: int = 0) -> str:
    """A whole page that fetches nothing, legible on a phone and in the dark.

    Args:
        title: plain text.
        body: HTML.
        library: the text of plotly.js; without it the page may run no script.
        reload: after so many seconds; 0: never.
    """
    head = f'<meta http-equiv="refresh" content="{reload}">' if reload else ""
    policy = _SCRIPTED if library else _POLICY
    if library:
        head = f"{head}<script>{_ON_ERROR}</script>\n<script>{library}</script>"
        body = f"{body}\n<script>{_SCRIPT}</script>"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{escape(title)}</title>
<style>{_CSS}</style>
{head}
</head>
<body>
{body}
</body>
</html>
"""


def page(
    title: str, header: str, sections: dict[str, tuple[str, str]], library: str
) -> str:
    """A document of sections with links to them.

    Args:
        title: of the study, as plain text.
        header: HTML that stands below the title.
        sections: heading and HTML of each, by the name that links to it.
        library: the text of plotly.js.
    """
    links = " ".join(f'<a href="#{k}">{v}</a>' for k, (v, _) in sections.items())
    parts = "".join(
        f'<section aria-labelledby="{key}"><h2 id="{key}">{name}</h2>{text}</section>'
        for key, (name, text) in sections.items()
    )
    body = f"""<header><h1>{escape(title)}</h1>{header}</header>
<nav aria-label="Sections">{links}</nav>
<main>{parts}</main>"""
    return document(f"{title}: coterie report", body, library=library)


def choice(title: str, names: dict[str, str], first: str, role: str) -> str:
    """A list to choose from.

    Args:
        title: of the list.
        names: what is read, by value.
        first: the value that is chosen at the beginning.
        role: what choosing does, an attribute: with `data-chooses="group"`, the element
            of that class is shown whose id the values of the group's lists make, joined
            by "-".
    """
    options = "".join(
        f'<option value="{value}"{" selected" * (value == first)}>{escape(name)}'
        "</option>"
        for value, name in names.items()
    )
    select = f'<select {role} autocomplete="off">{options}</select>'
    return f"<label>{escape(title)} {select}</label>"


def table_of(
    headers: list[str], rows: list[list[str]], caption: str, marked: int | None = None
) -> str:
    """An HTML table; the second cell of the marked row stands out.

    A row of one cell heads those below it.
    """
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in headers)
    body = []
    for number, cells in enumerate(rows):
        if len(cells) == 1 < len(headers):
            part = f'<th colspan="{len(headers)}">{escape(cells[0])}</th>'
            body.append(f'<tr class="part">{part}</tr>')
            continue
        first = f'<th scope="row">{escape(cells[0])}</th>'
        rest = [f"<td>{escape(text)}</td>" for text in cells[1:]]
        for place, text in enumerate(cells[1:]):
            if len(text) > _LONG:
                rest[place] = rest[place].replace("<td>", '<td class="words">')
        if number == marked:
            rest[0] = rest[0].replace("<td>", '<td class="best">')
        body.append(f"<tr>{first}{''.join(rest)}</tr>")
    return (
        f'<p class="caption">{escape(caption)}</p><div class="scroll" tabindex="0">'
        f'<table aria-label="{escape(caption)}">'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def counts_table(
    rows: list[str],
    lists: dict[str, list[str]],
    counts: list[list[list[list[int]]]],
    caption: str,
    *,
    first: int = 0,
) -> str:
    """A square table of counts, with two lists that choose which ones.

    Args:
        rows: names of rows, and of columns.
        lists: title of each list, and what can be chosen from it.
        counts: row, column and count of each entry of the table that is not 0, for each
            choice of the first and the second list.
        caption: of the table.
        first: what is chosen of the first list at the beginning.
    """
    choices = [
        choice(
            title,
            {str(number): name for number, name in enumerate(names)},
            str(0 if place else first),
            f'data-counts="{place}"',
        )
        for place, (title, names) in enumerate(lists.items())
    ]
    shown = np.zeros((len(rows), len(rows)), int)
    for i, k, count in counts[first][0]:
        shown[i, k] = count
    found = shown.diagonal() / np.maximum(1, shown.sum(1))
    cells = [
        [name, *map(str, line), percent(share) if line.any() else "–"]
        for name, line, share in zip(rows, shown, found, strict=True)
    ]
    told = json.dumps(counts, separators=(",", ":"))
    table = table_of(["true class", *rows, "found"], cells, caption)
    return (
        f'<p>{" ".join(choices)}</p><div id="counts">{table}</div>'
        f'<script type="application/json" id="counts-data">{told}</script>'
        f"<script>{_COUNTS_SCRIPT}</script>"
    )
