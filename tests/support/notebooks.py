"""Notebooks, run without a notebook server: their cells of code, in order."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any


def run_notebook(path: Path) -> list[Any]:
    """What each cell of code shows: the value of its last line, or None.

    Args:
        path: of the notebook, whose cells share their names.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = []
    for number, cell in enumerate(
        json.loads(path.read_text(encoding="utf-8"))["cells"]
    ):
        if cell["cell_type"] != "code":
            continue
        where, code = f"{path.name}, cell {number}", ast.parse("".join(cell["source"]))
        last = code.body.pop() if isinstance(code.body[-1], ast.Expr) else None
        exec(compile(code, where, "exec"), names)
        value = None
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), where, "eval"), names)
        shown.append(value)
    return shown
