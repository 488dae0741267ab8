"""Methods for clients that compute at their own pace, driven by `engine.events`."""

from __future__ import annotations

from collections.abc import Callable

from ..engine.events import Asynchronous
from .adaptive_all_for_one import async_adaptive_all_for_one
from .agraf import agraf
from .all_for_all import async_all_for_all
from .ditto import async_ditto
from .local import own_pace
from .loss_network import loss_network
from .sgd import async_sgd

METHODS: dict[str, Callable[..., Asynchronous]] = {
    "agraf": agraf,
    "async_adaptive_all_for_one": async_adaptive_all_for_one,
    "async_all_for_all": async_all_for_all,
    "async_ditto": async_ditto,
    "async_sgd": async_sgd,
    "loss_network": loss_network,
}
"""Name of a method -> its factory."""

IN_TIME: dict[str, Callable[..., Asynchronous]] = {"local": own_pace}
"""Algorithms of rounds whose clients have no reason to wait where there is a clock."""
