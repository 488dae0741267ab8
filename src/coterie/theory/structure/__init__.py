"""Rates and thresholds where clients' models share a subspace or a few centres."""

__all__ = ["one_sample", "rates", "shells"]
