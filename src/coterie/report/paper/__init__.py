"""Tables and figures for a paper: LaTeX, Markdown and vector graphics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...names import late_names

# Imported late, because tables do not need plotly.
if TYPE_CHECKING:
    from .figures import write_figures as write_figures
    from .tables import PaperColumn as PaperColumn
    from .tables import as_frame as as_frame
    from .tables import as_latex as as_latex
    from .tables import as_markdown as as_markdown
    from .tables import caption as caption
    from .tables import paper_columns as paper_columns

__getattr__, __dir__, __all__ = late_names(__name__)
