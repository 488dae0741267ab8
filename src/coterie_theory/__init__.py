"""Results of the papers as functions, and code that only their figures use.

`coterie` never imports this package. Its modules hold bounds, rates and step sizes:

- `all_for_one` (adaptive All-for-one), `meta` (Per-FedAvg) and `karula`;
- `collaboration`, `clusters`, `rates`, `lower_bounds` and `infinite`: collaboration
  when bounds on the differences of clients are known;
- `asynchrony` (workers and a server), `mixing` and `agraf` (graphs), and `delays`:
  methods in which clients do not wait for each other.

`distances` compares clients by their gradients and losses.

Rooms:
    curvature: how curvatures of samples differ, and where large steps lead.
    decentralised: bounds and step sizes of methods without a server.
    descent: accelerated and delayed descent on functions, without clients.
    gossip: averages of rows over a graph, without models.
    privacy: what private gossip reveals, and an audit of one client in one run.
    structure: estimators of models in a common subspace or with few centres, and rates.

References to "Even, PhD thesis" are to:
    Even, "Towards decentralization, asynchrony, privacy and personalization in
    federated learning", PhD thesis, 2024, hal tel-04877971.
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
    "descent",
    "distances",
    "gossip",
    "infinite",
    "karula",
    "lower_bounds",
    "meta",
    "mixing",
    "privacy",
    "rates",
    "structure",
]
