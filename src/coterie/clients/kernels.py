"""Losses, gradients and measures of many models at once.

All computations have one form. Row j of `points` (n, D) is a model. Each of its samples
has a weight. The loss of row j is

    sum_b weight[j, b] loss(model(points[j], features[index[j, b]]), targets[...]).

In a minibatch of B samples, the weights are 1/B. For all samples of a client, they are
1/size; rows with fewer samples are filled up with samples of weight 0. In a blend of
many clients' minibatches, the weights are alpha_ik / B, with the collaboration weights
alpha_ik. So sum_k alpha_ik g_k(x_i) is the gradient of one loss and costs one backward
pass.

The way to compute rows depends on the device, the model, the batch, the number of rows
and the number of threads. It does not depend on measured times, because results must
not depend on how busy a machine is:

- On CUDA, all rows run in one vectorised pass (`torch.func.vmap`), which is compiled.
- On the CPU, rows run in one pass, or one after the other in threads that have one core
  each. `ways.choice` predicts which way is faster. In one pass, plain chains of layers
  become batched products of matrices, without `vmap`.
- Whole client programs run in these threads, too. So a model stays in the cache of its
  core during all local steps.

Some layers are replaced by equivalent layers that can handle many models, see `layers`.
"""

from __future__ import annotations

import copy
import functools
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap

from ..checks import InputError
from ..models import Objective, layout, outcomes, value_of
from ..models.layers import with_own_layers
from ..types import (
    Evaluation,
    OwnLoss,
    RunningStatistics,
    Widths,
    without_statistics,
)
from .compiling import MixedPrecision, compile_for, repeatable
from .layers import (
    Recurrent,
    SeeingModule,
    TrainingLayers,
    chain,
    for_many_models,
    looks_up,
    of_rows,
    penalty_of,
    slopes_of,
    values_in_pass,
)
from .samples import Batch
from .ways import (
    RowModule,
    Work,
    can_take_channels_last,
    convolves,
    in_threads,
    runs_alone,
    work_of,
)

_BUDGET = {"cpu": 2**25, "cuda": 2**29}
"""The largest number of values in the intermediate results of one chunk of rows."""

_EVALUATED_AT_ONCE = 512
"""The largest number of samples of a row that are measured in one pass."""

_LONG_ROW = 64
"""With more samples per row than this, CPU convolutions by sample run row by row."""

_FORWARD = threading.Lock()
"""A lock for forward derivatives, because torch counts their levels per process."""


class Kernel:
    """Evaluates a module with n rows of parameters on samples of one table."""

    def __init__(
        self,
        module: nn.Module,
        objective: Objective,
        features: Tensor,
        targets: Tensor,
        *,
        dtype: torch.dtype | None = None,
        by_row: bool | None = None,
        compiled: bool = False,
        classes: int = 0,
        autocast: torch.dtype | None = None,
    ) -> None:
        """Prepares a kernel.

        Args:
            module: architecture; its own parameters are not used.
            objective: loss and measures.
            features: (M, ...) on the device where the work is done.
            targets: (M, ...) on the same device.
            dtype: the type of models (None: the type of real features, or of the
                module).
            by_row: whether to run rows one after the other (None: by the rules of this
                module).
            compiled: whether to compile gradients. This takes seconds at first; later
                calls are faster.
            classes: the number of classes; 0 if targets are not classes.
            autocast: a lower precision for products inside the module (None: none).
        """
        self.layout = layout(module)
        if dtype is None and features.is_floating_point():
            dtype = features.dtype
        own = copy.deepcopy(module).to(features.device, dtype)
        self._on_cpu = features.device.type == "cpu"
        self.module = for_many_models(copy.deepcopy(own), on_cpu=self._on_cpu)
        self._plain = with_own_layers(own)
        self._row_modules: list[RowModule] = []
        self.objective, self._features, self._targets = objective, features, targets
        # Compiling unrolled steps would take longer than running most studies.
        recurrent = any(isinstance(m, Recurrent) for m in self.module.modules())
        # Torch's compiler crashes on the 64-bit arithmetic of dropout masks.
        self._layers = TrainingLayers(self.module)
        self.compiled = compiled and not recurrent and not self._layers.is_random
        # On the CPU, compiled convolutions are slower.
        self.compiled &= not (self._on_cpu and convolves(module))
        self._by_row = by_row
        self._convolves = convolves(module)
        everything = self.module.named_parameters(remove_duplicate=False)
        self._tied = len(list(everything)) > len(self.layout.names)
        self._chain = None if self._tied else chain(self.module)
        self._classes = classes
        self._mixed = MixedPrecision(autocast, features.device)
        self._programs: dict[tuple[Any, ...], Callable[..., Any]] = {}
        self._twins: list[Kernel] = []

    @property
    def parameters(self) -> int:
        """D, the length of a row."""
        return sum(self.layout.sizes)

    @property
    def is_random(self) -> bool:
        """Whether a training pass needs keys of samples."""
        return self._layers.is_random

    @property
    def is_mixed(self) -> bool:
        """Whether products inside the module have a lower precision."""
        return self._mixed.lower is not None

    @property
    def couples(self) -> bool:
        """Whether a sample's gradient depends on other samples of its batch."""
        return self._layers.couples

    @cached_property
    def statistics(self) -> RunningStatistics | None:
        """The columns of running statistics, on the device of the data."""
        layout, momenta = self.layout, self._layers.momenta
        each = [momenta.get(name, math.nan) for name in layout.names]
        rates = torch.tensor(each, dtype=torch.float64)
        rates = rates.repeat_interleave(torch.tensor(layout.sizes))
        rates = rates.to(self._features.device)
        columns = (~rates.isnan()).nonzero()[:, 0]
        if not len(columns):
            return None
        return RunningStatistics(columns, rates[columns], self.parameters)

    @property
    def samples(self) -> int:
        """The number of samples in the table."""
        return len(self._targets)

    def grad(self, points: Float[Tensor, "n d"], batch: Batch) -> Float[Tensor, "n d"]:
        """Gradients: row j is the gradient of row j's weighted loss."""
        if not len(points):  # in a process none of whose clients take part
            return torch.empty_like(points)
        alone = self._goes_alone(batch)
        if not alone and self.chunk(batch.width) >= len(points):
            return self._run("grad", (slice(None), batch), points)
        out = torch.empty_like(points)
        if alone:
            self._grads_of_rows(points, batch, out)
        else:
            for rows, piece in self._chunks(batch):
                out[rows] = self._run("grad", (rows, piece), points)
        return out

    def hvp(
        self, points: Float[Tensor, "n d"], vectors: Float[Tensor, "n d"], batch: Batch
    ) -> Float[Tensor, "n d"]:
        """Row j is the Hessian of row j's weighted loss, times vectors[j].

        The result is 0 in columns of running statistics, because no loss of a minibatch
        depends on them.
        """
        if not len(points):
            return torch.empty_like(points)
        pieces = self._chunks(batch)
        found = [self._run("hvp", piece, points, vectors) for piece in pieces]
        return without_statistics(self, torch.cat(found))

    def loss(self, points: Float[Tensor, "n d"], batch: Batch) -> Float[Tensor, " n"]:
        """Entry j is row j's weighted loss."""
        return (self._by_sample(points, batch) * batch.weight).sum(1)

    def losses(self, points: Tensor, batch: Batch) -> Float[Tensor, "n b"]:
        """Row j has the loss of each sample of model j, NaN where weights are 0.

        A model that is not finite has an infinite loss.
        """
        found = self._by_sample(points, batch).nan_to_num(torch.inf, posinf=torch.inf)
        return torch.where(batch.weight > 0, found, torch.nan)

    @torch.no_grad()
    def _by_sample(self, points: Tensor, batch: Batch) -> Float[Tensor, "n b"]:
        if not batch.width:  # nobody has such samples
            return points.new_empty(len(points), 0)
        pieces = [self._run("losses", piece, points) for piece in self._chunks(batch)]
        return torch.cat([points.new_empty(0, batch.width), *pieces])

    def grad_of(
        self,
        loss: OwnLoss,
        points: Float[Tensor, "n d"],
        batch: Batch,
        rows: Sequence[Tensor],
        options: Mapping[str, Any],
    ) -> Float[Tensor, "n d"]:
        """Gradients of clients' own losses `loss(at, *rows[j], **options)`.

        Args:
            loss: the loss of one client, see `types.OwnLoss`.
            points: the models.
            batch: samples for the rows.
            rows: further tensors with a row for each model.
            options: the options of the loss.
        """
        out, size = torch.empty_like(points), self.chunk(batch.width)
        of_row = functools.partial(_of_one_client, loss, self._classes, dict(options))
        for some, piece in self._chunks(batch, 1 if self._goes_alone(batch) else size):
            with repeatable() if points.is_cuda else nullcontext():
                theirs = tuple(row[some] for row in rows)
                out[some] = self._own_slopes(of_row, points[some], piece, theirs)
        return out

    def _own_slopes(
        self, of_row: Callable[..., Tensor], points: Tensor, batch: Batch, rows: Any
    ) -> Tensor:
        """Maps points to the gradients of a loss that reads `_see` and `rows`."""
        if not self._looks_up:
            with torch.enable_grad():
                point = points.detach().requires_grad_()
                parts, penalty = self._see(point, batch, trains=True)
                total = (vmap(of_row)(parts, rows) + penalty).sum()
                if not total.requires_grad:  # it does not depend on the models
                    return torch.zeros_like(points)
                return torch.autograd.grad(total, point)[0]

        def of_point(point: Tensor, more: dict[str, Tensor], *rest: Any) -> Tensor:
            features, targets, weight, own = rest
            values = self.layout.unravel(point) | more
            outputs, penalty, *inner = self._mixed(self._seeing, values, features)
            parts = self._parts(point, outputs, inner, targets, weight)
            return of_row(parts, own) + penalty

        features, targets = self.data(batch.index.expand(batch.weight.shape))
        more = self._layer_inputs(batch)
        return vmap(grad(of_point))(points, more, features, targets, batch.weight, rows)

    def _layer_inputs(self, batch: Batch) -> dict[str, Tensor]:
        """Additional inputs of layers in a training pass, with a row for each model."""
        keys = () if batch.keys is None else (batch.keys.expand(batch.weight.shape),)
        return self._layers.inputs(batch.weight, keys)

    def _see(
        self, points: Tensor, batch: Batch, *, trains: bool
    ) -> tuple[dict[str, Tensor], Tensor]:
        """The parts of an `Evaluation`, and what layers add to a training loss."""
        features, targets = self.data(batch.index.expand(batch.weight.shape))
        through = self._seeing.chain
        if through is None:
            through = vmap(self._seeing)
        values = self.layout.unravel(points) | (
            self._layer_inputs(batch) if trains else {}
        )
        outputs, penalty, *inner = self._mixed(through, values, features)
        losses = of_rows(self.objective.loss, outputs, targets, 0)
        parts = self._parts(points, outputs, inner, targets, batch.weight, losses)
        return parts, penalty

    def _parts(
        self,
        points: Tensor,
        outputs: Tensor,
        inner: Sequence[Tensor],
        targets: Tensor,
        weight: Tensor,
        losses: Tensor | None = None,
    ) -> dict[str, Tensor]:
        if losses is None:
            losses = self.objective.loss(outputs, targets)
        # Nothing pulls running statistics in a loss of a method.
        x = points
        if self.statistics is not None:
            columns = self.statistics.columns
            own = points.detach().index_select(-1, columns)
            x = points.index_copy(-1, columns, own)
        found = {"x": x, "outputs": outputs, "targets": targets, "losses": losses}
        found["weight"] = weight.nan_to_num()  # clients without such samples
        return found | dict(zip(("before_head",), inner, strict=False))

    @torch.no_grad()
    def evaluate(self, points: Float[Tensor, "n d"], batch: Batch) -> Evaluation:
        """What the models answer for each sample; zeros for samples without weight."""
        outputs, *inner = (part.new_empty(0, *part.shape[1:]) for part in self._one)
        targets, losses = self._targets[:0], points.new_empty(0)
        empty = self._parts(points, outputs, inner, targets, batch.weight, losses)
        shape = len(points), batch.width
        found = {
            name: value.new_zeros(*shape, *value.shape[1:])
            for name, value in empty.items()
            if name not in ("x", "weight")
        }
        if batch.width:
            size = 1 if self._goes_alone(batch) else None
            for some, piece in self._chunks(batch, size):
                parts, _ = self._see(points[some], piece, trains=False)
                used = piece.weight > 0
                for name, out in found.items():
                    # A row may be filled up with samples of another client, at weight
                    # zero.
                    out[some][used] = parts[name][used].to(out)
        weight = batch.weight.nan_to_num()
        return Evaluation(points, weight=weight, classes=self._classes, **found)

    @cached_property
    def _seeing(self) -> SeeingModule:
        return SeeingModule(self.module, tied=self._tied)

    @cached_property
    def _one(self) -> list[Tensor]:
        """Outputs, and features before the head, of one sample."""
        with torch.no_grad():
            outputs, _, *inner = self._mixed(self._seeing, {}, self._features[:1])
            return [outputs, *inner]

    @property
    def widths(self) -> Widths:
        """The number of classes, and of features before the head."""
        return Widths(self._classes, *(part.shape[1] for part in self._one[1:]))

    @torch.no_grad()
    def measure(
        self, points: Float[Tensor, "n d"], batch: Batch
    ) -> dict[str, Float[Tensor, " n"]]:
        """The weighted loss and every measure of the objective, for each row.

        If a measure needs all samples of a client together, it gets the samples that
        have a weight.
        """
        size = self.evaluated_at_once(batch.width)
        found = [
            self._measure_chunk(points[r], b) for r, b in self._chunks(batch, size)
        ]
        return {name: torch.cat([some[name] for some in found]) for name in found[0]}

    @torch.no_grad()
    def outcomes(
        self, points: Float[Tensor, "n d"], batch: Batch, samples: int
    ) -> dict[str, Float[Tensor, " m"]]:
        """Loss and measures of every sample that has a weight, row after row.

        Args:
            points: one model for each row.
            batch: samples for the rows.
            samples: the number of samples, including clients in other processes.
        """
        found = outcomes(self.objective, self.outputs(points, batch), samples)
        return {name: values.to(points.device) for name, values in found.items()}

    def evaluated_at_once(self, samples: int) -> int:
        """The number of rows to measure in one chunk, if each has these samples."""
        return self.chunk(min(_EVALUATED_AT_ONCE, samples))

    def _measure_chunk(self, points: Tensor, batch: Batch) -> dict[str, Tensor]:
        """The measures of one chunk of rows."""
        wholes = self.objective.of_client
        sums, outputs = zip(*self._in_pieces(points, batch), strict=True)
        found = {name: sum(some[name] for some in sums) for name in sums[0]}
        rows = self._of_rows(torch.cat(outputs, 1), batch) if wholes else []
        for name, of in wholes.items():
            values = [value_of(name, of, *row) for row in rows]
            found[name] = batch.weight.new_tensor(values)
        return found

    @torch.no_grad()
    def outputs(
        self, points: Float[Tensor, "n d"], batch: Batch
    ) -> list[tuple[Tensor, Tensor]]:
        """Outputs and targets of each row's samples that have a weight, on the CPU."""
        found: list[tuple[Tensor, Tensor]] = []
        for rows, some in self._chunks(batch, self.evaluated_at_once(batch.width)):
            pieces = [outputs for _, outputs in self._in_pieces(points[rows], some)]
            found += self._of_rows(torch.cat(pieces, 1), some)
        return found

    def _in_pieces(
        self, points: Tensor, batch: Batch
    ) -> list[tuple[dict[str, Tensor], Tensor]]:
        """Sums of measures, and outputs, for each piece of the samples of the rows."""
        pieces = batch.pieces(_EVALUATED_AT_ONCE)
        return [self._run("measure", (slice(None), each), points) for each in pieces]

    def _of_rows(self, outputs: Tensor, batch: Batch) -> list[tuple[Tensor, Tensor]]:
        """Outputs and targets row by row, without padding."""
        used = batch.weight > 0  # weights of a client without samples are NaN
        targets = self._targets[batch.index.expand(used.shape)[used]].cpu()
        sizes = used.sum(1).tolist()
        split = outputs[used].cpu().split(sizes), targets.split(sizes)
        return list(zip(*split, strict=True))

    def chunk(self, samples: int, extra: int = 0) -> int:
        """The number of rows with this number of samples that fit into one chunk.

        Args:
            samples: the number of samples per row.
            extra: rows of D values that the caller keeps in addition, for each row.
        """
        row = samples * self._values_per_sample + (3 + extra) * self.parameters
        return max(1, _BUDGET[self._features.device.type] // row)

    @cached_property
    def _values_per_sample(self) -> int:
        """The number of values in a sample's features, activations and gradients."""
        return 2 * values_in_pass(self.module, self._features[:1])

    def _chunks(
        self, batch: Batch, size: int | None = None
    ) -> Iterator[tuple[slice, Batch]]:
        size = self.chunk(batch.width) if size is None else size
        for first in range(0, len(batch.weight), size):
            rows = slice(first, first + size)
            yield rows, batch[rows]

    def rows_alone(self, width: int, rows: int) -> bool:
        """Whether rows with this number of samples run one after the other."""
        if self._by_row is not None or not self._on_cpu or not (width and rows):
            return bool(self._by_row)
        if self.compiled and self._chain is not None:
            return False
        return runs_alone(self.work, width, rows, torch.get_num_threads())

    def _goes_alone(self, batch: Batch) -> bool:
        """The same for a batch."""
        if self._by_row is None and batch.index.dim() == 1 and self._chain is not None:
            return False  # for all rows, the first layer is a single product
        return self.rows_alone(batch.width, len(batch.weight))

    def convolves_long_rows(self, batch: Batch) -> bool:
        """Whether vectorised convolutions would be slow, for gradients by sample."""
        if self._by_row is not None:
            return self._by_row
        return self._on_cpu and self._convolves and batch.width > _LONG_ROW

    @cached_property
    def work(self) -> Work:
        """What a forward pass of one sample needs."""
        return work_of(
            self.module,
            self._features[:1],
            is_chain=self._chain is not None,
            values=self._values_per_sample,
            parameters=self.parameters,
        )

    def twins(self, width: int, rows: int) -> Sequence[Kernel]:
        """A kernel for each thread, if whole programs should run row after row.

        Args:
            width: the number of samples of a row.
            rows: the number of rows.
        """
        if self._by_row is not None or not self.rows_alone(width, rows):
            return ()
        if len(self._twins) != torch.get_num_threads():
            self._twins = [self._twin() for _ in range(torch.get_num_threads())]
        return self._twins

    def _twin(self) -> Kernel:
        """A kernel of the same model and samples, for one thread."""
        twin = copy.copy(self)
        twin.module = copy.deepcopy(self.module)
        twin._layers = TrainingLayers(twin.module)
        twin._chain = None if self._tied else chain(twin.module)
        twin._by_row, twin._channels_last = True, self._channels_last
        twin._programs, twin._row_modules, twin._twins = {}, [], []
        for name in ("_seeing", "_one"):  # these hold a module
            twin.__dict__.pop(name, None)
        return twin

    def _grads_of_rows(self, points: Tensor, batch: Batch, out: Tensor) -> None:
        """Writes gradients row after row, in threads unless a thread calls this."""
        whole = bool((batch.weight != 0).all())

        def write(j: int, module: RowModule) -> None:
            samples = self._samples_of_row(batch, j, whole=whole)
            module.write_grad(points[j], out[j], *samples)

        in_threads(write, len(points), self._modules_for(len(points)))

    def _modules_for(self, rows: int) -> list[RowModule]:
        """A module for each thread that computes some of the rows."""
        workers = 1 if self._by_row else min(torch.get_num_threads(), rows)
        given = self.layout, self.objective.loss, self._mixed
        while len(self._row_modules) < workers:
            module = copy.deepcopy(self._plain)
            one = RowModule(module, *given, channels_last=self._channels_last)
            self._row_modules.append(one)
        return self._row_modules[:workers]

    @cached_property
    def _channels_last(self) -> bool:
        return self._on_cpu and can_take_channels_last(self._plain, self._features)

    def data(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Features and targets of these samples."""
        return self._features[index], self._targets[index]

    def _samples_of_row(
        self, batch: Batch, j: int, *, whole: bool
    ) -> tuple[Tensor, ...]:
        """Features, targets, weights and keys of row j's samples that have a weight."""
        weight, keys = batch.weight[j], batch.keys
        index = batch.index if batch.index.dim() == 1 else batch.index[j]
        keys = keys if keys is None or keys.dim() == 1 else keys[j]
        if not whole:
            used = weight != 0
            index, weight = index[used], weight[used]
            keys = None if keys is None else keys[used]
        found = *self.data(index), weight
        return found if keys is None else (*found, keys)

    def _run(self, name: str, piece: tuple[slice, Batch], *rows: Tensor) -> Any:
        """Applies the vectorised program `name` to one chunk of rows."""
        chosen, batch = piece
        features, targets = self.data(batch.index)
        inputs = (*(row[chosen] for row in rows), features, targets, batch.weight)
        keyed = batch.keys is not None and name in ("grad", "hvp")
        if batch.keys is not None and keyed:
            inputs = *inputs, batch.keys
        compiled = self.compiled and name == "grad"
        if compiled:  # as compiled; rows of one shared model have no stride
            inputs = tuple(part.contiguous() for part in inputs)
        shared = batch.index.dim() == 1
        forward = name in ("losses", "measure")
        alone = forward and self._goes_alone(batch)
        key = (name, shared, keyed, alone, batch.weight.shape if compiled else None)
        with repeatable() if features.is_cuda else nullcontext():
            if key not in self._programs:
                program = self._program(name, shared, keyed, alone)
                self._programs[key] = (
                    compile_for(program, inputs) if compiled else program
                )
            result = self._programs[key](*inputs)
        # A captured graph writes all results into the same memory.
        return result.clone() if compiled and features.is_cuda else result

    def _program(
        self, name: str, shared: bool, keyed: bool, alone: bool
    ) -> Callable[..., Any]:
        data = None if shared else 0
        if name in ("grad", "hvp"):
            keys = (data,) if keyed else ()
            return (self._grads if name == "grad" else self._hvps)(data, keys)
        outputs = self._outputs_of_rows(data) if alone else self._outputs(data)
        return (self._losses if name == "losses" else self._measures)(data, outputs)

    # In the next methods, `data` is the dimension along which rows have their own
    # samples, or None if all rows share their samples. `keys` is the same dimension for
    # keys of samples, and empty if there are no keys.

    def _grads(
        self, data: int | None, keys: tuple[int | None, ...]
    ) -> Callable[..., Tensor]:
        slopes = vmap(grad(self._loss), (0, data, data, 0, *keys))
        total = self._totals(data, keys)

        def by_row(points: Tensor, *batch: Tensor) -> Tensor:
            return self.layout.ravel(slopes(self.layout.unravel(points), *batch))

        def at_once(points: Tensor, *batch: Tensor) -> Tensor:
            return slopes_of(points.detach(), total, *batch)

        # For small models, one backward pass for all rows takes half the time, and does
        # not import torch's compiler. But it does not know which index is padding.
        return by_row if self._looks_up else at_once

    def _hvps(
        self, data: int | None, keys: tuple[int | None, ...]
    ) -> Callable[..., Tensor]:
        def along(point: Any, vector: Any, *batch: Tensor) -> dict[str, Tensor]:
            slope = grad(self._loss)
            return jvp(lambda p: slope(p, *batch), (point,), (vector,))[1]

        rows = vmap(along, (0, 0, data, data, 0, *keys))
        total = self._totals(data, keys)

        def by_row(points: Tensor, vectors: Tensor, *batch: Tensor) -> Tensor:
            unravel = self.layout.unravel
            with _FORWARD:
                found = rows(unravel(points), unravel(vectors), *batch)
            return self.layout.ravel(found)

        def at_once(points: Tensor, vectors: Tensor, *batch: Tensor) -> Tensor:
            point = points.detach()
            slope = slopes_of(point, total, *batch, again=True)
            if not slope.requires_grad:  # no loss is curved
                return torch.zeros_like(points)
            twice = torch.autograd.grad(slope, point, vectors, materialize_grads=True)
            return twice[0]

        # For lookups, torch computes second derivatives only in this vectorised way.
        return by_row if self._looks_up else at_once

    @cached_property
    def _looks_up(self) -> bool:
        return looks_up(self.module, self._features[:1])

    def _totals(
        self, data: int | None, keys: tuple[int | None, ...]
    ) -> Callable[..., Tensor]:
        """A function of parameters and a batch: the sum of weighted losses."""
        if not (self.is_random or self.couples):
            losses = self._losses(data, self._outputs(data))
            return lambda points, *batch: (losses(points, *batch) * batch[-1]).sum()
        through, loss = self._chain, self.objective.loss
        pass_ = vmap(functools.partial(self._pass, self.module), (0, data, 0, *keys))

        def total(
            points: Tensor, features: Tensor, targets: Tensor, weight: Tensor, *own: Any
        ) -> Tensor:
            point = self.layout.unravel(points)
            if through is None:
                outputs, penalty = pass_(point, features, weight, *own)
            else:
                point = point | self._layers.inputs(weight, own)
                x = features if data == 0 else features[None]
                outputs, penalty = self._mixed(through, point, x), weight.new_zeros(1)
            losses = of_rows(loss, outputs, targets, data)
            return (losses * weight).sum() + penalty.sum()

        return total

    def _losses(
        self, data: int | None, outputs: Callable[..., Tensor]
    ) -> Callable[..., Tensor]:
        loss = self.objective.loss
        return lambda points, features, targets, *_: of_rows(
            loss, outputs(points, features), targets, data
        )

    def _measures(
        self, data: int | None, outputs: Callable[..., Tensor]
    ) -> Callable[..., tuple[dict[str, Tensor], Tensor]]:
        measures = self.objective.per_sample

        def program(
            points: Tensor, features: Tensor, targets: Tensor, weight: Tensor
        ) -> tuple[dict[str, Tensor], Tensor]:
            out = outputs(points, features)
            found = {n: of_rows(of, out, targets, data) for n, of in measures.items()}
            return {n: (values * weight).sum(1) for n, values in found.items()}, out

        return program

    def _outputs(self, data: int | None) -> Callable[..., Tensor]:
        """A function of models (n, D) and features: outputs (n, B, ...)."""
        through, unravel = self._chain, self.layout.unravel
        if through is not None:
            whole = functools.partial(self._mixed, through)
            return lambda x, h: whole(unravel(x), h if data == 0 else h[None])
        pass_ = vmap(functools.partial(self._call, self.module), in_dims=(0, data))
        return lambda x, h: pass_(unravel(x), h)

    def _outputs_of_rows(self, data: int | None) -> Callable[..., Tensor]:
        """The same function, which computes row after row."""

        def outputs(points: Tensor, features: Tensor) -> Tensor:
            def of_row(j: int, module: RowModule) -> Tensor:
                return module.outputs(points[j], features[j] if data == 0 else features)

            modules = self._modules_for(len(points))
            return torch.stack(in_threads(of_row, len(points), modules))

        return outputs

    def _loss(
        self,
        point: dict[str, Tensor],
        features: Tensor,
        targets: Tensor,
        weight: Tensor,
        *keys: Tensor,
        module: nn.Module | None = None,
    ) -> Tensor:
        """The weighted loss of one row in training."""
        module = self.module if module is None else module
        if not (self.is_random or self.couples):
            outputs = self._call(module, point, features)
            return (self.objective.loss(outputs, targets) * weight).sum()
        outputs, penalty = self._pass(module, point, features, weight, *keys)
        return (self.objective.loss(outputs, targets) * weight).sum() + penalty

    def _pass(
        self,
        module: nn.Module,
        point: dict[str, Tensor],
        x: Tensor,
        weight: Tensor,
        *keys: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Outputs of one row in training, and the terms that layers add to its loss."""
        outputs = self._call(module, point | self._layers.inputs(weight, keys), x)
        return outputs, weight.new_zeros(()) + penalty_of(module)

    def _call(self, module: nn.Module, point: dict[str, Tensor], x: Tensor) -> Tensor:
        given = module, point, (x,)
        return self._mixed(functional_call, *given, tie_weights=self._tied)


def _of_one_client(
    loss: OwnLoss,
    classes: int,
    options: dict[str, Any],
    parts: dict[str, Tensor],
    rows: Sequence[Tensor],
) -> Tensor:
    """The value of a program's own loss for one client, without the dimension n."""
    at = Evaluation(classes=classes, **parts)
    found = loss(at, *rows, **options)
    name = getattr(loss, "__name__", "the loss")
    if not isinstance(found, Tensor) or found.shape not in (at.weight.shape, ()):
        got = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else found
        raise InputError(
            f"the loss `{name}` must give one number for each of {len(at.weight)} "
            f"samples, or one number, got {got}."
        )
    if not found.is_floating_point():
        raise InputError(
            f"the loss `{name}` must be of floating-point numbers, got {found.dtype}: "
            "it has no gradient."
        )
    return (found * at.weight).sum() if found.dim() else found
