"""Gradients in which no sample counts for more than a bound.

In the gradient of row j, every sample's own gradient is clipped to the length C,

    sum_b weight[j, b] min(1, C / |g_jb|) g_jb    with g_jb the gradient of sample b.

So removing a sample moves the sum by at most C times the weight of the sample.

The g_jb of all clients and samples would be n B rows of D numbers, but we do not
compute them. In a linear layer with inputs h and slopes e of its outputs, the gradient
of a sample is the product e h', whose length is |e| |h|. Once we know the lengths, the
clipped sum is one product of matrices. So a step costs as much as an ordinary step
(forward, and backward to every layer's outputs), plus the cost of the lengths.

A convolution, or a linear layer on sequences, works at T places. The gradient of a
sample is then sum_t e_t h_t'. We find its length from T^2 products of h and of e, or
from the gradient itself, whichever is smaller.

All this needs samples that do not influence each other. Models that consist of known
layers (`layers.keeps_samples_apart`) guarantee it. Every other model, for example one
with its own `forward`, gets one sample at a time, for gradients and for losses. We
refuse a model if its answers for single samples differ from its answers for a batch.

References:
    Goodfellow, "Efficient per-example gradient computations", 2015, arXiv 1510.01799.
    Bu, Wang, Zha, Karypis, "Differentially private optimization on large model at small
    cost", ICML 2023, arXiv 2210.00038 (the cut sum without a second backward pass).
    Bu, Mao, Xu, "Scalable and efficient training of large convolutional neural networks
    with differential privacy", NeurIPS 2022, arXiv 2205.10683 (which length when).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import functional_call, grad, vmap

from ....checks import InputError, number
from ....clients.compiling import repeatable
from ....clients.kernels import Kernel
from ....clients.samples import Batch
from ....types import Evaluation, OwnLoss, Widths
from .layers import factors, keeps_samples_apart
from .tapes import StackedRecorder, Tape, VectorisedRecorder

_TRIED = 2, 3, 9
"""Batch sizes with which we test a module."""


class ClippedKernel:
    """A kernel that bounds the gradient and the loss of every sample.

    It refuses other questions, because nothing bounds their answers.
    """

    compiled = False

    def __init__(
        self, kernel: Kernel, clip: float, loss_clip: float = math.inf
    ) -> None:
        """Bounds the answers of a kernel.

        Args:
            kernel: evaluates models.
            clip: the largest length of a gradient; infinity: we do not clip.
            loss_clip: the most that a loss counts.
        """
        for name, bound in (("clip", clip), ("loss_clip", loss_clip)):
            if bound != math.inf:
                number(name, bound, above=0)
        self._kernel, self._clip, self._loss_clip = kernel, clip, loss_clip
        self.parameters = kernel.parameters
        if kernel.is_mixed:
            raise InputError(
                "`privacy.unit` sample cannot be used with mixed precision, which "
                "rounds the lengths by which gradients are clipped."
            )
        if kernel.couples or kernel.is_random:
            raise InputError(
                "the model cannot hide single samples: it has batch statistics, "
                "dropout or augmentation, and `privacy.unit` sample bounds gradients "
                "only without them."
            )
        _refuse_coupling(kernel)
        self._apart = keeps_samples_apart(kernel.module)
        tapes = Tape(kernel, VectorisedRecorder), Tape(kernel, StackedRecorder)
        suit = self._apart and tapes[0].suits and self._agree(*tapes)
        self._by_layer = tapes if suit else None

    def chunk(self, samples: int, extra: int = 0) -> int:
        """How many rows with this number of samples fit into one chunk."""
        own = 0 if self._by_layer else samples * 2
        return self._kernel.chunk(samples, extra + own)

    def twins(self, width: int, rows: int) -> Sequence[ClippedKernel]:
        """Nothing: programs run all rows at once."""
        return ()

    def grad(self, points: Float[Tensor, "n d"], batch: Batch) -> Float[Tensor, "n d"]:
        """Row j is the weighted sum of the clipped gradients of row j's samples."""
        if self._kernel.convolves_long_rows(batch):
            one = [slice(j, j + 1) for j in range(len(points))]
            rows = [self._clipped_sums(points[j], batch[j]) for j in one]
            return torch.cat([points[:0], *rows])
        size = self.chunk(batch.width)
        if size >= len(points):
            return self._clipped_sums(points, batch)
        out = torch.empty_like(points)
        for first in range(0, len(points), size):
            some = slice(first, first + size)
            out[some] = self._clipped_sums(points[some], batch[some])
        return out

    def _clipped_sums(self, points: Tensor, batch: Batch) -> Tensor:
        if not batch.weight.numel():  # no client or no sample takes part
            return torch.zeros_like(points)
        program, shared = self._program(points), batch.index.dim() == 1
        h, targets = self._kernel.data(batch.index)
        given = batch.weight, self._clip
        with repeatable() if points.is_cuda else nullcontext():
            g, squares = program(points, h, targets, *given, shared=shared)
            lost = ~squares.isfinite()
            if not lost.any():
                return g
            # A gradient that overflows has no bound, so its sample counts as nothing.
            # We put another sample in its place, so that nothing overflows here.
            index = batch.index.expand(batch.weight.shape)
            other = index.gather(1, lost.logical_not().int().argmax(1, keepdim=True))
            h, targets = self._kernel.data(torch.where(lost, other, index))
            given = batch.weight.masked_fill(lost, 0), self._clip
            g, _ = program(points, h, targets, *given, shared=False)
            return torch.where(lost.all(1, keepdim=True), 0.0, g)

    def _program(self, points: Tensor) -> Callable[..., tuple[Tensor, Tensor]]:
        """The program that clips samples, by device and model as in `kernels`."""
        if self._by_layer is None:
            return self._one_by_one
        vectorised, stacked = self._by_layer
        alone = stacked.recorder.is_linear or len(points) == 1
        return stacked if alone and not points.is_cuda else vectorised

    def _agree(self, *tapes: Tape) -> bool:
        """Whether tapes give the right gradients of two samples at a random model.

        They are wrong if the model also uses parameters of a layer in another way.
        """
        kernel, rng = self._kernel, torch.Generator().manual_seed(0)
        like = next(kernel.module.parameters())
        index = torch.tensor([[0, kernel.samples - 1]], device=like.device)
        weight = torch.ones(1, 2, dtype=like.dtype, device=like.device)
        point = torch.randn(1, kernel.parameters, generator=rng).to(like) / 10
        apart = Batch(index.T, weight.T)
        wanted = kernel.grad(point.expand(2, -1), apart).sum(0, keepdim=True)
        given = point, *kernel.data(index), weight, math.inf
        found = [tape(*given, shared=False)[0] for tape in tapes]
        return all(torch.allclose(g, wanted, rtol=1e-2, atol=1e-4) for g in found)

    def loss(self, points: Float[Tensor, "n d"], batch: Batch) -> Float[Tensor, " n"]:
        """Entry j is the weighted sum of the bounded losses of row j's samples."""
        losses = self.losses(points, batch)
        return (torch.where(batch.weight > 0, losses, 0) * batch.weight).sum(1)

    def losses(self, points: Tensor, batch: Batch) -> Float[Tensor, "n b"]:
        """Row j has the losses of its samples in [0, C], NaN if a sample has no weight.

        None of our losses is below 0.
        """
        if self._apart:
            losses = self._kernel.losses(points, batch)
        else:
            losses = self._losses_one_by_one(points, batch)
        if math.isinf(self._loss_clip):
            return losses
        return losses.clamp(0, self._loss_clip)

    @property
    def couples(self) -> bool:
        """Never: such models are refused."""
        return False

    @property
    def widths(self) -> Widths:
        """The number of classes, and of features before the head."""
        return self._kernel.widths

    def grad_of(
        self,
        loss: OwnLoss,
        points: Tensor,
        batch: Batch,
        rows: Sequence[Tensor],
        options: Mapping[str, Any],
    ) -> Tensor:
        """Never asked: its clients refuse this question."""
        raise NotImplementedError

    def evaluate(self, points: Tensor, batch: Batch) -> Evaluation:
        """Never asked: its clients refuse this question."""
        raise NotImplementedError

    def hvp(self, points: Tensor, vectors: Tensor, batch: Batch) -> Tensor:
        """Always refuses, because nothing bounds these products."""
        raise InputError(
            "the method asks for Hessian-vector products, which privacy of unit "
            "'sample' cannot make private: it bounds only gradients and losses."
        )

    def _one_by_one(
        self,
        points: Tensor,
        features: Tensor,
        targets: Tensor,
        weight: Tensor,
        clip: float,
        *,
        shared: bool,
    ) -> tuple[Tensor, Tensor]:
        """The results of a `Tape`, computed from the gradient of every sample."""
        kernel, slopes = self._kernel, _of_samples(grad(self._of_one), shared=shared)
        found = slopes(kernel.layout.unravel(points), features, targets)
        each = [found[name].flatten(2) for name in kernel.layout.names]
        squares = torch.stack([part.square().sum(2) for part in each]).sum(0)
        cut = (weight * factors(squares, clip))[:, None]  # (n, 1, b)
        return torch.cat([(cut @ part)[:, 0] for part in each], 1), squares

    @torch.no_grad()
    def _losses_one_by_one(self, points: Tensor, batch: Batch) -> Float[Tensor, "n b"]:
        """The results of `Kernel.losses`, computed one sample at a time."""
        if not batch.width:  # nobody has such samples
            return points.new_empty(len(points), 0)
        losses = _of_samples(self._of_one, shared=batch.index.dim() == 1)
        found, size = [points.new_empty(0, batch.width)], self.chunk(batch.width)
        for first in range(0, len(points), size):
            some = slice(first, first + size)
            point = self._kernel.layout.unravel(points[some])
            found.append(losses(point, *self._kernel.data(batch[some].index)))
        every = torch.cat(found).nan_to_num(torch.inf, posinf=torch.inf)
        return torch.where(batch.weight > 0, every, torch.nan)

    def _of_one(self, point: dict[str, Tensor], h: Tensor, target: Tensor) -> Tensor:
        """The loss of one sample, as a batch of size 1."""
        outputs = functional_call(self._kernel.module, point, (h[None],))
        return self._kernel.objective.loss(outputs, target[None])[0]


def _of_samples(one: Callable[..., Any], *, shared: bool) -> Callable[..., Any]:
    """The function for a single sample, mapped over models and their samples."""
    data = None if shared else 0
    return vmap(vmap(one, in_dims=(None, 0, 0)), in_dims=(0, data, data))


@torch.no_grad()
def _refuse_coupling(kernel: Kernel) -> None:
    """Refuses a module that answers differently for a batch than for single samples.

    We test it on made-up samples, because answers for real ones would reveal data. A
    module that passes still gets one sample at a time.
    """
    rng, (like, _) = torch.Generator().manual_seed(0), kernel.data(torch.tensor([0]))
    shape = _TRIED[-1], *like.shape[1:]
    if like.is_floating_point():
        h = torch.randn(shape, generator=rng).to(like)
    else:  # ids of words; there are at least two
        h = torch.randint(2, shape, generator=rng).to(like)
    point = torch.randn(1, kernel.parameters, generator=rng) / 10
    values = {
        name: value[0].to(next(kernel.module.parameters()))
        for name, value in kernel.layout.unravel(point).items()
    }

    def answers(some: Tensor) -> Tensor | None:
        try:
            found: Tensor = functional_call(kernel.module, values, (some,))
        except (RuntimeError, ValueError):  # it does not take this number of samples
            return None
        return found

    alone = [answers(one[None]) for one in h]
    for size in _TRIED:
        if not _is_same(answers(h[:size]), alone[:size]):
            raise InputError(
                "the model cannot hide single samples: its output for a sample depends "
                f"on the other samples of the batch (tested with {size} samples). "
                "`privacy.unit` sample needs a model that treats every sample alone."
            )


def _is_same(together: Tensor | None, alone: list[Tensor | None]) -> bool:
    found = [one for one in alone if one is not None]
    if together is None or len(found) < len(alone):
        return False
    wanted = torch.cat(found)
    if together.shape != wanted.shape:
        return False
    return torch.allclose(together, wanted, rtol=1e-2, atol=1e-4, equal_nan=True)
