"""Sentences about all methods: which one is best, how sure we are, and the costs.

The sentences at the top of a report are in `opening`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ..checks import several
from ..records import Records
from ..scores.axes import axis_of
from ..scores.failures import failures
from ..scores.finals import (
    display_label,
    labels_of,
    local_label,
    planned_algorithms,
    population,
    score_of,
)
from ..scores.gains import Gain, gain_of
from ..scores.summaries import costs_of, favourite_of, lacks_choice, rank_methods
from ..scores.words import as_many, in_bytes, join_names, large, seconds_of, some_of
from .opening.nouns import amounts_of
from .tables import at_equal_cost, infinite_losses, shortfalls


def details(records: Records, table: pd.DataFrame) -> dict[str, str]:
    """Details below the first screen: rank, certainty, cost in gradients, oracles."""
    local = local_label(records)
    answers = {"Rank": best_of(records, table)[0]}
    if local is not None and labels_of(records) != [local]:
        label = favourite_of(records)
        if not {label, local} & failures(records).keys():
            answers["How sure"] = certainty_text(records, gain_of(records, label))
            answers["Cost"] = _cost_text(records, label)
    answers["Oracles"] = _oracle_text(records, table)
    return {key: text for key, text in answers.items() if text}


def choice_text(records: Records, label: str) -> str:
    """A sentence that no method was chosen, if there are no validation data."""
    if not lacks_choice(records):
        return ""
    return (
        "Nothing was chosen, because there are no validation data. The following is "
        f"about {display_label(records, label)}, which is listed last."
    )


def interval_text(records: Records, gain: Gain) -> str:
    """A 95 % interval in words."""
    score = score_of(records)
    interval = score.show_interval(gain.low, gain.high)
    return f"95 % interval {interval} {score.quantity}".rstrip()


def certainty_text(records: Records, gain: Gain) -> str:
    """Sentences on what the intervals count."""
    seeds = several(gain.seeds, "seed")
    if gain.samples == 0:
        why = f"this run did not keep the {records.score} of each test sample"
        if gain.seeds < 2:
            return f"Unknown: there is a single seed, and {why}."
        return (
            f"Intervals count {seeds} only, because {why}. They are too narrow, "
            "because they ignore that test data are finite."
        )
    sizes = population(records)["test"]
    least, most = f"{sizes.min():,.0f}", f"{sizes.max():,.0f}"
    each = least if least == most else f"{least} to {most}"
    samples = f"{gain.samples:,} test samples ({each} per client and seed)"
    if gain.seeds < 2:
        return (
            f"Intervals count {samples}. There is a single seed, so they ignore what "
            "another seed would change."
        )
    few = " With three or more seeds, intervals are shorter."
    text = f"Intervals count {seeds} and {samples}, paired by client, sample and seed."
    return text + few * (gain.seeds == 2)


def best_of(records: Records, table: pd.DataFrame) -> tuple[str, str | None]:
    """A sentence on the algorithm with the best mean, and its label if we are sure.

    We are sure of the best if the 95 % interval of its lead over the second is above 0,
    and both ran equally long. Oracles, and methods whose training failed, do not count.
    """
    score = amounts_of(records)
    means_of = rank_methods(records, table["mean"])
    if not means_of:
        return "No algorithm has a mean test score.", None
    first, best = means_of[-1]
    if len(means_of) == 1:
        return f"The mean {score.words} of {first} is {score.show(best)}.", None
    second, next_best = means_of[-2]
    means = f"mean {score.words} {score.show(best)}"
    means += f", and {second} comes next with {score.show(next_best)}"
    if table["round"].loc[[first, second]].nunique() > 1:
        lengths = "virtual times" if axis_of(records).has_clock else "numbers of rounds"
        return f"{first} leads: {means}; they ran for different {lengths}.", None
    lead = gain_of(records, first, over=second)
    size = f"a difference of {score.show_gain(lead.mean)}"
    size += f", {interval_text(records, lead)}"
    if lead.verdict == "gains":
        return f"{first} is best: {means}, {size}.", first
    tied = [
        label
        for label, _ in means_of[-3::-1]
        if gain_of(records, first, over=label).verdict != "gains"
    ]
    also = f" Nor can we tell {first} from {some_of(tied)}." if tied else ""
    text = f"A tie: {first} leads with {means}. We cannot tell the two apart"
    return f"{text}: {size}.{also}", None


def _cost_text(records: Records, label: str) -> str:
    """An algorithm's cost, compared with training alone and with one model for all."""
    local, names = local_label(records), dict(planned_algorithms(records))
    one = next((a for a in labels_of(records) if names.get(a) == "fedavg"), None)
    own, alone = costs_of(records, label), costs_of(records, str(local))
    parts = []
    if own["gradients"] > 0 and alone["gradients"] > 0:
        ratio = own["gradients"] / alone["gradients"]
        more = as_many(ratio, "gradients", str(local))
        parts.append(f"{more} ({large(own['gradients'])})")
    if np.isfinite(own["bytes"]):
        sent = f"{in_bytes(own['bytes'])} sent and received"
        theirs = costs_of(records, one)["bytes"] if one not in (None, label) else 0
        if theirs > 0:
            sent += f", {as_many(own['bytes'] / theirs, 'bytes', str(one))}"
        parts.append(sent)
    if np.isfinite(own["seconds"]) and np.isfinite(alone["seconds"]):
        parts.append(
            f"{seconds_of(own['seconds'])} of training here, {local} "
            f"{seconds_of(alone['seconds'])} (median over seeds)"
        )
    if not parts:
        return ""
    return f"{label}: {'; '.join(parts)}.{_equal_text(records, label)}"


def _equal_text(records: Records, label: str) -> str:
    """A sentence on who leads if all compute only as many gradients as the cheapest."""
    if "gradients" not in records.rounds:
        return ""
    _, means = at_equal_cost(records, "gradients")
    score = amounts_of(records)
    places = rank_methods(records, means)
    if not places or not np.isfinite(means.get(label, np.nan)):
        return ""
    first, best = places[-1]
    if first == label:
        return f" At equal gradients it is ahead too, with {score.show(best)}."
    return (
        f" At equal gradients it is behind: {score.show(means[label])}, and {first} "
        f"{score.show(best)}."
    )


def _oracle_text(records: Records, table: pd.DataFrame) -> str:
    """A sentence on the scores of oracles."""
    score, means = amounts_of(records), table["mean"]
    told = [label for label in labels_of(records) if label in records.oracles]
    if not told:
        return ""
    reached = join_names([f"{label} ({score.show(means[label])})" for label in told])
    know, be = ("knows", "is") if len(told) == 1 else ("know", "are")
    return (
        f"{reached} {know} the true clusters or optima, which others must find out, "
        f"and {be} never ranked."
    )


def shortfall_text(records: Records) -> str:
    """Sentences on what an interrupted study lacks, or nothing if it is complete."""
    goal, missing = shortfalls(records)
    if not missing:
        return ""
    return (
        "This study is not complete: some runs ended before "
        f"{axis_of(records).at(goal)} "
        f"({_first(missing)}). The report shows what is there. For each algorithm, "
        "only the seeds that got furthest count."
    )


def infinite_text(records: Records) -> str:
    """Sentences on infinite or NaN losses of finite models, or nothing."""
    found = infinite_losses(records)
    if not found:
        return ""
    return (
        "Some losses are not finite, although the models are: "
        f"{_first(found)}. Means with them are not finite either. A smaller step size "
        "usually helps."
    )


def _first(texts: Sequence[str]) -> str:
    """The first twelve texts, and the number of the others."""
    more = [f"and {len(texts) - 12} more"] if len(texts) > 12 else []
    return "; ".join([*texts[:12], *more])
