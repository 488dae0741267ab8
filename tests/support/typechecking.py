"""The run-time type checker of the tests: beartype, where an int may be a float.

The import hook of jaxtyping finds `jaxtyped` as it is here. Every call and its result
are held to the types of a function. What these are decided by is the kind of every
argument: its class, or number type and shape. A call whose arguments and result are of
the same kinds as those of an earlier one is as right as that was, so that it is asked
only whether there was one; what kinds do not decide, such as the items of a list, is
asked again. When a function is called first, this is written as a function of its
signature. Closures are made anew with each call of what encloses them, but keep what is
known of them.

Only what has a type that is not there at run time is not asked.
"""

from __future__ import annotations

import collections.abc
import contextlib
import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterable
from types import CellType, CodeType, FunctionType, NoneType, SimpleNamespace, UnionType
from typing import (
    Any,
    Literal,
    NoReturn,
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
from beartype.door import is_bearable
from beartype.roar import BeartypeCallHintViolation, BeartypeException
from jaxtyping import AbstractArray, AnnotationError, TypeCheckError, config
from jaxtyping._storage import pop_shape_memo, push_shape_memo
from torch import Tensor

_CONF = BeartypeConf(is_pep484_tower=True)

_PROTOCOLS = type(Protocol)
_ATTRIBUTES = _PROTOCOLS.__instancecheck__
_FOLLOWED: dict[tuple[type, type], bool] = {}  # who has all that a protocol names


def _follows(protocol: Any, value: Any) -> bool:
    """Whether a value has the attributes of a protocol.

    Ours, unlike those that tests put together, have what others of their class have.
    """
    kind = type(value)
    found = _FOLLOWED.get((protocol, kind))
    if found is None:
        found = _ATTRIBUTES(protocol, value)
        if kind.__module__.startswith(("coterie.", "coterie_theory.")):
            _FOLLOWED[protocol, kind] = found
    return found


_PROTOCOLS.__instancecheck__ = _follows


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with arguments and result checked by beartype alone."""
    try:
        return beartype(conf=_CONF)(function)
    except BeartypeException as error:  # else taken for an argument of a wrong type
        raise AnnotationError(f"of {function.__qualname__}: {error}") from error


@functools.cache
def _ask(hint: Any) -> Callable[[Any], None]:
    """What raises where a value is not of a type."""

    def asked(value):
        return None

    asked.__annotations__ = {"return" if hint is NoReturn else "value": hint}
    return check(asked)


# What a type asks of a value, as an expression.
_KIND = "type({value})"
_SIZED = (
    "({value}.dtype, {value}.shape) if type({value}) is Tensor_ else sized_({value})"
)
_EACH = "each_({value})"
_ITSELF = "(type({value}), {value})"
_ASKED = "ask_{name}({value})"
_FOLLOWS = "follow_.get((hint_{name}, type({value}))) or ask_{name}({value})"
_FORGOTTEN = "[]"  # more than can be remembered, as this cannot be


def _sized(value: Any) -> Any:
    """All that a type such as Float[Tensor, "n 3"] | None asks of a value."""
    return type(value), getattr(value, "dtype", None), getattr(value, "shape", None)


def _each(value: Any) -> Any:
    """The same, of every item of a tuple."""
    return tuple(map(_each, value)) if isinstance(value, tuple) else _sized(value)


def _is_protocol(hint: Any) -> bool:
    return isinstance(hint, type) and getattr(hint, "_is_protocol", False)


def _by_kind(hint: Any) -> bool:
    """Whether the kind of a value says if it is of a type."""
    origin = get_origin(hint)
    if origin in (Union, UnionType, tuple):
        return all(part is ... or _by_kind(part) for part in get_args(hint))
    if origin is collections.abc.Callable or hint in (Any, None, NoneType):
        return True
    return isinstance(hint, type) and origin is None and not _is_protocol(hint)


def _of_tuple(hint: Any) -> bool:
    return get_origin(hint) is tuple or any(map(_of_tuple, get_args(hint)))


def _has_shape(hint: Any) -> bool:
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return True
    return any(_has_shape(part) for part in get_args(hint))


def _mark(hint: Any) -> str:
    if _by_kind(hint):
        return _EACH if _of_tuple(hint) else _SIZED if _has_shape(hint) else _KIND
    if get_origin(hint) is Literal:
        return _ITSELF
    if _has_shape(hint):
        return _FORGOTTEN
    return _FOLLOWS if _is_protocol(hint) else _ASKED


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The types that are there; some are imported only where they are read."""
    found: dict[str, Any] = {}
    for name, written in function.__annotations__.items():
        alone = SimpleNamespace(__annotations__={name: written})
        with contextlib.suppress(NameError):
            found |= get_type_hints(alone, function.__globals__, include_extras=True)
    # Those of *args: P.args stand for a signature elsewhere.
    standing = (ParamSpecArgs, ParamSpecKwargs)
    return {n: h for n, h in found.items() if not isinstance(h, standing)}


# Every call of a function. Names that end in "_" are ours, the others its parameters.
_CALL = """
def around_(function_):
    def call{parameters}:
        if config_.jaxtyping_disable:
            return function_({arguments})
        try:
            key_ = {key}
            try:
                known_ = followed_.get(key_)
            except TypeError:  # sizes that are symbols, where a program is traced
                known_ = None
            if known_ is None:
                known_ = right_(locals())
            return_ = function_({arguments})
            kind_ = {kind}
            if kind_ not in known_:
                right_result_(locals())
            return return_
        except Violation_ as error_:
            raise Error_(f"{{function_.__qualname__}}: {{error_}}") from error_
    return call
"""
_OURS = {
    "config_": config,
    "Tensor_": Tensor,
    "sized_": _sized,
    "each_": _each,
    "follow_": _FOLLOWED,
    "Violation_": BeartypeCallHintViolation,
    "Error_": TypeCheckError,
}
_PASSED = ("{0}", "{0}", "*{0}", "{0}={0}", "**{0}")  # by kind of parameter
_SEVERAL: dict[int, Callable[[Any], Any]] = {
    inspect.Parameter.VAR_POSITIONAL: tuple,
    inspect.Parameter.VAR_KEYWORD: dict.values,
}
# Stands in a signature for what the default factory of a field makes.
_MADE = dataclasses._HAS_DEFAULT_FACTORY


class _Rules:
    """The types of a function, and which calls were found to follow them."""

    def __init__(self, function: Callable[..., Any], names: dict[str, Any]) -> None:
        self.parameters = inspect.signature(function).parameters
        self.hints = _hints(function)
        for name, parameter in self.parameters.items():
            if parameter.default is _MADE:
                self.hints[name] = self.hints.get(name, Any) | type(_MADE)
        self.whose = function.__qualname__
        self.followed: dict[Any, set[Any]] = {}  # by arguments, right results
        self.names = names
        names |= {f"hint_{name}": hint for name, hint in self.hints.items()}
        names |= {f"ask_{n}": _ask(h) for n, h in self.hints.items() if not _by_kind(h)}
        names |= {"followed_": self.followed, "right_": self.right}
        names |= {"right_result_": self.right_result, **_OURS}
        called = f"<call of {function.__qualname__}>"
        exec(compile(self._text(function), called, "exec"), names)
        self.code: CodeType = names["around_"](function).__code__

    def _text(self, function: Callable[..., Any]) -> str:
        marks = {name: _mark(hint) for name, hint in self.hints.items()}
        # Values of arguments that are sizes in shapes, as in "{count}".
        written = " ".join(map(str, function.__annotations__.values()))
        sizes = re.findall(r"\w+", " ".join(re.findall(r"\{(.*?)\}", written)))
        marks |= dict.fromkeys(self.parameters.keys() & sizes, _ITSELF)
        if _FORGOTTEN in marks.values():
            key = kind = _FORGOTTEN
        else:
            asked = (self._asked(marks[n], n) for n in self.parameters if n in marks)
            key = f"({''.join(asked)})"
            kind = marks.get("return", "None").format(value="return_", name="return")
        bare = [
            p.replace(
                annotation=p.empty, default=p.empty if p.default is p.empty else None
            )
            for p in self.parameters.values()
        ]
        return _CALL.format(
            parameters=inspect.Signature(bare),
            arguments=", ".join(_PASSED[p.kind].format(p.name) for p in bare),
            key=key,
            kind=kind,
        )

    def _asked(self, mark: str, name: str) -> str:
        """An expression with a comma: what is asked of an argument."""
        several = _SEVERAL.get(self.parameters[name].kind)
        if several is None:
            return f"{mark.format(value=name, name=name)}, "
        each = mark.format(value="one_", name=name)
        return f"*[{each} for one_ in {several.__qualname__}({name})], "

    def right(self, given: dict[str, Any]) -> set[Any] | tuple[()]:
        """Refuses wrong arguments, and returns the results known to be right."""
        self._refuse(given)
        try:
            return self.followed.setdefault(given["key_"], set())
        except TypeError:
            return ()  # which forgets

    def right_result(self, given: dict[str, Any]) -> None:
        """Refuses a wrong result, and remembers a right one."""
        self._refuse(given, given["return_"])
        if isinstance(given["known_"], set):
            given["known_"].add(given["kind_"])

    def _refuse(self, given: dict[str, Any], *result: Any) -> None:
        push_shape_memo({name: given[name] for name in self.parameters})
        try:  # where equal letters are equal numbers
            for name, parameter in self.parameters.items():
                several = _SEVERAL.get(parameter.kind)
                values = (given[name],) if several is None else several(given[name])
                self._refuse_any(name, values)
            self._refuse_any("return", result)
        finally:
            pop_shape_memo()

    def _refuse_any(self, name: str, values: Iterable[Any]) -> None:
        hint = self.hints.get(name, Any)
        for value in values:
            if not is_bearable(value, hint, conf=_CONF):
                told = _each(value) if _has_shape(hint) else value
                raise TypeCheckError(f"{self.whose}: {name} is {told!r}, not {hint}")


_CLOSURES: dict[CodeType, _Rules] = {}


def _unknown(function_: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        return known_(function_)(*args, **options)  # noqa: F821

    return call


def _held(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with arguments and result checked.

    Types may be defined after it: it is written when it is called first.
    """
    rules = _CLOSURES.get(function.__code__)
    if rules is not None:
        return _made(function, rules.code, rules.names)

    def known(function: Callable[..., Any]) -> Callable[..., Any]:
        rules = _Rules(function, names)
        if "<locals>" in function.__qualname__:
            _CLOSURES[function.__code__] = rules
        call.__code__ = rules.code
        return call

    names = {"known_": known}
    call = _made(function, _unknown(function).__code__, names)
    return call


def _made(
    function: Callable[..., Any], code: CodeType, names: dict[str, Any]
) -> FunctionType:
    """What is called in place of a function."""
    call = FunctionType(code, names, closure=(CellType(function),))
    call.__defaults__ = function.__defaults__
    call.__kwdefaults__ = function.__kwdefaults__
    return functools.update_wrapper(call, function)


def jaxtyped(*, typechecker: Callable[..., Any]) -> Callable[..., Any]:
    """In place of jaxtyping's own, as its import hook calls it."""
    return _decorated


def _decorated(function: Any) -> Any:
    if dataclasses.is_dataclass(function):
        function.__init__ = _held(function.__init__)
    if inspect.isfunction(function) and function.__annotations__:
        return _held(function)
    return function


jaxtyping.jaxtyped = jaxtyped
