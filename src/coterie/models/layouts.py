"""Models as rows of numbers: which column of a row is which parameter of a module.

A row holds the parameters of one module in the order of `named_parameters`. Modules
with running statistics cannot be trained as rows, because all clients would share their
buffers. `with_group_norm` converts such modules.
"""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

from .. import seeds
from ..checks import InputError, suggestion
from .layers import DROPOUTS, with_own_layers


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
        """Rows (n, D), from parameters that have a leading dimension n."""
        return torch.cat([parameters[name].flatten(1) for name in self.names], 1)


def layout(module: nn.Module) -> Layout:
    """The layout of rows for the parameters of `module`."""
    named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    if not named:
        raise InputError("`model` must have parameters to train, this one has none.")
    names, parameters = zip(*named, strict=True)
    return Layout(
        names,
        tuple(p.shape for p in parameters),
        tuple(p.numel() for p in parameters),
    )


def columns(model: Layout | nn.Module, patterns: Sequence[str]) -> Bool[Tensor, " d"]:
    """Which columns of a row belong to modules that a pattern names.

    A shell pattern such as `body.1`, `norm*` or `head` can match the dotted name of a
    parameter, the path of a module around it, or the name of any module on that path.
    It can also match the last part of a parameter's name, such as `B`. But patterns do
    not match the last parts `weight` and `bias`, because all layers have them. So `b*`
    matches `body` and no `bias`.

    >>> columns(nn.Sequential(nn.Linear(2, 1), nn.Linear(1, 1)), ["1"]).tolist()
    [False, False, False, True, True]

    Raises:
        InputError: if a pattern matches nothing, or the patterns match everything.
    """
    rows = model if isinstance(model, Layout) else layout(model)
    whole = isinstance(patterns, list | tuple)
    if not whole or not all(isinstance(pattern, str) for pattern in patterns):
        raise InputError(f"`patterns` must be a list of texts, got {patterns!r}.")
    chosen = set()
    for pattern in patterns:
        named = {name for name in rows.names if _matches(name, pattern)}
        if not named:
            raise InputError(
                f"no module of the model matches {pattern!r}: it has "
                f"{', '.join(_modules(rows))}.{suggestion(pattern, _modules(rows))}"
            )
        chosen |= named
    if len(chosen) == len(rows.names):
        raise InputError(
            "nothing would be shared: every parameter of the model matches "
            f"{' or '.join(map(repr, patterns))}, so name fewer modules or use a model "
            "with more."
        )
    mine = torch.tensor([name in chosen for name in rows.names])
    return mine.repeat_interleave(torch.tensor(rows.sizes))


def batch_norm_columns(model: Layout | nn.Module) -> Bool[Tensor, " d"]:
    """Which columns of a row are batch normalisation, with its running statistics.

    Raises:
        InputError: if no layer has running statistics.
    """
    rows = model if isinstance(model, Layout) else layout(model)
    layers = {n.rpartition(".")[0] for n in rows.names if n.endswith("running_mean")}
    if not layers:
        raise InputError(
            "`norm` batch needs batch normalisation with running statistics in the "
            'model, which has none: write norm = "batch" in [model], or name layers.'
        )
    mine = torch.tensor([name.rpartition(".")[0] in layers for name in rows.names])
    return mine.repeat_interleave(torch.tensor(rows.sizes))


def matrices(
    model: Layout | nn.Module, patterns: Sequence[str] | None = None
) -> Int[Tensor, "l 3"]:
    """For each matrix of a model, its first column in a row, and its rows and columns.

    A parameter of more than two dimensions counts as a matrix with a row per output.

    >>> matrices(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))).tolist()
    [[0, 3, 2], [9, 1, 3]]

    Args:
        model: the module with the parameters.
        patterns: patterns of modules, as for `columns`; None: all modules.

    Raises:
        InputError: if there is no matrix, or a pattern matches nothing.
    """
    rows = model if isinstance(model, Layout) else layout(model)
    chosen = None if patterns is None else columns(rows, patterns)
    found, begin = [], 0
    for shape, size in zip(rows.shapes, rows.sizes, strict=True):
        if len(shape) > 1 and (chosen is None or bool(chosen[begin])):
            found.append([begin, shape[0], size // shape[0]])
        begin += size
    if not found:
        named = "" if patterns is None else f" in {', '.join(patterns)}"
        raise InputError(f"the model has no matrices{named}.")
    return torch.tensor(found)


def _matches(parameter: str, pattern: str) -> bool:
    *modules, own = parts = parameter.split(".")
    names = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
    names += modules if own.startswith(("weight", "bias")) else parts
    return any(fnmatchcase(name, pattern) for name in names)


def _modules(rows: Layout) -> list[str]:
    """Paths of the modules that have parameters, outer ones before inner ones."""
    found = [name.split(".")[:-1] for name in rows.names]
    paths = [".".join(p[:end]) for p in found for end in range(1, len(p) + 1)]
    return list(dict.fromkeys(paths)) or list(rows.names)


def ravel(module: nn.Module) -> Float[Tensor, " d"]:
    """The parameters of a module as one row (a copy).

    >>> ravel(nn.Linear(2, 1)).shape
    torch.Size([3])
    """
    values = [p.detach() for p in module.parameters() if p.requires_grad]
    return torch.cat([value.reshape(-1) for value in values])


def with_row(module: nn.Module, row: Float[Tensor, " d"]) -> nn.Module:
    """A copy of the module with the parameters of a row."""
    twin = copy.deepcopy(module)
    values = layout(module).unravel(row.detach().clone())
    for name, parameter in twin.named_parameters():
        if name in values:  # frozen parameters are not in the row
            parameter.data = values[name].to(parameter.device)
    return twin


_GLOBAL = threading.Lock()
"""A lock for draws from torch's global generator, which all threads share."""


def build(
    factory: Callable[[], nn.Module], seed: int, dtype: torch.dtype = torch.float32
) -> nn.Module:
    """The module of a factory, with parameters drawn from the stream (seed, "start").

    Modules draw their parameters from torch's global generator. The state of this
    generator is restored afterwards.
    """
    with _GLOBAL, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seeds.key(seed, "start") >> 1)
        module = factory()
    if not isinstance(module, nn.Module):
        raise InputError(f"`model` must give an nn.Module, got {type(module)}.")
    refuse_unsuitable(module)
    return with_own_layers(module).to(dtype)


def refuse_unsuitable(module: nn.Module) -> None:
    """Raises an InputError that names all layers that rows cannot hold."""
    statistics, coupled, random, empty = [], [], [], []
    for path, layer in module.named_modules():
        name = path or "model"
        if isinstance(layer, _BatchNorm | _InstanceNorm) and layer.track_running_stats:
            statistics.append(name)
        elif isinstance(layer, _BatchNorm):
            coupled.append(name)
        elif isinstance(layer, DROPOUTS) and layer.p < 1:
            continue
        elif isinstance(layer, _DropoutNd) and layer.p == 1:
            empty.append(name)
        elif (isinstance(layer, _DropoutNd) and layer.p > 0) or (
            isinstance(layer, nn.RNNBase) and layer.dropout > 0
        ):
            random.append(name)
    if coupled:
        raise InputError(
            f"`model` normalises over the samples of a batch in {', '.join(coupled)}, "
            "so that its answer to one sample would depend on the others; convert it "
            "with coterie.with_group_norm(model)."
        )
    if statistics:
        raise InputError(
            f"`model` keeps running statistics in {', '.join(statistics)}, which "
            "clients cannot share; convert it with coterie.with_group_norm(model), or "
            "with coterie.with_batch_statistics(model)."
        )
    if empty:
        raise InputError(
            f"`model` drops everything in {', '.join(empty)}: p must be below 1, got 1."
        )
    if random:
        raise InputError(
            f"`model` draws random masks in {', '.join(random)} from torch's global "
            "generator, so no run could be repeated; remove the dropout or set it to "
            "0, or use nn.Dropout between layers."
        )


def with_group_norm(module: nn.Module, *, groups: int = 8) -> nn.Module:
    """A copy of the module with GroupNorm in place of every BatchNorm.

    Args:
        module: any module.
        groups: the largest number of groups. A layer gets the greatest common divisor
            of this number and its number of channels.
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
