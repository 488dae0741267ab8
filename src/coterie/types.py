"""The types that all parts of coterie use: algorithm, oracle, client program.

A federation is a matrix: row i of `x`, shape (N, D), is client i's model. A process
holds the n rows of its clients, the clients at hand. An algorithm is code that treats
each row by itself. To send something, the algorithm calls a verb of the oracle (a
method such as `average`); nothing leaves a client in another way. An algorithm can also
have a flow, for clients that do not wait for each other. A flow gives out tasks, and
uses answers as they arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, NoReturn, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from . import seeds
from .checks import InputError

State = Any
"""What an algorithm stores between rounds: a NamedTuple of tensors and numbers.

Fields of type `Rows`, `OwnRows` and `SameRow` have a row for each client at hand.
Fields of type `Server` exist only at the coordinator. All other fields are the same in
every process.
"""

Rows = Annotated[Tensor, "one row for each client at hand"]
"""A field of a state with a row for each client at hand."""

OwnRows = Annotated[Tensor, "one row for each client at hand, which only it changes"]
"""A field of type `Rows`, where the row of a client changes only if it takes part.

If all fields with rows are `OwnRows` or `SameRow`, rounds can be computed in place: the
step gets the rows of the clients that take part, and no others (`run_rounds`).
"""

SameRow = Annotated[Tensor, "one row for each client at hand, the same for all"]
"""A field of type `Rows`, where all clients have the same row, also those away."""

Told = Annotated[Tensor, "one row for each client at hand, told by a coordinator"]
"""A field of type `Rows`, which also changes for clients that are away.

In rounds in place, `Algorithm.away` updates it.
"""


class StoredRows(NamedTuple):
    """Rows of a state that a step has not fetched yet."""

    rows: Tensor  # (N, ...)
    who: Int[Tensor, " n"]  # the positions of the clients at hand


def fetch(rows: Tensor | StoredRows) -> Tensor:
    """The rows of the clients at hand."""
    if isinstance(rows, Tensor):
        return rows
    return rows.rows[rows.who.to(rows.rows.device)].to(rows.who.device)


LateRows = Annotated[Any, "own rows that a step fetches when it needs them"]
"""A field as of type `OwnRows`. A step must call `fetch` to get its rows.

In rounds in place, this saves memory until the rows are needed.
"""

Shared = Annotated[Any, "models that several clients share, by their numbers"]
"""A field with `coterie.collaboration.Models`, those that this process knows."""

ROWS = Rows, OwnRows, SameRow, LateRows, Told
"""The types of fields with a row for each client at hand."""

Server = Annotated[Any, "kept by the coordinator alone"]
"""A field of a state that only the coordinator has. Elsewhere it is None."""


class Numbers(NamedTuple):
    """Rows that are not models: losses, choices, counts.

    Verbs treat rows as models, unless they are marked as `Numbers`. Personal columns of
    models (and gradients) are not sent, and the rest may be clipped. Numbers are sent
    unchanged.
    """

    rows: Tensor


Message = Tensor | Numbers
"""What a client gives to a verb: a row of models, or of numbers."""


def tensor_of(message: Message) -> Tensor:
    """The rows of a message, models or numbers."""
    return message.rows if isinstance(message, Numbers) else message


def like(message: Message, rows: Tensor) -> Message:
    """The rows, as a message of the same kind as `message`."""
    return Numbers(rows) if isinstance(message, Numbers) else rows


Info = dict[str, Tensor | float]
"""What a round reports: numbers, and tensors with a row for each client.

Numbers are recorded unchanged; of rows, the mean over clients is recorded. There are
two ways to record who learns with whom:

- `weights` is the collaboration matrix, (N, N) in every process or the rows (n, N) of
  the clients at hand.
- `member` (n,) is for methods in which all members of a group train one model. It has
  the number of the group with which a client trains (0 or more), or `ALONE`. `uses`
  (n,) has the group whose model the client uses, `ALONE` for its own model, or
  `EVERYBODY` for a model of all clients. Without `uses`, a client uses the model of its
  group. The number of groups is recorded as `groups`.
"""

ALONE, EVERYBODY = -1, -2
"""Values of `member` and `uses` that are not groups; see `Info`."""

SERVER = -1
"""The server's number, in links between two positions of clients."""


class Transfer(NamedTuple):
    """How many values a verb sent over each of these links."""

    verb: str
    values: int
    links: Int[Tensor, "l 2"]  # from whom, to whom: positions, or SERVER
    partial: bool = False  # whether links of clients in other processes are missing

    @property
    def total(self) -> int:
        """The number of values over all links."""
        return self.values * len(self.links)

    def of(self, mine: slice) -> int:
        """The number of values that these clients sent, or got from a server."""
        sender, receiver = self.links.unbind(1)
        client = torch.where(sender == SERVER, receiver, sender)
        return self.values * int(((client >= mine.start) & (client < mine.stop)).sum())


class Traffic(NamedTuple):
    """The number of values sent through a server, and from peer to peer."""

    server: float = 0.0
    peers: float = 0.0

    @property
    def total(self) -> float:
        """The number of values sent in either way."""
        return self.server + self.peers


def traffic_of(sent: Sequence[Transfer], mine: slice | None = None) -> Traffic:
    """The number of values that these transfers sent together.

    Args:
        sent: the transfers.
        mine: counts only values that these clients sent, or received from a server.
            Then every value counts for one client. None: counts everything.
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
    """Comparisons of the gradients of clients k and i, both at the model of client i.

    Every client k divides the samples of the comparison into two random halves. The
    gradients on these halves at x_i are a_k and b_k; p_k is the gradient on both halves
    together. The halves are independent, so the inner products in `cross` and `own` are
    unbiased. The squared norms in `pooled` and `own_pooled` are too large by the noise
    of the gradients p.
    """

    cross: Float[Tensor, "n n"]  # <a_i - a_k, b_i - b_k>
    own: Float[Tensor, " n"]  # <a_i, b_i>
    pooled: Float[Tensor, "n n"]  # |p_i - p_k|^2
    own_pooled: Float[Tensor, " n"]  # |p_i|^2
    noise: Float[Tensor, "n n"]  # <a_i - b_i, a_k - b_k>, of mean zero for k != i
    variance: Float[Tensor, " n"]  # estimate for the gradient of one sample
    samples: Float[Tensor, " n"]  # how many samples client k used
    known: Bool[Tensor, "n n"]  # pairs that took part


class NeedsClasses(InputError):
    """The error if a method asks for classes, but the data have no classes."""


class Widths(NamedTuple):
    """The number of classes of the data, and of features that enter a model's head."""

    classes: int  # 0 if targets are not classes
    features: int = 0  # none without a layer `head`


@dataclass(frozen=True)
class Evaluation:
    """The answers of models for samples, and the samples themselves.

    There are n models with b samples each. A loss function gets the part of one model,
    without the dimension n. Samples of weight 0 only fill up rows.
    """

    x: Tensor  # (n, d) the models
    outputs: Tensor  # (n, b, ...)
    targets: Tensor  # (n, b, ...)
    losses: Tensor  # (n, b) by the objective of the study
    weight: Tensor  # (n, b) the weight of each sample in the mean of its row
    classes: int = 0
    before_head: Tensor | None = None  # (n, b, f)

    @property
    def features(self) -> Tensor:
        """(n, b, f) the inputs of the layer `head`, flattened.

        Raises:
            InputError: unless the model has exactly one layer of this name.
        """
        if self.before_head is None:
            raise InputError(
                "features are what enters the layer `head`, but the model does not "
                "have exactly one layer of that name."
            )
        return self.before_head

    @property
    def labels(self) -> Tensor:
        """(n, b) the class of each sample, a whole number.

        Raises:
            NeedsClasses: if targets are not classes.
        """
        refuse_no_classes("labels", self.classes)
        return self.targets.long()


def refuse_no_classes(what: str, classes: int) -> None:
    """Refuses a question about classes if the data have no classes."""
    if not classes:
        raise NeedsClasses(
            f"{what} need targets that are classes, which these are not."
        )


OwnLoss = Callable[..., Tensor]
"""A client's own loss: a module-level function `loss(at, *rows, **options)`.

`at` is an `Evaluation` of the client's model, and `rows` are the client's rows of
further tensors. The function returns one number, or a number for each sample; of these,
the weighted mean is the loss.
"""


@runtime_checkable
class Clients(Protocol):
    """The questions that a client program can ask n clients (at a site, one client).

    Every question uses a fresh minibatch of each client, except those asked through
    `same_batch`, `whole` or `validation`.
    """

    def grad(
        self,
        points: Float[Tensor, "n d"],
        *rows: Tensor,
        loss: OwnLoss | None = None,
        **options: Any,
    ) -> Float[Tensor, "n d"]:
        """Gradients: row j is the gradient of client j's minibatch loss at points[j].

        With `loss`, it is the gradient of this function. Client j gets row j of `rows`;
        all clients get the `options`. `rows` are not differentiated.
        """

    def evaluate(self, points: Float[Tensor, "n d"]) -> Evaluation:
        """Outputs, features, targets and losses of samples, with models `points`."""

    def class_counts(self) -> Float[Tensor, "n c"]:
        """The number of training samples of each class."""

    def stream(self, *names: int | str) -> seeds.Stream:
        """A random stream, in which each client has its own sequence.

        The stream continues after the program's last draw from a stream of these names.
        """

    def loss(self, points: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        """Losses: entry j is client j's minibatch loss at points[j]."""

    def losses(self, points: Float[Tensor, "n d"]) -> Float[Tensor, "n b"]:
        """Losses of single samples: row j is for client j, filled up with NaN."""

    def hvp(self, points: Tensor, vectors: Tensor) -> Float[Tensor, "n d"]:
        """Products: row j is client j's Hessian at points[j], times vectors[j]."""

    def same_batch(self) -> Clients:
        """The same clients, which answer all questions on one minibatch drawn now.

        Use it to compare answers, as in finite differences, or to minimise one sampled
        loss.
        """

    def whole(self) -> Clients:
        """The same clients, which answer on all of their training data."""

    def validation(self) -> Clients:
        """The same clients, which answer on all of their validation data."""


@runtime_checkable
class TaskClients(Clients, Protocol):
    """Clients of a task in time, which can use the samples that rounds would draw."""

    def call(self, number: int) -> Clients:
        """The same clients, with the samples of the verb's call of this number.

        Calls of a verb are numbered from 0 in every round, and each draws its own
        samples. A task begins with the samples of call 0. With `call`, a task can do
        the work of several calls with the samples of each call.
        """


@runtime_checkable
class ClientsWithMeasurements(Clients, Protocol):
    """Clients that have made the measurements on which their step sizes depend.

    The measurements never leave a client. Studies measure before training, except with
    [privacy] and [time]; there, step sizes must be numbers.
    """

    @property
    def curvature(self) -> Float[Tensor, " n"]:
        """The largest eigenvalue of each training loss's Hessian at the start."""

    @property
    def sizes(self) -> Float[Tensor, " n"]:
        """The number of training samples of each client."""

    @property
    def weights(self) -> Bool[Tensor, " d"]:
        """Which columns of a model are weights, not biases or other vectors."""


class RunningStatistics(NamedTuple):
    """Columns of a model that are running statistics, and how fast they move.

    In these columns, the entry of a gradient is the statistic minus the statistic of
    the minibatch. A local step subtracts `rates` times this entry.
    """

    columns: Int[Tensor, " s"]
    rates: Float[Tensor, " s"]
    parameters: int  # D, the number of columns of a model


@runtime_checkable
class WithStatistics(Protocol):
    """Clients, or an oracle, that know which columns are running statistics."""

    @property
    def statistics(self) -> RunningStatistics | None:
        """The running statistics in a model's row; None: there are none."""


def statistics_of(asked: object) -> RunningStatistics | None:
    """The running statistics in models of these clients, if there are any."""
    return asked.statistics if isinstance(asked, WithStatistics) else None


def without_statistics(asked: object, rows: Float[Tensor, "n d"]) -> Tensor:
    """The rows with zeros in the columns of running statistics.

    Methods use this for terms that they add to gradients, because such terms must not
    change statistics.
    """
    found = statistics_of(asked)
    return rows if found is None else rows.index_fill(1, found.columns, 0.0)


Option = bool | int | float | str | tuple[bool | int | float | str, ...]
"""An option of a program: a number or a text, which can be sent to any site."""
Options = dict[str, Any]  # values of type `Option`, and the argument `who`

Program = Callable[..., Tensor | tuple[Tensor, ...]]
"""A client program: code `program(clients, *rows, **options)` that each client runs."""

CentralProgram = Callable[..., tuple[Any, ...]]
"""A coordinator's program: code `program(server, who, *rows, **options)`.

`who` are the positions of the p clients that take part, and `rows` (p, ...) are their
rows. The program returns `(server, *answers)`: what the coordinator stores, and answers
with a row for each of all N clients. Answer j has models if rows[j] has models, and
otherwise numbers.
"""


class StepNumbers(NamedTuple):
    """The number of a local step, if clients take different numbers of steps."""

    number: Float[Tensor, "n 1"]  # the number of each client's step, counted from 0
    moving: Bool[Tensor, "n 1"] | None = None  # which clients take it; None: all


@runtime_checkable
class ClientsInEpochs(Clients, Protocol):
    """Clients that can count local steps in epochs: passes through their own data."""

    def step_numbers(self, t: int, steps: int) -> Iterable[int | StepNumbers]:
        """The numbers of the next steps: t to t + steps - 1, except with epochs.

        With epochs, `t` and `steps` count epochs, and every client takes as many steps
        as it has minibatches. A client that has finished is not `moving`, and its
        answers are zero.
        """


@runtime_checkable
class Oracle(Protocol):
    """What an algorithm may ask of the clients in one round.

    There are n rows, one for each client at hand; `weights` have a column for each of
    all N clients. Rows that a verb sends are models, unless they are marked as
    `Numbers`. Inactive clients do not answer: their gradients are zero, `each` does not
    change their rows, and no verb sends or reads their rows. Messages to them arrive
    later. A row whose weight or share is zero is not used, even if it is not finite.
    """

    @property
    def active(self) -> Bool[Tensor, " n"]:
        """(n,) which clients at hand take part in this round."""

    @property
    def present(self) -> Bool[Tensor, " m"]:
        """(N,) which clients take part in this round."""

    @property
    def mine(self) -> slice:
        """The positions of the clients at hand among all N, as an index of rows.

        In a round in place (`run_rounds`), this index is a tensor: the clients at hand
        are those that take part.
        """

    @property
    def home(self) -> Bool[Tensor, " d"] | None:
        """Columns of a model that never leave their client; None: all may."""

    @property
    def widths(self) -> Widths:
        """The number of classes of the data, and of features before a model's head."""

    @property
    def gradients(self) -> Float[Tensor, " n"]:
        """(n,) gradients of single samples that each client evaluated in this round."""

    @property
    def sent(self) -> list[Transfer]:
        """What the verbs between clients have sent in this round.

        If every process knows the messages of all N clients, it covers all of them.
        Otherwise it covers only the clients at hand (`Transfer.partial`).
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
        """The rows, replaced by the results of `program(clients, *rows, **options)`.

        Only clients in `who` are asked (None: all). The program returns new values for
        its first rows and only reads the rest. It must be a module-level function, so
        that a site can run the same function. Nothing is sent. The results of a program
        with `at_home` are only for its client. With [privacy], such a program gets
        exact losses; a method that sends anything computed from them is refused.
        """

    def average(
        self,
        shares: Tensor,
        rows: Message,
        groups: Int[Tensor, " n"] | None = None,
        *,
        count: int | None = None,
    ) -> Tensor:
        """Averages sum_i shares[i] rows[i] / sum_i shares[i] over active clients i.

        A server needs only the sums, not single rows. With `groups`, a client gets the
        average of its own group. Groups are numbered from 0 to `count` - 1. `count`
        must be the same in every process (None: N), so that all sums are one message of
        `count` rows. Shares (C, n) give C averages, (n, C, D). The average of an empty
        group is zero.
        """

    def mix(
        self, weights: Tensor, rows: Message, *, exchanges: int = 1, gamma: float = 1.0
    ) -> Tensor:
        """Mixtures: row i is sum_k weights[i, k] rows[k]; weights W may be sparse.

        W is (N, N), the same in every process, or (n, N), the rows of the clients at
        hand. Other processes do not know these rows. So these weights must be mutual:
        if weights[k, i] is not 0, weights[i, k] is not 0. Then a client knows to whom
        it sends its row.

        The sum is over the client itself and active clients. Each exchange after the
        first gives gamma W x + (1 - gamma) x', where x' are the rows one exchange
        earlier.
        """

    def central(
        self, program: CentralProgram, server: Any, *rows: Message, **options: Option
    ) -> tuple[Any, ...]:
        """The results `(server, *answers)` of a coordinator's program on the rows.

        The program gets the rows of active clients. The coordinator stores `server`; in
        other processes it is None. Each client gets its own row of the answers. If
        rows[j] are models, answer j keeps the personal columns of these models.
        """

    def blended(
        self, x: Float[Tensor, "n d"], weights: Float[Tensor, "m m"]
    ) -> Float[Tensor, "n d"]:
        """Row i is sum_k weights[i, k] g_k(x_i).

        All clients know the weights. The model x_i is sent to every client k whose
        weight in row i is not 0, and the gradients are sent back.
        """

    def compare(
        self, x: Tensor, *, samples: int | None = None, pairs: Tensor | None = None
    ) -> Comparison:
        """Distances and products of g_k(x_i) and g_i(x_i); all clients receive them.

        Each client uses this number of training samples (None: all). Only pairs where
        pairs[i, k] is true are compared (None: all).
        """


def gradient(clients: Clients, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """A client program: one gradient."""
    return clients.grad(x)


class TaskKind(NamedTuple):
    """A kind of task: its client program, its draws, and the rows that travel.

    `down` lists the rows that are sent to the client with the task, and `up` the
    answers that it sends (None: all). Other rows and answers stay at the client, such
    as a personal model.
    """

    program: Program = gradient
    verb: str = "grads"  # tasks draw the samples that this verb draws in rounds
    reads: int | None = None  # the number of a task's rows; None: all
    down: tuple[int, ...] | None = None
    up: tuple[int, ...] | None = None
    passes: float = 0.0  # passes through a client's data, in addition to `work`


class Task(NamedTuple):
    """What a client is asked to compute, with rows from the time of the request."""

    rows: tuple[Tensor, ...]
    kind: int = 0  # position in `Flow.kinds`
    round: int | None = None  # uses the samples of this round; None: c + 1 for task c
    work: float = 1.0  # the number of minibatch gradients that it takes
    samples: float = 0.0  # more single-sample gradients, at most the client's samples
    peer: int | None = None  # who sends the task and gets the answer; None: a server


class Arrivals(NamedTuple):
    """A task that ended, or several of a kind at the same time."""

    time: float
    clients: list[int]  # in the order in which their ends became known
    answers: tuple[Tensor, ...]  # (m, ...) what their programs returned
    delays: list[int]  # answers that arrived since the task began, its own included
    k: int  # the number of answers that arrived before these
    seed: int
    kind: int
    sent: list[float]  # values that `count_messages` has counted

    def generator(self) -> torch.Generator:
        """The generator for what the method draws now."""
        return seeds.generator(self.seed, "events", self.k)

    def count_messages(self, messages: float, row: Tensor) -> None:
        """Counts messages of the size of `row` that clients now send each other."""
        self.sent.append(messages * row.numel())


class Meeting(NamedTuple):
    """A meeting of two neighbours, and what they sent each other."""

    time: float  # when the messages are written
    since: float  # when they were read, which is earlier if messages take time
    ends: tuple[int, int]
    sent: tuple[Tensor, Tensor]  # by each of the two ends


class Tempo(NamedTuple):
    """Mean rates of rings of edges, and mean times of messages and tasks."""

    edges: Int[Tensor, "e 2"]
    rates: Float64[Tensor, " e"]  # rings per second
    delays: Float64[Tensor, " e"]  # seconds that a message between the ends travels
    lengths: Float64[Tensor, " n"]  # seconds that a task of each client takes


class Flow(NamedTuple):
    """A method for clients that do not wait for each other.

    The state belongs to one run. It is a dataclass of tensors, numbers and lists of
    numbers. `arrive` changes it in place, because making a new (N, D) tensor in each of
    a million events would take most of the time.
    """

    init: Callable[[Tensor], State]
    task: Callable[[State, int, float], Task]
    """`task(state, client, time)` is the task of a client that begins at that time."""
    arrive: Callable[[State, Arrivals], Iterable[int]]
    """Uses answers, and returns the clients that get a new task. Clients that are busy
    or have not answered can get one too. For example, a token goes to another client.
    """
    personal: Callable[[State], Float[Tensor, "n d"]] = lambda state: state.x
    welcome: Callable[[State, Oracle], Tensor] | None = None
    """Models for clients that did not take part in training, as in an `Algorithm`."""
    info: Callable[[State], Info] = lambda state: {}
    """What a round reports; the event loop counts what was sent."""
    kinds: tuple[TaskKind, ...] = (TaskKind(),)
    starts: tuple[int, ...] | None = None  # clients with a first task; None: all
    together: bool = False  # whether tasks that end at the same time arrive at once
    send: Callable[[State, int, float], Tensor] | None = None
    """`send(state, client, time)` is what the client sends when an edge of it rings."""
    meet: Callable[[State, Meeting], None] | None = None
    """Uses what two clients sent each other."""
    edges: Int[Tensor, "e 2"] | None = None  # the pairs of clients that may meet
    ringing: Callable[[State, Tempo], None] | None = None  # adapts a state to rates
    couples: bool = False  # whether two free clients begin tasks when their edge rings
    messages: str = "relayed"
    """How tasks and answers travel: `relayed` by a server, `direct` over the link to
    the peer, `instant` (without delay), or not at all (`none`)."""


def _no_rounds(*_: Any) -> NoReturn:
    raise InputError("the method has no rounds: it reacts to answers, in time.")


class Releases(NamedTuple):
    """The most that a client releases in one round, as a method declares it.

    For each verb, it is a number of rows, each as long as a model. Only rows that
    reveal something new about the client's data count. Rows that are computed only from
    earlier releases do not count. For `blended` and `compare`, the gradients that a
    client releases to its readers count as one row. The client's own model, at which
    others compute gradients, is one more row if it reveals something new.

    Example: `Releases(average=1)` is one model to the server. `Releases()` is nothing.
    A dry run without data checks the declaration
    (`coterie.privacy.mechanisms.dry_run`).
    """

    average: int = 0
    central: int = 0
    mix: int = 0
    blended: int = 0
    compare: int = 0
    losses: bool = False  # whether mean losses are sent, or choices from them
    unbounded: bool = False  # sends what clipping cannot bound: [privacy] refuses it


class Algorithm(NamedTuple):
    """A method: how to begin, what one round does, and which models clients use.

    `init(x, oracle)` makes the first state from the first models. `personal` may ask
    the clients for a last local step before use (fine-tuning). Its default is the field
    `x` of the state.

    `welcome(state, oracle)` gives models (M, D) to M newcomers: clients that did not
    take part in training. The oracle asks only the newcomers. For this, the algorithm
    is built for all N + M clients, the newcomers last. But `state` is the state of the
    N clients that trained. Without `welcome`, a newcomer gets the personal model that
    fits its training data best.

    `flow` is the same method without waiting. Without delays, rounds and flow give the
    same models. A method that works only in time has a flow, but neither `init` nor
    `step`.

    `home` marks columns of a model that the method keeps at their clients. It sends
    only the other columns, and [privacy] clips these and adds noise to them.

    `shared(state)` is the global model of a method that has one, the same row for all
    clients. A study can measure it on the test data of all clients.

    `info(state)` is what a round reports about each client. Only methods need it that
    report rows and compute rounds in place (`run_rounds`), where a step has only the
    rows of some clients.

    `away(before, after, active)` is the state after a round in place, with what changed
    for clients that took no part. Only methods with fields of type `Told` need it.

    `releases` declares what a client releases in a round. [privacy] refuses a method
    that releases more. Without a declaration, [privacy] uses the findings of a dry run.
    """

    init: Callable[[Tensor, Oracle], State] = _no_rounds
    step: Callable[[State, Oracle, torch.Generator], tuple[State, Info]] = _no_rounds
    personal: Callable[[State, Oracle], Tensor] = lambda state, oracle: state.x
    welcome: Callable[[State, Oracle], Tensor] | None = None
    flow: Flow | None = None
    home: Bool[Tensor, " d"] | None = None
    releases: Releases | None = None
    shared: Callable[[State], Float[Tensor, "n d"]] | None = None
    info: Callable[[State], Info] = lambda state: {}
    away: Callable[[State, State, Bool[Tensor, " n"]], State] | None = None

    @property
    def faces(self) -> tuple[str, ...]:
        """`rounds`, `time`, or both."""
        rounds = () if self.step is _no_rounds else ("rounds",)
        return rounds if self.flow is None else (*rounds, "time")


@runtime_checkable
class ClientsInRounds(Protocol):
    """Clients that can be asked round by round, in a simulation or elsewhere."""

    def __len__(self) -> int:
        """The number of clients, here and elsewhere."""

    def at(
        self, t: int, active: Bool[Tensor, " n"] | None = None, *, purpose: str = "step"
    ) -> Oracle:
        """The oracle of round t, where the `active` clients take part (None: all)."""


@runtime_checkable
class ClientsInPlace(ClientsInRounds, Protocol):
    """Clients that can be asked without those who take no part in a round."""

    @property
    def holds_all(self) -> bool:
        """Whether all clients are here, and no column of a model is personal."""

    def those_at(self, t: int, active: Bool[Tensor, " n"]) -> Oracle:
        """The oracle of round t, where only the `active` clients are at hand."""


@runtime_checkable
class ClientsInTime(Protocol):
    """Clients that can each be asked at a different virtual time."""

    def __len__(self) -> int:
        """The number of clients."""

    @property
    def names(self) -> Int[Tensor, " n"]:
        """(N,) identities, which name random streams, on the CPU."""

    @property
    def batch_counts(self) -> Float64[Tensor, " n"]:
        """(N,) the number of samples in a minibatch of each client, on the CPU."""

    @property
    def sizes(self) -> Float64[Tensor, " n"]:
        """(N,) the number of training samples of each client, on the CPU."""

    def task_clients(
        self, who: Int[Tensor, " m"], rounds: Sequence[int], *, verb: str = "grads"
    ) -> TaskClients:
        """These clients, each with the samples of a verb's first call in its round."""

    def width(self, clients: int) -> int:
        """The number of clients to ask at once, at least `clients`."""
