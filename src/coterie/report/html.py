"""The page that a report fills: style, scripts, skeleton, tables, plots and words."""

from __future__ import annotations

import json
from html import escape

import numpy as np
import plotly.graph_objects as go
import plotly.io

from ..scores.words import percent

_CSS = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1160px; padding: 24px 20px 64px; color: #222;
  background: #fff; font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto,
  "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 4px; }
h2 { font-size: 1.25rem; margin: 56px 0 8px; padding-top: 16px;
  border-top: 1px solid #ddd; }
p { margin: 8px 0; max-width: 46em; }
nav { font-size: 0.92rem; margin: 16px 0; }
nav a { margin-right: 1.1em; white-space: nowrap; }
a { color: #005a9c; }
.notice { border-left: 4px solid #d55e00; background: #fff6ef; padding: 8px 14px;
  max-width: none; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 18px;
  margin: 14px 0; }
dl.headline { margin: 12px 0 20px; padding: 12px 16px; border-left: 4px solid #0072b2;
  background: #f3f7fb; font-size: 1.05rem; }
dt { color: #555; }
dd { margin: 0; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; max-height: 34em; margin: 4px 0 16px; }
table { border-collapse: collapse; font-size: 0.92rem;
  font-variant-numeric: tabular-nums; }
.caption { color: #555; font-size: 0.92rem; margin: 14px 0 0; }
th, td { padding: 5px 12px; text-align: right; border-bottom: 1px solid #e6e6e6;
  white-space: nowrap; }
thead th { border-bottom: 2px solid #999; vertical-align: bottom;
  white-space: normal; min-width: 5em; }
th:first-child { text-align: left; padding-left: 0; white-space: normal;
  min-width: 8em; }
td.best { background: #e3f1e7; font-weight: 700; }
figure { margin: 12px 0; }
figure.matrix { max-width: 720px; }
select { font: inherit; padding: 3px 6px; }
pre { background: #f6f6f6; padding: 14px; overflow-x: auto; font-size: 0.85rem; }
@media (max-width: 600px) {
  body { padding: 16px 12px 48px; font-size: 15px; }
  dl { grid-template-columns: 1fr; gap: 0; } dt { margin-top: 6px; }
}
@media print {
  nav, select { display: none; } .scroll { max-height: none; overflow: visible; }
  figure, table { break-inside: avoid; } body { max-width: none; }
}
"""

# Plots inside a hidden figure have no width until they are shown.
_SCRIPT = """
document.querySelectorAll("select[data-chooses]").forEach(function (select) {
  select.addEventListener("change", function () {
    document.querySelectorAll("." + select.dataset.chooses).forEach(function (figure) {
      figure.hidden = figure.id !== select.value;
      if (!figure.hidden) {
        Plotly.Plots.resize(figure.querySelector(".plotly-graph-div"));
      }
    });
  });
});
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
          cell.textContent = total ? (100 * row[i] / total).toFixed(0) + " %" : "–";
        }
        cell.style.background = "rgba(0, 114, 178, " + (share / 2).toFixed(2) + ")";
      });
    });
  }
  lists.forEach(function (list) { list.addEventListener("change", show); });
  show();
})();
"""

_ON_ERROR = """
window.addEventListener("error", function (event) {
  var line = document.createElement("p");
  line.className = "notice script-error";
  line.textContent = "A figure could not be drawn: " + event.message;
  document.body.prepend(line);
});
"""

_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:"
)

_CONFIG = {
    "displaylogo": False,
    "responsive": True,
    "modeBarButtons": [["toImage", "resetScale2d"]],
}


def page(
    title: str, header: str, sections: dict[str, tuple[str, str]], library: str
) -> str:
    """The whole document.

    Args:
        title: of the study, as plain text.
        header: HTML that stands below the title.
        sections: heading and HTML of each, by the name that links to it.
        library: the text of plotly.js.
    """
    links = " ".join(f'<a href="#{k}">{v}</a>' for k, (v, _) in sections.items())
    body = "".join(
        f'<section aria-labelledby="{key}"><h2 id="{key}">{name}</h2>{text}</section>'
        for key, (name, text) in sections.items()
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{escape(title)}: coterie report</title>
<style>{_CSS}</style>
<script>{_ON_ERROR}</script>
<script>{library}</script>
</head>
<body>
<header><h1>{escape(title)}</h1>{header}</header>
<nav aria-label="Sections">{links}</nav>
<main>{body}</main>
<script>{_SCRIPT}</script>
</body>
</html>
"""


def table_of(
    headers: list[str], rows: list[list[str]], caption: str, marked: int | None = None
) -> str:
    """An HTML table; the second cell of the marked row stands out."""
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in headers)
    body = []
    for number, cells in enumerate(rows):
        first = f'<th scope="row">{escape(cells[0])}</th>'
        rest = [f"<td>{escape(text)}</td>" for text in cells[1:]]
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
    choices = []
    for place, (title, names) in enumerate(lists.items()):
        chosen = first if place == 0 else 0
        options = "".join(
            f'<option value="{n}"{" selected" * (n == chosen)}>{escape(name)}</option>'
            for n, name in enumerate(names)
        )
        select = f'<select data-counts="{place}" autocomplete="off">{options}</select>'
        choices.append(f"<label>{escape(title)} {select}</label>")
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


def plot(
    figure: go.Figure, key: str, words: str, *, group: str = "", hidden: bool = False
) -> str:
    """The figure as HTML that finds plotly.js in the page."""
    drawn = plotly.io.to_html(
        figure,
        config=_CONFIG,
        include_plotlyjs=False,
        full_html=False,
        auto_play=False,
        default_height=f"{figure.layout.height}px",
        div_id=f"{key}-plot",
    )
    return (
        f'<figure id="{key}" class="{group}" role="group" '
        f'aria-label="{escape(words)}"{" hidden" * hidden}>{drawn}</figure>'
    )
