"""What is asked of coteries on the bench, and whether it holds.

Every number is a mean over seeds, and its 95 % interval over seeds stands in the note.
An aim holds if the means of all families meet it. It is missed if in some family the
whole interval misses it. In between, nothing is sure, and nothing is claimed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from coterie.cli import Claim

from .structures import FAMILIES

KEYS = ["data", "family"]


class Aim(NamedTuple):
    """A number of every family that must not be above, or below, a bound."""

    what: str
    bound: float
    found: pd.DataFrame  # of each family: `mean`, and `half` of its interval
    least: bool = False

    @property
    def misses(self) -> pd.Series:
        """Which families miss it."""
        return self._beyond(self.found["mean"])

    @property
    def surely_misses(self) -> pd.Series:
        """Which families miss it with their whole interval; one seed has none."""
        mean, half = self.found["mean"], self.found["half"]
        return self._beyond(mean + half if self.least else mean - half)

    def _beyond(self, value: pd.Series) -> pd.Series:
        return value < self.bound if self.least else value > self.bound


def claims(table: pd.DataFrame) -> list[Claim]:
    """A row for every family, and the numbers that the method must meet."""
    runs = table.set_index([*KEYS, "seed"])
    ours = runs[runs["method"] == "coteries"]
    score = table.pivot_table("score", [*KEYS, "seed"], "method", sort=False)
    means = score.groupby(KEYS, sort=False).mean()
    cost = ours.groupby(KEYS, sort=False).mean(numeric_only=True)
    half = with_interval(ours["score"])["half"]
    found = []
    for place, line in means.iterrows():
        others = line.drop("coteries").dropna()
        shown = ", ".join(f"{name} {value:.1f}" for name, value in others.items())
        error = "" if np.isnan(half[place]) else f"±{half[place]:.1f}"
        mine = f"{line['coteries']:.1f}{error}"
        note = _costs(cost.loc[place])
        found.append(Claim(", ".join(place), shown, mine, None, note))
    return found + [_claim_of(aim) for aim in aims(score, ours) if len(aim.found)]


def _costs(cost: pd.Series) -> str:
    return (
        f"{cost['gradients']:.2f} times local's gradients, {cost['bytes']:.2f} "
        f"times FedAvg's bytes, {cost['time']:.1f} times local's processor time; "
        f"{cost['at_gradients']:.1f} at local's gradients, {cost['at_bytes']:.1f} at "
        f"FedAvg's bytes; {cost['lose']:.1f} % of clients lose"
    )


def aims(score: pd.DataFrame, ours: pd.DataFrame) -> list[Aim]:
    """The aims, of scores and of the costs of coteries, by data, family and seed."""
    asked = score.index.get_level_values("family").map(lambda name: FAMILIES[name].aim)

    def way(of: str) -> pd.DataFrame:
        some = score[asked == of]
        if not len(some):
            return with_interval(some["local"])
        gain = 100 * (some["coteries"] - some["local"])
        return with_interval(gain, some["oracle"] - some["local"])

    skewed, alike = score[asked == "skewed"], score[asked == "alike"]
    behind = [
        Aim(
            f"points below {words}, skewed labels",
            0.5,
            with_interval(skewed[name] - skewed["coteries"]),
        )
        for name, words in (("fine-tuned", "fine-tuned FedAvg"), ("ditto", "Ditto"))
    ]
    apart = with_interval(alike["fedavg"] - alike["coteries"])
    below = with_interval(score["local"] - score["coteries"])
    return [
        Aim("gradients, times local's", 2.5, with_interval(ours["gradients"])),
        Aim("bytes, times FedAvg's", 3, with_interval(ours["bytes"])),
        Aim("points below local", 1, below),
        Aim("clients that lose, %", 5, with_interval(ours["lose"])),
        Aim("way from local to oracle, %", 90, way("groups"), least=True),
        Aim("the same of hard groups, %", 80, way("hard groups"), least=True),
        *behind,
        Aim("points below FedAvg, all alike or noisy", 1, apart),
    ]


def with_interval(top: pd.Series, bottom: pd.Series | None = None) -> pd.DataFrame:
    """The mean of each family over seeds, and half of its 95 % interval.

    With `bottom`, it is the ratio of the two means W, whose error is that of the mean
    of (top - W bottom) / mean(bottom). One seed has no interval.
    """
    bottom = top * 0 + 1 if bottom is None else bottom
    below = bottom.groupby(KEYS, sort=False).transform("mean")
    ratio = top.groupby(KEYS, sort=False).transform("mean") / below
    rest = ((top - ratio * bottom) / below).groupby(KEYS, sort=False)
    half = stdtrit((rest.count() - 1).clip(lower=1), 0.975) * rest.sem()
    mean = ratio.groupby(KEYS, sort=False).first()
    return pd.DataFrame({"mean": mean, "half": half})


def _claim_of(aim: Aim) -> Claim:
    """Whether all families meet it; the worst of them, or those that may miss it."""
    mean = aim.found["mean"]
    worst = mean.idxmin() if aim.least else mean.idxmax()
    surely, misses = aim.surely_misses, aim.misses
    parts = {"missed": surely, "not sure": misses & ~surely}
    notes = [
        f"{word}: {'; '.join(_place(aim.found, place) for place in mean.index[which])}"
        for word, which in parts.items()
        if which.any()
    ]
    note = ". ".join(notes) or f"at worst {_place(aim.found, worst)}"
    published = f"at {'least' if aim.least else 'most'} {aim.bound:g}"
    holds = False if surely.any() else None if misses.any() else True
    return Claim(aim.what, published, f"{mean[worst]:.2f} at worst", holds, note)


def _place(found: pd.DataFrame, place: tuple[str, str]) -> str:
    mean, half = found.loc[place]
    known = f"{mean - half:.2f} to {mean + half:.2f}"
    interval = "one seed" if np.isnan(half) else known
    return f"{', '.join(place)} ({mean:.2f}, {interval})"
