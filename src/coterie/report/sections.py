"""Sections of a report: measures, time, newcomers and clients.

A section is empty where a study has nothing of the kind.
"""

from __future__ import annotations

from dataclasses import replace
from html import escape

import numpy as np
import pandas as pd

from ..checks import several
from ..data.federation import PARTS
from ..models import MEASURES
from ..records import Records
from ..scores.axes import axis_of, in_seconds, virtual_seconds
from ..scores.failures import failures
from ..scores.finals import (
    CROWD,
    Score,
    baseline_of,
    by_cluster,
    cluster_means,
    cluster_name,
    final_scores,
    is_crowd,
    labels_of,
    marked,
    newcomer_labels,
    over_seeds,
    population,
    score_of,
    undefined_for,
)
from ..scores.summaries import favourite_of, ranking
from ..scores.words import joined, large, percent, some_of
from .figures import clients, newcomers
from .html import choice, counts_table, table_of
from .matrices import reliability
from .styles import plot
from .tables import (
    client_summary,
    confusion_of,
    measure_summary,
    measured,
    newcomer_summary,
    reliability_of,
)
from .timelines import delays, timeline
from .waiting import common_score, delayed_labels, is_timed, timeline_of, wait_summary


def time_section(records: Records) -> str:
    """What waiting cost; nothing where there is no virtual time."""
    if not is_timed(records):
        return ""
    score, table, goal = score_of(records), wait_summary(records), common_score(records)
    headers = ["algorithm", "idle", "updates", "updates per second", "mean delay"]
    headers += ["largest delay", f"time to {score.show(goal)}", "speed-up"]
    rows = []
    for label, row in table.iterrows():
        delay, largest, gain = (
            row[c] for c in ("mean_delay", "largest_delay", "speed_up")
        )
        cells = [str(label), percent(row["idle"]), large(row["updates"])]
        cells += [f"{row['pace']:.3g}" if np.isfinite(row["pace"]) else "unknown"]
        cells += [f"{delay:.1f}" if np.isfinite(delay) else "–"]
        cells += [large(largest) if np.isfinite(largest) else "–"]
        reached = row["reached"]
        cells += [in_seconds(reached) if np.isfinite(reached) else "never"]
        rows.append([*cells, f"{gain:.3g} ×" if np.isfinite(gain) else "–"])
    caption = (
        "Idle is the share of their time in which clients computed nothing. Updates "
        "are answers of clients that arrived. A delay counts the answers that arrived "
        "since a client began, its own with them; there is none (–) where no answer "
        "can be late. The time is that of the first evaluation whose mean "
        f"{score.words} is as good as the best one that all algorithms reach; the "
        "speed-up is over the last to get there."
    )
    text = " ".join([_idle_text(table), _reached_text(score, table, goal)]).strip()
    return (
        f"<p>{escape(text)}</p>{table_of(headers, rows, caption)}"
        f"{_timeline_part(records)}{_delays_part(records)}"
    )


def _idle_text(table: pd.DataFrame) -> str:
    """Whose clients were idle most and least, and how many updates that made."""
    ranked = ranking(table["idle"], -1)
    if not ranked:
        return "The records do not say for how long clients were idle."
    groups: dict[str, list[str]] = {}
    for label, share in ranked:
        groups.setdefault(percent(share), []).append(label)
    (most, hardest), *others = groups.items()
    text = f"Clients were idle for {most} of their time with {joined(hardest)}"
    if others:
        least, kindest = others[-1]
        text += f" and for {least} with {joined(kindest)}"
    paces = ranking(table["pace"], 1)
    if len(paces) > 1 and paces[-1][1] > paces[0][1]:
        (slow, few), (fast, many) = paces[0], paces[-1]
        text += f"; {fast} made {many:.3g} updates per virtual second, and {slow} "
        text += f"{few:.3g}"
    return text + "."


def _reached_text(score: Score, table: pd.DataFrame, goal: float) -> str:
    """Who was first at the best score that all reach, and how much earlier."""
    ranked = ranking(table["reached"], 1)
    if len(ranked) < 2:
        return ""
    (first, soon), (last, late) = ranked[0], ranked[-1]
    if late == 0:
        return (
            "At no evaluation do all algorithms have a better score than at the start."
        )
    text = f"{score.show(goal)} is the best mean {score.words} that all reach: "
    if soon == late:
        return text + f"all got there after {virtual_seconds(late)}."
    text += f"{first} after {virtual_seconds(soon)} and {last} after "
    text += virtual_seconds(late)
    return text + (f", {late / soon:.3g} times as long." if soon > 0 else ".")


def _timeline_part(records: Records) -> str:
    """Who computed when."""
    drawn = timeline_of(records)
    if drawn is None:
        return "<p>The records do not say when clients computed.</p>"
    text = f"The first {virtual_seconds(drawn.until)} of the runs with seed "
    text += f"{drawn.seed}: a bar is one computation of a client, and grey is time in "
    text += "which it was idle. The slowest client is at the top"
    if drawn.total > len(drawn.clients):
        text += f"; {len(drawn.clients)} of {drawn.total:,} clients are shown, evenly "
        text += "from the slowest to the fastest"
    figure = plot(timeline(records), "timeline-figure", "When clients computed")
    return f"<p>{escape(text)}.</p>{figure}"


def _delays_part(records: Records) -> str:
    """How late answers were."""
    if not delayed_labels(records):
        return (
            "<p>No algorithm of this study takes late answers, so none has a delay.</p>"
        )
    text = (
        "Where clients do not wait, an answer may be for a model that others have "
        "changed meanwhile. Every answer adds one to the delays of all that are under "
        "way, so the mean delay is at most the number of clients, however slow some of "
        "them are."
    )
    figure = plot(delays(records), "delays-figure", "Delays of answers by algorithm")
    return f"<p>{escape(text)}</p>{figure}"


def measures_section(records: Records) -> str:
    """All measures, calibration and confusion; nothing where there is only a score."""
    others = set(measured(records)) - {records.score, "loss"}
    if not others and records.confusion.empty:
        return ""
    return "".join(
        [_measures_part(records), _reliability_part(records), _confusion_part(records)]
    )


def _measures_part(records: Records) -> str:
    """Means of all measures, and who has none of one."""
    table, names, text = measure_summary(records), measured(records), []
    higher = {name: measure.higher_is_better for name, measure in MEASURES.items()}
    higher |= {"loss": False, records.score: records.higher_is_better}
    arrows = {True: " ↑", False: " ↓", None: ""}  # one's own may not say
    scores = [score_of(replace(records, score=name)) for name in names]
    headers = [
        f"{score.words.removeprefix('test ')}{arrows[higher.get(name)]}"
        for name, score in zip(names, scores, strict=True)
    ]
    rows = [
        [label, *(s.show(v) for s, v in zip(scores, table.loc[label], strict=True))]
        for label in labels_of(records)
    ]
    for name, score in zip(names, scores, strict=True):
        without = undefined_for(records, name)
        if without:
            who = some_of([records.name_of(client) for client in without])
            words = score.words.removeprefix("test ")
            text.append(f"{words} is undefined for {who}.")
    if text:
        text.append("Their test samples have no such measure, whatever the model.")
    caption = (
        f"Test data {axis_of(records).end}, mean over the clients that have the "
        f"measure. ↑ higher is better, ↓ lower is better; {records.score} compares."
    )
    said = f"<p>{escape(' '.join(text))}</p>" if text else ""
    return said + table_of(["algorithm", *headers], rows, caption)


def _reliability_part(records: Records) -> str:
    """How sure final models are, and how often right."""
    if records.calibration.empty:
        return ""
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
        cells = [label, f"{100 * sure:.1f} %", f"{100 * right:.1f} %"]
        rows.append([*cells, f"{100 * error:.1f}"])
    headers = ["algorithm", "sure of", "right in", "calibration error (points)"]
    caption = (
        "Final models on the test samples of all clients and seeds together. A model "
        "is as sure as the probability that it gives to the class it predicts. The "
        "calibration error is the mean distance of both in ten bins; below the dotted "
        "line of the figure, models are too sure of themselves."
    )
    figure = plot(reliability(records), "reliability-figure", "Accuracy by confidence")
    return table_of(headers, rows, caption) + figure


_FOUND = 20
"""So many clients are found without a search."""

_CLASSES = 30
"""So many classes are shown as a table; the records have more."""


def _confusion_part(records: Records) -> str:
    """Which classes are taken for which, of every client and algorithm."""
    if records.confusion.empty:
        return ""
    there = set(records.confusion["algorithm"])
    labels = [label for label in labels_of(records) if label in there]
    classes = len(confusion_of(records, labels[0]))
    if classes > _CLASSES:
        return f"<p>Confusions of {classes} classes are in confusion.csv.</p>"
    # Classes may be fewer than there are names of them, where nobody has the last.
    names = [*records.classes][:classes] or [*map(str, range(classes))]
    lists = {"Algorithm": labels, "Client": ["all clients together"]}
    entries, every = ["target", "predicted", "count"], ["algorithm", "client"]
    sums = (
        records.confusion.groupby([*every, *entries[:2]])["count"].sum().reset_index()
    )
    counts = [[_entries(confusion_of(records, label))] for label in labels]
    if not is_crowd(records):
        own = {key: part[entries].to_numpy() for key, part in sums.groupby(every)}
        for client in sorted(set(sums["client"])):
            lists["Client"].append(records.name_of(int(client)))
            for place, label in enumerate(labels):
                part = own.get((label, client), np.empty((0, 3), int))
                counts[place].append(part.tolist())
    caption = (
        "Test samples of each true class (row) by the class that final models take "
        "them for (column), all seeds together; the last column is the share of the "
        "class that is found."
    )
    first = favourite_of(records) if set(labels) != {baseline_of(records)} else ""
    place = labels.index(first) if first in labels else len(labels) - 1
    return counts_table(names, lists, counts, caption, first=place)


def _entries(square: pd.DataFrame) -> list[list[int]]:
    """Row, column and count of what is not 0."""
    table = square.to_numpy()
    return [[i, k, int(table[i, k])] for i, k in np.argwhere(table).tolist()]


def newcomers_section(records: Records) -> str:
    """How those fare who were held out of training; nothing where nobody was."""
    if not newcomer_labels(records):
        return ""
    score, table = score_of(records), newcomer_summary(records)
    local = baseline_of(records)
    count = int((table["newcomers"] / table["seeds"]).max())
    text = f"{count:,} client{' was' if count == 1 else 's were'} held out with each "
    text += "seed and took no part in training or in choosing anything. Each joined "
    text += "when training had ended and got a model from what the others had learned"
    text += f"; with {local} it trained by itself. " if local is not None else ". "
    failed = failures(records)
    sound = table[~table.index.isin(failed)]
    ranked = ranking(sound["mean"], score.sign)
    if ranked:
        best, most = ranked[-1]
        text += f"Newcomers fare best with {best} (mean {score.words} "
        text += f"{score.show(most)})"
        alone = dict(ranked).get(str(local))
        if alone is not None and best != local:
            text += f"; training alone gives {score.show(alone)}"
        text += "."
    headers = ["algorithm", "mean", "± s.e.", "worst newcomer", "better than alone"]
    headers += ["gain over alone", "95 % interval"]
    rows = []
    for label, row in table.iterrows():
        name = marked(str(label), False, failed=label in failed)
        cells = [name, score.show(row["mean"])]
        cells += [score.show_error(row["standard_error"]), score.show(row["worst"])]
        cells += [percent(row["better_than_local"], "–")]
        interval = score.show_interval(row["gain_low"], row["gain_high"])
        gained = [score.show_gain(row["gain"]), interval]
        rows.append([*cells, *(gained if np.isfinite(row["gain"]) else "––")])
    caption = f"{score.heading} of the newcomers, each with its own model. "
    samples = sound["samples"].min() if len(sound) else 0
    counted = "seeds and test samples" if samples else "seeds alone"
    caption += f"Standard errors and intervals count {counted}."
    figure = plot(newcomers(records), "newcomers-figure", "Newcomers by algorithm")
    return f"<p>{escape(text)}</p>{table_of(headers, rows, caption)}{figure}"


def clients_section(records: Records) -> str:
    """What data the clients have, and how each of them and each cluster fares."""
    score, table = score_of(records), by_cluster(population(records))
    known = int(table.loc[table["cluster"] >= 0, "cluster"].nunique())
    text = several(len(table), "client")
    text += f" in {several(known, 'known cluster')}" if known else ""
    text += "" if known else "; their true clusters are not known"
    sizes = table["train"]
    text += f". They have {sizes.min():,.0f} to {sizes.max():,.0f} training samples, "
    text += f"{sizes.median():,.0f} at the median."
    untested = int((~table["tested"]).sum())
    text += f" {untested} lack test samples and are left out." if untested else ""
    undefined = int((table["tested"] & ~table["scored"]).sum())
    if undefined:
        text += f" Of {undefined}, the test samples leave the {score.words} undefined, "
        text += "as those of a single class do; they are left out too."
    varied = records.clients.groupby("client")[["cluster", "train", "test"]].nunique()
    if (varied > 1).any(axis=None):
        text += " The data were split anew for every seed: sizes are means over seeds, "
        text += "and a client whose cluster changes counts as of unknown cluster."
    figure = plot(clients(records), "clients-figure", "Data and score by client")
    clusters = _clusters_table(records, table) if known else ""
    return f"<p>{escape(text)}</p>{clusters}{figure}{_clients_part(records)}"


def _clusters_table(records: Records, table: pd.DataFrame) -> str:
    """Samples and scores of each true cluster."""
    labels, score = labels_of(records), score_of(records)
    finals = {a: over_seeds(records, final_scores(records, a)) for a in labels}
    means = {a: cluster_means(records, values) for a, values in finals.items()}
    rows = []
    for cluster, members in table.groupby("cluster", sort=False):
        cells = [cluster_name(int(str(cluster))), f"{len(members):,}"]
        cells += [f"{members[p].sum():,.0f}" for p in PARTS]
        cells += [score.show(float(means[a].loc[cluster])) for a in labels]
        rows.append(cells)
    end = axis_of(records).end
    caption = f"Samples, and mean {score.words} {end}, by cluster."
    return table_of(["cluster", "clients", *PARTS, *labels], rows, caption)


def _clients_part(records: Records) -> str:
    """A table of all clients for each algorithm, a list of these, and a search."""
    labels = labels_of(records)
    if is_crowd(records):
        return (
            f"<p>Tables of more than {CROWD} clients are not shown; "
            "<code>coterie.report.client_summary</code> gives them.</p>"
        )
    local = baseline_of(records)
    first = favourite_of(records) if set(labels) != {local} else labels[0]
    names = {f"clients-{number}": label for number, label in enumerate(labels)}
    parts = []
    for key, label in names.items():
        table = _clients_table(records, label)
        hidden = " hidden" * (label != first)
        parts.append(f'<div id="{key}" class="client-table"{hidden}>{table}</div>')
    start = f"clients-{labels.index(first)}"
    lists = choice("Algorithm", names, start, 'data-chooses="client-table"')
    if len(records.clients["client"].unique()) > _FOUND:
        lists += '<label>Find a client <input type="search" autocomplete="off" '
        lists += 'data-finds="client-table"></label>'
    return f"<p>{lists}</p>{''.join(parts)}"


def _clients_table(records: Records, label: str) -> str:
    """Data, score and gain of each client with one algorithm."""
    score, table = score_of(records), client_summary(records, label)
    known, gained = bool((table["cluster"] >= 0).any()), "gain" in table
    headers = ["client", *["cluster"] * known, *PARTS, score.words]
    headers += ["gain over local", "95 % interval", "verdict"] if gained else []
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
    end = axis_of(records).end
    caption = f"Samples, and {score.words} {end}, of each client with {label}."
    return table_of(headers, rows, caption)
