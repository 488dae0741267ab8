"""Claims about the type checker of the tests: it must not let anything pass."""

from __future__ import annotations

import pytest
import torch
from beartype.roar import BeartypeException
from jaxtyping import AnnotationError, Float, TypeCheckError
from torch import Tensor

from coterie.algorithms.local import local
from coterie.collaboration.weights import spectral_radius
from support.oracles import begun
from support.typechecking import check, jaxtyped


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
