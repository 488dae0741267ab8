"""What private training promised: epsilon over rounds, and who told whom how much."""

from .figures import spending, told
from .officer import officer_section
from .section import privacy_section

__all__ = ["officer_section", "privacy_section", "spending", "told"]
