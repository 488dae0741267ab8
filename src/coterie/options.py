"""Options of methods: the annotation of a parameter says which values are allowed.

    @method(in_rounds=("momentum", "schedule"), in_time=("late",))
    def ditto(sizes: Sizes, *, lr: LocalLr = 0.1, lam: NotNegative = 1.0, ...)

Positional parameters are ingredients, and the others are options. An annotation holds
the type and the rules of a value. A rule is a function of the name and the value, and
for an ingredient also of the number of clients. It raises an error if the value breaks
the rule. A `Literal` is a rule too. `help`, editors and type checkers see the types
without the rules.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Collection, Mapping
from inspect import Signature
from typing import Annotated, Any, Literal, NamedTuple, NewType, ParamSpec

from torch import Tensor

from . import checks
from .checks import InputError, integer, number, one_of
from .types import Algorithm, Oracle, State


class OfModels(NamedTuple):
    """The rule of an ingredient that has an entry for each column of a model."""

    rule: Callable[[str, Tensor, int], object]


Sizes = Annotated[Tensor, checks.positive]
SizesOrNone = Annotated[Tensor | None, checks.positive]
Weights = Annotated[Tensor, checks.dense, checks.square]
Stochastic = Annotated[Tensor, checks.dense, checks.stochastic]
GraphOrNone = Annotated[Tensor | None, checks.square]  # sparse or not
Dissimilarities = Annotated[Tensor, checks.dissimilarity]
Head = Annotated[Tensor, OfModels(checks.mask)]  # (D,) which columns stay at home

# A billion steps of one client take hours; a larger number must be a mistake.
Count = Annotated[int, functools.partial(integer, at_least=1, at_most=1e9)]
Whole = Annotated[int, functools.partial(integer, at_least=0, at_most=1e9)]
Positive = Annotated[float, functools.partial(number, above=0)]
# A number whose square fits into single precision.
Scale = Annotated[float, functools.partial(number, at_least=1e-9, at_most=1e9)]
NotNegative = Annotated[float, functools.partial(number, at_least=0)]
Share = Annotated[float, functools.partial(number, at_least=0, at_most=1)]
Accuracy = Annotated[float, functools.partial(number, at_least=1e-15, at_most=0.5)]
BelowOne = Annotated[float, functools.partial(number, at_least=0, below=1)]

Formula = NewType("Formula", str)
"""A text in place of a number, such as `Formula("adam(0.005)")`."""

Given = ParamSpec("Given")
"""The parameters of a factory, for type checkers."""


def method(
    *,
    in_rounds: Collection[str] = (),
    in_time: Collection[str] = (),
    known_optimum: Mapping[str, object] | None = None,
) -> Callable[[Callable[Given, Algorithm]], Callable[Given, Algorithm]]:
    """A decorator that makes a factory check its arguments, and keeps its signature.

    Ingredients are checked again when training begins, against the number of clients. A
    method has rounds (clients wait for each other), a flow (they do not wait), or both.

    Args:
        in_rounds: options that only the rounds use, if the method also has a flow. The
            flow begins only if these options have their defaults.
        in_time: options that only the flow uses.
        known_optimum: options of the method in the conformance check `known_optimum`
            (None: the defaults). In this check, losses have curvatures from 2 to 3.
            After 240 rounds, the distance to the optimum must be below a thousandth of
            the distance at the start.
    """

    def decorate(factory: Callable[Given, Algorithm]) -> Callable[Given, Algorithm]:
        declared = _signature(factory, rules=True)
        defaults = {p.name: p.default for p in declared.parameters.values()}

        @functools.wraps(factory)
        def check_and_make(
            *ingredients: Given.args, **given: Given.kwargs
        ) -> Algorithm:
            bound = declared.bind(*ingredients, **given)
            bound.apply_defaults()
            options = bound.kwargs
            beside = dict(zip(defaults, bound.args, strict=False))
            for name, value in beside.items():
                if value is not None:
                    _check(declared, {name: value}, len(value), len(value))
            _check(declared, options)
            changed = {n: options[n] for n in in_rounds if options[n] != defaults[n]}
            algorithm = factory(*ingredients, **given)
            fits = functools.partial(_check, declared, beside)
            return _with_checks(algorithm, fits, changed, defaults)

        check_and_make.__signature__ = _signature(factory, rules=False)  # type: ignore[attr-defined]
        check_and_make.declared = declared  # type: ignore[attr-defined]
        check_and_make.in_rounds = frozenset(in_rounds)  # type: ignore[attr-defined]
        check_and_make.in_time = frozenset(in_time)  # type: ignore[attr-defined]
        check_and_make.known_optimum = known_optimum or {}  # type: ignore[attr-defined]
        return check_and_make

    return decorate


def unused_options(factory: Callable[..., Any], *, waits: bool) -> set[str]:
    """The options that a method does not use in its rounds, or in its flow.

    Args:
        factory: the factory of the method.
        waits: whether clients wait for each other: True for rounds, False for the flow.
    """
    return set(getattr(factory, "in_time" if waits else "in_rounds", ()))


def _signature(factory: Callable[..., Any], *, rules: bool) -> Signature:
    """The signature of a factory with evaluated types, with or without rules."""
    written = inspect.signature(factory)
    hints = typing.get_type_hints(factory, include_extras=rules)
    return written.replace(
        parameters=[
            p.replace(annotation=hints.get(p.name, p.annotation))
            for p in written.parameters.values()
        ],
        return_annotation=hints.get("return", written.return_annotation),
    )


def _check(signature: Signature, given: Mapping[str, Any], *shape: int) -> None:
    """Applies the rules to all arguments given.

    Rules of ingredients get the number of clients, or of columns of a model.
    """
    for name, value in given.items():
        for rule in rules_of(signature.parameters[name].annotation):
            if value is None:
                continue
            if isinstance(rule, OfModels):
                rule.rule(name, value, shape[1])
            else:
                rule(name, value, *shape[:1])


def rules_of(annotation: Any) -> list[Callable[..., object] | OfModels]:
    """The rules in the annotation of a parameter."""
    kind, rules = annotation, []
    if typing.get_origin(annotation) is Annotated:
        kind, *beside = typing.get_args(annotation)
        rules = [r for r in beside if callable(r) or isinstance(r, OfModels)]
    if typing.get_origin(kind) is Literal:
        rules.append(functools.partial(one_of, choices=typing.get_args(kind)))
    return rules


def _with_checks(
    algorithm: Algorithm,
    fits: Callable[[int, int], None],
    changed: Mapping[str, object],
    defaults: Mapping[str, object],
) -> Algorithm:
    """The algorithm; when it begins, it checks ingredients against the models.

    Args:
        algorithm: the algorithm, with rounds, a flow, or both.
        fits: raises an error if an ingredient is for another number of clients or
            columns.
        changed: options for rounds only that do not have their defaults. A flow refuses
            them.
        defaults: the defaults of all options.
    """
    init, flow = algorithm.init, algorithm.flow

    def fitting(x: Tensor, oracle: Oracle) -> State:
        fits(len(oracle.present), x.shape[-1])
        return init(x, oracle)

    if "rounds" in algorithm.faces:
        algorithm = algorithm._replace(init=fitting)
    if flow is None:
        return algorithm
    begin = flow.init

    def fitting_in_time(x: Tensor) -> State:
        for name, value in changed.items():
            raise InputError(
                f"`{name}` is for rounds: it must be {defaults[name]!r} if clients do "
                f"not wait, got {value!r}."
            )
        fits(*x.shape)
        return begin(x)

    return algorithm._replace(flow=flow._replace(init=fitting_in_time))
