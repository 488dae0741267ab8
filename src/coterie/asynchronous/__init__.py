"""Methods for clients that compute at their own pace, driven by `coterie.events`."""

from __future__ import annotations

from collections.abc import Callable

from ..events import Asynchronous
from .agraf import agraf
from .all_for_all import async_all_for_all
from .ditto import async_ditto
from .sgd import async_sgd

METHODS: dict[str, Callable[..., Asynchronous]] = {
    "agraf": agraf,
    "async_all_for_all": async_all_for_all,
    "async_ditto": async_ditto,
    "async_sgd": async_sgd,
}
"""Name of a method -> its factory."""
