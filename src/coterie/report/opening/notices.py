"""Notices about a study, such as unfinished training and clients with few samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...algorithms import ALGORITHMS
from ...checks import parameters_of
from ...records import Records
from ...scores.baselines import (
    baseline_summary,
    baseline_words,
    best_alone,
    gain_over_baseline,
)
from ...scores.failures import failures
from ...scores.finals import (
    final_scores,
    labels_of,
    local_label,
    mean_over_seeds,
    population,
    runs_of,
    seed_means,
)
from ...scores.words import join_names
from .nouns import MOST_NAMED, amounts_of, client_nouns

FEW = 20
"""With fewer test samples, a client's own score says little."""

_SHARE = 0.05
"""A loss still falls if more than this share of its fall is in the last fifth."""


def weak_local_text(records: Records) -> str:
    """A text if a scikit-learn model, trained alone, is surely better than `local`."""
    local, alone = local_label(records), best_alone(records)
    gain = gain_over_baseline(records, local, alone) if local and alone else None
    if gain is None or alone is None or gain.verdict != "loses":
        return ""
    leads = [gain_over_baseline(records, label, alone) for label in labels_of(records)]
    if not any(lead is not None and lead.mean > 0 for lead in leads):
        return ""  # because the verdict says so already
    amounts, words = amounts_of(records), baseline_words(records, alone)
    better = baseline_summary(records)["mean"][alone]
    ours = mean_over_seeds(records, final_scores(records, str(local))).mean()
    return (
        f"Training alone can do better than `{local}` does: scikit-learn's {words} has "
        f"a mean {amounts.words} of {amounts.show(better)}, and `{local}` has "
        f"{amounts.show(ours)}. This may explain a part of the gains over `{local}`."
    )


def undertrained_text(records: Records) -> str:
    """A text that names methods whose loss still fell at the end, or nothing."""
    found = [
        label
        for label in labels_of(records)
        if label not in failures(records) and still_falls(records, label)
    ]
    if not found:
        return ""
    verb = "was" if len(found) == 1 else "were"
    return (
        f"Training ended while {join_names(found)} {verb} still improving: more rounds "
        "may give better scores."
    )


def still_falls(records: Records, label: str) -> bool:
    """Whether the mean validation loss fell much in the last fifth of the rounds.

    The answer is yes if two things hold: the loss ends at its lowest value, and more
    than a twentieth of its whole decrease is in the last fifth of the rounds. Without
    validation data, the training loss counts.
    """
    names = ("validation_loss", "train_loss")
    column = next((name for name in names if name in records.metrics), None)
    if column is None:
        return False
    means = seed_means(runs_of(records, label), column).mean(axis=1)
    means = means[np.isfinite(means)]
    if len(means) < 5:
        return False
    rounds, values = means.index.to_numpy(), means.to_numpy()
    late = values[rounds >= rounds[-1] - (rounds[-1] - rounds[0]) / 5]
    fall = values[0] - values[-1]
    return bool(
        fall > 0 and values[-1] <= values.min() and late[0] - late[-1] > _SHARE * fall
    )


def unset_steps_text(study: Mapping[str, Any]) -> str:
    """A text that names methods whose step size was left at its default, or nothing."""
    private = "privacy" in study
    if not private and "time" not in study:
        return ""
    labels = [
        str(entry.get("label", entry["name"]))
        for entry in study.get("algorithm", [])
        if _keeps_usual_step(entry)
    ]
    if not labels:
        return ""
    why, advice = (
        ("leak data that epsilon does not count", "an `lr` that works on public data")
        if private
        else ("take time that is not counted", "`lr`, or search it with [tune]")
    )
    return (
        f"The study does not set `lr` of {join_names(labels)}, so the usual 0.1 is "
        f"used. With [{'privacy' if private else 'time'}], `lr` is not found "
        f"automatically, because finding it would {why}. Set {advice}."
    )


def _keeps_usual_step(entry: Mapping[str, Any]) -> bool:
    """Whether an algorithm has the default `lr` 0.1, and the study does not set it."""
    if "lr" in entry or "lr" in entry.get("tune", {}):
        return False
    maker = ALGORITHMS.get(str(entry["name"]))
    known = {} if maker is None else parameters_of(maker)
    return "lr" in known and known["lr"].default == 0.1


def few_tested(records: Records) -> dict[int, float]:
    """The number of test samples, for each client with few of them."""
    table = population(records).set_index("client")
    table = table[table["scored"] & (table["test"] < FEW)]
    return {int(str(client)): float(size) for client, size in table["test"].items()}


def small_text(records: Records) -> str:
    """A text about clients whose own scores say little, or nothing."""
    few, (one, many) = few_tested(records), client_nouns(records)
    if not few:
        return ""
    if len(few) == int(population(records)["scored"].sum()):
        if len(few) == 1:
            return f"The {one} has fewer than {FEW} test samples: that is too few."
        return (
            f"Every {one} has fewer than {FEW} test samples: that is too few to judge "
            "one by itself. The average over all of them is more certain."
        )
    if len(few) > MOST_NAMED:
        total = int(population(records)["scored"].sum())
        return (
            f"{len(few):,} of {total:,} {many} have fewer than {FEW} test samples: "
            "that is too few to judge one of them by itself."
        )
    names = [f"{records.name_of(c)} ({size:.0f})" for c, size in few.items()]
    names[0] = names[0][0].upper() + names[0][1:]
    verb = "has" if len(few) == 1 else "have"
    them = f"this {one}" if len(few) == 1 else f"one of these {many}"
    return (
        f"{join_names(names)} {verb} fewer than {FEW} test samples: that is too few to "
        f"judge {them} by itself."
    )
