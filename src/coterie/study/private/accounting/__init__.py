"""Says what a private run has spent, and charges it before anything leaves.

It stands on `mechanisms`, which knows what a round may cost at most.
"""
