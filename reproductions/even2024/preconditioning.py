"""Chapter 10: rounds of statistical preconditioning and SPAG (E10.1).

Logistic regression in 50 dimensions with 20,000 samples of power-law spectra, lam =
1e-4. The first N samples are the server's, and mu is the largest distance of Hessians
that was seen at some points. Plain recursions with exact steps; one case is run by the
library's methods too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie import Simulation, Table, federate, methods, models, seeds
from coterie.cli import Claim, Line, Panel, draw_panels
from coterie_theory.curvature import concentration, preconditioning

REAL = torch.float64
D, SAMPLES, LAM, PRECISION = 50, 20_000, 1e-4, 1e-8
CASES = {0: (1000, 5000), 1: (200, 1000, 5000), 2: (200, 1000, 5000)}
REFERENCE = {
    0: (4585, (2116, 742), (71, 82)),
    1: (2941, (690, 285, 100), (109, 72, 44)),
    2: (8970, (763, 487, 201), (126, 99, 63)),
}
"""Rounds of the spec: gradient descent, preconditioned, SPAG, by decay and N."""


class Logistic(NamedTuple):
    """The mean of ln(1 + exp(-b a'x)) over rows b a, plus lam / 2 |x|^2."""

    rows: Tensor  # (m, d)

    def value(self, x: Tensor) -> float:
        """The loss."""
        losses = torch.nn.functional.softplus(-(self.rows @ x)).mean()
        return float(losses + LAM / 2 * x @ x)

    def grad(self, x: Tensor) -> Tensor:
        """Its gradient."""
        chance = torch.sigmoid(-(self.rows @ x))
        return LAM * x - self.rows.T @ chance / len(self.rows)

    def hessian(self, x: Tensor) -> Tensor:
        """Its Hessian."""
        chance = torch.sigmoid(self.rows @ x)
        bent = self.rows * (chance * (1 - chance))[:, None]
        return bent.T @ self.rows / len(self.rows) + LAM * torch.eye(D, dtype=REAL)

    def best(self) -> Tensor:
        """The minimum, by Newton's method."""
        return self.where(torch.zeros(D, dtype=REAL), torch.zeros(D, dtype=REAL), 0.0)

    def where(self, x: Tensor, target: Tensor, mu: float, most: int = 50) -> Tensor:
        """The point at which the gradient, with that of mu / 2 |x|^2, is the target."""
        left = target - self.grad(x) - mu * x
        size, length = float(left.norm()), 1.0
        for _ in range(most):
            if float(left.norm()) <= 1e-6 * size + 1e-14:
                break
            curved = self.hessian(x) + mu * torch.eye(D, dtype=REAL)
            moved = x + length * torch.linalg.solve(curved, left)
            after = target - self.grad(moved) - mu * moved
            if after.norm() < left.norm():
                x, left, length = moved, after, min(1.0, 2 * length)
            else:
                length /= 2
        return x


def problem(decay: float, seed: int) -> Logistic:
    """Labels by a random model, with a tenth of them the other way round."""
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((SAMPLES, D)) * np.arange(1, D + 1) ** (-decay / 2)
    label = np.sign(a @ rng.standard_normal(D) + 0.5 * rng.standard_normal(SAMPLES))
    return Logistic(torch.from_numpy(a * label[:, None]))


def deviation(whole: Logistic, part: Logistic, best: Tensor, seed: int) -> float:
    """The largest distance of Hessians at 0, the minimum, and points around them."""
    rng = torch.Generator().manual_seed(seed)
    points = [torch.zeros(D, dtype=REAL), best, best / 2]
    for scale in (0.5, 1.0):
        u = torch.randn(D, generator=rng, dtype=REAL)
        points.append(best + scale * best.norm() * u / u.norm())
    off = [whole.hessian(x) - part.hessian(x) for x in points]
    return max(float(torch.linalg.matrix_norm(one, 2)) for one in off)


def descent(whole: Logistic) -> Iterator[Tensor]:
    """Gradient descent with the step 1 / L at 0, where curvature is largest."""
    x = torch.zeros(D, dtype=REAL)
    lr = 1 / float(torch.linalg.matrix_norm(whole.hessian(x), 2))
    while True:
        x = x - lr * whole.grad(x)
        yield x


def accelerated_descent(whole: Logistic) -> Iterator[Tensor]:
    """Nesterov's method for losses of this curvature."""
    x = y = torch.zeros(D, dtype=REAL)
    smooth = float(torch.linalg.matrix_norm(whole.hessian(x), 2))
    root = math.sqrt(smooth / LAM)
    while True:
        new = y - whole.grad(y) / smooth
        x, y = new, new + (root - 1) / (root + 1) * (new - x)
        yield x


def preconditioned(whole: Logistic, part: Logistic, mu: float) -> Iterator[Tensor]:
    """(10.28) with step 1."""
    x = torch.zeros(D, dtype=REAL)
    while True:
        target = part.grad(x) + mu * x - whole.grad(x)
        x = part.where(x, target, mu)
        yield x


def dane(whole: Logistic, size: int, mu: float) -> Iterator[Tensor]:
    """DANE with machines of `size` samples each, which all solve and average."""
    parts = [Logistic(rows) for rows in whole.rows.split(size)]
    x = torch.zeros(D, dtype=REAL)
    while True:
        g = whole.grad(x)
        steps = [part.where(x, part.grad(x) + mu * x - g, mu) for part in parts]
        x = torch.stack(steps).mean(0)
        yield x


def spag(whole: Logistic, part: Logistic, mu: float) -> Iterator[Tensor]:
    """SPAG, with every trial of a gain as a round."""
    sigma = LAM / (LAM + 2 * mu)
    x = v = torch.zeros(D, dtype=REAL)
    ratio, gain = 0.0, 1.0

    def apart(x: Tensor, y: Tensor) -> float:
        """D_phi(x, y)."""
        slope = part.grad(y) @ (x - y)
        bowl = mu / 2 * float((x - y) @ (x - y))
        return part.value(x) - part.value(y) - float(slope) + bowl

    while True:
        half, rest = (1 + ratio * sigma) / 2, gain - sigma
        a = (half + math.sqrt(half**2 + rest * ratio)) / rest
        alpha, beta, e = (
            a / (ratio + a),
            a * sigma / (1 + a * sigma),
            a / (1 + a * sigma),
        )
        y = ((1 - alpha) * x + alpha * (1 - beta) * v) / (1 - alpha * beta)
        target = (1 - beta) * (part.grad(v) + mu * v) + beta * (part.grad(y) + mu * y)
        z = part.where(v, target - e * whole.grad(y), mu)
        new = (1 - alpha) * x + alpha * z
        near = (1 - beta) * apart(z, v) + beta * apart(z, y)
        if apart(new, y) <= alpha**2 * gain * near + 1e-15:
            x, v, ratio = new, z, (ratio + a) / (1 + a * sigma)
            gain = max(1.0, gain / 2)
        else:
            gain *= 2
        yield x


def rounds_to(
    whole: Logistic, best: float, course: Iterator[Tensor], most: int
) -> list[float]:
    """Gaps of all rounds until one is small enough."""
    gaps = []
    for _, x in zip(range(most), course, strict=False):
        gaps.append(whole.value(x) - best)
        if gaps[-1] <= PRECISION:
            break
    return gaps


class Race(NamedTuple):
    """Gaps by rounds of all methods for one spectrum."""

    decay: int
    descent: list[float]
    accelerated: list[float]
    parts: dict[int, tuple[float, list[float], list[float]]]  # by N: mu, plain, SPAG
    dane: list[float]  # with all machines of the largest N


def race(decay: int, share: float, seed: int) -> Race:
    """All methods on one spectrum; a share of the rounds at most."""
    whole = problem(decay, seed)
    x = whole.best()
    best, most = whole.value(x), max(3, int(20_000 * share))
    parts = {}
    for size in CASES[decay]:
        part = Logistic(whole.rows[:size])
        mu = deviation(whole, part, x, seed)
        plain = rounds_to(whole, best, preconditioned(whole, part, mu), most)
        parts[size] = (mu, plain, rounds_to(whole, best, spag(whole, part, mu), most))
    return Race(
        decay,
        rounds_to(whole, best, descent(whole), most),
        rounds_to(whole, best, accelerated_descent(whole), most),
        parts,
        rounds_to(whole, best, dane(whole, size, mu), most),
    )


def arrival(gaps: list[float]) -> str:
    """The number of rounds to the precision, or that it takes more than were made."""
    return str(len(gaps)) if gaps[-1] <= PRECISION else f"more than {len(gaps)}"


def rounds_claims(found: list[Race], share: float) -> list[Claim]:
    """Rounds next to the reference's, and what they must show."""
    claims = []
    for one in found:
        sizes = ", ".join(map(str, one.parts))
        plain = [gaps for _, gaps, _ in one.parts.values()]
        fast = [gaps for _, _, gaps in one.parts.values()]
        gd, theirs, spag_s = REFERENCE[one.decay]
        what = f"E10.1, spectrum i^-{one.decay}"
        judged = share == 1
        gentle = [1 / 3 < len(a) / b < 3 for a, b in zip(plain, theirs, strict=True)]
        claims += [
            Claim(
                f"{what}: rounds of gradient descent, accelerated, DANE",
                f"{gd}, -, -",
                ", ".join(map(arrival, (one.descent, one.accelerated, one.dane))),
                None,
                f"DANE: {SAMPLES // max(one.parts)} machines, two exchanges a round",
            ),
            Claim(
                f"{what}: preconditioned, N = {sizes}",
                ", ".join(map(str, theirs)),
                ", ".join(map(arrival, plain)),
                all(gentle) if judged else None,
                "a factor of 3 for another draw",
            ),
            Claim(
                f"{what}: SPAG, N = {sizes}",
                ", ".join(map(str, spag_s)),
                ", ".join(map(arrival, fast)),
                None,
            ),
            Claim(
                f"{what}: fewer with N, and SPAG < preconditioned < gradient descent",
                "yes",
                ("yes" if _ordered(one) else "no")
                if _arrived(one)
                else "not all arrive",
                _ordered(one) if judged else None,
            ),
        ]
    mus = [one.parts[1000][0] for one in found]
    claims.append(
        Claim(
            "E10.1, mu at N = 1000 for spectra 0, 1, 2",
            "falls with the dimension",
            ", ".join(f"{mu:.3g}" for mu in mus),
            mus == sorted(mus, reverse=True),
        )
    )
    return claims


def _arrived(one: Race) -> bool:
    """Whether all courses have reached the precision."""
    parts = [gaps for _, plain, fast in one.parts.values() for gaps in (plain, fast)]
    return all(gaps[-1] <= PRECISION for gaps in (one.descent, *parts))


def _ordered(one: Race) -> bool:
    plain = [len(gaps) for _, gaps, _ in one.parts.values()]
    fast = [len(gaps) for _, _, gaps in one.parts.values()]
    falls = plain == sorted(plain, reverse=True)
    first = all(a < b for a, b in zip(fast, plain, strict=True))
    return falls and first and max(plain) < len(one.descent)


def condition_claims(found: list[Race]) -> list[Claim]:
    """Effective dimensions, and rates next to 1 - 1/kappa."""
    claims = []
    for decay, one, three in ((1, 4.5, 19.5), (2, 1.6, 8.6)):
        values = torch.arange(1, D + 1, dtype=REAL) ** -float(decay)
        ours = [concentration.effective_dimension(values, r) for r in (1, 3)]
        right = abs(ours[0] - one) < 0.06 and abs(ours[1] - three) < 0.06
        claims.append(
            Claim(
                f"E10.1, spectrum i^-{decay}: d_eff(1), d_eff(3)",
                f"{one}, {three}",
                f"{ours[0]:.2f}, {ours[1]:.2f}",
                right,
            )
        )
    worst = -math.inf
    for each in found:
        for mu, gaps, _ in each.parts.values():
            kappa = preconditioning.relative_condition(mu, LAM)
            falls = [b / a for a, b in pairwise(gaps)]
            worst = max(worst, max(falls) - (1 - 1 / kappa))
    claims.append(
        Claim(
            "E10.1, fall of the gap in every round, less 1 - 1/kappa, largest",
            "at most 0",
            f"{worst:.2g}",
            worst <= 1e-6,
            "kappa = 1 + 2 mu / lam",
        )
    )
    return claims


def library_claims(share: float, seed: int) -> list[Claim]:
    """The library's methods, with ten clients, are the recursions."""
    whole, rounds = problem(1, seed), max(2, int(20 * share))
    part = Logistic(whole.rows[:2000])
    mu = deviation(whole, part, whole.best(), seed)
    data = torch.cat([whole.rows] * 3)
    owner = torch.arange(10).repeat_interleave(SAMPLES // 10).repeat(3)
    role = torch.arange(3).repeat_interleave(SAMPLES)
    table = Table("E10.1", data, torch.ones(len(data)), "binary", 1)
    federation = federate(table, owner, role)
    module = models.build(lambda: models.linear((D,), 1, bias=False), 0, REAL)
    simulation = Simulation(federation, module, batch_size=0, dtype=REAL)
    settings = {"mu": mu, "weight_decay": LAM, "newton": 8, "inner": D}
    first = torch.arange(10) == 0
    claims = []
    for name, course in (
        ("preconditioned_gradient", preconditioned(whole, part, mu)),
        ("spag", spag(whole, part, mu)),
    ):
        method = getattr(methods, name)(federation.train.size, first, **settings)
        x = torch.zeros(10, D, dtype=REAL)
        state = method.init(x, simulation.at(0, purpose="init"))
        expected = x[0]
        for t in range(1, rounds + 1):
            state, _ = method.step(state, simulation.at(t), seeds.generator(seed, t))
            expected = next(course)
        off = float((state.x[0] - expected).norm() / expected.norm())
        claims.append(
            Claim(
                f"E10.1, {name} of the library after {rounds} rounds, off by",
                "rounding",
                f"{off:.1e}",
                off < 1e-4,
                "ten clients; inexact steps",
            )
        )
    return claims


def draw_rounds(folder: Path, found: list[Race]) -> None:
    """Gaps by rounds, one picture for all spectra."""
    panels = []
    for one in found:
        last = list(one.parts.values())[-1]
        gaps = {
            "gradient descent": one.descent,
            "accelerated": one.accelerated,
            "preconditioned, N = 5000": last[1],
            "SPAG, N = 5000": last[2],
            "DANE, 4 machines": one.dane,
        }
        # DANE is often on top of the preconditioned method.
        lines = [
            Line(
                name,
                range(1, len(gap) + 1),
                [max(v, 1e-9) for v in gap],
                dashed=name.startswith("DANE"),
            )
            for name, gap in gaps.items()
        ]
        title = f"eigenvalues i^-{one.decay}" if one.decay else "equal eigenvalues"
        panels.append(
            Panel(lines, title, "rounds", "f(x) - min f", log_x=True, log_y=True)
        )
    draw_panels(folder / "rounds.html", panels)
