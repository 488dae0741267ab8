"""What private gossip reveals, and an audit of one client in one run."""

from .one_run import audit_client
from .printed import printed_losses

__all__ = ["audit_client", "muffliato", "printed_losses"]
