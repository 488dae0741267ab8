"""Random times from named distributions (laws), as pure functions of whole numbers.

With u uniform on (0, 1) and z normal:

    constant(s)               s
    exponential(mean)         -mean log u
    lognormal(median, sigma)  median exp(sigma z)
    pareto(least, alpha)      least u^(-1/alpha), of mean least alpha / (alpha - 1)
    uniform(low, high)        low + (high - low) u
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from ..checks import InputError, call, integer, number, one_of
from ..seeds import mix

# With these limits, times do not overflow: alpha 0.1 and sigma 50 reach 1e160 and
# 1e186.
FROM_ZERO = {"at_least": 0.0, "at_most": 1e12}
POSITIVE = {"above": 0.0, "at_most": 1e12}
Rules = Mapping[str, Mapping[str, Mapping[str, float]]]
LAWS: Rules = {
    "constant": {"s": FROM_ZERO},
    "exponential": {"mean": POSITIVE},
    "lognormal": {"median": POSITIVE, "sigma": {"at_least": 0.0, "at_most": 50.0}},
    "pareto": {"least": POSITIVE, "alpha": {"at_least": 0.1}},
    "uniform": {"low": FROM_ZERO, "high": FROM_ZERO},
}


def setting(name: str, text: str, rules: Rules) -> tuple[str, tuple[float, ...]]:
    """The name and the numbers in a valid setting, such as `uniform(1, 2)`."""
    word, values = call(name, text)
    limits = rules[one_of(name, word, rules)]
    if len(values) != len(limits):
        raise InputError(f"`{name}` {word} takes {len(limits)} numbers, got {text!r}.")
    for value, (argument, limit) in zip(values, limits.items(), strict=True):
        number(f"{name} {argument}", value, **limit)
    if word == "uniform":
        number(f"{name} high", values[1], at_least=values[0])
    return word, values


def identities(name: str, names: Tensor, known: int | None = None) -> None:
    """Refuses identities that are not between 0 and `known` - 1."""
    wrong = names < 0 if known is None else (names < 0) | (names >= known)
    if wrong.any():
        rule = "at least 0" if known is None else f"between 0 and {known - 1}"
        raise InputError(f"`{name}` must be {rule}, got {int(names[wrong][0])}.")


def numbers(first: Int[Tensor, " n"], count: int) -> Int[Tensor, "n {count}"]:
    """Row j holds the whole numbers first[j] .. first[j] + count - 1."""
    identities("first", first)
    return first[:, None] + torch.arange(integer("count", count, at_least=0))


def uniforms(
    stream: int, names: Int[Tensor, "n k"], first: Int[Tensor, " n"], count: int
) -> Float64[Tensor, "n {count}"]:
    """Draws in (0, 1): row j has first[j] .. first[j] + count - 1 of names[j]."""
    state = torch.tensor(stream)
    for name in names.long().unbind(1):
        state = mix(state + mix(name))
    z = mix(state[:, None] + mix(numbers(first.long(), count)))
    # 52 bits plus one half fit into a double; with one more bit, some would round to 1.
    return (((z >> 12) & (2**52 - 1)).double() + 0.5) * 2.0**-52


def draw(
    law: str,
    stream: int,
    names: Int[Tensor, "n k"],
    first: Int[Tensor, " n"],
    count: int,
) -> Float64[Tensor, "n {count}"]:
    """Times: row j has numbers first[j] .. first[j] + count - 1 for names[j]."""
    word, values = call("law", law)
    if word == "lognormal":
        # Box and Muller (1958): z = sqrt(-2 log u) sin(pi v), v uniform on (-1/2, 1/2).
        draws = uniforms(stream, names, 2 * first.long(), 2 * count)
        u, v = draws[:, ::2], draws[:, 1::2] - 0.5
        z = _exp(log(-2 * log(u)) / 2) * _sin(math.pi * v)
        return values[0] * _exp(values[1] * z)
    u = uniforms(stream, names, first, count)
    if word == "constant":
        return torch.full_like(u, values[0])
    if word == "exponential":
        return -values[0] * log(u)
    if word == "pareto":
        return values[0] * _exp(-log(u) / values[1])
    return values[0] + (values[1] - values[0]) * u


# These functions use only sums, products and quotients; IEEE 754 fixes how these round.
# The last digit of library functions depends on the machine and on the position in a
# block.
_ARTANH = [1 / (2 * k + 1) for k in range(12)]
_EXP = [1 / math.factorial(k) for k in range(15)]
_SIN = [(-1) ** k / math.factorial(2 * k + 1) for k in range(12)]


def _series(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """The sum of coefficients[k] x^k."""
    total = torch.zeros_like(x)
    for coefficient in reversed(coefficients):
        total = total * x + coefficient
    return total


def log(x: Tensor) -> Tensor:
    """Log x = log m + e log 2, x = m 2^e, log m = 2 artanh((m - 1) / (m + 1))."""
    m, e = torch.frexp(x)
    low = m < math.sqrt(0.5)
    m, e = torch.where(low, 2 * m, m), e.double() - low.double()
    s = (m - 1) / (m + 1)
    return 2 * s * _series(s * s, _ARTANH) + e * math.log(2)


def _exp(x: Tensor) -> Tensor:
    """Exp x = 2^k exp(x - k log 2), with k whole and 2^k written as bits."""
    k = (x / math.log(2)).round()
    power = ((k.long() + 1023) << 52).view(torch.float64)
    return power * _series(x - k * math.log(2), _EXP)


def _sin(x: Tensor) -> Tensor:
    return x * _series(x * x, _SIN)
