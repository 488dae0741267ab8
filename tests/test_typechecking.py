"""Claims about the type checker of the tests: it must not let anything pass."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from beartype.roar import BeartypeException
from jaxtyping import AnnotationError, Bool, Float, Int, Shaped, TypeCheckError
from torch import Tensor

from coterie.algorithms.local import local
from coterie.collaboration.weights import spectral_radius
from coterie.conformance.cases import Setting, simulated, small_federation
from coterie.engine.rounds import beginning
from support.oracles import begun
from support.typechecking import SCOPE, check, jaxtyped


def test_a_wrong_shape_is_refused_at_every_call():
    for _ in range(2):
        with pytest.raises(TypeCheckError):
            spectral_radius(torch.ones(2, 3))
        assert spectral_radius(torch.eye(2)) == pytest.approx(1)


def test_closures_are_checked_also_when_they_are_made_again():
    for _ in range(2):
        with pytest.raises(TypeCheckError):
            begun(local(), torch.ones(2))


def twins(kind: type) -> list:
    """Functions with the same name, made twice, that take and return a kind."""
    made = []
    for _ in range(2):

        def same(value):
            return value

        same.__annotations__ = {"value": kind, "return": kind}
        made.append(check(same))
    return made


def test_functions_of_one_name_are_checked_each_by_its_own_signature():
    wholes, texts = twins(int), twins(str)
    for whole, text in zip(wholes, texts, strict=True):
        assert (whole(1), text("a")) == (1, "a")
        with pytest.raises(BeartypeException):
            whole("a")
        with pytest.raises(BeartypeException):
            text(1)


def test_an_annotation_that_cannot_be_checked_is_an_error_and_not_ignored():
    def odd(value):
        return value

    odd.__annotations__ = {"value": 3}
    with pytest.raises(AnnotationError, match="odd"):
        check(odd)(1)


def crossed(
    x: Float[Tensor, "n d"], y: Float[Tensor, " n"], size: int
) -> Float[Tensor, " d"]:
    return y if size else x[0]


def filled(size: int, given: int) -> Float[Tensor, " {size}"]:
    return torch.ones(given)


def test_a_letter_is_one_number_in_all_arguments_and_the_result_of_a_call():
    checked = jaxtyped(typechecker=check)(crossed)
    for n in (2, 4):  # another call has other numbers
        assert len(checked(torch.ones(n, 3), torch.ones(n), 0)) == 3
    with pytest.raises(TypeCheckError, match="crossed"):
        checked(torch.ones(2, 3), torch.ones(3), 0)
    with pytest.raises(TypeCheckError, match="crossed"):
        checked(torch.ones(2, 3), torch.ones(2), 1)
    with pytest.raises(TypeCheckError, match="crossed"):
        checked(torch.ones(2, 3), torch.ones(2), "0")


def test_a_size_in_braces_is_the_value_of_an_argument():
    checked = jaxtyped(typechecker=check)(filled)
    assert len(checked(2, 2)) == 2
    with pytest.raises(TypeCheckError):
        checked(2, 3)


SIZES = ["", "n", "n d", "n n", "2 d", "n 3 n", "_ n", "... n", "*n d", "#n d", "n-1 n"]
SHAPES = [(), (1,), (2,), (2, 2), (2, 3), (2, 3, 2), (2, 3, 3)]


@pytest.mark.parametrize("first", SIZES[:-1])
def test_two_arrays_are_of_their_kinds_where_jaxtyping_says_so(first):
    arrays = list(product([torch.ones(shape) for shape in SHAPES], repeat=2))
    for second in SIZES:
        kinds = Float[Tensor, first], Float[Tensor, second]
        expected = [answers(kinds, pair, by_jaxtyping) for pair in arrays]
        for _ in range(2):  # what was accepted is known
            assert [answers(kinds, pair, isinstance) for pair in arrays] == expected


@pytest.mark.parametrize("number", [Float, Int, Bool, Shaped])
def test_numbers_are_of_their_types_where_jaxtyping_says_so(number):
    dtypes = (torch.float32, torch.float64, torch.int64, torch.bool)
    kind, arrays = number[Tensor, " n"], [torch.ones(2, dtype=d) for d in dtypes]
    for array in (*arrays, *arrays, np.ones(2), [1.0, 1.0], None):
        assert isinstance(array, kind) == by_jaxtyping(array, kind)


def by_jaxtyping(value: object, kind: type) -> bool:
    return kind.__instancecheck_str__(value) == ""


def answers(kinds: tuple, arrays: tuple, holds) -> list[bool | str]:
    with SCOPE:
        try:
            return [holds(x, kind) for x, kind in zip(arrays, kinds, strict=True)]
        except AnnotationError as error:  # of a size that has no letter yet
            return [str(error)]


def test_who_lacks_an_attribute_of_a_protocol_is_refused_after_others_are_not():
    clients = simulated(small_federation(), Setting())
    for _ in range(2):
        beginning(clients)
        with pytest.raises(TypeCheckError):
            beginning(SimpleNamespace(at=clients.at))
