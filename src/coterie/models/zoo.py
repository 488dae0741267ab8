"""Small models by name, any nn.Module, and models as rows of numbers.

A row of the federation matrix holds the parameters of one module in the order of
`named_parameters`. Modules with running statistics cannot be trained as rows: their
buffers would be shared by all clients. `with_group_norm` converts them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

from .. import seeds
from ..checks import InputError, integer, one_of

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}


class Layout(NamedTuple):
    """Names and shapes of a module's parameters, in the order of a row."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    sizes: tuple[int, ...]

    def unravel(self, rows: Float[Tensor, "*n d"]) -> dict[str, Tensor]:
        """The parameters by name, as views of one row (D,) or of many (n, D)."""
        parts = rows.split(self.sizes, dim=-1)
        return {
            name: part.view(*rows.shape[:-1], *shape)
            for name, part, shape in zip(self.names, parts, self.shapes, strict=True)
        }

    def ravel(self, parameters: dict[str, Tensor]) -> Float[Tensor, "n d"]:
        """Rows (n, D) of parameters that have a leading dimension n."""
        return torch.cat([parameters[name].flatten(1) for name in self.names], 1)


def layout(module: nn.Module) -> Layout:
    """How the parameters of `module` lie in a row."""
    named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    if not named:
        raise InputError("`model` must have parameters to train, this one has none.")
    names, parameters = zip(*named, strict=True)
    return Layout(
        names,
        tuple(p.shape for p in parameters),
        tuple(p.numel() for p in parameters),
    )


def ravel(module: nn.Module) -> Float[Tensor, " d"]:
    """The parameters of a module as one row (a copy).

    >>> ravel(nn.Linear(2, 1)).shape
    torch.Size([3])
    """
    values = [p.detach() for p in module.parameters() if p.requires_grad]
    return torch.cat([value.reshape(-1) for value in values])


def with_row(module: nn.Module, row: Float[Tensor, " d"]) -> nn.Module:
    """A copy of the module whose parameters are those of a row."""
    twin = copy.deepcopy(module)
    values = layout(module).unravel(row.detach().clone())
    for name, parameter in twin.named_parameters():
        if name in values:  # frozen parameters are not in the row
            parameter.data = values[name].to(parameter.device)
    return twin


def build(
    factory: Callable[[], nn.Module], seed: int, dtype: torch.dtype = torch.float32
) -> nn.Module:
    """The module of a factory, its start drawn from the stream (seed, "start").

    Modules draw their start from torch's global generator, which is put back after.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seeds.key(seed, "start") >> 1)
        module = factory()
    if not isinstance(module, nn.Module):
        raise InputError(f"`model` must give an nn.Module, got {type(module)}.")
    refuse_unsuitable(module)
    return module.to(dtype)


def refuse_unsuitable(module: nn.Module) -> None:
    """Raises InputError that lists all layers which rows of parameters cannot hold."""
    statistics = [
        name or "model"
        for name, layer in module.named_modules()
        if isinstance(layer, _BatchNorm)
        or (isinstance(layer, _InstanceNorm) and layer.track_running_stats)
    ]
    if statistics:
        raise InputError(
            f"`model` keeps running statistics in {', '.join(statistics)}, which "
            "clients cannot share; convert it with coterie.with_group_norm(model)."
        )
    random = [
        name or "model"
        for name, layer in module.named_modules()
        if isinstance(layer, _DropoutNd) and layer.p > 0
    ]
    if random:
        raise InputError(
            f"`model` draws random masks in {', '.join(random)} from torch's global "
            "generator, so no run could be repeated; remove the dropout or set p=0, "
            "and regularise with `weight_decay`."
        )


def with_group_norm(module: nn.Module, *, groups: int = 8) -> nn.Module:
    """A copy of the module with GroupNorm in place of every BatchNorm.

    Args:
        module: any module.
        groups: the most groups a layer gets; it takes the largest common divisor with
            its number of channels.
    """
    twin = copy.deepcopy(module)
    if isinstance(twin, _BatchNorm):
        return _group_norm(twin, groups)
    for parent in list(twin.modules()):
        for name, layer in parent.named_children():
            if isinstance(layer, _BatchNorm):
                setattr(parent, name, _group_norm(layer, groups))
    return twin


def _group_norm(layer: _BatchNorm, groups: int) -> nn.GroupNorm:
    channels = layer.num_features
    norm = nn.GroupNorm(
        math.gcd(groups, channels), channels, eps=layer.eps, affine=layer.affine
    )
    if layer.affine:
        norm.load_state_dict({"weight": layer.weight, "bias": layer.bias})
    return norm


def linear(shape: Sequence[int], outputs: int, *, bias: bool = True) -> nn.Module:
    """A linear map of the flattened features, started at zero."""
    model = nn.Linear(math.prod(shape), outputs, bias=bias)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return nn.Sequential(nn.Flatten(), model)


def logistic(shape: Sequence[int], outputs: int) -> nn.Module:
    """Logistic regression: the linear model, whose loss is then convex."""
    return linear(shape, outputs)


def mlp(
    shape: Sequence[int],
    outputs: int,
    *,
    hidden: Sequence[int] = (32,),
    activation: str = "relu",
) -> nn.Module:
    """A multilayer perceptron with the given hidden widths."""
    whole = isinstance(hidden, list | tuple) and all(type(w) is int for w in hidden)
    if not whole or min(hidden, default=1) < 1:
        raise InputError(
            f"`hidden` must be a list of whole numbers of at least 1, got {hidden!r}."
        )
    act = ACTIVATIONS[one_of("activation", activation, ACTIVATIONS)]
    widths = [math.prod(shape), *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), act()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))


def cnn(shape: Sequence[int], outputs: int, *, width: int = 8) -> nn.Module:
    """Two 3x3 convolutions with pooling and two linear layers (20,986 on 28x28)."""
    integer("width", width, at_least=1)
    body = nn.Sequential(
        nn.Conv2d(shape[0], width, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
    )
    flat = _outputs_of(body, shape)
    return body.extend([nn.Linear(flat, 48), nn.ReLU(), nn.Linear(48, outputs)])


def lenet(shape: Sequence[int], outputs: int) -> nn.Module:
    """LeNet-5 with average pooling and ReLU (62,006 parameters on 3x32x32)."""
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
    head = [nn.Linear(flat, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU()]
    return body.extend([*head, nn.Linear(84, outputs)])


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


class _UNet3d(nn.Module):
    """One level of a 3-D U-Net around a smaller one."""

    def __init__(self, channels: int, width: int, outputs: int, depth: int) -> None:
        super().__init__()
        self.down = _block3d(channels, width)
        self.pool = nn.MaxPool3d(2)
        self.inside: nn.Module
        if depth > 1:
            self.inside = _UNet3d(width, 2 * width, 2 * width, depth - 1)
        else:
            self.inside = _block3d(width, 2 * width)
        self.up = nn.ConvTranspose3d(2 * width, width, 2, stride=2)
        self.join = _block3d(2 * width, width)
        self.head = nn.Conv3d(width, outputs, 1)

    def forward(self, volume: Tensor) -> Tensor:
        here = self.down(volume)
        below = self.up(self.inside(self.pool(here)))
        return self.head(self.join(torch.cat([here, below], 1)))


def _block3d(before: int, after: int) -> nn.Module:
    norm = nn.GroupNorm(math.gcd(8, after), after)
    return nn.Sequential(nn.Conv3d(before, after, 3, padding=1), norm, nn.ReLU())


def unet3d(
    shape: Sequence[int], outputs: int, *, width: int = 8, depth: int = 2
) -> nn.Module:
    """A 3-D U-Net with group normalisation for volumes (channels, x, y, z)."""
    integer("width", width, at_least=1)
    integer("depth", depth, at_least=1)
    if len(shape) != 4 or any(side % 2**depth for side in shape[1:]):
        raise InputError(
            "`unet3d` needs volumes (channels, x, y, z) with sides divisible by "
            f"2^depth = {2**depth}, got features of shape {tuple(shape)}."
        )
    return _UNet3d(shape[0], width, outputs, depth)


MODELS: dict[str, Callable[..., nn.Module]] = {
    "linear": linear,
    "logistic": logistic,
    "mlp": mlp,
    "cnn": cnn,
    "lenet": lenet,
    "unet3d": unet3d,
}
