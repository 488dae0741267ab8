"""Small models by name: functions of a sample's shape and the number of outputs.

Each model has a `body` and ends in a layer `head`. Normalisation layers have names that
begin with `norm`. So patterns for `layouts.columns` can name these parts.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from ..checks import InputError, brief, integer, number, one_of
from .layers import Augment, BatchStatistics, NamedDropout

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}


_LAYERS = 1000
"""The largest number of hidden layers; more must be a mistake."""


def linear(shape: Sequence[int], outputs: int, *, bias: bool = True) -> nn.Module:
    """A linear map of the flattened features that starts at zero."""
    head = nn.Linear(math.prod(shape), outputs, bias=bias)
    for parameter in head.parameters():
        nn.init.zeros_(parameter)
    return _sequential(body=nn.Flatten(), head=head)


def logistic(shape: Sequence[int], outputs: int) -> nn.Module:
    """Logistic regression: the linear model; with a loss for labels, it is convex."""
    return linear(shape, outputs)


def mlp(
    shape: Sequence[int],
    outputs: int,
    *,
    hidden: Sequence[int] = (32,),
    activation: str = "relu",
    dropout: float = 0.0,
) -> nn.Module:
    """A multilayer perceptron with the given hidden widths.

    In training, each hidden unit is left out with the probability `dropout`.
    """
    whole = isinstance(hidden, list | tuple) and all(type(w) is int for w in hidden)
    if not whole or min(hidden, default=1) < 1:
        raise InputError(
            "`hidden` must be a list of whole numbers of at least 1, got "
            f"{brief(hidden)}."
        )
    if len(hidden) > _LAYERS:
        raise InputError(
            f"`hidden` must have at most {_LAYERS} layers, got {len(hidden):,}."
        )
    _dropout(dropout)  # refuses other numbers, also without hidden layers
    act = ACTIVATIONS[one_of("activation", activation, ACTIVATIONS)]
    widths = [math.prod(shape), *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), act(), *_dropout(dropout)]
    return _sequential(body=nn.Sequential(*layers), head=nn.Linear(widths[-1], outputs))


def cnn(
    shape: Sequence[int],
    outputs: int,
    *,
    width: int = 8,
    norm: str = "none",
    dropout: float = 0.0,
    augment: Sequence[str] = (),
) -> nn.Module:
    """Two 3x3 convolutions with pooling and two linear layers (20,986 on 28x28).

    Layers `norm1` and `norm2` follow the convolutions if `norm` is `group`, `batch`
    (with running statistics as columns) or `frozen` (with constant statistics). In
    training, `dropout` leaves out hidden units, and `augment` changes images by
    `crop(2)`, `flip` and `noise(0.1)`.
    """
    integer("width", width, at_least=1)
    if norm == "none":
        body = nn.Sequential(
            nn.Conv2d(shape[0], width, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
    else:
        body = _sequential(
            conv1=nn.Conv2d(shape[0], width, 3),
            norm1=_norm(norm, width),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(width, 2 * width, 3),
            norm2=_norm(norm, 2 * width),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flat=nn.Flatten(),
        )
    hidden = [nn.Linear(_outputs_of(body, shape), 48), nn.ReLU(), *_dropout(dropout)]
    body.extend(hidden)
    return _sequential(
        **_augment(augment, shape), body=body, head=nn.Linear(48, outputs)
    )


def _dropout(chance: float) -> list[nn.Module]:
    """The layers that leave out units with this probability; none if it is 0."""
    number("dropout", chance, at_least=0, below=1)
    return [NamedDropout(chance)] if chance else []


def _augment(ways: Sequence[str], shape: Sequence[int]) -> dict[str, nn.Module]:
    """The layer that changes samples in these ways, by name; empty without any."""
    if not isinstance(ways, list | tuple) or not all(type(w) is str for w in ways):
        raise InputError(f"`augment` must be a list of texts, got {brief(ways)}.")
    layer = Augment(*ways)
    for word, size in layer.ways:
        if word == "crop" and size >= min(shape[1:]):
            raise InputError(
                f"`augment` crop must be smaller than images, {min(shape[1:])}, got "
                f"crop({size:g})."
            )
    return {"augment": layer} if ways else {}


NORMS: dict[str, Callable[[int], nn.Module]] = {
    "group": lambda size: nn.GroupNorm(math.gcd(8, size), size),
    "batch": lambda size: BatchStatistics(nn.BatchNorm2d(size)),
    "frozen": lambda size: BatchStatistics(nn.BatchNorm2d(size), frozen=True),
}


def _norm(name: str, size: int) -> nn.Module:
    return NORMS[one_of("norm", name, ("none", *NORMS))](size)


def lenet(
    shape: Sequence[int],
    outputs: int,
    *,
    dropout: float = 0.0,
    augment: Sequence[str] = (),
) -> nn.Module:
    """LeNet-5 with average pooling and ReLU (62,006 parameters on 3x32x32).

    In training, `dropout` leaves out hidden units, and `augment` changes images.
    """
    padding = 2 if shape[-1] < 32 else 0
    body = nn.Sequential(
        nn.Conv2d(shape[0], 6, 5, padding=padding),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
    )
    flat = _outputs_of(body, shape)
    body.extend([nn.Linear(flat, 120), nn.ReLU(), *_dropout(dropout)])
    body.extend([nn.Linear(120, 84), nn.ReLU(), *_dropout(dropout)])
    return _sequential(
        **_augment(augment, shape), body=body, head=nn.Linear(84, outputs)
    )


class Diagonal(nn.Module):
    """A linear map in which each weight is the product of two parameters."""

    def __init__(self, inputs: int, outputs: int, scale: float) -> None:
        super().__init__()
        self.u = nn.Parameter(torch.full((outputs, inputs), math.sqrt(2) * scale))
        self.v = nn.Parameter(torch.zeros(outputs, inputs))

    def forward(self, features: Tensor) -> Tensor:
        """The outputs of the map."""
        return features @ (self.u * self.v).T


def diagonal(shape: Sequence[int], outputs: int, *, scale: float = 0.1) -> nn.Module:
    """A diagonal linear network with weights u v; u starts at sqrt(2) scale, v at 0.

    With a smaller scale, gradient descent finds sparser solutions.
    """
    number("scale", scale, above=0)
    head = Diagonal(math.prod(shape), outputs, scale)
    return _sequential(body=nn.Flatten(), head=head)


def _sequential(**layers: nn.Module) -> nn.Sequential:
    """A module of these layers, one after the other."""
    return nn.Sequential(OrderedDict(layers))


def _outputs_of(body: nn.Module, shape: Sequence[int]) -> int:
    if len(shape) != 3:
        raise InputError(
            f"`model` needs images of shape (channels, height, width), got "
            f"features of shape {tuple(shape)}."
        )
    try:
        with torch.no_grad():
            return int(body(torch.zeros(1, *shape)).shape[1])
    except RuntimeError:
        raise InputError(
            f"`model` needs larger images, got features of shape {tuple(shape)}."
        ) from None


class UNet3d(nn.Module):
    """One level of a 3-D U-Net around a smaller one, without its last layer."""

    def __init__(self, channels: int, width: int, depth: int) -> None:
        super().__init__()
        self.down = _block3d(channels, width)
        self.pool = nn.MaxPool3d(2)
        self.inside = (
            _block3d(width, 2 * width)
            if depth == 1
            else _sequential(
                level=UNet3d(width, 2 * width, depth - 1),
                out=nn.Conv3d(2 * width, 2 * width, 1),
            )
        )
        self.up = nn.ConvTranspose3d(2 * width, width, 2, stride=2)
        self.join = _block3d(2 * width, width)

    def forward(self, volume: Tensor) -> Tensor:
        """`width` channels for every voxel of the volume."""
        here = self.down(volume)
        below = self.up(self.inside(self.pool(here)))
        return self.join(torch.cat([here, below], 1))


def _block3d(before: int, after: int) -> nn.Module:
    return _sequential(
        conv=nn.Conv3d(before, after, 3, padding=1),
        norm=nn.GroupNorm(math.gcd(8, after), after),
        relu=nn.ReLU(),
    )


def unet3d(
    shape: Sequence[int], outputs: int, *, width: int = 8, depth: int = 2
) -> nn.Module:
    """A 3-D U-Net with group normalisation for volumes (channels, x, y, z)."""
    integer("width", width, at_least=1)
    integer("depth", depth, at_least=1, at_most=20)
    if len(shape) != 4 or any(side % 2**depth for side in shape[1:]):
        raise InputError(
            "`unet3d` needs volumes (channels, x, y, z) with sides divisible by "
            f"2^depth = {2**depth}, got features of shape {tuple(shape)}."
        )
    body = UNet3d(shape[0], width, depth)
    return _sequential(body=body, head=nn.Conv3d(width, outputs, 1))


MODELS: dict[str, Callable[..., nn.Module]] = {
    "linear": linear,
    "logistic": logistic,
    "mlp": mlp,
    "cnn": cnn,
    "lenet": lenet,
    "unet3d": unet3d,
    "diagonal": diagonal,
}
