"""Functions whose results are multiplied by 1.5 while tests run, to see who notices.

The code of a function is replaced inside the function, so that all who have it, under
whatever name and in whatever list, call the other code.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

import pytest
import torch
from _pytest.runner import runtestprotocol
from torch import Tensor

from coterie.types import Algorithm, Flow

FACTOR = 1.5


class Row(NamedTuple):
    """A function of the map, and the tests that are named next to it."""

    section: str
    statement: str
    function: str
    tests: tuple[str, ...]


def larger(value: Any) -> Any:
    """The value times 1.5: whole numbers are rounded up, and truth is turned around.

    Of an algorithm, these are the models after every round and every answer.
    """
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + (value + 1) // 2
    if isinstance(value, float):
        return FACTOR * value
    if isinstance(value, Tensor):
        if value.dtype == torch.bool:
            return ~value
        return FACTOR * value if value.is_floating_point() else value + (value + 1) // 2
    if isinstance(value, Algorithm):
        return _other_algorithm(value)
    if isinstance(value, Flow):
        return _other_flow(value)
    if isinstance(value, tuple):
        parts = [larger(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, list):
        return [larger(part) for part in value]
    if isinstance(value, dict):
        return {key: larger(part) for key, part in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _other_fields(value)
    if isinstance(value, Iterator):
        return map(larger, value)
    if callable(value):
        return _then_larger(value)
    return value


def _then_larger(call: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *given, **options: larger(call(*given, **options))


def _other_fields(value: Any) -> Any:
    """A copy with other numbers and tensors, where its class allows them."""
    fields = {
        field.name: larger(found)
        for field in dataclasses.fields(value)
        if isinstance(found := getattr(value, field.name), int | float | Tensor)
    }
    return dataclasses.replace(value, **fields)


def _other_algorithm(made: Algorithm) -> Algorithm:
    def step(*given: Any) -> Any:
        state, info = made.step(*given)
        names = ["x"] if hasattr(state, "x") else state._fields
        tensors = {name: getattr(state, name) for name in names}
        return state._replace(
            **{
                name: FACTOR * value
                for name, value in tensors.items()
                if isinstance(value, Tensor) and value.is_floating_point()
            }
        ), info

    if made.flow is not None:
        made = made._replace(flow=_other_flow(made.flow))
    return made._replace(step=step) if "rounds" in made.faces else made


def _other_flow(flow: Flow) -> Flow:
    def then(change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(state: Any, now: Any) -> Any:
            found = change(state, now)
            state.x = FACTOR * state.x
            return found

        return changed

    meet = None if flow.meet is None else then(flow.meet)
    return flow._replace(arrive=then(flow.arrive), meet=meet)


def functions_of(found: Any) -> list[FunctionType]:
    """The functions whose code is run: of a class, its public methods and properties.

    They are those inside the checks of types and options.
    """
    if not isinstance(found, type):
        return [inspect.unwrap(found)]
    parts = [part for name, part in vars(found).items() if not name.startswith("_")]
    parts = [part.fget if isinstance(part, property) else part for part in parts]
    return [inspect.unwrap(part) for part in parts if isinstance(part, FunctionType)]


@contextlib.contextmanager
def scaled(found: Any) -> Iterator[None]:
    """A context in which a function's results, or those of a class, are larger."""
    functions = functions_of(found)
    assert functions, f"{found} has nothing to scale"
    with contextlib.ExitStack() as stack:
        for function in functions:
            stack.enter_context(_one_scaled(function))
        yield


@contextlib.contextmanager
def _one_scaled(function: FunctionType) -> Iterator[None]:
    code = function.__code__
    same = FunctionType(
        code,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    same.__kwdefaults__ = function.__kwdefaults__
    name = f"_larger_{id(function)}"
    # The new code must close over the same variables as the old one.
    free = code.co_freevars
    lines = [f"def outer({', '.join(free)}):", "  def inner(*given, **options):"]
    lines += [f"    {one}" for one in free]
    lines += [f"    return {name}(*given, **options)", "  return inner"]
    written: dict[str, Any] = {}
    exec("\n".join(lines), written)
    other = written["outer"](*[None] * len(free)).__code__
    function.__globals__[name] = _then_larger(same)
    # The type checker of the tests may read the signature of a function only now.
    function.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    function.__code__ = other
    try:
        yield
    finally:
        function.__code__ = code
        del function.__signature__  # type: ignore[attr-defined]
        del function.__globals__[name]


class Noticed:
    """A plugin of pytest that runs chosen tests while each of some functions is scaled.

    Attributes:
        found: for each row, the test that failed an assertion first, or None. Errors
            of another kind do not count: refusing a bad value is not noticing it.
    """

    def __init__(self, rows: dict[Row, Any]) -> None:
        self.rows = rows
        self.found: dict[Row, str | None] = {}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Keeps the tests that rows name."""
        names = {name for row in self.rows for name in row.tests}
        items[:] = [item for item in items if _name_of(item) in names]

    def pytest_runtestloop(self, session: Any) -> bool:
        """Runs the tests of each row, until one of them fails an assertion.

        Tests of formulas by hand come first, as they take no time.
        """
        by_name: dict[str, list[Any]] = {}
        for item in session.items:
            by_name.setdefault(_name_of(item), []).append(item)
        for row, function in self.rows.items():
            names = sorted(row.tests, key=lambda name: not name.endswith("by_hand"))
            items = [item for name in names for item in by_name[name]]
            with scaled(function):
                self.found[row] = next(filter(None, map(_failed, items)), None)
        return True


def _name_of(item: Any) -> str:
    return getattr(item, "originalname", item.name)


def _failed(item: Any) -> str | None:
    """The name of a test, run anew, if an assertion in it failed."""
    item._initrequest()
    for report in runtestprotocol(item, log=False, nextitem=None):
        if report.failed:
            said = report.longrepr.reprcrash.message
            if said.startswith(("assert", "AssertionError", "Failed")):
                return item.name
    return None


def notice(rows: dict[Row, Any], files: list[Path]) -> dict[Row, str | None]:
    """For each row, the named test that notices that its function is scaled, or None.

    The tests run in this process, in a session of their own, without what the settings
    of pytest load, as that is here already.
    """
    plugin = Noticed(rows)
    given = ["-s", "-o", "addopts=", "-o", "filterwarnings=ignore"]
    for name in ("cacheprovider", "jaxtyping", "xdist"):
        given += ["-p", f"no:{name}"]
    code = pytest.main([*given, *map(str, files)], plugins=[plugin])
    assert code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED), code
    return plugin.found
