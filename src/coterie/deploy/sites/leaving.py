"""A member leaves a run for good."""

from __future__ import annotations

from .channel import HubChannel
from .joining import Joining
from .wire import Parcel


def leave_run(joining: Joining) -> None:
    """Tells the hub that a site leaves, so that it deletes what it keeps for the site.

    Args:
        joining: the checked files of the site.

    Raises:
        DisconnectedError: if the hub cannot be reached; then nothing has changed.
    """
    address, own = joining.site.hub, joining.credentials()
    channel = HubChannel(address, own, joining.roster.hub.name, give_up=0.0)
    try:
        channel.ask(Parcel({"kind": "leave"}), patiently=False)
    finally:
        channel.close()
