"""Who meets whom: graphs by name, what is known of them, and random pairs of clients.

A graph is an (E, 2) list of edges between nodes 0, ..., n - 1, each pair once and in
either order.
"""

from __future__ import annotations

import csv
import importlib
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from jaxtyping import Bool, Int
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from .. import checks
from ..checks import InputError
from ..seeds import key

# Graphs by name.


def edges_of(text: str, n: int, seed: int = 0) -> Int[Tensor, "e 2"]:
    """The edges of a graph of n nodes, by name or from a file, in ascending order.

    >>> edges_of("ring", 4)
    tensor([[0, 1],
            [0, 3],
            [1, 2],
            [2, 3]])

    Args:
        text: a name of `GRAPHS` with its numbers, such as `erdos_renyi(0.3)`, or the
            name of a CSV file with the columns v and w, a row for each edge, which may
            be there in both directions.
        n: how many nodes there are.
        seed: names what random graphs draw.

    Raises:
        InputError: if some node cannot be reached, or there is no such graph.
    """
    checks.integer("number of nodes", n, at_least=2)
    checks.integer("seed", seed, at_least=0)
    if Path(text).suffix == ".csv":
        found: Iterable[tuple[int, int]] = _from_file(Path(text))
    else:
        name, values = checks.call("graph", text)
        make = GRAPHS[checks.one_of("graph", name, GRAPHS)]
        known = checks.parameters_of(make)
        least = sum(p.default is p.empty for p in known.values())
        if not least <= len(values) <= len(known):
            takes = f"`{name}({', '.join(known)})`" if known else f"`{name}`"
            raise InputError(f"`graph` must be written {takes}, got {text!r}.")
        found = make(n, seed, **dict(zip(known, values, strict=False)))
    pairs = sorted({(min(edge), max(edge)) for edge in found})
    edges = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2)
    _refuse_strangers(edges, n, text)
    refuse_apart("graph", edges, n)
    return edges


def complete(n: int, seed: int) -> Iterable[tuple[int, int]]:
    """Everybody meets everybody."""
    return _networkx().complete_graph(n).edges


def ring(n: int, seed: int) -> Iterable[tuple[int, int]]:
    """A cycle: everybody has two neighbours."""
    return _networkx().cycle_graph(n).edges


def line(n: int, seed: int) -> Iterable[tuple[int, int]]:
    """A path from the first node to the last."""
    return _networkx().path_graph(n).edges


def star(n: int, seed: int) -> Iterable[tuple[int, int]]:
    """Node 0 meets all others, who do not meet each other."""
    return _networkx().star_graph(n - 1).edges


def grid(n: int, seed: int) -> Iterable[tuple[int, int]]:
    """Rows and columns, as near to a square as n allows."""
    rows = next(r for r in range(math.isqrt(n), 0, -1) if n % r == 0)
    if rows == 1:
        raise InputError(
            f"`graph` grid needs at least two rows and columns, but {n} nodes only "
            "make a line."
        )
    drawn = _networkx().grid_2d_graph(rows, n // rows)
    return _networkx().convert_node_labels_to_integers(drawn, ordering="sorted").edges


def barbell(n: int, seed: int) -> Iterable[tuple[int, int]]:
    """Two halves in which everybody meets, joined by a single edge."""
    if n < 4 or n % 2:
        raise InputError(f"`graph` barbell needs an even number of nodes, got {n}.")
    return _networkx().barbell_graph(n // 2, 0).edges


def erdos_renyi(n: int, seed: int, *, p: float) -> Iterable[tuple[int, int]]:
    """Each pair is an edge with chance p, independently; refused if it falls apart."""
    checks.number("graph p", p, above=0, at_most=1)
    nx = _networkx()
    # Trying every pair takes a time that grows as n^2, however few of them are edges.
    draw = nx.fast_gnp_random_graph if p < 0.1 else nx.gnp_random_graph
    return draw(n, p, seed=_stream(seed)).edges


def expander(n: int, seed: int, *, degree: float = 4) -> Iterable[tuple[int, int]]:
    """A random graph in which everybody has the same number of neighbours."""
    checks.number("graph degree", degree, at_least=1, at_most=n - 1)
    if degree % 1 or n * degree % 2:
        raise InputError(
            f"`graph` expander needs a whole degree with {n} degree even, "
            f"got {degree:g}."
        )
    return _networkx().random_regular_graph(int(degree), n, seed=_stream(seed)).edges


GRAPHS: dict[str, Callable[..., Iterable[tuple[int, int]]]] = {
    "barbell": barbell,
    "complete": complete,
    "erdos_renyi": erdos_renyi,
    "expander": expander,
    "grid": grid,
    "line": line,
    "ring": ring,
    "star": star,
}
"""Name of a graph -> what makes it from the number of nodes and a seed."""


def _networkx() -> ModuleType:
    """Imported when a graph is drawn: few who import this file draw one."""
    return importlib.import_module("networkx")


def _stream(seed: int) -> int:
    return key(seed, "graph") & (2**32 - 1)


def _from_file(path: Path) -> list[tuple[int, int]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeError, csv.Error) as error:
        raise InputError(f"cannot read the graph {path}: {error}.") from error
    found = []
    for number, row in enumerate(rows, 1):
        try:
            found.append((int(row["v"]), int(row["w"])))
        except KeyError as error:
            raise InputError(f"the graph {path} has no column {error}.") from None
        except (TypeError, ValueError):
            raise InputError(
                f"row {number} of the graph {path} must have two nodes, "
                f"got {list(row.values())}."
            ) from None
    return found


def _refuse_strangers(edges: Tensor, n: int, text: str) -> None:
    if len(edges):
        nodes_of(edges)
        if int(edges.max()) >= n:
            raise InputError(
                f"`graph` must have nodes 0 to {n - 1}, but {text!r} names "
                f"{int(edges.max())}."
            )


# What is known of a graph.


def refuse_apart(name: str, edges: Int[Tensor, "e 2"], n: int) -> None:
    """Refuses a graph in which some node cannot be reached from node 0."""
    v, w = edges.cpu().numpy().T
    _, part = connected_components(coo_array((np.ones(len(v)), (v, w)), shape=(n, n)))
    if part.any():
        raise InputError(
            f"`{name}` must join all {n} nodes, but there is no way from node 0 to "
            f"{int((part != part[0]).argmax())}."
        )


def degrees(edges: Int[Tensor, "e 2"]) -> Int[Tensor, " n"]:
    """The number of edges at each node."""
    return torch.bincount(edges.flatten(), minlength=nodes_of(edges))


def nodes_of(edges: Int[Tensor, "e 2"]) -> int:
    """n, if no edge is a loop, negative, or there twice."""
    wrong = (edges < 0).any(1) | (edges[:, 0] == edges[:, 1])
    if not len(edges) or wrong.any():
        got = edges[wrong][0].tolist() if len(edges) else "none"
        raise InputError(
            f"`edges` must be pairs of different nodes 0, 1, ..., got {got}."
        )
    pairs, copies = edges.sort(1).values.unique(dim=0, return_counts=True)
    if (copies > 1).any():
        pair = pairs[copies > 1][0].tolist()
        raise InputError(f"`edges` must not repeat a pair, but {pair} is there twice.")
    return int(edges.max()) + 1


# Random pairs.


def matchings(
    active: Bool[Tensor, " n"], meetings: int, rng: torch.Generator
) -> Int[Tensor, "m n"]:
    """Row r names the partner of every client in the r-th of several random matchings.

    A client without a partner is its own. Matchings are rounds of one tournament over
    the active clients in random order, so that no pair meets twice, and each by itself
    is uniform among the matchings that leave at most one client out. From
    `meetings = m - 1` of m active clients on every pair meets exactly once; when m is
    odd that takes m matchings, in each of which another client rests.

    >>> everybody = torch.tensor([True, True, False, True])
    >>> matchings(everybody, 3, torch.Generator().manual_seed(0)).sort(0).values
    tensor([[0, 0, 2, 0],
            [1, 1, 2, 1],
            [3, 3, 2, 3]])
    """
    who = active.nonzero()[:, 0]
    m = len(who)
    order = torch.randperm(m, generator=rng, device=rng.device).to(who.device)
    # On a circle of odd size, places p and q meet in round r when p + q = r modulo its
    # size. One place is left over: it meets the client outside the circle, or rests.
    circle = m - 1 + m % 2
    rounds = torch.randperm(circle, generator=rng, device=rng.device).to(who.device)
    if m == 1 or meetings < m - 1:
        rounds = rounds[: min(meetings, m - 1)]
    place = torch.arange(m, device=who.device).expand(len(rounds), m)
    partner = (rounds[:, None] - place) % circle
    if circle < m:  # the last place is outside
        partner = torch.where(partner == place, circle, partner)
        partner[:, circle] = (partner[:, :circle] == circle).int().argmax(1)
    result = torch.arange(len(active), device=who.device).repeat(len(rounds), 1)
    result[:, who[order]] = who[order][partner]
    return result
