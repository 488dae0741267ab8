"""The run-time type checker of the tests: beartype, where an int may be a float.

The import hook of jaxtyping finds `jaxtyped` as it is here. Beartype checks arguments
and result of every function, each once, and jaxtyping only holds the shapes of a call
together: by itself it would bind and check all arguments twice, which made the tests a
quarter slower. Of closures, made anew with each call of what encloses them, nothing is
compiled. What jaxtyping has accepted once, a kind of array of a number type, is
afterwards compared by its shape alone, and whether objects of one of our classes have
the attributes of a protocol is asked once.

Only what has sizes such as "{count}", and classes, is left to jaxtyping, which hands
over functions that have only a signature.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import CodeType
from typing import Any, Protocol, get_type_hints

import jaxtyping
from beartype import BeartypeConf, beartype
from beartype.door import die_if_unbearable
from beartype.roar import (
    BeartypeCallHintViolation,
    BeartypeDoorHintViolation,
    BeartypeException,
)
from jaxtyping import AbstractArray, AnnotationError, TypeCheckError, config
from jaxtyping._storage import get_shape_memo

SCOPE = jaxtyping.jaxtyped("context")  # in which equal letters are equal numbers
_CONF = BeartypeConf(is_pep484_tower=True)

_ARRAYS = type(AbstractArray)
_ACCEPTED: dict[tuple[Any, ...], list[int | str]] = {}  # sizes as they are written


def _is(kind: Any, value: Any) -> bool:
    """Whether an array is of a kind such as Float[Tensor, "n 3"].

    That is jaxtyping's to say, except where it is certain to say yes.
    """
    key = kind, type(value), getattr(value, "dtype", None)
    if key in _ACCEPTED and _fits(value.shape, _ACCEPTED[key]):
        return True
    found = kind.__instancecheck_str__(value) == ""
    written = kind.dim_str.split()
    if found and all(size.isidentifier() or size.isdigit() for size in written):
        _ACCEPTED[key] = [int(size) if size.isdigit() else size for size in written]
    return found


def _fits(shape: tuple[int, ...], written: list[int | str]) -> bool:
    """Whether a shape has these sizes, where equal letters are equal numbers."""
    if len(shape) != len(written):
        return False
    letters = get_shape_memo()[0]
    new: dict[int | str, int] = {}
    for size, wanted in zip(shape, written, strict=True):
        known = letters.get(wanted) if isinstance(wanted, str) else wanted
        if size != (new.setdefault(wanted, size) if known is None else known):
            return False
    letters.update(new)
    return True


_ARRAYS.__instancecheck__ = _is

_PROTOCOLS = type(Protocol)
_ATTRIBUTES = _PROTOCOLS.__instancecheck__
_FOLLOWED: set[tuple[type, type]] = set()  # protocols, and who has all that they name


def _follows(protocol: Any, value: Any) -> bool:
    """Whether a value has the attributes of a protocol.

    Ours, unlike those that tests put together, have what others of their class have.
    """
    kind = type(value)
    if (protocol, kind) in _FOLLOWED:
        return True
    found = _ATTRIBUTES(protocol, value)
    if found and kind.__module__.startswith("coterie."):
        _FOLLOWED.add((protocol, kind))
    return found


_PROTOCOLS.__instancecheck__ = _follows


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    try:
        return beartype(conf=_CONF)(function)
    except BeartypeException as error:  # else taken for an argument of a wrong type
        raise AnnotationError(f"of {function.__qualname__}: {error}") from error


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with arguments and result checked; compiled when first called."""
    checker: Callable[..., Any] | None = None

    def call(*args: Any, **options: Any) -> Any:
        nonlocal checker
        if checker is None:
            checker = _checked(function)
        return checker(*args, **options)

    return call


def _written(function: Callable[..., Any]) -> str:
    """All annotations, which are texts as they stand in the source."""
    return " ".join(str(hint) for hint in function.__annotations__.values())


def _once(
    function: Callable[..., Any], otherwise: Callable[..., Any]
) -> Callable[..., Any]:
    """The function, checked by beartype alone, with all shapes of a call as one.

    That needs all types; jaxtyping goes without those that are imported only where
    types are checked statically.
    """
    checker: Callable[..., Any] | None = None
    shaped = bool({"'", '"'} & set(_written(function)))

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        nonlocal checker
        if config.jaxtyping_disable:
            return function(*args, **options)
        if checker is None:
            try:
                inner = "<locals>" in function.__qualname__
                checker = (_closure if inner else _resolved)(function)
            except NameError:
                checker = otherwise(function)
        try:
            if not shaped:
                return checker(*args, **options)
            with SCOPE:
                return checker(*args, **options)
        except (BeartypeCallHintViolation, BeartypeDoorHintViolation) as error:
            raise TypeCheckError(f"{function.__qualname__}: {error}") from error

    return call


def _resolved(function: Callable[..., Any]) -> Callable[..., Any]:
    get_type_hints(function)  # raises where one is not there
    return _checked(function)


_CLOSURES: dict[CodeType, dict[str, Any]] = {}


def _closure(function: Callable[..., Any]) -> Callable[..., Any]:
    """A closure with its arguments and result checked.

    It is made anew with each call of what encloses it, so that nothing is compiled.
    """
    code = function.__code__
    if code not in _CLOSURES:
        _CLOSURES[code] = get_type_hints(function, include_extras=True)
    hints, names = _CLOSURES[code], code.co_varnames[: code.co_argcount]

    def call(*args: Any, **options: Any) -> Any:
        for name, value in (*zip(names, args, strict=False), *options.items()):
            if name in hints:
                die_if_unbearable(value, hints[name], conf=_CONF)
        result = function(*args, **options)
        if "return" in hints:
            die_if_unbearable(result, hints["return"], conf=_CONF)
        return result

    return call


def jaxtyped(
    *, typechecker: Callable[..., Any], shapes: Callable[..., Any] = jaxtyping.jaxtyped
) -> Callable[..., Any]:
    """In place of jaxtyping's own, as its import hook calls it."""
    with_shapes = shapes(typechecker=typechecker)

    def decorate(function: Any) -> Any:
        # Sizes such as "{count}" are values of arguments, which jaxtyping looks up.
        if not inspect.isfunction(function) or "{" in _written(function):
            return with_shapes(function)
        return _once(function, with_shapes)

    return decorate


jaxtyping.jaxtyped = jaxtyped
