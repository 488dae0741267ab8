"""The figures of Even, Massoulié, Scaman (2022) and of Even's thesis, chapter 8.

Clients draw a fresh sample at every call, which no finite data set can give: `Fresh`
below is all that the library's algorithms need of a federation to run on a law.
Settings are given as `name=value`, for example `seeds=2`.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import coterie as co
from coterie.algorithms.all_for_all import all_for_all
from coterie.algorithms.all_for_one import all_for_one
from coterie.algorithms.time_adaptive_all_for_all import time_adaptive_all_for_all
from coterie.checks import InputError, one_of
from coterie.cli.reproductions import Claim, run_shown
from coterie.clients.traffic import between
from coterie.collaboration.weights import same_cluster, within
from coterie.engine.rounds import Round, run_rounds
from coterie.seeds import generator
from coterie.theory.collaboration import all_for_one_weights
from coterie.theory.lower_bounds import fano_calls, hard_samples
from coterie.theory.rates import Losses, precision_step
from coterie.types import Algorithm, Sent

HERE = Path(__file__).parent
EXPECTED = tomllib.loads((HERE / "expected.toml").read_text())
REAL = torch.float64


# Clients with laws in place of data.


class Law(NamedTuple):
    """What clients draw, and the gradients of what they drew."""

    n: int
    draw: Callable[[int], Any]  # the samples of all clients at call t = 1, 2, ...
    grads: Callable[[Tensor, Any], Tensor]  # row i is g_i(x_i)
    # Row i is sum_k weights_ik g_k(x_i), one sample of client k for all readers.
    blended: Callable[[Tensor, Tensor, Any], Tensor]


class Fresh:
    """A federation whose clients draw one fresh sample each in every round."""

    def __init__(self, law: Law) -> None:
        """Prepares the clients of a law."""
        self.law = law

    def __len__(self) -> int:
        """How many clients there are."""
        return self.law.n

    def at(self, t: int, active: Tensor | None = None, *, purpose: str = "") -> Call:
        """The oracle of call t; everybody takes part."""
        del purpose
        if active is not None and not active.all():
            raise InputError("clients with laws take part in every round.")
        return Call(self.law, t)


class Call:
    """One call of the synchronous oracle: one question, for one sample of each."""

    def __init__(self, law: Law, t: int) -> None:
        """Prepares call t."""
        self.law, self.t = law, t
        self.active = self.present = torch.ones(law.n, dtype=torch.bool)
        self.mine = slice(0, law.n)
        self.gradients = torch.zeros(law.n, dtype=REAL)
        self.sent: list[Sent] = []

    def _sample(self) -> Any:
        if self.gradients.any():
            raise InputError("a call is one question: use steps = 1.")
        return self.law.draw(self.t)

    def grads(self, x: Tensor) -> Tensor:
        """Row i is g_i(x_i)."""
        sample = self._sample()
        self.gradients += 1
        return self.law.grads(x, sample)

    def blended(self, x: Tensor, weights: Tensor) -> Tensor:
        """Row i is sum_k weights[i, k] g_k(x_i)."""
        sample = self._sample()
        self.gradients += (weights != 0).sum(0)
        links = between(weights, self.present)
        self.sent += [
            Sent("blended", x.shape[1], way) for way in (links, links.flip(1))
        ]
        return self.law.blended(x, weights, sample)

    def mix(self, weights: Tensor, rows: Tensor) -> Tensor:
        """Row i is sum_k weights[i, k] rows[k]."""
        self.sent.append(Sent("mix", rows.shape[1], between(weights, self.present)))
        return weights.to(rows) @ rows

    def average(self, shares: Tensor, rows: Tensor) -> Any:
        """Not needed here."""
        raise NotImplementedError

    def central(self, program: Any, *rows: Tensor, **options: Any) -> Any:
        """Not needed here."""
        raise NotImplementedError

    def compare(self, x: Tensor, *, samples: int | None = None) -> Any:
        """Not needed here."""
        raise NotImplementedError

    def each(self, program: Any, *rows: Tensor, **options: Any) -> Any:
        """Not needed here."""
        raise NotImplementedError


def means(n: int, draw: Callable[[int], Tensor]) -> Law:
    """Estimating means: the loss |x - xi|^2 / 2 of samples xi (N, D)."""

    def blended(x: Tensor, weights: Tensor, xi: Tensor) -> Tensor:
        return weights.sum(1, keepdim=True) * x - weights @ xi

    return Law(n, draw, lambda x, xi: x - xi, blended)


def regressions(
    n: int, draw: Callable[[int], tuple[Tensor, Tensor]], *, factor: float = 1.0
) -> Law:
    """Linear regression: the loss factor (a'x - b)^2 / 2 of a (N, D) and b (N,)."""

    def grads(x: Tensor, sample: tuple[Tensor, Tensor]) -> Tensor:
        a, b = sample
        return factor * ((a * x).sum(1) - b)[:, None] * a

    def blended(x: Tensor, weights: Tensor, sample: tuple[Tensor, Tensor]) -> Tensor:
        a, b = sample
        return factor * (weights * (x @ a.T - b)) @ a

    return Law(n, draw, grads, blended)


def calls(algorithm: Algorithm, law: Law, x: Tensor, rounds: int) -> Iterator[Round]:
    """Runs an algorithm on a law, call after call."""
    return run_rounds(algorithm, Fresh(law), x, rounds=rounds)


# How claims are made.


def settings(overrides: Sequence[str], **defaults: Any) -> dict[str, Any]:
    """The settings of an item, some of them given as `name=value`."""
    for override in overrides:
        name, _, value = override.partition("=")
        one_of("setting", name, defaults)
        defaults[name] = tomllib.loads(f"value = {value}")["value"]
    return defaults


def near(what: str, reference: float, runs: Tensor, *, factor: float = 1.0) -> Claim:
    """Whether a reference, itself one run, can be one of ours.

    It may be three standard deviations of a difference to our mean away, half a unit
    of its second digit, which is at most 5 percent, and the factor.
    """
    mean, deviation = float(runs.mean()), float(runs.std())
    slack = 3 * deviation * math.sqrt(1 + 1 / runs.numel()) + 0.05 * reference
    agrees = (mean - slack) / factor <= reference <= (mean + slack) * factor
    note = f"one run ±{deviation:.2g}"
    note += f", a factor {factor:g} allowed" if factor > 1 else ""
    return Claim(what, f"{reference:.3g}", f"{mean:.3g}", agrees, note)


def states(what: str, expected: str, ours: str, holds: Any, note: str = "") -> Claim:
    """A statement that should hold."""
    return Claim(what, expected, ours, bool(holds), note)


def published(what: str, ours: str, holds: Any, note: str) -> Claim:
    """A statement of the text that is known not to reproduce: shown, not judged."""
    return Claim(what, "yes", ours, None, f"{'holds' if holds else 'FAILS'}: {note}")


# Figure 1 of the report: coins.


class Coins(NamedTuple):
    """Clients with coins of chance p, and what can be known of them."""

    p: Tensor  # (N,)
    law: Law
    biases: Tensor  # (N, N) (p_i - p_k)^2 / 2


def coins(n: int, seed: int, repeats: int, noise: float = 0.0) -> Coins:
    """Chances uniform in [0, 1]; a column is one of several independent repetitions.

    Biases are those of p_i + n_i, with n_i uniform in [-noise, noise].
    """
    p = torch.rand(n, generator=generator(seed, "chances"), dtype=REAL)
    error = torch.rand(n, generator=generator(seed, "biases"), dtype=REAL)
    seen = p + noise * (2 * error - 1)
    chance = p[:, None].expand(n, repeats)

    def draw(t: int) -> Tensor:
        return torch.bernoulli(chance, generator=generator(seed, "coins", t))

    return Coins(p, means(n, draw), (seen[:, None] - seen).square() / 2)


def adaptive(problem: Coins, start: float = 1 / 24) -> Algorithm:
    """Time-adaptive All-for-all: lr = 1 / (2 beta), and 1/4 is the most a coin varies.

    Models begin at 1/2, where the mean excess is 1/24 on average.
    """
    return time_adaptive_all_for_all(problem.biases, lr=0.5, noise=0.25, start=start)


def average(weights: Tensor) -> Algorithm:
    """All-for-all with steps 1 / (rho (k + 1)); within clusters these are averages."""
    return all_for_all(weights.to(REAL), lr=1.0, schedule="inverse(1)")


def coin_errors(
    method: Callable[[Coins], Algorithm], given: dict[str, Any], noise: float = 0.0
) -> Tensor:
    """(T, runs): mean over clients of (x_i - p_i)^2 / 2 after each call."""
    found = []
    for seed in range(given["seeds"]):
        problem = coins(given["clients"], seed, given["repeats"], noise)
        x = torch.full((given["clients"], given["repeats"]), 0.5, dtype=REAL)
        runs = calls(method(problem), problem.law, x, given["rounds"])
        p = problem.p[:, None]
        found.append(torch.stack([(r.state.x - p).square().mean(0) / 2 for r in runs]))
    return torch.cat(found, 1)


COINS = {"clients": 100, "rounds": 1000, "seeds": 10, "repeats": 20}
BASELINES: dict[str, Callable[[Coins], Algorithm]] = {
    "local": lambda c: average(torch.eye(len(c.p))),
    "single": lambda c: average(torch.full_like(c.biases, 1 / len(c.p))),
}


def fig1a(overrides: Sequence[str]) -> list[Claim]:
    """Report, Figure 1(a): time-adaptive All-for-all on 100 coins (half a minute)."""
    given = settings(overrides, **COINS)
    error = {name: coin_errors(make, given) for name, make in BASELINES.items()}
    error["All-for-all"] = coin_errors(adaptive, given)
    literal = coin_errors(lambda c: adaptive(c, start=1.0), given).mean(1)
    claims = []
    for name, values in EXPECTED["fig1a"].items():
        for t, value in zip((10, 100, 1000), values, strict=True):
            if t <= given["rounds"]:
                what = f"{name}, t={t}"
                # A phase halves eps, and the reference does not say when its begin.
                factor = 2.0 if name == "All-for-all" else 1.0
                claims.append(near(what, value, error[name][t - 1], factor=factor))
    ratio = error["All-for-all"].mean(1) / error["local"].mean(1)
    single, ours = error["single"].mean(1), error["All-for-all"].mean(1)
    last = given["rounds"]
    worst = 3 + int(ratio[2:].argmax())
    late = (literal / error["local"].mean(1) > 1).nonzero().flatten()
    return [
        *claims,
        near("single model, last t", 1 / 24, error["single"][-1]),
        states(
            "single model is stuck",
            "flat",
            f"{single[last // 10 - 1]:.3g}, then {single[-1]:.3g}",
            abs(single[last // 10 - 1] / single[-1] - 1) < 0.1,
            f"t={last // 10} and {last}",
        ),
        states(
            "All-for-all below local at every t >= 3",
            "yes",
            f"at most {ratio[2:].max():.2f} of local, t={worst}",
            ratio[2:].max() < 1,
        ),
        states(
            "All-for-all converges",
            "yes",
            f"{ours[last // 10 - 1]:.2g}, then {ours[-1]:.2g}",
            ours[-1] < ours[last // 10 - 1] / 2,
            f"t={last // 10} and {last}",
        ),
        Claim(
            "eps from 1 on, as printed, above local until",
            "-",
            f"t={int(late[-1]) + 1 if len(late) else 0}",
            None,
            f"{literal[-1]:.2g} at t={last}; phases with eps > 1/24 ask for nothing",
        ),
    ]


def last_below(error: Tensor, other: Tensor) -> int:
    """The last t before an error is not the smaller one any more."""
    above = (error >= other).nonzero().flatten()
    return int(above[0]) if len(above) else len(error)


def fig1b(overrides: Sequence[str]) -> list[Claim]:
    """Report, Figure 1(b): the same with noisy biases (one minute)."""
    given = settings(overrides, **COINS)
    base = {name: coin_errors(make, given) for name, make in BASELINES.items()}
    noises = EXPECTED["fig1b"]["noise"]
    runs = {noise: coin_errors(adaptive, given, noise) for noise in noises}
    error = {noise: values.mean(1) for noise, values in runs.items()}
    local, single = base["local"].mean(1), base["single"].mean(1)
    claims = []
    if given["rounds"] >= 1000:
        for noise, value in zip(noises, EXPECTED["fig1b"]["error"], strict=True):
            what = f"noise {noise:g}, t=1000"
            claims.append(near(what, value, runs[noise][999]))
    final = [float(error[noise][-1]) for noise in noises]
    until = {noise: last_below(error[noise], local) for noise in noises}
    better = [noise for noise in noises if error[noise][-1] < local[-1]]
    early = [float(error[noise][2] / local[2]) for noise in noises]
    return [
        *claims,
        states(
            "the error at the end grows with the noise",
            "yes",
            ", ".join(f"{value:.2g}" for value in final),
            final == sorted(final),
        ),
        states(
            "early speed-up is kept for all",
            "yes",
            ", ".join(f"{share:.2f}" for share in early),
            max(early) < 1,
            "shares of local at t=3",
        ),
        states(
            "all better than the single model at the end",
            "yes",
            f"at most {max(final) / float(single[-1]):.2f} of it",
            max(final) < float(single[-1]),
        ),
        published(
            "all better than local in the range considered",
            f"at t={given['rounds']} with noise {better}",
            len(better) == len(noises),
            "below local until t=" + ", ".join(str(until[noise]) for noise in noises),
        ),
    ]


# Figure 8.1 of the thesis: linear regression.


def tuned(
    weights: Tensor, problem: Regressions, rounds: int, grid: Sequence[float]
) -> Tensor:
    """The excess after the last call for every constant step of the grid."""
    found = []
    for lr in grid:
        x = torch.zeros_like(problem.optima)
        method = all_for_all(weights.to(REAL), lr=lr)
        *_, last = calls(method, problem.law, x, rounds)
        off = (last.state.x - problem.optima).square()
        found.append((problem.spread * off).sum(1).mean() / 2)
    return torch.stack(found)


class Regressions(NamedTuple):
    """Clients whose labels are signs of a'u, a fifth of them flipped."""

    spread: Tensor  # (N, D) diagonal of Sigma_i
    optima: Tensor  # (N, D)
    law: Law
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
    return Regressions(spread, optima, regressions(len(spread), draw), (a, b))


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


class Figure81(NamedTuple):
    """What Figure 8.1 is made with."""

    clients: int
    dimension: int
    clusters: int
    rounds: int
    seeds: int
    grid: list[float]


def cluster_errors(given: Figure81, *, shared: bool) -> dict[str, Tensor]:
    """(seeds, steps) excess after K calls; the same u for all, or one per cluster."""
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
            weights[f"S={s}"] = within(seen, u_s)
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
            errors = tuned(within(distance, bound), problem, given.rounds, given.grid)
            found.setdefault(f"{q:g}", []).append(errors)
    return {name: torch.stack(values) for name, values in found.items()}


def best(errors: Tensor) -> Tensor:
    """(seeds,) at the step whose mean over seeds is lowest."""
    return errors[:, errors.mean(0).argmin()]


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
    far = {q: float(best(v).mean()) for q, v in spread_errors(given, NEAREST).items()}
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
            "yes",
            f"{one['single']:.3f} {one['All-for-all']:.3f} {one['local']:.3f}",
            one["single"] < one["All-for-all"] < one["local"],
        ),
        states(
            "(a), u per cluster: All-for-all < single < local",
            "yes",
            f"{each['All-for-all']:.3f} {each['single']:.3f} {each['local']:.3f}",
            each["All-for-all"] < each["single"] < each["local"],
        ),
    ]


NEAREST = (0.0, 0.01, 0.1, 0.5, 1.0)


# A test with clusters that can be found.


def clusters(overrides: Sequence[str]) -> list[Claim]:
    """Means of 10 clusters, whom to trust from S samples; designed (a minute)."""
    sizes = {"clients": 500, "dimension": 20, "rounds": 10, "seeds": 5}
    given = settings(overrides, **sizes)
    n, d, k, m = given["clients"], given["dimension"], given["rounds"], 10
    label = torch.arange(n) % m
    centre = 5 * torch.eye(m, d, dtype=REAL)[label]
    found: dict[str, list[Tensor]] = {}
    for seed in range(given["seeds"]):

        def draw(t: int, seed: int = seed) -> Tensor:
            rng = generator(seed, "clusters", t)
            return centre + torch.randn(n, d, generator=rng, dtype=REAL)

        early = torch.stack([draw(-s) for s in range(5)])
        weights = {
            "local": torch.eye(n),
            "single": torch.full((n, n), 1 / n),
            "oracle": same_cluster(label),
        }
        for s in (1, 3, 5):
            mean = early[:s].mean(0)
            # Two means of S samples are 2 d / S apart by noise; Delta^2 = 50.
            weights[f"S={s}"] = within(torch.cdist(mean, mean).square(), 2 * d / s + 25)
        for name, w in weights.items():
            *_, last = calls(average(w), means(n, draw), torch.zeros_like(centre), k)
            off = (last.state.x - centre).square().sum(1).mean() / 2
            found.setdefault(name, []).append(off)
    runs = {name: torch.stack(values) for name, values in found.items()}
    mean = {name: float(values.mean()) for name, values in runs.items()}
    expected = EXPECTED["clusters"] if n == 500 else {}
    by_s = [mean[f"S={s}"] for s in (1, 3, 5)]
    size = n / m
    return [
        *(near(name, value, runs[name]) for name, value in expected.items()),
        states(
            "local is d / (2 K)",
            f"{d / (2 * k):.3g}",
            f"{mean['local']:.3g}",
            abs(mean["local"] / (d / (2 * k)) - 1) < 4 * math.sqrt(2 / (n * d)),
            "within four standard deviations of one run",
        ),
        states(
            "oracle is d / (2 K C)",
            f"{d / (2 * k * size):.3g}",
            f"{mean['oracle']:.3g}",
            abs(mean["oracle"] / (d / (2 * k * size)) - 1) < 4 * math.sqrt(2 / (m * d)),
            "within four standard deviations of one run",
        ),
        states(
            "error falls with S, and S=5 is within twice the oracle",
            "yes",
            ", ".join(f"{value:.3g}" for value in by_s),
            by_s[0] > by_s[1] > by_s[2] and by_s[2] < 2 * mean["oracle"],
        ),
        states(
            "S=1 is too few to collaborate",
            "worse than local",
            f"{by_s[0]:.2g}",
            by_s[0] > mean["local"],
        ),
    ]


# The problem that is as hard as the lower bound.


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
        rows = all_for_one_weights(distance, hard.eps, mu)
    else:
        row = torch.where(apart > 0, share / max(far, 1), (1 - share) / twins)
        rows = row.expand(size, size)
    theory = precision_step(hard.eps, Losses(mu, mu, 1 / twins))  # sigma^2 is about 1
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

    law = regressions(len(drawn.optima), draw, factor=2.0)
    weights = torch.block_diag(*[rows] * hard.groups)
    first, found = torch.arange(0, law.n, size), math.inf
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
    least = fano_calls(torch.full((1,), delta, dtype=REAL), d)
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
            "-1",
            f"{slope:.2f}",
            abs(slope + 1) < 0.15,
            "20 groups: each number of calls is known to about 10 percent",
        ),
        states(
            "above the lower bound",
            "yes",
            "yes" if all(v > least / c for c, v in k.items()) else "no",
            all(v > least / c for c, v in k.items()),
        ),
        states(
            f"{few} twins and {far} far clients: no fewer calls, and no more",
            str(alone),
            str(with_far),
            # Other samples: two numbers of calls, each known to about 10 percent.
            abs(math.log(with_far / alone)) < 0.35,
            "b^2 > 4 mu eps",
        ),
        states(
            "weight for far clients does not help",
            f"at least {with_far}",
            shown,
            all(value >= 0.9 * with_far for value in given_share.values()),
            "calls by their share of the weight",
        ),
    ]


# How errors and costs grow with the number of clients.


def scaling(overrides: Sequence[str]) -> list[Claim]:
    """Error against cluster size C; All-for-one and All-for-all by cost (a minute).

    Settings are those of `scaling.toml`, and `sizes=[1, 2, 4]`.
    """
    mine = [text for text in overrides if text.startswith("sizes=")]
    sizes = settings(mine, sizes=[1, 2, 4, 8, 16, 32])["sizes"]
    theirs = [text for text in overrides if text not in mine]
    error: dict[int, dict[str, float]] = {}
    for c in sizes:
        study = co.read_study(HERE / "scaling.toml", [f"data.clients={5 * c}", *theirs])
        records = run_shown(study).records
        last = records.metrics[records.metrics["round"] == study.run.rounds]
        error[c] = last.groupby("algorithm")["distance"].mean().to_dict()
        cost = records.rounds.groupby("algorithm")[["gradients", "bytes"]].last()
    claims = []
    for name in ("All-for-one", "All-for-all"):
        values = [error[c][name] for c in sizes]
        slope = np.polyfit(np.log(sizes), np.log(values), 1)[0]
        claims.append(
            states(
                f"{name}: slope of log error against log C",
                "-1",
                f"{slope:.2f}",
                abs(slope + 1) < 0.15,
                ", ".join(f"{value:.2g}" for value in values),
            )
        )
    one, both = cost.loc["All-for-one"], cost.loc["All-for-all"]
    factored = cost.loc["All-for-all, factored"]
    largest = sizes[-1]
    return [
        *claims,
        states(
            f"gradients computed, All-for-one / All-for-all, C={largest}",
            f"{largest}",
            f"{one['gradients'] / both['gradients']:g}",
            one["gradients"] == largest * both["gradients"],
            "the same number of samples",
        ),
        states(
            f"bytes, All-for-one / All-for-all, C={largest}",
            "2 (factored: 1)",
            f"{one['bytes'] / both['bytes']:g} ({one['bytes'] / factored['bytes']:g})",
            one["bytes"] == 2 * both["bytes"] == factored["bytes"],
            "models go out only in All-for-one and in the factored form",
        ),
        *_without_clusters(),
    ]


def _without_clusters(rounds: int = 50, eps: float = 0.005) -> list[Claim]:
    """The same on coins, where who is near is no equivalence relation."""
    problem = coins(100, seed=0, repeats=50)
    x = torch.full((100, 50), 0.5, dtype=REAL)
    weights = within(2 * problem.biases, eps)
    options = {"lr": 1.0, "schedule": "inverse(1)"}
    methods = {
        "All-for-one": all_for_one(weights, **options),
        "All-for-all": all_for_all(weights, **options),
        "factored": all_for_all(weights, form="factored", **options),
    }
    error, values = {}, {}
    for name, method in methods.items():
        *_, last = calls(method, problem.law, x, rounds)
        models = method.personal(last.state, Call(problem.law, rounds + 1))
        off = (models - problem.p[:, None]).square()
        error[name], values[name] = float(off.mean()) / 2, last.traffic.total
    alone = float((problem.p * (1 - problem.p)).mean()) / (2 * rounds)
    sent = values["All-for-all"] / values["All-for-one"]
    half = values["factored"] / values["All-for-one"]
    return [
        states(
            f"coins, eps={eps:g}, {rounds} calls: both below local",
            f"{alone:.2g}",
            f"{error['All-for-one']:.2g}, {error['All-for-all']:.2g}",
            max(error["All-for-one"], error["All-for-all"]) < alone,
            "All-for-one, All-for-all",
        ),
        states(
            "coins: values sent, All-for-all / All-for-one",
            "0.5 to 1 (factored: 1)",
            f"{sent:.2f} ({half:.2f})",
            0.5 < sent <= 1 and half == 1,
            "W links partners of partners: on a line, twice as many as Lambda",
        ),
    ]


ITEMS = {
    "fig1a": fig1a,
    "fig1b": fig1b,
    "chapter8-figure": chapter8_figure,
    "clusters": clusters,
    "hard-instance": hard_instance_calls,
    "scaling": scaling,
}
