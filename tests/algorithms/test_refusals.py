"""What options of methods cannot mean, beyond what the suite asks of every method.

The suite tries numbers that are not finite, negative counts, unknown words, and
ingredients for others; here are the limits of each option.
"""

from __future__ import annotations

import pytest
import torch

from coterie.algorithms import ALGORITHMS
from coterie.conformance.cases import Case
from coterie.conformance.federations import small_federation
from coterie.graphs import gossip_matrix
from coterie.study.ingredients import ingredients_of
from support.refusals import refusal

LIMITS = [
    ("accelerated_gossip_sgd", {"eta": -1.0}, "`eta` must be at least 0, got -1.0"),
    ("accelerated_gossip_sgd", {"alpha": -1.0}, "`alpha` must be at least 0, got -1.0"),
    ("adaptive_all_for_one", {"every": 0}, "`every` must be at least 1, got 0"),
    ("adaptive_all_for_one", {"estimator": "spilt"}, "Did you mean 'split'"),
    (
        "adaptive_all_for_one",
        {"samples": 1},
        "`samples` must be 0 (all) or at least 2, got 1",
    ),
    ("adaptive_all_for_one", {"memory": 1.0}, "`memory` must be less than 1, got 1.0"),
    (
        "adaptive_all_for_one",
        {"confidence": -1.0},
        "`confidence` must be at least 0, got -1.0",
    ),
    ("adaptive_all_for_one", {"criterion": "binray"}, "Did you mean 'binary'"),
    ("adaptive_all_for_one", {"lam": 0.0}, "`lam` must be greater than 0, got 0.0"),
    (
        "agraf",
        {"mix": "pairs", "every": 2},
        "`every` must be 1 if `mix` is pairs, got 2",
    ),
    ("apfl", {"alpha": 1.5}, "`alpha` must be at most 1, got 1.5"),
    ("apfl", {"alpha": -0.5}, "`alpha` must be at least 0, got -0.5"),
    ("aruba", {"lr": 0.0}, "`lr` must be at least 1e-09, got 0.0"),
    ("aruba", {"zeta": 0.0}, "`zeta` must be at least 1e-09, got 0.0"),
    ("aruba", {"p": -1.0}, "`p` must be greater than 0, got -1.0"),
    ("cobo", {"rho": -1.0}, "`rho` must be at least 0, got -1.0"),
    ("cobo", {"gamma": -1.0}, "`gamma` must be at least 0, got -1.0"),
    ("ddo", {"lr": 1.0, "curvature": 2.0}, "`curvature` must be at most"),
    ("ddo", {"accuracy": 0.9}, "`accuracy` must be at most"),
    ("ditto", {"lam": -1.0}, "`lam` must be at least 0, got -1.0"),
    ("dual_accelerated", {"lr": 1.0, "curvature": 2.0}, "`curvature` must be at most"),
    ("dual_accelerated", {"accuracy": 0.9}, "`accuracy` must be at most"),
    ("fedavg_finetune", {"tune_lr": 0.0}, "`tune_lr` must be greater than 0"),
    ("ifca", {"clusters": 0}, "`clusters` must be at least 1, got 0"),
    ("ifca", {"spread": 0.0}, "`spread` must be greater than 0, got 0.0"),
    ("ifca", {"starts": 0}, "`starts` must be at least 1, got 0"),
    ("karula", {"t": -1.0}, "`t` must be at least 0, got -1"),
    ("karula", {"tolerance": 0.0}, "`tolerance` must be greater than 0"),
    ("karula", {"lr": 0.0}, "`lr` must be greater than 0"),
    ("karula", {"weight_decay": -1.0}, "`weight_decay` must be at least 0"),
    ("per_fedavg", {"alpha": -0.1}, "`alpha` must be at least 0, got -0.1"),
    ("per_fedavg", {"delta": 0.0}, "`delta` must be greater than 0, got 0.0"),
    ("pfedme", {"lam": 0.0}, "`lam` must be greater than 0, got 0.0"),
    ("pfedme", {"beta": 0.0}, "`beta` must be greater than 0, got 0.0"),
    ("pfedme", {"inner_lr": 0.0}, "`inner_lr` must be greater than 0, got 0.0"),
    ("pfedme", {"inner_steps": 0}, "`inner_steps` must be at least 1, got 0"),
    (
        "time_adaptive_all_for_all",
        {"noise": -1.0},
        "`noise` must be at least 0, got -1.0",
    ),
    (
        "time_adaptive_all_for_all",
        {"noise": 0.0, "regularity": "convex"},
        "must be greater than 0 if `regularity`",
    ),
    ("time_adaptive_all_for_all", {"start": 0.0}, "`start` must be greater than 0"),
    ("server_sgd", {"wait": 0}, "`wait` must be at least 1, got 0"),
    ("server_sgd", {"assign": "random", "wait": 2}, "`wait` must be 1"),
    ("token_sag", {"walk": "iid"}, "iid needs an edge between clients 0 and 2"),
    ("token_sgd", {"walk": "iid"}, "iid needs an edge between clients 0 and 2"),
    ("wga_bc", {"alpha": 1.5}, "`alpha` must be at most 1, got 1.5"),
    ("wga_bc", {"beta": -0.1}, "`beta` must be at least 0, got -0.1"),
]
ON_GRAPHS = [n for n, made in ALGORITHMS.items() if "mixing" in ingredients_of(made)]


@pytest.mark.parametrize(("name", "options", "message"), LIMITS)
def test_what_an_option_cannot_mean_is_refused(name, options, message):
    case = Case(ALGORITHMS[name])
    assert message in refusal(case.build, small_federation(), options=options)


@pytest.mark.parametrize("name", ON_GRAPHS)
def test_a_graph_that_falls_apart_is_refused(name):
    apart = gossip_matrix(torch.tensor([[0, 1], [2, 3]]), 4)
    assert refusal(ALGORITHMS[name], apart) == (
        "`mixing` must join all 4 nodes, but there is no way from node 0 to 2."
    )
