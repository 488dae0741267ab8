"""A double of an oracle, without data, which shows the messages of a method.

Gradients and losses are random numbers that depend on a `world`, and models are short.
A method asks clients by calls, the verbs. A verb that sends rows may repeat its answers
of a run in another world. Then the two worlds differ only in data that clients have not
released. Answers of clients are marked (`origins`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .... import seeds
from ....clients.groups import of_present
from ....clients.programs import results_of
from ....clients.traffic import Sending, Wrap
from ....clients.wrappers import PersonalOracle
from ....types import (
    Algorithm,
    CentralProgram,
    Comparison,
    Evaluation,
    Message,
    Option,
    Oracle,
    OwnLoss,
    Program,
    State,
    Transfer,
    Widths,
    like,
    tensor_of,
)
from .origins import (
    MarkTracker,
    is_of_data,
    mark_answer,
    mark_evaluation,
    of_data,
    refuse_sent_on,
    unmarked_copy,
)

Answer = TypeVar("Answer")

_COLUMNS = 61
"""The length of a model here: more than the few numbers that methods also send."""

_HOME = 7
"""The number of columns that stay at home if there are personal parameters."""

WIDTHS = Widths(classes=3, features=4)
"""What a method reads from the oracle of the double."""

_SCALE = 100.0
"""Scale of the first models, which is large compared with a step."""


class SeenCall(NamedTuple):
    """One call of a verb between clients."""

    verb: str
    rows: tuple[Message, ...]  # what clients give
    others: tuple[Tensor, ...]  # shares or weights, and groups or pairs
    answer: Any  # a tensor, a tuple of them, or a comparison
    program: str = ""  # of a coordinator
    made: tuple[bool, ...] = ()  # which rows are made of data, if marks are tracked
    weighed: bool = False  # whether `others` are made of data
    read: bool = False  # whether numbers made of data were read before
    server: Any = None  # what a coordinator remembers


class DoubleClients:
    """Clients that answer with random numbers; see `coterie.types.Clients`."""

    def __init__(
        self,
        rng: torch.Generator,
        who: Tensor,
        told: torch.Generator | None = None,
        root: int = 0,
    ) -> None:
        """Makes clients.

        Args:
            rng: draws their answers.
            who: positions of the clients.
            told: draws their losses; None: `rng` does.
            root: the first name of every stream, which is the same in all worlds.
        """
        self._rng, self.who, self._root = rng, who, root
        self._record_call = rng if told is None else told
        self._begun: dict[tuple[int | str, ...], seeds.Stream] = {}

    def grad(
        self,
        points: Tensor,
        *rows: Tensor,
        loss: OwnLoss | None = None,
        **options: Any,
    ) -> Tensor:
        """Random gradients."""
        shape, dtype = points.shape, points.dtype
        return of_data(torch.randn(shape, generator=self._rng, dtype=dtype))

    def evaluate(self, points: Tensor) -> Evaluation:
        """Random answers for thirty random samples."""
        (classes, features), shape = WIDTHS, (len(points), 30)

        def rand(*more: int) -> Tensor:
            size = *shape, *more
            return torch.rand(size, generator=self._rng, dtype=points.dtype)

        targets, weight = (classes * rand()).long(), points.new_full(shape, 1 / 30)
        given = rand(classes), targets, rand(), weight, classes, rand(features)
        return mark_evaluation(Evaluation(points, *given))

    def class_counts(self) -> Tensor:
        """Random counts."""
        size = len(self.who), WIDTHS.classes
        found = torch.randint(1, 30, size, generator=self._rng)
        return of_data(found.double())

    def stream(self, *names: int | str) -> seeds.Stream:
        """A stream that does not depend on the world."""
        if names not in self._begun:
            given = self._root, self.who, torch.float64
            self._begun[names] = seeds.Stream(*given, *names)
        return self._begun[names]

    def hvp(self, points: Tensor, vectors: Tensor) -> Tensor:
        """Random products."""
        return self.grad(points)

    def loss(self, points: Tensor) -> Tensor:
        """Random losses, so that every client chooses at random."""
        return self._rand(points, len(points))

    def losses(self, points: Tensor) -> Tensor:
        """Random losses of thirty samples.

        Losses differ most between questions, less between clients, and least between
        samples. So if a method looks for models that are surely better for many
        clients, it sometimes finds them.
        """
        rand, n = self._rand, len(points)
        each = 0.1 * rand(points, n, 1) + 0.1 * rand(points, n, 30)
        return 0.8 * rand(points, 1, 1) + each

    def _rand(self, like: Tensor, *shape: int) -> Tensor:
        found = torch.rand(*shape, generator=self._record_call, dtype=like.dtype)
        return of_data(found) if self._record_call is self._rng else found

    def same_batch(self) -> DoubleClients:
        """The same."""
        return self

    whole = validation = same_batch

    def call(self, number: int) -> DoubleClients:
        """The same."""
        return self


class Double:
    """An oracle without data; see `coterie.types.Oracle`."""

    def __init__(
        self,
        present: Bool[Tensor, " n"],
        names: tuple[int | str, ...],
        answers: Sequence[SeenCall] | None = None,
        told: tuple[int | str, ...] | None = None,
        following: MarkTracker | None = None,
    ) -> None:
        """Starts a round.

        Args:
            present: which clients take part.
            names: names the stream of random numbers, with the world.
            answers: the answers of verbs, call by call; None: verbs compute them.
            told: names the stream of released losses; None: the same stream.
            following: tracks marks; None: marks are not tracked.
        """
        self.active = self.present = present
        self.home: Tensor | None = None
        self.widths = WIDTHS
        self.mine = slice(0, len(present))
        self.gradients = torch.zeros(len(present), dtype=torch.float64)
        self.sent: list[Transfer] = []
        self.seen: list[SeenCall] = []
        self._answers, self._names, self._told_names = answers, names, told
        self._following, self._asked = following, 0
        self._rng = seeds.generator(*names)
        self._losses = None if told is None else seeds.generator(*told)

    def wrap_with(self, wrap: Wrap) -> Sending:
        """The oracle that the wrap makes of this one."""
        return wrap(self)

    def without_clients(self, absent: Bool[Tensor, " n"]) -> Double:
        """The same round without these clients."""
        present = self.present & ~absent
        given = self._names, self._answers, self._told_names, self._following
        return Double(present, *given)

    def grads(self, x: Float[Tensor, "n d"]) -> Tensor:
        """Random gradients."""
        return self._clients(self.active, at_home=False).grad(x) * self.active[:, None]

    def each(
        self,
        program: Program,
        *rows: Tensor,
        who: Bool[Tensor, " n"] | None = None,
        at_home: bool = False,
        **options: Option,
    ) -> tuple[Tensor, ...]:
        """The results of the program on random numbers."""
        active = self.active if who is None else self.active & who
        clients = self._clients(active, at_home=at_home)
        asked = clients.who
        given = [row[asked] for row in rows]
        found = self._run_program(program, clients, given, options)
        return tuple(
            row.index_copy(0, asked, result)
            for row, result in zip(rows, found, strict=False)
        )

    def average(
        self,
        shares: Tensor,
        rows: Message,
        groups: Tensor | None = None,
        *,
        count: int | None = None,
    ) -> Tensor:
        """Weighted means of all clients, whatever their groups."""
        values = tensor_of(rows)
        part = shares.to(values) * self.active
        total = part.sum(-1, keepdim=True)
        mean = (part / torch.where(total > 0, total, 1)) @ values.flatten(1)
        found = mean.expand(len(values), *mean.shape)
        others = (shares,) if groups is None else (shares, groups)
        return self._record_call("average", (rows,), others, found)

    def mix(
        self, weights: Tensor, rows: Message, *, exchanges: int = 1, gamma: float = 1.0
    ) -> Tensor:
        """Mixtures after one exchange; more would depend on data in the same way."""
        refuse_sent_on(weights, exchanges, gamma)
        values = tensor_of(rows)
        used = weights.to(values)
        if not bool(self.present.all()):
            used = of_present(used, self.present)
        return self._record_call("mix", (rows,), (weights,), used @ values)

    def central(
        self, program: CentralProgram, server: Any, *rows: Message, **options: Option
    ) -> tuple[Any, ...]:
        """The answers of the program on the rows of present clients."""
        who = self.present.nonzero()[:, 0]
        given = [unmarked_copy(tensor_of(row))[who] for row in rows]  # of releases
        server, *found = program(server, who, *given, **options)
        number = len(self.seen)
        if self._answers is not None and number < len(self._answers):
            server = self._answers[number].server
        told = self._record_call("central", rows, (), tuple(found), program.__name__)
        self.seen[-1] = self.seen[-1]._replace(server=server)
        return server, *told

    def blended(
        self,
        x: Tensor,
        weights: Tensor,
        *,
        home: Tensor | None = None,
        release: object = None,
    ) -> Tensor:
        """Random gradients."""
        shared = x if home is None else x[:, ~home]
        # Columns at home have a gradient that nobody else knows.
        found = self.grads(x)
        shared_g = self._record_call(
            "blended", (shared,), (weights,), found if home is None else found[:, ~home]
        )
        if home is None:
            return shared_g
        found[:, ~home] = shared_g
        return found

    def compare(
        self,
        x: Tensor,
        *,
        samples: int | None = None,
        pairs: Tensor | None = None,
        home: Tensor | None = None,
        release: object = None,
    ) -> Comparison:
        """Equal clients: nobody sends more than if everybody helps everybody."""
        n, one = len(self.present), x.new_ones(len(self.present))
        asks = torch.ones(n, n, dtype=torch.bool) if pairs is None else pairs
        known = asks & self.present[:, None] & self.present | torch.diag(self.present)
        none = x.new_zeros(n, n)
        found = Comparison(none, one, none, one, none, one, 2 * one, known)
        shared = x if home is None else x[:, ~home]
        return self._record_call("compare", (shared,), (asks,), found)

    def _clients(self, active: Tensor, *, at_home: bool) -> DoubleClients:
        told = None if at_home else self._losses  # losses at home are not released
        self._asked += 1
        root = seeds.key(self._names[0], *self._names[2:], self._asked)  # of no world
        return DoubleClients(self._rng, active.nonzero()[:, 0], told, root)

    def _run_program(
        self,
        program: Program,
        clients: DoubleClients,
        given: Sequence[Tensor],
        options: Mapping[str, Option],
    ) -> tuple[Tensor, ...]:
        """The results of a client program, marked if it looks at data."""
        following, before = self._following, self._has_read
        if following is not None:
            following.read = False
        try:
            found = program(clients, *given, **options)
        except Exception:
            if following is not None:
                following.read = True  # a method that catches it knows something
            raise
        found = results_of(program, given, found)
        if following is not None:
            found = tuple(map(of_data, found)) if following.read else found
            following.read = before
        return found

    @property
    def _has_read(self) -> bool:
        return self._following is not None and self._following.read

    def _record_call(
        self,
        verb: str,
        rows: tuple[Message, ...],
        others: tuple[Tensor, ...],
        answer: Answer,
        program: str = "",
    ) -> Answer:
        """Records a call; returns its answer, or the one given in `answers`."""
        number = len(self.seen)
        if self._answers is not None and number < len(self._answers):
            answer = self._answers[number].answer
        made = tuple(is_of_data(tensor_of(row)) for row in rows)
        weighed = any(map(is_of_data, others))
        # Methods may write into what they get.
        copies = tuple(like(row, unmarked_copy(tensor_of(row))) for row in rows)
        given = verb, copies, others, _copy(answer), program
        self.seen.append(SeenCall(*given, made, weighed, self._has_read))
        answer = _copy(answer)
        if verb == "mix":
            absent = not bool(self.active.all())
            return mark_answer(answer, made, weighed=weighed, absent=absent)
        return answer


def _copy(rows: Any) -> Any:
    if isinstance(rows, Comparison):
        return rows
    return (
        tuple(map(unmarked_copy, rows))
        if isinstance(rows, tuple)
        else unmarked_copy(rows)
    )


class Stage(NamedTuple):
    """The setting in which a method runs without data."""

    clients: int
    personal: bool  # whether some columns never leave their clients
    columns: int  # of the double of a model
    kept: Bool[Tensor, " d"] | None = None  # columns that a method keeps at home itself

    @property
    def home(self) -> Tensor | None:
        """Which columns stay at home, whatever the method."""
        return torch.arange(self.columns) < _HOME if self.personal else None

    @property
    def start(self) -> Tensor:
        """The first models: the same for all clients, and known to everybody."""
        rng = seeds.generator("privacy", "double")
        row = torch.randn(self.columns, generator=rng, dtype=torch.float64)
        return (_SCALE * row).repeat(self.clients, 1)

    @property
    def shared_start(self) -> Tensor:
        """The columns of the first models that may leave."""
        home = self.kept if self.home is None else self.home
        return self.start if home is None else self.start[:, ~home]

    def oracle_for(self, double: Sending) -> Oracle:
        """The oracle that a method asks, made from a double."""
        return double if self.home is None else PersonalOracle(double, self.home)


def small_stage(clients: int, personal: bool) -> Stage:
    """A stage with few columns: always another number than there are clients."""
    return Stage(clients, personal, _COLUMNS + 2 * (clients == _COLUMNS))


class World:
    """A method on clients without data, round after round."""

    def __init__(self, algorithm: Algorithm, stage: Stage, seed: int, name: str):
        self._algorithm, self._stage = algorithm, stage
        self._seed, self._name = seed, name
        self._state: State = None

    def run_round(
        self,
        t: int,
        active: Tensor,
        scenario: int | None,
        answers: list[SeenCall] | None = None,
        following: MarkTracker | None = None,
    ) -> list[SeenCall]:
        """The calls in round t; round 0 is the beginning."""
        purpose = "step" if t else "init"
        told = None if scenario is None else ("privacy", "losses", scenario, t)
        names = "privacy", self._name, purpose, t
        double = Double(active, names, answers, told, following)
        oracle = self._stage.oracle_for(double)
        if t == 0:
            self._state = self._algorithm.init(self._stage.start, oracle)
        else:
            rng = seeds.generator(self._seed, "algorithm", t)
            self._state, _ = self._algorithm.step(self._state, oracle, rng)
        return double.seen

    def calls_before_use(
        self,
        active: Tensor,
        answers: list[SeenCall] | None = None,
        following: MarkTracker | None = None,
    ) -> list[SeenCall]:
        """The calls before models are used."""
        names = "privacy", self._name, "use"
        double = Double(active, names, answers, following=following)
        self._algorithm.personal(self._state, self._stage.oracle_for(double))
        return double.seen
