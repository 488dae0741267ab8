"""Pages of the site that are made from the source: commands and public names."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import textwrap
from collections.abc import Iterator
from importlib import import_module
from inspect import Parameter
from pathlib import Path
from types import ModuleType
from typing import Any

import typer.main

from coterie.cli import light_app

SOURCE = Path(__file__).parents[2] / "src"

_MODULES = "coterie.types", "coterie.options", "coterie.checks"
"""Modules from which methods of one's own import."""

_UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n\n"
"""The search finds names on one page, `api.md`, so that guides come first."""

_SECTION = re.compile(r"^([A-Z][a-z]+):\n((?:\n| +.*\n?)+)", re.MULTILINE)
_ITEM = re.compile(r"^(\*{0,2}\w+): ", re.MULTILINE)
_SESSION = re.compile(r"^>>> (?:.+\n?)+", re.MULTILINE)


def command_sections() -> str:
    """Every command with its arguments and options, as `--help` shows them."""
    return "\n".join(_commands("coterie", typer.main.get_command(light_app()), 2))


def _commands(name: str, group: Any, depth: int) -> Iterator[str]:
    """A section for each command of a group."""
    for word, command in group.commands.items():
        whole = f"{name} {word}"
        yield f"\n{'#' * depth} `{whole}`\n\n{command.help or command.short_help}\n"
        if hasattr(command, "commands"):
            yield from _commands(whole, command, depth + 1)
            continue
        context = command.make_context(whole, [], resilient_parsing=True)
        yield f"```text\n{command.get_usage(context)}\n```\n"
        rows = [part.get_help_record(context) for part in command.get_params(context)]
        if rows := [row for row in rows if row and row[0] != "--help"]:
            yield "| argument or option | what it does |\n|---|---|"
            yield from (f"| `{cell(shown)}` | {cell(text)} |" for shown, text in rows)


def cell(text: str) -> str:
    """A text that may stand in a cell of a table."""
    return text.replace("|", "\\|")


def rooms() -> dict[str, ModuleType]:
    """Every package with public names, and `_MODULES`, by their dotted names."""
    files = sorted(SOURCE.rglob("__init__.py"))
    names = [".".join(file.parent.relative_to(SOURCE).parts) for file in files]
    found = {name: import_module(name) for name in names}
    found = {name: room for name, room in found.items() if hasattr(room, "__all__")}
    return found | {name: import_module(name) for name in _MODULES}


def names_of(room: ModuleType) -> list[str]:
    """The public names of a package, or what a module defines."""
    if hasattr(room, "__all__"):
        return sorted(room.__all__, key=str.lower)
    lines = ast.parse(inspect.getsource(room)).body
    found = [getattr(line, "name", "_") for line in lines]
    assigned = [line.targets[0] for line in lines if isinstance(line, ast.Assign)]
    found += [one.id for one in assigned if isinstance(one, ast.Name)]
    return sorted({one for one in found if not one.startswith("_")}, key=str.lower)


def package_sections(packages: dict[str, ModuleType]) -> str:
    """Every package with a link to its page, and all its names."""
    parts = []
    for name, room in packages.items():
        names = ", ".join(f"`{one}`" for one in names_of(room))
        parts.append(f"\n## [{name}](api/{name}.md)\n\n{about(room)}\n\n{names}\n")
    return "".join(parts)


def room_page(room: ModuleType) -> str:
    """The page of a package: each public name with its signature and docstring."""
    file = Path(room.__file__)
    texts = _texts_after_names(file.parent if hasattr(room, "__path__") else file)
    parts = [
        f"{_UNSEARCHED}# {room.__name__}\n\n{markdown(inspect.getdoc(room) or '')}"
    ]
    for name in names_of(room):
        inner = f"{room.__name__}.{name}"
        thing = getattr(room, name, None) or import_module(inner)
        parts.append(f"## `{name}`\n\n" + _described(name, thing, texts.get(name, "")))
    return "\n\n".join(parts) + "\n"


def _described(name: str, thing: Any, text: str) -> str:
    """Signature and docstring of a public name, and of the methods of a class."""
    if isinstance(thing, ModuleType):
        return _module_line(thing)
    if not inspect.isroutine(thing) and not inspect.isclass(thing):
        return markdown(text).strip() or f"A constant of type `{type(thing).__name__}`."
    parts = [_signature(name, thing), markdown(inspect.getdoc(thing) or "")]
    for own, member in vars(thing).items() if inspect.isclass(thing) else ():
        function = getattr(member, "fget", None) or getattr(member, "__func__", member)
        told = inspect.getdoc(function) if inspect.isroutine(function) else None
        if own.startswith("_") or not told or function.__module__ != thing.__module__:
            continue
        kind = "property" if isinstance(member, property) else "method"
        shown = "" if kind == "property" else _signature(own, getattr(thing, own))
        parts.append(f"### {kind} `{name}.{own}`\n\n{shown}\n\n{markdown(told)}")
    return "\n\n".join(parts)


def _module_line(module: ModuleType) -> str:
    """The first line of a module, or a link to the page of a package."""
    page = hasattr(module, "__path__") and hasattr(module, "__all__")
    return f"[{about(module)}]({module.__name__}.md)" if page else about(module)


def about(module: ModuleType) -> str:
    """The first line of a module's docstring."""
    return (inspect.getdoc(module) or "").splitlines()[0]


def _signature(name: str, thing: Any) -> str:
    """A call with parameters, one in each line if they do not fit in one line."""
    try:
        found = inspect.signature(thing)
    except ValueError:
        return ""
    parameters = [_parameter(parameter) for parameter in found.parameters.values()]
    kinds = [parameter.kind for parameter in found.parameters.values()]
    if Parameter.KEYWORD_ONLY in kinds and Parameter.VAR_POSITIONAL not in kinds:
        parameters.insert(kinds.index(Parameter.KEYWORD_ONLY), "*")
    back = found.return_annotation
    answer = "" if back in (None, "None", Parameter.empty) else f" -> {_type(back)}"
    call = f"{name}({', '.join(parameters)}){answer}"
    if len(call) > 80:
        lines = "".join(f"    {parameter},\n" for parameter in parameters)
        call = f"{name}(\n{lines}){answer}"
    return f"```python\n{call}\n```"


def _parameter(parameter: Parameter) -> str:
    """A parameter as its function declares it."""
    stars = {Parameter.VAR_POSITIONAL: "*", Parameter.VAR_KEYWORD: "**"}
    text = stars.get(parameter.kind, "") + parameter.name
    if parameter.annotation is not Parameter.empty:
        text += f": {_type(parameter.annotation)}"
    if parameter.default is not Parameter.empty:
        text += f" = {parameter.default!r}"
    return text


def _type(annotation: Any) -> str:
    """A type as it is written in the source."""
    if not isinstance(annotation, str):
        written = getattr(annotation, "__forward_arg__", None)
        annotation = written or inspect.formatannotation(annotation)
    return annotation.replace("'", '"')


def markdown(text: str) -> str:
    """A docstring as Markdown: sections become lists, sessions become code."""
    text = _SECTION.sub(_section, text + "\n")
    return _SESSION.sub(lambda found: f"```python\n{found[0].rstrip()}\n```\n", text)


def _section(found: re.Match[str]) -> str:
    body = textwrap.dedent(found[2]).strip()
    items = re.split(r"\n(?=\S)", body)
    if all(_ITEM.match(item) for item in items):
        lines = [" ".join(item.split()) for item in items]
        body = "\n".join(_ITEM.sub(r"- `\1`: ", line) for line in lines)
    return f"**{found[1]}:**\n\n{body}\n\n"


def _texts_after_names(place: Path) -> dict[str, str]:
    """The strings below assignments in a package or a file, by what is assigned."""
    found = {}
    for file in [place] if place.is_file() else place.rglob("*.py"):
        lines = ast.parse(file.read_text(encoding="utf-8")).body
        for line, after in itertools.pairwise(lines):
            targets = [line.target] if isinstance(line, ast.AnnAssign) else []
            targets = line.targets if isinstance(line, ast.Assign) else targets
            if not targets or not isinstance(after, ast.Expr):
                continue
            if isinstance(targets[0], ast.Name) and isinstance(
                after.value, ast.Constant
            ):
                found[targets[0].id] = inspect.cleandoc(str(after.value.value))
    return found
