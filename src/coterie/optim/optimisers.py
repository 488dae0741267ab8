"""How a client's gradient becomes a step, for settings `lr` that are texts.

    lr = "sgd(0.1, nesterov=true)"       momentum looks ahead (Nesterov)
    lr = "curvature(1, clip=2)"          c over the curvature of a client's loss
    lr = "adam(0.001, beta2=0.99)"       Adam with decoupled weight decay (AdamW)
    lr = "adam(0.001, decoupled=false)"  Adam with weight decay in the gradient

All of these texts may have two more numbers. `clip` is the largest norm of a client's
gradient. `warmup` is the number of steps in which the step size grows linearly to its
value.

References:
    Kingma, Ba, "Adam: a method for stochastic optimization", ICLR 2015, arXiv
    1412.6980.
    Loshchilov, Hutter, "Decoupled weight decay regularization", ICLR 2019, arXiv
    1711.05101.
    Sutskever, Martens, Dahl, Hinton, "On the importance of initialization and momentum
    in deep learning", ICML 2013 (Nesterov's momentum, as torch.optim.SGD has it).
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..checks import InputError, brief, integer, number, one_of, suggestion

_LARGE = 4096
"""From this number of parameters on, torch's kernel is faster: one pass over memory."""

_PIECE = {"cpu": 2**18, "cuda": 2**24}
"""Adam's step is computed for this number of values at once; they fit in the cache.
"""

_EXAMPLES = {"adam": 0.005, "curvature": 1, "sgd": 0.1}
"""A usual number for each word, which error messages suggest."""


class Optimiser(NamedTuple):
    """The optimiser of a client's steps: what a text `lr` says, besides the number."""

    word: str = "sgd"  # or curvature, or adam
    size: float = 0.1
    clip: float = math.inf  # the largest norm of a gradient
    warmup: int = 0  # steps
    nesterov: bool = False
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    decoupled: bool = True  # whether weight decay stays out of Adam's means

    @property
    def is_adam(self) -> bool:
        """Whether Adam takes the steps."""
        return self.word == "adam"

    def columns(self, parameters: int, momentum: float) -> int:
        """How many columns the buffer has, for sums or for Adam's means and count."""
        if self.is_adam:
            return 2 * parameters + 1
        return parameters if momentum else 0


_SHARED = ("clip", "warmup")
_OPTIONS = {
    "sgd": (*_SHARED, "nesterov"),
    "curvature": (*_SHARED, "nesterov"),
    "adam": (*_SHARED, "beta1", "beta2", "epsilon", "decoupled"),
}
"""The options in the brackets of each word."""


@functools.lru_cache
def optimiser_of(name: str, text: str) -> Optimiser:
    """The optimiser that a text such as `adam(0.001, clip=1)` describes.

    >>> optimiser_of("lr", "adam(0.01, clip=2)").clip
    2.0
    """
    if text in _EXAMPLES:
        raise InputError(
            f"`{name}` {text!r} needs a number in brackets, such as "
            f'"{text}({_EXAMPLES[text]})".'
        )
    form = re.fullmatch(r"(\w+)\(([^()]+)\)", text)
    if form is None or form[1] not in _OPTIONS:
        raise InputError(
            f"`{name}` must be a number or curvature(1), adam(1), sgd(1), got "
            f"{brief(text)}."
        )
    word, (size, *more) = form[1], [part.strip() for part in form[2].split(",")]
    numbers = [part for part in (size, *more) if "=" not in part]
    if numbers != [size]:
        raise InputError(f"`{name}` {word} takes 1 number, got {brief(text)}.")
    pairs = [part.partition("=") for part in more]
    given = {key.strip(): value.strip() for key, _, value in pairs}
    for key in given:
        if key not in _OPTIONS[word]:
            raise InputError(
                f"`{name}` {word} has no option {key!r}."
                f"{suggestion(key, _OPTIONS[word])}"
            )
    read = {key: _value(f"{name} {key}", key, value) for key, value in given.items()}
    return Optimiser(word, _real(f"{name} {word}", size, above=0), **read)


def _value(name: str, key: str, text: str) -> Any:
    """The value of an option, of the type of its default."""
    if key in ("nesterov", "decoupled"):
        return one_of(name, text, ("true", "false")) == "true"
    if key == "warmup":
        if not re.fullmatch(r"[+-]?\d{1,15}", text):
            raise InputError(f"`{name}` must be a whole number, got {brief(text)}.")
        return integer(name, int(text), at_least=0, at_most=1e9)
    if key in ("beta1", "beta2"):
        return _real(name, text, at_least=0, below=1)
    return _real(name, text, above=0)


def _real(name: str, text: str, **limits: float) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"`{name}` must be a number, got {brief(text)}.") from None
    return number(name, value, **limits)


def adam_step(
    x: Float[Tensor, "n d"],
    g: Float[Tensor, "n d"],
    v: Float[Tensor, "n v"],
    optimiser: Optimiser,
    *,
    lr: Float[Tensor, "n 1"],
    decay: Tensor | None,
    reuse: bool = False,
    one_lr: bool = True,
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n v"]]:
    """Models and buffer after a step of Adam.

    The memory of g is overwritten, and with `reuse` that of x and v, too. `one_lr` says
    that all clients have the same step size.

        m <- b1 m + (1 - b1) g,   s <- b2 s + (1 - b2) g^2,   k <- k + 1
        x <- x (1 - lr decay) - lr m / (1 - b1^k) / (sqrt(s / (1 - b2^k)) + epsilon)

    A row of v holds m, s and k, the number of steps that this client has taken. A
    client that was absent continues with all three.
    """
    d, (b1, b2) = x.shape[1], (optimiser.beta1, optimiser.beta2)
    if v.shape[1] != 2 * d + 1:
        raise InputError(
            "`lr` adam needs a buffer with 2 D + 1 columns from one step to the next, "
            f"got {v.shape[1]} for D = {d}: this method or checkpoint has none."
        )
    after = v if reuse else torch.empty_like(v)
    torch.add(v[:, 2 * d :], 1, out=after[:, 2 * d :])
    if one_lr and d >= _LARGE:
        if not reuse:
            x, after[:, : 2 * d] = x.clone(), v[:, : 2 * d]
        _fused_step(x, g, after, optimiser, lr=lr, decay=decay)
        return x, after
    k = after[:, 2 * d :].double()
    first, second = (-1 / (1 - b1**k)).to(x), (1 - b2**k).to(x)
    root = None  # (some, D), in the same memory for all pieces
    for some in _pieces(x):
        old, slope = x[some], g[some]
        mean, square = after[some, :d], after[some, d : 2 * d]
        if decay is not None and optimiser.decoupled:
            old = old * (1 - lr[some] * decay[some])
        elif decay is not None:
            slope.addcmul_(decay[some].expand_as(old), old)
        torch.lerp(v[some, :d], slope, 1 - b1, out=mean)
        torch.lerp(v[some, d : 2 * d], slope.mul_(slope), 1 - b2, out=square)
        root = torch.empty_like(slope) if root is None else root[: len(slope)]
        torch.div(square, second[some], out=root).sqrt_().add_(optimiser.epsilon)
        torch.mul(lr[some], mean, out=slope).mul_(first[some]).div_(root).add_(old)
    return g, after


def _fused_step(
    x: Tensor,
    g: Tensor,
    after: Tensor,
    optimiser: Optimiser,
    *,
    lr: Tensor,
    decay: Tensor | None,
) -> None:
    """A step of Adam, which changes x, and m and s in `after`, which has the new k."""
    d = x.shape[1]
    if decay is not None and optimiser.decoupled:
        x.mul_(1 - lr * decay)
    elif decay is not None:
        g.addcmul_(decay.expand_as(x), x)
    torch._fused_adam_(
        x.unbind(),
        g.unbind(),
        after[:, :d].unbind(),
        after[:, d : 2 * d].unbind(),
        [],
        after[:, 2 * d].float().unbind(),
        lr=lr[0, 0],
        beta1=optimiser.beta1,
        beta2=optimiser.beta2,
        weight_decay=0.0,
        eps=optimiser.epsilon,
        amsgrad=False,
        maximize=False,
    )


def _pieces(x: Tensor) -> Iterator[slice]:
    """Rows that are computed together."""
    piece = _PIECE["cpu" if x.device.type == "cpu" else "cuda"]
    size = max(1, piece // max(1, x.shape[1]))
    for first in range(0, len(x), size):
        yield slice(first, first + size)
