"""FedRep (Collins et al. 2021), Ditto and corrections of low rank side by side.

Settings are those of the authors' code for 100 clients with two labels each. What is
judged is the order of methods: personal ones above one model for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

import coterie as co
from coterie.checks import InputError
from coterie.cli import Claim, run_with_progress
from coterie.records import Records

HERE = Path(__file__).parent
ONE, PERSONAL = "FedAvg", ("Ditto", "FedRep", "Corrections of rank 2")
SMALL = {
    "mnist": ["split.clients=20", "split.max_samples=100", "run.rounds=20"],
    "cifar10": ["split.clients=20", "split.max_samples=100", "run.rounds=20"],
}
"""Minutes of one core: fewer clients with fewer samples, two seeds, shorter rounds."""

SHORT = [
    *("run.seeds=[0, 1]", "run.participation=0.5", "run.evaluate_every=20"),
    *("run.device=cpu", "algorithm.steps=7"),
    *("algorithm.FedRep.head_steps=70", "algorithm.Corrections of rank 2.own_steps=70"),
]


def table_of(records: Records) -> pd.DataFrame:
    """One line for each method and seed, at the last round: means over clients."""
    last = records.metrics["round"] == records.metrics["round"].max()
    keys = ["algorithm", "seed"]
    scores = records.metrics[last].groupby(keys, sort=False)
    worst = scores["test_accuracy"].quantile(0.1).rename("worst_tenth")
    costs = records.rounds.groupby(keys, sort=False)[["gradients", "bytes"]].last()
    means = scores[["validation_accuracy", "test_accuracy"]].mean()
    return means.join(worst).join(costs).reset_index()


def judge(data: str, table: pd.DataFrame) -> list[Claim]:
    """Accuracies, and whether personal models are above the one for all, on all seeds.

    One seed alone is shown, and not judged.
    """
    score = 100 * table.pivot(index="seed", columns="algorithm", values="test_accuracy")
    tenth = 100 * table.pivot(index="seed", columns="algorithm", values="worst_tenth")
    claims = [
        Claim(
            f"{data}: {method}, mean accuracy of clients",
            "-",
            f"{score[method].mean():.1f}",
            None,
            f"the worst tenth at most {tenth[method].mean():.1f}",
        )
        for method in score
    ]
    for method in PERSONAL:
        gap = score[method] - score[ONE]  # paired by seed
        claims.append(
            Claim(
                f"{data}: {method} above {ONE}",
                "above",
                f"{gap.mean():+.1f}",
                bool(gap.min() > 0) if len(gap) > 1 else None,
                f"seeds: {len(gap)}",
            )
        )
    return claims


def run(data: str, overrides: Sequence[str]) -> list[Claim]:
    """Runs the study of a data set and judges it."""
    study = co.read_study(HERE / f"{data}.toml", list(overrides))
    records = run_with_progress(study).records
    folder = Path("runs") / f"collins2021-{data}"
    folder.mkdir(parents=True, exist_ok=True)
    table = table_of(records)
    table.to_csv(folder / f"{data}.csv", index=False)
    return judge(data, table)


def mnist(overrides: Sequence[str]) -> list[Claim]:
    """MNIST, 100 clients, three seeds (a GPU; `--set run.device=cpu` for hours)."""
    return run("mnist", overrides)


def mnist_small(overrides: Sequence[str]) -> list[Claim]:
    """MNIST, 20 clients with 100 samples, 20 rounds (minutes on one core)."""
    return run("mnist", [*SMALL["mnist"], *SHORT, *overrides])


def cifar10(overrides: Sequence[str]) -> list[Claim]:
    """CIFAR-10, 100 clients, three seeds (a GPU)."""
    return run("cifar10", overrides)


def cifar10_small(overrides: Sequence[str]) -> list[Claim]:
    """CIFAR-10, 20 clients with 100 samples, 20 rounds (minutes on one core)."""
    return run("cifar10", [*SMALL["cifar10"], *SHORT, *overrides])


def recorded(overrides: Sequence[str]) -> list[Claim]:
    """What results/*.csv have recorded (seconds)."""
    del overrides
    files = sorted((HERE / "results").glob("*.csv"))
    if not files:
        raise InputError(f"no results are recorded in {HERE / 'results'}.")
    return [c for file in files for c in judge(file.stem, pd.read_csv(file))]


ITEMS = {
    "mnist": mnist,
    "mnist-small": mnist_small,
    "cifar10": cifar10,
    "cifar10-small": cifar10_small,
    "recorded": recorded,
}

LONG = frozenset({"mnist", "cifar10"})
"""Items that take more than five minutes of one core, or a GPU."""
