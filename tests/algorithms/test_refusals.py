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
    ("adaptive_all_for_one", {"estimator": "spilt"}, "Did you mean 'split'"),
    (
        "adaptive_all_for_one",
        {"samples": 1},
        "`samples` must be 0 (all) or at least 2, got 1",
    ),
    ("adaptive_all_for_one", {"memory": 1.0}, "`memory` must be less than 1, got 1.0"),
    ("adaptive_all_for_one", {"criterion": "binray"}, "Did you mean 'binary'"),
    (
        "agraf",
        {"mix": "pairs", "every": 2},
        "`every` must be 1 if `mix` is pairs, got 2",
    ),
    ("apfl", {"alpha": 1.5}, "`alpha` must be at most 1, got 1.5"),
    ("aruba", {"lr": 0.0}, "`lr` must be at least 1e-09, got 0.0"),
    ("aruba", {"zeta": 0.0}, "`zeta` must be at least 1e-09, got 0.0"),
    ("aruba", {"p": -1.0}, "`p` must be greater than 0, got -1.0"),
    ("ddo", {"lr": 1.0, "curvature": 2.0}, "`curvature` must be at most"),
    ("ddo", {"accuracy": 0.9}, "`accuracy` must be at most"),
    ("dual_accelerated", {"lr": 1.0, "curvature": 2.0}, "`curvature` must be at most"),
    ("dual_accelerated", {"accuracy": 0.9}, "`accuracy` must be at most"),
    (
        "time_adaptive_all_for_all",
        {"noise": 0.0, "regularity": "convex"},
        "must be greater than 0 if `regularity`",
    ),
    ("server_sgd", {"assign": "random", "wait": 2}, "`wait` must be 1"),
    ("token_sag", {"walk": "iid"}, "iid needs an edge between clients 0 and 2"),
    ("token_sgd", {"walk": "iid"}, "iid needs an edge between clients 0 and 2"),
    ("wga_bc", {"alpha": 1.5}, "`alpha` must be at most 1, got 1.5"),
]
NOT_NEGATIVE = """
accelerated_gossip_sgd.eta accelerated_gossip_sgd.alpha
adaptive_all_for_one.confidence apfl.alpha cobo.rho cobo.gamma ditto.lam
karula.t karula.weight_decay per_fedavg.alpha time_adaptive_all_for_all.noise
wga_bc.beta
"""
POSITIVE = """
adaptive_all_for_one.lam fedavg_finetune.tune_lr ifca.spread karula.tolerance
karula.lr per_fedavg.delta pfedme.lam pfedme.beta pfedme.inner_lr
time_adaptive_all_for_all.start
"""
COUNTS = """
adaptive_all_for_one.every ifca.clusters ifca.starts pfedme.inner_steps
server_sgd.wait
"""
RULES = [
    (NOT_NEGATIVE, -1.0, "at least 0"),
    (POSITIVE, 0.0, "greater than 0"),
    (COUNTS, 0, "at least 1"),
]
LIMITS += [
    (name, {option: value}, f"`{option}` must be {rule}, got {value}")
    for options, value, rule in RULES
    for name, option in (place.split(".") for place in options.split())
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
