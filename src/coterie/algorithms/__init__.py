"""The methods as functions; `coterie.methods` has them by name.

A new method needs a file of its own, a line in this file, and its name in `GROUPS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..names import publish
from ..types import Algorithm
from .accelerated_gossip_sgd import accelerated_gossip_sgd as accelerated_gossip_sgd
from .adaptive_all_for_one import adaptive_all_for_one as adaptive_all_for_one
from .agraf import agraf as agraf
from .all_for_all import all_for_all as all_for_all
from .all_for_one import all_for_one as all_for_one
from .apfl import apfl as apfl
from .aruba import aruba as aruba
from .cobo import cobo as cobo
from .coteries import coteries as coteries
from .dane import dane as dane
from .ddo import ddo as ddo
from .decentralised_sgd import decentralised_sgd as decentralised_sgd
from .ditto import ditto as ditto
from .dual_accelerated import dual_accelerated as dual_accelerated
from .extra import extra as extra
from .fedala import fedala as fedala
from .fedamp import fedamp as fedamp
from .fedavg import fedavg as fedavg
from .fedavg_finetune import fedavg_finetune as fedavg_finetune
from .fedbabu import fedbabu as fedbabu
from .fedbn import fedbn as fedbn
from .feddyn import feddyn as feddyn
from .fedfomo import fedfomo as fedfomo
from .fedper import fedper as fedper
from .fedprox import fedprox as fedprox
from .fedrep import fedrep as fedrep
from .gradient_tracking import gradient_tracking as gradient_tracking
from .ifca import ifca as ifca
from .karula import karula as karula
from .lg_fedavg import lg_fedavg as lg_fedavg
from .local import local as local
from .loss_network import loss_network as loss_network
from .low_rank_corrections import low_rank_corrections as low_rank_corrections
from .neighbours import neighbours as neighbours
from .nuclear_norm import nuclear_norm as nuclear_norm
from .per_fedavg import per_fedavg as per_fedavg
from .pfedme import pfedme as pfedme
from .preconditioned_gradient import preconditioned_gradient as preconditioned_gradient
from .scaffold import scaffold as scaffold
from .server_sgd import server_sgd as server_sgd
from .shared_subspace import shared_subspace as shared_subspace
from .spag import spag as spag
from .time_adaptive_all_for_all import (
    time_adaptive_all_for_all as time_adaptive_all_for_all,
)
from .token_sag import token_sag as token_sag
from .token_sgd import token_sgd as token_sgd
from .wga_bc import wga_bc as wga_bc

ALGORITHMS: dict[str, Callable[..., Algorithm]] = {
    name: globals()[name] for name in publish(__name__)
}
"""The factory of each method, by its name."""

AVERAGING = (
    *("apfl", "ditto", "fedala", "fedavg", "fedavg_finetune", "fedbabu", "fedbn"),
    *("fedper", "fedprox", "fedrep", "lg_fedavg", "low_rank_corrections"),
    "per_fedavg",
)
"""Methods in which the server only averages the clients' copies of one model."""

CHOOSING = ("coteries", "fedfomo", "neighbours")
"""Methods that need validation data, to choose by."""


class MethodGroup(NamedTuple):
    """Methods that a reader compares with each other."""

    title: str
    about: str  # what they have in common
    methods: tuple[str, ...]
    also: tuple[str, ...] = ()  # methods of other groups that readers look for here


GROUPS = (
    MethodGroup(
        "Begin here",
        "Compare these three first.",
        ("coteries", "local", "fedavg"),
    ),
    MethodGroup(
        "One global model",
        "All clients use the same model.",
        ("fedprox", "scaffold", "feddyn", "preconditioned_gradient", "spag", "dane"),
        also=("fedavg",),
    ),
    MethodGroup(
        "Personal models",
        "Every client gets its own model, with the help of a global one.",
        (
            *("fedavg_finetune", "ditto", "apfl", "pfedme", "per_fedavg", "fedala"),
            "aruba",
        ),
    ),
    MethodGroup(
        "Groups",
        "Every client learns from the clients that are similar to it.",
        (
            *("ifca", "cobo", "fedamp", "fedfomo", "karula", "wga_bc", "all_for_one"),
            *("adaptive_all_for_one", "all_for_all", "time_adaptive_all_for_all"),
        ),
        also=("coteries", "neighbours"),
    ),
    MethodGroup(
        "Without a server",
        "Clients send messages only to their neighbours on a graph.",
        ("decentralised_sgd", "gradient_tracking", "extra", "neighbours"),
        also=("token_sgd", "token_sag"),
    ),
    MethodGroup(
        "Without waiting",
        "Clients do not wait for each other. These methods need simulated time.",
        (
            *("server_sgd", "agraf", "loss_network", "accelerated_gossip_sgd"),
            *("dual_accelerated", "ddo", "token_sgd", "token_sag"),
        ),
    ),
    MethodGroup(
        "Private",
        "The table [privacy] of a study adds noise to what clients send, in almost "
        "every method. So this group has no methods of its own.",
        (),
        also=("fedavg", "coteries", "decentralised_sgd", "token_sgd"),
    ),
    MethodGroup(
        "Shared structure",
        "Models of clients have some layers in common, or lie in a common subspace.",
        (
            *("fedrep", "fedper", "lg_fedavg", "fedbabu", "fedbn"),
            *("low_rank_corrections", "shared_subspace", "nuclear_norm"),
        ),
    ),
)
"""Every method is in one group. Documents and `coterie list` have the same order."""
