"""Walks on a graph: which client gets a token next.

A token is a model that moves from client to client. From client v it goes to w with
probability

    metropolis        P_vw = 1 / (1 + max(d_v, d_w)) for neighbours; otherwise it stays
    simple            P_vw = 1 / d_v for neighbours
    lazy              P_vw = 1 / (d_v + 1) for neighbours and v itself
    non_backtracking  1 / (d_v - 1) for neighbours except the one it came from
    cyclic            to v + 1, and from the last client to the first
    reshuffled        uniform over the clients not visited in this epoch
    iid               uniform over all clients, v included

where d_v is the number of neighbours. At a client with one neighbour, a
non-backtracking token goes back. In the long run, `metropolis`, `cyclic`, `reshuffled`
and `iid` visit all clients equally often. Simple and non-backtracking walks visit v in
proportion to d_v, and lazy walks in proportion to d_v + 1. Hitting times are in
`coterie.graphs.chains`.

References:
    Even, "Towards decentralization, asynchrony, privacy and personalization in
    federated learning", PhD thesis, 2024, chapter 7, hal tel-04877971.
    Alon, Benjamini, Lubetzky, Sodin, "Non-backtracking random walks mix faster",
    Communications in Contemporary Mathematics, 2007.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from ..checks import InputError, one_of
from .families import refuse_apart
from .matrices import gossip_matrix, neighbourhoods

WalkKind = Literal[
    "metropolis",
    "simple",
    "lazy",
    "non_backtracking",
    "cyclic",
    "reshuffled",
    "iid",
]
WALKS: tuple[str, ...] = get_args(WalkKind)


@dataclass
class Token:
    """The holder of a token, where it came from, and what its walk remembers."""

    at: int
    came: int  # from this client
    trail: list[int]
    t: int = 0  # steps of the walk


@dataclass(frozen=True)
class Walk:
    """A walk on a graph. Its trail is a list of numbers that the walk must remember.

    >>> around = walk_on("cyclic", torch.tensor([[0, 1], [1, 2], [0, 2]]), 3)
    >>> around.following(2, around.trail(2), torch.Generator())
    (0, [])
    """

    kind: str
    neighbours: tuple[tuple[int, ...], ...]

    def trail(self, at: int) -> list[int]:
        """The trail of a walk that begins at this client."""
        if self.kind == "reshuffled":
            return [v for v in range(len(self.neighbours)) if v != at]
        return [at] if self.kind == "non_backtracking" else []

    def following(
        self, at: int, trail: list[int], rng: torch.Generator
    ) -> tuple[int, list[int]]:
        """The next client, and the trail after that."""
        n, near = len(self.neighbours), self.neighbours[at]
        if n == 1:
            return at, trail
        match self.kind:
            case "metropolis":
                return self._metropolis(at, rng), trail
            case "simple":
                return _draw(near, rng), trail
            case "lazy":
                return _draw((*near, at), rng), trail
            case "non_backtracking":
                onward = [w for w in near if w not in trail] or near
                return _draw(onward, rng), [at]
            case "cyclic":
                return (at + 1) % n, trail
            case "iid":
                return _draw(range(n), rng), trail
        left = trail or list(range(n))
        chosen = _draw(left, rng)
        return chosen, [v for v in left if v != chosen]

    def token(self) -> Token:
        """A token that begins at client 0."""
        return Token(0, 0, self.trail(0))

    def pass_on(self, token: Token, rng: torch.Generator) -> int:
        """Moves a token, and returns the client that it goes to."""
        token.came, token.t = token.at, token.t + 1
        token.at, token.trail = self.following(token.at, token.trail, rng)
        return token.at

    def _metropolis(self, at: int, rng: torch.Generator) -> int:
        """A random neighbour, or the client itself if the neighbour is rejected."""
        to = _draw((*self.neighbours[at], at), rng)
        here, there = (1 + len(self.neighbours[v]) for v in (at, to))
        refused = torch.rand((), generator=rng) * there >= here
        return at if refused else to

    @property
    def law(self) -> Float64[Tensor, " n"]:
        """The share of time at each client in the long run."""
        degree = torch.tensor([len(near) for near in self.neighbours]).double()
        if self.kind == "lazy":
            degree = degree + 1
        elif self.kind not in ("simple", "non_backtracking"):
            degree = torch.ones_like(degree)
        return degree / degree.sum() if len(degree) > 1 else torch.ones_like(degree)


def walk_on(kind: str, edges: Int[Tensor, "e 2"], n: int) -> Walk:
    """A walk on the graph of these edges.

    Raises:
        InputError: if some client cannot be reached, or an edge is missing. `cyclic`
            needs all edges from a client to the next one; `reshuffled` and `iid` need
            all pairs.
    """
    one_of("walk", kind, WALKS)
    refuse_apart("graph", edges, n)
    near = tuple(
        tuple(w for w in circle.tolist() if w != v)
        for v, circle in enumerate(neighbourhoods(edges, n))
    )
    for v in range(n):
        wanted = {(v + 1) % n} if kind == "cyclic" else set(range(v + 1, n))
        missing = wanted - {v, *near[v]}
        if missing and kind in ("cyclic", "reshuffled", "iid"):
            raise InputError(
                f"`walk` {kind} needs an edge between clients {v} and {min(missing)}, "
                "but the graph does not have it."
            )
    return Walk(kind, near)


def transition(
    kind: str, edges: Int[Tensor, "e 2"], n: int
) -> Float64[Tensor, "states states"]:
    """The probabilities P of going from one state to another, sparse (COO).

    States are clients. For `non_backtracking` they are directed edges: first the E
    edges as given, then the same edges the other way round.

    >>> transition("lazy", torch.tensor([[0, 1], [1, 2]]), 3).to_dense()
    tensor([[0.5000, 0.5000, 0.0000],
            [0.3333, 0.3333, 0.3333],
            [0.0000, 0.5000, 0.5000]], dtype=torch.float64)
    """
    near = walk_on(kind, edges, n).neighbours
    if kind == "metropolis" and n > 1:
        return gossip_matrix(edges, n)
    if kind == "reshuffled":
        raise InputError(
            "`walk` reshuffled has no matrix, because its next client depends on all "
            "clients visited in the epoch."
        )
    if kind == "non_backtracking":
        return _onward(edges)
    rows: list[tuple[int, ...]] = [
        {"cyclic": ((v + 1) % n,), "lazy": (*near[v], v), "iid": tuple(range(n))}.get(
            kind, near[v] or (v,)
        )
        for v in range(n)
    ]
    return _even(rows)


def _onward(edges: Tensor) -> Tensor:
    """For `non_backtracking`, the probabilities of going from one edge to the next."""
    ways = torch.cat([edges, edges.flip(1)]).tolist()
    leaving: dict[int, list[int]] = {}
    for number, (v, _) in enumerate(ways):
        leaving.setdefault(v, []).append(number)
    half, rows = len(edges), []
    for number, (_, w) in enumerate(ways):
        back = (number + half) % (2 * half)
        rows.append(tuple(e for e in leaving[w] if e != back) or (back,))
    return _even(rows)


def _even(rows: list[tuple[int, ...]]) -> Tensor:
    """The matrix with equal entries in these columns of each row, which sum to 1."""
    v = [row for row, columns in enumerate(rows) for _ in columns]
    w = [column for columns in rows for column in columns]
    values = [1 / len(columns) for columns in rows for _ in columns]
    return torch.sparse_coo_tensor(
        torch.tensor([v, w]),
        torch.tensor(values, dtype=torch.float64),
        (len(rows), len(rows)),
        check_invariants=True,
    ).coalesce()


def _draw(choices: list[int] | tuple[int, ...] | range, rng: torch.Generator) -> int:
    return choices[int(torch.randint(len(choices), (), generator=rng))]


# How long ago a token was at every client.


@dataclass
class Visits:
    """When a token last visited each client. The token and the clients store this."""

    marks: list[int]  # of each client: its last visit, or the last epoch with a visit
    epoch: int = 1
    met: int = 0  # clients visited in this epoch
    begun: int = 0  # when this epoch began
    before: int = 0  # when the epoch before it began


def oldest(visits: Visits, client: int, t: int) -> int:
    """max_v (t - d_v(t)), where d_v(t) is the step of the last visit to client v, or 0.

    The token is now at `client`, and carries the steps of the last visits to all
    clients.
    """
    visits.marks[client] = t
    return t - min(visits.marks)


def oldest_by_epochs(visits: Visits, client: int, t: int) -> int:
    """A bound on `oldest`; to compute it, a token carries only four numbers.

    An epoch ends when the token has visited all clients. So every client has been
    visited since the previous epoch began.
    """
    if visits.marks[client] != visits.epoch:
        visits.marks[client] = visits.epoch
        visits.met += 1
    if visits.met == len(visits.marks):
        visits.epoch, visits.met = visits.epoch + 1, 0
        visits.before, visits.begun = visits.begun, t + 1
    return t - visits.before
