"""Tests of ours: clusters that can be found, and how errors and costs grow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import coterie as co
from coterie.cli import Claim, run_with_progress, settings
from coterie.collaboration import same_cluster, threshold_weights
from coterie.seeds import generator

from .claims import EXPECTED, near, states
from .coins import average, without_clusters
from .laws import REAL, calls, means

M = 10  # clusters
STUDY = Path(__file__).parent / "scaling.toml"


def clusters(overrides: Sequence[str]) -> list[Claim]:
    """Means of 10 clusters, whom to trust from S samples; designed (a minute)."""
    sizes = {"clients": 500, "dimension": 20, "rounds": 10, "seeds": 5}
    given = settings(overrides, **sizes)
    n, d, k = given["clients"], given["dimension"], given["rounds"]
    found = [errors_by_weights(n, d, k, seed) for seed in range(given["seeds"])]
    runs = {name: torch.stack([each[name] for each in found]) for name in found[0]}
    mean = {name: float(values.mean()) for name, values in runs.items()}
    expected = EXPECTED["clusters"] if n == 500 else {}
    by_s = [mean[f"S={s}"] for s in (1, 3, 5)]
    return [
        *(near(name, value, runs[name]) for name, value in expected.items()),
        exactly("local is d / (2 K)", mean["local"], d / (2 * k), n * d),
        exactly("oracle is d / (2 K C)", mean["oracle"], d * M / (2 * k * n), M * d),
        states(
            "error falls with S, and S=5 is within twice the oracle",
            ", ".join(f"{value:.3g}" for value in by_s),
            by_s[0] > by_s[1] > by_s[2] and by_s[2] < 2 * mean["oracle"],
        ),
        states(
            "S=1 is too few to collaborate",
            f"{by_s[0]:.2g}",
            by_s[0] > mean["local"],
            expected="worse than local",
        ),
    ]


def errors_by_weights(n: int, d: int, rounds: int, seed: int) -> dict[str, Tensor]:
    """The mean excess after the last call, with weights that are known or found."""
    label = torch.arange(n) % M
    centre = 5 * torch.eye(M, d, dtype=REAL)[label]

    def draw(t: int) -> Tensor:
        rng = generator(seed, "clusters", t)
        return centre + torch.randn(n, d, generator=rng, dtype=REAL)

    early = torch.stack([draw(-s) for s in range(5)])
    weights = {
        "local": torch.eye(n),
        "single": torch.full((n, n), 1 / n),
        "oracle": same_cluster(label),
    }
    for s in (1, 3, 5):
        mean = early[:s].mean(0)
        # Two means of S samples are 2 d / S apart by noise; Delta^2 = 50.
        weights[f"S={s}"] = threshold_weights(
            torch.cdist(mean, mean).square(), 2 * d / s + 25
        )
    errors = {}
    for name, w in weights.items():
        *_, last = calls(average(w), means(draw), torch.zeros_like(centre), rounds)
        errors[name] = (last.state.x - centre).square().sum(1).mean() / 2
    return errors


def exactly(what: str, ours: float, value: float, freedom: int) -> Claim:
    """A sum of squares of so many normal variables is what it should be."""
    return states(
        what,
        f"{ours:.3g}",
        abs(ours / value - 1) < 4 * math.sqrt(2 / freedom),
        "within four standard deviations of one run",
        expected=f"{value:.3g}",
    )


def scaling(overrides: Sequence[str]) -> list[Claim]:
    """Error against cluster size C; All-for-one and All-for-all by cost (a minute).

    Settings are those of `scaling.toml`, and `sizes=[1, 2, 4]`.
    """
    mine = [text for text in overrides if text.startswith("sizes=")]
    sizes = settings(mine, sizes=[1, 2, 4, 8, 16, 32])["sizes"]
    theirs = [text for text in overrides if text not in mine]
    error: dict[int, dict[str, float]] = {}
    for c in sizes:
        study = co.read_study(STUDY, [f"data.clients={5 * c}", *theirs])
        records = run_with_progress(study).records
        last = records.metrics[records.metrics["round"] == study.run.rounds]
        error[c] = last.groupby("algorithm")["distance"].mean().to_dict()
        cost = records.rounds.groupby("algorithm")[["gradients", "bytes"]].last()
    claims = []
    for name in ("All-for-one", "All-for-all"):
        values = [error[c][name] for c in sizes]
        slope = np.polyfit(np.log(sizes), np.log(values), 1)[0]
        claims.append(
            states(
                f"{name}: slope of log error against log C",
                f"{slope:.2f}",
                abs(slope + 1) < 0.15,
                ", ".join(f"{value:.2g}" for value in values),
                expected="-1",
            )
        )
    one, both = cost.loc["All-for-one"], cost.loc["All-for-all"]
    factored = cost.loc["All-for-all, factored"]
    largest = sizes[-1]
    return [
        *claims,
        states(
            f"gradients computed, All-for-one / All-for-all, C={largest}",
            f"{one['gradients'] / both['gradients']:g}",
            one["gradients"] == largest * both["gradients"],
            "the same number of samples",
            expected=f"{largest}",
        ),
        states(
            f"bytes, All-for-one / All-for-all, C={largest}",
            f"{one['bytes'] / both['bytes']:g} ({one['bytes'] / factored['bytes']:g})",
            one["bytes"] == 2 * both["bytes"] == factored["bytes"],
            "models go out only in All-for-one and in the factored form",
            expected="2 (factored: 1)",
        ),
        *without_clusters(),
    ]
