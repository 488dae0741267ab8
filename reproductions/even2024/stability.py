"""Chapter 11: Figures 11.1 to 11.3, and sampled clients (E11.4).

Sparse regression without noise: x ~ N(0, I), 1 on the support of beta*, a diagonal
linear network with alpha = 0.1. All step sizes of a figure are run at once, along the
first axis, as plain recursions.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie import Simulation, Table, federate, methods, models, run_rounds
from coterie.cli import Claim, Line, Panel, draw_panels
from coterie_theory.curvature import implicit_bias

ALPHA, DONE = 0.1, 1e-11
REAL = torch.float64

GD = (0.1, 0.3, 0.6, 0.8, 0.9, 1.0)
SGD = (0.005, 0.03, 0.1, 0.13)
REFERENCE = {
    "GD": "0.030 (0.1), 0.026 (0.6), 0.048 (0.8), 0.77 (0.9), - (1)",
    "SGD": "0.032 (0.005), 0.024 (0.03), 0.010 (0.1), 0.0055 (0.13)",
}


class Run(NamedTuple):
    """Where runs with several step sizes end."""

    beta: np.ndarray  # (R, d)
    u: np.ndarray
    v: np.ndarray
    gains: implicit_bias.RunGains  # (R, d) each
    loss: np.ndarray  # (R,) infinite where a run diverges
    tests: np.ndarray  # (T, R) |beta - beta*|^2 along the run
    losses: np.ndarray  # (T, R)
    sums: np.ndarray  # (R,) of the losses of all batches
    ways: np.ndarray  # (T, R, 2 d) u and v along the run


def sparse(
    n: int, d: int, s: int, seed: int, runs: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Features (runs, n, d), and the model with ones in its first entries."""
    rng = np.random.default_rng(seed)
    best = np.zeros(d)
    best[:s] = 1
    return rng.standard_normal((runs, n, d)), best


def descend(
    x: np.ndarray,
    best: np.ndarray,
    steps: np.ndarray,
    batch: int,
    most: int,
    *,
    seed: int = 0,
    every: int = 200,
) -> Run:
    """(S)GD until all losses are small, or the largest number of steps is reached.

    Args:
        x: features (R, n, d), or (1, n, d) for all runs.
        best: (d,) the model behind the targets.
        steps: (R,) step sizes.
        batch: samples of a step, drawn without repetition.
        most: steps at most.
        seed: of the batches.
        every: steps between two looks.
    """
    rng, n = np.random.default_rng(seed), x.shape[1]
    y, gamma = x @ best, steps[:, None]
    size = (max(len(steps), len(x)), x.shape[2])
    u, v = np.full(size, np.sqrt(2) * ALPHA), np.zeros(size)
    plus, minus, sums = np.zeros(size), np.zeros(size), np.zeros(size[0])
    tests, losses, ways = [], [], []
    for k in range(most + 1):
        beta = u * v
        if k % every == 0:
            left = np.einsum(
                "rnd,rd->rn", np.broadcast_to(x, (len(u), *x.shape[1:])), beta
            )
            losses.append(((left - y) ** 2).mean(1) / 2)
            tests.append(((beta - best) ** 2).sum(1))
            ways.append(np.concatenate([u, v], 1))
            going = (losses[-1] > DONE) & (losses[-1] < 1e6)
            if not going.any():
                break
        some = np.arange(n) if batch == n else rng.permutation(n)[:batch]
        part = x[:, some]
        left = np.matmul(part, beta[:, :, None])[:, :, 0] - y[:, some]
        sums += np.where(going, (left**2).mean(1) / 2, 0.0)
        g = np.matmul(left[:, None], part)[:, 0] / batch
        step = np.where(going[:, None], gamma * g, 0.0)
        plus -= 2 * step + np.log((1 - step) ** 2)
        minus += 2 * step - np.log((1 + step) ** 2)
        u, v = u - step * v, v - step * u
    loss = np.where(losses[-1] < 1e6, losses[-1], np.inf)
    gains = implicit_bias.RunGains(torch.from_numpy(plus), torch.from_numpy(minus))
    found = np.array(tests), np.array(losses), sums, np.array(ways)
    return Run(u * v, u, v, gains, loss, *found)


def said(values: np.ndarray, steps: tuple[float, ...], loss: np.ndarray) -> str:
    """Values by step size, a dash where a run did not converge."""
    pairs = zip(values, steps, loss, strict=True)
    return ", ".join(
        f"{v:.2g} ({g:g})" if e <= DONE else f"- ({g:g})" for v, g, e in pairs
    )


def figure1(seed: int, share: float) -> dict[str, Run]:
    """GD and SGD with growing steps on one problem."""
    x, best = sparse(20, 30, 3, seed)
    with np.errstate(all="ignore"):
        return {
            "GD": descend(x, best, np.array(GD), 20, int(60_000 * share)),
            "SGD": descend(x, best, np.array(SGD), 1, int(400_000 * share), seed=seed),
        }


def step_claims(share: float, seed: int) -> list[Claim]:
    """Figures 11.1 and 11.2, left, for one seed next to the reference, and two more."""
    claims = []
    for each in range(seed, seed + max(1, int(3 * share))):
        found = figure1(each, share)
        tests = {name: run.tests[-1] for name, run in found.items()}
        gain = {n: r.gains.total.sum(1).numpy() for n, r in found.items()}
        what = f"Figure 11.1, seed {each}"
        for name, steps in (("GD", GD), ("SGD", SGD)):
            published = REFERENCE[name] if each == 0 else "-"
            ours = said(tests[name], steps, found[name].loss)
            claims.append(
                Claim(f"{what}: test loss of {name} (step)", published, ours, None)
            )
            shown = said(gain[name], steps, found[name].loss)
            printed = {"GD": "1.3 (0.1), 10.7 (0.6), 191 (0.9)", "SGD": "0.9 to 45"}[
                name
            ]
            published = printed if each == 0 else "-"
            claims.append(
                Claim(
                    f"Figure 11.2 left, seed {each}: |Gain|_1 of {name}",
                    published,
                    shown,
                    _grows(gain[name][found[name].loss <= DONE]),
                    "judged: grows with the step",
                )
            )
        arrived = np.flatnonzero(found["GD"].loss <= DONE)
        last = arrived[-1] if len(arrived) else 0
        equal = abs(tests["GD"][0] / tests["SGD"][0] - 1)
        judged = share == 1
        claims += [
            Claim(
                f"{what}: GD and SGD differ at their smallest steps by",
                "little",
                f"{equal:.2f}",
                equal < 0.4 if judged else None,
            ),
            Claim(
                f"{what}: SGD at its largest step over the smallest",
                "falls",
                f"{tests['SGD'][-1] / tests['SGD'][0]:.2f}",
                bool(tests["SGD"][-1] < 0.7 * tests["SGD"][0]) if judged else None,
            ),
            Claim(
                f"{what}: GD at its last step that converges over the smallest",
                "rises",
                f"{tests['GD'][last] / tests['GD'][0]:.1f}",
                bool(tests["GD"][last] > tests["GD"][0]) if judged else None,
            ),
        ]
        claims += limit_claims(found, each)
    return claims


def _grows(values: np.ndarray) -> bool | None:
    """Whether values rise; None: there are fewer than two to compare."""
    return bool((np.diff(values) > 0).all()) if len(values) > 1 else None


def limit_claims(found: dict[str, Run], seed: int) -> list[Claim]:
    """Limits next to the solver's, and gains between their bounds (11.10)."""
    x, best = sparse(20, 30, 3, seed)
    features = torch.from_numpy(x[0])
    targets, alpha = (
        features @ torch.from_numpy(best),
        torch.full((30,), ALPHA, dtype=REAL),
    )
    worst = 0.0
    for run in found.values():
        for j in np.flatnonzero(run.loss <= DONE):
            gains = implicit_bias.RunGains(run.gains.plus[j], run.gains.minus[j])
            solved = implicit_bias.limit(features, targets, alpha, gains).numpy()
            worst = max(worst, float(np.abs(solved - run.beta[j]).max()))
    low, high = implicit_bias.batch_curvatures(features, 20)
    run = found["GD"]
    done = np.flatnonzero(run.loss <= DONE)
    total, bound = (
        run.gains.total.sum(1).numpy()[done],
        np.array(GD)[done] ** 2 * run.sums[done],
    )
    between = bool(((low * bound <= total) & (total <= 2 * high * bound)).all())
    return [
        Claim(
            f"Theorem 11.1, seed {seed}: limits off those of the solver",
            "1e-6",
            f"{worst:.1e}",
            worst < 1e-4 if len(done) else None,
            f"losses are below {DONE:g} then",
        ),
        Claim(
            f"(11.10), seed {seed}: |Gain|_1 of GD between its bounds",
            "yes",
            ("yes" if between else "no") if len(done) else "no run has arrived",
            between if len(done) else None,
        ),
    ]


SHAPES = {"GD": (0.6, 50, 4000, "0.96, 0.10"), "SGD": (0.05, 1, 40_000, "0.61, 0.51")}
"""Step, batch, steps at most, and the reference of Figure 11.2, right."""


def shapes(share: float, seed: int) -> dict[str, np.ndarray]:
    """(R, d) gains of every coordinate, over draws of the features."""
    runs = max(2, int(40 * share))
    x, best = sparse(50, 100, 4, seed, runs)
    found = {}
    with np.errstate(all="ignore"):
        for name, (lr, batch, most, _) in SHAPES.items():
            run = descend(x, best, np.full(runs, lr), batch, int(most * share) + 1)
            found[name] = run.gains.total.numpy()
    return found


def shape_claims(found: dict[str, np.ndarray], share: float) -> list[Claim]:
    """Figure 11.2, right: gains on and off the support."""
    claims = []
    for name, gains in found.items():
        lr, *_, reference = SHAPES[name]
        gain = gains.mean(0)
        on, off = gain[:4].mean(), gain[4:].mean()
        right = on / off > 4 if name == "GD" else on / off < 2
        claims.append(
            Claim(
                f"Figure 11.2 right: mean gain of {name} on and off the support",
                reference,
                f"{on:.2f}, {off:.2f}",
                bool(right) if share == 1 else None,
                f"step {lr}, {len(gains)} draws of features",
            )
        )
    return claims


def edge_claims(folder: Path, share: float, seed: int) -> list[Claim]:
    """Figure 11.3: at the edge of stability, sharpness ends just below 2 / step."""
    x, best = sparse(50, 100, 2, seed)
    steps = np.array([0.02, 0.9, 1.0, 1.1])
    features = torch.from_numpy(x[0])
    targets = features @ torch.from_numpy(best)
    with np.errstate(all="ignore"):
        # An odd number of steps between looks shows both sides of oscillations.
        run = descend(x, best, steps, 50, int(100_000 * share), every=EVERY)
    ends = [
        sharpness(u, v, features, targets) for u, v in zip(run.u, run.v, strict=True)
    ]
    claims = [
        Claim(
            "Figure 11.3: sharpness of gradient flow, and the step of 2 over it",
            "2.16, 0.925",
            f"{ends[0]:.2f}, {2 / ends[0]:.3f}",
            None,
            "step 0.02",
        )
    ]
    reference = {
        0.9: "as flow",
        1.0: "1.997 < 2.000; 0.062",
        1.1: "1.814 < 1.818; 0.205",
    }
    for j, lr in enumerate(steps[1:], start=1):
        stays = ends[j] <= 2 / lr * 1.001
        support = ", ".join(f"{b:.3f}" for b in run.beta[j, :2])
        claims.append(
            Claim(
                f"Figure 11.3: step {lr}, sharpness at the end < 2 / step; test loss",
                reference[lr],
                f"{ends[j]:.3f} < {2 / lr:.3f}; {run.tests[-1, j]:.2g}",
                stays if share == 1 and run.loss[j] <= DONE else None,
                f"support {support}; train loss {run.loss[j]:.1g}",
            )
        )
    draw_edge(folder, steps, run, features, targets)
    return claims


def sampling_claims(share: float, seed: int) -> list[Claim]:
    """E11.4: one client a round or all of them, with the library's model and FedAvg."""
    x, best = sparse(20, 30, 3, seed)
    features = torch.from_numpy(x[0])
    table = Table(
        "sparse",
        features.repeat(3, 1),
        (features @ torch.from_numpy(best)).repeat(3),
        "regression",
        1,
    )
    owner, role = torch.arange(20).repeat(3), torch.arange(3).repeat_interleave(20)
    federation = federate(table, owner, role)
    module = models.build(lambda: models.diagonal((30,), 1, scale=ALPHA), 0, REAL)
    simulation = Simulation(federation, module, batch_size=0, dtype=REAL)
    start = models.ravel(module).detach().expand(20, -1).clone()
    tests = []
    for gamma, part, rounds in ((0.6, 1.0, 3000), (0.1, 0.05, 6000)):
        # The library's squares have no factor 1/2.
        method = methods.fedavg(torch.ones(20), lr=gamma / 2, weighting="uniform")
        end = start
        for r in run_rounds(
            method,
            simulation,
            start,
            rounds=max(2, int(rounds * share)),
            seed=seed,
            participation=part,
        ):
            end = r.state.x
        u, v = end[0].view(2, 30)
        tests.append(float((u * v - torch.from_numpy(best)).square().sum()))
    return [
        Claim(
            "E11.4: test loss, one client a round (step 0.1), all (0.6)",
            "one is less",
            f"{tests[1]:.2g}, {tests[0]:.2g}",
            tests[1] < tests[0] if share == 1 else None,
            "20 clients with a sample each; model `diagonal`",
        )
    ]


EVERY = 97
"""Steps between two looks at the runs of Figure 11.3."""


def sharpness(u: np.ndarray, v: np.ndarray, features: Tensor, targets: Tensor) -> float:
    """The largest eigenvalue of the Hessian of the network."""
    h = implicit_bias.network_hessian(
        torch.from_numpy(u), torch.from_numpy(v), features, targets
    )
    return float(torch.linalg.eigvalsh(h)[-1])


def draw_edge(
    folder: Path, steps: np.ndarray, run: Run, features: Tensor, targets: Tensor
) -> None:
    """Figure 11.3: coordinates, losses and sharpness along the runs."""
    names = ["gradient flow (step 0.02)", *(f"step {lr:g}" for lr in steps[1:])]
    at = (EVERY * np.arange(len(run.losses))).tolist()
    u, v = np.split(run.ways, 2, axis=2)
    coordinates, losses, sharp, limits = [], [], [], []
    some = np.unique(np.geomspace(1, len(at), 120).astype(int) - 1)
    for j, name in enumerate(names):
        for i in (0, 1):  # of the support
            coordinates.append(Line(name, at, (u * v)[:, j, i].tolist(), width=1))
        losses.append(Line(name, at, np.maximum(run.losses[:, j], 1e-14).tolist()))
        values = [sharpness(u[k, j], v[k, j], features, targets) for k in some]
        there = [at[k] for k in some]
        sharp.append(Line(name, there, values))
        if j:
            limits.append(Line(name, [at[1], at[-1]], [2 / steps[j]] * 2, dashed=True))
    draw_panels(
        folder / "edge.html",
        [
            Panel(coordinates, "coordinates of the support", "steps", "beta", True),
            Panel(losses, "training loss", "steps", "loss", True, True),
            Panel([*sharp, *limits], "sharpness, and 2 / step", "steps", "", True),
        ],
    )


def draw_steps(folder: Path, share: float, seed: int) -> None:
    """Figures 11.1 and 11.2, left: test losses and gains against steps."""
    x, best = sparse(20, 30, 3, seed)
    tests, gains = [], []
    with np.errstate(all="ignore"):
        for name, steps, batch, most in (
            ("GD", np.geomspace(0.05, 1.0, 14), 20, 60_000),
            ("SGD", np.geomspace(0.01, 0.14, 10), 1, 200_000),
        ):
            run = descend(x, best, steps, batch, int(most * share), seed=seed)
            done = run.loss <= 1e-6  # what is left then is not seen
            tests.append(
                Line(name, steps[done].tolist(), run.tests[-1][done].tolist(), BOTH)
            )
            total = run.gains.total.sum(1).numpy()[done].tolist()
            gains.append(Line(name, steps[done].tolist(), total, BOTH))
    features = torch.from_numpy(x[0])
    alpha = torch.full((30,), ALPHA, dtype=REAL)
    flow = implicit_bias.limit(
        features, features @ torch.from_numpy(best), alpha, implicit_bias.no_gain(alpha)
    )
    error = float((flow.numpy() - best) @ (flow.numpy() - best))
    tests.append(Line("gradient flow", [0.01, 1.0], [error] * 2, dashed=True))
    labels = "step", "|beta - beta*|^2"
    left = Panel(tests, "Figure 11.1: test loss at the end", *labels, True, True)
    right = Panel(gains, "Figure 11.2, left: gains", "step", "|Gain|_1", True, True)
    draw_panels(folder / "steps.html", [left, right])


BOTH = "lines+markers"


def draw_shapes(folder: Path, found: dict[str, np.ndarray]) -> None:
    """Figure 11.2, right: the gain of every coordinate in every run."""
    panels = []
    for name, gains in found.items():
        lines = []
        for where, part in (("on the support", slice(4)), ("off it", slice(4, None))):
            here = np.maximum(gains[:, part], 1e-4)
            index = np.broadcast_to(np.arange(gains.shape[1])[part], here.shape)
            points = here.ravel().tolist(), index.ravel().tolist()
            lines.append(Line(where, *points, "markers", size=3))
        title = f"{name}, step {SHAPES[name][0]}"
        labels = title, "gain", "coordinate"
        panels.append(Panel(lines, *labels, log_x=True, between=(1e-3, 1e1)))
    draw_panels(folder / "shapes.html", panels)
