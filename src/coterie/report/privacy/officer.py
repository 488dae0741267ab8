"""The page for a data protection officer: who sees what, by role and method.

docs/data_protection.md has the same words, and a test compares them.
"""

from __future__ import annotations

from typing import NamedTuple

from markupsafe import Markup

from ...records import Records
from ...scores.finals import planned_algorithms
from ..html import render


class Sight(NamedTuple):
    """What others see of a client in every round, with some methods."""

    methods: tuple[str, ...]
    server: str
    partner: str
    private: str = "each with noise"  # with [privacy]


SIGHTS = (
    Sight(("local",), "nothing", "nothing", "nothing leaves"),
    Sight(
        (
            *("fedavg", "fedavg_finetune", "ditto", "apfl", "pfedme", "per_fedavg"),
            *("low_rank_corrections", "fedrep"),
        ),
        "one model of each client; with secure sums, only their sum",
        "the average model",
    ),
    Sight(
        ("dane", "aruba"),
        "two or three rows (model, gradient, scale) of each client",
        "their averages",
    ),
    Sight(
        ("coteries", "ifca"),
        "models and mean losses of each client, and its group",
        "the average of a group",
    ),
    Sight(("karula",), "one model of each client", "a model of its own"),
    Sight(
        ("decentralised_sgd", "extra", "gradient_tracking"),
        "nothing",
        "a neighbour sees one or two rows, and what these carry of clients behind it",
    ),
    Sight(
        ("neighbours", "cobo"),
        "nothing",
        "a neighbour sees a model, and for `neighbours` mean losses",
    ),
    Sight(
        ("all_for_all", "time_adaptive_all_for_all"),
        "nothing",
        "everybody with a weight sees one gradient",
    ),
    Sight(
        ("preconditioned_gradient",),
        "nothing",
        "the client with the reference sample sees a gradient of each client",
    ),
    Sight(
        ("all_for_one", "adaptive_all_for_one", "wga_bc"),
        "nothing",
        "a reader sees a gradient at its own model; the adaptive method also shows "
        "products of gradients to everybody who compares",
    ),
    Sight(
        ("server_sgd",),
        "every gradient, when it arrives",
        "the model",
    ),
    Sight(
        ("agraf", "accelerated_gossip_sgd", "loss_network"),
        "nothing",
        "a neighbour sees a model, when both meet",
    ),
    Sight(
        ("token_sgd", "token_sag"),
        "nothing",
        "whoever has the token sees the model that walks",
    ),
    Sight(
        ("nuclear_norm", "shared_subspace", "spag"),
        "models or gradients of each client",
        "what the server makes of them",
        "refused",
    ),
    Sight(
        ("ddo", "dual_accelerated"),
        "nothing",
        "a neighbour sees dual variables",
        "refused",
    ),
)
"""Every method of the library stands in one row."""

ROLES = {
    "Server": "Sees what the table says, knows the study, and does as agreed. With "
    "[privacy] its knowledge is bounded by epsilon, against the server together with "
    "others as the report says.",
    "Partner": "Another client. Sees what the table says and its own model.",
    "Colluders": "Several partners, with or without the server. They see together what "
    "each of them sees. The report has one epsilon for each such role where sums are "
    "secure; elsewhere one epsilon holds against all others and the server.",
    "Reader of the report": "Sees names of clients, numbers of samples, scores and "
    "losses of every client, also of baselines that it trains alone without noise, who "
    "learned with whom, and the settings. No epsilon covers these. Give the "
    "report only to those who may see them.",
    "Recipient of a model": "Sees one client's model, its card, scores of that client, "
    "names of partners, and the medians, means and scales that prepare features. "
    "Epsilon covers what came from other clients. It does not cover the client's own "
    "data: a personal model may tell of them.",
    "Owner of the run folder": "Sees everything: all models, exact losses, outcomes of "
    "test samples, the ledger and its key.",
}

NOT_COVERED = (
    "How many samples each client has, which weights averages.",
    "With the unit sample: which samples train, validate and test. A sample that is "
    "left out can move one other sample across each border between these parts.",
    "How columns were prepared: exact medians that fill gaps, means, scales and "
    "categories, in `preparation-<seed>.json` and in every exported model.",
    "Scores, losses and training curves of every client in `metrics.csv`, the report, "
    "progress on the terminal and logs.",
    "The choice of an algorithm by validation data in `coterie export`, which looks at "
    "scores of all clients.",
    "Sentences about odd data on the terminal (a column that gives the target away, "
    "clients with few samples). They are shown to whoever runs the study, and are not "
    "kept.",
    "`coterie init`, `coterie plan`, `coterie audit` and studies without [privacy], "
    "which work on the data as they are.",
    "Which columns a study leaves out or reads as dates, where it does not say so "
    "itself.",
    "Names of clients, columns, categories and classes.",
)


def officer_section(records: Records) -> Markup:
    """The section on who sees what in this study, or nothing without [privacy]."""
    if not isinstance(records.study.get("privacy"), dict):
        return Markup()
    own = Sight((), "what it sends", "what it sends")
    rows = []
    for label, name in planned_algorithms(records):
        sight = next((s for s in SIGHTS if name in s.methods), own)
        shown = f"{label}, a method of your own" if sight is own else label
        rows.append([shown, sight.server, sight.partner, sight.private])
    return render("officer.html", rows=rows, roles=ROLES, not_covered=NOT_COVERED)
