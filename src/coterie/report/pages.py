"""The report: one HTML page on who gains, who loses and who learned with whom.

The page is a function of a study's records. The page contains everything it needs, also
plotly.js, and its content security policy forbids it to fetch anything. So it opens
offline.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import tomli_w
from markupsafe import Markup
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
from ..scores.caching import with_cache
from ..scores.failures import failures
from ..scores.finals import (
    Score,
    display_label,
    final_scores,
    labels_of,
    local_label,
    score_of,
)
from ..scores.gains import Gain, gain_of
from ..scores.summaries import ranking, summary
from ..scores.words import in_bytes, large, seconds_of, some_of
from .figures import gains, spread
from .headlines import best_of, certainty_text, details, interval_text
from .html import render
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
from .tables import at_equal_cost


def write_report(records: Records, path: Path) -> Path:
    """The path of the report. The file is complete, or not there at all.

    Raises:
        InputError: if the records have no results.
    """
    if records.metrics.empty:
        raise InputError("the records have no results yet, so there is no report.")
    document = _document(with_cache(records))
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write_text(document, encoding="utf-8")
    return path


def write_figure(figure: go.Figure, path: Path | str) -> Path:
    """The path of a page that shows the figure and opens offline.

    Raises:
        InputError: if the path does not end in .html.
    """
    path = Path(path)
    if path.suffix != ".html":
        raise InputError(f"`path` of a figure must end in .html, but is {str(path)!r}.")
    title = unescape(re.sub("<.*?>", "", figure.layout.title.text or "Figure"))
    text = render(
        "figure.html", title=title, drawn=figure, library=Markup(get_plotlyjs())
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write_text(text, encoding="utf-8")
    return path


def _document(records: Records) -> str:
    table = summary(records)
    sections = {
        "summary": _result_section(records, table),
        "gains": _gains_section(records, table),
        "curves": _curves_section(records, table),
        "sharpness": sharpness_section(records),
        "time": time_section(records),
        "spread": _spread_section(records, table),
        "measures": measures_section(records),
        "graph": graph_section(records),
        "collaboration": partners_section(records),
        "privacy": privacy_section(records) + officer_section(records),
        "newcomers": newcomers_section(records),
        "clients": clients_section(records),
        "chosen": chosen_section(records),
        "settings": settings_section(records),
        "made": _made_section(records),
    }
    return render(
        "report.html",
        title=str(records.study.get("name", "Study")),
        opening=first_screen(records, table),
        sections=sections,
        library=Markup(get_plotlyjs()),
    )


def _result_section(records: Records, table: pd.DataFrame) -> Markup:
    score, best = score_of(records), best_of(records, table)[1]
    beside, labels = baseline_summary(records), baseline_labels(records)
    others = [
        f"{label} is {baseline_words(records, label)}"
        for label in labels
        if label != CONSTANT
    ]
    return render(
        "result.html",
        score=score,
        axis=axis_of(records),
        answers=details(records, table),
        single=int(table["seeds"].max()) == 1,
        failed=list(failures(records).values()),
        unfinished=[str(a) for a in table.index if not np.isfinite(table["mean"][a])],
        rows=[_score_cells(records, score, row) for _, row in table.iterrows()],
        best=None if best is None else list(table.index).index(best),
        baseline_rows=[_score_cells(records, score, r) for _, r in beside.iterrows()],
        has_baselines=bool(labels),
        regression=records.task == "regression",
        others=others,
        left_out=records.left_out,
        costs=_cost_rows(records, table),
        lengths=list(_lengths(records, table)),
    )


def _score_cells(records: Records, score: Score, row: pd.Series) -> list[str]:
    """The label and the scores of a method or a baseline, as cells."""
    failed = " (failed)" if row["failed"] else ""
    cells = [display_label(records, str(row.name)) + failed, score.show(row["mean"])]
    cells += [score.show_error(row["standard_error"]), *_gain_cells(score, row)]
    some = ("weighted_mean", "worst_client", "worst_decile")
    return [*cells, *(score.show(row[k]) for k in some)]


def _cost_rows(records: Records, table: pd.DataFrame) -> list[list[str]]:
    """A row for each method: gradients, bytes, time and length of training."""
    return [
        [
            display_label(records, str(label)),
            large(row["gradients"]),
            in_bytes(row["bytes"]),
        ]
        + [seconds_of(row["seconds"], "–")]
        + [show(row[name]) for name, show in _lengths(records, table).items()]
        for label, row in table.iterrows()
    ]


def _lengths(
    records: Records, table: pd.DataFrame
) -> dict[str, Callable[[float], str]]:
    """The columns that give the length of training, and how each is shown."""
    counts: dict[str, Callable[[float], str]] = {"round": large}
    if axis_of(records).has_clock:
        counts = {"updates": large, "time": in_seconds}
    return {name: show for name, show in counts.items() if name in table}


def _gain_cells(score: Score, row: pd.Series) -> list[str]:
    """The gain over training alone, its interval, and counts of clients, as cells."""
    if not np.isfinite(row["gain"]):
        return ["–", "–", "–"]
    counts = " / ".join(f"{row[k]:.0f}" for k in ("gaining", "losing", "cannot_tell"))
    texts = (
        score.show_gain(row["gain"]),
        score.show_interval(row["gain_low"], row["gain_high"]),
    )
    return [*(text.removesuffix(" points") for text in texts), counts]


def _gains_section(records: Records, table: pd.DataFrame) -> Markup:
    local, failed = local_label(records), {*failures(records)}
    others = [label for label in labels_of(records) if label != local]
    compared = [label for label in others if not {label, local} & failed]
    if local is None or not compared:
        return render("gains.html", local=local, others=others, compared=[])
    found = {label: gain_of(records, label) for label in compared}
    losers = {label: gain.counts()["loses"] for label, gain in found.items()}
    fewest, most = min(losers.values()), max(losers.values())
    rows = [_gains_row(records, label, gain) for label, gain in found.items()]
    comparable = all(row[4] == "0" for row in rows)
    if comparable:  # leave out a column of zeros
        rows = [row[:4] + row[5:] for row in rows]
    return render(
        "gains.html",
        local=local,
        others=others,
        compared=compared,
        count=final_scores(records, local).shape[1],
        fewest=fewest,
        kindest=[label for label, less in losers.items() if less == fewest],
        most=most,
        hardest=[label for label, less in losers.items() if less == most],
        certainty=certainty_text(records, found[compared[-1]]),
        uneven=table["round"].nunique() > 1,
        axis=axis_of(records),
        constant=[label for label in compared if is_constant(records, label)],
        rows=rows,
        comparable=comparable,
        score=score_of(records),
        drawn=gains(records),
    )


def _gains_row(records: Records, label: str, gain: Gain) -> list[str]:
    """A row with the numbers of clients that gain and lose, the mean, and who loses."""
    counts = gain.counts()
    cells = [display_label(records, label), *(str(count) for count in counts.values())]
    cells += [str(len(gain.clients) - sum(counts.values()))]
    cells += [score_of(records).show_gain(gain.mean)]
    cells += [interval_text(records, gain).removeprefix("95 % interval ")]
    who = [records.short_name(client) for client in gain.clients_with("loses")]
    return [*cells, some_of(who) if who else "nobody"]


def _curves_section(records: Records, table: pd.DataFrame) -> Markup:
    score, sent = score_of(records), table["bytes"].dropna()
    budgets = _equal_costs(records)
    rows = [
        [str(label)]
        + [score.show(means.get(label, np.nan)) for means in budgets.values()]
        + [score.show(table.loc[label, "mean"])]
        for label in table.index
    ]
    return render(
        "progress.html",
        score=score,
        axis=axis_of(records),
        ranked=ranking(table["mean"], score.sign),
        most_sent=(sent.idxmax(), sent.max()) if sent.nunique() > 1 else None,
        least_sent=(sent.idxmin(), sent.min()) if sent.nunique() > 1 else None,
        several_seeds=int(table["seeds"].max()) > 1,
        drawn=curves(records),
        budgets=list(budgets),
        rows=rows,
    )


def _equal_costs(records: Records) -> dict[str, pd.Series]:
    """By cost, the scores of all algorithms at the cost of the cheapest one."""
    found = {}
    for cost, show in (("updates", large), ("gradients", large), ("bytes", in_bytes)):
        if cost in records.rounds:
            budget, means = at_equal_cost(records, cost)
            if budget > 0:
                found[f"after {show(budget)} {cost}".replace("B bytes", "B")] = means
    return found


def _spread_section(records: Records, table: pd.DataFrame) -> Markup:
    score = score_of(records)
    count = final_scores(records, labels_of(records)[0]).shape[1]
    return render(
        "spread.html",
        score=score,
        count=count,
        tenth=-(-count // 10),
        ranked=ranking(table["worst_decile"], score.sign),
        drawn=spread(records),
    )


def _made_section(records: Records) -> Markup:
    study = _storable(records.study)
    data = study.get("data")
    # The note describes the data. It is not an option of a study.
    note = data.pop("note", "") if isinstance(data, dict) else ""
    return render(
        "made.html",
        setting=_setting(records),
        note=note,
        axis=axis_of(records),
        given=study.get("data", {}).get("name") == GIVEN,
        configuration=tomli_w.dumps(study),
    )


def _setting(records: Records) -> dict[str, str]:
    """Data, clients, model, seeds and versions of a study."""
    study = records.study
    seeds = sorted(records.metrics["seed"].unique())
    return {
        "Data": _table_text(study.get("data")),
        "Split": _table_text(study.get("split")),
        "Clients": _client_count(records),
        "Model": _table_text(study.get("model")),
        "Task": records.task,
        "Virtual time": _table_text(_without_empty(study.get("time"))),
        "Algorithms": ", ".join(labels_of(records)),
        "Seeds": ", ".join(str(seed) for seed in seeds),
        "Versions": ", ".join(f"{k} {v}" for k, v in records.versions.items()),
    }


def _without_empty(table: object) -> object:
    """The table without entries that are empty or zero."""
    if not isinstance(table, dict):
        return table
    return {key: value for key, value in table.items() if value}


def _client_count(records: Records) -> str:
    """The number of clients, and how many of them are held out of training."""
    held = records.study.get("run", {}).get("newcomers", 0)
    if not held:
        return f"{records.clients['client'].nunique():,}"
    count = int(records.clients.groupby("seed").size().max()) + held
    return f"{count:,}, of whom {held:,} are held out of training"


def _table_text(table: object) -> str:
    """A table of the configuration in one line: its name, then its options."""
    if not isinstance(table, dict):
        return "" if table is None else str(table)
    options = {k: v for k, v in table.items() if k not in ("name", "note")}
    options = {k: v for k, v in options.items() if v is not None}
    text = ", ".join(f"{key} = {_value_text(value)}" for key, value in options.items())
    name = str(table.get("name", ""))
    return f"{name} ({text})" if name and text else name or text


def _value_text(value: object) -> str:
    """A value as text. A long list, such as one entry per client, is cut short."""
    if isinstance(value, list) and len(value) > 12:
        return f"[{', '.join(map(str, value[:6]))}, ... {len(value)} values]"
    return str(value)


def _storable(value: Any) -> Any:
    """The value for TOML. None is left out, and values of other types become text."""
    if isinstance(value, dict):
        return {str(k): _storable(v) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [_storable(v) for v in value if v is not None]
    if isinstance(value, np.generic | np.ndarray):
        return _storable(value.tolist())
    return value if isinstance(value, bool | int | float | str) else str(value)
