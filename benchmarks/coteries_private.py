"""Whether `coteries` protects against noise: private training at several epsilons.

    python benchmarks/coteries_private.py [--seeds 4] [--clients 20] [--steps 5]

Twenty clients of the digits, half of them with other labels, train an MLP in 20 rounds
of 5 steps of 16 samples. A release hides one client (clip 1, delta 1e-4). Local
training tells nothing, so it has no noise. The table shows the mean test accuracy over
clients and seeds in percent, and by how much `coteries` is better than `local`, with
the 95 % interval of its mean over seeds.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import pandas as pd
from scipy.stats import t

from coterie.study import run_study, study_of

EPSILONS = (1, 4, 30, 1000)
METHODS = ("local", "fedavg", "coteries")


def tables(epsilon: float, given: argparse.Namespace) -> dict[str, object]:
    """A study of three methods at one epsilon."""
    options = {"lr": 0.3, "steps": given.steps}
    return {
        "data": {"name": "digits"},
        "split": {"name": "label_swap", "clients": given.clients, "validation": 0.2},
        "model": {"name": "mlp"},
        "privacy": {"clip": 1.0, "epsilon": epsilon, "delta": 1e-4},
        "run": {"rounds": 20, "seeds": list(range(given.seeds)), "batch_size": 16},
        "algorithm": [{"name": name, **options} for name in METHODS],
    }


def scores(epsilon: float, given: argparse.Namespace, folder: Path) -> pd.DataFrame:
    """Mean scores of every seed, in percent: a column for each method."""
    study = study_of(tables(epsilon, given))
    result = run_study(study, runs=folder, notice=lambda line: None)
    last = result.records.metrics
    last = last[last["round"] == last["round"].max()]
    means = last.groupby(["seed", "algorithm"])["test_accuracy"].mean()
    return 100 * means.unstack("algorithm")[list(METHODS)]


def main() -> None:
    """Prints a line for every epsilon."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seeds", type=int, default=4)
    arguments.add_argument("--clients", type=int, default=20)
    arguments.add_argument("--steps", type=int, default=5)
    given = arguments.parse_args()
    began, rows = time.perf_counter(), []
    with tempfile.TemporaryDirectory() as folder:
        for epsilon in EPSILONS:
            found = scores(epsilon, given, Path(folder))
            gain = found["coteries"] - found["local"]
            half = t.ppf(0.975, len(gain) - 1) * gain.sem()
            means = found.mean().round(1).to_dict()
            low, high = gain.mean() - half, gain.mean() + half
            interval = f"{low:+.1f} to {high:+.1f}"
            rows.append({"epsilon": epsilon, **means, "better by": interval})
    print(pd.DataFrame(rows).to_string(index=False))
    print(f"{time.perf_counter() - began:.0f} seconds")


if __name__ == "__main__":
    main()
