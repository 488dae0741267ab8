"""Clipped gradients layer by layer: a tape keeps every layer's inputs and slopes.

`Vectorised` has all clients in one pass, for many small models and on a GPU. `Packed`
has their samples one behind the other and goes through clients within a layer: no
sample is there to fill up rows of Poisson minibatches, and where products of matrices
are what takes time, that is quicker on a CPU.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.grad import conv2d_input

from ...clients.kernels import Kernel
from .layers import Product, factors, gradients, layers_of


class Vectorised:
    """A hook at every layer keeps its input h and adds a probe, whose slope is e."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._module = copy.deepcopy(kernel.module)
        self._inputs: dict[str, Tensor] = {}
        self._probes: dict[str, Tensor] = {}
        layers = layers_of(kernel, self._module)
        self.suits, self._layers = layers is not None, layers or []
        for layer in self._layers:
            layer.module.register_forward_hook(self._hook(layer.name))

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
        found: dict[str, Product] = {}
        for name, module, _ in self._layers:
            more, products = gradients(module, slopes[name], inputs[name], 2)
            squares += more
            found |= {name + kind: each for kind, each in products.items()}
        cut = weight * factors(squares, clip)
        rows = []
        for name in self._kernel.layout.names:
            left, right = found[name].weighed(cut)
            rows.append((left.mT @ right).flatten(1))
        return torch.cat(rows, 1), squares

    def _tape(
        self, points: Tensor, features: Tensor, targets: Tensor, shared: bool
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Slopes of the layers' outputs and their inputs, (n, b, ...)."""

        def total(
            probes: dict[str, Tensor],
            point: dict[str, Tensor],
            features: Tensor,
            targets: Tensor,
        ) -> tuple[Tensor, dict[str, Tensor]]:
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
            point = self._kernel.layout.unravel(points.detach())
            losses, inputs = rows(probes, point, features, targets)
        slopes = _slopes(losses.sum(), list(probes.values()))
        return dict(zip(probes, slopes, strict=True)), inputs

    def _hook(self, name: str) -> Callable[[nn.Module, Any, Tensor], Tensor]:
        def hook(_: nn.Module, given: tuple[Tensor], out: Tensor) -> Tensor:
            self._inputs[name] = given[0].detach()
            return out + self._probes[name]

        return hook


class Packed:
    """Every layer computes with weights of each client."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._module = copy.deepcopy(kernel.module)
        layers = layers_of(kernel, self._module) or []
        self._layers = {layer.name: _Own(layer.module) for layer in layers}
        self.is_linear = not any(isinstance(x.module, nn.Conv2d) for x in layers)

    def __call__(
        self,
        points: Tensor,
        features: Tensor,
        targets: Tensor,
        weight: Tensor,
        clip: float,
        sizes: list[int],
    ) -> tuple[Tensor, Tensor]:
        """Clipped sums (n, d) of gradients, and squares (m,) of their lengths.

        Args:
            points: models of the clients.
            features: (m, ...) of all samples, client after client.
            targets: (m, ...) of the same.
            weight: (m,) of the same.
            clip: the length to which they are cut.
            sizes: samples of each client.
        """
        self._pass(points.detach(), features, targets, sizes)
        squares = weight.new_zeros(weight.shape)
        found: dict[str, Product] = {}
        for name, own in self._layers.items():
            more, products = gradients(own.layer, own.slopes, own.inputs, 1)
            squares += more
            found |= {name + kind: each for kind, each in products.items()}
            own.forget()
        cut = weight * factors(squares, clip)
        rows = torch.empty_like(points)
        for name, parts in self._kernel.layout.unravel(rows).items():
            left, right = found[name].weighed(cut)
            count = [size * (len(right) // len(weight)) for size in sizes]
            sides = left.T.split(count, 1), right.split(count)
            sums = parts.view(len(points), left.shape[1], right.shape[1]).unbind()
            for a, b, out in zip(*sides, sums, strict=True):
                torch.mm(a, b, out=out)
        return rows, squares

    def _pass(
        self, points: Tensor, features: Tensor, targets: Tensor, sizes: list[int]
    ) -> None:
        """Forward, and back to the outputs of every layer."""
        values = self._kernel.layout.unravel(points)
        probe = points.new_zeros(()).requires_grad_()
        for name, own in self._layers.items():
            own.begin(values[f"{name}weight"], values.get(f"{name}bias"), sizes, probe)
        with torch.enable_grad():
            losses = self._kernel.objective.loss(self._module(features), targets)
        _slopes(losses.sum(), [probe])


class _Own:
    """A layer with weights of each client, for samples client after client."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer: Any = layer
        self.layer.forward = lambda h: _Applied.apply(h, self._probe, self)
        self._how: dict[str, Any] = {}
        if isinstance(layer, nn.Conv2d):
            names = ("stride", "padding", "dilation")
            self._how = {name: getattr(layer, name) for name in names}
        self.forget()

    def begin(
        self, weight: Tensor, bias: Tensor | None, sizes: list[int], probe: Tensor
    ) -> None:
        """Takes the weights (n, ...) of clients with so many samples."""
        nothing = [None] * len(weight)
        self._weights = weight.unbind()
        self._biases = nothing if bias is None else bias.unbind()
        self._sizes, self._probe = sizes, probe

    def forget(self) -> None:
        """Keeps nothing of what a pass has left."""
        self.inputs = self.slopes = torch.empty(0)
        self._weights, self._biases, self._probe = (), (), torch.empty(0)

    def outputs(self, h: Tensor) -> Tensor:
        """Outputs of all samples, where those without a slope stay without one."""
        function: Any = F.conv2d if self._how else F.linear
        out = _joined(
            function(some, weight, bias, **self._how)
            for some, weight, bias in zip(
                h.split(self._sizes), self._weights, self._biases, strict=True
            )
        )
        self.inputs, self.slopes = h.detach(), out.new_zeros(()).expand(out.shape)
        return out

    def back(self, e: Tensor) -> Tensor:
        """Slopes of the inputs from those of the outputs."""
        pieces = zip(e.split(self._sizes), self._weights, strict=True)
        if not self._how:
            return _joined(some @ weight for some, weight in pieces)
        shape = self.inputs.shape[1:]
        return _joined(
            conv2d_input((len(some), *shape), weight, some, **self._how)
            for some, weight in pieces
        )


class _Applied(torch.autograd.Function):
    """A layer whose weights get no gradient, but whose outputs' slopes are kept.

    The probe makes torch come back to a layer whose inputs need no gradient.
    """

    @staticmethod
    def forward(ctx: Any, h: Tensor, probe: Tensor, own: _Own) -> Tensor:
        ctx.own = own
        return own.outputs(h)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, None, None]:
        (e,) = slopes
        ctx.own.slopes = e
        return ctx.own.back(e) if ctx.needs_input_grad[0] else None, None, None


def _joined(pieces: Any) -> Tensor:
    parts = list(pieces)
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _slopes(loss: Tensor, of: list[Tensor]) -> tuple[Tensor, ...]:
    if not loss.requires_grad:  # where it does not depend on a model
        return tuple(torch.zeros_like(each) for each in of)
    return torch.autograd.grad(loss, of, allow_unused=True, materialize_grads=True)
