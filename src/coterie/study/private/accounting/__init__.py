"""Says what a private run has spent, and charges it before anything leaves.

This package uses `mechanisms`, which says what a round costs at most.
"""
