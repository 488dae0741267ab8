"""Table 1 of Fallah, Mokhtari, Ozdaglar (2020), and whether ours agrees.

A row of the table is one study. `python items.py ROW FILE [setting ...]` runs one and
writes its results, seed by seed, to a CSV file; `judge` needs nothing but such tables.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

import coterie as co
from coterie.checks import InputError, one_of
from coterie.cli import Claim, run_with_progress
from coterie.records import Records
from coterie.study import Study

HERE = Path(__file__).parent
ROWS = tomllib.loads((HERE / "expected.toml").read_text())["rows"]
UPDATE, FIRST_ORDER, HESSIAN_FREE = METHODS = (
    "FedAvg + update",
    "Per-FedAvg (FO)",
    "Per-FedAvg (HF)",
)


def study_of(row: str, overrides: Sequence[str] = ()) -> Study:
    """The study of a row of the table."""
    one_of("row", row, ROWS)
    tau, alpha, low = (ROWS[row][name] for name in ("tau", "alpha", "low"))
    settings = [
        f"name=fallah2020-{row}",
        f"algorithm.steps={tau}",
        f"algorithm.alpha={alpha}",
        f"algorithm.tune_lr={alpha}",
        f"split.low={low}",
        # Without the lower class, half the clients have a single one.
        f"split.min_classes={2 if low else 1}",
    ]
    return co.read_study(HERE / f"{ROWS[row]['data']}.toml", [*settings, *overrides])


def table_of(records: Records) -> pd.DataFrame:
    """What a row is judged by: one line for each method and seed, at the last round.

    Accuracies and losses are plain means over the clients, as in the paper; gradients
    and bytes are totals of the run.
    """
    keys = ["algorithm", "seed"]
    metrics = records.metrics[
        records.metrics["round"] == records.metrics["round"].max()
    ]
    parts = [c for c in metrics if str(c).startswith(("validation_", "test_"))]
    means = metrics.groupby(keys, sort=False)[parts].mean()
    costs = records.rounds.groupby(keys, sort=False)[["gradients", "bytes"]].last()
    return means.join(costs).reset_index()


def judge(tables: Mapping[str, pd.DataFrame]) -> list[Claim]:
    """Ours next to the published values, and in how many rows their order holds.

    An order holds in a row if the mean difference over seeds, each the same data and
    start for all methods, is larger than its standard error. It has to in all rows but
    one: five of the six rows of the whole table.
    """
    claims, held = [], {UPDATE: 0, FIRST_ORDER: 0}
    for row, table in tables.items():
        title, published = ROWS[row]["title"], ROWS[row]["accuracy"]
        score = 100 * table.pivot(
            index="seed", columns="algorithm", values="test_accuracy"
        )
        for method, value in zip(METHODS, published, strict=True):
            mean, error = score[method].mean(), score[method].sem()
            claims.append(
                Claim(
                    f"{title}: {method}",
                    f"{value:.1f}",
                    f"{mean:.1f}±{error:.1f}",
                    None,
                    f"{mean - value:+.1f}",
                )
            )
        for position, other in enumerate((UPDATE, FIRST_ORDER)):
            gap = score[HESSIAN_FREE] - score[other]  # paired by seed
            held[other] += bool(gap.mean() > gap.sem())
            claims.append(
                Claim(
                    f"{title}: HF above {other}",
                    f"{published[2] - published[position]:+.1f}",
                    f"{gap.mean():+.2f}±{gap.sem():.2f}",
                    None,
                    "holds" if gap.mean() > gap.sem() else "does not hold",
                )
            )
    needed = max(1, len(tables) - 1)
    for other, count in held.items():
        claims.append(
            Claim(
                f"HF above {other}: rows where it holds",
                f"{len(tables)} of {len(tables)}",
                f"{count} of {len(tables)}",
                count >= needed,
                f"at least {needed}",
            )
        )
    return claims


def run_rows(data: str, overrides: Sequence[str]) -> list[Claim]:
    """Runs the rows of one data set and judges them."""
    rows = [row for row in ROWS if ROWS[row]["data"] == data]
    tables = {
        row: table_of(run_with_progress(study_of(row, overrides)).records)
        for row in rows
    }
    return judge(tables)


def mnist(overrides: Sequence[str]) -> list[Claim]:
    """Table 1, both rows of MNIST, three seeds (35 minutes of one core)."""
    return run_rows("mnist", overrides)


def mnist_small(overrides: Sequence[str]) -> list[Claim]:
    """Table 1, both rows of MNIST, 200 rounds and two seeds (minutes on two cores)."""
    small = ["run.rounds=200", "run.evaluate_every=100", "run.seeds=[0, 1]"]
    return run_rows("mnist", [*small, *overrides])


def cifar10(overrides: Sequence[str]) -> list[Claim]:
    """Table 1, the four rows of CIFAR-10, five seeds (a GPU)."""
    return run_rows("cifar10", overrides)


def table1(overrides: Sequence[str]) -> list[Claim]:
    """Table 1, all six rows as recorded in results/*.csv (seconds)."""
    del overrides
    files = {row: HERE / "results" / f"{row}.csv" for row in ROWS}
    for file in files.values():
        if not file.exists():
            raise InputError(f"the recorded results {file} are missing.")
    return judge({row: pd.read_csv(file) for row, file in files.items()})


ITEMS = {
    "mnist": mnist,
    "mnist-small": mnist_small,
    "cifar10": cifar10,
    "table1": table1,
}

LONG = frozenset({"mnist", "cifar10"})
"""Items that take more than five minutes of one core, or a GPU."""

if __name__ == "__main__":
    name, file, *given = sys.argv[1:]
    table_of(run_with_progress(study_of(name, given)).records).to_csv(file, index=False)
