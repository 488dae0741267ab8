"""Sentences on who learns with whom."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.sparse.csgraph import connected_components

from ...records import Records
from ...scores.finals import planned_algorithms
from ...scores.words import all_of, count_in_words, join_names
from ...types import ALONE, EVERYBODY
from .nouns import client_nouns, names_of

_NAMED = 12
"""Up to this number, clients are named; with more, groups are counted."""

_LEAST = 1e-3
"""A smaller weight counts as none."""


class Groups(NamedTuple):
    """Positions of clients that learn together, and of clients that do not."""

    together: list[list[int]]  # the largest group first
    own: list[int]  # clients that use their own model and from which others learn
    alone: list[int]  # clients that use their own model and from which nobody learns


def groups_text(records: Records, label: str) -> str:
    """Sentences on who learns with whom at the end, or nothing if it is not known."""
    seeds = sorted(seed for name, seed in records.weights if name == label)
    one, many = client_nouns(records)
    if not seeds and any(name == label for name, _ in records.groups):
        return _text_of_labels(records, label)
    if not seeds:
        shared = dict(planned_algorithms(records)).get(label) == "fedavg"
        every = "Both" if records.clients["client"].nunique() == 2 else "All"
        return f"{every} {many} share one model." if shared else ""
    clients = [clients_of(records, seed) for seed in seeds]
    used = [partners_of(records, label, seed) for seed in seeds]
    same = all(np.array_equal(clients[0], who) for who in clients)
    used, end = (used, "") if same else (used[:1], f" That is with seed {seeds[0]}.")
    alike = all(np.array_equal(used[0], each) for each in used)
    share = np.mean(used, axis=0)
    found = groups_of(used[0]) if alike else None
    exact = found is not None
    found = found or groups_of(share > 0.5) or usual_groups(share)
    here = clients[0]
    if found is None:
        others = np.mean(used) * len(here)
        text = f"There are no fixed groups: a {one} learns from {others:.1f} others on "
        return f"{text}average.{end}"
    text = _in_words(records, found, here)
    if not exact:
        text = f"mostly, {text}; partners differ somewhat"
        text += " between seeds" * (len(used) > 1)
    return f"{text[0].upper()}{text[1:]}.{end}"


def _text_of_labels(records: Records, label: str) -> str:
    """As `groups_text`, from labels of groups, if clients are too many for matrices."""
    seeds = sorted(seed for name, seed in records.groups if name == label)
    found = [groups_of_labels(*last_labels(records, label, seed)) for seed in seeds]
    clients = [clients_of(records, seed) for seed in seeds]
    same = all(each == found[0] for each in found)
    same &= all(np.array_equal(clients[0], who) for who in clients)
    text = _in_words(records, found[0], clients[0])
    end = "" if same else f" That is with seed {seeds[0]}."
    return f"{text[0].upper()}{text[1:]}.{end}"


def last_labels(records: Records, label: str, seed: int) -> tuple[np.ndarray, ...]:
    """At the end, the group of each client, and the group whose model it uses."""
    found = records.groups[label, seed]
    return found.member[-1], found.uses[-1]


def groups_of_labels(member: np.ndarray, uses: np.ndarray) -> Groups:
    """The groups of clients that use the same model, and clients with their own model.

    Args:
        member: (N,) the group that a client trains with, or ALONE.
        uses: (N,) the group whose model it uses, or ALONE or EVERYBODY.
    """
    sizes = np.bincount(member[member >= 0], minlength=1)
    # The only member of a group shares the group's model with nobody.
    single = (uses >= 0) & (uses == member) & (sizes[uses.clip(min=0)] == 1)
    uses = np.where(single | ((uses == EVERYBODY) & (len(uses) == 1)), ALONE, uses)
    together = [
        np.flatnonzero(uses == c).tolist() for c in np.unique(uses[uses != ALONE])
    ]
    own = uses == ALONE
    wanted = np.isin(member, uses[uses >= 0]) | (uses == EVERYBODY).any()
    return Groups(
        sorted(together, key=lambda some: (-len(some), some)),
        np.flatnonzero(own & wanted).tolist(),
        np.flatnonzero(own & ~wanted).tolist(),
    )


def clients_of(records: Records, seed: int) -> np.ndarray:
    """The clients that trained with a seed, in the order of the matrices."""
    here = records.clients.loc[records.clients["seed"] == seed, "client"]
    return np.sort(here.to_numpy())


def partners_of(records: Records, label: str, seed: int) -> np.ndarray:
    """(N, N) whether client i uses what client k learns, at the end."""
    used = np.asarray(records.weights[label, seed].matrices[-1]) > _LEAST
    np.fill_diagonal(used, False)
    return used


def groups_of(used: np.ndarray) -> Groups | None:
    """The groups in which members use the same clients, or None if there are no groups.

    Besides each other, members may also use clients that use nobody but themselves.
    """
    rows = used | np.eye(len(used), dtype=bool)
    _, group = np.unique(rows, axis=0, return_inverse=True)
    by_group = [np.flatnonzero(group == k) for k in np.unique(group)]
    singles = sorted(int(some[0]) for some in by_group if len(some) == 1)
    free = {k for k in singles if not used[k].any()}
    together = [some.tolist() for some in by_group if len(some) > 1]
    for some in together:
        if not set(np.flatnonzero(rows[some[0]])) <= {*some, *free}:
            return None
    if set(singles) != free:
        return None
    own = [k for k in singles if used[:, k].any()]
    alone = [k for k in singles if not used[:, k].any()]
    return Groups(sorted(together, key=lambda some: (-len(some), some)), own, alone)


def usual_groups(share: np.ndarray) -> Groups | None:
    """The usual groups over seeds, or None if they vary too much.

    `share` (N, N) is the share of seeds with which client i uses what client k learns.
    Any two clients of a group use each other with at least a third of the seeds, and
    with two thirds on average. Any two clients of different groups use each other with
    less than a third.
    """
    share = (share + share.T) / 2
    _, group = connected_components(share > 0.5, directed=False)
    inside = group[:, None] == group
    pairs = ~np.eye(len(group), dtype=bool)
    within, between = share[inside & pairs], share[~inside]
    if (within < 1 / 3).any() or (between >= 1 / 3).any():
        return None
    if len(within) and within.mean() < 2 / 3:
        return None
    return groups_of(inside & pairs)


def _in_words(records: Records, found: Groups, clients: np.ndarray) -> str:
    """The groups as part of a sentence."""
    together, own, alone = found
    many = client_nouns(records)[1]
    if not together and not own:
        return f"{all_of(len(clients), many)} learn alone"
    if not own and not alone and len(together) == 1:
        return f"{all_of(len(clients), many)} learn together"
    if len(clients) > _NAMED:
        return _counted_groups(found, many)
    parts = [
        f"{names_of(records, clients[k].tolist())} learn together" for k in together
    ]
    for some, what in ((own, "a model of {} own"), (alone, "")):
        if some:
            verb = "s" * (len(some) == 1)
            who = names_of(records, clients[some].tolist())
            kept = what.format("its" if len(some) == 1 else "their")
            parts.append(
                f"{who} use{verb} {kept}" if kept else f"{who} learn{verb} alone"
            )
    return "; ".join(parts)


def _counted_groups(found: Groups, many: str) -> str:
    """The groups as part of a sentence, with numbers of clients instead of names."""
    sizes = [count_in_words(len(some)) for some in found.together]
    if len(sizes) == 1:
        text = f"a group of {sizes[0]} {many} learns together"
    else:
        same = len(set(sizes)) == 1
        each = f"{many} each" if same else many
        shown = sizes[0] if same else join_names(sizes)
        text = f"{count_in_words(len(sizes))} groups of {shown} {each} learn together"
    for some, what in ((found.own, "use"), (found.alone, "learn")):
        if some:
            rest = "models of their own" if what == "use" else "alone"
            if len(some) == 1:
                what, rest = (
                    f"{what}s",
                    rest.replace("models of their", "a model of its"),
                )
            text += f"; {count_in_words(len(some))} {what} {rest}"
    return text
