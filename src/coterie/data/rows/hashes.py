"""A hash of each row of numbers.

A few rows at a time are copied into memory, so that the rows of a mapped file never
have to fit into memory together.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from ... import seeds

_AT_ONCE = 2**16
"""The number of 64-bit words that are mixed in one pass; they fit into a CPU cache."""


def hash_rows(values: Tensor, *names: str) -> Int[Tensor, " m"]:
    """(M,) the sum over each row's 64-bit words of mix(word) * factor, modulo 2^64.

    A row is read as words of 64 bits (eight bytes). Each position in the row has its
    own factor, which depends on the names.
    """
    count, entries = len(values), math.prod(values.shape[1:])
    size = entries * values.element_size()
    width = -(-size // 8)
    one = torch.zeros(1, dtype=torch.int64)
    factors = seeds.bits(seeds.key("content", *names), one, width)[0].numpy() | 1
    at_once = max(1, _AT_ONCE // max(1, width))
    # The same memory for all passes: new memory in each would leave gaps in the heap.
    held = np.zeros((min(at_once, count), 8 * width), np.uint8)
    found = np.empty(count, np.int64)
    for first in range(0, count, at_once):
        some = _as_array(values[first : first + at_once])
        words = held[: len(some)]
        words[:, size:] = 0
        numbers = words[:, :size].view(some.dtype)
        numbers[:] = some.reshape(len(some), entries)
        if some.dtype.kind == "f":
            numbers += 0.0  # -0.0 + 0.0 is 0.0
        # Integer overflow wraps around in arrays; tensors do not promise this.
        mixed = seeds.mix_in_place(words.view(np.int64))
        np.matmul(mixed, factors, out=found[first : first + len(some)])
    return torch.from_numpy(found)


def _as_array(values: Tensor) -> np.ndarray:
    """The numbers as an array; types that numpy does not have become their bits."""
    values = values.detach().cpu()
    if values.dtype == torch.bfloat16:
        values = (values + 0.0).view(torch.int16)
    return values.numpy()
