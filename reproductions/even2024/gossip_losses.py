"""Chapter 6 of Even's thesis: who learns what from gossip, by its formula and exactly.

The thesis prints curves without numbers; references are those of independent scripts
with the same formulas. Losses are in units of local privacy, where alpha = 2, Delta = 1
and noise 1 make the unit 1. The formula takes rows of W^t, as the thesis does; exact
losses are of the messages of Chebyshev's recursion, which are what is sent.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import networkx as nx
import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor

from coterie.cli import Claim
from coterie.graphs import chebyshev_factor, contraction, edges_of, gossip_matrix
from coterie.privacy import Input, Ledger, Observer, joint_losses
from coterie_theory.decentralised import muffliato as theory
from coterie_theory.privacy import (
    by_distance,
    exact_losses,
    hops,
    muffliato,
    printed_losses,
)

from .figures import EXPECTED

REFERENCE = EXPECTED["chapter6"]


class Graph(NamedTuple):
    """A graph with its matrix, its gap and the thesis's number of rounds."""

    name: str
    edges: Tensor
    matrix: Tensor
    gap: float
    rounds: int

    @property
    def n(self) -> int:
        """Its nodes."""
        return len(self.matrix)


def graph(name: str, edges: Tensor, n: int, noise: float = 1.0) -> Graph:
    """A graph with Metropolis weights."""
    matrix = gossip_matrix(edges, n)
    gap = 1 - contraction([matrix])
    return Graph(
        name,
        edges,
        matrix,
        gap,
        theory.stopping_time(math.sqrt(gap), n, noise, spread=0.25),
    )


def ledger(
    found: Graph, *, factor: float = 1.0, steps: int = 1, rounds: int | None = None
) -> Ledger:
    """Everybody's noisy input, and then rounds of gossip; that several times."""
    n, book = found.n, Ledger(found.n)
    for s in range(steps):
        book.append(Input(s, torch.ones(n, dtype=torch.bool), 1.0, 1.0))
        count = found.rounds if rounds is None else rounds
        for event in muffliato.exchanges(found.matrix, count, factor=factor, round=s):
            book.append(event)
    return book


def as_sent(found: Graph) -> Ledger:
    """The ledger of Algorithm 6.1 itself."""
    return ledger(found, factor=chebyshev_factor(found.gap))


def seen_by_one(found: Graph, v: int) -> Tensor:
    """Exact losses of all in the eyes of one."""
    return exact_losses(as_sent(found), [Observer((v,))]).share[:, 0]


def told_to(found: Graph, v: int) -> Tensor:
    """What (6.6) says that one node learns of all others.

    As of `printed_losses`, from rows of its neighbours alone, for W is symmetric.
    """
    near = [w for edge in found.edges.tolist() if v in edge for w in edge if w != v]
    rows = torch.eye(found.n, dtype=torch.float64)[:, near]
    total = torch.zeros(found.n, dtype=torch.float64)
    for _ in range(found.rounds):
        total += (rows.square() / rows.square().sum(0)).sum(1)
        rows = found.matrix @ rows
    total[v] = 0
    return total


def drawn(network: nx.Graph) -> Tensor:
    """The edges of a graph of networkx."""
    return torch.tensor(sorted(tuple(sorted(edge)) for edge in network.edges))


# Figure 6.1a and 6.2: four graphs.


def four_graphs(full: bool) -> list[Graph]:
    """Those of the figure; geometric ones are large only if all is."""
    n, near = (2048, 0.07) if full else (512, 0.13)
    make: dict[str, Callable[[], tuple[Tensor, int]]] = {
        "hypercube": lambda: (edges_of("hypercube", 2048), 2048),
        "erdos_renyi": lambda: (
            drawn(nx.gnp_random_graph(2048, math.log(2048) / 2048, seed=1)),
            2048,
        ),
        "geometric": lambda: (drawn(nx.random_geometric_graph(n, near, seed=0)), n),
        "grid": lambda: (edges_of("grid", 2025), 2025),
    }
    return [graph(name, *each()) for name, each in make.items()]


class Profile(NamedTuple):
    """Losses of and around node 0."""

    graph: Graph
    steps: Tensor  # (n,) from node 0
    printed: Tensor  # (n,) what (6.6) says that others learn of it
    told: Tensor  # (n,) what (6.6) says that it learns of others
    exact: Tensor  # (n,) what it learns of others


def profiles(full: bool) -> list[Profile]:
    """Of the four graphs."""
    found = []
    for each in four_graphs(full):
        printed = printed_losses(ledger(each), clients=[0]).share[0]
        steps = hops(each.edges, each.n)[0]
        told, exact = told_to(each, 0), seen_by_one(each, 0)
        found.append(Profile(each, steps, printed, told, exact))
    return found


def profile_claims(found: list[Profile]) -> list[Claim]:
    """Figure 6.1a: the known values, and what the curves must show."""
    claims = []
    for each in found:
        name, n = each.graph.name, each.graph.n
        known = REFERENCE["figure61a"].get(name)
        rows = by_distance(each.printed, each.steps)
        if known and known["nodes"] == n:
            claims.append(_known_values(each, known))
        means = [row.mean for row in rows]
        falls = all(a > b for a, b in itertools.pairwise(means))
        claims.append(
            Claim(
                f"Figure 6.1a, {name} {n}: by (6.6) others learn less of a node, the "
                "farther they are",
                "falls",
                f"from {means[0]:.3g} to {means[-1]:.2g} at {rows[-1].steps} steps",
                falls,
                f"means; {each.graph.rounds} rounds, gap {each.graph.gap:.3g}",
            )
        )
        claims.append(_finding(each))
    cube, random = found[0], found[1]
    spread = max(row.most - row.least for row in by_distance(cube.printed, cube.steps))
    other = by_distance(random.printed, random.steps)[3]
    claims.append(
        Claim(
            "Figure 6.1a: spread of (6.6) at a distance, hypercube; random graph at 4",
            "0; min/max .0031/.216",
            f"{spread:.1g}; {other.least:.4f}/{other.most:.3f}",
            spread < 1e-9 and math.isclose(other.most, 0.216, rel_tol=0.02),
        )
    )
    return claims


def _known_values(each: Profile, known: dict) -> Claim:
    means = {r.steps: r.mean for r in by_distance(each.printed, each.steps)}
    ours = [means[steps] for steps in known["steps"]]
    same = np.allclose(ours, known["means"], rtol=0.02)
    same = same and each.graph.rounds == known["rounds"]
    return Claim(
        f"Figure 6.1a, {each.graph.name} {each.graph.n}: rounds; means of (6.6) at "
        f"{known['steps']} steps",
        f"{known['rounds']}; " + ", ".join(f"{value:.3g}" for value in known["means"]),
        f"{each.graph.rounds}; " + ", ".join(f"{value:.3g}" for value in ours),
        bool(same),
        "to 2 percent, from node 0",
    )


def _finding(each: Profile) -> Claim:
    """Where the exact loss is above the formula, of the same observer."""
    told = each.told.clamp(max=1)
    below = (each.exact > told + 1e-6) & (each.steps > 0)
    exact = by_distance(each.exact, each.steps)
    far = exact[-1]
    last = float(told[each.steps == far.steps].mean())
    return Claim(
        f"Figure 6.1a, {each.graph.name} {each.graph.n}: nodes of which node 0 learns "
        "more than (6.6) says, capped at 1",
        "none",
        f"{int(below.sum())} of {each.graph.n - 1}",
        None,
        f"exact at {far.steps} steps {far.mean:.3g}, by (6.6) {last:.2g}; means over "
        f"all nodes: exact {float(each.exact.sum()) / each.graph.n:.4f}, T d / n = "
        f"{_most(each):.4f}",
    )


def _most(each: Profile) -> float:
    degree = int((each.graph.edges == 0).any(1).sum())
    return each.graph.rounds * degree / each.graph.n


# Figure 6.3: hypercubes of growing size; 6.E.2.


def cube_claims(full: bool) -> tuple[list[Claim], dict[int, list[float]]]:
    """Losses at 1 to 4 steps, which fall with the size from 64 nodes on."""
    curves, exact, good, known = {}, {}, True, REFERENCE["figure63"]
    for m in range(4, 13 if full else 11):
        each = graph("hypercube", edges_of("hypercube", 2**m), 2**m)
        share = printed_losses(ledger(each), clients=[0]).share[0]
        steps = hops(each.edges, each.n)[0]
        rows = by_distance(share, steps)
        curves[m] = [row.mean for row in rows]
        exact[m] = [row.mean for row in by_distance(seen_by_one(each, 0), steps)]
        good = good and max(row.most - row.least for row in rows) < 1e-9
    given = [m for m in curves if str(m) in known]
    same = all(np.allclose(curves[m][:4], known[str(m)], rtol=0.01) for m in given)
    shown = "; ".join(
        f"{m}: " + " ".join(f"{value:.3g}" for value in curves[m][:4]) for m in given
    )
    falls = all(curves[m][k] > curves[m + 2][k] for m in (6, 8) for k in (1, 2, 3))
    claims = [
        Claim(
            "Figure 6.3: (6.6) at 1 to 4 steps on hypercubes of 2^m nodes",
            "; ".join(f"{m}: " + " ".join(map(str, known[str(m)])) for m in given),
            shown,
            same,
            "to 1 percent",
        ),
        Claim("Figure 6.3: it falls with n at 2 to 4 steps", "falls", shown, falls),
        Claim(
            "Figure 6.3: exact losses at 1, 2, ... steps",
            "-",
            "; ".join(
                f"{m}: " + " ".join(f"{value:.2g}" for value in exact[m]) for m in given
            ),
            None,
            "they rise again towards the far end, where an observer learns all",
        ),
        Claim("6.E.2: it depends on the distance alone", "yes", "yes", good),
    ]
    return claims, curves


# Figure 6.4: places in a square.


def places_claims(full: bool, seed: int) -> tuple[list[Claim], tuple[Tensor, Tensor]]:
    """Losses against Euclidean distance, of which they are nearly a function."""
    n, near = (2000, 0.08) if full else (512, 0.13)
    network = nx.random_geometric_graph(n, near, seed=seed + 1)
    each = graph("geometric", drawn(network), n)
    share = printed_losses(ledger(each), clients=[0]).share[0]
    where = torch.tensor([network.nodes[v]["pos"] for v in range(n)])
    far = (where - where[0]).norm(dim=1)
    steps = hops(each.edges, n)[0].double()
    others = torch.arange(n) > 0
    by_place = -float(spearmanr(far[others], share[others]).statistic)
    by_hops = -float(spearmanr(steps[others], share[others]).statistic)
    exact = float(spearmanr(far[others], seen_by_one(each, 0)[others]).statistic)
    claim = Claim(
        f"Figure 6.4, {n} places: rank correlation of the loss with Euclidean "
        "distance, and with steps",
        "very strong, stronger than with steps",
        f"-{by_place:.3f}, -{by_hops:.3f}",
        by_place > 0.9,
        f"judged: below -0.9; exact losses of what node 0 learns: {exact:.3f}",
    )
    return [claim], (far[others], share[others])


# What is wrong with the formula.


def counter_claims() -> list[Claim]:
    """Small graphs on which an observer learns far more than the formula says."""
    line, ring = (
        graph(name, edges_of(name, n), n) for name, n in (("line", 3), ("ring", 32))
    )
    cube = graph("hypercube", edges_of("hypercube", 64), 64)
    claims = []
    for each, rounds, u in ((line, 2, 2), (ring, 31, 16)):
        book = ledger(each, rounds=rounds)
        printed = float(printed_losses(book, clients=[u]).share[u, 0])
        exact = float(exact_losses(book, [Observer((0,))]).share[u, 0])
        known = REFERENCE["counterexamples"][each.name]
        claims.append(
            Claim(
                f"Counter-example, {each.name} {each.n}, {rounds} rounds, nodes 0 and "
                f"{u}: (6.6); exact loss",
                f"{known[0]:.3g}; {known[1]:.3g}",
                f"{printed:.3g}; {exact:.3g}",
                bool(np.allclose([printed, exact], known, rtol=0.01)),
                "the formula adds messages that share their noise",
            )
        )
    book = ledger(cube, rounds=8)
    exact = exact_losses(book, [Observer((0,))]).share[:, 0]
    below = int((exact > printed_losses(book, [(0,)]).share[:, 0] + 1e-9).sum())
    two = ledger(line, steps=2, rounds=1)
    joint = float(joint_losses(two).share[0, 2]) * 2
    none = float(printed_losses(two).share[0, 2])
    return [
        *claims,
        Claim(
            "Counter-example, hypercube 64, 8 rounds: pairs of node 0 below the exact",
            "22 of 63",
            f"{below} of 63",
            below == 22,
        ),
        Claim(
            "Counter-example, Muffliato-SGD on a line u - w - v, one exchange in each "
            "of two rounds: (6.12); joint loss of u, if steps were fixed beforehand",
            "0; 0.1",
            f"{none:.3g}; {joint:.3g}",
            none == 0 and math.isclose(joint, 0.1, rel_tol=1e-6),
            "what later rounds tell of earlier steps is not in the formula; steps that "
            "depend on earlier messages tell more, up to local privacy",
        ),
    ]
