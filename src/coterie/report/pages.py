"""One HTML page that answers who gains, who loses and who learned with whom.

The page is a function of a study's records. It holds all it needs, plotly.js too, and
its content security policy forbids it to fetch anything: it opens from disk, offline.
"""

from __future__ import annotations

import re
from html import escape, unescape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import tomli_w
from plotly.offline import get_plotlyjs

from ..checks import InputError
from ..data.given import GIVEN
from ..records import Records, replacing
from ..records.cells import CONSTANT
from ..scores.axes import axis_of, in_seconds
from ..scores.baselines import (
    baseline_labels,
    baseline_summary,
    baseline_words,
    is_constant,
)
from ..scores.failures import failures
from ..scores.finals import (
    Score,
    baseline_of,
    final_scores,
    labels_of,
    score_of,
    shown,
)
from ..scores.gains import Gain, gain_of
from ..scores.keeping import keeping
from ..scores.summaries import ranking, summary
from ..scores.words import in_bytes, joined, large, seconds_of, some_of
from .figures import gains, spread
from .headlines import best_of, certainty_text, details, interval_text
from .html import document, page, table_of
from .matrices import graph_section, partners_section
from .opening.screens import first_screen
from .privacy import officer_section, privacy_section
from .progress import curves, sharpness_section
from .searches import chosen_section, settings_section
from .sections import (
    clients_section,
    measures_section,
    newcomers_section,
    time_section,
)
from .styles import plot
from .tables import at_equal_cost


def write_report(records: Records, path: Path) -> Path:
    """The path of the page, which is there in full or not at all.

    Raises:
        InputError: when the records hold no results.
    """
    if records.metrics.empty:
        raise InputError("the records hold no results yet; there is nothing to report.")
    document = _document(keeping(records))
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write_text(document, encoding="utf-8")
    return path


def write_figure(figure: go.Figure, path: Path | str) -> Path:
    """The path of a page that shows the figure, opens offline and holds plotly.js.

    Raises:
        InputError: when the path does not end in .html.
    """
    path = Path(path)
    if path.suffix != ".html":
        raise InputError(f"`path` of a figure must end in .html, but is {str(path)!r}.")
    title = unescape(re.sub("<.*?>", "", figure.layout.title.text or "Figure"))
    body = f"<main>{plot(figure, 'figure', title)}</main>"
    text = document(title, body, library=get_plotlyjs())
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write_text(text, encoding="utf-8")
    return path


def _document(records: Records) -> str:
    table = summary(records)
    sections = {
        "summary": ("Result", _result_section(records, table)),
        "gains": ("Who gains and who loses", _gains_section(records, table)),
        "curves": ("Progress", _curves_section(records, table)),
        "sharpness": ("Step sizes", sharpness_section(records)),
        "time": ("Time", time_section(records)),
        "spread": ("Spread and worst clients", _spread_section(records, table)),
        "measures": ("Measures and mistakes", measures_section(records)),
        "graph": ("The graph", graph_section(records)),
        "collaboration": ("Who learned with whom", partners_section(records)),
        "privacy": ("Privacy", privacy_section(records) + officer_section(records)),
        "newcomers": ("Newcomers", newcomers_section(records)),
        "clients": ("The clients", clients_section(records)),
        "chosen": ("What was chosen, and from what", chosen_section(records)),
        "settings": ("Settings that chose themselves", settings_section(records)),
        "made": ("How this was made", _made_section(records)),
    }
    sections = {key: section for key, section in sections.items() if section[1]}
    title = str(records.study.get("name", "Study"))
    return page(title, first_screen(records, table), sections, get_plotlyjs())


def _setting(records: Records) -> str:
    """Data, clients, model, seeds and versions of a study."""
    study = records.study
    seeds = sorted(records.metrics["seed"].unique())
    lines = {
        "Data": _described(study.get("data")),
        "Split": _described(study.get("split")),
        "Clients": _counted(records),
        "Model": _described(study.get("model")),
        "Task": records.task,
        "Virtual time": _described(_set(study.get("time"))),
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
    return f"<dl>{items}</dl>{note}"


def _set(table: object) -> object:
    """The table without what is empty or zero, which means that there is none."""
    if not isinstance(table, dict):
        return table
    return {key: value for key, value in table.items() if value}


def _counted(records: Records) -> str:
    """How many clients there are, and how many of them joined only after training."""
    held = records.study.get("run", {}).get("newcomers", 0)
    if not held:
        return f"{records.clients['client'].nunique():,}"
    count = int(records.clients.groupby("seed").size().max()) + held
    return f"{count:,}, of whom {held:,} are held out of training"


def _described(table: object) -> str:
    """A table of the configuration as one line: its name, then its options."""
    if not isinstance(table, dict):
        return "" if table is None else str(table)
    options = {k: v for k, v in table.items() if k not in ("name", "note")}
    options = {k: v for k, v in options.items() if v is not None}
    text = ", ".join(f"{key} = {_shortened(value)}" for key, value in options.items())
    name = str(table.get("name", ""))
    return f"{name} ({text})" if name and text else name or text


def _shortened(value: object) -> str:
    """A value as text; of a long list, such as one entry per client, the beginning."""
    if isinstance(value, list) and len(value) > 12:
        return f"[{', '.join(map(str, value[:6]))}, ... {len(value)} values]"
    return str(value)


def _result_section(records: Records, table: pd.DataFrame) -> str:
    score, axis = score_of(records), axis_of(records)
    best = best_of(records, table)[1]
    headers = ["algorithm", "mean", "± s.e.", "gain over local", "95 % interval"]
    headers += ["gain / lose / not sure", "weighted mean"]
    headers += ["worst client", "worst tenth"]
    rows = [_score_cells(records, score, row) for _, row in table.iterrows()]
    beside = baseline_summary(records)
    if len(beside):
        rows.append(["Baselines"])
        rows += [_score_cells(records, score, row) for _, row in beside.iterrows()]
    marked = list(table.index).index(best) if best is not None else None
    way = "higher" if score.sign > 0 else "lower"
    caption = (
        f"{score.heading} {axis.end} ({way} is better), "
        "mean over seeds. Standard errors and intervals count seeds and test samples "
        "where these were kept. Clients gain or lose beyond their own intervals."
    )
    answers = details(records, table).items()
    items = "".join(f"<dt>{key}</dt><dd>{escape(text)}</dd>" for key, text in answers)
    text = f"<dl>{items}</dl>"
    if int(table["seeds"].max()) == 1:
        text += "<p>There is a single seed: the spread over seeds is unknown.</p>"
    for reason in failures(records).values():
        text += f'<p class="notice">{escape(reason)} It is not ranked.</p>'
    bad = [str(a) for a in table.index if not np.isfinite(table.loc[a, "mean"])]
    if bad:
        text += (
            f'<p class="notice">Scores of {escape(", ".join(bad))} are not all '
            "finite numbers: training diverged or was not evaluated.</p>"
        )
    text += table_of(headers, rows, caption, marked=marked)
    return text + _baselines_part(records) + _costs_table(records, table)


def _score_cells(records: Records, score: Score, row: pd.Series) -> list[str]:
    """Scores of a method or a baseline, by name."""
    failed = " (failed)" if row["failed"] else ""
    cells = [shown(records, str(row.name)) + failed, score.show(row["mean"])]
    cells += [score.show_error(row["standard_error"]), *_gain_cells(score, row)]
    some = ("weighted_mean", "worst_client", "worst_decile")
    return [*cells, *(score.show(row[k]) for k in some)]


def _baselines_part(records: Records) -> str:
    """What the baselines are, and which ones are not there."""
    labels = baseline_labels(records)
    what = "mean" if records.task == "regression" else "class frequencies"
    said = [
        "Baselines are never ranked. The constant predicts the "
        f"{what} of each client's training data."
    ] * bool(labels)
    others = [
        f"{label} is {baseline_words(records, label)}"
        for label in labels
        if label != CONSTANT
    ]
    if others:
        said.append(
            "The others are models of scikit-learn on the same features and training "
            f"data: {joined(others)}."
        )
    said += records.left_out
    return f'<p class="caption">{escape(" ".join(said))}</p>' if said else ""


def _costs_table(records: Records, table: pd.DataFrame) -> str:
    """Gradients, bytes and time of every method."""
    counts = {"round": large}
    if axis_of(records).timed:
        counts = {"updates": large, "time": in_seconds}
    counts = {name: show for name, show in counts.items() if name in table}
    headers = ["algorithm", "gradients", "bytes", "training time"]
    headers += [{"time": "virtual time", "round": "rounds"}.get(c, c) for c in counts]
    rows = [
        [shown(records, str(label)), large(row["gradients"]), in_bytes(row["bytes"])]
        + [seconds_of(row["seconds"], "–")]
        + [show(row[name]) for name, show in counts.items()]
        for label, row in table.iterrows()
    ]
    caption = "What it cost: totals over all clients; training time is the median over "
    return table_of(headers, rows, f"{caption}seeds.")


def _gain_cells(score: Score, row: pd.Series) -> list[str]:
    """What is gained over training alone, its interval, and how many clients do."""
    if not np.isfinite(row["gain"]):
        return ["–", "–", "–"]
    counts = " / ".join(f"{row[k]:.0f}" for k in ("gaining", "losing", "cannot_tell"))
    shown = (
        score.show_gain(row["gain"]),
        score.show_interval(row["gain_low"], row["gain_high"]),
    )
    return [*(text.removesuffix(" points") for text in shown), counts]


def _gains_section(records: Records, table: pd.DataFrame) -> str:
    score, local = score_of(records), baseline_of(records)
    others = [label for label in labels_of(records) if label != local]
    if local is None:
        return "<p>No local baseline was run, so gains and losses are not known.</p>"
    if not others:
        return "<p>Only training alone was run; there is nothing to compare.</p>"
    others = [label for label in others if not {label, local} & {*failures(records)}]
    if not others:
        return "<p>Training failed, so there is nothing to compare.</p>"
    found = {label: gain_of(records, label) for label in others}
    rows = [_gains_row(records, label, gain) for label, gain in found.items()]
    losers = {label: gain.counts()["loses"] for label, gain in found.items()}
    count = final_scores(records, local).shape[1]
    fewest = min(losers.values())
    kindest = [label for label, less in losers.items() if less == fewest]
    losing = f"{fewest} of {count} clients do worse than alone"
    losing = losing if fewest else "no client surely does worse than alone"
    sentence = f"With {joined(kindest)}, {losing}"
    most = max(losers.values())
    if most > fewest:
        hardest = [label for label, less in losers.items() if less == most]
        sentence += f"; with {joined(hardest)}, {most} do"
    sentence += ". A client gains or loses where the 95 % interval of its difference "
    sentence += "does not reach over zero; faint bars are of those where it does: we "
    sentence += f"are not sure. {certainty_text(records, found[others[-1]])}"
    headers = ["algorithm", "gain", "lose", "not sure", "not comparable"]
    headers += ["mean change", "95 % interval", "lose"]
    # A column that only unlucky studies need.
    if all(row[4] == "0" for row in rows):
        headers, rows = headers[:4] + headers[5:], [row[:4] + row[5:] for row in rows]
    caption = f"Clients with a better and a worse {score.words} than {local}."
    uneven = f"These runs ended at different {axis_of(records).name}s, so like is "
    uneven += "not compared with like."
    uneven = f'<p class="notice">{uneven}</p>' if table["round"].nunique() > 1 else ""
    empty = [label for label in others if is_constant(records, label)]
    if empty:
        text = f"A constant prediction is as good as {joined(empty)}, so what clients "
        text += "gain over training alone with it is worth nothing yet."
        uneven += f'<p class="notice">{escape(text)}</p>'
    return (
        f"<p>{escape(sentence)}</p>{uneven}"
        + table_of(headers, rows, caption)
        + plot(gains(records), "gains-figure", "Difference to training alone by client")
    )


def _gains_row(records: Records, label: str, gain: Gain) -> list[str]:
    """How many clients gain and lose, how much, and who loses."""
    counts = gain.counts()
    cells = [shown(records, label), *(str(count) for count in counts.values())]
    cells += [str(len(gain.clients) - sum(counts.values()))]
    cells += [score_of(records).show_gain(gain.mean)]
    cells += [interval_text(records, gain).removeprefix("95 % interval ")]
    who = [records.short_name(client) for client in gain.who("loses")]
    return [*cells, some_of(who) if who else "nobody"]


def _curves_section(records: Records, table: pd.DataFrame) -> str:
    score, axis = score_of(records), axis_of(records)
    ranked = ranking(table["mean"], score.sign)
    text = ""
    if ranked:
        (low, least), (high, most) = ranked[0], ranked[-1]
        text = f"{axis.end.capitalize()}{',' * axis.timed} the mean {score.words} "
        text += "goes from "
        text += f"{score.show(least)} ({low}) to {score.show(most)} ({high}). "
    sent = table["bytes"].dropna()
    if len(sent) and sent.max() > sent.min():
        text += f"{sent.idxmax()} sent the most, {in_bytes(sent.max())}, "
        text += f"and {sent.idxmin()} the least, {in_bytes(sent.min())}. "
    several = int(table["seeds"].max()) > 1
    band = "The band reaches from the lowest to the highest seed. "
    alone = "There is one seed, so there is no band: the spread over seeds is unknown. "
    text += band if several else alone
    text += "Click a name to hide or show it."
    figure = plot(curves(records), "curves-figure", "Test score and loss over time")
    return f"<p>{escape(text)}</p>{figure}{_equal_costs(records, table)}"


def _equal_costs(records: Records, table: pd.DataFrame) -> str:
    """The score of every algorithm when it had spent what the cheapest one spends."""
    score = score_of(records)
    columns, headers = [], ["algorithm"]
    for cost, show in (("updates", large), ("gradients", large), ("bytes", in_bytes)):
        if cost in records.rounds:
            budget, means = at_equal_cost(records, cost)
            if budget > 0:
                headers.append(f"after {show(budget)} {cost}".replace("B bytes", "B"))
                columns.append(means)
    if not columns:
        return ""
    headers.append(axis_of(records).end)
    rows = [
        [str(label)]
        + [score.show(means.get(label, np.nan)) for means in columns]
        + [score.show(table.loc[label, "mean"])]
        for label in table.index
    ]
    caption = (
        f"{score.heading} at equal cost: the last evaluation of each "
        "algorithm before it had spent more than the cheapest one does in all. "
        "Losses that a method evaluates, and tuning before use, count as no gradients."
    )
    return table_of(headers, rows, caption)


def _spread_section(records: Records, table: pd.DataFrame) -> str:
    score = score_of(records)
    count = final_scores(records, labels_of(records)[0]).shape[1]
    tenth = -(-count // 10)
    ranked = ranking(table["worst_decile"], score.sign)
    text = ""
    if ranked:
        (low, least), (high, most) = ranked[0], ranked[-1]
        text = f"The worst tenth of the clients ({tenth} of {count}) fares best with "
        text += f"{high} (mean {score.words} {score.show(most)})"
        text += f" and worst with {low} ({score.show(least)})" if low != high else ""
        text += ". "
    text += "The box holds the middle half of the clients; whiskers reach to the "
    text += "extremes. Scores that are not finite are not drawn."
    figure = plot(spread(records), "spread-figure", "Final test scores by algorithm")
    return f"<p>{escape(text)}</p>{figure}"


def _made_section(records: Records) -> str:
    study = _storable(records.study)
    # The note describes the data; it is no option that a study could set.
    if isinstance(study.get("data"), dict):
        study["data"].pop("note", None)
    configuration, axis = tomli_w.dumps(study), axis_of(records)
    again = "save the following as <code>study.toml</code> and run"
    command = "coterie run study.toml"
    if study.get("data", {}).get("name") == GIVEN:
        again = "make a study of the following tables and the same data, in Python:"
        command = "co.run_study(co.study_of(tables, data=...))"
    return (
        f"{_setting(records)}"
        "<p>Everything above is computed from the study's records. Test data chose "
        f"nothing: no {axis.name}, no step size and no seed. Scores are those "
        f"{axis.end}, whatever came before it.</p>"
        f"<p>To make it again, {again}</p><pre>{command}</pre>"
        f"<pre>{escape(configuration)}</pre>"
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
