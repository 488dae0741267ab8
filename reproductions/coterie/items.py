"""What coterie claims beyond the papers, measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import coterie as co
from coterie.cli import Claim, run_with_progress
from coterie.data import Part, divide, load
from coterie.models import build, ravel
from coterie.planning import PilotTraining, prospects_of, run_pilot

from .bench import structures
from .choices import choices
from .others import others

HERE = Path(__file__).parent
ORACLE = "oracle (true clusters)"


def digits(overrides: Sequence[str]) -> list[Claim]:
    """How much of the way from local training to the oracle the estimators go."""
    claims = []
    for split in ("label_clusters", "label_swap"):
        settings = [f"split.name={split}", f"name=digits-{split}", *overrides]
        study = co.read_study(HERE / "digits.toml", settings)
        score = final_accuracy(run_with_progress(study).records.metrics)
        way = (
            score.sub(score["local"], axis=0).mean()
            / (score[ORACLE] - score["local"]).mean()
        )
        for method, value in score.mean().items():
            claims.append(
                Claim(
                    f"{split}: {method}",
                    "-",
                    f"{100 * value:.1f}±{100 * score[method].sem():.1f}",
                    None,
                    f"{100 * way[method]:.0f}% of the way",
                )
            )
        closed = 100 * way["adaptive (split-sample)"]
        claims.append(
            Claim(
                f"{split}: split-sample closes the distance from local to oracle",
                "at least 85%",
                f"{closed:.0f}%",
                bool(closed >= 85),
            )
        )
    return claims


def final_accuracy(metrics: pd.DataFrame) -> pd.DataFrame:
    """Mean over clients of the test accuracy at the last round, seeds x methods."""
    last = metrics[metrics["round"] == metrics["round"].max()]
    keys = ["seed", "algorithm"]
    return last.groupby(keys, sort=False)["test_accuracy"].mean().unstack(sort=False)


# Name: training samples of each client, clusters, their spread, variation, dimensions.
PLANS: dict[str, tuple[list[int], int, float, float, int]] = {
    "8 equal": ([80] * 8, 1, 0.0, 0.0, 6),
    "12 in 3 clusters": ([90] * 12, 3, 1.5, 0.0, 8),
    "12 different, of sizes 200 and 50": ([200] * 4 + [50] * 8, 1, 0.0, 0.15, 8),
    "10 different": ([120] * 10, 1, 0.0, 0.1, 15),
    "6 different in 2 clusters": ([60] * 6, 2, 1.0, 0.1, 5),
}


def plans(overrides: Sequence[str]) -> list[Claim]:
    """Gains that `coterie plan` promises, and those of weighted least squares."""
    del overrides
    claims = []
    for name, (sizes, clusters, spread, variation, dimension) in PLANS.items():
        options = {"clusters": clusters, "spread": spread, "variation": variation}
        pairs = np.array(
            [
                promised_and_measured(
                    seed, sizes, dimension=dimension, noise=1.0, **options
                )
                for seed in range(20, 26)
            ]
        )
        promised, alone, gained = pairs.T
        ratio = promised / (alone / gained)
        within = int(((ratio > 0.5) & (ratio < 2)).sum())
        ours = alone.mean() / gained.mean()
        claims.append(
            Claim(
                f"gain of {name}, mean of six seeds",
                f"plan {promised.mean():.2f}",
                f"{ours:.2f}",
                bool(0.5 < promised.mean() / ours < 2),
                f"{within} of 6 single pilots within a factor of two",
            )
        )
    return claims


def promised_and_measured(
    seed: int, sizes: list[int], *, dimension: int, **options: float
) -> tuple[float, float, float]:
    """The gain of a plan, and mean squared errors alone and with its weights."""
    n = len(sizes)
    shape = {"clients": n, "dimension": dimension, "samples": max(sizes) + 20}
    table = load("linear", seed=seed, **shape, **options)
    whole = divide(table, "natural", seed=seed, validation=0.01, test=0.01)
    index, _ = whole.train.rows(torch.arange(n))
    rows = [index[i, :m] for i, m in enumerate(sizes)]
    size = torch.tensor(sizes)
    part = Part(torch.cat(rows), size.cumsum(0) - size, size)
    federation = replace(whole, train=part)
    module = build(lambda: torch.nn.Linear(dimension, 1, bias=False), seed)
    found = run_pilot(
        federation,
        lambda some: co.Simulation(some, module, batch_size=0, seed=seed),
        PilotTraining(ravel(module), lr=0.1, steps=1, rounds=60, seed=seed),
    )
    likely = prospects_of(found.findings).likely
    x = [federation.features[row].numpy() for row in rows]
    y = [federation.targets[row].numpy() for row in rows]
    grams = np.array([a.T @ a / len(a) for a in x])
    sides = np.array([a.T @ b / len(a) for a, b in zip(x, y, strict=True)])
    assert federation.optima is not None
    errors = []
    for weights in (np.eye(n), likely.weights):
        mixed = np.einsum("ij,jde->ide", weights, grams)
        w = np.linalg.solve(mixed, (weights @ sides)[..., None])[..., 0]
        errors.append(((w - federation.optima.numpy()) ** 2).sum(1).mean())
    return float(1 / np.mean(1 / likely.gain)), errors[0], errors[1]


ITEMS = {
    "digits": digits,
    "plans": plans,
    "structures": structures,
    "choices": choices,
    "others": others,
}

LONG = frozenset({"structures", "choices", "others"})
"""Items that take more than five minutes of one core, or a GPU."""

REFERENCES = frozenset(ITEMS)
"""Nothing here is published: ours are next to our own aims, plans and other methods."""
