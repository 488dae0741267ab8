"""Chapters 1, 3 and 5 of Even's thesis, in virtual time and step by step.

Settings are given as `name=value`.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from coterie.checks import integer, number
from coterie.cli import Claim, settings

from .buffers import buffer_claims
from .deadlocks import deadlock_claims, overlap_claims
from .events import (
    deep_claims,
    draw_races,
    exchange_claims,
    race_claims,
    straggler_races,
)
from .figures import CASES, EXPECTED, draw, figure_claims, jump_claims, tuned, with_step
from .networks import harm_claims, lemma_claims, mixing_claims
from .quadratics import limit_claims, straggler_claims, worker_claims
from .table11 import table11_claims
from .topologies import local_claims, statistical_claims, topology_claims
from .walks import lipschitz_claims, sampling_claims

CHAPTER5 = (
    *(exchange_claims, deep_claims, buffer_claims),
    *(lipschitz_claims, topology_claims, statistical_claims),
    *(sampling_claims, local_claims),
    *(mixing_claims, harm_claims, lemma_claims, deadlock_claims, overlap_claims),
)


def record(name: str, claims: Sequence[Claim]) -> Path:
    """The folder of an item, in which all claims are written as a table."""
    folder = Path("runs") / f"even2024-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.csv").open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(Claim._fields)
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


def chapter5(overrides: Sequence[str]) -> list[Claim]:
    """Experiments on chapter 5: AGRAF, graphs and loss networks (two minutes).

    Settings: `share` (of all steps and runs, 1 for the claims), `seed`.
    """
    given = settings(overrides, share=1.0, seed=0)
    share = number("share", given["share"], above=0, at_most=1)
    seed = integer("seed", given["seed"], at_least=0)
    races = straggler_races(share, seed)
    claims = race_claims(races, share)
    for part in CHAPTER5:
        claims += part(share, seed)
    claims.sort(key=lambda claim: claim.what.partition(",")[0])  # by experiment
    draw_races(record("chapter5", claims), races)
    return claims


ITEMS = {"chapter1": chapter1, "chapter3": chapter3, "chapter5": chapter5}
