"""Figure 8.1 of the thesis: linear regression, and whom to trust from few samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.algorithms.all_for_all import all_for_all
from coterie.cli import Claim, Line, Panel, draw_panels, settings
from coterie.collaboration import same_cluster, threshold_weights
from coterie.seeds import generator

from .claims import EXPECTED, folder_of, near, published, states
from .laws import REAL, Fresh, calls, regressions


class Regressions(NamedTuple):
    """Clients whose labels are signs of a'u, a fifth of them flipped."""

    spread: Tensor  # (N, D) diagonal of Sigma_i
    optima: Tensor  # (N, D)
    law: Fresh
    early: tuple[Tensor, Tensor]  # samples to know each other by: (S, N, D), (S, N)


def sign_regressions(spread: Tensor, u: Tensor, seed: int, samples: int) -> Regressions:
    """The minimiser of E (a'x - b)^2 / 2 is 0.6 sqrt(2/pi) u / sqrt(u' Sigma u)."""
    scale = (spread * u.square()).sum(1, keepdim=True).sqrt()
    optima = 0.6 * math.sqrt(2 / math.pi) * u / scale

    def draw(t: int) -> tuple[Tensor, Tensor]:
        rng = generator(seed, "regressions", t)
        a = spread.sqrt() * torch.randn(spread.shape, generator=rng, dtype=REAL)
        flip = torch.rand(len(a), generator=rng) < 0.2
        return a, (a * u).sum(1).sign() * torch.where(flip, -1.0, 1.0)

    early = [draw(-s) for s in range(samples)]  # calls to come are t = 1, 2, ...
    a, b = (torch.stack(values) for values in zip(*early, strict=True))
    return Regressions(spread, optima, regressions(draw), (a, b))


def moment_distance(a: Tensor, b: Tensor) -> Tensor:
    """(N, N) |mean z_i z_i' - mean z_k z_k'|_F^2, z = (a, b), from (z'w)^2 alone."""
    z = torch.cat([a, b[..., None]], 2)  # (S, N, D + 1)
    s, n, _ = z.shape
    flat = z.flatten(0, 1)
    gram = (flat @ flat.T).square().view(s, n, s, n).mean((0, 2))
    own = gram.diagonal()
    return (own[:, None] + own - 2 * gram).clamp(min=0)


def moment_noise(problem: Regressions) -> float:
    """The mean trace of the covariance of z z'."""
    v = problem.spread
    fourth = v.sum(1).square() + 2 * v.square().sum(1) + 2 * v.sum(1) + 1
    cross = (v * problem.optima).square().sum(1)  # |E b a|^2
    return float((fourth - v.square().sum(1) - 1 - 2 * cross).mean())


def tuned(
    weights: Tensor, problem: Regressions, rounds: int, grid: Sequence[float]
) -> Tensor:
    """(steps, K + 1) the excess after each call for every constant step of the grid."""
    found = []
    for lr in grid:
        x = torch.zeros_like(problem.optima)
        method = all_for_all(weights.to(REAL), lr=lr)
        courses = [x, *(one.state.x for one in calls(method, problem.law, x, rounds))]
        off = (torch.stack(courses) - problem.optima).square()
        found.append((problem.spread * off).sum(2).mean(1) / 2)
    return torch.stack(found)


class Figure81(NamedTuple):
    """What Figure 8.1 is made with."""

    clients: int
    dimension: int
    clusters: int
    rounds: int
    seeds: int
    grid: list[float]


def cluster_errors(given: Figure81, *, shared: bool) -> dict[str, Tensor]:
    """(seeds, steps, K + 1) excess after calls; one u for all, or one per cluster."""
    n, d, m = given.clients, given.dimension, given.clusters
    label = torch.arange(n) % m
    spread = (torch.full((m, d), d**-0.5) + torch.eye(m, d))[label].to(REAL)
    found: dict[str, list[Tensor]] = {}
    for seed in range(given.seeds):
        rng = generator(seed, "directions")
        u = torch.randn(m, d, generator=rng, dtype=REAL)
        u = (u[:1].expand(m, d) if shared else u)[label]
        problem = sign_regressions(spread, u, seed, 5)
        weights = {
            "local": torch.eye(n),
            "single": torch.full((n, n), 1 / n),
            "All-for-all": same_cluster(label),
        }
        for s in (1, 3, 5) if shared else ():
            # Above what the noise alone makes, by half of Delta^2 = 2.
            u_s = 2 * moment_noise(problem) / s + 1.0
            seen = moment_distance(problem.early[0][:s], problem.early[1][:s])
            weights[f"S={s}"] = threshold_weights(seen, u_s)
        for name, w in weights.items():
            errors = tuned(w, problem, given.rounds, given.grid)
            found.setdefault(name, []).append(errors)
            partners = (w > 0).double()
            same = (partners * (label[:, None] == label)).sum() / partners.sum()
            found.setdefault(f"{name}, same", []).append(same)
    return {name: torch.stack(values) for name, values in found.items()}


def spread_errors(given: Figure81, quantiles: Sequence[float]) -> dict[str, Tensor]:
    """Figure 8.1(b): variances uniform, and partners among the nearest of all pairs."""
    n, d = given.clients, given.dimension
    found: dict[str, list[Tensor]] = {}
    for seed in range(given.seeds):
        rng = generator(seed, "spreads")
        spread = torch.rand(n, d, generator=rng, dtype=REAL) / math.sqrt(d)
        u = torch.randn(1, d, generator=rng, dtype=REAL).expand(n, d)
        problem = sign_regressions(spread, u, seed, 1)
        distance = torch.cdist(spread, spread)
        order = distance.flatten().sort().values
        for q in quantiles:
            bound = float(order[round(q * (len(order) - 1))])
            errors = tuned(
                threshold_weights(distance, bound), problem, given.rounds, given.grid
            )
            found.setdefault(f"{q:g}", []).append(errors)
    return {name: torch.stack(values) for name, values in found.items()}


def best(errors: Tensor) -> Tensor:
    """(seeds,) after the last call, at the step whose mean over seeds is lowest."""
    return course(errors)[:, -1]


def course(errors: Tensor) -> Tensor:
    """(seeds, K + 1) at the step whose mean over seeds is lowest at the end."""
    return errors[:, errors[..., -1].mean(0).argmin()]


NAMES = {"local": "no collaboration", "single": "single model"}
NAMES |= {"All-for-all": "All-for-all, true clusters"}
NAMES |= {f"S={s}": f"All-for-all, found from S={s}" for s in (1, 3, 5)}


def draw_figure81(
    raw: dict[str, Tensor], own: dict[str, Tensor], far: dict[str, Tensor]
) -> None:
    """The excess after each call, for clusters and for clients that all differ."""
    panels = []
    for title, errors in (
        ("(a) ten clusters, one direction u", raw),
        ("(a) ten clusters, u of each cluster", own),
        ("(b) all clients differ", far),
    ):
        lines = []
        for name, values in errors.items():
            if "same" in name:
                continue
            mean = course(values).mean(0).tolist()
            shown = NAMES.get(name) or {
                "0": "no collaboration",
                "1": "single model",
            }.get(name, f"All-for-all, nearest {name} of pairs")
            lines.append(Line(shown, range(len(mean)), mean))
        panels.append(Panel(lines, title, "calls of each client", "excess", log_y=True))
    draw_panels(folder_of("chapter8-figure") / "figure81.html", panels)


NEAREST = (0.0, 0.01, 0.1, 0.5, 1.0)


def chapter8_figure(overrides: Sequence[str]) -> list[Claim]:
    """Thesis, Figure 8.1, as printed and with a direction per cluster (two minutes)."""
    sizes = {"clients": 500, "dimension": 100, "clusters": 10, "rounds": 10, "seeds": 3}
    grid = [0.0125 * 2.0**k for k in range(7)]
    given = Figure81(**settings(overrides, **sizes, grid=grid))
    raw, own = cluster_errors(given, shared=True), cluster_errors(given, shared=False)
    printed = {name: best(raw[name]) for name in raw if "same" not in name}
    varied = {name: best(own[name]) for name in own if "same" not in name}
    full = given.clients == 500
    claims = []
    for title, ours in (("one u", printed), ("u per cluster", varied)):
        for name, value in EXPECTED["chapter8"][title].items() if full else ():
            claims.append(near(f"(a), {title}: {name}", value, ours[name]))
    one = {name: float(values.mean()) for name, values in printed.items()}
    each = {name: float(values.mean()) for name, values in varied.items()}
    spreads = spread_errors(given, NEAREST)
    far = {q: float(best(v).mean()) for q, v in spreads.items()}
    draw_figure81(raw, own, spreads)
    estimated = [one[f"S={s}"] for s in (1, 3, 5)]
    same = [float(raw[f"S={s}, same"].mean()) for s in (1, 3, 5)]
    return [
        *claims,
        published(
            "(a) single model worse than All-for-all",
            f"{one['single']:.3f} and {one['All-for-all']:.3f}",
            one["single"] > one["All-for-all"],
            "with one u all minimisers are on a line, see README",
        ),
        published(
            "(a) S=1, 3, 5 samples give nearly the oracle",
            ", ".join(f"{value:.3f}" for value in estimated),
            max(estimated) < 1.2 * one["All-for-all"],
            "partners in the same cluster: " + ", ".join(f"{v:.0%}" for v in same),
        ),
        published(
            "(b) All-for-all better than the single model",
            ", ".join(f"{q}: {value:.4f}" for q, value in far.items()),
            min(list(far.values())[:-1]) < 0.95 * far["1"],
            "not by 5%; by the share of pairs who collaborate, 0 is local, 1 single",
        ),
        states(
            "(a), one u: single < All-for-all < local",
            f"{one['single']:.3f} {one['All-for-all']:.3f} {one['local']:.3f}",
            one["single"] < one["All-for-all"] < one["local"],
        ),
        states(
            "(a), u per cluster: All-for-all < single < local",
            f"{each['All-for-all']:.3f} {each['single']:.3f} {each['local']:.3f}",
            each["All-for-all"] < each["single"] < each["local"],
        ),
    ]
