"""Rates, step sizes and bounds of methods without a server."""

__all__ = [
    "chains",
    "colluders",
    "continuized",
    "descent",
    "gossip",
    "muffliato",
    "tokens",
    "topologies",
]
