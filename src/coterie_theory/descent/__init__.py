"""Accelerated and delayed descent on functions, without clients."""

__all__ = ["continuized", "delayed", "dual"]
