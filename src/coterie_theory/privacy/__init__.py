"""What private gossip reveals, and an audit of one client in one run."""

from .distances import AtDistance, by_distance, hops
from .exact import exact_losses, group_share
from .one_run import audit_client, canary_scores, directions, released
from .printed import printed_losses

__all__ = [
    "AtDistance",
    "audit_client",
    "by_distance",
    "canary_scores",
    "directions",
    "exact_losses",
    "group_share",
    "hops",
    "muffliato",
    "printed_losses",
    "released",
]
