"""Claims about states that processes divide."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

from coterie.checks import InputError
from coterie.clients.groups import block
from coterie.conformance.divided import run_divided
from coterie.engine.states import own, whole
from coterie.records import pack, unpack
from coterie.types import Rows


class Inner(NamedTuple):
    v: Rows
    scale: torch.Tensor


class Outer(NamedTuple):
    x: Rows
    inner: Inner
    t: int


FULL = Outer(
    torch.arange(10.0).view(5, 2), Inner(torch.arange(5), torch.tensor([3.0])), 7
)


def part_of(group) -> Outer:
    mine = block(5, group)
    inner = FULL.inner._replace(v=FULL.inner.v[mine])
    return FULL._replace(x=FULL.x[mine], inner=inner)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_a_state_that_was_divided_is_put_together_in_the_first_process(size):
    first, *others = run_divided(lambda group: whole(part_of(group), group, 5), size)
    assert torch.equal(first.x, FULL.x)
    assert torch.equal(first.inner.v, FULL.inner.v)
    assert first.t == 7
    assert others == [None] * (size - 1)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_every_process_takes_its_part_of_a_packed_state(size):
    def taken(group):
        like = part_of(group)
        found = unpack(own(pack(FULL), like, group, 5), like)
        assert torch.equal(found.x, like.x)
        assert torch.equal(found.inner.v, like.inner.v)
        assert torch.equal(found.inner.scale, like.inner.scale)
        return found.t

    assert run_divided(taken, size) == [7] * size


def test_what_is_not_marked_as_rows_must_be_the_same_in_every_process():
    def differs(group):
        part = part_of(group)
        scale = torch.tensor([float(group.rank)])
        return whole(part._replace(inner=part.inner._replace(scale=scale)), group, 5)

    message = r"`inner\.scale` of the state must be the same"
    with pytest.raises(InputError, match=message):
        run_divided(differs, 2)
