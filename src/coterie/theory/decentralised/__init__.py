"""Rates, step sizes and bounds of methods without a server."""

__all__ = [
    "continuized",
    "descent",
    "gossip",
    "muffliato",
    "tokens",
    "topologies",
]
