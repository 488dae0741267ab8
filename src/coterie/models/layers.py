"""Layers that behave differently in training: dropout, augmentation, normalisation.

A module that a user calls is not in training: dropout and augmentation do nothing, and
normalisation uses its running statistics. In training, a kernel gives every layer a
random key for each sample. Masks and crops are a pure function of the key, the layer's
name and the position in the sample. So a run gives the same bits again, even if it is
divided among processes or resumed. No layer draws from a random generator.

Running statistics m and v are columns of a row, like weights. A training pass adds

    |m - mean|^2 / 2 + |v - var|^2 / 2

to the loss, with the mean and the variance of the batch. So the gradient in these
columns is m - mean and v - var. With any optimiser, a local step moves m and v towards
the statistics of the batch by the share `momentum` of the layer, as torch does. As with
weights, clients either average running statistics or keep them at home.

References:
    Srivastava, Hinton, Krizhevsky, Sutskever, Salakhutdinov. Dropout. JMLR 15, 2014.
    Ioffe, Szegedy. Batch normalization. ICML 2015. arXiv:1502.03167.
"""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from .. import seeds
from ..checks import InputError, call, integer, number, one_of, several

DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
"""Layers of torch that `NamedDropout` can replace."""


def with_own_layers(module: nn.Module) -> nn.Module:
    """The module, whose dropout layers take their masks from named streams."""
    if isinstance(module, DROPOUTS) and module.p:
        return NamedDropout(module.p, channels=type(module) is not nn.Dropout)
    for parent in list(module.modules()):
        for name, layer in parent.named_children():
            if isinstance(layer, DROPOUTS):
                setattr(parent, name, with_own_layers(layer))
    return module


def _bits(keys: Tensor, place: int, size: int) -> Tensor:
    """(..., size) random whole numbers below 2^31, for every sample in this layer."""
    return seeds.words(keys + place, size) >> 33 & (2**31 - 1)


class NamedDropout(nn.Module):
    """Dropout whose masks follow from a key of each sample."""

    keys: Tensor

    def __init__(self, p: float, *, channels: bool = False) -> None:
        """Drops single numbers or whole channels with probability p."""
        super().__init__()
        self.p, self.channels, self.place = p, channels, 0
        self.register_buffer("keys", torch.empty(0, dtype=torch.long), persistent=False)

    def forward(self, h: Tensor) -> Tensor:
        """The inputs; a training pass drops some."""
        return self.drop(h, self.keys)

    def drop(self, h: Tensor, keys: Tensor) -> Tensor:
        """Samples h after dropout by their keys (..., b); without keys, all of h."""
        if not keys.numel() or not self.p:
            return h
        lead = keys.dim()
        if h.dim() < lead or h.shape[lead - 1] != keys.shape[-1]:
            raise InputError(
                f"dropout needs samples first: {keys.shape[-1]} of them, got shape "
                f"{tuple(h.shape)}."
            )
        shape = [*h.shape[lead:]]
        if self.channels:
            shape[1:] = [1] * len(shape[1:])
        bits = _bits(keys, self.place, math.prod(shape))
        kept = (bits >= round(self.p * 2**31)).unflatten(-1, shape or [1])
        return h * (kept if shape else kept[..., 0]).to(h) / (1 - self.p)


_WAYS = {"crop": 1, "flip": 0, "noise": 1}
"""Maps each way to augment to its number of arguments."""


class Augment(nn.Module):
    """Random crops, flips and noise of features in training, as a first layer.

    - `crop(k)` adds k zeros at each side, and cuts out a part of the old size;
    - `flip` mirrors half of the samples left to right;
    - `noise(s)` adds Gaussian noise of standard deviation s to every number.

    These changes are applied in the given order.
    """

    keys: Tensor

    def __init__(self, *ways: str) -> None:
        """Takes texts such as "crop(2)"."""
        super().__init__()
        self.ways = [_way(text) for text in ways]
        self.place = 0
        self.register_buffer("keys", torch.empty(0, dtype=torch.long), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """The features (b, ...), changed at random in training."""
        if not self.keys.numel():
            return x
        for number_, (word, size) in enumerate(self.ways):
            place = seeds.key(self.place, number_)
            if word == "crop":
                x = _crop(x, _bits(self.keys, place, 2), int(size))
            elif word == "flip":
                coin = _bits(self.keys, place, 1) & 1
                x = torch.where(coin.view(-1, *[1] * (x.dim() - 1)) > 0, x.flip(-1), x)
            else:
                x = x + size * _normals(self.keys, place, x)
        return x


def _way(text: str) -> tuple[str, float]:
    word, arguments = call("augment", text)
    one_of("augment", word, _WAYS)
    if len(arguments) != _WAYS[word]:
        most = several(_WAYS[word], "number")
        raise InputError(f"`augment` {word} takes {most}, got {text!r}.")
    if word == "crop":
        if not arguments[0].is_integer():
            raise InputError(f"`augment` crop takes a whole number, got {text!r}.")
        integer("augment crop", int(arguments[0]), at_least=1)
    elif word == "noise":
        number("augment noise", arguments[0], above=0)
    return word, arguments[0] if arguments else 0.0


def _crop(x: Tensor, bits: Tensor, size: int) -> Tensor:
    """Images (b, c, height, width), each shifted by up to `size` pixels."""
    if x.dim() != 4:
        raise InputError(
            "`augment` crop needs images of shape (channels, height, width), got "
            f"features of shape {tuple(x.shape[1:])}."
        )
    height, width = x.shape[-2:]
    moved = (bits * (2 * size + 1)) >> 31  # (b, 2) from 0 to 2 size
    x = F.pad(x, (size, size, size, size))
    rows = moved[:, :1] + torch.arange(height, device=x.device)
    columns = moved[:, 1:] + torch.arange(width, device=x.device)
    rows = rows[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[-1])
    x = x.gather(2, rows)
    return x.gather(3, columns[:, None, None].expand(-1, x.shape[1], height, -1))


def _normals(keys: Tensor, place: int, like: Tensor) -> Tensor:
    """Gaussian numbers of the shape of `like`, by Box and Muller."""
    size = math.prod(like.shape[1:])
    u = (_bits(keys, place, 2 * size).double() + 1) * 2.0**-31  # never 0
    length, angle = (-2 * u[:, :size].log()).sqrt(), 2 * math.pi * u[:, size:]
    return (length * angle.cos()).to(like).view(like.shape)


class BatchStatistics(nn.Module):
    """Batch normalisation; its running statistics are parameters, or frozen."""

    weight: Tensor | None
    bias: Tensor | None
    running_mean: Tensor
    running_var: Tensor
    share: Tensor

    def __init__(self, layer: _BatchNorm, *, frozen: bool = False) -> None:
        """Takes the parameters and statistics of a layer of torch."""
        super().__init__()
        size, self.eps, self.frozen = layer.num_features, layer.eps, frozen
        self.momentum = 0.0 if frozen else _momentum_of(layer)
        self.weight = self.bias = None
        if layer.affine:
            self.weight = nn.Parameter(layer.weight.detach().clone())
            self.bias = nn.Parameter(layer.bias.detach().clone())
        mean, var = layer.running_mean, layer.running_var
        mean = torch.zeros(size) if mean is None else mean.detach().clone()
        var = torch.ones(size) if var is None else var.detach().clone()
        for name, value in (("running_mean", mean), ("running_var", var)):
            if frozen:
                self.register_buffer(name, value)
            else:
                self.register_parameter(name, nn.Parameter(value))
        self.register_buffer("share", torch.empty(0), persistent=False)
        self._penalty: Tensor | None = None

    def forward(self, h: Tensor) -> Tensor:
        """The inputs (b, c, ...), with mean 0 and variance 1 in every channel."""
        like, h = [-1, *[1] * (h.dim() - 2)], h.to(self.running_mean.dtype)
        if self.frozen or not self.share.numel():
            mean, var = self.running_mean, self.running_var.clamp(min=0)
        else:
            mean, var = self._of_batch(h)
        h = (h - mean.view(like)) * (var + self.eps).rsqrt().view(like)
        if self.weight is None or self.bias is None:
            return h
        return h * self.weight.view(like) + self.bias.view(like)

    def take_penalty(self) -> Tensor | None:
        """What the last training pass adds to the loss; the next call returns None."""
        found, self._penalty = self._penalty, None
        return found

    def _of_batch(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the samples with a weight; also stores the penalty."""
        if len(h) < 2:
            raise InputError(
                "batch normalisation needs at least two samples in a batch, got 1: "
                "use a larger `batch_size`, or frozen statistics."
            )
        used = (self.share != 0).to(h).view(-1, *[1] * (h.dim() - 1))
        others = [0, *range(2, h.dim())]
        count = used.sum() * math.prod(h.shape[2:])
        mean = (h * used).sum(others) / count
        away = h - mean.view(-1, *[1] * (h.dim() - 2))
        var = (away.square() * used).sum(others) / count
        unbiased = (var * count / (count - 1).clamp(min=1)).detach()
        gap = (self.running_mean - mean.detach()).square().sum()
        self._penalty = (gap + (self.running_var - unbiased).square().sum()) / 2
        return mean, var


def _momentum_of(layer: _BatchNorm) -> float:
    """How fast running statistics move, of a layer of torch."""
    if layer.momentum is None:
        raise InputError(
            "`momentum` of batch normalisation must be a number from 0 to 1, got None: "
            "clients do not count their batches."
        )
    rule = "momentum of batch normalisation"
    return number(rule, layer.momentum, at_least=0, at_most=1)


def with_batch_statistics(module: nn.Module, *, frozen: bool = False) -> nn.Module:
    """A copy of the module whose batch normalisation can be trained as rows.

    Args:
        module: any module.
        frozen: whether running statistics stay as they are, and batches are normalised
            by them. Otherwise they are columns of the row, which clients average or
            keep at home. In each local step, they move by the `momentum` of their layer
            towards the statistics of the batch.
    """
    twin = copy.deepcopy(module)
    if isinstance(twin, _BatchNorm):
        return BatchStatistics(twin, frozen=frozen)
    for parent in list(twin.modules()):
        for name, layer in parent.named_children():
            if isinstance(layer, _BatchNorm):
                setattr(parent, name, BatchStatistics(layer, frozen=frozen))
    return twin


def is_random(module: nn.Module) -> bool:
    """Whether training passes of the module need keys."""
    return any(isinstance(layer, NamedDropout | Augment) for layer in module.modules())
