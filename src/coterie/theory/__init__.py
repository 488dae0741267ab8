"""Bounds, step sizes and speed-ups of the papers as functions.

One module for each piece of theory: `all_for_one` (adaptive All-for-one), `meta`
(Per-FedAvg), `karula`; for collaboration with known biases `collaboration`, `rates`,
`lower_bounds` and `infinite`; without waiting `asynchrony` (workers and a server),
`mixing` and `agraf` (graphs).
"""
