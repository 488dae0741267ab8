"""Fast help and completion: the commands with their options, without their bodies.

The bodies need torch and pandas, and importing them takes seconds. Signatures and
docstrings need no such import. So this module reads the source of `commands`, and makes
the same functions with empty bodies.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from ..__main__ import COMMANDS, GROUPS, PURPOSE

KINDS = (
    *("algorithms", "ingredients", "datasets", "splits", "models", "graphs"),
    *("measures", "losses", "optimizers", "servers"),
)
"""What `coterie list` can list."""

_LIGHT = ("collections", "pathlib", "typing", "typer")
"""Packages that signatures need."""


def kinds(incomplete: str) -> list[str]:
    """Kinds of things that `coterie list` can list, if they begin with this text."""
    return [kind for kind in KINDS if kind.startswith(incomplete)]


def examples(incomplete: str) -> list[str]:
    """Studies that come with coterie, if their names begin with this text."""
    from .examples import installed_folder

    names = sorted(path.stem for path in installed_folder("examples").glob("*.toml"))
    return [name for name in names if name.startswith(incomplete)]


def run_folders(incomplete: str) -> list[str]:
    """Run folders whose path begins with this text; without a text, all in `runs`.

    If there are none, the shell completes names of files.
    """
    start = incomplete or "runs/"
    folder = Path(start) if start.endswith("/") else Path(start).parent
    found = [folder, *(path for path in folder.glob("*") if path.is_dir())]
    runs = sorted(str(path) for path in found if (path / "study.toml").is_file())
    return [name for name in runs if name.startswith(incomplete)]


def light_app() -> typer.Typer:
    """The command line for help and completion, whose commands do nothing."""
    app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
    folder = Path(__file__).parent / "commands"
    shared = dict(globals())
    _light_commands(folder / "options.py", shared)
    found: dict[str, Any] = {}
    for path in sorted(folder.glob("*.py")):
        found |= _light_commands(path, dict(shared))
    for name, (_, purpose) in COMMANDS.items():
        if name in GROUPS:
            add_group(app, name, found)
        else:
            app.command(name, short_help=purpose)(found[name])

    @app.callback(help=PURPOSE)
    def common(version: bool = typer.Option(False, "--version")) -> None:
        """Takes the options of all commands."""

    return app


def add_group(app: typer.Typer, name: str, functions: Mapping[str, Any]) -> None:
    """Adds a command with commands of its own, such as `roster_sign` of `roster`."""
    inner = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
    for own, purpose in GROUPS[name].items():
        inner.command(own, short_help=purpose)(functions[f"{name}_{own}"])
    purpose = COMMANDS[name][1]
    app.add_typer(inner, name=name, help=purpose, short_help=purpose)


def _light_commands(path: Path, names: dict[str, Any]) -> dict[str, Any]:
    """The commands of a file, without bodies; adds what they need to `names`."""
    found = {}
    inner = {f"{name}_{own}" for name, owns in GROUPS.items() for own in owns}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            name = node.name.rstrip("_")
            if name not in COMMANDS and name not in inner:
                continue
            node.decorator_list, node.body = [], node.body[:1]  # the docstring
            _execute(node, path, names)
            found[name] = names[node.name]
        elif isinstance(node, ast.ImportFrom):
            if node.level == 0 and (node.module or "").split(".")[0] in _LIGHT:
                _execute(node, path, names)
        elif isinstance(node, ast.Assign) and _is_option(node.value):
            _execute(node, path, names)
    return found


def _is_option(value: ast.expr) -> bool:
    """Whether this expression makes an option or an argument."""
    return "typer" in ast.unparse(value)


def _execute(node: ast.stmt, path: Path, names: dict[str, Any]) -> None:
    exec(compile(ast.Module([node], []), str(path), "exec"), names)
