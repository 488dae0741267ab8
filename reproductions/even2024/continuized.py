"""Chapter 2 of Even's thesis: continuized acceleration.

The chapter has no figures; these are experiments on what it states. Losses are
quadratics x' H x / 2 with diagonal H, whose minimum is at 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

import coterie_theory.decentralised.continuized as bounds
from coterie.cli import Claim, Line, Panel, draw_panels
from coterie_theory.descent import continuized as methods

from .figures import EXPECTED
from .problems import REAL


def generator(seed: int) -> torch.Generator:
    """A stream of its own."""
    return torch.Generator().manual_seed(seed)


class Quadratic(NamedTuple):
    """Eigenvalues, and where runs start."""

    h: Tensor  # (d,)
    start: Tensor  # (d,)

    def gap(self, x: Tensor) -> Tensor:
        """The loss of each run."""
        return (self.h * x**2).sum(-1) / 2

    def grad(self, x: Tensor, rng: torch.Generator) -> Tensor:
        """Without noise."""
        return self.h * x


def spread(least: float, d: int) -> Quadratic:
    """Eigenvalues from `least` to 1, log-spaced, and a start of ones."""
    h = torch.logspace(math.log10(least), 0, d, dtype=REAL)
    return Quadratic(h, torch.ones(d, dtype=REAL))


def gradient_descent(problem: Quadratic, steps: int) -> Tensor:
    """Gaps after each of the steps 1 / L."""
    k = torch.arange(1, steps + 1, dtype=REAL)[:, None]
    return problem.gap((1 - problem.h) ** k * problem.start)


def gaps(problem: Quadratic, points: Iterator[methods.Points]) -> Tensor:
    """(steps,) or (steps, runs)."""
    return torch.stack([problem.gap(now.x) for now in points])


def slope(x: Tensor, y: Tensor) -> float:
    """Of a straight line through points."""
    x = x - x.mean()
    return float((x * y).sum() / (x * x).sum())


# E2a: gradient descent, Nesterov, continuized.


class Curves(NamedTuple):
    """Gaps after each gradient, (K,), and of some runs."""

    descent: Tensor
    nesterov: Tensor
    continuized: Tensor  # the mean of runs
    runs: Tensor  # (K, runs)


def curves(problem: Quadratic, mu: float, steps: int, runs: int, seed: int) -> Curves:
    """All methods on the same problem; mu = 0 has the convex schedules."""
    rng = generator(seed)
    schedule = methods.strongly_convex(1.0, mu) if mu else methods.convex(1.0)
    times = methods.arrivals(runs, steps, rng=rng)
    start = problem.start.expand(runs, -1)
    found = methods.continuized(problem.grad, schedule, start, times, rng)
    each = gaps(problem, found)
    discrete = methods.nesterov(
        problem.grad, problem.start, steps, rng, smoothness=1.0, curvature=mu
    )
    return Curves(
        gradient_descent(problem, steps), gaps(problem, discrete), each.mean(1), each
    )


def descent_claims(share: float, seed: int) -> list[Claim]:
    """Slopes and rates of gradient descent, Nesterov and the continuized method."""
    steps, runs = max(200, int(1000 * share)), max(20, int(400 * share))
    flat = curves(spread(1e-6, 120), 0.0, steps, runs, seed)
    claims = []
    k = torch.arange(1, steps + 1, dtype=REAL).log()
    late = slice(steps // 20, None)
    for name, curve, wanted in (
        ("gradient descent", flat.descent, -1.0),
        ("Nesterov", flat.nesterov, -2.0),
        ("continuized", flat.continuized, -2.0),
    ):
        found = slope(k[late], curve[late].log())
        agrees = abs(found - wanted) < 0.25
        what = f"E2a, convex, slope of the gap in k: {name}"
        claims.append(Claim(what, f"{wanted:g}", f"{found:.2f}", agrees))
    steep, mu = curves(spread(1e-3, 60), 1e-3, steps, runs, seed), 1e-3
    half = slice(steps // 2, None)
    k = torch.arange(1, steps + 1, dtype=REAL)
    for name, curve, least in (
        ("gradient descent", steep.descent, mu),
        ("Nesterov", steep.nesterov, math.sqrt(mu)),
        ("continuized, mean", steep.continuized, math.sqrt(mu)),
        ("continuized, median", steep.runs.median(1).values, math.sqrt(mu)),
    ):
        found = -slope(k[half], curve[half].log())
        what = f"E2a, strongly convex, rate per gradient: {name}"
        claims.append(Claim(what, f">= {least:.3g}", f"{found:.3g}", found >= least))
    level = 1e-3 * float(steep.descent[0])
    ours, theirs = (
        int((curve <= level).int().argmax()) + 1
        for curve in (steep.continuized, steep.nesterov)
    )
    what = "E2a, gradients to 1e-3 of the start: continuized / Nesterov"
    ratio = ours / theirs
    claims.append(Claim(what, "a small constant", f"{ratio:.2f}", ratio < 3))
    return claims + _weighted_claims(share, seed)


def _weighted_claims(share: float, seed: int) -> list[Claim]:
    """Theorem 2.3: weighted gaps at gradients over their bounds."""
    runs, problem, mu = max(100, int(4000 * share)), spread(1e-2, 50), 1e-2
    radius, energy = float(problem.start.norm()), float(problem.gap(problem.start))
    claims = []
    for name, schedule, bound in (
        ("convex", methods.convex(1.0), 2 * radius**2),
        (
            "strongly convex",
            methods.strongly_convex(1.0, mu),
            energy + mu * radius**2 / 2,
        ),
    ):
        rng = generator(seed)
        times = methods.arrivals(runs, 100, rng=rng)
        start, worst = problem.start.expand(runs, -1), 0.0
        for now in methods.continuized(problem.grad, schedule, start, times, rng):
            weight = (
                now.time**2 if name == "convex" else (math.sqrt(mu) * now.time).exp()
            )
            worst = max(worst, float((weight * problem.gap(now.x)).mean()) / bound)
        reference = EXPECTED["chapter2"]["weighted"][name]
        what = f"E2a, Theorem 2.3, {name}: largest mean over its bound"
        note = f"the reference has {reference} on other quadratics"
        claims.append(Claim(what, "<= 1", f"{worst:.2f}", worst <= 1, note))
    return claims


# E2c: single samples.


def sampled(
    h: Tensor, schedule: methods.Schedule, start: Tensor, t: float, seed: int
) -> Tensor:
    """|x_t|^2 / 2 of all runs, from samples a ~ N(0, H) of <a, x>^2 / 2."""
    rng, runs = generator(seed), len(start)
    times = methods.arrivals(runs, int(t + 6 * math.sqrt(t)), rng=rng)

    def grad(x: Tensor, rng: torch.Generator) -> Tensor:
        a = torch.randn(x.shape, generator=rng, dtype=REAL) * h.sqrt()
        return a * (a * x).sum(1, keepdim=True)

    found = methods.Points(start, start, torch.zeros(runs, dtype=REAL))
    for now in methods.continuized(grad, schedule, start, times, rng):
        done = now.time <= t
        found = methods.Points(
            torch.where(done[:, None], now.x, found.x),
            torch.where(done[:, None], now.z, found.z),
            torch.where(done, now.time, found.time),
        )
    last = methods.flow_to(schedule, found, torch.full((runs,), t, dtype=REAL))
    return last.x.square().sum(1) / 2


def sample_claims(share: float, seed: int) -> list[Claim]:
    """Multiplicative noise: a gain for Gaussian features, none for one-hot ones."""
    d, t, runs = 20, max(200.0, 1000 * share), max(50, int(2000 * share))
    h = torch.logspace(-2, 0, d, dtype=REAL)
    samples = bounds.gaussian(h)
    reference = EXPECTED["chapter2"]["samples"]
    start = torch.randn(d, generator=generator(seed), dtype=REAL)
    start *= math.sqrt(2 * reference["start"]) / float(start.norm())
    fast = methods.least_squares(*samples)
    plain = methods.steady(0.0, methods.Jump(1 / samples.smoothness, 0.0))
    many = start.expand(runs, -1)
    ours, theirs = (sampled(h, s, many, t, seed) for s in (fast, plain))
    distance = float((start**2 / h).sum())
    bound = bounds.samples_bound(t, float(start @ start), distance, samples)
    claims = [
        Claim(
            f"E2c, Gaussian, E|x|^2/2 at t = {t:g}, accelerated",
            f"{reference['accelerated']:.1g}",
            f"{float(ours.mean()):.2g}",
            None,
            "the reference is one run of 4000 paths from another start",
        ),
        Claim(
            f"E2c, Gaussian, E|x|^2/2 at t = {t:g}, SGD",
            f"{reference['sgd']:.2g}",
            f"{float(theirs.mean()):.2g}",
            None,
        ),
        Claim(
            "E2c, Gaussian, accelerated is better by",
            "> 10",
            f"{float(theirs.mean() / ours.mean()):.0f}",
            # Less time is less of a gain.
            bool(theirs.mean() > 10 * ours.mean()) if share == 1 else None,
        ),
        Claim(
            "E2c, Gaussian, below Theorem 2.4.2",
            f"<= {bound:.2g}",
            f"{float(ours.mean()):.2g}",
            bool(ours.mean() <= bound),
        ),
    ]
    return [*claims, _one_hot_claim(seed)]


def _one_hot_claim(seed: int) -> Claim:
    """One-hot features: x and z stay one point, and every path is one of SGD."""
    chances = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=REAL)
    constants = bounds.empirical(torch.eye(4, dtype=REAL), chances)
    schedule, apart = methods.least_squares(*constants), 0.0

    def one_hot(x: Tensor, rng: torch.Generator) -> Tensor:
        drawn = torch.multinomial(chances, len(x), replacement=True, generator=rng)
        return torch.nn.functional.one_hot(drawn, 4) * x

    rng = generator(seed)
    times = methods.arrivals(50, 100, rng=rng)
    start = torch.ones(50, 4, dtype=REAL)
    for now in methods.continuized(one_hot, schedule, start, times, rng):
        apart = max(apart, float((now.x - now.z).abs().max()))
    what = "E2c, one-hot, kappa of both kinds; largest distance of x and z"
    kappas = f"{constants.kappa:.3g}, {constants.condition:.3g}; {apart:.1g}"
    agrees = abs(constants.kappa - constants.condition) < 1e-9 and apart < 1e-12
    return Claim(what, "equal; 0: no gain", kappas, agrees)


# E2d: noise that is added.


class Valley(NamedTuple):
    """Mean gaps at times, with what theory says."""

    times: list[float]
    gaps: list[float]
    bound: list[float]
    best: float  # where the bound is smallest


def valley(share: float, seed: int) -> Valley:
    """The convex schedule with noise of standard deviation 0.3."""
    runs, problem, sigma = max(50, int(500 * share)), spread(1e-3, 20), 0.3
    d, radius = len(problem.h), float(problem.start.norm())
    rng = generator(seed)
    times = torch.arange(1, 401, dtype=REAL)

    def grad(x: Tensor, rng: torch.Generator) -> Tensor:
        noise = torch.randn(x.shape, generator=rng, dtype=REAL)
        return problem.h * x + sigma / math.sqrt(d) * noise

    start = problem.start.expand(runs, -1)
    drawn = methods.arrivals(runs, 480, rng=rng)
    found = torch.zeros(len(times), runs, dtype=REAL)
    schedule = methods.convex(1.0)
    for now in methods.continuized(grad, schedule, start, drawn, rng):
        # The last gradient before a time overwrites those before it.
        found = torch.where(now.time <= times[:, None], problem.gap(now.x), found)
    best = bounds.convex_best_time(radius, 1.0, sigma**2)
    told = [bounds.convex_bound(t, radius, 1.0, sigma**2) for t in times.tolist()]
    return Valley(times.tolist(), found.mean(1).tolist(), told, best)


def noise_claims(share: float, seed: int) -> list[Claim]:
    """Noise adds up: there is a time to stop."""
    found = valley(share, seed)
    lowest = min(range(len(found.gaps)), key=found.gaps.__getitem__)
    late, least = found.gaps[-1], found.gaps[lowest]
    at = found.times[lowest]
    valid = all(g <= b for g, b in zip(found.gaps[9:], found.bound[9:], strict=True))
    growth = found.gaps[-1] / found.gaps[len(found.gaps) // 2]
    return [
        Claim(
            "E2d, the gap with noise falls and rises again",
            "a valley",
            f"{found.gaps[0]:.2g}, {least:.2g} at t = {at:g}, {late:.2g}",
            found.gaps[0] > 2 * least and late > 2 * least,
            f"the bound is smallest at t = {found.best:.0f}",
        ),
        Claim(
            "E2d, noise adds up linearly: gap at t = 400 over that at 200",
            "about 2",
            f"{growth:.2f}",
            1.5 < growth < 2.5,
        ),
        Claim(
            "E2d, mean gaps are below the bound with noise",
            "all",
            "all" if valid else "not all",
            valid,
        ),
    ]


# The picture.


def draw_curves(folder: Path, share: float, seed: int) -> None:
    """Gaps per gradient, convex and strongly convex, and the valley of noise."""
    mean, panels = "continuized, mean", []
    for title, least, mu in (
        ("convex", 1e-6, 0.0),
        ("strongly convex, mu = L/1000", 1e-3, 1e-3),
    ):
        some = curves(spread(least, 60), mu, 500, 50, seed)
        steps: list[float | None] = [*range(1, 501)]
        few: list[float | None] = []
        for path in some.runs.T[:5]:
            few += [*path.tolist(), None]
        lines = [
            Line("continuized, five runs", [*steps, None] * 5, few, width=0.7),
            Line("gradient descent", steps, some.descent.tolist()),
            Line("Nesterov", steps, some.nesterov.tolist()),
            Line(mean, steps, some.continuized.tolist()),
        ]
        labels = title, "gradients", "f(x) - min f"
        panels.append(Panel(lines, *labels, log_x=mu == 0, log_y=True))
    found = valley(share, seed)
    lines = [
        Line(mean, found.times, found.gaps),
        Line("bound with noise", found.times, found.bound, dashed=True),
    ]
    labels = "convex, with noise", "time", "f(x) - min f"
    panels.append(Panel(lines, *labels, log_x=True, log_y=True))
    draw_panels(folder / "continuized.html", panels)
