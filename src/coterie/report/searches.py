"""The search of [tune]: a figure of all settings, and sections of a page."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from markupsafe import Markup

from ..checks import InputError, several
from ..records import Records, rungs
from ..scores.axes import Axis, axis_of
from ..scores.finals import score_of
from ..scores.words import join_names
from .html import render
from .styles import (
    PlotSpec,
    button,
    escape,
    finish,
    log_ticks,
    nest_keys,
    row_of,
    styles_of,
)
from .tables import last_trials, search_spaces, setting_text, tuned_options, value_text


def trials(records: Records) -> go.Figure:
    """The last validation score of every setting that was tried, against its options.

    A star is a setting that was chosen. A hollow dot is a setting that was dropped
    after fewer rounds. Settings that could not be trained are not drawn.

    Raises:
        InputError: if nothing was tried.
    """
    score, table, axis = score_of(records), last_trials(records), axis_of(records)
    if table.empty:
        raise InputError("the records have no trials, which a study with [tune] has.")
    options = [o for o in tuned_options(records) if table[o].notna().any()]
    labels = [a for a in styles_of(records) if a in set(table["algorithm"])]
    views = [_view(table, option, labels) for option in options]
    traces = []
    for label, x in zip(labels, views[0][0], strict=True):
        mine = table[table["algorithm"] == label]
        trace = {
            "type": "scatter",
            "x": x,
            "y": mine["score"].to_numpy(),
            "mode": "markers",
            "name": escape(label),
            "marker": {
                "color": styles_of(records)[label].colour,
                "symbol": [_SYMBOLS.get(s, "circle-open") for s in mine["status"]],
                "size": [15 if s == "chosen" else 8 for s in mine["status"]],
            },
            "hovertext": [
                f"{escape(setting_text(row[options]))}<br>seed {row['seed']}, "
                f"{axis.length(int(row['rounds']))}"
                for _, row in mine.iterrows()
            ],
            "hovertemplate": f"%{{hovertext}}<br>%{{y:{score.hover}}}",
        }
        traces.append(trace)
    words = escape(f"validation {score.words.removeprefix('test ')}")
    looks: PlotSpec = {"yaxis": {"title": {"text": words}, "tickformat": score.ticks}}
    looks["yaxis"]["zeroline"] = False
    looks |= nest_keys(views[0][1])
    if len(options) > 1:
        buttons = [
            button(f"by {option}", {"x": x}, layout)
            for option, (x, layout) in zip(options, views, strict=True)
        ]
        looks["updatemenus"] = [row_of(buttons)]
    title = "Validation score of every setting that was tried"
    return finish(traces, looks, title, 420, menu=len(options) > 1)


_SYMBOLS = {"finished": "circle", "chosen": "star"}
_FEW = 6
"""Up to this number of values, each value has a tick."""

_APART = 12
"""Up to this number of values, values that include 0 can stand at equal distances."""


def _view(
    table: pd.DataFrame, option: str, labels: list[str]
) -> tuple[list[list[object]], dict[str, object]]:
    """The positions of each algorithm's settings along an option, and its axis."""
    mine = [table.loc[table["algorithm"] == label, option] for label in labels]
    told = [[_plain_value(value) for value in values] for values in mine]
    values = list(dict.fromkeys(v for some in told for v in some if v is not None))
    scale = _scale(values)
    ticks = values if any(isinstance(v, str) for v in values) else sorted(values)
    if scale == "log" and len(ticks) > _FEW:
        ticks = log_ticks(ticks[0], ticks[-1])
    axis: dict[str, object] = {"title.text": option, "autorange": True}
    axis |= {"type": "log" if scale == "log" else "linear", "tickmode": "auto"}
    if scale != "linear" or len(ticks) <= _FEW:
        axis |= {"tickmode": "array", "tickvals": ticks}
        axis["ticktext"] = [escape(_shorten(value_text(tick))) for tick in ticks]
    if scale == "log":
        axis["title.text"] = f"{option} (logarithmic)"
    if scale == "apart":
        axis["tickvals"] = list(range(len(ticks)))
        shift = np.linspace(-0.25, 0.25, len(labels)) if len(labels) > 1 else [0.0]
        told = [
            [None if v is None else ticks.index(v) + float(by) for v in some]
            for by, some in zip(shift, told, strict=True)
        ]
    return told, {f"xaxis.{key}": value for key, value in axis.items()}


def _plain_value(value: object) -> Any:
    """A number, or a value as text, or None if a setting has no such option."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value if np.isfinite(value) else None
    return None if value is None else value_text(value)


def _scale(values: list[Any]) -> str:
    """The kind of axis: "linear", "log" or "apart".

    Positive numbers that differ tenfold have a logarithmic axis. If they include 0, or
    if there are words, values stand apart: at equal distances, and at each value the
    algorithms stand side by side.
    """
    if any(isinstance(value, str) for value in values):
        return "apart"
    wide = max(values) >= 10 * min((v for v in values if v > 0), default=np.inf)
    if wide and min(values) > 0:
        return "log"
    return "apart" if wide and min(values) == 0 and len(values) <= _APART else "linear"


def _shorten(text: str) -> str:
    return text if len(text) <= 18 else f"{text[:17]}…"


def chosen_section(records: Records) -> Markup:
    """The section about [tune], or nothing without it."""
    tune, table = records.study.get("tune"), records.trials
    if tune is None:
        return Markup()
    statuses = list(table["status"]) if len(table) else []
    rounds = tune["rounds"] or records.study["run"].get("rounds", 100)
    return render(
        "chosen.html",
        tune=tune,
        score=score_of(records),
        axis=axis_of(records),
        rungs=rungs(tune["trials"], rounds, tune["halving"]),
        failed=statuses.count("failed"),
        dropped="dropped" in statuses,
        choices=[f"chosen, seed {s}" for s in sorted(set(records.metrics["seed"]))],
        rows=_chosen_rows(records),
        drawn=trials(records) if len(last_trials(records)) else None,
    )


def _chosen_rows(records: Records) -> list[list[str]]:
    """What was searched and chosen: a row for each algorithm and option."""
    table, axis = records.trials, axis_of(records)
    seeds, rows = sorted(set(records.metrics["seed"])), []
    for label, space in search_spaces(records).items():
        mine = table[table["algorithm"] == label] if len(table) else table
        best = mine[mine["status"] == "chosen"].set_index("seed") if len(mine) else mine
        for option in [o for o in mine if o in space] if len(mine) else space:
            cells = [label, option, _range_text(space[option])]
            cells += [
                value_text(best.loc[seed, option]) if seed in best.index else "–"
                for seed in seeds
            ]
            rows.append([*cells, *_search_cost(mine, axis)])
        if not space:
            rows.append([label, "as written", *["–"] * (3 + len(seeds))])
    return rows


def settings_text(records: Records) -> str:
    """A few sentences on the settings that were found automatically, or nothing."""
    if not records.settings:
        return ""
    found = records.settings
    own = _either(each.decay for each in found)
    shared = _either(each.shared_decay for each in found)
    how = "of Adam on minibatches"
    if found[0].linear:
        how = "on all data of a client, of size 1 / curvature"
    last = records.rounds.groupby(["algorithm", "seed"])["gradients"].max()
    cost = sum(each.gradients for each in found) / max(1.0, last.sum())
    text = f"Settings were found automatically: steps {how}, with weight decay "
    text += f"{own} / samples"
    if shared != own:
        text += f" ({shared} / samples where clients share a model)"
    if "rounds" not in records.study["run"]:
        text += f", and {several(int(records.rounds['round'].max()), 'round')}"
    text += (
        f". Finding them took {cost:.0%} of the gradients of training. Options that "
    )
    text += "the study gives stayed as they are."
    smaller = list(dict.fromkeys(label for each in found for label in each.reduced))
    if smaller:
        text += f" Steps of {join_names(smaller)} were too large and were reduced."
    return text


def _either(values: Iterable[float]) -> str:
    """The distinct values, such as "1 or 10"."""
    return " or ".join(f"{value:g}" for value in sorted(set(values)))


def settings_section(records: Records) -> Markup:
    """The section about settings that were found before training, or nothing."""
    if not records.settings:
        return Markup()
    score, tried = score_of(records), list(records.settings[0].scores)
    rows = [
        [
            *(str(each.seed), kind),
            *(score.show(scores[k]) if k in scores else "–" for k in tried),
            f"{decay:g}",
        ]
        for each in records.settings
        for kind, scores, decay in (
            ("own", each.scores, each.decay),
            ("shared", each.shared_scores, each.shared_decay),
        )
    ]
    return render(
        "settings.html",
        text=settings_text(records),
        score=score,
        tried=[f"k = {k}" for k in tried],
        rows=rows,
    )


def _search_cost(mine: pd.DataFrame, axis: Axis) -> list[str]:
    """The number of settings and the length of training per search, as cells."""
    if mine.empty:
        return ["–", "–"]
    by_seed = mine.groupby("seed")
    pairs = [by_seed["trial"].nunique(), axis.period * by_seed["spent"].sum()]
    ends = [(f"{counts.min():,.8g}", f"{counts.max():,.8g}") for counts in pairs]
    return [a if a == b else f"{a} to {b}" for a, b in ends]


def _range_text(values: Any) -> str:
    """The list or range that was searched, in words."""
    if not isinstance(values, dict):
        return ", ".join(value_text(value) for value in values)
    low, high = value_text(values["from"]), value_text(values["to"])
    return f"{low} to {high}" + (" (log)" if values["scale"] == "log" else "")
