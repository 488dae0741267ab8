"""The clients, in the form in which a client program gets them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .. import seeds
from ..checks import InputError
from ..data.federation import PartName
from ..types import (
    Evaluation,
    OwnLoss,
    Program,
    RunningStatistics,
    StepNumbers,
    Widths,
    refuse_no_classes,
    statistics_of,
)
from .epochs import EpochMinibatches
from .samples import Batch, ClientSamples, FreshMinibatches, Measurements


def results_of(
    program: Program, rows: Sequence[Tensor], found: Tensor | tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """The results of a client program, if it has a row for each of them."""
    results = found if isinstance(found, tuple) else (found,)
    if len(results) > len(rows):
        name = getattr(program, "__name__", "the program")
        raise InputError(
            f"the client program `{name}` must give at most as many results as it gets "
            f"rows, {len(rows)}, got {len(results)}: give `each` a tensor for each."
        )
    return results


@runtime_checkable
class Evaluator(Protocol):
    """What evaluates models: a kernel, or a kernel that clips gradients."""

    compiled: bool

    def grad(self, points: Tensor, batch: Batch) -> Tensor:
        """Gradients: row j is the gradient of row j's weighted loss."""

    def grad_of(
        self,
        loss: OwnLoss,
        points: Tensor,
        batch: Batch,
        rows: Sequence[Tensor],
        options: Mapping[str, Any],
    ) -> Tensor:
        """Gradients of a program's own loss, by row."""

    def evaluate(self, points: Tensor, batch: Batch) -> Evaluation:
        """What the models answer for their samples."""

    @property
    def couples(self) -> bool:
        """Whether a sample's gradient depends on other samples of its batch."""

    @property
    def widths(self) -> Widths:
        """The number of classes, and of features before the head."""

    def loss(self, points: Tensor, batch: Batch) -> Tensor:
        """Entry j is row j's weighted loss."""

    def losses(self, points: Tensor, batch: Batch) -> Tensor:
        """Row j has the losses of its samples."""

    def hvp(self, points: Tensor, vectors: Tensor, batch: Batch) -> Tensor:
        """Products: row j is the Hessian of row j's weighted loss times vectors[j]."""

    def chunk(self, samples: int, extra: int = 0) -> int:
        """The number of rows with this number of samples that fit into one chunk."""

    def twins(self, width: int, rows: int) -> Sequence[Evaluator]:
        """An evaluator for each thread, if programs should run row after row."""


def only(who: Tensor, values: Tensor) -> Tensor:
    """The values (N,), with zero for all but these clients, on the CPU."""
    here = who.cpu()
    return torch.zeros_like(values).index_copy(0, here, values[here])


class SimulatedClients:
    """The n clients that a client program gets; see `coterie.types.Clients`."""

    def __init__(
        self,
        samples: ClientSamples,
        kernel: Evaluator,
        gradients: Float[Tensor, " m"],
        who: Int[Tensor, " n"],
        draw: Callable[[], Batch],
        cost: Float[Tensor, " m"],
        roots: int | list[int],
        streams: Callable[[int], list[int]] | None = None,
        calls: Callable[[int], SimulatedClients] | None = None,
        begun: dict[tuple[int | str, ...], seeds.Stream] | None = None,
    ) -> None:
        """Prepares the clients at positions `who`.

        Args:
            samples: the data of all clients of this process.
            kernel: evaluates models on them.
            gradients: counts evaluated gradients of each client, in place.
            who: positions of the clients.
            draw: gives the samples for the next question to the clients.
            cost: the number that one gradient of a minibatch adds to the count of every
                client. This tensor is on the CPU, so that counting does not wait for
                the device.
            roots: first part of the names of random streams: a key, or one for each
                client.
            streams: names the random orders of a comparison, one for each client.
            calls: gives the same clients with the samples of a call, by its number.
            begun: the random streams that the program has begun to use.
        """
        self._samples, self._kernel, self._gradients = samples, kernel, gradients
        self.who, self._draw, self._cost, self._streams = who, draw, cost, streams
        self._calls, self._roots = calls, roots
        self._begun = {} if begun is None else begun

    def grad(
        self,
        points: Float[Tensor, "n d"],
        *rows: Tensor,
        loss: OwnLoss | None = None,
        **options: Any,
    ) -> Float[Tensor, "n d"]:
        """Gradients: row j is for client j's loss, or for `loss`, at points[j]."""
        if loss is None and (rows or options):
            raise InputError("`clients.grad` takes rows and options only with `loss`.")
        if loss is None:
            batch = self._draw_and_count(1)
            return self._of_moving(self._kernel.grad(points, batch), batch)
        for row in rows:
            if row.dim() < 1 or len(row) != len(points):
                raise InputError(
                    f"rows of a loss must have {len(points)} rows, one for each client "
                    f"as the models, got shape {tuple(row.shape)}."
                )
        batch = self._draw_and_count(1)
        found = self._kernel.grad_of(loss, points, batch, rows, options)
        return self._of_moving(found, batch)

    def evaluate(self, points: Float[Tensor, "n d"]) -> Evaluation:
        """What models `points` answer on the clients' samples, with losses."""
        return self._kernel.evaluate(points, self._draw())

    def class_counts(self) -> Float[Tensor, "n c"]:
        """The number of training samples of each class."""
        classes = self._kernel.widths.classes
        refuse_no_classes("class counts", classes)
        return self._samples.class_counts(self.who, classes)

    def stream(self, *names: int | str) -> seeds.Stream:
        """The random stream of this name; a program's next call goes on with it."""
        if names not in self._begun:
            who, dtype = self._samples.federation.clients[self.who], self._samples.dtype
            self._begun[names] = seeds.Stream(self._roots, who, dtype, *names)
        return self._begun[names]

    def loss(self, points: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        """Losses: entry j is the loss of client j's samples at points[j]."""
        return self._kernel.loss(points, self._draw())

    def losses(self, points: Float[Tensor, "n d"]) -> Float[Tensor, "n b"]:
        """Losses of single samples: row j is for client j, filled up with NaN."""
        return self._kernel.losses(points, self._draw())

    def hvp(
        self, points: Float[Tensor, "n d"], vectors: Float[Tensor, "n d"]
    ) -> Float[Tensor, "n d"]:
        """Products with Hessians: row j is client j's Hessian times vectors[j]."""
        batch = self._draw_and_count(2)
        return self._of_moving(self._kernel.hvp(points, vectors, batch), batch)

    def step_numbers(self, t: int, steps: int) -> Iterable[int | StepNumbers]:
        """The numbers of the next local steps; see `types.ClientsInEpochs`."""
        if isinstance(self._draw, EpochMinibatches):
            return self._draw.step_numbers(t, steps)
        return range(t, t + steps)

    def _draw_and_count(self, gradients: int) -> Batch:
        """The samples of the next question; counts this number of gradients."""
        if isinstance(self._draw, EpochMinibatches) and not self._draw.inside:
            raise InputError(
                "`epochs` needs a client program that takes its gradients in a loop "
                "over `coterie.optim.step_numbers`, and this method has another one."
            )
        batch = self._draw()
        self._gradients += gradients * self._cost_now
        return batch

    def _of_moving(self, found: Tensor, batch: Batch) -> Tensor:
        """The rows, with zeros for clients that wait for the end of an epoch.

        The zeros are needed: even without samples, a model's penalties have a gradient.
        """
        if not self._samples.epochs:
            return found
        return torch.where((batch.weight != 0).any(1, keepdim=True), found, 0)

    @property
    def _cost_now(self) -> Float[Tensor, " m"]:
        """What one gradient on the last samples adds to the count of every client."""
        drawn = self._draw
        return drawn.cost if isinstance(drawn, EpochMinibatches) else self._cost

    def half_grads(
        self, points: Float[Tensor, "n d"], samples: int | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients on both halves of a comparison's data, and sample numbers."""
        assert self._streams is not None  # asked of task clients only
        first, second, used = self._samples.halves(self.who, self._streams(0), samples)
        self._gradients[self.who.cpu()] += used.cpu().double()
        grad = self._kernel.grad
        return grad(points, first), grad(points, second), used

    def call(self, number: int) -> SimulatedClients:
        """The same clients, with the samples of this call; see `types.TaskClients`."""
        assert self._calls is not None  # asked of task clients only
        return self._calls(number)

    @property
    def statistics(self) -> RunningStatistics | None:
        """The running statistics in a row; None: there are none."""
        return statistics_of(self._kernel)

    @property
    def curvature(self) -> Float[Tensor, " n"]:
        """(n,) the curvature of each client's training loss at the starting model."""
        return self._measurements.curvature[self.who]

    @property
    def sizes(self) -> Float[Tensor, " n"]:
        """(n,) the number of training samples of each client."""
        return self._samples.federation.train.size[self.who].to(self._samples.dtype)

    @property
    def weights(self) -> Bool[Tensor, " d"]:
        """Which columns of a model are weights."""
        return self._measurements.weights

    @property
    def _measurements(self) -> Measurements:
        if self._samples.measurements is None:
            raise InputError(
                "`lr` and `weight_decay` must be numbers, unless `Simulation.measure` "
                "was called before training."
            )
        return self._samples.measurements

    def same_batch(self) -> SimulatedClients:
        """The same clients, which answer on one minibatch; it is drawn now."""
        batch = self._draw()
        return self._with(lambda: batch, self._cost_now)

    def whole(self) -> SimulatedClients:
        """The same clients, which answer on all of their training data."""
        batch = self._whole("train")
        sizes = self._samples.federation.train.size.to("cpu", torch.float64)
        return self._with(lambda: batch, only(self.who, sizes))

    def validation(self) -> SimulatedClients:
        """The same clients, which answer on all of their validation data."""
        batch = self._whole("validation")
        sizes = self._samples.federation.validation.size.to("cpu", torch.float64)
        return self._with(lambda: batch, only(self.who, sizes))

    def _whole(self, part: PartName) -> Batch:
        """All samples of a part, with new random keys in each call."""
        batch = self._samples.whole(self.who, part)
        if not self._samples.randomised:
            return batch
        return replace(batch, keys=self.stream("whole", part).bits(batch.width))

    def _with(self, draw: Callable[[], Batch], cost: Tensor) -> SimulatedClients:
        return SimulatedClients(
            self._samples,
            self._kernel,
            self._gradients,
            self.who,
            draw,
            cost,
            self._roots,
            begun=self._begun,
        )


def minibatches_of(
    samples: ClientSamples, who: Tensor, stream: Callable[[int], int | list[int]]
) -> FreshMinibatches | EpochMinibatches:
    """The source of these clients' minibatches: with replacement, or in epochs."""
    source = EpochMinibatches if samples.epochs else FreshMinibatches
    return source(samples, who, stream)


def task_clients(
    samples: ClientSamples,
    kernel: Evaluator,
    seed: int,
    who: Int[Tensor, " m"],
    rounds: Sequence[int],
    verb: str,
) -> SimulatedClients:
    """The clients, each with the samples of the verb's first call in its round."""
    cost, counted = only(who, samples.counts), torch.zeros_like(samples.counts)

    def of_call(call: int) -> SimulatedClients:
        def keys(number: int) -> list[int]:
            if verb != "each":  # a call is one question
                return [seeds.key(seed, "step", t, verb, call + number) for t in rounds]
            calls = [seeds.key(seed, "step", t, verb, call) for t in rounds]
            return [seeds.key(one, number) for one in calls]

        draw = minibatches_of(samples, who, keys)
        roots = [seeds.key(seed, "step", t, verb, call) for t in rounds]
        given = counted, who, draw, cost, roots, keys, of_call
        return SimulatedClients(samples, kernel, *given)

    return of_call(0)
