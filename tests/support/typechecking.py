"""The run-time type checker of the tests: beartype, where an int may be a float.

What jaxtyping hands over has only a signature: the function itself stays outside. Most
of them are of closures, made anew with each call of what encloses them, so that those
of equal signatures share one checker, which is compiled when it is needed first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from beartype import BeartypeConf, beartype
from beartype.roar import BeartypeException
from jaxtyping import AnnotationError

_KNOWN: dict[tuple[object, ...], Callable[..., Any]] = {}


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    try:
        return beartype(conf=BeartypeConf(is_pep484_tower=True))(function)
    except BeartypeException as error:  # else taken for an argument of a wrong type
        raise AnnotationError(f"of {function.__qualname__}: {error}") from error


def _shared(function: Callable[..., Any]) -> Callable[..., Any]:
    """The checker of the first function with this signature."""
    if function.__defaults__ or function.__kwdefaults__:
        return _checked(function)  # default values are checked too
    code = function.__code__
    key = (
        (function.__module__, function.__qualname__),
        (code.co_code, code.co_flags, code.co_varnames),
        (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount),
        tuple(function.__annotations__.items()),
    )
    if key not in _KNOWN:
        _KNOWN[key] = _checked(function)
    return _KNOWN[key]


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with arguments and result checked."""
    checker: Callable[..., Any] | None = None

    def call(*args: Any, **options: Any) -> Any:
        nonlocal checker
        if checker is None:
            checker = _shared(function)
        return checker(*args, **options)

    return call
