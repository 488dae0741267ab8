"""The few types on which everything else agrees: algorithm, oracle, client program.

A federation is a matrix: row i of `x`, shape (N, D), is client i's model. An algorithm
is row-wise code on those n rows that a process holds (all N in a simulation, N/R where
R processes divide them, one at a site), and everything that leaves a client leaves
through a verb of the oracle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

State = Any
"""What an algorithm remembers between rounds: a NamedTuple of tensors and numbers.

Fields of type `Rows` have one row for each client at hand; all others are the same in
every process.
"""

Rows = Annotated[Tensor, "one row for each client at hand"]
"""A part of a state that belongs to clients, row by row."""

Info = dict[str, Tensor | float]
"""What a round tells about itself.

`weights` is an (N, N) collaboration matrix; every other entry is recorded as it is, or
as its mean over clients.
"""

SERVER = -1
"""Stands for the server, where a link names two clients by their positions."""


class Sent(NamedTuple):
    """What a verb sent: so many values over each of these links."""

    verb: str
    values: int
    links: Int[Tensor, "l 2"]  # from whom, to whom: positions, or SERVER

    @property
    def total(self) -> int:
        """Values over all links."""
        return self.values * len(self.links)

    @property
    def with_server(self) -> bool:
        """Whether it went through a server, not from peer to peer."""
        return self.verb in ("average", "central")


class Traffic(NamedTuple):
    """How many values were sent: through a server, and from peer to peer."""

    server: float = 0.0
    peers: float = 0.0

    @property
    def total(self) -> float:
        """Of both kinds."""
        return self.server + self.peers


def traffic_of(sent: Sequence[Sent]) -> Traffic:
    """What these verbs sent together."""
    server = sum(one.total for one in sent if one.with_server)
    return Traffic(float(server), float(sum(one.total for one in sent) - server))


class Comparison(NamedTuple):
    """How far client k's gradient is from client i's own, both at client i's model.

    Every client divides its estimation data into two random halves, with gradients
    a_k, b_k at x_i, and p_k of both halves together. The two halves are independent, so
    the inner products of `cross` and `own` are unbiased, while the squared norms of
    `pooled` and `own_pooled` are too large by the noise of the gradients p.
    """

    cross: Float[Tensor, "n n"]  # <a_i - a_k, b_i - b_k>
    own: Float[Tensor, " n"]  # <a_i, b_i>
    pooled: Float[Tensor, "n n"]  # |p_i - p_k|^2
    own_pooled: Float[Tensor, " n"]  # |p_i|^2
    noise: Float[Tensor, "n n"]  # <a_i - b_i, a_k - b_k>, of mean zero for k != i
    variance: Float[Tensor, " n"]  # an estimate of that of one sample's gradient
    samples: Float[Tensor, " n"]  # how many samples client k used
    known: Bool[Tensor, "n n"]  # pairs that took part


@runtime_checkable
class Clients(Protocol):
    """What a client program may ask: n clients at once in simulation, one at a site.

    Every question uses a fresh minibatch of each client, except those asked through
    `held` or `whole`.
    """

    def grad(self, points: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Row j is the gradient of client j's minibatch loss at points[j]."""

    def loss(self, points: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        """Entry j is client j's minibatch loss at points[j]."""

    def hvp(
        self, points: Float[Tensor, "n d"], vectors: Float[Tensor, "n d"]
    ) -> Float[Tensor, "n d"]:
        """Row j is the Hessian of client j's loss at points[j], times vectors[j]."""

    def held(self) -> Clients:
        """The same clients with one minibatch, fresh now, for every question to come.

        For what compares answers: finite differences, or minimising one sampled loss.
        """

    def whole(self) -> Clients:
        """The same clients with all of their training data for every question."""


Program = Callable[..., Tensor | tuple[Tensor, ...]]
"""Row-wise code `program(clients, *rows, **options)` that every client runs alone."""

CentralProgram = Callable[..., Tensor | tuple[Tensor, ...]]
"""Code `program(*rows, **options)` on the rows of all clients, run by a coordinator."""


@runtime_checkable
class Oracle(Protocol):
    """All that an algorithm may ask of the clients in one round.

    Rows have n entries, one for each client at hand; `weights` have N, for all of them.
    Inactive clients answer nothing: their rows of gradients are zero, and `each` leaves
    their rows as they were.
    """

    @property
    def active(self) -> Bool[Tensor, " n"]:
        """Who of the clients at hand takes part in this round."""

    @property
    def present(self) -> Bool[Tensor, " m"]:
        """Who of all N clients takes part in this round."""

    @property
    def mine(self) -> slice:
        """Where the clients at hand stand among all N."""

    @property
    def gradients(self) -> Float[Tensor, " n"]:
        """Gradients of single samples that each client has evaluated in this round."""

    @property
    def sent(self) -> list[Sent]:
        """What the verbs between clients have sent in this round, of all N clients."""

    def grads(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Row i is g_i(x_i). Nothing is sent."""

    def each(
        self, program: Program, *rows: Tensor, **options: float | int | str | bool
    ) -> tuple[Tensor, ...]:
        """Runs `program(clients, *rows, **options)`, whose results replace the rows.

        The program returns new values for its first rows, in order; rows beyond those
        are only read. It must be a module-level function, so that a site can run the
        very same one. Nothing is sent.
        """

    def average(self, shares: Tensor, rows: Float[Tensor, "n d"]) -> Tensor:
        """Every row is sum_i shares[i] rows[i] / sum_i shares[i] over those who answer.

        Nobody needs to see a single row. Shares (C, n) give C averages, (n, C, D), of
        which one that nobody has a share of is zero.
        """

    def mix(self, weights: Tensor, rows: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Row i is sum_k weights[i, k] rows[k]; weights (N, N) may be sparse."""

    def central(
        self, program: CentralProgram, *rows: Tensor, **options: float | int | str
    ) -> tuple[Tensor, ...]:
        """A coordinator runs `program(*rows, **options)` on the rows of all N clients.

        Each client gets its own rows of the results back.
        """

    def blended(
        self, x: Float[Tensor, "n d"], weights: Float[Tensor, "m m"]
    ) -> Float[Tensor, "n d"]:
        """Row i is sum_k weights[i, k] g_k(x_i)."""

    def compare(
        self, x: Float[Tensor, "n d"], *, samples: int | None = None
    ) -> Comparison:
        """Distances and products of g_k(x_i) and g_i(x_i), never (N, N, D) in memory.

        Everybody is told those of all N clients.

        Args:
            x: the models.
            samples: how many training samples each client uses; None uses them all.
        """


class Algorithm(NamedTuple):
    """A method: how to begin, what one round does, and which models clients use.

    `init(x, oracle)` makes the first state of the clients' first models. `personal` may
    ask the clients for a last local step before use (fine-tuning); the default returns
    the field `x` of the state.

    `welcome(state, oracle)` gives models (M, D) to M clients that were not there in
    training, whom the oracle asks. The algorithm is then built for all N + M clients,
    the newcomers last, while the state is that of the N who trained. Without it a
    newcomer gets the personal model that fits its training data best.
    """

    init: Callable[[Tensor, Oracle], State]
    step: Callable[[State, Oracle, torch.Generator], tuple[State, Info]]
    personal: Callable[[State, Oracle], Tensor] = lambda state, oracle: state.x
    welcome: Callable[[State, Oracle], Tensor] | None = None


@runtime_checkable
class Federated(Protocol):
    """Clients that can be asked, in a simulation or elsewhere, round by round."""

    def __len__(self) -> int:
        """How many clients there are, here and elsewhere."""

    def at(
        self, t: int, active: Bool[Tensor, " n"] | None = None, *, purpose: str = "step"
    ) -> Oracle:
        """The oracle of round t; its answers depend on nothing asked before.

        Args:
            t: the round.
            active: who of all N clients takes part; None: everybody.
            purpose: names what the answers are for.
        """
