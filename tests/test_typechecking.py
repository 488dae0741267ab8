"""Claims about the type checker of the tests: it must not let anything pass."""

from __future__ import annotations

import pytest
import torch
from beartype.roar import BeartypeException
from jaxtyping import AnnotationError, TypeCheckError

from coterie.algorithms.local import local
from coterie.collaboration.weights import spectral_radius
from support.oracles import begun
from support.typechecking import check


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


def test_checkers_are_shared_by_equal_signatures_and_by_no_others():
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
