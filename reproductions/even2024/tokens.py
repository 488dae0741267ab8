"""Chapter 7: walks, MC-SGD with noise and without, time, and the hard instance.

The chapter has no experiments. V1 to V8 are checks of its statements, each by plain
recursions with many runs along the last axis; methods themselves are compared in
`token_races`.
"""

from __future__ import annotations

import math

import numpy as np
import torch

import coterie_theory.decentralised.tokens as theory
from coterie.algorithms.token_sgd import token_sgd
from coterie.cli import Claim
from coterie.engine.clocks import Delays, clock
from coterie.engine.events import EventLoop
from coterie.graphs import edges_of, gossip_matrix, hitting_time, transition
from coterie.seeds import generator, key
from coterie_theory.decentralised import chains

from .problems import quadratic
from .walks import slope


def random(seed: int, *names: str) -> np.random.Generator:
    """A stream of these names."""
    return np.random.default_rng(key(seed, "chapter7", *names) & (2**63 - 1))


def torus(side: int) -> torch.Tensor:
    """The edges of a square grid without a border."""
    places = torch.arange(side**2).view(side, side)
    ways = [torch.stack([places, places.roll(-1, axis)], -1) for axis in (0, 1)]
    return torch.cat([way.reshape(-1, 2) for way in ways])


def walked(
    chain: torch.Tensor, runs: int, steps: int, seed: int, name: str
) -> np.ndarray:
    """(steps + 1, runs) where walks are that begin anywhere, all alike."""
    rng = generator(seed, "chapter7", name)
    start = torch.randint(len(chain), (runs,), generator=rng)
    return chains.paths(chain, start, steps, rng).numpy()


# Times of walks: the spec's values, and how they grow.


def time_claims(share: float, seed: int) -> list[Claim]:
    """Hitting and mixing times of cycles and tori, and Table 7.2."""
    lazy = {n: transition("lazy", edges_of("ring", n), n) for n in (16, 32, 64)}
    hit = {n: hitting_time(chain) for n, chain in lazy.items()}
    mix = {n: chains.mixing_time(chain) for n, chain in lazy.items()}
    tori = [transition("lazy", torus(side), side**2) for side in (4, 8, 12)]
    found = [hitting_time(chain) for chain in tori]
    slopes = (
        slope(list(hit), list(hit.values())),
        slope(list(mix), [n * t for n, t in mix.items()]),
    )
    return [
        Claim(
            "times, lazy walk on cycles of 16, 32, 64: tau_hit, tau_mix",
            "96 384 1536, 58 288 1369",
            " ".join(f"{t:.0f}" for t in hit.values())
            + ", "
            + " ".join(f"{t}" for t in mix.values()),
            [round(t) for t in hit.values()] == [96, 384, 1536]
            and list(mix.values()) == [58, 288, 1369],
        ),
        Claim(
            "times, lazy walk on tori of 4, 8, 12 squared: tau_hit",
            "26.7 139.8 360.2",
            " ".join(f"{t:.1f}" for t in found),
            np.allclose(found, [26.7, 139.8, 360.2], atol=0.05),
        ),
        Claim(
            "Table 7.2, cycle: slopes of tau_hit and n tau_mix in n",
            "2, 3",
            f"{slopes[0]:.2f}, {slopes[1]:.2f}",
            abs(slopes[0] - 2) < 0.05 and 2.9 < slopes[1] < 3.5,
            "tau_mix at pi_min / 2 has a logarithm of n beside n^2",
        ),
    ]


# V1: two states.


def two_state_claims(share: float, seed: int) -> list[Claim]:
    """V1: the variance of Proposition 7.4.1 over (p, gamma)."""
    flips, steps = np.array([0.5, 0.2, 0.1, 0.02]), np.array([0.2, 0.05, 0.02])
    runs, rng = max(100, int(4000 * share)), random(seed, "two states")
    x = np.zeros((4, 3, runs))
    sign = rng.choice([-1.0, 1.0], size=(4, 1, runs))
    for _ in range(400):  # eight times 1 / gamma, from near the optimum
        x -= steps[:, None] * (x - sign)
        sign *= np.where(rng.random((4, 1, runs)) < flips[:, None, None], -1.0, 1.0)
    found = np.square(x).mean(-1)
    error = np.square(x).std(-1) / math.sqrt(runs)
    exact = np.array([[theory.two_state_moment(p, lr) for lr in steps] for p in flips])
    worst = float((abs(found - exact) / error).max())
    return [
        Claim(
            "V1, two states, p = .1, gamma = .05: E x^2",
            "0.18803",
            f"{found[2, 1]:.4f}",
            abs(found[2, 1] - 0.18803) <= 4 * error[2, 1],
            f"4 standard errors of {error[2, 1]:.1g}; printed gamma / (4 p) = 0.125",
        ),
        Claim(
            "V1, 12 pairs (p, gamma): largest distance from the closed form",
            "at most 4 standard errors",
            f"{worst:.1f}",
            worst <= 4,
        ),
    ]


# V2 and V3: what the walk changes, and what it does not.


def graphs(n: int) -> dict[str, torch.Tensor]:
    """Metropolis walks on a cycle, a torus and a complete graph."""
    side = math.isqrt(n)
    return {
        "cycle": transition("metropolis", edges_of("ring", n), n),
        "torus": transition("metropolis", torus(side), n),
        "complete": transition("metropolis", edges_of("complete", n), n),
    }


def interpolation_claims(share: float, seed: int) -> list[Claim]:
    """V2: with a common minimum the rate is linear, whatever the walk."""
    n, d, mu, lr, rng = 16, 5, 0.2, 0.5, random(seed, "interpolation")
    turn = np.linalg.qr(rng.normal(size=(n, d, d)))[0]
    a = turn * rng.uniform(mu, 1, (n, 1, d)) @ turn.transpose(0, 2, 1)
    runs, steps = max(20, int(200 * share)), 120
    rates, broken = [], 0
    for name, chain in graphs(n).items():
        path = walked(chain, runs, steps, seed, f"interpolation {name}")
        x = np.ones((runs, d))  # from the minimum
        far = []
        for t, at in enumerate(path[:-1], 1):
            x = x - lr * np.einsum("rij,rj->ri", a[at], x)
            far.append(np.square(x).sum(1))
            bound = theory.interpolation_bound(float(d), t, lr=lr, mu=mu)
            broken += int((far[-1] > bound).sum())
        rates.append(-np.polyfit(range(steps), np.log(far).mean(1), 1)[0])
    return [
        Claim(
            "V2, common minimum: runs and steps above 2 (1 - gamma mu)^T",
            "0",
            str(broken),
            broken == 0,
            f"{3 * runs * steps} tries; cycle, torus and complete graph of 16",
        ),
        Claim(
            "V2, decay of ln |x - x^*|^2 per step on the three",
            "the same",
            ", ".join(f"{rate:.3f}" for rate in rates),
            max(rates) <= 1.15 * min(rates),
            "15 percent are allowed",
        ),
    ]


def floor_claims(share: float, seed: int) -> list[Claim]:
    """V3: the floor of noise at the optimum grows with tau_mix, local noise's not.

    Losses are (x - b_v)^2 / 2, with b an eigenvector of P, so that the floor is that of
    two states with the eigenvalue for 1 - 2 p.
    """
    lr, runs, rng = 0.004, max(100, int(1500 * share)), random(seed, "floor")
    sizes, floors, local, exact, errors, mixing = (8, 16, 32), [], [], [], [], []
    for n in sizes:
        chain = transition("metropolis", edges_of("ring", n), n)
        b = math.sqrt(2) * np.cos(2 * math.pi * np.arange(n) / n)
        path = walked(chain, runs, 1200, seed, f"floor {n}")
        x, y = np.zeros(runs), np.zeros(runs)
        for at in path:
            x -= lr * (x - b[at])
            y -= lr * (y - rng.normal(size=runs))
        floors.append(float(np.square(x).mean()))
        errors.append(float(np.square(x).std()) / math.sqrt(runs))
        local.append(float(np.square(y).mean()))
        kept = 1 - 1 / chains.relaxation_time(chain)
        exact.append(theory.two_state_moment((1 - kept) / 2, lr))
        mixing.append(chains.mixing_time(chain, 0.25))
    grows = slope(mixing, floors)
    off = max(abs(f - e) / s for f, e, s in zip(floors, exact, errors, strict=True))
    alone = lr / (2 - lr)
    return [
        Claim(
            "V3, cycles of 8, 16, 32: floor of MC-SGD, losses that differ",
            ", ".join(f"{value:.3g}" for value in exact),
            ", ".join(f"{value:.3g}" for value in floors),
            off <= 4,
            f"closed form; {off:.1f} standard errors at most, 4 are allowed",
        ),
        Claim(
            "V3, slope of ln floor over ln tau_mix(1/4)",
            "1",
            f"{grows:.2f}",
            0.8 <= grows <= 1.1,
        ),
        Claim(
            "V3, the same with noise within clients alone",
            f"{alone:.3g}",
            ", ".join(f"{value:.3g}" for value in local),
            max(abs(v - alone) for v in local) <= 4 * alone * math.sqrt(2 / runs),
            "4 standard errors",
        ),
    ]


# V6: time.


def time_of_hops_claims(share: float, seed: int) -> list[Claim]:
    """V6: a token takes the mean time of a hop, and synchronous gossip the longest."""
    n, rng = 16, random(seed, "time")
    chain = transition("metropolis", edges_of("grid", n), n)
    seconds = rng.lognormal(0, 0.5, (n, n))
    seconds[0] *= 100  # a straggler
    runs, steps = max(50, int(400 * share)), 2000
    path = walked(chain, runs, steps, seed, "time")
    means = seconds[path[:-1], path[1:]].mean(0)
    error = float(means.std()) / math.sqrt(runs)
    expected = theory.hop_time(chain, torch.tensor(seconds))
    longest = theory.round_time(chain, torch.tensor(seconds))
    ours, wanted = engine_time(max(50, int(1000 * share)), seed)
    return [
        Claim(
            "V6, grid of 16, one 100 times slower: seconds a step of a token",
            f"{expected:.2f}",
            f"{means.mean():.2f}",
            abs(float(means.mean()) - expected) <= 4 * error,
            f"4 standard errors; a round of gossip takes {longest:.0f}",
        ),
        Claim(
            "V6, the same of token_sgd in virtual time",
            f"{wanted:.2f}",
            f"{ours:.2f}",
            abs(ours / wanted - 1) < (0.1 if share == 1 else 0.5),
            "one walk, a grid of 9; a tenth for chance",
        ),
    ]


def engine_time(updates: int, seed: int) -> tuple[float, float]:
    """Seconds an answer of `token_sgd`, and what 7.6.3 says; links take 2 seconds."""
    n, edges = 9, edges_of("grid", 9)
    paces = [5.0] + [1.0] * (n - 1)
    problem = quadratic(torch.ones(1, dtype=torch.float64), n)
    run = EventLoop(
        token_sgd(gossip_matrix(edges, n)),
        problem.simulation,
        torch.zeros(n, 1, dtype=torch.float64),
        clock=clock("constant(1)", speeds=paces),
        links=Delays("constant(2)"),
        seed=seed,
    )
    while run.updates < updates:
        run.step()
    moves = 2 * (1 - torch.eye(n, dtype=torch.float64))
    seconds = torch.tensor(paces, dtype=torch.float64)[:, None] + moves
    chain = transition("metropolis", edges, n)
    return run.time / updates, theory.hop_time(chain, seconds)


# V7: the hard instance.


def hard_claims(share: float, seed: int) -> list[Claim]:
    """V7: a coordinate more only after a turn between two clients far apart."""
    n, d, runs = 8, 20, max(4, int(40 * share))
    chain = transition("lazy", edges_of("ring", n), n)
    a, c = (part.numpy() for part in theory.hard_instance(d))
    path = walked(chain, runs, 300, seed, "hard")
    wrong, most = 0, 0
    for run in path.T:
        allowed = theory.alternations(torch.tensor(run), 0, n // 2).tolist()
        for sag in (False, True):
            x, kept = np.zeros(d), np.zeros((n, d))
            for at, known in zip(run, allowed, strict=True):
                whose = {0: 0, n // 2: 1}.get(int(at))
                g = np.zeros(d) if whose is None else a[whose] @ x - c[whose]
                kept[at] = g
                x = x - 0.1 * (kept.mean(0) if sag else g)
                wrong += bool(x[known:].any())
            most = max(most, allowed[-1])
    hop = hitting_time(chain)
    return [
        Claim(
            "V7, hard instance on a cycle of 8: steps at which x has too many entries",
            "0",
            str(wrong),
            wrong == 0,
            f"MC-SGD and MC-SAG, {2 * runs} runs of 300 steps, at most {most} turns; "
            f"tau_hit = {hop:.0f}",
        )
    ]


# V8: a system that is identified while it runs.


def identified(
    rho: float, lr: float, steps: int, runs: int, rng: np.random.Generator
) -> np.ndarray:
    """(4, runs) of |A - A^*|^2 at quarters of the way; X_{t+1} = A^* X_t + xi_t."""
    d = 3
    turn = np.linalg.qr(rng.normal(size=(d, d)))[0]
    true = rho * turn
    x = rng.normal(size=(runs, d)) / math.sqrt(1 - rho**2)  # its law in the long run
    a, seen = np.zeros((runs, d, d)), []
    for t in range(1, steps + 1):
        after = x @ true.T + rng.normal(size=(runs, d))
        wrong = np.einsum("rij,rj->ri", a, x) - after
        a -= lr * wrong[:, :, None] * x[:, None]
        x = after
        if t % (steps // 4) == 0:
            seen.append(np.square(a - true).sum((1, 2)))
    return np.array(seen)


def system_claims(share: float, seed: int) -> list[Claim]:
    """V8: system identification, f_v(A) = |A x - x'|^2 / 2 on v = (X_t, X_{t+1})."""
    runs, rng = max(50, int(200 * share)), random(seed, "system")
    found, step = {}, 0.004
    for rho in (0.3, 0.9, 0.97):
        # Curvature is E x x' = I / (1 - rho^2), and steps are in units of it.
        errors = identified(rho, step * (1 - rho**2), 2000, runs, rng)
        found[rho] = float(errors[-2:].mean())
    floors = [value / (1 - rho**2) for rho, value in found.items()]
    return [
        Claim(
            "V8, A^* = rho rotation, rho = .3, .9, .97: |A - A^*|^2 after 2000 steps",
            "from " + ", ".join(f"{3 * rho**2:.2g}" for rho in found),
            ", ".join(f"{value:.2g}" for value in found.values()),
            all(value < 0.2 * 3 * rho**2 for rho, value in found.items()),
            "gamma = .004 (1 - rho^2); a fifth of the start is allowed",
        ),
        Claim(
            "V8, the same over 1 - rho^2, the inverse of the curvature",
            f"{9 * step / 2:.3g}, whatever rho",
            ", ".join(f"{value:.3g}" for value in floors),
            max(abs(value / (9 * step / 2) - 1) for value in floors) < 0.25,
            "gradients at A^* are independent, so that slow mixing adds no noise: "
            "Corollary 7.4.1 is far from sharp here; a quarter for chance",
        ),
    ]
