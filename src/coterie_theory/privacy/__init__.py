"""What private gossip reveals, and an audit of one client in one run."""

from .distances import LossesAtDistance, by_distance, hops
from .exact import exact_losses, group_share
from .one_run import audit_client, canary_scores, collect_releases, directions
from .printed import printed_losses

__all__ = [
    "LossesAtDistance",
    "audit_client",
    "by_distance",
    "canary_scores",
    "collect_releases",
    "directions",
    "exact_losses",
    "group_share",
    "hops",
    "muffliato",
    "printed_losses",
]
