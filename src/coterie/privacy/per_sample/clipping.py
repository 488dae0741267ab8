"""Gradients in which no single sample counts for more than a bound.

In the gradient of row j, every sample's own gradient is cut to the length C,

    sum_b weight[j, b] min(1, C / |g_jb|) g_jb    with g_jb that of sample b alone,

so that a sample which counts as nothing moves it by at most C times its weight.

The g_jb of all clients and samples would be n B rows of D numbers. They are not needed:
of a linear layer with inputs h and slopes e of its outputs, the gradient of a sample is
the product e h', whose length is |e| |h|; and once the lengths are known, the cut sum
is one product of matrices. So a step costs the passes of an ordinary one (forward, and
backward to every layer's outputs) and the lengths. Where a layer is applied at T places
(a convolution, or a linear layer on sequences) the gradient is sum_t e_t h_t'; its
length takes T^2 products of h and of e, or the gradient itself, by what is smaller.
Models with parameters in other layers have their g_jb computed one by one.

References:
    Goodfellow, "Efficient per-example gradient computations", 2015, arXiv 1510.01799.
    Bu, Wang, Zha, Karypis, "Differentially private optimization on large model at small
    cost", ICML 2023, arXiv 2210.00038 (the cut sum without a second backward pass).
    Bu, Mao, Xu, "Scalable and efficient training of large convolutional neural networks
    with differential privacy", NeurIPS 2022, arXiv 2205.10683 (which length when).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from ..checks import InputError, number
from ..clients.compiling import repeatable
from ..clients.kernels import Kernel
from ..clients.layers import WeightsFirst
from ..clients.samples import Batch

_LINEAR = (nn.Linear, WeightsFirst)


class ClippedKernel:
    """A kernel whose gradients are clipped sample by sample, and which tells no more.

    Other questions would touch data without a bound, and are refused.
    """

    compiled = False

    def __init__(self, kernel: Kernel, clip: float) -> None:
        """Clips the gradients of a kernel to this length; infinity leaves them."""
        if clip != math.inf:
            number("clip", clip, above=0)
        self._kernel, self._clip = kernel, clip
        self.parameters = kernel.parameters
        taped = Taped(kernel)
        self._by_layer = taped if taped.suits else None

    def chunk(self, samples: int, extra: int = 0) -> int:
        """How many rows of that many samples fit into one chunk."""
        own = 0 if self._by_layer else samples * 2
        return self._kernel.chunk(samples, extra + own)

    def grad(self, points: Float[Tensor, "n d"], batch: Batch) -> Float[Tensor, "n d"]:
        """Row j is the weighted sum of the clipped gradients of row j's samples."""
        size = 1 if self._kernel.rows_alone(batch) else self.chunk(batch.width)
        if size >= len(points):
            return self._clipped(points, batch)
        out = torch.empty_like(points)
        for first in range(0, len(points), size):
            some = slice(first, first + size)
            out[some] = self._clipped(points[some], batch[some])
        return out

    def _clipped(self, points: Tensor, batch: Batch) -> Tensor:
        if not len(points):  # of a process none of whose clients take part
            return torch.empty_like(points)
        program = self._by_layer or self._one_by_one
        (h, targets), shared = self._kernel.data(batch.index), batch.index.dim() == 1
        given = batch.weight, self._clip
        with repeatable():
            g, squares = program(points, h, targets, *given, shared=shared)
            lost = ~squares.isfinite()
            if not lost.any():
                return g
            # No bound holds where a gradient overflows: such samples count as nothing.
            h, targets = self._kernel.data(batch.index.expand(batch.weight.shape))
            h = h.masked_fill(lost.view(*lost.shape, *[1] * (h.dim() - 2)), 0)
            given = batch.weight.masked_fill(lost, 0), self._clip
            return program(points, h, targets, *given, shared=False)[0]

    def loss(self, points: Tensor, batch: Batch) -> Tensor:
        """Refused."""
        raise _refusal("losses")

    def losses(self, points: Tensor, batch: Batch) -> Tensor:
        """Refused."""
        raise _refusal("losses of single samples")

    def hvp(self, points: Tensor, vectors: Tensor, batch: Batch) -> Tensor:
        """Refused."""
        raise _refusal("Hessian-vector products")

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
        """The same from the gradient of every sample, and squares of their lengths."""
        kernel, data = self._kernel, None if shared else 0

        def loss(point: dict[str, Tensor], h: Tensor, target: Tensor) -> Tensor:
            outputs = functional_call(kernel.module, point, (h[None],))
            return kernel.objective.loss(outputs, target[None])[0]

        samples = vmap(grad(loss), in_dims=(None, 0, 0))
        rows = vmap(samples, in_dims=(0, data, data))
        found = rows(kernel.layout.unravel(points), features, targets)
        each = [found[name].flatten(2) for name in kernel.layout.names]
        squares = torch.stack([part.square().sum(2) for part in each]).sum(0)
        cut = (weight * _factors(squares, clip))[:, None]  # (n, 1, b)
        return torch.cat([(cut @ part)[:, 0] for part in each], 1), squares


def _refusal(what: str) -> InputError:
    return InputError(
        f"the method asks for {what}, which privacy of unit 'sample' cannot make "
        "private: of clients' data it bounds gradients alone."
    )


def _factors(squares: Tensor, clip: float) -> Tensor:
    """min(1, C / |g|) of gradients with these squared lengths."""
    # The least positive number keeps C / 0 from being no number where C is infinite.
    lengths = squares.sqrt().clamp(min=torch.finfo(squares.dtype).tiny)
    return (clip / lengths).clamp(max=1)


class _Layer(NamedTuple):
    """A layer on the tape."""

    name: str  # before those of its parameters
    module: nn.Module
    outputs: torch.Size  # of one sample


class Taped:
    """Clipped gradients of a model of linear and convolutional layers, layer by layer.

    A hook at every layer keeps its input h and adds a probe to its output, whose slope
    is e.
    """

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._module = copy.deepcopy(kernel.module)
        self._inputs: dict[str, Tensor] = {}
        self._probes: dict[str, Tensor] = {}
        self._layers: list[_Layer] = []
        self.suits = self._is_made_of_layers() and self._learns_shapes()
        if self.suits:
            for layer in self._layers:
                layer.module.register_forward_hook(self._hook(layer.name))
            self.suits = self._agrees()

    def __call__(
        self,
        points: Tensor,
        features: Tensor,
        targets: Tensor,
        weight: Tensor,
        clip: float,
        *,
        shared: bool,
    ) -> tuple[Tensor, Tensor]:
        """Clipped sums (n, d) of gradients, and squares (n, b) of their lengths."""
        slopes, inputs = self._tape(points, features, targets, shared)
        squares = weight.new_zeros(weight.shape)
        pending: dict[str, Callable[[Tensor], Tensor]] = {}
        for name, module, _ in self._layers:
            e, h = _places(module, slopes[name], inputs[name])  # (n, b, t, ...)
            more, cut_sum = _product(e, h)
            squares = squares + more
            pending[f"{name}weight"] = cut_sum
            if module.bias is not None:
                sums = e.sum(2)
                squares = squares + sums.square().sum(2)
                pending[f"{name}bias"] = _summed(sums)
        cut = weight * _factors(squares, clip)
        names = self._kernel.layout.names
        rows = [pending[name](cut).flatten(1) for name in names]
        return torch.cat(rows, 1), squares

    def _tape(
        self, points: Tensor, features: Tensor, targets: Tensor, shared: bool
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Slopes of the layers' outputs and their inputs, (n, b, ...)."""
        kernel, data = self._kernel, None if shared else 0

        def total(
            probes: dict[str, Tensor],
            point: dict[str, Tensor],
            features: Tensor,
            targets: Tensor,
        ) -> tuple[Tensor, dict[str, Tensor]]:
            self._probes = probes
            self._inputs = {}
            outputs = functional_call(self._module, point, (features,))
            kept, self._inputs, self._probes = self._inputs, {}, {}
            return kernel.objective.loss(outputs, targets).sum(), kept

        b = features.shape[0 if shared else 1]
        zero = points.new_zeros(())
        probes = {layer.name: zero.expand(b, *layer.outputs) for layer in self._layers}
        rows = vmap(grad(total, has_aux=True), in_dims=(None, 0, data, data))
        return rows(probes, kernel.layout.unravel(points), features, targets)

    def _hook(self, name: str) -> Callable[[nn.Module, Any, Tensor], Tensor | None]:
        def hook(_: nn.Module, given: tuple[Tensor], out: Tensor) -> Tensor:
            self._inputs[name] = given[0]
            return out + self._probes[name]

        return hook

    # Whether this is such a model.

    def _is_made_of_layers(self) -> bool:
        trained = set(self._kernel.layout.names)
        for path, module in self._module.named_modules():
            name = f"{path}." if path else ""
            own = {name + key for key, _ in module.named_parameters(recurse=False)}
            if own & trained:
                if not own <= trained or not _known(module):
                    return False
                self._layers.append(_Layer(name, module, torch.Size()))
        return True

    @torch.no_grad()
    def _learns_shapes(self) -> bool:
        """Notes output shapes; whether each is used once, with samples in front."""
        seen: dict[str, list[torch.Size]] = {layer.name: [] for layer in self._layers}
        hooks = [
            layer.module.register_forward_hook(
                lambda _, __, out, name=layer.name: seen[name].append(out.shape)
            )
            for layer in self._layers
        ]
        features, _ = self._kernel.data(torch.tensor([0, 0]))
        self._module(features)
        for hook in hooks:
            hook.remove()
        good = all(
            len(s) == 1 and len(s[0]) > 1 and s[0][0] == 2 for s in seen.values()
        )
        if good:
            self._layers = [
                layer._replace(outputs=seen[layer.name][0][1:])
                for layer in self._layers
            ]
        return good

    def _agrees(self) -> bool:
        """Whether the tape gives the gradient of a sample, at a random row.

        It does not where a model uses the parameters of a layer in some other way too.
        """
        kernel = self._kernel
        like = next(self._module.parameters())
        index = torch.zeros(1, 1, dtype=torch.long, device=like.device)
        weight = torch.ones(1, 1, dtype=like.dtype, device=like.device)
        rng = torch.Generator().manual_seed(0)
        point = torch.randn(1, kernel.parameters, generator=rng).to(like) / 10
        wanted = kernel.grad(point, Batch(index, weight))
        found, _ = self(point, *kernel.data(index), weight, math.inf, shared=False)
        return torch.allclose(found, wanted, rtol=1e-2, atol=1e-4)


def _known(module: nn.Module) -> bool:
    """Whether gradients of samples are products of a layer's inputs and slopes."""
    if isinstance(module, nn.Conv2d):
        plain = module.groups == 1 and module.padding_mode == "zeros"
        return plain and not isinstance(module.padding, str)
    return isinstance(module, _LINEAR)


def _places(module: nn.Module, e: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Slopes (n, b, t, o) and inputs (n, b, t, i) of the t places of a layer."""
    if isinstance(module, nn.Conv2d):
        return e.flatten(3).mT, _patches(module, h)
    if e.dim() == 3:
        return e[:, :, None], h[:, :, None]
    return e.flatten(2, -2), h.flatten(2, -2)


def _patches(module: nn.Conv2d, h: Tensor) -> Tensor:
    """What a convolution sees at each place, in the order of its weights."""
    how: Any = module.kernel_size, module.dilation, module.padding, module.stride
    return F.unfold(h.flatten(0, 1), *how).unflatten(0, h.shape[:2]).mT


def _product(e: Tensor, h: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Squared lengths (n, b) of sum_t e_t h_t', and how to sum these with factors."""
    t, o, i = e.shape[2], e.shape[3], h.shape[3]
    if t > 1 and 2 * t * t > o * i:
        whole = e.mT @ h  # (n, b, o, i)
        return whole.square().sum((2, 3)), _summed(whole)
    if t == 1:
        squares = (e.square().sum(3) * h.square().sum(3))[:, :, 0]
    else:
        squares = ((e @ e.mT) * (h @ h.mT)).sum((2, 3)).clamp(min=0)
        # Terms that cancel leave their rounding, which must not make a gradient look
        # shorter than it is.
        most = (e.norm(dim=3) * h.norm(dim=3)).sum(2).square()
        squares = squares + 8 * torch.finfo(e.dtype).eps * most

    def cut_sum(cut: Tensor) -> Tensor:
        return (cut[:, :, None, None] * e).flatten(1, 2).mT @ h.flatten(1, 2)

    return squares, cut_sum


def _summed(each: Tensor) -> Callable[[Tensor], Tensor]:
    """Sums the gradients (n, b, ...) of samples with factors (n, b)."""
    return lambda cut: (cut[:, None] @ each.flatten(2))[:, 0]
