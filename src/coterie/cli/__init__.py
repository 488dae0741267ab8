"""The command line: what a person types, and what the terminal shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import late_names

if TYPE_CHECKING:
    from .commands import main
    from .completion import light_app
    from .panels import Line, Panel, draw_panels
    from .reproductions import Claim, items_of, lead, run_with_progress, settings

# Imported late, so that help and completion need not wait for torch.
__getattr__ = late_names(
    __name__,
    {
        "commands": "main",
        "completion": "light_app",
        "panels": "Line Panel draw_panels",
        "reproductions": "Claim items_of lead run_with_progress settings",
    },
)


def __dir__() -> list[str]:
    """The public names, also those that are not imported yet."""
    return sorted(__all__)


__all__ = [
    "Claim",
    "Line",
    "Panel",
    "draw_panels",
    "items_of",
    "lead",
    "light_app",
    "main",
    "run_with_progress",
    "settings",
]
