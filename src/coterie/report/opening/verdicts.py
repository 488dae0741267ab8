"""The result of a study in a few everyday sentences, for the page and the terminal.

"Better" and "worse" compare a client's measured test score with training alone. We are
"sure" if the 95 % interval of the difference is on one side of zero. A text says that a
method helps only if it also beats a constant prediction. Validation data choose this
method; it is never an oracle.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from ...records import Records
from ...records.cells import CONSTANT
from ...scores.baselines import (
    baseline_labels,
    baseline_summary,
    baseline_words,
    best_alone,
    gain_over_baseline,
    is_constant,
)
from ...scores.failures import failures
from ...scores.finals import display_label, labels_of, local_label
from ...scores.gains import Gain, gain_of
from ...scores.promises import promise_of
from ...scores.summaries import favourite_of, rank_methods
from ...scores.words import all_of, count_in_words
from ..headlines import choice_text, infinite_text, shortfall_text
from .costs import cost_text
from .groups import groups_text
from .notices import (
    small_text,
    undertrained_text,
    unset_steps_text,
    weak_local_text,
)
from .nouns import MOST_NAMED, amounts_of, client_nouns, names_of


def headline(records: Records, table: pd.DataFrame) -> dict[str, str]:
    """Texts by topic: choice, verdict, groups, cost, privacy, notice."""
    label = subject_of(records)
    answers = {
        "Choice": choice_text(records, label) if label else "",
        "Verdict": " ".join(filter(None, verdict_of(records, table))),
        "Groups": groups_text(records, label) if label else "",
        "Cost": cost_text(records, label) if label else "",
        "Privacy": promise_of(records) if "privacy" in records.study else "",
        "Notice": " ".join(notices_of(records)),
    }
    return {key: text for key, text in answers.items() if text}


def notices_of(records: Records) -> list[str]:
    """What a reader must know before believing the verdict, a sentence or two each."""
    found = [shortfall_text(records), infinite_text(records)]
    found += [weak_local_text(records), undertrained_text(records)]
    found += [unset_steps_text(records.study), small_text(records)]
    return [text for text in found if text]


def subject_of(records: Records) -> str | None:
    """The method that the verdict is about, or None if nothing can be compared."""
    local = local_label(records)
    if local is None or labels_of(records) == [local]:
        return None
    label = favourite_of(records)
    return None if {label, local} & failures(records).keys() else label


_SURE = "We are sure of this average."


class Verdict(NamedTuple):
    """The main sentence, and the details that support it."""

    lead: str
    more: str = ""


class Sides(NamedTuple):
    """The clients by whether a method makes their scores better or worse."""

    better: list[int]
    worse: list[int]
    same: list[int]
    unknown: list[int]
    surely_better: list[int]
    surely_worse: list[int]

    @property
    def total(self) -> int:
        """The number of clients."""
        return sum(map(len, self[:4]))


def sides_of(gain: Gain) -> Sides:
    """The clients by the sign of their gain, and by whether we are sure."""
    means = gain.clients["mean"]
    chosen = (means > 0, means < 0, means == 0, means.isna())
    better, worse, same, unknown = (means.index[some].tolist() for some in chosen)
    sure = gain.clients_with("gains"), gain.clients_with("loses")
    return Sides(better, worse, same, unknown, *sure)


def verdict_of(records: Records, table: pd.DataFrame) -> Verdict:
    """The verdict of a study, which the page and the terminal show first."""
    local, failed = local_label(records), " ".join(failures(records).values())
    label = subject_of(records)
    if label is None or local is None:
        return _nothing(records, table)
    gain = gain_of(records, label)
    average = _average(records, table, label, gain)
    before = _about_baselines(records, table, label)
    name = display_label(records, label)
    sides = side_sentences(records, gain, f"With {name}")
    if "We are sure of the average" in sides:  # which need not be said twice
        average = average.removesuffix(f" {_SURE}")
    if is_constant(records, label):
        return Verdict(before, f"{average} {failed}".strip())
    if before:
        own = f"The following compares with `{local}`, our own training alone."
        return Verdict(before, " ".join([own, sides, average, failed]).strip())
    return Verdict(sides, f"{average} {failed}".strip())


def _nothing(records: Records, table: pd.DataFrame) -> Verdict:
    """The reason why nothing can be compared, and the best score if there is one."""
    local, failed = local_label(records), failures(records)
    best = rank_methods(records, table["mean"])
    more = [*failed.values()]
    if local is None:
        lead = "This study does not train `local`, so we cannot say who does better "
        lead += "than alone."
    elif labels_of(records) == [local]:
        lead = "Only training alone was run, so there is nothing to compare."
    else:
        which = "training alone" if local in failed else "all other training"
        lead = f"We cannot compare anything with training alone: {which} failed."
    if best:
        label, mean = best[-1]
        amounts = amounts_of(records)
        text = f"The best mean {amounts.words} is {amounts.show(mean)}, with {label}"
        constant = is_constant(records, label)
        more.append(f"{text}: no better than a constant." if constant else f"{text}.")
    return Verdict(lead, " ".join(more))


def side_sentences(records: Records, gain: Gain, named: str) -> str:
    """Sentences on how many clients get a better or worse model, and how sure we are.

    `named` is the beginning of the first sentence, such as "With coteries".
    """
    sides, (one, many) = sides_of(gain), client_nouns(records)
    total, better = sides.total, len(sides.better)
    if better == total:
        who = f"{all_of(total, many)} get" if total > 1 else f"the {one} gets"
    elif better:
        verb = "gets" if better == 1 else "get"
        who = f"{count_in_words(better)} of {count_in_words(total)} {many} {verb}"
    else:
        nobody = "neither" if total == 2 else "none"
        who = f"{nobody} of the {count_in_words(total)} {many} gets"
    worse = len(sides.worse)
    if total == 1 and worse:
        what = f"{named}, the {one} gets a worse model by learning together."
        return f"{what} {_sure(records, sides, average=False)}"
    if total == 1 and not better:
        who = f"the {one} does not get"
    said = [f"{named}, {who} a better model by learning together."]
    if worse:
        few = worse <= MOST_NAMED
        names = f" ({names_of(records, sides.worse)})" if few else ""
        verb = "gets" if worse == 1 else "get"
        said.append(f"{count_in_words(worse).capitalize()} {verb} a worse one{names}.")
    elif better < total and total > 1:
        said.append("None gets a worse one.")
    if sides.same and total > 1:
        said.append(f"For {count_in_words(len(sides.same))} nothing changes.")
    if sides.unknown:
        said.append(
            f"{count_in_words(len(sides.unknown)).capitalize()} cannot be compared."
        )
    if better or worse:
        said.append(_sure(records, sides, average=gain.verdict != "cannot tell"))
    return " ".join(said)


def _sure(records: Records, sides: Sides, *, average: bool) -> str:
    """A sentence on how many clients we are sure about, or at least the average."""
    more, less = len(sides.surely_better), len(sides.surely_worse)
    changed, one = len(sides.better) + len(sides.worse), client_nouns(records)[0]
    if sides.total == 1:
        return f"We are {'sure' if more or less else 'not sure'} about it."
    if not more and not less:
        if average:
            return f"We are sure of the average, but not about any single {one}."
        return f"We are not sure about any {one}."
    if not less:
        every = more == changed and more > 1
        return f"We are sure about {all_of(more) if every else count_in_words(more)}."
    few = less <= MOST_NAMED
    names = names_of(records, sides.surely_worse) if few else count_in_words(less)
    verb = "gets" if less == 1 else "get"
    bad = f"that {names} {verb} a worse one"
    if not more:
        return f"We are sure {bad}."
    verb = "gets" if more == 1 else "get"
    return f"We are sure that {count_in_words(more)} {verb} a better one, and {bad}."


def _average(records: Records, table: pd.DataFrame, label: str, gain: Gain) -> str:
    """Sentences on both mean scores, their difference, and whether it may be chance."""
    mean, alone = (table["mean"][a] for a in (label, str(local_label(records))))
    amounts = amounts_of(records)
    if not np.isfinite(gain.mean):
        return "The average over clients cannot be compared with training alone."
    text = f"On average, the {amounts.words} is {amounts.show(mean)} together and "
    text += f"{amounts.show(alone)} alone"
    if gain.mean == 0:
        return f"{text}: no difference."
    better = "better" if gain.mean > 0 else "worse"
    text += f", which is {amounts.size(gain.mean)} {better}"
    if not np.isfinite(gain.high - gain.low):
        return f"{text}. We do not know how sure that is."
    interval = f"95 % interval: {amounts.interval(gain.low, gain.high)}"
    sure = gain.verdict != "cannot tell"
    end = _SURE if sure else "That may be chance."
    return f"{text} ({interval}). {end}"


_SMALL = 0.01
"""An unsure difference below this share of the score is not mentioned first."""


def _matters(lead: Gain, mean: float) -> bool:
    """Whether a baseline is surely better, or better by more than `_SMALL`."""
    return lead.verdict == "loses" or lead.mean < -_SMALL * abs(mean)


def _about_baselines(records: Records, table: pd.DataFrame, label: str) -> str:
    """Sentences if a baseline is as good as learning together, or nothing."""
    said, best = [], rank_methods(records, table["mean"])
    if not best or not baseline_labels(records):
        return ""
    first, mean = best[-1]
    amounts, (one, _) = amounts_of(records), client_nouns(records)
    beside = baseline_summary(records)["mean"]
    alone = best_alone(records)
    lead = None if alone is None else gain_over_baseline(records, first, alone)
    if alone is not None and lead is not None and _matters(lead, mean):
        sure = lead.verdict == "loses"
        how = "does better than" if sure else "does at least as well as"
        text = f"Plain scikit-learn {how} every method here: "
        text += f"{baseline_words(records, alone)}, trained at each {one} alone, has a "
        text += f"mean {amounts.words} of {amounts.show(beside[alone])}, and {first}, "
        text += f"the best method, of {amounts.show(mean)}."
        said.append(text if sure else f"{text} The difference may be chance.")
    if is_constant(records, label):
        text = f"A constant prediction, the same for every sample of a {one}, is as "
        text += f"good as {label}: its mean {amounts.words} is "
        text += f"{amounts.show(beside[CONSTANT])}. So learning together helps nobody "
        said.append(f"{text}yet.")
    return " ".join(said)
