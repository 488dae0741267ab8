"""What coterie claims beyond the papers, measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

import coterie as co
from coterie.reproduce import Claim, run_shown

HERE = Path(__file__).parent
ORACLE = "oracle (true clusters)"


def digits(overrides: Sequence[str]) -> list[Claim]:
    """How much of the way from local training to the oracle the estimators go."""
    claims = []
    for split in ("label_clusters", "label_swap"):
        settings = [f"split.name={split}", f"name=digits-{split}", *overrides]
        study = co.read_study(HERE / "digits.toml", settings)
        score = final_accuracy(run_shown(study).records.metrics)
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


ITEMS = {"digits": digits}
