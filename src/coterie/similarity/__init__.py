"""Who resembles whom, from data, before training.

Distances between clients' data with standard errors (`distances`, `projected`), between
their gradients and losses (`models`), what they say about partners (`partners`, from
the chosen `samples`), and their picture (`figures`).
"""
