"""Sections of a report: measures, time, newcomers and clients.

A section is empty if the study has nothing to show. Its words are in `templates`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from ..data.federation import PARTS
from ..records import Records
from ..scores.axes import axis_of, in_seconds
from ..scores.failures import failures
from ..scores.finals import (
    CROWD,
    annotate_label,
    cluster_means,
    cluster_name,
    final_scores,
    is_crowd,
    is_higher_better,
    is_measured,
    labels_of,
    local_label,
    mean_over_seeds,
    measure_names,
    newcomer_labels,
    population,
    score_of,
    sort_by_cluster,
    undefined_for,
)
from ..scores.summaries import favourite_of, ranking
from ..scores.words import large, percent, some_of
from .figures import clients, newcomers
from .html import render
from .matrices import reliability
from .tables import (
    client_summary,
    confusion_of,
    measure_summary,
    newcomer_summary,
    reliability_of,
)
from .timelines import delays, timeline
from .waiting import common_score, delayed_labels, is_timed, timeline_of, wait_summary


def time_section(records: Records) -> Markup:
    """The section on what waiting cost, or nothing without virtual time."""
    if not is_timed(records):
        return Markup()
    table, idle = wait_summary(records), dict[str, list[str]]()
    for label, share in ranking(table["idle"], -1):
        idle.setdefault(percent(share), []).append(label)
    period = timeline_of(records)
    late = bool(delayed_labels(records))
    return render(
        "time.html",
        score=score_of(records),
        goal=common_score(records),
        idle=list(idle.items()),
        paces=ranking(table["pace"], 1),
        reached=ranking(table["reached"], 1),
        rows=[_waiting_cells(str(label), row) for label, row in table.iterrows()],
        period=period,
        timeline=None if period is None else timeline(records),
        delays=delays(records) if late else None,
    )


def _waiting_cells(label: str, row: pd.Series) -> list[str]:
    """The row of an algorithm in the table of waiting."""
    delay, largest, gain = (row[c] for c in ("mean_delay", "largest_delay", "speed_up"))
    reached, pace = row["reached"], row["pace"]
    return [
        label,
        percent(row["idle"]),
        large(row["updates"]),
        f"{pace:.3g}" if np.isfinite(pace) else "unknown",
        f"{delay:.1f}" if np.isfinite(delay) else "–",
        large(largest) if np.isfinite(largest) else "–",
        in_seconds(reached) if np.isfinite(reached) else "never",
        f"{gain:.3g} ×" if np.isfinite(gain) else "–",
    ]


def measures_section(records: Records) -> Markup:
    """The section on measures, calibration and confusion, or nothing without any."""
    names = measure_names(records)
    if not set(names) - {records.score, "loss"} and records.confusion.empty:
        return Markup()
    table = measure_summary(records)
    higher = {name: is_higher_better(records, name) for name in names}
    arrows = {True: " ↑", False: " ↓", None: ""}  # None: a user's own measure
    scores = [score_of(replace(records, score=name)) for name in names]
    words = [score.words.removeprefix("test ") for score in scores]
    rows = [
        [
            label,
            *(
                s.show(value) if is_measured(records, label, name) else "–"
                for s, name, value in zip(
                    scores, names, table.loc[label].to_numpy(float), strict=True
                )
            ),
        ]
        for label in labels_of(records)
    ]
    without = {
        what: some_of([records.name_of(client) for client in some])
        for what, name in zip(words, names, strict=True)
        if (some := undefined_for(records, name))
    }
    sure = not records.calibration.empty
    return render(
        "measures.html",
        axis=axis_of(records),
        score_name=records.score,
        headers=[w + arrows[higher[n]] for w, n in zip(words, names, strict=True)],
        rows=rows,
        undefined=without,
        certainty=_certainty_rows(records) if sure else [],
        reliability=reliability(records) if sure else None,
        **_confusion(records),
    )


def _certainty_rows(records: Records) -> list[list[str]]:
    """A row per algorithm: confidence, accuracy and calibration error."""
    rows = []
    for label in labels_of(records):
        bins = reliability_of(records, label)
        if not len(bins):
            continue
        share = bins["count"] / bins["count"].sum()
        sure, right = (
            float((share * bins[c]).sum()) for c in ("confidence", "accuracy")
        )
        error = float((share * (bins["accuracy"] - bins["confidence"]).abs()).sum())
        rows.append([label, percent(sure), percent(right), f"{100 * error:.1f}"])
    return rows


_FOUND = 20
"""Above this number of clients, there is a search field."""

_CLASSES = 30
"""Above this number of classes, there is no table of confusion."""


def _confusion(records: Records) -> dict[str, Any]:
    """The variables of the template about confused classes.

    `counts` has row, column and count of each entry that is not 0, by algorithm and
    client. `first` is the algorithm that is shown first, with its table in `cells`.
    """
    if records.confusion.empty:
        return {"classes": 0, "counts": None}
    there = set(records.confusion["algorithm"])
    labels = [label for label in labels_of(records) if label in there]
    squares = [confusion_of(records, label).to_numpy() for label in labels]
    classes = len(squares[0])
    if classes > _CLASSES:
        return {"classes": classes, "counts": None}
    counts = [
        [[[i, k, int(square[i, k])] for i, k in np.argwhere(square).tolist()]]
        for square in squares
    ]
    who = [] if is_crowd(records) else sorted(set(records.confusion["client"]))
    entries, every = ["target", "predicted", "count"], ["algorithm", "client"]
    keys = [*every, *entries[:2]]
    sums = records.confusion.groupby(keys)["count"].sum().reset_index()
    changes = (sums[every] != sums[every].shift()).any(axis=1).to_numpy()
    starts = np.flatnonzero(changes)
    parts = np.split(sums[entries].to_numpy(), starts[1:])
    own = dict(zip(map(tuple, sums[every].to_numpy()[starts]), parts, strict=True))
    for client in who:
        for place, label in enumerate(labels):
            part = own.get((label, client), np.empty((0, 3), int))
            counts[place].append(part.tolist())
    favourite = favourite_of(records) if set(labels) != {local_label(records)} else ""
    first = labels.index(favourite) if favourite in labels else len(labels) - 1
    # There may be fewer classes than names, if no sample is of the last class.
    names = [*records.classes][:classes] or [*map(str, range(classes))]
    cells = [
        [name, *map(str, line), percent(line[i] / line.sum()) if line.any() else "–"]
        for i, (name, line) in enumerate(zip(names, squares[first], strict=True))
    ]
    return {
        "classes": classes,
        "counts": counts,
        "labels": labels,
        "clients": [records.name_of(int(client)) for client in who],
        "first": first,
        "names": names,
        "cells": cells,
    }


def newcomers_section(records: Records) -> Markup:
    """The section on newcomers, or nothing if there were none."""
    if not newcomer_labels(records):
        return Markup()
    score, table = score_of(records), newcomer_summary(records)
    failed, rows = failures(records), []
    for label, row in table.iterrows():
        cells = [annotate_label(str(label), False, failed=label in failed)]
        cells += [score.show(row["mean"]), score.show_error(row["standard_error"])]
        cells += [score.show(row["worst"]), percent(row["better_than_local"], "–")]
        interval = score.show_interval(row["gain_low"], row["gain_high"])
        gained = [score.show_gain(row["gain"]), interval]
        rows.append([*cells, *(gained if np.isfinite(row["gain"]) else "––")])
    sound = table[~table.index.isin(failed)]
    ranked = ranking(sound["mean"], score.sign)
    local = local_label(records)
    return render(
        "newcomers.html",
        score=score,
        local=local,
        count=int((table["newcomers"] / table["seeds"]).max()),
        best=ranked[-1] if ranked else None,
        alone=dict(ranked).get(str(local)),
        samples=bool(len(sound) and sound["samples"].min()),
        rows=rows,
        drawn=newcomers(records),
    )


def clients_section(records: Records) -> Markup:
    """The section on clients and clusters: their data and their scores."""
    table, labels = sort_by_cluster(population(records)), labels_of(records)
    known = int(table.loc[table["cluster"] >= 0, "cluster"].nunique())
    columns = ["cluster", "train", "test"]
    varied = records.clients.groupby("client")[columns].nunique()
    alone = set(labels) == {local_label(records)}
    first = labels[0] if alone else favourite_of(records)
    crowd = is_crowd(records)
    return render(
        "clients.html",
        score=score_of(records),
        axis=axis_of(records),
        count=len(table),
        known=known,
        sizes=table["train"],
        untested=int((~table["tested"]).sum()),
        undefined=int((table["tested"] & ~table["scored"]).sum()),
        varied=bool((varied > 1).any(axis=None)),
        parts=list(PARTS),
        labels=labels,
        clusters=_cluster_rows(records, table) if known else [],
        drawn=clients(records),
        most=CROWD,
        tables=[] if crowd else [_client_rows(records, label) for label in labels],
        first=labels.index(first),
        searched=len(records.clients["client"].unique()) > _FOUND,
    )


def _cluster_rows(records: Records, table: pd.DataFrame) -> list[list[str]]:
    """A row for each true cluster: samples and scores."""
    labels, score = labels_of(records), score_of(records)
    finals = {a: mean_over_seeds(records, final_scores(records, a)) for a in labels}
    means = {a: cluster_means(records, values) for a, values in finals.items()}
    rows = []
    for cluster, members in table.groupby("cluster", sort=False):
        cells = [cluster_name(int(str(cluster))), f"{len(members):,}"]
        cells += [f"{members[p].sum():,.0f}" for p in PARTS]
        cells += [score.show(float(means[a].loc[cluster])) for a in labels]
        rows.append(cells)
    return rows


def _client_rows(records: Records, label: str) -> dict[str, Any]:
    """The table of clients for one algorithm: data, score and gain."""
    score, table = score_of(records), client_summary(records, label)
    known, gained = bool((table["cluster"] >= 0).any()), "gain" in table
    finals = final_scores(records, label)
    scored = {records.name_of(client) for client in finals.columns.astype(int)}
    rows = []
    for name, row in table.iterrows():
        cells = [str(name), *[str(row["cluster"])] * known]
        cells += [f"{row[part]:,.0f}" for part in PARTS]
        cells += [score.show(row["score"]) if name in scored else "–"]
        if gained and not np.isfinite(row["gain"]):
            cells += ["–"] * 3
        elif gained:
            interval = score.show_interval(row["low"], row["high"])
            cells += [score.show_gain(row["gain"]), interval, row["verdict"]]
        rows.append(cells)
    return {"label": label, "known": known, "gained": gained, "rows": rows}
