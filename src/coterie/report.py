"""One HTML page that answers who gains, who loses and who learned with whom.

The page is a function of a study's records. It holds all it needs, plotly.js too, and
its content security policy forbids it to fetch anything: it opens from disk, offline.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import plotly.io
import tomli_w
from plotly.offline import get_plotlyjs

from .checks import InputError
from .figures import (
    CROWD,
    baseline_of,
    by_cluster,
    clients,
    cluster_means,
    cluster_name,
    collaboration,
    count_gains,
    curves,
    final_gains,
    final_scores,
    gains,
    is_crowd,
    labels_of,
    partner_counts,
    partners,
    planned_algorithms,
    population,
    runs_of,
    score_of,
    spread,
    worst_decile,
)
from .record import Records, replacing

__all__ = [
    "clients",
    "collaboration",
    "curves",
    "gains",
    "partners",
    "spread",
    "summary",
    "write_report",
]

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


def summary(records: Records) -> pd.DataFrame:
    """One row per algorithm: test scores at the last round, and what they cost.

    Clients count by their mean over seeds, save for `standard_error`, which is that of
    the mean over clients and comes from its spread over seeds (NaN with one seed).
    `weighted_mean` weighs clients by training samples; `worst_decile` is the mean of
    the worst ceil(N / 10) clients; `better_than_local` is the share of clients strictly
    better than `local` (NaN without it); `gradients` and `bytes` are totals over
    clients, means over seeds.
    """
    local, rows = baseline_of(records), {}
    sizes = records.clients.set_index(["seed", "client"])["train"].unstack("client")
    sign = score_of(records).sign
    for label in labels_of(records):
        scores = final_scores(records, label)
        values = scores.mean(skipna=False)
        weights = sizes.loc[scores.index, scores.columns]
        weights = weights.div(weights.sum(axis=1), axis=0)
        row = {"mean": float(values.mean(skipna=False))}
        row["standard_error"] = _standard_error(scores.mean(axis=1, skipna=False))
        weighted = (scores * weights).sum(axis=1, skipna=False)
        row["weighted_mean"] = float(weighted.mean(skipna=False))
        row["worst_client"] = float(sign * (sign * values).min(skipna=False))
        row["worst_decile"] = worst_decile(values, sign)
        row["better_than_local"] = np.nan
        if local is not None and label != local:
            gained = final_gains(records, label)
            more, _, _ = count_gains(gained)
            row["better_than_local"] = more / len(values) if len(gained) else np.nan
        row |= _costs(records, label)
        row["round"] = runs_of(records, label)["round"].max()
        row["seeds"] = len(scores)
        rows[label] = row
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("algorithm")


def write_report(records: Records, path: Path) -> Path:
    """The path of the page, which is there in full or not at all.

    Raises:
        InputError: when the records hold no results.
    """
    if records.metrics.empty:
        raise InputError("the records hold no results yet; there is nothing to report.")
    page = _page(records)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write_text(page, encoding="utf-8")
    return path


def _standard_error(values: pd.Series) -> float:
    """Of the mean of the values; not known from a single one."""
    if len(values) < 2:
        return float("nan")
    return float(np.std(values.to_numpy(), ddof=1)) / len(values) ** 0.5


def _costs(records: Records, label: str) -> dict[str, float]:
    """Counters at the last round, mean over the seeds that are used."""
    runs = runs_of(records, label)
    mine = records.rounds[records.rounds["algorithm"] == label]
    used = mine["seed"].isin(runs["seed"].unique())
    mine = mine[used & (mine["round"] <= runs["round"].max())]
    last = mine.sort_values("round").groupby("seed").last()
    return {
        name: float(last[name].mean()) if name in last else np.nan
        for name in ("gradients", "bytes")
    }


def _page(records: Records) -> str:
    title, table = str(records.study.get("name", "Study")), summary(records)
    sections = {
        "summary": ("Result", _result_section(records, table)),
        "gains": ("Who gains and who loses", _gains_section(records, table)),
        "curves": ("Progress", _curves_section(records, table)),
        "spread": ("Spread and worst clients", _spread_section(records, table)),
        "collaboration": ("Who learned with whom", _partners_section(records)),
        "clients": ("The clients", _clients_section(records)),
        "made": ("How this was made", _made_section(records)),
    }
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
<script>{get_plotlyjs()}</script>
</head>
<body>
<header><h1>{escape(title)}</h1>{_header(records)}</header>
<nav aria-label="Sections">{links}</nav>
<main>{body}</main>
<script>{_SCRIPT}</script>
</body>
</html>
"""


def _header(records: Records) -> str:
    study = records.study
    seeds = sorted(records.metrics["seed"].unique())
    lines = {
        "Data": _described(study.get("data")),
        "Split": _described(study.get("split")),
        "Clients": f"{records.clients['client'].nunique():,}",
        "Model": _described(study.get("model")),
        "Task": records.task,
        "Algorithms": ", ".join(labels_of(records)),
        "Seeds": ", ".join(str(seed) for seed in seeds),
        "Versions": ", ".join(f"{k} {v}" for k, v in records.versions.items()),
    }
    items = "".join(
        f"<dt>{key}</dt><dd>{escape(value)}</dd>"
        for key, value in lines.items()
        if value
    )
    table = study.get("data")
    note = table.get("note") if isinstance(table, dict) else None
    note = f"<p>{escape(str(note))}</p>" if note else ""
    short = _shortfalls(records)
    notice = f'<p class="notice">{escape(short)}</p>' if short else ""
    return f"<dl>{items}</dl>{note}{notice}"


def _described(table: object) -> str:
    """A table of the configuration as one line: its name, then its options."""
    if not isinstance(table, dict):
        return "" if table is None else str(table)
    options = {k: v for k, v in table.items() if k not in ("name", "note")}
    options = {k: v for k, v in options.items() if v is not None}
    text = ", ".join(f"{key} = {value}" for key, value in options.items())
    name = str(table.get("name", ""))
    return f"{name} ({text})" if name and text else name or text


def _shortfalls(records: Records) -> str:
    """A sentence on what is missing of an interrupted study, or nothing."""
    reached = records.metrics.groupby(["algorithm", "seed"])["round"].max()
    seeds = set(records.metrics["seed"])
    run = records.study.get("run", {})
    if isinstance(run.get("seeds"), list):
        seeds |= set(run["seeds"])
    goal = max(int(reached.max()), _goal(records))
    labels = dict.fromkeys([a for a, _ in planned_algorithms(records)])
    missing = []
    for label in [*labels, *(a for a in labels_of(records) if a not in labels)]:
        for seed in sorted(seeds):
            got = reached.get((label, seed))
            if got is None:
                missing.append(f"{label}, seed {seed}: not there")
            elif got < goal:
                missing.append(f"{label}, seed {seed}: up to round {got}")
    if not missing:
        return ""
    more = f"; and {len(missing) - 12} more" if len(missing) > 12 else ""
    return (
        f"This study is not complete: some runs ended before round {goal} "
        f"({'; '.join(missing[:12])}{more}). What is there is shown. Of each "
        "algorithm, only the seeds that got furthest count."
    )


def _goal(records: Records) -> int:
    rounds = records.study.get("run", {}).get("rounds")
    return rounds if isinstance(rounds, int) else 0


def _result_section(records: Records, table: pd.DataFrame) -> str:
    score = score_of(records)
    verdict, best = _verdict(records, table)
    local = baseline_of(records)
    headers = ["algorithm", "mean", "± s.e.", "weighted mean", "worst client"]
    headers += ["worst tenth", "better than local", "gradients", "bytes", "rounds"]
    rows = []
    for label, row in table.iterrows():
        error, share = row["standard_error"], row["better_than_local"]
        cells = [str(label), score.show(row["mean"])]
        short = score.show(error) if score.ticks else f"{error:.2g}"
        cells += [short if np.isfinite(error) else "unknown"]
        cells += [score.show(row[k]) for k in ("weighted_mean", "worst_client")]
        cells += [score.show(row["worst_decile"])]
        cells += [f"{100 * share:.0f} %" if np.isfinite(share) else "–"]
        cells += [_large(row["gradients"]), _bytes(row["bytes"]), f"{row['round']:.0f}"]
        rows.append(cells)
    marked = list(table.index).index(best) if best is not None else None
    way = "higher" if score.sign > 0 else "lower"
    caption = (
        f"{score.words.capitalize()} at the last round ({way} is better), "
        "mean over seeds. Costs are totals over all clients."
    )
    text = f"<p>{escape(verdict)}</p>"
    if local is None:
        text += "<p>No local baseline was run, so nothing says who gains over it.</p>"
    if int(table["seeds"].max()) == 1:
        text += "<p>There is a single seed: the spread over seeds is unknown.</p>"
    bad = [str(a) for a in table.index if not np.isfinite(table.loc[a, "mean"])]
    if bad:
        text += (
            f'<p class="notice">Scores of {escape(", ".join(bad))} are not all '
            "finite numbers: training diverged or was not evaluated.</p>"
        )
    return text + _table(headers, rows, caption, marked=marked)


def _verdict(records: Records, table: pd.DataFrame) -> tuple[str, str | None]:
    """What the means say in one sentence, and the label of a clear best, if any.

    The best is clear when its lead over the next exceeds the standard error of their
    difference, paired by seed, and both ran equally long.
    """
    score = score_of(records)
    ranked = _ranked(table["mean"], score.sign)
    if not ranked:
        return "No algorithm has a mean test score.", None
    first, best = ranked[-1]
    if len(ranked) == 1:
        return f"The mean {score.words} of {first} is {score.show(best)}.", None
    second, next_best = ranked[-2]
    ours = final_scores(records, first).mean(axis=1, skipna=False)
    theirs = final_scores(records, second).mean(axis=1, skipna=False)
    lead = (score.sign * (ours - theirs)).dropna()
    means = f"{first} has the best mean {score.words}, {score.show(best)}, "
    means += f"and {second} comes next with {score.show(next_best)}"
    if table["round"].loc[[first, second]].nunique() > 1:
        return f"{means}; they ran for different numbers of rounds.", None
    if len(lead) < 2:
        return f"{means}; without two seeds of both, chance cannot be ruled out.", None
    mean, error = float(lead.mean()), _standard_error(lead)
    size = f"a mean difference of {score.show_gain(mean)} "
    size += f"with a standard error of {score.show_gain(error).lstrip('+')} "
    size += f"over {len(lead)} seeds"
    if mean > error:
        return f"{means}: {size}.", first
    return f"{means}, but the two cannot be told apart: {size}.", None


def _ranked(column: pd.Series, sign: int) -> list[tuple[str, float]]:
    """Labels and values that are numbers, the best last."""
    pairs = [(str(label), float(v)) for label, v in column.items() if np.isfinite(v)]
    return sorted(pairs, key=lambda pair: sign * pair[1])


def _gains_section(records: Records, table: pd.DataFrame) -> str:
    score, local = score_of(records), baseline_of(records)
    others = [label for label in labels_of(records) if label != local]
    if local is None:
        return "<p>No local baseline was run, so gains and losses are not known.</p>"
    if not others:
        return "<p>Only training alone was run; there is nothing to compare.</p>"
    rows, losers = [], {}
    for label in others:
        gained = final_gains(records, label)
        more, less, equal = count_gains(gained)
        mean = gained.mean(skipna=False)
        cells = [label, str(more), str(less), str(equal)]
        cells += [str(len(mean) - more - less - equal)]
        cells += [score.show_gain(mean.mean(skipna=False))]
        worst = mean.min()
        lost = f"{score.show_gain(worst)} (client {mean.idxmin()})" if less else "none"
        rows.append([*cells, lost])
        losers[label] = less
    count = final_scores(records, local).shape[1]
    fewest = min(losers.values())
    kindest = [label for label, less in losers.items() if less == fewest]
    losing = f"{fewest} of {count} clients do worse than alone"
    losing = losing if fewest else "no client does worse than alone"
    sentence = f"With {_joined(kindest)}, {losing}"
    most = max(losers.values())
    if most > fewest:
        hardest = [label for label, less in losers.items() if less == most]
        sentence += f"; with {_joined(hardest)}, {most} do"
    headers = ["algorithm", "gain", "lose", "equal", "not comparable"]
    headers += ["mean change", "largest loss"]
    # A column that only unlucky studies need.
    if all(row[4] == "0" for row in rows):
        headers, rows = headers[:4] + headers[5:], [row[:4] + row[5:] for row in rows]
    caption = f"Clients with a better, worse and equal {score.words} than {local}."
    uneven = "These runs ended at different rounds, so like is not compared with like."
    uneven = f'<p class="notice">{uneven}</p>' if table["round"].nunique() > 1 else ""
    return (
        f"<p>{escape(sentence)}.</p>{uneven}"
        + _table(headers, rows, caption)
        + _plot(
            gains(records), "gains-figure", "Difference to training alone by client"
        )
    )


def _curves_section(records: Records, table: pd.DataFrame) -> str:
    score = score_of(records)
    ranked = _ranked(table["mean"], score.sign)
    text = ""
    if ranked:
        (low, least), (high, most) = ranked[0], ranked[-1]
        text = f"At the last round the mean {score.words} goes from "
        text += f"{score.show(least)} ({low}) to {score.show(most)} ({high}). "
    sent = table["bytes"].dropna()
    if len(sent) and sent.max() > sent.min():
        text += f"{sent.idxmax()} sent the most, {_bytes(sent.max())}, "
        text += f"and {sent.idxmin()} the least, {_bytes(sent.min())}. "
    several = int(table["seeds"].max()) > 1
    band = "The band reaches from the lowest to the highest seed. "
    alone = "There is one seed, so there is no band: the spread over seeds is unknown. "
    text += band if several else alone
    text += "Click a name to hide or show it."
    figure = _plot(curves(records), "curves-figure", "Test score and loss over time")
    return f"<p>{escape(text)}</p>{figure}"


def _spread_section(records: Records, table: pd.DataFrame) -> str:
    score = score_of(records)
    count = final_scores(records, labels_of(records)[0]).shape[1]
    tenth = -(-count // 10)
    ranked = _ranked(table["worst_decile"], score.sign)
    text = ""
    if ranked:
        (low, least), (high, most) = ranked[0], ranked[-1]
        text = f"The worst tenth of the clients ({tenth} of {count}) fares best with "
        text += f"{high} (mean {score.words} {score.show(most)})"
        text += f" and worst with {low} ({score.show(least)})" if low != high else ""
        text += ". "
    text += "The box holds the middle half of the clients; whiskers reach to the "
    text += "extremes. Scores that are not finite are not drawn."
    figure = _plot(spread(records), "spread-figure", "Final test scores by algorithm")
    return f"<p>{escape(text)}</p>{figure}"


def _partners_section(records: Records) -> str:
    labels = [a for a in labels_of(records) if any(a == b for b, _ in records.weights)]
    if not labels:
        return "<p>No algorithm of this study recorded collaboration weights.</p>"
    counts = partner_counts(records)
    last = counts.groupby("algorithm").last()
    last = last.loc[labels]
    (low, least), (high, most) = (_ranked(last["all"], 1)[j] for j in (0, -1))
    text = f"At the end a client of {high} learns on average from {most:.1f} others"
    text += f", and a client of {low} from {least:.1f}." if low != high else "."
    known = bool(last["inside"].notna().any())
    columns = ["all", "inside", "outside"] if known else ["all"]
    headers = ["algorithm", "others", "in own cluster", "outside"][: len(columns) + 1]
    rows = [
        [str(label), *(f"{row[name]:.1f}" for name in columns)]
        for label, row in last.iterrows()
    ]
    caption = "Others with a positive weight in the last snapshot, mean over clients."
    parts = [f"<p>{escape(text)}</p>", _table(headers, rows, caption)]
    if is_crowd(records):
        parts.append(f"<p>Matrices of more than {CROWD} clients are not drawn.</p>")
    else:
        parts.append(_matrices(records, labels))
    figure = _plot(partners(records), "partners-figure", "Number of partners by round")
    return "".join([*parts, figure])


def _matrices(records: Records, labels: list[str]) -> str:
    """A list to choose an algorithm from, and a figure for each."""
    local = baseline_of(records)
    options, figures = [], []
    # Training alone is the least telling matrix: last.
    for number, label in enumerate(sorted(labels, key=lambda a: a == local)):
        key = f"collaboration-{number}"
        options.append(f'<option value="{key}">{escape(label)}</option>')
        drawn = collaboration(records, label)
        words = f"Collaboration matrix of {label} over rounds"
        figures.append(_plot(drawn, key, words, group="matrix", hidden=number > 0))
    known = (records.clients["cluster"] >= 0).any()
    order = " Clients are ordered by true cluster; lines are the boundaries."
    return (
        "<p>A dark square in row i and column k: client i gives a large weight to "
        f"client k.{order if known else ''} The darkest colour stands for the largest "
        "weight given to another client, or more.</p>"
        '<p><label>Algorithm <select data-chooses="matrix" autocomplete="off">'
        f"{''.join(options)}</select></label></p>{''.join(figures)}"
    )


def _clients_section(records: Records) -> str:
    score, table = score_of(records), by_cluster(population(records))
    known = int(table.loc[table["cluster"] >= 0, "cluster"].nunique())
    text = f"{len(table):,} client{'s' * (len(table) != 1)}"
    text += f" in {known} known cluster{'s' * (known != 1)}" if known else ""
    text += "" if known else "; their true clusters are not known"
    sizes = table["train"]
    text += f". They have {sizes.min():,.0f} to {sizes.max():,.0f} training samples, "
    text += f"{sizes.median():,.0f} at the median."
    untested = int((~table["tested"]).sum())
    text += f" {untested} lack test samples and are left out." if untested else ""
    varied = records.clients.groupby("client")[["cluster", "train", "test"]].nunique()
    if (varied > 1).any(axis=None):
        text += " The data were split anew for every seed: sizes are means over seeds, "
        text += "and a client whose cluster changes counts as of unknown cluster."
    labels = labels_of(records)
    finals = {a: final_scores(records, a).mean(skipna=False) for a in labels}
    means = {a: cluster_means(records, values) for a, values in finals.items()}
    rows = []
    for cluster, members in table.groupby("cluster", sort=False):
        cells = [cluster_name(int(str(cluster))), f"{len(members):,}"]
        cells += [f"{members[p].sum():,.0f}" for p in ("train", "validation", "test")]
        cells += [score.show(float(means[a].loc[cluster])) for a in labels]
        rows.append(cells)
    headers = ["cluster", "clients", "train", "validation", "test", *labels]
    caption = f"Samples, and mean {score.words} at the last round, by cluster."
    figure = _plot(clients(records), "clients-figure", "Data and score by client")
    return f"<p>{escape(text)}</p>{_table(headers, rows, caption)}{figure}"


def _made_section(records: Records) -> str:
    study = _storable(records.study)
    # The note describes the data; it is no option that a study could set.
    if isinstance(study.get("data"), dict):
        study["data"].pop("note", None)
    configuration = tomli_w.dumps(study)
    return (
        "<p>Everything above is computed from the study's records. Test data chose "
        "nothing: no round, no step size and no seed. Scores are those of the last "
        "round, whatever the rounds before it showed.</p>"
        "<p>To make it again, save the following as <code>study.toml</code> and run"
        f"</p><pre>coterie run study.toml</pre><pre>{escape(configuration)}</pre>"
    )


def _storable(value: Any) -> Any:
    """The value as TOML can hold it; None is left out, the unknown becomes text."""
    if isinstance(value, dict):
        return {str(k): _storable(v) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [_storable(v) for v in value if v is not None]
    if isinstance(value, np.generic | np.ndarray):
        return _storable(value.tolist())
    return value if isinstance(value, bool | int | float | str) else str(value)


def _plot(
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


def _table(
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


def _joined(names: list[str]) -> str:
    """The names as a list in a sentence."""
    head, last = names[:-1], names[-1]
    return f"{', '.join(head)} and {last}" if head else last


def _large(value: float) -> str:
    return f"{value:,.0f}" if np.isfinite(value) else "unknown"


def _bytes(value: float) -> str:
    """A number of bytes in decimal units."""
    if not np.isfinite(value):
        return "unknown"
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.3g} TB"
