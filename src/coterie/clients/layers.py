"""Layers for kernels: they compute what torch's layers do, for many models at once.

Some layers of torch are slow, or do not work, if every client has its own weights. A
kernel replaces them in its own copy of a module. The names and the order of parameters
do not change.

- Recurrent layers run step by step in plain tensor operations. The fused layers of
  torch and cuDNN support neither many models at once nor second derivatives.
- On the CPU, linear layers compute W h' in place of h W', which is faster.

On the CPU, a module with only linear layers and entrywise functions is not vectorised:
for small models, vectorising takes longer than the products.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.utils.rnn import PackedSequence
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from .. import seeds
from ..checks import InputError
from ..models.layers import Augment, BatchStatistics, NamedDropout, with_own_layers

_VALUES_PER_STEP = 20
"""The largest number of intermediate results of a recurrent layer per output."""


class WeightsFirst(nn.Module):
    """A linear layer that computes W h' in place of h W'.

    If each client has its own W and few samples, this batched product is twice as fast
    on the CPU. If all clients share the samples h, it is a single product.
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        _take_over(self, layer)

    def forward(self, h: Tensor) -> Tensor:
        """The outputs of the layer."""
        return weights_first(h, self.weight, self.bias)


def weights_first(h: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The outputs of a linear layer, or of n layers with weights (n, ...)."""
    out = weight @ h.mT
    # Adding the bias before the transposition follows the order of memory.
    return (out if bias is None else out + bias[..., None]).mT


class Recurrent(nn.Module):
    """The layer nn.GRU, nn.LSTM or nn.RNN, computed step by step."""

    mode: str
    num_layers: int
    hidden_size: int
    proj_size: int
    batch_first: bool
    bidirectional: bool

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        _take_over(self, layer)

    def forward(
        self, input: Tensor | PackedSequence, hx: Any = None
    ) -> tuple[Tensor, Any]:
        """The outputs, and the last state of every layer."""
        if isinstance(input, PackedSequence):
            raise InputError("recurrent layers need padded sequences, not packed ones.")
        alone = input.dim() == 2  # one sequence, without a batch
        turned = self.batch_first and not alone
        x = input[:, None] if alone else input.transpose(0, 1) if turned else input
        begin = self._begin(x, hx, alone)  # one or two of (layers, B, H)
        ends: list[tuple[Tensor, ...]] = []
        for layer in range(self.num_layers):
            ways = []
            for way in ("", "_reverse")[: 1 + self.bidirectional]:
                state = tuple(each[len(ends)] for each in begin)
                out, end = self._along(x, state, f"_l{layer}{way}", back=bool(way))
                ways.append(out)
                ends.append(end)
            x = torch.cat(ways, 2)
        out = x[:, 0] if alone else x.transpose(0, 1) if turned else x
        last = tuple(torch.stack(each) for each in zip(*ends, strict=True))
        last = tuple(each[:, 0] for each in last) if alone else last
        return out, last if self.mode == "LSTM" else last[0]

    def _begin(self, x: Tensor, hx: Any, alone: bool) -> tuple[Tensor, ...]:
        if hx is not None:
            given = hx if self.mode == "LSTM" else (hx,)
            return tuple(each[:, None] for each in given) if alone else tuple(given)
        layers = self.num_layers * (1 + self.bidirectional)
        h = x.new_zeros(layers, x.shape[1], self.proj_size or self.hidden_size)
        c = x.new_zeros(layers, x.shape[1], self.hidden_size)
        return (h, c) if self.mode == "LSTM" else (h,)

    def _along(
        self, x: Tensor, state: tuple[Tensor, ...], end: str, *, back: bool
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The outputs (T, B, H) and the last state of one layer in one direction."""
        step = _STEPS[self.mode]
        parts = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
        w_x, w_h, b_x, b_h, projection = (self._parameters.get(p + end) for p in parts)
        assert w_x is not None and w_h is not None
        given = F.linear(x, w_x, b_x).unbind(0)
        outputs = []
        for now in reversed(given) if back else given:
            state = step(now, F.linear(state[0], w_h, b_h), state)
            if projection is not None:
                state = (F.linear(state[0], projection), *state[1:])
            outputs.append(state[0])
        return torch.stack(outputs[::-1] if back else outputs), state


class _Cell(nn.Module):
    """The layer nn.GRUCell, nn.LSTMCell or nn.RNNCell in plain operations."""

    mode: str
    hidden_size: int
    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor | None
    bias_hh: Tensor | None

    def __init__(self, layer: nn.RNNCellBase) -> None:
        super().__init__()
        _take_over(self, layer)
        modes = {nn.GRUCell: "GRU", nn.LSTMCell: "LSTM"}
        plain = "RNN_RELU" if vars(layer).get("nonlinearity") == "relu" else "RNN_TANH"
        self.mode = modes.get(type(layer), plain)

    def forward(self, input: Tensor, hx: Any = None) -> Any:
        if hx is None:
            h = input.new_zeros(*input.shape[:-1], self.hidden_size)
            hx = (h, h) if self.mode == "LSTM" else h
        state = tuple(hx) if self.mode == "LSTM" else (hx,)
        given = F.linear(input, self.weight_ih, self.bias_ih)
        held = F.linear(state[0], self.weight_hh, self.bias_hh)
        after = _STEPS[self.mode](given, held, state)
        return after if self.mode == "LSTM" else after[0]


# The next state, computed from W x + b of the input x, V h + c of the last output h,
# and the last state.


def _gru(given: Tensor, held: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    (r_x, z_x, n_x), (r_h, z_h, n_h) = given.chunk(3, -1), held.chunk(3, -1)
    r, z = (r_x + r_h).sigmoid(), (z_x + z_h).sigmoid()
    n = (n_x + r * n_h).tanh()
    return ((1 - z) * n + z * state[0],)


def _lstm(given: Tensor, held: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    i, f, g, o = (given + held).chunk(4, -1)
    c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


_STEPS: dict[str, Callable[..., tuple[Tensor, ...]]] = {
    "GRU": _gru,
    "LSTM": _lstm,
    "RNN_TANH": lambda given, held, _: ((given + held).tanh(),),
    "RNN_RELU": lambda given, held, _: ((given + held).relu(),),
}


def for_many_models(module: nn.Module, *, on_cpu: bool) -> nn.Module:
    """A copy of the module, in which layers are replaced by the rules above."""
    exchanged: dict[type, Callable[[Any], nn.Module]] = {
        **dict.fromkeys((nn.GRU, nn.LSTM, nn.RNN), Recurrent),
        **dict.fromkeys((nn.GRUCell, nn.LSTMCell, nn.RNNCell), _Cell),
        **({nn.Linear: WeightsFirst} if on_cpu else {}),
    }
    module = with_own_layers(module)
    if type(module) in exchanged:
        return exchanged[type(module)](module)
    for parent in list(module.modules()):
        for name, layer in parent.named_children():
            if type(layer) in exchanged:
                setattr(parent, name, exchanged[type(layer)](layer))
    return module


_ENTRYWISE = (nn.Identity, nn.ReLU, nn.ELU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU)

Pass = Callable[[dict[str, Tensor], Tensor], Tensor]


def chain(module: nn.Module, name: str = "") -> Pass | None:
    """A function that runs many chains of plain layers at once; None for other modules.

    The pass maps parameters (n, ...) and features (n, B, ...), or shared features (1,
    B, ...), to outputs (n, B, ...).

    Args:
        module: a result of `for_many_models`.
        name: the path of the module in the whole model, with a dot at the end.
    """
    if module._forward_hooks or module._forward_pre_hooks:
        return None
    if type(module) in _ENTRYWISE:
        return lambda _, h: module(h)
    if type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
        return lambda _, h: h.flatten(2)
    if type(module) is NamedDropout:
        return lambda point, h: _drop_units(module, h, point.get(f"{name}keys"))
    if type(module) is WeightsFirst:
        return lambda point, h: _through_linear(
            h,
            point.get(f"{name}weight", module.weight),
            point.get(f"{name}bias", module.bias),
        )
    if type(module) is not nn.Sequential:
        return None
    found = [chain(part, f"{name}{key}.") for key, part in module.named_children()]
    steps = [step for step in found if step is not None]
    return _in_sequence(steps) if len(steps) == len(found) else None


class SeeingModule:
    """A module that also returns the inputs of its layer `head`: the features.

    A pass returns outputs, the terms that layers add to a loss in training, and these
    features. It returns features only if exactly one layer has the name `head`.
    """

    def __init__(self, module: nn.Module, *, tied: bool) -> None:
        """Takes a copy of a module that `for_many_models` has returned."""
        self._module, self._tied = copy.deepcopy(module), tied
        self._kept: list[Tensor] = []
        named = dict(self._module.named_modules())
        heads = [part for n, part in named.items() if n.split(".")[-1] == "head"]
        self._has_head = len(heads) == 1
        self.chain = None if tied or not self._has_head else self._split_chain()
        if self._has_head:
            heads[0].register_forward_pre_hook(self._keep)

    def __call__(self, point: dict[str, Tensor], x: Tensor) -> tuple[Tensor, ...]:
        """Outputs (b, ...), a number, and features (b, f) of one model."""
        self._kept = []
        outputs = functional_call(self._module, point, (x,), tie_weights=self._tied)
        penalty = outputs.new_zeros(()) + penalty_of(self._module)
        if not self._has_head:
            return outputs, penalty
        if not self._kept:
            raise InputError("the model has a layer `head`, but does not call it.")
        features, self._kept = self._kept[-1], []
        return outputs, penalty, features.flatten(1)

    def _keep(self, _: nn.Module, given: tuple[Tensor, ...]) -> None:
        self._kept.append(given[0])

    def _split_chain(self) -> Callable[..., tuple[Tensor, ...]] | None:
        """The pass of many models, if the layers before `head` are plain chains."""
        parts = dict(self._module.named_children())
        if type(self._module) is not nn.Sequential or [*parts][-1:] != ["head"]:
            return None
        found = [chain(part, f"{name}.") for name, part in parts.items()]
        *body, head = steps = [step for step in found if step is not None]
        if len(steps) < len(parts):
            return None
        before = _in_sequence(body)

        def through(point: dict[str, Tensor], h: Tensor) -> tuple[Tensor, ...]:
            h = before(point, h)
            outputs = head(point, h)
            return outputs, outputs.new_zeros(len(outputs)), h.flatten(2)

        return through


def _drop_units(layer: NamedDropout, h: Tensor, keys: Tensor | None) -> Tensor:
    """The samples h (n, b, ...) after dropout by keys (n, b), or (b,) if shared."""
    if keys is None:
        return h
    return layer.drop(h, keys if keys.dim() > 1 else keys[None])


class TrainingLayers:
    """The layers of a module that behave differently in training and in evaluation."""

    def __init__(self, module: nn.Module) -> None:
        """Gives every random layer a number of its own, computed from its name."""
        self._random, self._norms = list[str](), list[str]()
        self.momenta: dict[str, float] = {}  # of running statistics, by name
        for name, layer in module.named_modules():
            dotted = f"{name}." if name else ""
            if isinstance(layer, NamedDropout | Augment):
                layer.place = seeds.key("layer", name)
                self._random.append(f"{dotted}keys")
            elif isinstance(layer, BatchStatistics) and not layer.frozen:
                self._norms.append(f"{dotted}share")
                for statistic in ("running_mean", "running_var"):
                    self.momenta[f"{dotted}{statistic}"] = layer.momentum

    @property
    def is_random(self) -> bool:
        """Whether a training pass needs keys."""
        return bool(self._random)

    @property
    def couples(self) -> bool:
        """Whether a pass depends on all samples of a batch together."""
        return bool(self._norms)

    def inputs(self, weight: Tensor, keys: Sequence[Tensor]) -> dict[str, Tensor]:
        """The inputs that layers get in addition to their parameters.

        Args:
            weight: the weights of the samples.
            keys: one tensor with the keys of samples, or none.
        """
        found = {name: weight for name in self._norms}
        return found | {name: each for each in keys for name in self._random}


def penalty_of(module: nn.Module) -> Tensor | float:
    """The sum of the terms that the last training pass of a module adds to the loss."""
    norms = (layer for layer in module.modules() if isinstance(layer, BatchStatistics))
    found = [part for norm in norms if (part := norm.take_penalty()) is not None]
    return torch.stack(found).sum() if found else 0.0


def _through_linear(h: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Outputs (n, B, ..., o) of a linear layer at every place of a sample."""
    flat = h.flatten(1, -2)
    # If features are shared, this is a single product.
    once = len(h) == 1 and weight.dim() == 3
    out = weights_first(flat[0] if once else flat, weight, bias)
    return out.unflatten(1, h.shape[1:-1])


def _in_sequence(steps: list[Pass]) -> Pass:
    def through(point: dict[str, Tensor], h: Tensor) -> Tensor:
        for step in steps:
            h = step(point, h)
        return h

    return through


def of_rows(
    of: Callable[[Tensor, Tensor], Tensor],
    outputs: Tensor,
    targets: Tensor,
    data: int | None,
) -> Tensor:
    """(n, B) values of a loss or a measure for samples of many models.

    Args:
        of: a function of outputs and targets that gives a number for each sample.
        outputs: (n, B, ...) the models' outputs.
        targets: (n, B, ...) for their samples, or (B, ...) for shared samples.
        data: the dimension along which models have their own samples, or None.
    """
    if not of.__module__.startswith("coterie."):  # a user's may only know one model
        return vmap(of, in_dims=(0, data))(outputs, targets)
    theirs = targets.expand(len(outputs), *targets.shape) if data is None else targets
    found = of(outputs.flatten(0, 1), theirs.flatten(0, 1))
    return found.view(outputs.shape[:2])


def slopes_of(
    point: Tensor, total: Callable[..., Tensor], *batch: Tensor, again: bool = False
) -> Tensor:
    """Gradients of the losses by the rows of `point`, in one backward pass.

    Args:
        point: rows of parameters; becomes a leaf of the graph of derivatives.
        total: a function of these rows and a batch that gives the sum of their losses.
        batch: features, targets, weights (n, B), and keys if there are any.
        again: whether the gradients must be differentiable.
    """
    with torch.enable_grad():
        found = total(point.requires_grad_(), *batch)
        if not found.requires_grad:  # no loss depends on a model
            return torch.zeros_like(point)
        return torch.autograd.grad(found, point, create_graph=again)[0]


def _take_over(layer: nn.Module, old: nn.Module) -> None:
    """Gives `layer` the parameters of `old`, and attributes that models may read."""
    layer.__dict__.update(old.__dict__)


def values_in_pass(module: nn.Module, sample: Tensor) -> int:
    """The approximate number of values in a sample and in its layers' outputs."""
    total = [sample.numel()]

    def count(layer: nn.Module, _: Any, out: Any) -> None:
        values = sum(part.numel() for part in tree_leaves(out))
        total.append(values * (_VALUES_PER_STEP if isinstance(layer, Recurrent) else 1))

    leaves = (layer for layer in module.modules() if not list(layer.children()))
    hooks = [layer.register_forward_hook(count) for layer in leaves]
    with torch.no_grad():
        module(sample)
    for hook in hooks:
        hook.remove()
    return sum(total)


class _Lookups(TorchFunctionMode):
    """Counts functions that look up embeddings."""

    _WATCHED = (F.embedding, F.embedding_bag, torch.embedding, torch.embedding_bag)

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.count += func in self._WATCHED
        return func(*args, **(kwargs or {}))


def looks_up(module: nn.Module, sample: Tensor) -> bool:
    """Whether a module looks up embeddings, in a layer or by a function."""
    with torch.no_grad(), _Lookups() as lookups:
        module(sample)
    return lookups.count > 0
