"""Clipped gradients layer by layer: a tape keeps every layer's inputs and slopes.

`VectorisedRecorder` works for all layers, on any device. `StackedRecorder` puts the
samples of all clients one after the other, so that every linear layer is one batched
product. On a CPU this is faster, because torch's vectorising takes longer than small
products. If there is only one client, `StackedRecorder` also handles convolutions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.grad import conv2d_input

from ....clients.kernels import Kernel
from .layers import Layer, Product, factors, gradients, layers_of

Kept = dict[str, Tensor]
"""(n, b, ...) for every layer."""


@runtime_checkable
class Recorder(Protocol):
    """Runs layers, and keeps their inputs and the slopes of their outputs."""

    is_linear: bool  # whether all layers are linear ones

    def record(
        self, points: Tensor, features: Tensor, targets: Tensor, shared: bool
    ) -> tuple[Kept, Kept]:
        """Slopes and inputs of every layer."""


class Tape:
    """Clips gradients, from the inputs and slopes that a recorder keeps."""

    def __init__(self, kernel: Kernel, recorder: Callable[..., Recorder]) -> None:
        module = copy.deepcopy(kernel.module)
        layers = layers_of(kernel, module)
        self.suits = layers is not None  # whether we know all layers of the module
        self._kernel, self._layers = kernel, layers or []
        self.recorder = recorder(kernel, module, self._layers)

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
        """Clipped sums (n, d) of gradients, and squared lengths (n, b) of gradients."""
        given = points.detach(), features, targets, shared
        slopes, inputs = self.recorder.record(*given)
        squares = weight.new_zeros(weight.shape)
        found: dict[str, Product] = {}
        for name, module, _ in self._layers:
            more, products = gradients(module, slopes[name], inputs[name], 2)
            squares += more
            found |= {name + kind: each for kind, each in products.items()}
        cut = weight * factors(squares, clip)
        rows = torch.empty_like(points, memory_format=torch.contiguous_format)
        for name, part in self._kernel.layout.unravel(rows).items():
            left, right = found[name].weighted_factors(cut)
            out = part.view(len(points), left.shape[2], right.shape[2])
            torch.bmm(left.mT, right, out=out)
        return rows, squares


class VectorisedRecorder:
    """Keeps inputs of layers by hooks, which add probes to outputs to get slopes."""

    is_linear = False

    def __init__(self, kernel: Kernel, module: nn.Module, layers: list[Layer]) -> None:
        self._kernel, self._module, self._layers = kernel, module, layers
        self._inputs: Kept = {}
        self._probes: Kept = {}
        for layer in layers:
            layer.module.register_forward_hook(self._hook(layer.name))

    def record(
        self, points: Tensor, features: Tensor, targets: Tensor, shared: bool
    ) -> tuple[Kept, Kept]:
        """Slopes and inputs of every layer."""

        def total(
            probes: Kept, point: Kept, features: Tensor, targets: Tensor
        ) -> tuple[Tensor, Kept]:
            self._probes, self._inputs = probes, {}
            outputs = functional_call(self._module, point, (features,))
            inputs, self._inputs, self._probes = self._inputs, {}, {}
            return self._kernel.objective.loss(outputs, targets).sum(), inputs

        n, b = len(points), features.shape[0 if shared else 1]
        zero, data = points.new_zeros(()), None if shared else 0
        probes = {
            layer.name: zero.expand(n, b, *layer.outputs).requires_grad_()
            for layer in self._layers
        }
        rows = vmap(total, in_dims=(0, 0, data, data))
        with torch.enable_grad():
            point = self._kernel.layout.unravel(points)
            losses, inputs = rows(probes, point, features, targets)
        slopes = _slopes(losses.sum(), list(probes.values()))
        return dict(zip(probes, slopes, strict=True)), inputs

    def _hook(self, name: str) -> Callable[[nn.Module, Any, Tensor], Tensor]:
        def hook(_: nn.Module, given: tuple[Tensor], out: Tensor) -> Tensor:
            self._inputs[name] = given[0].detach()
            return out + self._probes[name]

        return hook


class StackedRecorder:
    """Layers that know the weights of every client."""

    def __init__(self, kernel: Kernel, module: nn.Module, layers: list[Layer]) -> None:
        self._kernel, self._module = kernel, module
        self._own = [_ClientLayer(layer) for layer in layers]
        self.is_linear = all(own.is_linear for own in self._own)

    def record(
        self, points: Tensor, features: Tensor, targets: Tensor, shared: bool
    ) -> tuple[Kept, Kept]:
        """Slopes and inputs of every layer."""
        n, values = len(points), self._kernel.layout.unravel(points)
        if shared:
            features, targets = (d.expand(n, *d.shape) for d in (features, targets))
        probe = points.new_zeros(()).requires_grad_()
        for own in self._own:
            own.begin(values, probe)
        with torch.enable_grad():
            outputs = self._module(features.flatten(0, 1))
            losses = self._kernel.objective.loss(outputs, targets.flatten(0, 1))
        _slopes(losses.sum(), [probe])
        slopes = {own.name: own.slopes.unflatten(0, (n, -1)) for own in self._own}
        inputs = {own.name: own.inputs.unflatten(0, (n, -1)) for own in self._own}
        for own in self._own:
            own.forget()
        return slopes, inputs


class _ClientLayer:
    """A layer with the weights of all clients, which have equally many samples."""

    inputs: Tensor
    slopes: Tensor
    _weight: Tensor
    _bias: Tensor | None
    _probe: Tensor

    def __init__(self, layer: Layer) -> None:
        module: Any = layer.module
        module.forward = lambda h: _ClientLayerFunction.apply(h, self._probe, self)
        self.name = layer.name
        self.is_linear = not isinstance(module, nn.Conv2d)
        names = () if self.is_linear else ("stride", "padding", "dilation")
        self._how = {name: getattr(module, name) for name in names}
        self.forget()

    def begin(self, values: Kept, probe: Tensor) -> None:
        """Sets the weights (n, ...) of clients; a convolution takes only one client."""
        self._weight = values[f"{self.name}weight"]
        self._bias, self._probe = values.get(f"{self.name}bias"), probe

    def forget(self) -> None:
        """Forgets all that a pass has kept."""
        self.inputs = self.slopes = self._weight = self._probe = torch.empty(0)
        self._bias = None

    def outputs(self, h: Tensor) -> Tensor:
        """Outputs of all samples; slopes are zero until the backward pass."""
        weight, bias = self._weight, self._bias
        if self.is_linear:
            n, outputs, inputs = weight.shape
            out = h.new_empty(
                *h.shape[:-1], outputs
            )  # not a view, because a layer may change it
            many = out.view(n, -1, outputs)
            rows = h.reshape(n, -1, inputs)
            if bias is None:
                torch.bmm(rows, weight.mT, out=many)
            else:
                torch.baddbmm(bias[:, None], rows, weight.mT, out=many)
        else:
            out = F.conv2d(h, weight[0], None if bias is None else bias[0], **self._how)
        self.inputs, self.slopes = h.detach(), out.new_zeros(()).expand(out.shape)
        return out

    def back(self, e: Tensor) -> Tensor:
        """The slopes of the inputs, from the slopes of the outputs."""
        weight, shape = self._weight, self.inputs.shape
        if self.is_linear:
            return (e.reshape(len(weight), -1, e.shape[-1]) @ weight).view(shape)
        return conv2d_input(shape, weight[0], e, **self._how)


class _ClientLayerFunction(torch.autograd.Function):
    """A layer that keeps the slopes of its outputs; its weights get no gradient.

    The probe makes torch run backward through a layer whose inputs need no gradient.
    """

    @staticmethod
    def forward(ctx: Any, h: Tensor, probe: Tensor, own: _ClientLayer) -> Tensor:
        ctx.own = own
        return own.outputs(h)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, None, None]:
        (e,) = slopes
        ctx.own.slopes = e
        return ctx.own.back(e) if ctx.needs_input_grad[0] else None, None, None


def _slopes(loss: Tensor, of: list[Tensor]) -> tuple[Tensor, ...]:
    if not loss.requires_grad:  # it does not depend on the model
        return tuple(torch.zeros_like(each) for each in of)
    return torch.autograd.grad(loss, of, allow_unused=True, materialize_grads=True)
