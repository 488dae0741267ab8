"""Bounds, step sizes and rates of methods without a server, one module for each."""

__all__ = ["continuized", "descent"]
