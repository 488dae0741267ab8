"""Compares a run between sites with a simulation of the same participation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ... import seeds
from ...engine.rounds import init_oracle
from ...study import Study
from ...study.setup import federation_of, prepare
from .store import Commit, HubStore


def mask(present: Sequence[int], size: int) -> Tensor:
    """(N,) which members take part."""
    return torch.zeros(size, dtype=torch.bool).index_fill(
        0, torch.tensor(present), True
    )


def commits_in(log: Path) -> list[Commit]:
    """The finished steps in the log of a hub."""
    store = HubStore(log)
    try:
        return store.commits()
    finally:
        store.close()


def simulated_models(
    study: Study, seed: int, commits: Sequence[Commit]
) -> dict[str, Tensor]:
    """(N, D) the final models of each algorithm, in a simulation of a run.

    In every round of the simulation, the clients take part that were present in the
    run.

    Args:
        study: with the rows of all sites as its data.
        seed: one of its seeds.
        commits: the finished steps of the run.
    """
    setup = prepare(study, seed, federation_of(study, seed))
    present = {commit.what: commit.present for commit in commits}
    found = {}
    for entry in study.algorithms:
        algorithm, asked = setup.algorithm(entry), setup.asked_by(entry)
        state = algorithm.init(setup.x.clone(), init_oracle(asked))
        for t in range(1, study.run.rounds + 1):
            who = present[f"{entry.label}, seed {seed}, round {t}"]
            rng = seeds.generator(seed, "algorithm", t)
            oracle = asked.at(t, mask(who, len(asked)))
            state, _ = algorithm.step(state, oracle, rng)
        use = asked.at(study.run.rounds, purpose="use")
        found[entry.label] = algorithm.personal(state, use)
    return found
