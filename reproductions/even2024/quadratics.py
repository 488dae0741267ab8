"""Quadratics in virtual time: delays, numbers of workers, the largest stable step."""

from __future__ import annotations

import math

import torch

from coterie.algorithms.server_sgd import server_sgd
from coterie.cli import Claim
from coterie.engine.clocks import clock
from coterie_theory import asynchrony

from .figures import EXPECTED
from .problems import LAW, REAL, quadratic
from .runs import final, follow, slope


def straggler_claims(updates: int) -> list[Claim]:
    """Check 2: what two slow workers of 20 do to either rule."""
    given = EXPECTED["stragglers"]
    problem = quadratic(torch.logspace(-1.5, 0, 20, dtype=REAL), 20)
    ends: dict[str, list[float]] = {"adaptive": [], "cautious": []}
    means, longest = [], []
    for factor in given["factor"]:
        speeds = [1.0] * 18 + [float(factor)] * 2
        paces = clock(LAW, speeds=speeds)
        # min(1 / (4 L tau), 1 / (4 M L)), as in Theorem 3.2.
        method = server_sgd(lr=1 / (4 * 20 * problem.beta), late="adaptive")
        adaptive = follow(problem, method, paces, updates)
        longest.append(math.ceil(asynchrony.typical_delays(torch.tensor(speeds)).max()))
        lr = asynchrony.cautious_steps(longest[-1], problem.beta)(1, 1)
        cautious = follow(problem, server_sgd(lr=lr), paces, updates)
        ends["adaptive"].append(final(adaptive.gap, 0.2))
        ends["cautious"].append(final(cautious.gap, 0.2))
        means.append(float(adaptive.delay.double().mean()))
    text = {name: ", ".join(f"{v:.2g}" for v in ends[name]) for name in ends}
    known = {name: ", ".join(f"{v:.2g}" for v in given[name]) for name in ends}
    factors = ", ".join(map(str, given["factor"]))
    change = max(ends["adaptive"]) / min(ends["adaptive"])
    return [
        Claim(
            f"stragglers {factors} times slower: gap of adaptive steps",
            known["adaptive"],
            text["adaptive"],
            change <= 3,
            f"changes by a factor {change:.2f}, 3 is allowed",
        ),
        Claim(
            "the same with 1 / (4 L tau_max)",
            known["cautious"],
            text["cautious"],
            ends["cautious"][-1] > 100 * ends["cautious"][0],
            f"collapses; tau_max is {', '.join(map(str, longest))}",
        ),
        Claim(
            "the same: mean delay at most M",
            "at most 20",
            ", ".join(f"{value:.1f}" for value in means),
            max(means) <= 20,
        ),
    ]


def worker_claims(updates: int) -> list[Claim]:
    """Check 3, Table 3.1: K = 400 M updates end at the same gap, whatever M."""
    given = EXPECTED["workers"]
    eigenvalues, gaps, slopes = torch.logspace(-1.5, 0, 20, dtype=REAL), [], []
    for workers in given["numbers"]:
        problem = quadratic(eigenvalues, workers)
        method = server_sgd(lr=1 / (4 * workers * problem.beta), late="adaptive")
        number = max(2, updates * workers // 20)  # 400 M of 8000
        trace = follow(problem, method, clock("constant(1)"), number)
        gaps.append(float(trace.gap[-1]))
        slopes.append(workers * slope(trace.gap))
    numbers = ", ".join(map(str, given["numbers"]))
    return [
        Claim(
            f"M = {numbers} workers in turn, {updates // 20} M updates: gap",
            f"{given['lowest']:.3g} to {given['highest']:.3g}",
            ", ".join(f"{gap:.3g}" for gap in gaps),
            max(gaps) <= 1.1 * min(gaps),
            "the same whatever M, to a tenth: 1/M is left",
        ),
        Claim(
            "the same: M times the decay of ln(gap) per update",
            "the same",
            ", ".join(f"{value:.3g}" for value in slopes),
            max(slopes) <= 1.05 * min(slopes),
        ),
    ]


def limit_claims(updates: int) -> list[Claim]:
    """Check 5: constant steps 2 percent below and above the largest stable one."""
    claims = []
    for workers in (5, 20):
        problem = quadratic(torch.ones(1, dtype=REAL), workers)
        growth = []
        for share in (0.98, 1.02):
            method = server_sgd(lr=share * asynchrony.round_robin_limit(workers))
            number = max(8, updates * workers // 20)
            gap = follow(problem, method, clock("constant(1)"), number).gap
            # Gaps swing, so highest ones are compared, after a quarter to settle.
            quarter = number // 4
            highest = gap[-quarter:].max() / gap[quarter : 2 * quarter].max()
            growth.append(float(highest))
        claims.append(
            Claim(
                f"M = {workers} in turn: gap grows only above the limit of lr L",
                f"{asynchrony.round_robin_limit(workers):.3g}",
                f"times {growth[0]:.2g} at -2%, times {growth[1]:.2g} at +2%",
                growth[0] < 1 < growth[1],
                "the highest gap, of the last quarter and of the second",
            )
        )
    return claims
