"""The run-time type checker of the tests: beartype, where an int may be a float.

The import hook of jaxtyping finds `jaxtyped` as it is here. Every call and its result
are held to the types of a function. Where shapes are among them, what they are decided
by is the kind of every argument: its class, or number type and shape. A call whose
arguments and result are of the same kinds as those of an earlier one is as right as
that was, so that it is asked only whether there was one; what kinds do not decide, such
as the items of a list, is asked again. Closures are made anew with each call of what
encloses them, but keep what is known of them. Other functions are compiled by beartype.

Only where a type is not there at run time is a function left to jaxtyping, which does
without.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import inspect
import re
from collections.abc import Callable
from itertools import chain, repeat
from types import CodeType, NoneType, UnionType
from typing import (
    Any,
    Literal,
    ParamSpecArgs,
    ParamSpecKwargs,
    Protocol,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import jaxtyping
from beartype import BeartypeConf, beartype
from beartype.door import die_if_unbearable
from beartype.roar import (
    BeartypeCallHintViolation,
    BeartypeDoorHintViolation,
    BeartypeException,
)
from jaxtyping import AbstractArray, AnnotationError, TypeCheckError, config
from jaxtyping._storage import pop_shape_memo, push_shape_memo
from torch import Tensor

_CONF = BeartypeConf(is_pep484_tower=True)

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


Mark = Callable[[Any], Any]


def _anything(value: Any) -> None:
    """Nothing is asked of it."""


def _sized(value: Any) -> Any:
    """All that a type such as Float[Tensor, "n 3"] | None asks of a value."""
    if type(value) is Tensor:
        return value.dtype, value.shape
    return type(value), getattr(value, "dtype", None), getattr(value, "shape", None)


def _each(value: Any) -> Any:
    """The same, of every item of a tuple."""
    return tuple(map(_each, value)) if isinstance(value, tuple) else _sized(value)


def _itself(value: Any) -> Any:
    return type(value), value


def _asked(hint: Any) -> Mark:
    """Asks whether a value is of a type, each time."""
    protocol = hint if isinstance(hint, type) else None

    def ask(value: Any) -> None:
        if (protocol, type(value)) not in _FOLLOWED:
            die_if_unbearable(value, hint, conf=_CONF)

    return ask


def _by_kind(hint: Any) -> bool:
    """Whether the kind of a value says if it is of a type."""
    origin = get_origin(hint)
    if origin in (Union, UnionType, tuple):
        return all(part is ... or _by_kind(part) for part in get_args(hint))
    if origin is collections.abc.Callable or hint in (Any, None, NoneType):
        return True
    alone = isinstance(hint, type) and origin is None
    return alone and not getattr(hint, "_is_protocol", False)


def _of_tuple(hint: Any) -> bool:
    return get_origin(hint) is tuple or any(map(_of_tuple, get_args(hint)))


def _has_shape(hint: Any) -> bool:
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return True
    return any(_has_shape(part) for part in get_args(hint))


def _mark(hint: Any) -> Mark | None:
    """What a type asks about a value; None: more than can be remembered."""
    if _by_kind(hint):
        return _each if _of_tuple(hint) else _sized if _has_shape(hint) else type
    if get_origin(hint) is Literal:
        return _itself
    return None if _has_shape(hint) else _asked(hint)


class _Rules:
    """The types of a function, and which calls were found to follow them."""

    def __init__(self, function: Callable[..., Any]) -> None:
        hints = get_type_hints(function, include_extras=True)
        # Those of *args: P.args stand for a signature elsewhere.
        standing = (ParamSpecArgs, ParamSpecKwargs)
        self.hints = {n: h for n, h in hints.items() if not isinstance(h, standing)}
        self.signature = inspect.signature(function)
        parameters = self.signature.parameters.values()
        # Values of arguments that are sizes in shapes, as in "{count}".
        sizes = set(re.findall(r"\w+", " ".join(_BRACES.findall(_written(function)))))
        marks = {
            name: _mark(self.hints[name]) if name in self.hints else _anything
            for name in (*self.signature.parameters, "return")
        }
        self.forgets = None in marks.values()
        self.marks = marks | dict.fromkeys(sizes & marks.keys(), _itself)
        self.several = {p.name: p.kind for p in parameters if p.kind in _SEVERAL}
        first = (p.name for p in parameters if p.kind <= _BY_PLACE)
        self.places = [self.marks[name] for name in first]
        of = {kind: self.marks[name] for name, kind in self.several.items()}
        self.more = of.get(inspect.Parameter.VAR_POSITIONAL)
        self.others = of.get(inspect.Parameter.VAR_KEYWORD, _anything)
        self.followed: set[Any] = set()

    def refuse(self, args: Any, options: Any, *result: Any) -> None:
        """Raises where arguments or a result are not of their types."""
        bound = self.signature.bind(*args, **options)
        given = dict(bound.arguments)
        bound.apply_defaults()
        push_shape_memo(bound.arguments)  # in which equal letters are equal numbers
        try:
            for name, value in given.items():
                kind = self.several.get(name)
                for each in _SEVERAL[kind](value) if kind is not None else (value,):
                    self._refuse(name, each)
            for value in result:
                self._refuse("return", value)
        finally:
            pop_shape_memo()

    def _refuse(self, name: str, value: Any) -> None:
        if name in self.hints:
            die_if_unbearable(value, self.hints[name], conf=_CONF)

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of these types, which asks only what it did not ask before."""
        # Every call comes here: the fewer functions it takes, the better.
        places, more, followed = self.places, self.more, self.followed
        of_result, always = self.marks["return"], self._always(function)

        def call(*args: Any, **options: Any) -> Any:
            marks = places if more is None else chain(places, repeat(more))
            kinds = [mark(value) for mark, value in zip(marks, args, strict=False)]
            for name, value in options.items():
                kinds += (name, self.marks.get(name, self.others)(value))
            key = tuple(kinds)
            try:
                known = key in followed
            except TypeError:  # sizes that are symbols, where a program is traced
                return always(*args, **options)
            if not known:
                self.refuse(args, options)
                followed.add(key)
            result = function(*args, **options)
            both = key, of_result(result)
            if both not in followed:
                self.refuse(args, options, result)
                followed.add(both)
            return result

        return always if self.forgets else call

    def _always(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same, which asks everything each time."""

        def call(*args: Any, **options: Any) -> Any:
            self.refuse(args, options)
            result = function(*args, **options)
            self.refuse(args, options, result)
            return result

        return call


_BRACES = re.compile(r"\{(.*?)\}")
_BY_PLACE = inspect.Parameter.POSITIONAL_OR_KEYWORD
_SEVERAL: dict[Any, Callable[[Any], Any]] = {
    inspect.Parameter.VAR_POSITIONAL: tuple,
    inspect.Parameter.VAR_KEYWORD: dict.values,
}

_CLOSURES: dict[CodeType, _Rules] = {}


def _ruled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, held to its types by what was found before."""
    code = function.__code__
    if "<locals>" not in function.__qualname__:
        rules = _Rules(function)
    elif code in _CLOSURES:
        rules = _CLOSURES[code]
    else:
        rules = _CLOSURES[code] = _Rules(function)
    return rules.around(function)


def _once(
    function: Callable[..., Any], otherwise: Callable[..., Any]
) -> Callable[..., Any]:
    """The function, with arguments and result checked.

    That needs all types; jaxtyping goes without those that are imported only where
    types are checked statically.
    """
    checker: Callable[..., Any] | None = None

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        nonlocal checker
        if config.jaxtyping_disable:
            return function(*args, **options)
        if checker is None:
            inner = "<locals>" in function.__qualname__
            ruled = inner or {"'", '"'} & set(_written(function))
            try:
                checker = (_ruled if ruled else _resolved)(function)
            except NameError:
                checker = otherwise(function)
        try:
            return checker(*args, **options)
        except (BeartypeCallHintViolation, BeartypeDoorHintViolation) as error:
            raise TypeCheckError(f"{function.__qualname__}: {error}") from error

    return call


def _resolved(function: Callable[..., Any]) -> Callable[..., Any]:
    get_type_hints(function)  # raises where one is not there
    return _checked(function)


def jaxtyped(
    *, typechecker: Callable[..., Any], shapes: Callable[..., Any] = jaxtyping.jaxtyped
) -> Callable[..., Any]:
    """In place of jaxtyping's own, as its import hook calls it."""
    with_shapes = shapes(typechecker=typechecker)

    def decorate(function: Any) -> Any:
        if dataclasses.is_dataclass(function):
            function.__init__ = _once(function.__init__, with_shapes)
            return function
        if not inspect.isfunction(function):
            return with_shapes(function)
        return _once(function, with_shapes)

    return decorate


jaxtyping.jaxtyped = jaxtyped
