"""Claims about states that processes divide."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

from coterie.checks import InputError
from coterie.clients.groups import block
from coterie.conformance.divided import divided
from coterie.engine.states import own, whole
from coterie.types import Rows


class Inner(NamedTuple):
    v: Rows
    scale: torch.Tensor


class Outer(NamedTuple):
    x: Rows
    inner: Inner
    t: int


FULL = Outer(
    torch.arange(10.0).view(5, 2),
    Inner(torch.arange(5), torch.tensor([3.0])),
    7,
)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_a_state_that_was_divided_is_put_together_again(size):
    def there_and_back(group):
        part = own(FULL, group, 5)
        mine = block(5, group)
        assert torch.equal(part.x, FULL.x[mine])
        assert torch.equal(part.inner.v, FULL.inner.v[mine])
        assert torch.equal(part.inner.scale, FULL.inner.scale)
        return whole(part, group, 5)

    for found in divided(there_and_back, size):
        assert torch.equal(found.x, FULL.x)
        assert torch.equal(found.inner.v, FULL.inner.v)
        assert found.t == 7


def test_what_is_not_marked_as_rows_must_be_the_same_in_every_process():
    def differs(group):
        scale = torch.tensor([float(group.rank)])
        return whole(
            own(FULL, group, 5)._replace(inner=Inner(FULL.inner.v, scale)), group, 5
        )

    with pytest.raises(InputError, match="`scale` of the state must be the same"):
        divided(differs, 2)
