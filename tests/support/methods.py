"""Which of our methods go by rounds; `test_both_faces` says that it is these."""

from __future__ import annotations

from coterie.algorithms import ALGORITHMS

TIME_ONLY = {"accelerated_gossip_sgd", "agraf", "loss_network", "server_sgd"}
TIME_ONLY |= {"ddo", "dual_accelerated", "token_sag", "token_sgd"}
IN_ROUNDS = {n: made for n, made in ALGORITHMS.items() if n not in TIME_ONLY}
