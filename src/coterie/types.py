"""The few types on which everything else agrees: algorithm, oracle, client program.

A federation is a matrix: row i of `x`, shape (N, D), is client i's model. An algorithm
is a pair of pure functions on that matrix and meets the clients only through an oracle.
Its second face, the flow, is for clients that need not wait for each other: tasks, and
what their answers do when they arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import (
    Annotated,
    Any,
    NamedTuple,
    NoReturn,
    Protocol,
    TypeVar,
    runtime_checkable,
)

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from . import seeds
from .checks import InputError

State = Any
"""What an algorithm remembers between rounds: a NamedTuple of tensors and numbers."""

Info = dict[str, Tensor | float]
"""What a round tells about itself.

`floats` is the number of values sent between clients (and server) in this round,
`weights` an (N, N) collaboration matrix; every other entry is recorded as it is.
"""


class Comparison(NamedTuple):
    """How far client k's gradient is from client i's own, both at client i's model.

    Every client divides its estimation data into two random halves, with gradients
    a_k, b_k at x_i. The two halves are independent, so the inner products of `cross`
    and `own` are unbiased; `spread` and `own_spread` estimate the noise that a squared
    norm of the pooled gradient (a + b) / 2 would add, since
    |(u + v) / 2|^2 = <u, v> + |u - v|^2 / 4.
    """

    cross: Float[Tensor, "n n"]  # <a_i - a_k, b_i - b_k>
    own: Float[Tensor, " n"]  # <a_i, b_i>
    spread: Float[Tensor, "n n"]  # |(a_i - a_k) - (b_i - b_k)|^2 / 4
    own_spread: Float[Tensor, " n"]  # |a_i - b_i|^2 / 4
    noise: Float[Tensor, "n n"]  # <a_i - b_i, a_k - b_k>, of mean zero for k != i
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


@runtime_checkable
class Oracle(Protocol):
    """All that an algorithm may ask of the clients in one round.

    Inactive clients answer nothing: their rows of gradients are zero, and `each` leaves
    their rows as they were.
    """

    @property
    def active(self) -> Bool[Tensor, " n"]:
        """Who takes part in this round."""

    def grads(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Row i is g_i(x_i)."""

    def blended(
        self, x: Float[Tensor, "n d"], weights: Float[Tensor, "n n"]
    ) -> Float[Tensor, "n d"]:
        """Row i is sum_k weights[i, k] g_k(x_i)."""

    def compare(
        self, x: Float[Tensor, "n d"], *, samples: int | None = None
    ) -> Comparison:
        """Distances and products of g_k(x_i) and g_i(x_i), never (N, N, D) in memory.

        Args:
            x: the models.
            samples: how many training samples each client uses; None uses them all.
        """

    def each(
        self, program: Program, *rows: Tensor, **options: float | int | str | bool
    ) -> tuple[Tensor, ...]:
        """Runs `program(clients, *rows, **options)`, whose results replace the rows.

        The program returns new values for its first rows, in order; rows beyond those
        are only read. It must be a module-level function, so that a site can run the
        very same one.
        """


Option = TypeVar("Option")

InRounds = Annotated[Option, "rounds"]
"""Of an option that a method uses in rounds only, of a factory with both faces."""

InTime = Annotated[Option, "time"]
"""Of an option that only the flow uses."""


def gradient(clients: Clients, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """A client program: one gradient."""
    return clients.grad(x)


class Kind(NamedTuple):
    """A kind of task: a client program, whose samples it uses, and what travels.

    Rows that travel come to the client with the task, answers that travel leave it;
    the others stay with the client, as a personal model does. None: all of them.
    """

    program: Program = gradient
    verb: str = "grads"  # of the oracle, whose draws in rounds these are
    reads: int | None = None  # how many of a task's rows; None: all
    down: tuple[int, ...] | None = None
    up: tuple[int, ...] | None = None


class Task(NamedTuple):
    """What a client is asked to compute, as it is when the client is asked."""

    rows: tuple[Tensor, ...]
    kind: int = 0  # which of the method's
    round: int | None = None  # whose samples it uses; None: one more than its number
    work: float = 1.0  # gradients of a minibatch that it takes
    samples: float = 0.0
    """Gradients of single samples, beside these; at most as many as the client has."""
    peer: int | None = None
    """The client that rows come from and answers go to; None: a server.

    Whoever is its own peer sends nothing.
    """


class Arrivals(NamedTuple):
    """A task that ended, or several of a kind at the same time."""

    time: float
    clients: list[int]  # in the order in which their ends were foreseen
    answers: tuple[Tensor, ...]  # (m, ...) what their programs returned
    delays: list[int]  # answers that arrived since a task began, its own with them
    k: int  # answers that arrived before these
    seed: int
    kind: int
    sent: list[float]  # values that `passed` between clients

    def generator(self) -> torch.Generator:
        """A stream for what the method draws now."""
        return seeds.generator(self.seed, "events", self.k)

    def passed(self, messages: float, row: Tensor) -> None:
        """Counts messages of the size of a row that clients send each other now."""
        self.sent.append(messages * row.numel())


class Meeting(NamedTuple):
    """Two clients whose edge has rung, and what they sent each other.

    Where messages take time, what is written now was read before.
    """

    time: float  # of writing
    since: float  # of reading
    ends: tuple[int, int]
    sent: tuple[Tensor, Tensor]  # by each of the two ends


class Flow(NamedTuple):
    """What a method does where clients need not wait for each other.

    The state belongs to one run, and `arrive` changes it in place: a new (N, D) tensor
    for each of a million events would be most of the work. It is a dataclass of
    tensors, numbers and lists of numbers.
    """

    init: Callable[[Tensor], State]
    task: Callable[[State, int], Task]
    """What a client that begins now is asked."""
    arrive: Callable[[State, Arrivals], Iterable[int]]
    """Takes answers in; returns who gets a new task, also one who is still busy.

    It may be somebody else: so a token walks.
    """
    personal: Callable[[State], Float[Tensor, "n d"]]
    welcome: Callable[[State, Oracle], Tensor] | None = None
    """As of an `Algorithm`: models for clients that were not there in training."""
    info: Callable[[State], Info] = lambda state: {}
    """As of a round; what was sent is counted for it."""
    kinds: tuple[Kind, ...] = (Kind(),)
    starts: tuple[int, ...] | None = None  # who gets a first task; None: everybody
    together: bool = False  # whether tasks that end at the same time arrive at once
    send: Callable[[State, int, float], Tensor] | None = None
    """What a client sends at that time, when one of its edges rings."""
    meet: Callable[[State, Meeting], None] | None = None
    """What two clients do with what they sent each other."""
    edges: Int[Tensor, "e 2"] | None = None  # the pairs of those who may meet
    couples: bool = False
    """Tasks begin in pairs only, where an edge rings between two who are free."""
    messages: str = "relayed"
    """How tasks and answers travel: `relayed`, all by way of a server; `direct`, over
    the link to the peer; `none` are sent; or they are `instant`."""


def _no_rounds(*_: Any) -> NoReturn:
    raise InputError(
        "the method has no rounds: it reacts to answers as they arrive, in time."
    )


class Algorithm(NamedTuple):
    """A method: how to begin, what one round does, and which models clients use.

    `personal` may ask the clients for a last local step before use (fine-tuning); the
    default returns the field `x` of the state.

    `welcome(state, oracle)` gives models (M, D) to M clients that were not there in
    training, whom the oracle asks. The algorithm is then built for all N + M clients,
    the newcomers last, while the state is that of the N who trained. Without it a
    newcomer gets the personal model that fits its training data best.

    `flow` is the same method where nobody need wait: without delays, the two are one. A
    method that exists in time only has a flow and no `init` and `step`.
    """

    init: Callable[[Tensor], State] = _no_rounds
    step: Callable[[State, Oracle, torch.Generator], tuple[State, Info]] = _no_rounds
    personal: Callable[[State, Oracle], Tensor] = lambda state, oracle: state.x
    welcome: Callable[[State, Oracle], Tensor] | None = None
    flow: Flow | None = None

    @property
    def faces(self) -> tuple[str, ...]:
        """`rounds`, `time`, or both."""
        rounds = () if self.step is _no_rounds else ("rounds",)
        return rounds if self.flow is None else (*rounds, "time")


@runtime_checkable
class Federated(Protocol):
    """Clients that can be asked, in a simulation or elsewhere, round by round."""

    def __len__(self) -> int:
        """How many clients there are."""

    def at(
        self, t: int, active: Bool[Tensor, " n"] | None = None, *, purpose: str = "step"
    ) -> CountingOracle:
        """The oracle of round t; its answers depend on nothing asked before."""


@runtime_checkable
class CountingOracle(Oracle, Protocol):
    """An oracle that counts what its answers cost."""

    @property
    def gradients(self) -> Float[Tensor, " n"]:
        """Gradients of single samples that each client has evaluated in this round."""


@runtime_checkable
class Staggered(Protocol):
    """Clients that can be asked each at a time of its own, in virtual time."""

    def __len__(self) -> int:
        """How many clients there are."""

    @property
    def names(self) -> Int[Tensor, " n"]:
        """Their identities, which name their random streams, on the CPU."""

    @property
    def batch_counts(self) -> Float64[Tensor, " n"]:
        """How many samples a minibatch of each has, on the CPU."""

    @property
    def sizes(self) -> Float64[Tensor, " n"]:
        """How many training samples each has, on the CPU."""

    def staggered(
        self, who: Int[Tensor, " m"], rounds: Sequence[int], *, verb: str = "grads"
    ) -> Clients:
        """The clients at these positions, each with the samples of its own round.

        They are those that this verb of the oracle would use first in that round.
        """

    def width(self, clients: int) -> int:
        """How many to ask at once where so many are to be asked, or more."""
