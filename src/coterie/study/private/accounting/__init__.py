"""Says what a private run has spent, and charges costs before anything leaves.

This package uses `mechanisms`, which computes the largest cost of a round.
"""
