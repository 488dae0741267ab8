"""The six clients with classes, and who of them takes part."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from support.simulated import REAL

# Their number, the size of their models, and how an average weighs them.
N, D = 6, 47
SHARES = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], dtype=REAL)
# Of the threads that hold two clients each, the last has nobody who takes part.
SOME = torch.tensor([True, False, True, True, False, False])
everybody_or_some = pytest.mark.parametrize("active", [None, SOME], ids=["all", "some"])


def who(active: Tensor | None) -> list[int]:
    """Positions of those who take part."""
    return list(range(N)) if active is None else active.nonzero()[:, 0].tolist()
