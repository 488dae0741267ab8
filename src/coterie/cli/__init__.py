"""The command line: what a person types, and what the terminal shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..names import late_names

# Imported late, so that help and completion need not wait for torch.
if TYPE_CHECKING:
    from .commands import main as main
    from .completion import light_app as light_app
    from .panels import Line as Line
    from .panels import Panel as Panel
    from .panels import draw_panels as draw_panels
    from .reproductions import Claim as Claim
    from .reproductions import items_of as items_of
    from .reproductions import lead as lead
    from .reproductions import run_with_progress as run_with_progress
    from .reproductions import settings as settings

__getattr__, __dir__, __all__ = late_names(__name__)
