"""Sections of a report that only some studies have: nothing, where a study does not.

Time is of studies with [time], newcomers of those that hold clients out, and what was
chosen of those with [tune].
"""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np
import pandas as pd

from ..records import Records, rungs
from .axes import Course, course_of, in_seconds, virtual_seconds
from .figures import newcomers, trials
from .html import joined, large, plot, table_of
from .tables import (
    Score,
    baseline_of,
    last_trials,
    newcomer_labels,
    newcomer_summary,
    ranking,
    score_of,
    searched,
    value_text,
)
from .timelines import delays, timeline
from .waiting import (
    common_score,
    delayed_labels,
    is_timed,
    timeline_of,
    wait_summary,
)


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
        cells = [str(label), _percent(row["idle"]), large(row["updates"])]
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


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if np.isfinite(share) else "unknown"


def _idle_text(table: pd.DataFrame) -> str:
    """Whose clients were idle most and least, and how many updates that made."""
    ranked = ranking(table["idle"], -1)
    if not ranked:
        return "The records do not say for how long clients were idle."
    groups: dict[str, list[str]] = {}
    for label, share in ranked:
        groups.setdefault(_percent(share), []).append(label)
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
        error, share = row["standard_error"], row["better_than_local"]
        short = score.show(error) if score.ticks else f"{error:.2g}"
        cells = [str(label), score.show(row["mean"])]
        cells += [short if np.isfinite(error) else "unknown"]
        cells += [score.show(row["worst"])]
        rows.append([*cells, f"{100 * share:.0f} %" if np.isfinite(share) else "–"])
    caption = f"{score.words.capitalize()} of the newcomers, each with its own model."
    figure = plot(newcomers(records), "newcomers-figure", "Newcomers by algorithm")
    return f"<p>{escape(text)}</p>{table_of(headers, rows, caption)}{figure}"


def chosen_section(records: Records) -> str:
    """What [tune] searched and found; nothing where there is no such table."""
    tune, table = records.study.get("tune"), records.trials
    if tune is None:
        return ""
    course = course_of(records)
    unit = "virtual seconds" if course.timed else "rounds"
    seeds = sorted(set(records.metrics["seed"]))
    headers = ["algorithm", "option", "searched"]
    headers += [*(f"chosen, seed {seed}" for seed in seeds), "settings", unit]
    rows = []
    for label, space in searched(records).items():
        mine = table[table["algorithm"] == label] if len(table) else table
        best = mine[mine["status"] == "chosen"].set_index("seed") if len(mine) else mine
        for option in [o for o in mine if o in space] if len(mine) else space:
            cells = [label, option, _range_text(space[option])]
            cells += [
                value_text(best.loc[seed, option]) if seed in best.index else "–"
                for seed in seeds
            ]
            rows.append([*cells, *_spent(mine, course)])
        if not space:
            rows.append([label, "as written", *["–"] * (3 + len(seeds))])
    caption = f"Settings and {unit} of training are those of one seed's search."
    figure = ""
    if len(last_trials(records)):
        figure = "<p>A star was chosen."
        if "dropped" in set(table["status"]):
            figure += " A hollow dot was dropped earlier than the others, so "
            figure += "its score cannot be compared with theirs."
        figure += "</p>"
        figure += plot(trials(records), "trials-figure", "Settings that were tried")
    text = _search_text(tune, records)
    return f"<p>{escape(text)}</p>{table_of(headers, rows, caption)}{figure}"


def _search_text(tune: dict[str, Any], records: Records) -> str:
    """How settings were chosen, in a few sentences."""
    score, folds = score_of(records).words.removeprefix("test "), tune["folds"]
    course = course_of(records)
    data = f"{folds} folds of its training and validation data"
    unit = "virtual time" if course.timed else "rounds"
    text = f"Every algorithm had the same budget, in {unit} and not in gradients: "
    text += f"{tune['trials']} settings with each seed, by {tune['search']} search "
    text += "(or all, where there are fewer). A "
    text += (
        f"setting is judged by the mean {score} of the clients' own models, each on "
    )
    text += f"{data if folds else 'its validation data'}. "
    rounds = tune["rounds"] or records.study["run"]["rounds"]
    first, *others = rungs(tune["trials"], rounds, tune["halving"])
    text += f"All settings train for {course.length(first.rounds)}"
    text += "".join(
        f", the best {r.trials} go on to {course.at(r.rounds)}" for r in others
    )
    text += ". "
    statuses = list(records.trials["status"]) if len(records.trials) else []
    if "failed" in statuses:
        text += f"{statuses.count('failed')} could not be trained: their models became "
        text += "infinite. "
    text += "Each seed chose for itself, and the algorithm then ran with what was "
    return text + "chosen. Test data chose nothing."


def _spent(mine: pd.DataFrame, course: Course) -> list[str]:
    """How many settings and how long a training the searches of the seeds took."""
    if mine.empty:
        return ["–", "–"]
    by_seed = mine.groupby("seed")
    pairs = [by_seed["trial"].nunique(), course.period * by_seed["spent"].sum()]
    ends = [(f"{counts.min():,.8g}", f"{counts.max():,.8g}") for counts in pairs]
    return [a if a == b else f"{a} to {b}" for a, b in ends]


def _range_text(values: Any) -> str:
    """A list or range that was searched, in words."""
    if not isinstance(values, dict):
        return ", ".join(value_text(value) for value in values)
    low, high = value_text(values["from"]), value_text(values["to"])
    return f"{low} to {high}" + (" (log)" if values["scale"] == "log" else "")
