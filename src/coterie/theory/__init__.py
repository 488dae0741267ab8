"""Bounds, step sizes and speed-ups of the papers as functions.

One module for each piece of theory: `all_for_one` (adaptive All-for-one), `meta`
(Per-FedAvg), `karula`; for collaboration with known biases `collaboration`, `clusters`,
`rates`, `lower_bounds` and `infinite`; without waiting `asynchrony` (workers and a
server), `mixing` and `agraf` (graphs), and `delays` of both; without a server the
modules of `decentralised`; where models share a subspace or centres, `structure`; of
curvatures, large steps and preconditioning those of `curvature`.
"""

__all__ = [
    "agraf",
    "all_for_one",
    "asynchrony",
    "clusters",
    "collaboration",
    "curvature",
    "decentralised",
    "delays",
    "infinite",
    "karula",
    "lower_bounds",
    "meta",
    "mixing",
    "rates",
    "structure",
]
