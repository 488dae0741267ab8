"""Claims about the options of methods: what annotations say is held."""

from __future__ import annotations

import inspect
from typing import Literal

import pytest
import torch
from torch import Tensor

from coterie.algorithms import ALGORITHMS
from coterie.algorithms.ditto import ditto
from coterie.checks import InputError, parameters_of
from coterie.options import (
    BelowOne,
    Count,
    NotNegative,
    Positive,
    Share,
    SizesOrNone,
    Stochastic,
    Whole,
    method,
    unused_options,
)
from coterie.types import Algorithm, Flow, Task
from support.oracles import begun
from support.refusals import refuses

HALVES = torch.full((2, 2), 0.5)


@method(in_rounds=("momentum",), in_time=("late",))
def example(
    weights: Stochastic,
    precision: SizesOrNone = None,
    *,
    lr: Positive = 2.0,
    momentum: BelowOne = 0.0,
    count: Count = 1,
    whole: Whole = 0,
    size: Positive = 1.0,
    pull: NotNegative = 0.0,
    share: Share = 0.5,
    memory: BelowOne = 0.0,
    form: Literal["one", "other"] = "one",
    late: float = 0.0,
) -> Algorithm:
    """Tells what it was given by its first state."""
    given = (lr, momentum, count, whole, size, pull, share, memory, form, late)
    flow = Flow(
        lambda x: given, _task, lambda state, now: [], lambda state: x_of(given)
    )
    return Algorithm(lambda x, oracle: given, _step, flow=flow)


def x_of(_) -> Tensor:
    return torch.zeros(2, 1)


def _task(state, client, time) -> Task:
    return Task((torch.zeros(1),))


def _step(state, oracle, rng):
    return state, {}


def test_options_are_given_as_they_are_written():
    assert list(parameters_of(example))[:3] == ["lr", "momentum", "count"]
    assert parameters_of(example)["lr"].default == 2.0
    made = example(HALVES, momentum=0.5, count=3)
    assert begun(made, torch.zeros(2, 1))[:3] == (2.0, 0.5, 3)


def test_help_shows_types_and_the_registry_rules():
    shown = inspect.signature(example).parameters
    assert shown["lr"].annotation is float and shown["count"].annotation is int
    assert parameters_of(example)["lr"].annotation == Positive


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": 0}, "`count` must be at least 1, got 0"),
        ({"count": 1.5}, "`count` must be a whole number, got 1.5"),
        ({"whole": -1}, "`whole` must be at least 0, got -1"),
        ({"size": 0.0}, "`size` must be greater than 0, got 0.0"),
        ({"pull": -1.0}, "`pull` must be at least 0, got -1.0"),
        ({"share": 1.5}, "`share` must be at most 1, got 1.5"),
        ({"memory": 1.0}, "`memory` must be less than 1, got 1.0"),
        ({"lr": 0.0}, "`lr` must be greater than 0, got 0.0"),
        ({"form": "othr"}, "`form` must be one of .*'othr'. Did you mean 'other'"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_each_kind_of_option_is_refused_by_name_rule_and_value(options, message):
    refuses(message, example, HALVES, **options)


def test_an_option_that_is_not_there_is_named():
    with pytest.raises(TypeError, match="unexpected keyword argument 'momentun'"):
        example(HALVES, momentun=0.5)


def test_ingredients_are_checked_when_made_and_against_the_clients():
    refuses("`weights` must sum to 1, but row 0", example, torch.ones(2, 2))
    with pytest.raises(InputError, match=r"`precision` must be positive, .* is 0"):
        example(HALVES, torch.tensor([1.0, 0.0]))
    with pytest.raises(InputError, match=r"`weights` must have shape \(3, 3\)"):
        begun(example(HALVES), torch.zeros(3, 1))
    assert example(HALVES).flow.init(torch.zeros(2, 1))[2] == 1
    with pytest.raises(InputError, match=r"`weights` must have shape \(3, 3\)"):
        example(HALVES).flow.init(torch.zeros(3, 1))
    with pytest.raises(InputError, match=r"`precision` must have shape \(2,\)"):
        begun(example(HALVES, torch.ones(3)), torch.zeros(2, 1))


def test_a_sparse_matrix_is_refused_where_it_must_be_dense():
    refuses("`weights` must be a dense matrix, got a spa", example, HALVES.to_sparse())


def test_a_flow_does_not_begin_with_what_is_for_rounds_and_rounds_do():
    made = example(HALVES, momentum=0.5)
    begun(made, torch.zeros(2, 1))
    message = r"`momentum` is for rounds: .* 0\.0 .* got 0\.5"
    refuses(message, made.flow.init, torch.zeros(2, 1))
    assert unused_options(example, waits=False) == {"momentum"}
    assert unused_options(example, waits=True) == {"late"}
    # As by default is nothing said.
    example(HALVES, momentum=0.0).flow.init(torch.zeros(2, 1))


def test_a_factory_without_annotations_has_no_rules():
    def plain(sizes, *, lr=0.1):
        return Algorithm()

    assert unused_options(plain, waits=True) == set()
    assert method()(plain)(torch.ones(2), lr=-1.0) == Algorithm()


def test_every_method_of_the_library_declares_what_it_takes():
    for name, factory in ALGORITHMS.items():
        for option in inspect.signature(factory).parameters.values():
            assert option.annotation is not option.empty, (name, option.name)
    assert ditto.__doc__ and ditto.__module__.endswith("ditto")
