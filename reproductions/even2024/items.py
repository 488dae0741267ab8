"""Chapters 1 to 7 and 9 to 11 of Even's thesis, in virtual time and step by step.

Settings are given as `name=value`.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from coterie.checks import InputError, integer, number
from coterie.cli import Claim, settings

from . import stability
from .braess import braess_claims
from .buffers import buffer_claims
from .chapter6 import draw_curves as draw_chapter6
from .chapter6 import draw_nodes, draw_profiles
from .communities import friends_claims
from .continuized import descent_claims, draw_curves, noise_claims, sample_claims
from .deadlocks import deadlock_claims, overlap_claims
from .dropouts import dropout_claims, table61_claims
from .duals import dual_claims
from .events import (
    deep_claims,
    draw_races,
    exchange_claims,
    race_claims,
    straggler_races,
)
from .figures import CASES, EXPECTED, draw, figure_claims, jump_claims, tuned, with_step
from .gossip_losses import (
    counter_claims,
    cube_claims,
    places_claims,
    profile_claims,
    profiles,
)
from .gossip_races import draw_gossip, gossip_claims, thousand_claims
from .networks import harm_claims, lemma_claims, mixing_claims
from .preconditioning import (
    condition_claims,
    draw_rounds,
    library_claims,
    race,
    rounds_claims,
)
from .private_descent import accuracy_claims, loss_claims
from .quadratics import limit_claims, straggler_claims, worker_claims
from .speedups import draw_figure41, speedup_claims
from .structure import (
    cluster_claims,
    logistic_claims,
    message_claims,
    newcomer_claims,
    one_sample_claims,
    regression_claims,
)
from .table11 import table11_claims
from .token_races import race_claims as token_race_claims
from .token_races import sag_claims, sizes_claims
from .tokens import (
    floor_claims,
    hard_claims,
    interpolation_claims,
    system_claims,
    time_claims,
    time_of_hops_claims,
    two_state_claims,
)
from .topologies import local_claims, statistical_claims, topology_claims
from .walks import lipschitz_claims, sampling_claims

CHAPTER2 = (
    *(descent_claims, sample_claims, noise_claims, dual_claims),
    *(gossip_claims, thousand_claims),
)
CHAPTER5 = (
    *(exchange_claims, deep_claims, buffer_claims),
    *(lipschitz_claims, topology_claims, statistical_claims),
    *(sampling_claims, local_claims),
    *(mixing_claims, harm_claims, lemma_claims, deadlock_claims, overlap_claims),
)


CHAPTER7 = (
    *(time_claims, sag_claims, two_state_claims, interpolation_claims, floor_claims),
    *(token_race_claims, sizes_claims, time_of_hops_claims, hard_claims),
    system_claims,
)


CHAPTER9 = (
    *(regression_claims, cluster_claims, newcomer_claims, one_sample_claims),
    *(logistic_claims, message_claims),
)


def share_and_seed(overrides: Sequence[str]) -> tuple[float, int]:
    """The two settings of most items."""
    given = settings(overrides, share=1.0, seed=0)
    share = number("share", given["share"], above=0, at_most=1)
    return share, integer("seed", given["seed"], at_least=0)


def record(name: str, claims: Sequence[Claim]) -> Path:
    """The folder of an item, in which all claims are written as a table."""
    folder = Path("runs") / f"even2024-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.csv").open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        heading = {"published": "reference"} if name in REFERENCES else {}
        table.writerow(heading.get(field, field) for field in Claim._fields)
        table.writerows(claims)
    return folder


def chapter1(overrides: Sequence[str]) -> list[Claim]:
    """Table 1.1: plain and randomised gossip on graphs of growing size (10 seconds).

    Settings: `seed`.
    """
    given = settings(overrides, seed=0)
    claims = table11_claims(integer("seed", given["seed"], at_least=0))
    record("chapter1", claims)
    return claims


def chapter2(overrides: Sequence[str]) -> list[Claim]:
    """Experiments on chapter 2: continuized acceleration (one minute).

    Settings: `share` (of all steps and runs, 1 for the claims), `seed`.
    """
    share, seed = share_and_seed(overrides)
    claims = [claim for part in CHAPTER2 for claim in part(share, seed)]
    folder = record("chapter2", claims)
    draw_curves(folder, share, seed)
    draw_gossip(folder, share, seed)
    return claims


def chapter3(overrides: Sequence[str]) -> list[Claim]:
    """Figure 3.1 and Tables 3.1 and 3.2: asynchronous SGD (three minutes).

    Settings: `updates`, `steps` (how many step sizes are tried), `seed`.
    """
    given = settings(overrides, updates=8000, steps=15, seed=0)
    updates = integer("updates", given["updates"], at_least=100)
    integer("steps", given["steps"], at_least=1)
    found = {case.name: tuned(case, **given) for case in CASES}
    claims = [c for case in CASES for c in figure_claims(case, found[case.name])]
    step = EXPECTED["jump"]["step"]
    seeds = range(given["seed"], given["seed"] + 4)
    recipe = [with_step(CASES[1], step, updates, seed) for seed in seeds]
    claims += jump_claims(found["noiseless"], recipe, step)
    claims += straggler_claims(updates)
    claims += worker_claims(updates)
    claims += limit_claims(updates)
    draw(record("chapter3", claims), found)
    return claims


def chapter4(overrides: Sequence[str]) -> list[Claim]:
    """Figure 4.1: delayed gossip on all edges, and on fewer (two minutes).

    Settings: `share` (of all steps and runs, 1 for the claims), `seed`.
    """
    share, seed = share_and_seed(overrides)
    claims = speedup_claims(share, seed) + braess_claims()
    draw_figure41(record("chapter4", claims), share, seed)
    return claims


def chapter5(overrides: Sequence[str]) -> list[Claim]:
    """Experiments on chapter 5: AGRAF, graphs and loss networks (two minutes).

    Settings: `share` (of all steps and runs, 1 for the claims), `seed`.
    """
    share, seed = share_and_seed(overrides)
    races = straggler_races(share, seed)
    claims = race_claims(races, share)
    for part in CHAPTER5:
        claims += part(share, seed)
    claims.sort(key=lambda claim: claim.what.partition(",")[0])  # by experiment
    draw_races(record("chapter5", claims), races)
    return claims


def chapter6(overrides: Sequence[str]) -> list[Claim]:
    """Figures 6.1 to 6.6, Tables 6.1 to 6.3: private averaging (two minutes).

    Settings: `full` (all sizes and runs of the thesis, longer, see the README), `seed`,
    `data_dir` with the folders `facebook` and `houses`.
    """
    given = settings(overrides, full=False, seed=0, data_dir="")
    if not isinstance(given["full"], bool):
        raise InputError(f"`full` must be true or false, got {given['full']!r}.")
    full, seed = given["full"], integer("seed", given["seed"], at_least=0)
    found = profiles(full)
    cubes, by_size = cube_claims(full)
    near, by_place = places_claims(full, seed)
    facebook, friends = friends_claims(full, seed, given["data_dir"])
    losses, ratios = loss_claims(full, seed)
    accuracies, curves = accuracy_claims(full, seed, given["data_dir"])
    dropouts, runs = dropout_claims(full, seed)
    claims = [*profile_claims(found), *facebook, *losses, *accuracies, *cubes, *near]
    claims += [*dropouts, *table61_claims(), *counter_claims()]
    folder = record("chapter6", claims)
    draw_profiles(folder, found)
    draw_nodes(folder, found, friends)
    draw_chapter6(folder, by_size, by_place, ratios, curves, runs)
    return claims


def chapter7(overrides: Sequence[str]) -> list[Claim]:
    """Checks of chapter 7: a model that walks (two minutes).

    Settings: `share` (of all steps and runs, 1 for the claims), `seed`.
    """
    share, seed = share_and_seed(overrides)
    claims = [claim for part in CHAPTER7 for claim in part(share, seed)]
    record("chapter7", claims)
    return claims


def chapter9(overrides: Sequence[str]) -> list[Claim]:
    """Experiments on chapter 9: a shared subspace, centres (one minute).

    Settings: `share` (of clients and runs, 1 for the claims), `seed`.
    """
    share, seed = share_and_seed(overrides)
    claims = [claim for part in CHAPTER9 for claim in part(share, seed)]
    record("chapter9", claims)
    return claims


def chapter10(overrides: Sequence[str]) -> list[Claim]:
    """E10.1: rounds of statistical preconditioning and SPAG (two minutes).

    Settings: `share` (of all rounds, 1 for the claims), `seed`.
    """
    share, seed = share_and_seed(overrides)
    races = [race(decay, share, seed) for decay in (0, 1, 2)]
    claims = rounds_claims(races, share) + condition_claims(races)
    claims += library_claims(share, seed)
    draw_rounds(record("chapter10", claims), races)
    return claims


def chapter11(overrides: Sequence[str]) -> list[Claim]:
    """Figures 11.1 to 11.3: diagonal linear networks and large steps (three minutes).

    Settings: `share` (of all steps and runs, 1 for the claims), `seed`.
    """
    share, seed = share_and_seed(overrides)
    found, folder = stability.shapes(share, seed), record("chapter11", [])
    claims = stability.step_claims(share, seed) + stability.shape_claims(found, share)
    claims += stability.edge_claims(folder, share, seed)
    claims += stability.sampling_claims(share, seed)
    record("chapter11", claims)
    stability.draw_steps(folder, share, seed)
    stability.draw_shapes(folder, found)
    return claims


ITEMS = {
    "chapter1": chapter1,
    "chapter2": chapter2,
    "chapter3": chapter3,
    "chapter4": chapter4,
    "chapter5": chapter5,
    "chapter6": chapter6,
    "chapter7": chapter7,
    "chapter9": chapter9,
    "chapter10": chapter10,
    "chapter11": chapter11,
}

REFERENCES = frozenset(ITEMS) - {"chapter1"}
"""Items whose numbers are those of independent scripts, as the thesis prints none."""
