"""Tables and figures for a paper: LaTeX, Markdown and vector graphics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import late_names

if TYPE_CHECKING:
    from .figures import write_figures
    from .tables import (
        PaperColumn,
        as_frame,
        as_latex,
        as_markdown,
        caption,
        paper_columns,
    )

# Imported late, because tables do not need plotly.
__getattr__ = late_names(
    __name__,
    {
        "figures": "write_figures",
        "tables": "PaperColumn as_frame as_latex as_markdown caption paper_columns",
    },
)


def __dir__() -> list[str]:
    """The public names, also those that are not imported yet."""
    return sorted(__all__)


__all__ = [
    "PaperColumn",
    "as_frame",
    "as_latex",
    "as_markdown",
    "caption",
    "paper_columns",
    "write_figures",
]
