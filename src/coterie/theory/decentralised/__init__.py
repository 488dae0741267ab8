"""Theory of methods without a server, one module for each kind of them."""

__all__ = ["topologies"]
