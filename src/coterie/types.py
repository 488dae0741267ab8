"""The few types on which everything else agrees: algorithm, oracle, client program.

A federation is a matrix: row i of `x`, shape (N, D), is client i's model. An algorithm
is row-wise code on those n rows that a process holds, and all that leaves a client
leaves through a verb of the oracle. Its second face, the flow, is for clients that need
not wait for each other: tasks, and what their answers do when they arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, NamedTuple, NoReturn, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from . import seeds
from .checks import InputError

State = Any
"""What an algorithm remembers between rounds: a NamedTuple of tensors and numbers.

Fields of type `Rows` have a row for each client at hand, a field of type `Server` is
kept by the coordinator, and all other fields are the same in every process.
"""

Rows = Annotated[Tensor, "one row for each client at hand"]
"""A part of a state that belongs to clients, row by row."""

Server = Annotated[Any, "kept by the coordinator alone"]
"""A part of a state that only the coordinator has. Elsewhere it is None."""


class Numbers(NamedTuple):
    """Rows that are not models: losses, choices, counts.

    Verbs take rows as models unless they are marked so. Models (and gradients) are
    subject to personal columns and clipping; numbers leave as they are.
    """

    rows: Tensor


Message = Tensor | Numbers
"""What a client gives to a verb: a row of models, or of numbers."""


def tensor_of(message: Message) -> Tensor:
    """The rows of a message, whatever they are."""
    return message.rows if isinstance(message, Numbers) else message


def like(message: Message, rows: Tensor) -> Message:
    """Other rows of the same kind."""
    return Numbers(rows) if isinstance(message, Numbers) else rows


Info = dict[str, Tensor | float]
"""What a round tells about itself: numbers, and tensors with a row for each client.

A number is recorded as it is, rows as their mean over clients. Who learns with whom is
recorded by one of two means:

- `weights` is the collaboration matrix, (N, N) in every process or the rows (n, N) of
  the clients at hand.
- `member` are labels of groups, for methods in which all members of a group make one
  model: (n,) whole numbers, 0 or more, the group that a client trains with, or `ALONE`.
  `uses` (n,) is the group whose model the client uses, `ALONE` for a model of its own
  and `EVERYBODY` for one that all clients make; where it is left out, it is `member`.
  How many groups there are is recorded as `groups`.
"""

ALONE, EVERYBODY = -1, -2
"""Labels in place of a group's, where a round tells who learns with whom."""

SERVER = -1
"""Stands for the server, where a link names two clients by their positions."""


class Transfer(NamedTuple):
    """What a verb sent: so many values over each of these links."""

    verb: str
    values: int
    links: Int[Tensor, "l 2"]  # from whom, to whom: positions, or SERVER
    partial: bool = False  # whether these are the links of clients at hand alone

    @property
    def total(self) -> int:
        """Values over all links."""
        return self.values * len(self.links)

    def of(self, mine: slice) -> int:
        """Values that these clients sent, or got from a server."""
        sender, receiver = self.links.unbind(1)
        client = torch.where(sender == SERVER, receiver, sender)
        return self.values * int(((client >= mine.start) & (client < mine.stop)).sum())


class Traffic(NamedTuple):
    """How many values were sent: through a server, and from peer to peer."""

    server: float = 0.0
    peers: float = 0.0

    @property
    def total(self) -> float:
        """Of both kinds."""
        return self.server + self.peers


def traffic_of(sent: Sequence[Transfer], mine: slice | None = None) -> Traffic:
    """What these verbs sent together.

    Args:
        sent: by the verbs.
        mine: whose values count, those that they sent or got from a server, so that
            every value counts for one client; None: all of them.
    """
    server = peers = 0
    for one in sent:
        values = one.total if mine is None else one.of(mine)
        if one.verb in ("average", "central"):
            server += values
        else:
            peers += values
    return Traffic(float(server), float(peers))


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
    `same_batch`, `whole` or `validation`.
    """

    def grad(self, points: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Row j is the gradient of client j's minibatch loss at points[j]."""

    def loss(self, points: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        """Entry j is client j's minibatch loss at points[j]."""

    def losses(self, points: Float[Tensor, "n d"]) -> Float[Tensor, "n b"]:
        """Row j has the losses of client j's samples, then NaN where it has fewer."""

    def hvp(self, points: Tensor, vectors: Tensor) -> Float[Tensor, "n d"]:
        """Row j is the Hessian of client j's loss at points[j], times vectors[j]."""

    def same_batch(self) -> Clients:
        """The same clients with one minibatch, fresh now, for every question to come.

        For what compares answers: finite differences, or minimising one sampled loss.
        """

    def whole(self) -> Clients:
        """The same clients with all of their training data for every question."""

    def validation(self) -> Clients:
        """The same clients with all of their validation data, for choosing."""


@runtime_checkable
class TaskClients(Clients, Protocol):
    """Clients of a task, where nobody waits, who know what rounds would draw."""

    def call(self, number: int) -> Clients:
        """The same clients, with the samples that this call uses in their rounds.

        Calls of a verb are numbered from 0 in every round, and each draws samples of
        its own. A task begins with those of call 0. So a task that does what several
        calls do in a round can use the same samples.
        """


@runtime_checkable
class ClientsWithMeasurements(Clients, Protocol):
    """Clients that also know what their own step sizes depend on.

    Nothing of it leaves a client. Studies measure it before training, except with
    [privacy] and [time], where step sizes are numbers.
    """

    @property
    def curvature(self) -> Float[Tensor, " n"]:
        """The largest eigenvalue of the Hessian of each training loss at the start."""

    @property
    def sizes(self) -> Float[Tensor, " n"]:
        """Training samples of each client."""

    @property
    def weights(self) -> Bool[Tensor, " d"]:
        """Which columns of a model are weights: all but biases and other vectors."""


Option = bool | int | float | str | tuple[bool | int | float | str, ...]
"""What a program may be told beside rows: numbers and texts travel to any site."""
Options = dict[str, Any]  # of the kinds of an `Option`, beside the argument `who`

Program = Callable[..., Tensor | tuple[Tensor, ...]]
"""Row-wise code `program(clients, *rows, **options)` that every client runs alone."""

CentralProgram = Callable[..., tuple[Any, ...]]
"""Code that a coordinator runs: `program(server, who, *rows, **options)`.

`who` are the positions of the p clients that take part, whose rows are given, (p, ...).
It returns `(server, *answers)`: what the coordinator remembers, and answers with a row
for each of all N clients. The answer in the place of a model is a model; all others are
numbers.
"""


@runtime_checkable
class Oracle(Protocol):
    """All that an algorithm may ask of the clients in one round.

    Rows have n entries, one for each client at hand; `weights` have N, for all of them.
    Rows that a verb sends are models, or marked as `Numbers`. Clients that take no part
    answer nothing: their rows of gradients are zero, `each` leaves their rows as they
    were, and no verb sends or reads a row of theirs. What others send them waits until
    they are back. A weight or share of zero means that a row is not used, whatever it
    holds.
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
    def home(self) -> Bool[Tensor, " d"] | None:
        """Columns of a model that never leave their client; None: all may."""

    @property
    def gradients(self) -> Float[Tensor, " n"]:
        """Gradients of single samples that each client has evaluated in this round."""

    @property
    def sent(self) -> list[Transfer]:
        """What the verbs between clients have sent in this round.

        That is what all N clients sent, where every process knows it, and else what the
        clients at hand did (`Sent.partial`).
        """

    def grads(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Row i is g_i(x_i). Nothing is sent."""

    def each(
        self,
        program: Program,
        *rows: Tensor,
        who: Bool[Tensor, " n"] | None = None,
        at_home: bool = False,
        **options: Option,
    ) -> tuple[Tensor, ...]:
        """Runs `program(clients, *rows, **options)`, whose results replace the rows.

        Only those of `who` are asked (None: all). The program returns new values for
        its first rows; rows beyond those are only read. It is a module-level function,
        so that a site can run the very same one. Nothing is sent. What runs `at_home`
        is for its client alone: with [privacy], it gets exact losses, and a method that
        sends anything made of its results is refused.
        """

    def average(
        self,
        shares: Tensor,
        rows: Message,
        groups: Int[Tensor, " n"] | None = None,
        *,
        count: int | None = None,
    ) -> Tensor:
        """Every row is sum_i shares[i] rows[i] / sum_i shares[i] over those who answer.

        Nobody needs to see a single row. With `groups`, sums are over one's own group.
        Groups are numbered from 0, below `count`, which must be the same in every
        process (None: N): so the sums of all groups are one message of `count` rows.
        Shares (C, n) give C averages, (n, C, D). One of nobody is zero.
        """

    def mix(
        self, weights: Tensor, rows: Message, *, exchanges: int = 1, gamma: float = 1.0
    ) -> Tensor:
        """Row i is sum_k weights[i, k] rows[k]; weights W may be sparse.

        W is (N, N), the same in every process, or (n, N), the rows of the clients at
        hand. Nobody else knows those, so they must be mutual: weights[i, k] is not 0
        where weights[k, i] is not 0. Then a client knows to whom it sends its row.

        The sum is over oneself and those who take part; a row of anybody else is not
        used. After W x, further exchanges: gamma W x + (1 - gamma) x', x' the x before.
        """

    def central(
        self, program: CentralProgram, server: Any, *rows: Message, **options: Option
    ) -> tuple[Any, ...]:
        """A coordinator runs `program` on the rows of those who take part.

        Returns `(server, *answers)`: `server` is what the coordinator remembers, None
        in every other process; of the answers each client gets its own row. An answer
        in the place of a model keeps that model's personal columns.
        """

    def blended(
        self, x: Float[Tensor, "n d"], weights: Float[Tensor, "m m"]
    ) -> Float[Tensor, "n d"]:
        """Row i is sum_k weights[i, k] g_k(x_i).

        All know the weights, which do not travel: a model goes to those for whom its
        row has a weight, and their gradients there come back.
        """

    def compare(
        self, x: Tensor, *, samples: int | None = None, pairs: Tensor | None = None
    ) -> Comparison:
        """Distances and products of g_k(x_i) and g_i(x_i), which all are told.

        So many training samples of each (None: all), where pairs[i, k] (None: always).
        """


def gradient(clients: Clients, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """A client program: one gradient."""
    return clients.grad(x)


class TaskKind(NamedTuple):
    """A kind of task: a client program, whose samples it uses, and what travels.

    Rows that travel come to the client with the task, answers that travel leave it;
    the others stay with the client, as a personal model does. None: all of them.
    """

    program: Program = gradient
    verb: str = "grads"  # of the oracle, whose draws in rounds these are
    reads: int | None = None  # how many of a task's rows; None: all
    down: tuple[int, ...] | None = None
    up: tuple[int, ...] | None = None
    passes: float = 0.0  # through all data of a client, beside the work of its tasks


class Task(NamedTuple):
    """What a client is asked to compute, as it is when the client is asked."""

    rows: tuple[Tensor, ...]
    kind: int = 0  # which of the method's
    round: int | None = None  # whose samples it uses; None: one more than its number
    work: float = 1.0  # gradients of a minibatch that it takes
    samples: float = 0.0  # gradients of single samples beside these, or all it has
    peer: int | None = None  # from whom and to whom; oneself: not sent; None: a server


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

    def count_messages(self, messages: float, row: Tensor) -> None:
        """Counts messages of a row's size that clients send each other now."""
        self.sent.append(messages * row.numel())


class Meeting(NamedTuple):
    """Two clients whose edge has rung, and what they sent each other."""

    time: float  # of writing
    since: float  # of reading, before it where messages take time
    ends: tuple[int, int]
    sent: tuple[Tensor, Tensor]  # by each of the two ends


class Tempo(NamedTuple):
    """How often edges ring, and how long what happens takes on average."""

    edges: Int[Tensor, "e 2"]
    rates: Float64[Tensor, " e"]  # rings per second
    delays: Float64[Tensor, " e"]  # seconds that a message between the ends travels
    lengths: Float64[Tensor, " n"]  # seconds that a task of each client takes


class Flow(NamedTuple):
    """What a method does where clients need not wait for each other.

    The state belongs to one run, and `arrive` changes it in place: a new (N, D) tensor
    for each of a million events would be most of the work. It is a dataclass of
    tensors, numbers and lists of numbers.
    """

    init: Callable[[Tensor], State]
    task: Callable[[State, int, float], Task]
    """What a client that begins at that time is asked."""
    arrive: Callable[[State, Arrivals], Iterable[int]]
    """Takes answers in; returns who gets a new task, also one who is still busy or has
    not answered: so a token walks."""
    personal: Callable[[State], Float[Tensor, "n d"]] = lambda state: state.x
    welcome: Callable[[State, Oracle], Tensor] | None = None
    """As of an `Algorithm`: models for clients that were not there in training."""
    info: Callable[[State], Info] = lambda state: {}
    """As of a round; what was sent is counted for it."""
    kinds: tuple[TaskKind, ...] = (TaskKind(),)
    starts: tuple[int, ...] | None = None  # who gets a first task; None: everybody
    together: bool = False  # whether tasks that end at the same time arrive at once
    send: Callable[[State, int, float], Tensor] | None = None
    """What a client sends at that time, when one of its edges rings."""
    meet: Callable[[State, Meeting], None] | None = None
    """What two clients do with what they sent each other."""
    edges: Int[Tensor, "e 2"] | None = None  # the pairs of those who may meet
    ringing: Callable[[State, Tempo], None] | None = None  # told to a first state
    couples: bool = False  # tasks begin where an edge rings between two who are free
    messages: str = "relayed"
    """How tasks and answers travel: `relayed`, all by way of a server; `direct`, over
    the link to the peer; `none` are sent; or they are `instant`."""


def _no_rounds(*_: Any) -> NoReturn:
    raise InputError("the method has no rounds: it reacts to answers, in time.")


class Releases(NamedTuple):
    """What a method declares that a client releases in one round, at most.

    A verb has a number of rows, each as long as a model, that tell something new about
    the client's data. What is made of earlier releases alone is not counted. A client
    releases a gradient to every reader of `blended` and `compare`: that is one row, and
    one more where the model at which others are asked tells something new.

    Example: `Releases(average=1)` is one model to the server. `Releases()` is nothing.
    A dry run without data verifies it (`coterie.privacy.mechanisms.dry_run`).
    """

    average: int = 0
    central: int = 0
    mix: int = 0
    blended: int = 0
    compare: int = 0
    losses: bool = False  # mean losses leave, or choices made of them
    unbounded: bool = False  # so does what no clipping bounds: [privacy] refuses it


class Algorithm(NamedTuple):
    """A method: how to begin, what one round does, and which models clients use.

    `init(x, oracle)` makes the first state of the clients' first models. `personal` may
    ask the clients for a last local step before use (fine-tuning); the default returns
    the field `x` of the state.

    `welcome(state, oracle)` gives models (M, D) to M clients that were not there in
    training, whom the oracle asks. The algorithm is then built for all N + M clients,
    the newcomers last, while the state is that of the N who trained. Without it a
    newcomer gets the personal model that fits its training data best.

    `flow` is the same method where nobody need wait: without delays, the two are one. A
    method that exists in time only has a flow and no `init` and `step`.

    `home` are columns of a model that the method itself keeps with their clients: what
    it sends has the others alone. [privacy] clips and noises these.

    `releases` declares what a client releases in a round. [privacy] refuses a method
    that releases more; without a declaration it takes what a dry run finds.
    """

    init: Callable[[Tensor, Oracle], State] = _no_rounds
    step: Callable[[State, Oracle, torch.Generator], tuple[State, Info]] = _no_rounds
    personal: Callable[[State, Oracle], Tensor] = lambda state, oracle: state.x
    welcome: Callable[[State, Oracle], Tensor] | None = None
    flow: Flow | None = None
    home: Bool[Tensor, " d"] | None = None
    releases: Releases | None = None

    @property
    def faces(self) -> tuple[str, ...]:
        """`rounds`, `time`, or both."""
        rounds = () if self.step is _no_rounds else ("rounds",)
        return rounds if self.flow is None else (*rounds, "time")


@runtime_checkable
class ClientsInRounds(Protocol):
    """Clients that can be asked, in a simulation or elsewhere, round by round."""

    def __len__(self) -> int:
        """How many clients there are, here and elsewhere."""

    def at(
        self, t: int, active: Bool[Tensor, " n"] | None = None, *, purpose: str = "step"
    ) -> Oracle:
        """The oracle of round t, where `active` of all N take part, for a purpose."""


@runtime_checkable
class ClientsInTime(Protocol):
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

    def task_clients(
        self, who: Int[Tensor, " m"], rounds: Sequence[int], *, verb: str = "grads"
    ) -> TaskClients:
        """These clients, each with the samples that a verb uses first in its round."""

    def width(self, clients: int) -> int:
        """How many to ask at once where so many are to be asked, or more."""
