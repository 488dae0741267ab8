"""Theorem 8.1: the problem that is as hard as the lower bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.algorithms.all_for_one import all_for_one
from coterie.cli import Claim, settings
from coterie.data import hard_samples
from coterie.seeds import generator
from coterie_theory import collaboration, lower_bounds, rates

from .claims import states
from .laws import REAL, calls, regressions


class Hard(NamedTuple):
    """Groups of clients like the one that is to be helped, and of others."""

    groups: int  # independent repetitions, side by side
    dimension: int
    delta: float
    eps: float


def calls_to(
    hard: Hard, twins: int, far: int = 0, *, share: float | None = None
) -> float:
    """The calls of All-for-one to a mean excess of eps, with its best constant step.

    Weights are those of the theory, from known distances, unless far clients are given
    a share of the weight together. Steps are 16 and 8 times those of the theory,
    among whose multiples the best ones are.
    """
    size, d = twins + far, hard.dimension
    apart = hard.delta * (torch.arange(size) >= twins).to(REAL)
    mu = 2 / d
    if share is None:
        # |grad f_i - grad f_k|^2 = 2 mu (delta_i - delta_k)^2 everywhere.
        distance = math.sqrt(2 * mu) * (apart[:, None] - apart).abs()
        rows = collaboration.all_for_one_weights(distance, hard.eps, mu)
    else:
        row = torch.where(apart > 0, share / max(far, 1), (1 - share) / twins)
        rows = row.expand(size, size)
    losses = rates.LossClass(mu, mu, 1 / twins)  # sigma^2 is about 1
    theory = rates.precision_step(hard.eps, losses)
    most = math.ceil(1 / (theory * mu))  # three times what the best step needs
    drawn = hard_samples(
        apart.repeat(hard.groups),
        generator(twins, "hard"),
        delta=hard.delta,
        dimension=d,
        samples=most,
    )

    def draw(t: int) -> tuple[Tensor, Tensor]:
        return drawn.features[:, t - 1], drawn.targets[:, t - 1]

    law = regressions(draw, factor=2.0)
    weights = torch.block_diag(*[rows] * hard.groups)
    first, found = torch.arange(0, len(law), size), math.inf
    for factor in (16, 8):
        method = all_for_one(weights, lr=theory * factor)
        x = torch.full_like(drawn.optima, 0.5)
        for r in calls(method, law, x, int(min(most, found))):
            off = (r.state.x[first] - drawn.optima[0]).square().mean()
            if off <= hard.eps:
                found = r.t
                break
    return found


def hard_instance_calls(overrides: Sequence[str]) -> list[Claim]:
    """Theorem 8.1: calls of All-for-one against the number of twins (two minutes)."""
    sizes = {"groups": 20, "dimension": 20, "far": 8, "precision": 36}
    given = settings(overrides, **sizes, twins=[1, 2, 4, 8, 16, 32])
    delta, d = 0.25, given["dimension"]
    hard = Hard(given["groups"], d, delta, delta**2 / given["precision"])
    k = {twins: calls_to(hard, twins) for twins in given["twins"]}
    slope = np.polyfit(np.log(list(k)), np.log(list(k.values())), 1)[0]
    few, far = 4, given["far"]
    alone = k[few] if few in k else calls_to(hard, few)
    with_far = calls_to(hard, few, far)
    given_share = {w: calls_to(hard, few, far, share=w) for w in (0.05, 0.1, 0.25)}
    shown = ", ".join(
        f"{w:g}: {'not reached' if math.isinf(v) else v}"
        for w, v in given_share.items()
    )
    least = lower_bounds.fano_calls(torch.full((1,), delta, dtype=REAL), d)
    return [
        Claim(
            f"calls to eps = {hard.eps:.2g} with {', '.join(map(str, k))} twins",
            "-",
            ", ".join(str(value) for value in k.values()),
            None,
            f"no method needs less than {least:.1f} / twins",
        ),
        states(
            "slope of log calls against log twins",
            f"{slope:.2f}",
            abs(slope + 1) < 0.15,
            "20 groups: each number of calls is known to about 10 percent",
            expected="-1",
        ),
        states(
            "above the lower bound",
            "yes" if all(v > least / c for c, v in k.items()) else "no",
            all(v > least / c for c, v in k.items()),
        ),
        states(
            f"{few} twins and {far} far clients: no fewer calls, and no more",
            str(with_far),
            # Other samples: two numbers of calls, each known to about 10 percent.
            abs(math.log(with_far / alone)) < 0.35,
            "b^2 > 4 mu eps",
            expected=str(alone),
        ),
        states(
            "weight for far clients does not help",
            shown,
            all(value >= 0.9 * with_far for value in given_share.values()),
            "calls by their share of the weight",
            expected=f"at least {with_far}",
        ),
    ]
