"""Which way is faster on a CPU, predicted from the model, the batch and the clients.

The rule compares two predicted times. Neither is measured during a run, because results
must not depend on how busy a machine is.

    one pass:   a operations + n (b B products + c (B values + 3 D)) + fresh memory
    alone:      n (a operations / min(threads, 2)
                   + (b B products + c (B values + 3 D)) / threads)

A model has D parameters. A forward pass of one sample needs `operations` on tensors,
with `products` of two numbers inside products of matrices and convolutions, and has
`values` in its layers. The constants a, b and c depend on the way and on the kind of
model. Work in one pass is divided among threads only for chains of plain layers.
`python benchmarks/ways.py` measures both ways and fits the constants.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ..layers import Recurrent


class Work(NamedTuple):
    """What a forward pass needs."""

    kind: str  # a key of COSTS
    operations: int
    products: int  # of one sample
    values: int  # in the features and layers of one sample, with their gradients
    parameters: int


class Cost(NamedTuple):
    """Microseconds of a gradient by one way, on one core."""

    operation: float
    million_products: float
    million_values: float

    def one_row(self, work: Work, samples: int) -> float:
        """The time that grows with the number of rows, for each row."""
        values = samples * work.values + 3 * work.parameters
        products = samples * work.products
        return (self.million_products * products + self.million_values * values) / 1e6


COSTS = {
    # kind: (in one pass, alone)
    "chain": (Cost(8, 52, 549), Cost(6, 35, 577)),
    "convolutions": (Cost(42, 73, 2038), Cost(18, 72, 1154)),
    "recurrent": (Cost(23, 97, 1167), Cost(2, 67, 494)),
    "other": (Cost(23, 9, 10475), Cost(14, 27, 4272)),
}
"""The result of `python benchmarks/ways.py`, on one core of an AMD EPYC."""

_LARGE, _FRESH = 2**23, 3800
"""Above this number of values in all rows, the C library gets the memory of a gradient
from the system every time, at this number of microseconds per million values.
"""

_TIE = 1.1
"""Predictions are this exact. In a tie, rows run alone, as in the usual loop."""


def runs_alone(work: Work, samples: int, rows: int, threads: int) -> bool:
    """Whether rows with this number of samples each should run one after the other."""
    at_once, alone = COSTS[work.kind]
    one_pass = rows * at_once.one_row(work, samples)
    if work.kind == "chain":  # torch divides these batched products among all cores
        one_pass /= threads
    one_pass += at_once.operation * work.operations
    if rows * work.parameters > _LARGE:
        one_pass += _FRESH * rows * work.parameters / 1e6
    turns = -(-rows // threads)
    apart = turns * alone.one_row(work, samples)
    # In about half of this overhead, threads wait for each other's Python.
    apart += max(turns, rows / 2) * alone.operation * work.operations
    return apart < _TIE * one_pass


def work_of(
    module: nn.Module, sample: Tensor, *, is_chain: bool, values: int, parameters: int
) -> Work:
    """The work of a module in the form in which it handles many models.

    Args:
        module: a result of `for_many_models`.
        sample: features of one sample (1, ...).
        is_chain: whether the module is a chain of plain layers.
        values: the number of values in one sample's pass, with their gradients.
        parameters: the length of a row.
    """
    products = []

    def count(layer: nn.Module, _: Any, out: Any) -> None:
        products.append(_products_of(layer, tree_leaves(out)[0]))

    layers = list(module.modules())
    hooks = [layer.register_forward_hook(count) for layer in layers]
    with torch.no_grad(), _Operations() as operations:
        module(sample)
    for hook in hooks:
        hook.remove()
    if convolves(module):
        kind = "convolutions"
    elif any(isinstance(layer, Recurrent) for layer in layers):
        kind = "recurrent"
    else:
        kind = "chain" if is_chain else "other"
    return Work(kind, operations.count, sum(products), values, parameters)


def convolves(module: nn.Module) -> bool:
    """Whether a layer of the module is a convolution."""
    return any(isinstance(layer, _ConvNd) for layer in module.modules())


def _products_of(layer: nn.Module, out: Tensor) -> int:
    """The products inside a layer, without those of the layers in it."""
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        return 0
    own = [weight for weight in layer.parameters(recurse=False) if weight.dim() > 1]
    if isinstance(layer, _ConvNd):
        return out.numel() * own[0][0].numel()
    # Every matrix meets every place of a sample, such as a word, once.
    places = out.numel() // out.shape[-1] if out.dim() else 1
    return places * sum(weight.numel() for weight in own)


class _Operations(TorchFunctionMode):
    """Counts calls of torch's functions."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))
