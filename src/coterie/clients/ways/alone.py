"""Models one after the other: a module takes the parameters of one row at a time.

This way uses the layers of torch as they are, such as fused recurrent layers. Images
are in the order of memory that convolutions prefer (channels last), if the module can
handle it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from ...models.layouts import Layout
from ..layers import TrainingLayers, penalty_of


class RowModule:
    """A module whose parameters are those of one row; for one thread."""

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        loss: Callable[[Tensor, Tensor], Tensor],
        call: Callable[..., Any],
        *,
        channels_last: bool,
    ) -> None:
        """Takes over the module.

        Args:
            module: architecture; its parameters are replaced by rows.
            layout: the layout of rows.
            loss: the loss of each sample, from outputs and targets.
            call: calls the module, for example with a lower precision.
            channels_last: whether to give images to the module with channels last.
        """
        self._module, self._sizes = module, layout.sizes
        self._loss, self._call, self._channels_last = loss, call, channels_last
        self._layers = TrainingLayers(module)
        named = dict(module.named_parameters())
        self._parameters = [named[name] for name in layout.names]
        self._flat = [p.data.contiguous().view(-1) for p in self._parameters]
        for parameter, flat in zip(self._parameters, self._flat, strict=True):
            parameter.data = flat.view(parameter.shape)

    def write_grad(
        self,
        row: Float[Tensor, " d"],
        out: Float[Tensor, " d"],
        features: Tensor,
        targets: Tensor,
        weight: Tensor,
        *keys: Tensor,
    ) -> None:
        """Writes the gradient of the weighted loss of these samples to `out`."""
        self._take(row)
        with torch.enable_grad():
            outputs, penalty = self._pass(features, weight, keys)
            total = self._loss(outputs, targets) @ weight + penalty
            if not total.requires_grad:  # the loss does not depend on the model
                out.zero_()
                return
            found = torch.autograd.grad(total, self._parameters, allow_unused=True)
        slopes = [
            row.new_zeros(size) if slope is None else slope.reshape(-1)
            for slope, size in zip(found, self._sizes, strict=True)
        ]
        torch.cat(slopes, out=out)

    def outputs(self, row: Float[Tensor, " d"], features: Tensor) -> Tensor:
        """The outputs for samples, as in evaluation."""
        self._take(row)
        with torch.no_grad():
            return self._call(self._module, self._in_memory_order(features))

    def _take(self, row: Tensor) -> None:
        """Copies the row to the parameters.

        Views of the row would save the copy. But they begin anywhere in memory, and
        products of matrices are slower then.
        """
        torch._foreach_copy_(self._flat, row.detach().split(self._sizes))

    def _in_memory_order(self, x: Tensor) -> Tensor:
        return x.to(memory_format=torch.channels_last) if self._channels_last else x

    def _pass(
        self, x: Tensor, weight: Tensor, keys: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor | float]:
        """The outputs, and the terms that layers add to the loss."""
        x, given = self._in_memory_order(x), self._layers.inputs(weight, keys)
        if not given:
            return self._call(self._module, x), 0.0
        outputs = self._call(functional_call, self._module, given, (x,))
        return outputs, penalty_of(self._module)


def can_take_channels_last(module: nn.Module, features: Tensor) -> bool:
    """Whether a module computes faster with channels last, and can handle this order.

    Some modules call `view`, which needs another order of memory.
    """
    convolves = any(isinstance(layer, nn.Conv2d) for layer in module.modules())
    if not convolves or features.dim() != 4 or features.dtype != torch.float32:
        return False
    with torch.no_grad():
        try:
            # An image that is repeated has channels last at every size.
            module(
                features[:1].repeat(2, 1, 1, 1).to(memory_format=torch.channels_last)
            )
        except RuntimeError:
            return False
    return True
