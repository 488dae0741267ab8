"""Blocks of singular values, as in the proof for nuclear norms.

References:
    Even, PhD thesis, 2024, Definitions 9.B.1 and 9.B.2, Lemma 9.B.1, tel-04877971.

Differences (see docs/errata.md): a shell is zero for k above ceil(min(D, N)/s); the
thesis says from this k on.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from coterie.checks import integer


def shells(x: Float[Tensor, "n d"], size: int) -> list[Tensor]:
    """The parts of a matrix with singular values 1 to s, s + 1 to 2 s, and so on.

    They sum to the matrix and are orthogonal to each other.
    """
    s = integer("size", size, at_least=1)
    left, values, right = torch.linalg.svd(x, full_matrices=False)
    parts = range(0, len(values), s)
    return [(left[:, k : k + s] * values[k : k + s]) @ right[k : k + s] for k in parts]
