"""Graphs by name, their degrees and checks, and random pairs of clients.

A graph is a list (E, 2) of edges between nodes 0, ..., n - 1. The list has each pair
once, in either order.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from jaxtyping import Bool, Int
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import KDTree
from torch import Tensor

from .. import checks
from ..checks import InputError
from ..seeds import key
from .files import read_links

Pairs = Iterable[tuple[int, int]] | np.ndarray
"""Edges in any order: an array (E, 2), or pairs one after the other."""

# Graphs by name.


def edges_of(
    text: str, n: int, seed: int = 0, *, names: Sequence[str] = ()
) -> Int[Tensor, "e 2"]:
    """The edges of a graph of n nodes, by name or from a file, in ascending order.

    >>> edges_of("ring", 4)
    tensor([[0, 1],
            [0, 3],
            [1, 2],
            [2, 3]])

    Args:
        text: a name of `GRAPHS` with its numbers, such as `erdos_renyi(0.3)`, or a CSV
            file with the columns v and w. The file has a row for each edge, and may
            have a second row in the other direction.
        n: the number of nodes.
        seed: the seed of random graphs.
        names: the names of the nodes, if a file uses them.

    Raises:
        InputError: if some node cannot be reached, or there is no such graph.
    """
    checks.integer("number of nodes", n, at_least=2)
    checks.integer("seed", seed, at_least=0)
    if Path(text).suffix == ".csv":
        found: Pairs = read_links(Path(text), names).pairs
    else:
        name, values = checks.call("graph", text)
        make = GRAPHS[checks.one_of("graph", name, GRAPHS)]
        known = checks.parameters_of(make)
        least = sum(p.default is p.empty for p in known.values())
        if not least <= len(values) <= len(known):
            takes = f"`{name}({', '.join(known)})`" if known else f"`{name}`"
            raise InputError(f"`graph` must be written {takes}, got {text!r}.")
        found = make(n, seed, **dict(zip(known, values, strict=False)))
    pairs = np.array(found if isinstance(found, np.ndarray) else [*found], dtype=int)
    edges = torch.from_numpy(pairs.reshape(-1, 2))
    _refuse_loops(edges)
    if len(edges) and int(edges.max()) >= n:
        raise InputError(
            f"`graph` must have nodes 0 to {n - 1}, but {text!r} names "
            f"{int(edges.max())}."
        )
    edges = _edge_numbers(edges, n).unique()
    edges = torch.stack([edges // n, edges % n], 1)
    refuse_apart("graph", edges, n)
    return edges


_MOST_EDGES = 20_000_000
"""The largest number of edges of a dense graph; more would fill the memory."""


def _refuse_dense(edges: int) -> None:
    if edges > _MOST_EDGES:
        raise InputError(
            f"`graph` must have at most {_MOST_EDGES:,} edges, but this one would have "
            f"{edges:,}."
        )


def complete(n: int, seed: int) -> Pairs:
    """All pairs of nodes."""
    _refuse_dense(n * (n - 1) // 2)
    return _networkx().complete_graph(n).edges


def ring(n: int, seed: int) -> Pairs:
    """A cycle: every node has two neighbours."""
    return _networkx().cycle_graph(n).edges


def line(n: int, seed: int) -> Pairs:
    """A path from the first node to the last."""
    return _networkx().path_graph(n).edges


def star(n: int, seed: int) -> Pairs:
    """Edges from node 0 to all others."""
    return _networkx().star_graph(n - 1).edges


def grid(n: int, seed: int) -> Pairs:
    """A rectangle of rows and columns, as close to a square as n allows."""
    sides = _sides(n, 2, least=2)
    if sides is None:
        raise InputError(
            f"`graph` grid needs at least two rows and columns, but {n} nodes only "
            "make a line."
        )
    return _lattice(sides, around=False)


def torus(n: int, seed: int, *, dim: float = 2) -> Pairs:
    """A grid whose sides are rings, as near to a square or cube as n allows."""
    checks.number("graph dim", dim, at_least=1, at_most=20)
    # A side of 2 would not be a ring, and degrees would differ.
    sides = None if dim % 1 else _sides(n, int(dim), least=3)
    if sides is None:
        raise InputError(
            f"`graph` torus needs {dim:g} whole sides of at least 3 nodes, but {n} "
            "nodes cannot be divided so."
        )
    return _lattice(sides, around=True)


def hypercube(n: int, seed: int) -> Pairs:
    """The corners of a cube of log2(n) dimensions; an edge changes one binary digit."""
    if n & (n - 1):
        raise InputError(f"`graph` hypercube needs 2, 4, 8, ... nodes, got {n}.")
    digits = range(n.bit_length() - 1)
    return ((v, v | 1 << k) for v in range(n) for k in digits if not v >> k & 1)


def _sides(n: int, dim: int, least: int) -> tuple[int, ...] | None:
    """Ascending sides with the product n; the longest is as short as possible."""
    if dim == 1:
        return (n,) if n >= least else None
    found = []
    for side in range(least, n):
        if side**dim > n:
            break
        if n % side == 0 and (rest := _sides(n // side, dim - 1, side)):
            found.append((side, *rest))
    return min(found, key=lambda sides: sides[-1], default=None)


def _lattice(sides: tuple[int, ...], *, around: bool) -> np.ndarray:
    """Edges between neighbours along each side, for nodes in row-major order."""
    place, found = np.arange(np.prod(sides)).reshape(sides), []
    for axis, side in enumerate(sides):
        along = range(side) if around else range(side - 1)
        first = place.take(along, axis)
        second = np.roll(place, -1, axis).take(along, axis)
        found.append(np.stack([first.ravel(), second.ravel()], 1))
    return np.concatenate(found)


def barbell(n: int, seed: int) -> Pairs:
    """Two complete halves, joined by a single edge."""
    if n < 4 or n % 2:
        raise InputError(f"`graph` barbell needs an even number of nodes, got {n}.")
    _refuse_dense(n // 2 * (n // 2 - 1) + 1)
    return _networkx().barbell_graph(n // 2, 0).edges


def erdos_renyi(n: int, seed: int, *, p: float) -> Pairs:
    """Joins each pair with probability p; `edges_of` refuses an unconnected result."""
    checks.number("graph p", p, above=0, at_most=1)
    nx = _networkx()
    # Trying every pair takes time of order n^2, even if few pairs become edges.
    draw = nx.fast_gnp_random_graph if p < 0.1 else nx.gnp_random_graph
    return draw(n, p, seed=_stream(seed)).edges


def expander(n: int, seed: int, *, degree: float = 4) -> Pairs:
    """A random graph in which every node has the same number of neighbours."""
    checks.number("graph degree", degree, at_least=1, at_most=n - 1)
    if degree % 1 or n * degree % 2:
        raise InputError(
            f"`graph` needs a whole degree with {n} degree even, got {degree:g}."
        )
    return _networkx().random_regular_graph(int(degree), n, seed=_stream(seed)).edges


def geometric(n: int, seed: int, *, radius: float) -> Pairs:
    """Random points in the unit square; those within the radius are joined."""
    checks.number("graph radius", radius, above=0)
    place = np.random.default_rng(_stream(seed)).random((n, 2))
    return KDTree(place).query_pairs(radius, output_type="ndarray")


def small_world(n: int, seed: int, *, degree: float = 4, p: float = 0.1) -> Pairs:
    """A ring of near neighbours, in which each edge is moved with probability p.

    Watts, Strogatz, "Collective dynamics of small-world networks", Nature, 1998.
    """
    checks.number("graph degree", degree, at_least=2, at_most=n - 1)
    checks.number("graph p", p, at_least=0, at_most=1)
    if degree % 2:
        raise InputError(f"`graph` small_world needs an even degree, got {degree:g}.")
    nx = _networkx()
    return nx.watts_strogatz_graph(n, int(degree), p, seed=_stream(seed)).edges


def stochastic_block(
    n: int, seed: int, *, blocks: float, within: float, between: float
) -> Pairs:
    """Groups of equal size, with two probabilities: within and between groups."""
    checks.number("graph blocks", blocks, at_least=1, at_most=n)
    checks.number("graph within", within, at_least=0, at_most=1)
    checks.number("graph between", between, at_least=0, at_most=1)
    if blocks % 1:
        raise InputError(f"`graph blocks` must be a whole number, got {blocks:g}.")
    ends = [round(n * k / blocks) for k in range(int(blocks) + 1)]
    rng, parts = np.random.default_rng(_stream(seed)), [*itertools.pairwise(ends)]
    drawn = []
    for first, second in itertools.combinations_with_replacement(parts, 2):
        # Few of many pairs are edges. So we draw the number of edges, and then the
        # edges.
        rows, columns = first[1] - first[0], second[1] - second[0]
        chance = within if first == second else between
        count = rng.binomial(rows * columns, chance)
        which = rng.choice(rows * columns, count, replace=False, shuffle=False)
        v, w = first[0] + which // columns, second[0] + which % columns
        kept = v < w  # a group has its pairs in both orders
        drawn.append(np.stack([v[kept], w[kept]], 1))
    return np.concatenate(drawn)


GRAPHS: dict[str, Callable[..., Pairs]] = {
    "barbell": barbell,
    "complete": complete,
    "erdos_renyi": erdos_renyi,
    "expander": expander,
    "geometric": geometric,
    "grid": grid,
    "hypercube": hypercube,
    "line": line,
    "random_regular": expander,
    "ring": ring,
    "small_world": small_world,
    "star": star,
    "stochastic_block": stochastic_block,
    "torus": torus,
}
"""Maps the name of a graph to a function of the number of nodes and a seed."""


def _networkx() -> ModuleType:
    """The package, imported only when a graph is drawn."""
    return importlib.import_module("networkx")


def _stream(seed: int) -> int:
    return key(seed, "graph") & (2**32 - 1)


# Degrees and checks of a graph.


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
    """The number of nodes; refuses loops, negative numbers and repeated edges."""
    if not len(edges):
        raise InputError(
            "`edges` must be pairs of different nodes 0, 1, ..., got none."
        )
    _refuse_loops(edges)
    n = int(edges.max()) + 1
    pairs, copies = _edge_numbers(edges, n).unique(return_counts=True)
    if (copies > 1).any():
        pair = int(pairs[copies > 1][0])
        raise InputError(
            f"`edges` must not repeat a pair, but {[pair // n, pair % n]} is there "
            "twice."
        )
    return n


def not_negative(name: str, values: Tensor, count: int, *, of: str = "edge") -> Tensor:
    """Returns `values` if there is one for each edge, finite and at least 0."""
    if values.shape != (count,):
        raise InputError(
            f"`{name}` must have shape ({count},), one entry per {of}, got "
            f"{tuple(values.shape)}."
        )
    if (checks.finite(name, values) < 0).any():
        row = int((values < 0).nonzero()[0])
        raise InputError(
            f"`{name}` must be at least 0, but entry {row} is {float(values[row]):g}."
        )
    return values


def _refuse_loops(edges: Tensor) -> None:
    wrong = (edges < 0).any(1) | (edges[:, 0] == edges[:, 1])
    if wrong.any():
        raise InputError(
            "`edges` must be pairs of different nodes 0, 1, ..., got "
            f"{edges[wrong][0].tolist()}."
        )


def _edge_numbers(edges: Tensor, n: int) -> Tensor:
    """One number for each pair, because numbers are sorted faster than pairs."""
    return edges.amin(1) * n + edges.amax(1)


# Random pairs.


def matchings(
    active: Bool[Tensor, " n"], meetings: int, rng: torch.Generator
) -> Int[Tensor, "m n"]:
    """(m, n) row r has the partner of every client in the r-th random matching.

    A client without a partner is its own partner. The matchings are rounds of a
    round-robin tournament of the active clients, in random order. So no pair meets
    twice. Each single matching is uniform among all matchings that leave out at most
    one client.

    Let m be the number of active clients. If `meetings` is at least m - 1, every pair
    meets exactly once. If m is odd, this takes m matchings, and in each of them a
    different client has no partner.

    >>> everybody = torch.tensor([True, True, False, True])
    >>> matchings(everybody, 3, torch.Generator().manual_seed(0)).sort(0).values
    tensor([[0, 0, 2, 0],
            [1, 1, 2, 1],
            [3, 3, 2, 3]])
    """
    who = active.nonzero()[:, 0]
    m = len(who)
    order = torch.randperm(m, generator=rng, device=rng.device).to(who.device)
    # Clients sit on a circle of odd size. In round r, places p and q meet if p + q = r
    # modulo this size. One place is left over. It meets the client outside the circle;
    # if there is none, it has no partner.
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
