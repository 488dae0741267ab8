"""Gradients of single samples in a layer, kept as products that are not multiplied out.

A layer works at places t, with inputs h_t. Let e_t be the slopes of its outputs: the
derivatives of the loss with respect to the outputs. Then the gradient of a sample is
sum_t e_t h_t'.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ....clients.kernels import Kernel
from ....clients.layers import WeightsFirst
from ....models.zoo import Diagonal, UNet3d

_ALONE: set[type[nn.Module]] = {
    *(nn.Sequential, nn.Identity, WeightsFirst, nn.Linear, nn.Conv2d),
    *(nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Softplus),
    *(nn.Tanh, nn.Sigmoid, nn.Hardtanh, nn.MaxPool2d, nn.AvgPool2d, nn.MaxPool3d),
    *(nn.GroupNorm, nn.Conv3d, nn.ConvTranspose3d, UNet3d, Diagonal),
}
"""Layers that treat every sample of a batch by itself, whatever its values."""


def keeps_samples_apart(module: nn.Module) -> bool:
    """Whether a module consists of layers that treat every sample by itself.

    A module of an unknown type may do anything with a batch, and a test on a few
    samples proves nothing about other samples. So we also answer no if a layer has
    hooks, or if an object replaces a method of its type by its own.
    """
    return all(
        (type(layer) in _ALONE or _flattens_one_sample(layer))
        and not (layer._forward_hooks or layer._forward_pre_hooks)
        and not (layer._backward_hooks or layer._backward_pre_hooks)
        and not {"forward", "__call__", "_call_impl"} & vars(layer).keys()
        for layer in module.modules()
    )


def _flattens_one_sample(layer: nn.Module) -> bool:
    return type(layer) is nn.Flatten and layer.start_dim >= 1


class Layer(NamedTuple):
    """A layer that is trained."""

    name: str  # the prefix of its parameters' names
    module: nn.Module
    outputs: torch.Size  # of one sample


class Product(NamedTuple):
    """Gradients left' right of samples (..., b)."""

    left: Tensor | None  # (..., b, t, o); None: they are the rows of `right`, and t = 1
    right: Tensor  # (..., b, t, i)

    def weighted_factors(self, cut: Tensor) -> tuple[Tensor, Tensor]:
        """(..., b t, o) and (..., b t, i), whose product is the weighted sum."""
        left = cut[..., None, None]
        left = left if self.left is None else left * self.left
        return left.flatten(-3, -2), self.right.flatten(-3, -2)


def layers_of(kernel: Kernel, module: nn.Module) -> list[Layer] | None:
    """The layers with all trained parameters; None if we do not know one of them."""
    trained, found = set(kernel.layout.names), []
    for path, layer in module.named_modules():
        name = f"{path}." if path else ""
        own = {name + key for key, _ in layer.named_parameters(recurse=False)}
        if own & trained:
            if not own <= trained or not _is_product_layer(layer):
                return None
            found.append(Layer(name, layer, torch.Size()))
    return _with_shapes(kernel, module, found)


@torch.no_grad()
def _with_shapes(
    kernel: Kernel, module: nn.Module, layers: list[Layer]
) -> list[Layer] | None:
    """The layers with their output shapes, or None.

    It is None unless each layer is used once, with samples as the first dimension.
    """
    seen: dict[str, list[torch.Size]] = {layer.name: [] for layer in layers}
    hooks = [
        layer.module.register_forward_hook(
            lambda _, __, out, name=layer.name: seen[name].append(out.shape)
        )
        for layer in layers
    ]
    module(kernel.data(torch.tensor([0, 0]))[0])
    for hook in hooks:
        hook.remove()
    if any(len(s) != 1 or len(s[0]) < 2 or s[0][0] != 2 for s in seen.values()):
        return None
    return [layer._replace(outputs=seen[layer.name][0][1:]) for layer in layers]


def _is_product_layer(module: nn.Module) -> bool:
    """Whether gradients of samples are products of the layer's inputs and slopes."""
    if isinstance(module, nn.Conv2d):
        plain = module.groups == 1 and module.padding_mode == "zeros"
        return plain and not isinstance(module.padding, str)
    return isinstance(module, nn.Linear | WeightsFirst)


def gradients(
    module: Any, e: Tensor, h: Tensor, lead: int
) -> tuple[Tensor, dict[str, Product]]:
    """Squared lengths (..., b) of gradients in a layer, and gradients as products.

    Args:
        module: the layer.
        e: (..., b, outputs) slopes.
        h: (..., b, inputs).
        lead: the number of dimensions in (..., b).
    """
    if isinstance(module, nn.Conv2d):
        e, h = e.flatten(-2).mT, _patches(module, h)
    elif e.dim() == lead + 1:
        e, h = e[..., None, :], h[..., None, :]
    else:
        e, h = e.flatten(lead, -2), h.flatten(lead, -2)
    if e.shape[-2] == 1:
        return _at_one_place(module, e, h)
    squares, weight = product(e, h)
    if module.bias is None:
        return squares, {"weight": weight}
    sums = e.sum(-2, keepdim=True)
    squares = squares + _square(sums)[..., 0]
    return squares, {"weight": weight, "bias": Product(None, sums)}


def _at_one_place(
    module: Any, e: Tensor, h: Tensor
) -> tuple[Tensor, dict[str, Product]]:
    """The result of `gradients` for t = 1: |e|^2 |h|^2, plus |e|^2 for a bias."""
    found, along = {"weight": Product(e, h)}, _square(h)
    if module.bias is not None:
        found["bias"], along = Product(None, e), along + 1
    return (_square(e) * along)[..., 0], found


def _patches(module: nn.Conv2d, h: Tensor) -> Tensor:
    """The inputs of a convolution at each place, in the order of its weights."""
    around: Any = module.padding  # not a word; see `_is_product_layer`
    (high, wide), size, gap = around, module.kernel_size, module.dilation
    h = F.pad(h, (wide, wide, high, high)) if high or wide else h
    h = h.unfold(-1, gap[1] * (size[1] - 1) + 1, module.stride[1])[..., :: gap[1]]
    h = h.unfold(-3, gap[0] * (size[0] - 1) + 1, module.stride[0])[..., :: gap[0]]
    # Copies rows of images; F.unfold copies numbers, which takes three times as long.
    return h.movedim((-1, -2), (-4, -3)).flatten(-2).flatten(-4, -2).mT


def product(e: Tensor, h: Tensor) -> tuple[Tensor, Product]:
    """Squared lengths of sum_t e_t h_t', and these products."""
    t, o, i = e.shape[-2], e.shape[-1], h.shape[-1]
    if t > 1 and 2 * t * t > o * i:
        whole = (e.mT @ h).flatten(-2)[..., None, :]
        return _square(whole)[..., 0], Product(None, whole)
    squares = ((e @ e.mT) * (h @ h.mT)).sum((-2, -1)).clamp(min=0)
    # Terms that cancel leave rounding errors, which must not make a gradient look
    # shorter than it is.
    most = (e.norm(dim=-1) * h.norm(dim=-1)).sum(-1).square()
    return squares + 8 * torch.finfo(e.dtype).eps * most, Product(e, h)


def _square(rows: Tensor) -> Tensor:
    """Squared lengths."""
    if rows.stride(-1) == 1:  # saves memory for the squares of all numbers
        return torch.linalg.vector_norm(rows, dim=-1).square()
    return rows.square().sum(-1)


def factors(squares: Tensor, clip: float) -> Tensor:
    """min(1, C / |g|) of gradients with these squared lengths."""
    # The smallest positive number avoids infinity / 0 if C is infinite.
    lengths = squares.sqrt().clamp(min=torch.finfo(squares.dtype).tiny)
    return (clip / lengths).clamp(max=1)
