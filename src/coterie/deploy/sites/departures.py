"""What left a site, from the log that its member keeps."""

from __future__ import annotations

from pathlib import Path

from ...checks import InputError
from .member_store import Departure, MemberStore
from .participation import STORE


def departures_of(folder: Path) -> list[Departure]:
    """All messages with rows that left a site in a run, in order.

    Args:
        folder: of the site's results of the run.
    """
    place = folder / STORE
    if not place.is_dir():
        raise InputError(
            f"{folder} is not the run folder of a site: it has no {STORE}."
        )
    store = MemberStore(place)
    try:
        return store.departures()
    finally:
        store.close()
