"""Whom to trust: weights, what is believed of others, and whose model fits best."""
