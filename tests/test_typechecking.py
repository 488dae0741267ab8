"""Claims about the type checker of the tests: it must not let anything pass."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from types import SimpleNamespace
from typing import Literal

import numpy as np
import pytest
import torch
from beartype.roar import BeartypeException
from jaxtyping import AnnotationError, Bool, Float, Int, Shaped, TypeCheckError, config
from jaxtyping._decorator import jaxtyped as shapes
from torch import Tensor

from coterie.algorithms.local import local
from coterie.clients.samples import Batch
from coterie.collaboration.weights import spectral_radius
from coterie.conformance.cases import Setting, simulation_of
from coterie.conformance.federations import small_federation
from coterie.engine.rounds import init_oracle
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


SIZES = ["", "n", "n d", "n n", "2 d", "n 3 n", "_ n", "... n", "*n d", "#n d", "n-1 n"]
SHAPES = [(), (1,), (2,), (2, 2), (2, 3), (2, 3, 2), (2, 3, 3)]


@pytest.mark.parametrize("first", SIZES)
def test_two_arrays_are_accepted_where_jaxtyping_alone_accepts_them(first):
    arrays = list(product([torch.ones(shape) for shape in SHAPES], repeat=2))
    for second in SIZES:
        kinds = Float[Tensor, first], Float[Tensor, second]
        told = f"Float[Tensor, {first!r}] Float[Tensor, {second!r}]"
        expected = [by_jaxtyping(kinds, pair) for pair in arrays]
        ours = accepting(*kinds, told)
        for _ in range(2):  # what was accepted is known
            assert [refusal(ours, *pair) for pair in arrays] == expected


@pytest.mark.parametrize("number", [Float, Int, Bool, Shaped])
def test_numbers_are_of_their_types_where_jaxtyping_alone_says_so(number):
    dtypes = (torch.float32, torch.float64, torch.int64, torch.bool)
    kind, arrays = number[Tensor, " n"], [torch.ones(2, dtype=d) for d in dtypes]
    ours = accepting(kind, kind, "Float[Tensor, 'n']")
    for array in (*arrays, *arrays, np.ones(2), [1.0, 1.0], None):
        expected = by_jaxtyping((kind, kind), (array, array))
        assert refusal(ours, array, array) == expected


def accepting(first: type, second: type, told: str):
    """A function that takes an array and returns another, checked by ours."""

    def crossing(value, result):
        return result

    crossing.__annotations__ = {"value": first, "return": second}
    crossing.__qualname__ = told  # not that of a closure
    return jaxtyped(typechecker=check)(crossing)


def refusal(checked, value, result) -> type | None:
    try:
        checked(value, result)
    except (TypeCheckError, AnnotationError) as error:  # the latter: without letters
        return type(error)


def by_jaxtyping(kinds: tuple, arrays: tuple) -> type | None:
    with shapes("context"):
        try:
            each = zip(kinds, arrays, strict=True)
            right = all(kind.__instancecheck_str__(x) == "" for kind, x in each)
        except AnnotationError as error:
            return type(error)
    return None if right else TypeCheckError


def test_every_kind_of_argument_is_refused_at_every_call():
    def mixed(
        x: Float[Tensor, " n"],
        *rows: Float[Tensor, " n"],
        names: list[str],
        way: Literal["up", "down"] = "up",
        pair: tuple[int, ...] = (),
        **options: Int[Tensor, " n"],
    ) -> tuple[Float[Tensor, " n"], int]:
        return x, len(names)

    checked, x = jaxtyped(typechecker=check)(mixed), torch.ones(2)
    wrong = (
        ((x[:1], x), {"names": []}),
        ((x, x, x[:1]), {"names": []}),
        ((x,), {"names": [1]}),
        ((x,), {"names": [], "way": "left"}),
        ((x,), {"names": [], "pair": ("a", "a")}),
        ((x,), {"names": [], "more": x}),
        ((x,), {"names": [], "more": torch.ones(3, dtype=torch.long)}),
    )
    more = torch.ones(2, dtype=torch.long)
    for _ in range(2):
        checked(x, x, x, names=["a"], way="down", pair=(1, 2), more=more)
        for args, options in wrong:
            with pytest.raises(TypeCheckError, match="mixed"):
                checked(*args, **options)


def test_shapes_of_items_are_asked_at_every_call():
    def stacked(rows: list[Float[Tensor, " n"]], n: Float[Tensor, " n"]) -> Tensor:
        return n

    checked, x = jaxtyped(typechecker=check)(stacked), torch.ones(2)
    for _ in range(2):
        assert checked([x, x], x) is x
        with pytest.raises(TypeCheckError, match="stacked"):
            checked([x[:1], x[:1]], x)


def test_fields_of_a_data_class_have_one_size_for_each_letter():
    index, weight = torch.zeros(2, 3, dtype=torch.long), torch.ones(2, 3)
    for _ in range(2):
        assert Batch(index, weight).width == 3
        for wrong in (weight[:1], weight.long(), weight[0]):
            with pytest.raises(TypeCheckError):
                Batch(index, wrong)


def test_arguments_arrive_as_they_were_given():
    def given(a: int, /, b: int = 2, *rest: int, c: int = 3, **more: int) -> tuple:
        return a, b, rest, c, more

    checked = jaxtyped(typechecker=check)(given)
    for _ in range(2):
        assert checked(1) == (1, 2, (), 3, {})
        assert checked(1, b=4, d=5) == (1, 4, (), 3, {"d": 5})
        assert checked(1, 6, 7, 8, c=9, a=0) == (1, 6, (7, 8), 9, {"a": 0})
        for wrong in ({"b": "2"}, {"c": "3"}, {"d": "4"}):
            with pytest.raises(TypeCheckError, match="given"):
                checked(1, **wrong)
        with pytest.raises(TypeCheckError, match="given"):
            checked(1, 2, 3, "4")
        with pytest.raises(TypeError, match="missing 1 required positional"):
            checked()


def test_a_field_may_be_left_to_its_factory_but_is_asked_where_it_is_given():
    @jaxtyped(typechecker=check)
    @dataclass
    class Fields:
        names: list[str] = field(default_factory=list)

    for _ in range(2):
        assert Fields().names == [] and Fields(["a"]).names == ["a"]
        with pytest.raises(TypeCheckError, match="Fields"):
            Fields([1])


def test_only_an_argument_of_a_type_that_is_not_there_is_not_asked():
    def some(x: Absent, size: int) -> int:  # noqa: F821
        return size

    checked = jaxtyped(typechecker=check)(some)
    for _ in range(2):
        assert checked("any", 1) == 1
        with pytest.raises(TypeCheckError, match="some"):
            checked("any", "1")


def test_nothing_is_asked_while_the_checker_is_off():
    def whole(size: int) -> int:
        return size

    seen, unseen = (jaxtyped(typechecker=check)(whole) for _ in range(2))
    assert seen(1) == 1
    config.update("jaxtyping_disable", True)
    try:
        assert seen("a") == unseen("a") == "a"
    finally:
        config.update("jaxtyping_disable", False)
    for checked in (seen, unseen):
        with pytest.raises(TypeCheckError, match="whole"):
            checked("a")


def test_who_lacks_an_attribute_of_a_protocol_is_refused_after_others_are_not():
    clients = simulation_of(small_federation(), Setting())
    for _ in range(2):
        init_oracle(clients)
        with pytest.raises(TypeCheckError):
            init_oracle(SimpleNamespace(at=clients.at))
