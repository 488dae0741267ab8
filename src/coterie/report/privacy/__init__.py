"""What private training promised: epsilon over rounds, and who told whom how much."""

from .figures import spending, told
from .section import privacy_section

__all__ = ["privacy_section", "spending", "told"]
