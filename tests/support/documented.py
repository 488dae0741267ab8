"""Methods that a page of the documentation shows, as modules."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

_FILE = re.compile(r"^```python\n# (\w+)\.py\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_DOCS = Path(__file__).parents[2] / "docs"


def sources_of(page: str) -> dict[str, str]:
    """The files of a page by name."""
    return dict(_FILE.findall((_DOCS / page).read_text(encoding="utf-8")))


def modules_of(page: str) -> dict[str, ModuleType]:
    """The files of a page by name, imported without writing them."""
    found = {}
    for name, code in sources_of(page).items():
        module = ModuleType(f"documented_{name}")
        sys.modules[module.__name__] = module  # annotations are looked up there
        exec(compile(code, f"{page}, {name}.py", "exec"), vars(module))
        found[name] = module
    return found
