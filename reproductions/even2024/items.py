"""Chapters 3 and 5 of Even's thesis; chapter 5 is in files of its own.

Chapter 3 is asynchronous SGD with a server, here in virtual time. The thesis measures
on a node of 48 cores. Here tasks take random times, and all else is computed as it
would be there. Losses are least squares, |a'x - b|^2 / 2, and a gap is F(x) - min F of
the training objective. Settings are given as `name=value`.
"""

from __future__ import annotations

import csv
import importlib.util
import math
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

import coterie as co
from coterie.algorithms.server_sgd import server_sgd
from coterie.checks import integer, number, one_of
from coterie.cli import Claim
from coterie.data import Federation, Part
from coterie.engine.clocks import Clock, clock
from coterie.engine.events import run_events
from coterie.models import build, linear
from coterie.seeds import generator
from coterie.theory.asynchrony import (
    cautious_steps,
    round_robin_limit,
    speed_up,
    typical_delays,
)

HERE = Path(__file__).parent
EXPECTED = tomllib.loads((HERE / "expected.toml").read_text())
REAL = torch.float64
LAW = "lognormal(1, 0.3)"
WINDOW = 40  # updates in which a spike must have risen
MINIBATCH, CONSTANT, ADAPTIVE = EXPECTED["figure31"]["noisy"]


# Workers who share their data.


class Problem(NamedTuple):
    """Least squares of M workers, and what is known of it."""

    simulation: co.Simulation
    optimum: Tensor  # (D,)
    hessian: Tensor  # (D, D)
    beta: float  # L, its largest eigenvalue

    def gaps(self, x: Tensor) -> Tensor:
        """F(x) - min F for each row x; infinite where a run has diverged."""
        off = x - self.optimum
        gap = ((off @ self.hessian) * off).sum(1) / 2
        return gap.nan_to_num(nan=math.inf, posinf=math.inf, neginf=math.inf)


def shared(features: Tensor, targets: Tensor, workers: int) -> Federation:
    """Workers who all draw from the same samples, each with draws of its own."""
    samples = len(features)
    everything = Part(
        torch.arange(samples),
        torch.zeros(workers, dtype=torch.long),
        torch.full((workers,), samples),
    )
    return Federation(
        "shared",
        features,
        targets,
        "regression",
        outputs=1,
        train=everything,
        validation=everything,  # nobody is asked about these two
        test=everything,
        clients=torch.arange(workers),
    )


def least_squares(
    features: Tensor, targets: Tensor, workers: int, *, batch: int, seed: int = 0
) -> Problem:
    """The mean of |a'x - b|^2 / 2; batch 0 takes all samples for a gradient."""
    half = math.sqrt(0.5)  # the library's squared error has no factor 1/2
    simulation = co.Simulation(
        shared(half * features, half * targets, workers),
        build(lambda: linear(features.shape[1:], 1, bias=False), seed),
        batch_size=batch,
        seed=seed,
        dtype=REAL,
    )
    hessian = features.T @ features / len(features)
    optimum = torch.linalg.solve(hessian, features.T @ targets / len(features))
    beta = float(torch.linalg.eigvalsh(hessian)[-1])
    return Problem(simulation, optimum, hessian, beta)


def random_data(condition: float, noise: float, seed: int) -> tuple[Tensor, Tensor]:
    """2000 samples in 50 dimensions; eigenvalues from 1 down to 1 / condition, about.

    Minimiser and features are Gaussian, and `noise` is the deviation of the labels.
    """
    rng = generator(seed, "even2024")
    eigenvalues = torch.logspace(-math.log10(condition), 0, 50, dtype=REAL)
    features = torch.randn(2000, 50, generator=rng, dtype=REAL) * eigenvalues.sqrt()
    targets = features @ torch.randn(50, generator=rng, dtype=REAL)
    return features, targets + noise * torch.randn(2000, generator=rng, dtype=REAL)


def quadratic(eigenvalues: Tensor, workers: int) -> Problem:
    """F(x) = sum_j lambda_j (x_j - 1)^2 / 2 without noise: a sample for each j."""
    features = (len(eigenvalues) * eigenvalues).sqrt().diag()
    return least_squares(features, features.sum(1), workers, batch=0)


class Trace(NamedTuple):
    """A run; entry k - 1 is about update k, or gradient k where the server waits."""

    gap: Tensor  # (K,)
    time: Tensor  # (K,)
    delay: Tensor  # (K,)


def follow(problem: Problem, method: co.Algorithm, paces: Clock, updates: int) -> Trace:
    """Runs a method from 0 until so many gradients have arrived."""
    x = torch.zeros(len(problem.simulation), len(problem.optimum), dtype=REAL)
    models, times, delays = torch.zeros(updates, x.shape[1], dtype=REAL), [], []
    for event in run_events(
        method, problem.simulation, x, clock=paces, updates=updates
    ):
        models[len(times)] = event.state.x
        times.append(event.time)
        delays += event.delays
    return Trace(
        problem.gaps(models), torch.tensor(times, dtype=REAL), torch.tensor(delays)
    )


# What is measured of a run.


def final(gap: Tensor, share: float = 0.05) -> float:
    """The mean gap over the last of the updates."""
    return float(gap[-max(1, int(share * len(gap))) :].mean())


class Jump(NamedTuple):
    """How far a gap rises within few updates."""

    size: float  # log10 of gap(k + j) / gap(k)
    update: int  # k, counted from 1


def jump(gap: Tensor, window: int = WINDOW) -> Jump:
    """The largest rise over j = 0, ..., window updates."""
    windows = gap.unfold(0, min(window, len(gap) - 1) + 1, 1)
    rise = (windows.amax(1) / windows[:, 0]).log10()
    return Jump(float(rise.max()), int(rise.argmax()) + 1)


def time_to(trace: Trace, level: float) -> float:
    """When the gap is at a level for the first time."""
    there = (trace.gap <= level).nonzero().flatten()
    return float(trace.time[there[0]]) if len(there) else math.inf


def slope(gap: Tensor) -> float:
    """The decay of ln(gap) per update over the second half."""
    half = len(gap) // 2
    return float((gap[half] / gap[-1]).log()) / (len(gap) - 1 - half)


# Figure 3.1.


class Case(NamedTuple):
    """A setting of the figure."""

    name: str
    condition: float
    noise: float
    speeds: list[float]  # factors of time


CASES = (
    Case("noisy", 10.0, 0.5, [1.0] * 28 + [20.0] * 10 + [200.0] * 2),
    Case("noiseless", 100.0, 0.0, [1.0] * 36 + [50.0, 100.0, 200.0, 400.0]),
)


class Tuned(NamedTuple):
    """The best run of a method, and lr L for which it is."""

    trace: Trace
    step: float
    inside: bool  # whether the step is not at an end of the grid


def methods(workers: int) -> dict[str, tuple[float, Callable[[float], co.Algorithm]]]:
    """The three methods, and by what their steps are divided."""
    return {
        MINIBATCH: (1.0, lambda lr: server_sgd(lr=lr, wait=workers)),
        CONSTANT: (workers, lambda lr: server_sgd(lr=lr, late="constant")),
        ADAPTIVE: (workers, lambda lr: server_sgd(lr=lr, late="adaptive")),
    }


def drawn(case: Case, seed: int) -> tuple[Problem, Clock]:
    """The data and the times of a setting."""
    data = random_data(case.condition, case.noise, seed)
    problem = least_squares(*data, len(case.speeds), batch=16, seed=seed)
    return problem, clock(LAW, speeds=case.speeds, seed=seed)


def with_step(case: Case, step: float, updates: int, seed: int) -> dict[str, Trace]:
    """Both rules with lr = step / L."""
    problem, paces = drawn(case, seed)
    both = {name: methods(len(case.speeds))[name][1] for name in (CONSTANT, ADAPTIVE)}
    return {
        name: follow(problem, make(step / problem.beta), paces, updates)
        for name, make in both.items()
    }


def tuned(case: Case, updates: int, steps: int, seed: int) -> dict[str, Tuned]:
    """Each method with the step whose gap is the smallest at the end."""
    problem, paces, workers = *drawn(case, seed), len(case.speeds)
    best = {}
    for name, (divisor, make) in methods(workers).items():
        grid = (torch.logspace(-1.5, 0.5, steps, dtype=REAL) / divisor).tolist()
        runs = [follow(problem, make(s / problem.beta), paces, updates) for s in grid]
        j = min(range(steps), key=lambda j: final(runs[j].gap))
        best[name] = Tuned(runs[j], grid[j], 0 < j < steps - 1)
    return best


def figure_claims(case: Case, best: dict[str, Tuned]) -> list[Claim]:
    """What the thesis says of the figure, for one setting."""
    reference = EXPECTED["figure31"].get(case.name, {})
    label = case.name
    claims = [
        Claim(
            f"{label}: gap at the end, {name}",
            f"{reference[name]:.2g}" if name in reference else "-",
            f"{final(run.trace.gap):.2g}",
            None,
            f"lr = {run.step:.2g}/L"
            + ("" if run.inside else ", at an end of the grid"),
        )
        for name, run in best.items()
    ]
    delay = best[ADAPTIVE].trace.delay
    mean, workers = float(delay.double().mean()), len(case.speeds)
    claims.append(
        Claim(
            f"{label}: mean delay at most M",
            f"at most {workers}",
            f"{mean:.1f}",
            mean <= workers,
            f"the longest is {int(delay.max())}",
        )
    )
    return claims + clock_claims(case, best)


def clock_claims(case: Case, best: dict[str, Tuned]) -> list[Claim]:
    """Table 3.2 and check 6: the time that waiting for nobody saves."""
    gain = speed_up(torch.tensor(case.speeds, dtype=REAL))
    waits, adaptive = best[MINIBATCH].trace, best[ADAPTIVE].trace
    level = 2 * max(final(waits.gap), final(adaptive.gap))
    slow, fast = time_to(waits, level), time_to(adaptive, level)
    per_gradient = float(waits.time[-1] / adaptive.time[-1])
    return [
        Claim(
            f"{case.name}: time per gradient, Minibatch / Async",
            f"{gain:.0f}",
            f"{per_gradient:.0f}",
            # E max of a round's times is at least the max of E; a tenth for chance.
            per_gradient >= 0.9 * gain,
            "speed_up, Table 3.2; a round waits for the longest of 40 random times",
        ),
        Claim(
            f"{case.name}: time to a gap of {level:.1g}, Minibatch / Async, adaptive",
            f"{gain:.0f}/C",
            f"{slow / fast:.0f}",
            # The theory compares up to constants. Steps are stable up to 2/L in a
            # minibatch and pi/2/L for M gradients in turn, and nobody is at the limit.
            slow / fast >= gain / 4,
            f"{slow:.0f} and {fast:.0f}; C = 4 is allowed",
        ),
    ]


def jump_claims(
    best: dict[str, Tuned], recipe: list[dict[str, Trace]], step: float
) -> list[Claim]:
    """Constant steps spike when a late gradient comes, adaptive ones do not.

    Args:
        best: tuned runs.
        recipe: runs of several seeds with the reference's step, the same for both.
        step: that step, times L.
    """
    both = (CONSTANT, ADAPTIVE)
    known = " and ".join(f"{EXPECTED['jump'][name]:g}" for name in both)
    same = [[jump(runs[name].gap) for name in both] for runs in recipe]
    tuned = [jump(best[name].trace.gap) for name in both]
    # The gradients that a jump follows on: how late is the latest of them?
    late = [
        int(best[name].trace.delay[found.update : found.update + WINDOW].amax())
        for name, found in zip(both, tuned, strict=True)
    ]
    rule = "constant and adaptive; a ratio above 3 is asked for"
    return [
        Claim(
            f"noiseless, lr = {step:g}/L: largest log10 jump over {WINDOW} updates",
            known,
            "; ".join(_sizes(pair) for pair in same),
            all(_stable(*pair) for pair in same),
            f"{rule}, of every seed",
        ),
        Claim(
            "noiseless, each with its best step: the same",
            known,
            _sizes(tuned),
            _stable(*tuned),
            f"{rule}; delays there are up to {late[0]} and {late[1]}",
        ),
    ]


def _stable(constant: Jump, adaptive: Jump) -> bool:
    return constant.size > 3 * adaptive.size


def _sizes(jumps: Sequence[Jump]) -> str:
    return " and ".join(f"{found.size:.2g}" for found in jumps)


# Quadratics: delays, numbers of workers, the largest stable step.


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
        longest.append(math.ceil(typical_delays(torch.tensor(speeds)).max()))
        lr = cautious_steps(longest[-1], problem.beta)(1, 1)
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
            method = server_sgd(lr=share * round_robin_limit(workers))
            number = max(8, updates * workers // 20)
            gap = follow(problem, method, clock("constant(1)"), number).gap
            # Gaps swing, so highest ones are compared, after a quarter to settle.
            quarter = number // 4
            highest = gap[-quarter:].max() / gap[quarter : 2 * quarter].max()
            growth.append(float(highest))
        claims.append(
            Claim(
                f"M = {workers} in turn: gap grows only above the limit of lr L",
                f"{round_robin_limit(workers):.3g}",
                f"times {growth[0]:.2g} at -2%, times {growth[1]:.2g} at +2%",
                growth[0] < 1 < growth[1],
                "the highest gap, of the last quarter and of the second",
            )
        )
    return claims


# Records.


def draw(folder: Path, found: dict[str, dict[str, Tuned]]) -> None:
    """Writes the figure: gaps against gradients, and delays, a row for each setting."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    titles = [
        f"{case}: {what}" for case in found for what in ("gap", "delays, adaptive")
    ]
    figure = make_subplots(rows=len(found), cols=2, subplot_titles=titles)
    colours = {MINIBATCH: "#777", CONSTANT: "#d55", ADAPTIVE: "#27a"}
    for row, best in enumerate(found.values(), start=1):
        for name, run in best.items():
            curve = go.Scatter(
                x=list(range(1, len(run.trace.gap) + 1)),
                y=[float(f"{gap:.4g}") for gap in run.trace.gap.tolist()],
                name=name,
                legendgroup=name,
                showlegend=row == 1,
                line={"color": colours[name], "width": 1},
            )
            figure.add_trace(curve, row=row, col=1)
        delay = best[ADAPTIVE].trace.delay
        bars = go.Histogram(x=delay.tolist(), nbinsx=60, showlegend=False)
        figure.add_trace(bars.update(marker={"color": colours[ADAPTIVE]}), row, 2)
        figure.update_xaxes(title_text="gradients used", row=row, col=1)
        figure.update_xaxes(title_text="delay", row=row, col=2)
        figure.update_yaxes(title_text="F(x) - min F", row=row, col=1)
        figure.update_yaxes(title_text="gradients", row=row, col=2)
    figure.update_yaxes(type="log")
    figure.update_layout(template="plotly_white", height=400 * len(found))
    figure.write_html(folder / "figure31.html")


def record(path: Path, claims: Sequence[Claim]) -> None:
    """Writes all claims as a table."""
    with path.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(Claim._fields)
        table.writerows(claims)


def settings(overrides: Sequence[str], **defaults: Any) -> dict[str, Any]:
    """The settings of an item, some of them given as `name=value`."""
    for override in overrides:
        name, _, value = override.partition("=")
        one_of("setting", name, defaults)
        defaults[name] = tomllib.loads(f"value = {value}")["value"]
    return defaults


def chapter3(overrides: Sequence[str]) -> list[Claim]:
    """Figure 3.1 and Tables 3.1 and 3.2: asynchronous SGD (three minutes).

    Settings: `updates`, `steps` (how many step sizes are tried), `seed`.
    """
    given = settings(overrides, updates=8000, steps=15, seed=0)
    updates = integer("updates", given["updates"], at_least=100)
    integer("steps", given["steps"], at_least=1)
    found = {case.name: tuned(case, **given) for case in CASES}
    claims = [c for case in CASES for c in figure_claims(case, found[case.name])]
    step = EXPECTED["jump"]["step"]
    seeds = range(given["seed"], given["seed"] + 4)
    recipe = [with_step(CASES[1], step, updates, seed) for seed in seeds]
    claims += jump_claims(found["noiseless"], recipe, step)
    claims += straggler_claims(updates)
    claims += worker_claims(updates)
    claims += limit_claims(updates)
    folder = Path("runs") / "even2024-chapter3"
    folder.mkdir(parents=True, exist_ok=True)
    draw(folder, found)
    record(folder / "chapter3.csv", claims)
    return claims


def beside(name: str) -> ModuleType:
    """Another file of this folder, which is no package."""
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def chapter5(overrides: Sequence[str]) -> list[Claim]:
    """Experiments on chapter 5: AGRAF, graphs and loss networks (two minutes).

    Settings: `share` (of all steps and runs, 1 for the claims), `seed`.
    """
    given = settings(overrides, share=1.0, seed=0)
    share = number("share", given["share"], above=0, at_most=1)
    seed = integer("seed", given["seed"], at_least=0)
    folder = Path("runs") / "even2024-chapter5"
    folder.mkdir(parents=True, exist_ok=True)
    claims = []
    for part in ("chapter5_events", "chapter5_recursions", "chapter5_networks"):
        claims += beside(part).claims(folder, share, seed)
    claims.sort(key=lambda claim: claim.what.partition(",")[0])  # by experiment
    record(folder / "chapter5.csv", claims)
    return claims


ITEMS = {"chapter3": chapter3, "chapter5": chapter5}
