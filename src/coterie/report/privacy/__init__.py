"""Report on private training: epsilon over rounds, and between clients."""

from .figures import epsilon_curves, epsilon_matrix
from .officer import officer_section
from .section import privacy_section

__all__ = ["epsilon_curves", "epsilon_matrix", "officer_section", "privacy_section"]
