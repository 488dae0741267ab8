"""Help and completion at once: the commands with their options, without what they do.

What commands do needs torch and pandas, which take seconds. Their signatures and first
sentences do not: they are taken from the source of `commands`, whose functions are made
here without their bodies.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import typer

from ..__main__ import COMMANDS, PURPOSE

KINDS = (
    *("algorithms", "ingredients", "datasets", "splits", "models", "graphs"),
    *("measures", "losses"),
)
"""What `coterie list` can list."""

_LIGHT = ("collections", "pathlib", "typing", "typer")
"""Modules that signatures need."""


def kinds(incomplete: str) -> list[str]:
    """What `coterie list` can list."""
    return [kind for kind in KINDS if kind.startswith(incomplete)]


def examples(incomplete: str) -> list[str]:
    """Studies that come with coterie."""
    from .examples import installed

    names = sorted(path.stem for path in installed("examples").glob("*.toml"))
    return [name for name in names if name.startswith(incomplete)]


def run_folders(incomplete: str) -> list[str]:
    """Folders of runs that begin so, by default those below `runs`.

    Nothing where there are none: the shell then completes names of files.
    """
    start = incomplete or "runs/"
    folder = Path(start) if start.endswith("/") else Path(start).parent
    found = [folder, *(path for path in folder.glob("*") if path.is_dir())]
    runs = sorted(str(path) for path in found if (path / "study.toml").is_file())
    return [name for name in runs if name.startswith(incomplete)]


def light_app() -> typer.Typer:
    """The command line for help and completion: its commands do nothing."""
    app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
    folder = Path(__file__).parent / "commands"
    shared = dict(globals())
    _run_light(folder / "options.py", shared)
    found: dict[str, Any] = {}
    for path in sorted(folder.glob("*.py")):
        found |= _run_light(path, dict(shared))
    for name, purpose in COMMANDS.items():
        app.command(name, short_help=purpose)(found[name])

    @app.callback(help=PURPOSE)
    def common(version: bool = typer.Option(False, "--version")) -> None:
        """Has the options of all commands."""

    return app


def _run_light(path: Path, names: dict[str, Any]) -> dict[str, Any]:
    """The commands of a file by name, without their bodies.

    Args:
        path: of the file.
        names: what it knows, to which are added the names that its signatures need.
    """
    found = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            name = node.name.rstrip("_")
            if name not in COMMANDS:
                continue
            node.decorator_list, node.body = [], node.body[:1]  # which says what it is
            _execute(node, path, names)
            found[name] = names[node.name]
        elif isinstance(node, ast.ImportFrom):
            if node.level == 0 and (node.module or "").split(".")[0] in _LIGHT:
                _execute(node, path, names)
        elif isinstance(node, ast.Assign) and _is_option(node.value):
            _execute(node, path, names)
    return found


def _is_option(value: ast.expr) -> bool:
    """Whether a name of a file stands for an option or an argument."""
    return "typer" in ast.unparse(value)


def _execute(node: ast.stmt, path: Path, names: dict[str, Any]) -> None:
    exec(compile(ast.Module([node], []), str(path), "exec"), names)
