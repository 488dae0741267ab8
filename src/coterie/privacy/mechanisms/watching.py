"""Watches a method in training: rows without noise must not depend on data.

A dry run plans what a method will send before training (`foreseen`). In training, a
method may still do something else, for example in a later round, or when a released
value is large. So we also watch the method in every round of training. Answers of
clients are marked, and marks follow values (`origins`). The run ends before anything
marked leaves without noise. Clients themselves compute as usual, and are not watched.

Marks are a part of the state, because they must survive a stop: `marks_of` and
`with_marks`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from jaxtyping import Bool, Float
from torch import Tensor

from ...checks import InputError
from ...clients.traffic import Wrapping
from ...optim.steps import StepNumber, step_numbers
from ...seeds import Stream
from ...types import (
    CentralProgram,
    Comparison,
    Evaluation,
    Message,
    Option,
    Oracle,
    OwnLoss,
    Program,
    tensor_of,
)
from .dry_run.foreseen import Call
from .dry_run.origins import (
    MarkTracker,
    has_read,
    is_of_data,
    mark_answer,
    mark_evaluation,
    of_data,
    refuse_sent_on,
)
from .per_sample.clients import IndexedClients

Found = TypeVar("Found")


class Marks(NamedTuple):
    """What depends on data in a call of a verb."""

    rows: tuple[bool, ...]
    others: bool  # shares, weights, groups, pairs

    def refuse(self, call: Call, t: int) -> None:
        """Refuses rows and weights that must not leave without noise."""
        rows = zip(self.rows, call.fresh, strict=False)
        if any(made and not fresh for made, fresh in rows):
            raise InputError(
                f"private training stops in round {t}: the method sends rows by "
                f"`{call.verb}` that depend on clients' data, but by the plan they do "
                "not, so they would be sent without noise."
            )
        if self.others and not call.secret:
            raise InputError(
                f"private training stops in round {t}: the weights of `{call.verb}`, "
                "which others see, depend on clients' data."
            )


@runtime_checkable
class Witness(Protocol):
    """An auditor who sees inside clients."""

    def see_rows(self, call: Call, rows: Sequence[Tensor], refs: Tensor) -> None:
        """Sees the rows of a verb, and their references."""


class Watch:
    """What a method has shown in a round so far."""

    def __init__(
        self,
        following: MarkTracker,
        t: int,
        *,
        tells: bool,
        witness: Witness | None = None,
    ) -> None:
        """Starts with nothing.

        Args:
            following: marks values, and knows whether earlier rounds read numbers.
            t: the round.
            tells: whether clients release losses as soon as a program asks for them.
            witness: in an audit, a function that gets rows before their release.
        """
        self._witness = witness
        self.following, self.tells, self._t = following, tells, t
        self.marks: Marks | None = None  # of the current call
        self._refusal: InputError | None = None

    def allow(self, marks: Marks, verb: Callable[[], Found]) -> Found:
        """The answer of a verb; refuses if the method has read a marked number."""
        self.end()
        self.marks = marks
        try:
            if self.following.read:
                raise InputError(f"in round {self._t} the method {has_read()}")
            with self.following.off():
                return verb()
        except InputError as refusal:
            self._refusal = refusal
            raise

    def see(self, call: Call, rows: Sequence[Message], refs: Tensor) -> None:
        """Sees a call before anything leaves, and refuses a call against the plan."""
        if self.marks is not None:
            self.marks.refuse(call, self._t)
        if self._witness is not None:
            self._witness.see_rows(call, [tensor_of(row) for row in rows], refs)

    def end(self) -> None:
        """Raises a refusal again if the method has caught it."""
        if self._refusal is not None:
            raise self._refusal


def _refuse_other_shapes(
    program: Program, rows: Sequence[Tensor], results: Sequence[Tensor]
) -> None:
    """Refuses results that differ in shape or type from the rows that they replace.

    A program may read data, so a shape could reveal something about them.
    """
    for row, result in zip(rows, results, strict=False):
        if (row.shape, row.dtype) != (result.shape, result.dtype):
            name = getattr(program, "__name__", "a program")
            raise InputError(
                f"private training stops: results of `{name}` must have the shapes and "
                f"types of its rows, {tuple(row.shape)} {row.dtype}, got "
                f"{tuple(result.shape)} {result.dtype}."
            )


class WatchedOracle(Wrapping[Any]):
    """The oracle of a method that we watch; see `coterie.types.Oracle`."""

    def __init__(self, oracle: Oracle, watch: Watch) -> None:
        """Wraps the oracle of private clients."""
        super().__init__(oracle)
        self._watch = watch

    def grads(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Row i is g_i(x_i), which is data."""
        with self._watch.following.off():
            found = self._oracle.grads(x)
        return of_data(found)

    def each(
        self,
        program: Program,
        *rows: Tensor,
        who: Bool[Tensor, " n"] | None = None,
        at_home: bool = False,
        **options: Option,
    ) -> tuple[Tensor, ...]:
        """Runs a client program; results are marked if it looks at data."""
        asked_by_data = who is not None and is_of_data(who)
        tells = self._watch.tells and not at_home
        if tells and asked_by_data:
            raise InputError(
                "private training stops: `who` must not depend on clients' data in a "
                "program whose losses are released."
            )
        following, given = self._watch.following, [is_of_data(row) for row in rows]
        made: list[bool] | None = None

        @functools.wraps(program)
        def watched_program(
            clients: IndexedClients, *some: Tensor, **options: Option
        ) -> Any:
            nonlocal made
            for row, marked in zip(some, given, strict=True):
                if marked:
                    of_data(row)
            before, following.read = following.read, False
            with following.on():
                try:
                    seen = MarkedClients(clients, self._watch, tells=tells)
                    found = program(seen, *some, **options)
                except Exception:
                    following.read = True  # a method that catches it knows something
                    raise
            results = found if isinstance(found, tuple) else (found,)
            _refuse_other_shapes(program, some, results)
            now = [following.read or is_of_data(one) for one in results]
            made = [a or b for a, b in zip(made or now, now, strict=True)]
            following.read = before
            return found

        with following.off():
            asked = {"who": who, "at_home": at_home, **options}
            found = tuple(self._oracle.each(watched_program, *rows, **asked))
        for j, one in enumerate(found):
            kept = j < len(given) and given[j]  # for clients that were not asked
            if made is None or made[j] or kept or asked_by_data:
                of_data(one)
        return found

    def average(
        self,
        shares: Tensor,
        rows: Message,
        groups: Tensor | None = None,
        *,
        count: int | None = None,
    ) -> Tensor:
        """Weighted means of released rows."""
        marks = _marks((rows,), (shares, groups))
        return self._watch.allow(
            marks, lambda: self._oracle.average(shares, rows, groups, count=count)
        )

    def mix(
        self, weights: Tensor, rows: Message, *, exchanges: int = 1, gamma: float = 1.0
    ) -> Tensor:
        """Mixtures of released rows."""
        refuse_sent_on(weights, exchanges, gamma)
        marks, options = _marks((rows,), (weights,)), {"exchanges": exchanges}
        found = self._watch.allow(
            marks, lambda: self._oracle.mix(weights, rows, gamma=gamma, **options)
        )
        return self._mark_mixture(found, marks)

    def central(
        self, program: CentralProgram, server: Any, *rows: Message, **options: Option
    ) -> tuple[Any, ...]:
        """The answers of a coordinator; refuses a program that uses unreleased data."""
        marks = _marks(rows, [server, *options.values()])

        @functools.wraps(program)
        def watched_program(*given: Any, **options: Option) -> Any:
            with self._watch.following.on():
                found = program(*given, **options)
            if self._watch.following.read or any(map(is_of_data, _leaves(found))):
                raise InputError(
                    "private training stops: the program of `central` uses data of "
                    "clients that they did not send to it."
                )
            return found

        found = self._watch.allow(
            marks,
            lambda: self._oracle.central(watched_program, server, *rows, **options),
        )
        return tuple(found)

    def blended(self, x: Tensor, weights: Tensor) -> Tensor:
        """Blends of released gradients."""
        marks = _marks((x,), (weights,))
        # Marks are for whole rows, so they cannot tell columns at home apart.
        return self._watch.allow(marks, lambda: self._oracle.blended(x, weights))

    def compare(
        self, x: Tensor, *, samples: int | None = None, pairs: Tensor | None = None
    ) -> Comparison:
        """Comparisons of released gradients."""
        marks = _marks((x,), (pairs,))
        return self._watch.allow(
            marks, lambda: self._oracle.compare(x, samples=samples, pairs=pairs)
        )

    def _mark_mixture(self, found: Found, marks: Marks) -> Found:
        absent = not bool(self.active.all())
        marked: Found = mark_answer(
            found, marks.rows, weighed=marks.others, absent=absent
        )
        return marked


class MarkedClients:
    """Clients whose answers are marked; see `coterie.types.Clients`."""

    def __init__(self, clients: IndexedClients, watch: Watch, *, tells: bool) -> None:
        """Wraps clients; `tells` says whether their losses are released."""
        self._clients, self._watch, self.who = clients, watch, clients.who
        self._tells = tells

    def grad(
        self,
        points: Float[Tensor, "n d"],
        *rows: Tensor,
        loss: OwnLoss | None = None,
        **options: Any,
    ) -> Float[Tensor, "n d"]:
        """Gradients, which are data."""
        ask = functools.partial(self._clients.grad, loss=loss, **options)
        return of_data(self._ask_unwatched(ask, points, *rows))

    def evaluate(self, points: Float[Tensor, "n d"]) -> Evaluation:
        """Outputs, features and targets of samples, which are data."""
        found = self._ask_unwatched(self._clients.evaluate, points)
        return mark_evaluation(found)

    def class_counts(self) -> Float[Tensor, "n c"]:
        """Counts of classes, which are data."""
        return of_data(self._ask_unwatched(self._clients.class_counts))

    def stream(self, *names: int | str) -> Stream:
        """A random stream, which is not made of data."""
        return self._clients.stream(*names)

    def hvp(self, points: Tensor, vectors: Tensor) -> Float[Tensor, "n d"]:
        """Products, which are data."""
        return of_data(self._ask_unwatched(self._clients.hvp, points, vectors))

    def loss(self, points: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        """Losses, which are data, or released."""
        return self._mark_losses(self._ask_unwatched(self._clients.loss, points))

    def losses(self, points: Float[Tensor, "n d"]) -> Float[Tensor, "n b"]:
        """Losses of samples, which are data, or numbers with a released mean."""
        return self._mark_losses(self._ask_unwatched(self._clients.losses, points))

    def step_numbers(self, t: int, steps: int) -> Iterable[StepNumber]:
        """The numbers of the next local steps, which depend on sizes alone."""
        return step_numbers(self._clients, t, steps)

    def same_batch(self) -> MarkedClients:
        """The same clients with one minibatch for every question to come."""
        return self._with(self._clients.same_batch)

    def whole(self) -> MarkedClients:
        """The same clients with all of their training data for every question."""
        return self._with(self._clients.whole)

    def validation(self) -> MarkedClients:
        """The same clients with all of their validation data, for choosing."""
        return self._with(self._clients.validation)

    def _ask_unwatched(self, question: Callable[..., Found], *rows: Tensor) -> Found:
        with self._watch.following.off():
            return question(*rows)

    def _with(self, others: Callable[[], IndexedClients]) -> MarkedClients:
        return MarkedClients(
            self._ask_unwatched(others), self._watch, tells=self._tells
        )

    def _mark_losses(self, losses: Tensor) -> Tensor:
        return losses if self._tells else of_data(losses)


def _marks(rows: Any, others: Any) -> Marks:
    made = tuple(any(map(is_of_data, _leaves(row))) for row in rows)
    return Marks(made, any(is_of_data(one) for one in _leaves(others)))


def _leaves(value: Any) -> Iterator[Tensor]:
    """All tensors in a state, or in the arguments of a verb."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _leaves(part)
    elif isinstance(value, dict):
        yield from _leaves(list(value.values()))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _leaves(getattr(value, field.name))


def marks_of(state: Any, following: MarkTracker) -> list[bool]:
    """Whether the method has read numbers, and which tensors are marked."""
    return [following.read, *map(is_of_data, _leaves(state))]


def with_marks(state: Any, marks: list[bool]) -> bool:
    """Marks the tensors of a state again; returns whether numbers were read."""
    read, *marked = marks
    tensors = list(_leaves(state))
    unknown = len(tensors) != len(marked)  # then every tensor counts as marked
    for j, one in enumerate(tensors):
        if unknown or marked[j]:
            of_data(one)
    return read
