"""What a method takes: each parameter says in its annotation what it may be.

    @method(in_rounds=("momentum", "schedule"), in_time=("late",))
    def ditto(sizes: Sizes, *, rule: Descent = Descent(), lam: NotNegative = 1.0, ...)

Positional parameters are ingredients, the others options. Rules stand in annotations
beside types: functions of name and value, and for an ingredient of the number of
clients, that refuse by raising; a `Literal` is a rule of its own. An option whose type
is a named tuple stands for its fields: users set `lr` and `momentum`, and the factory
gets a `Descent`.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from inspect import Parameter, Signature
from typing import Annotated, Any, Literal, NamedTuple

from torch import Tensor

from . import checks
from .checks import InputError, integer, number, one_of
from .types import Algorithm, Oracle, State


class OfModels(NamedTuple):
    """Marks the rule of an ingredient that has an entry for each column of a model."""

    rule: Callable[[str, Tensor, int], object]


Sizes = Annotated[Tensor, checks.positive]
SizesOrNone = Annotated[Tensor | None, checks.positive]
Weights = Annotated[Tensor, checks.dense, checks.square]
Stochastic = Annotated[Tensor, checks.dense, checks.stochastic]
GraphOrNone = Annotated[Tensor | None, checks.square]  # sparse or not
Dissimilarities = Annotated[Tensor, checks.dissimilarity]
Head = Annotated[Tensor, OfModels(checks.mask)]  # (D,) which columns stay at home

# A thousand million steps of one client take hours; more are a slip of the pen.
Count = Annotated[int, functools.partial(integer, at_least=1, at_most=1e9)]
Whole = Annotated[int, functools.partial(integer, at_least=0, at_most=1e9)]
Positive = Annotated[float, functools.partial(number, above=0)]
# One whose square is a number in single precision.
Scale = Annotated[float, functools.partial(number, at_least=1e-9, at_most=1e9)]
NotNegative = Annotated[float, functools.partial(number, at_least=0)]
Share = Annotated[float, functools.partial(number, at_least=0, at_most=1)]
Accuracy = Annotated[float, functools.partial(number, at_least=1e-15, at_most=0.5)]
BelowOne = Annotated[float, functools.partial(number, at_least=0, below=1)]

Factory = Callable[..., Algorithm]


def method(
    *,
    in_rounds: Collection[str] = (),
    in_time: Collection[str] = (),
    known_optimum: Mapping[str, object] | None = None,
) -> Callable[[Factory], Factory]:
    """Makes a factory check what it is given, and shows its options one by one.

    Ingredients are checked again when training begins, against the number of clients.

    Args:
        in_rounds: options that only the rounds of a method with both faces use, whose
            flow refuses to begin where they are not as by default.
        in_time: options that only its flow uses.
        known_optimum: options with which the check of that name runs the method: losses
            have curvatures from 2 to 3, and 240 rounds must leave less than a
            thousandth of the way. None: the defaults.
    """

    def decorate(factory: Factory) -> Factory:
        hints = typing.get_type_hints(factory, include_extras=True)
        written = inspect.signature(factory)
        shown = [
            option.replace(annotation=_marked(option, in_rounds, in_time))
            for parameter in written.parameters.values()
            for option in _options(parameter, hints.get(parameter.name))
        ]
        signature = written.replace(parameters=shown)
        defaults = {p.name: p.default for p in shown}
        groups = {n: hints[n] for n in written.parameters if _is_group(hints.get(n))}

        @functools.wraps(factory)
        def made(*ingredients: Any, **given: Any) -> Algorithm:
            bound = signature.bind(*ingredients, **given)
            bound.apply_defaults()
            options = bound.kwargs
            beside = dict(zip(written.parameters, bound.args, strict=False))
            for name, value in beside.items():
                if value is not None:
                    _check(signature, {name: value}, len(value), len(value))
            _check(signature, options)
            changed = {n: options[n] for n in in_rounds if options[n] != defaults[n]}
            for name, kind in groups.items():
                options[name] = kind(**{f: options.pop(f) for f in kind._fields})
            algorithm = factory(*bound.args, **options)
            fits = functools.partial(_check, signature, beside)
            return _guarded(algorithm, fits, changed, defaults)

        made.__signature__ = signature  # type: ignore[attr-defined]
        made.known_optimum = known_optimum or {}  # type: ignore[attr-defined]
        return made

    return decorate


def unused(factory: Callable[..., Any], *, waits: bool) -> set[str]:
    """The options of a factory that one of its faces does not use.

    Args:
        factory: of a method.
        waits: whether it is the face in which clients wait, that of rounds.
    """
    other = "time" if waits else "rounds"
    return {
        name
        for name, option in inspect.signature(factory).parameters.items()
        if other in typing.get_args(option.annotation)[1:]
    }


def _is_group(kind: Any) -> bool:
    return isinstance(kind, type) and hasattr(kind, "_fields")


def _options(parameter: Parameter, kind: Any) -> Iterator[Parameter]:
    """The options that a parameter stands for: itself, or the fields of its type."""
    if not _is_group(kind):
        yield parameter.replace(annotation=kind)
        return
    hints = typing.get_type_hints(kind, include_extras=True)
    for name in kind._fields:
        default, kind_of = getattr(parameter.default, name), Parameter.KEYWORD_ONLY
        yield Parameter(name, kind_of, default=default, annotation=hints[name])


def _marked(
    option: Parameter, in_rounds: Collection[str], in_time: Collection[str]
) -> Any:
    """The annotation, with the face that alone uses the option."""
    if option.name in in_rounds:
        return Annotated[option.annotation, "rounds"]
    if option.name in in_time:
        return Annotated[option.annotation, "time"]
    return option.annotation


def _check(signature: Signature, given: Mapping[str, Any], *shape: int) -> None:
    """Asks the rules of all that is given.

    Those of ingredients are told the number of clients, or of columns of a model.
    """
    for name, value in given.items():
        for rule in _rules(signature.parameters[name].annotation):
            if value is None:
                continue
            if isinstance(rule, OfModels):
                rule.rule(name, value, shape[1])
            else:
                rule(name, value, *shape[:1])


def _rules(annotation: Any) -> list[Callable[..., object] | OfModels]:
    kind, rules = annotation, []
    if typing.get_origin(annotation) is Annotated:
        kind, *beside = typing.get_args(annotation)
        rules = [r for r in beside if callable(r) or isinstance(r, OfModels)]
    if typing.get_origin(kind) is Literal:
        rules.append(functools.partial(one_of, choices=typing.get_args(kind)))
    return rules


def _guarded(
    algorithm: Algorithm,
    fits: Callable[[int, int], None],
    changed: Mapping[str, object],
    defaults: Mapping[str, object],
) -> Algorithm:
    """The algorithm, which begins only with ingredients for its rows and columns.

    Args:
        algorithm: with its faces.
        fits: raises where an ingredient is not for so many clients and columns.
        changed: options of rounds, with which a flow does not begin.
        defaults: what they should be then.
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
                f"`{name}` is for rounds: it must be {defaults[name]!r} where clients "
                f"do not wait, got {value!r}."
            )
        fits(*x.shape)
        return begin(x)

    return algorithm._replace(flow=flow._replace(init=fitting_in_time))
