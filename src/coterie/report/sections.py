"""Sections of a report about more than scores: time, partners, newcomers and clients.

A section is empty where a study has nothing of the kind.
"""

from __future__ import annotations

from html import escape

import numpy as np
import pandas as pd

from ..records import Records
from .axes import axis_of, in_seconds, virtual_seconds
from .figures import clients, newcomers
from .html import joined, large, percent, plot, table_of
from .matrices import collaboration, partners
from .scores import (
    CROWD,
    Score,
    baseline_of,
    by_cluster,
    cluster_means,
    cluster_name,
    final_scores,
    is_crowd,
    labels_of,
    newcomer_labels,
    over_seeds,
    population,
    score_of,
)
from .tables import newcomer_summary, partner_counts, ranking
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
    ranked = ranking(table["mean"], score.sign)
    if ranked:
        best, most = ranked[-1]
        text += f"Newcomers fare best with {best} (mean {score.words} "
        text += f"{score.show(most)})"
        alone = dict(ranked).get(str(local))
        if alone is not None and best != local:
            text += f"; training alone gives {score.show(alone)}"
        text += "."
    headers = ["algorithm", "mean", "± s.e.", "worst newcomer", "better than alone"]
    rows = []
    for label, row in table.iterrows():
        cells = [str(label), score.show(row["mean"])]
        cells += [score.show_error(row["standard_error"]), score.show(row["worst"])]
        rows.append([*cells, percent(row["better_than_local"], "–")])
    caption = f"{score.words.capitalize()} of the newcomers, each with its own model."
    figure = plot(newcomers(records), "newcomers-figure", "Newcomers by algorithm")
    return f"<p>{escape(text)}</p>{table_of(headers, rows, caption)}{figure}"


def partners_section(records: Records) -> str:
    """Who learned with whom."""
    labels = [a for a in labels_of(records) if any(a == b for b, _ in records.weights)]
    if not labels:
        return "<p>No algorithm of this study recorded collaboration weights.</p>"
    last = partner_counts(records).groupby("algorithm").last().loc[labels]
    (low, least), (high, most) = (ranking(last["all"], 1)[j] for j in (0, -1))
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
    parts = [f"<p>{escape(text)}</p>", table_of(headers, rows, caption)]
    if is_crowd(records):
        parts.append(f"<p>Matrices of more than {CROWD} clients are not drawn.</p>")
    else:
        parts.append(_matrices(records, labels))
    words = f"Number of partners by {axis_of(records).name}"
    figure = plot(partners(records), "partners-figure", words)
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
        words = f"Collaboration matrix of {label} over {axis_of(records).name}s"
        figures.append(plot(drawn, key, words, group="matrix", hidden=number > 0))
    known = (records.clients["cluster"] >= 0).any()
    order = " Clients are ordered by true cluster; lines are the boundaries."
    return (
        "<p>A dark square in row i and column k: client i gives a large weight to "
        f"client k.{order if known else ''} The darkest colour stands for the largest "
        "weight given to another client, or more.</p>"
        '<p><label>Algorithm <select data-chooses="matrix" autocomplete="off">'
        f"{''.join(options)}</select></label></p>{''.join(figures)}"
    )


def clients_section(records: Records) -> str:
    """What data the clients have, and how each cluster fares."""
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
    undefined = int((table["tested"] & ~table["scored"]).sum())
    if undefined:
        text += f" Of {undefined}, the test samples leave the {score.words} undefined, "
        text += "as those of a single class do; they are left out too."
    varied = records.clients.groupby("client")[["cluster", "train", "test"]].nunique()
    if (varied > 1).any(axis=None):
        text += " The data were split anew for every seed: sizes are means over seeds, "
        text += "and a client whose cluster changes counts as of unknown cluster."
    labels = labels_of(records)
    finals = {a: over_seeds(records, final_scores(records, a)) for a in labels}
    means = {a: cluster_means(records, values) for a, values in finals.items()}
    rows = []
    for cluster, members in table.groupby("cluster", sort=False):
        cells = [cluster_name(int(str(cluster))), f"{len(members):,}"]
        cells += [f"{members[p].sum():,.0f}" for p in ("train", "validation", "test")]
        cells += [score.show(float(means[a].loc[cluster])) for a in labels]
        rows.append(cells)
    headers = ["cluster", "clients", "train", "validation", "test", *labels]
    end = axis_of(records).end
    caption = f"Samples, and mean {score.words} {end}, by cluster."
    figure = plot(clients(records), "clients-figure", "Data and score by client")
    return f"<p>{escape(text)}</p>{table_of(headers, rows, caption)}{figure}"
