"""Figure 3.1 and Table 3.2: asynchronous SGD with a server, tuned.

The thesis measures on a node of 48 cores. Here tasks take random times, and all else is
computed as it would be there.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from coterie.algorithms.server_sgd import server_sgd
from coterie.cli import Claim, Line, Panel, draw_panels
from coterie.engine.clocks import Clock, clock
from coterie.types import Algorithm
from coterie_theory import asynchrony

from .problems import LAW, REAL, Problem, least_squares, random_data
from .runs import WINDOW, Jump, Trace, final, follow, jump, time_to

EXPECTED = tomllib.loads((Path(__file__).parent / "expected.toml").read_text())
MINIBATCH, CONSTANT, ADAPTIVE = EXPECTED["figure31"]["noisy"]


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


def methods(workers: int) -> dict[str, tuple[float, Callable[[float], Algorithm]]]:
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
    gain = asynchrony.speed_up(torch.tensor(case.speeds, dtype=REAL))
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


def draw(folder: Path, found: dict[str, dict[str, Tuned]]) -> None:
    """Writes the figure: gaps against gradients, and delays, a row for each setting."""
    panels = []
    for case, best in found.items():
        lines = []
        for name, run in best.items():
            gaps = run.trace.gap.tolist()
            lines.append(Line(name, range(1, len(gaps) + 1), gaps, width=1))
        labels = f"{case}: gap", "gradients used", "F(x) - min F"
        panels.append(Panel(lines, *labels, log_y=True))
        delay = best[ADAPTIVE].trace.delay.double()
        width = max(1.0, float(delay.max()) / 60)
        which, counts = (delay / width).floor().unique(return_counts=True)
        middle = ((which + 0.5) * width).tolist()
        bars = [Line(ADAPTIVE, middle, counts.tolist(), "markers", size=6)]
        labels = f"{case}: delays", "delay", f"gradients, per {width:.0f} of delay"
        panels.append(Panel(bars, *labels, log_y=True))
    draw_panels(folder / "figure31.html", panels, columns=2)
