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
            *("low_rank_corrections", "fedprox", "feddyn", "fedala"),
        ),
        "one model of each client; with secure sums, only their sum",
        "the average model",
    ),
    Sight(
        ("fedrep", "fedper", "lg_fedavg", "fedbabu", "fedbn"),
        "a part of one model of each client; with secure sums, only their sum",
        "the average of this part",
    ),
    Sight(
        ("scaffold",),
        "one model of each client and, unless steps are plain, the change of its mean "
        "gradient; with secure sums, only the sums of these",
        "the averages",
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
    Sight(("karula",), "one model of each client", "only its own new model"),
    Sight(("fedamp",), "one model of each client", "a mixture of models"),
    Sight(
        ("decentralised_sgd", "extra", "gradient_tracking"),
        "nothing",
        "a neighbour sees one or two rows, which also depend on clients further away",
    ),
    Sight(("neighbours",), "nothing", "a neighbour sees a model and mean losses"),
    Sight(
        ("cobo",),
        "nothing",
        "the others see a model; a client that it meets sees a model and a gradient",
    ),
    Sight(("fedfomo",), "nothing", "its partners of the round see a model"),
    Sight(
        ("all_for_all", "time_adaptive_all_for_all"),
        "nothing",
        "each client that learns from the sender sees one gradient",
    ),
    Sight(
        ("preconditioned_gradient",),
        "nothing",
        "the client with the reference sample sees a gradient of each client",
    ),
    Sight(
        ("all_for_one", "wga_bc"),
        "nothing",
        "a client's helpers see its model, and the client sees their gradients at this "
        "model",
    ),
    Sight(
        ("adaptive_all_for_one",),
        "nothing",
        "a client's helpers see its model, and the client sees their gradients at this "
        "model; everybody also sees products of gradients whenever partners are "
        "compared",
    ),
    Sight(
        ("server_sgd",),
        "every gradient, when it arrives",
        "the model",
    ),
    Sight(
        ("agraf", "accelerated_gossip_sgd", "loss_network"),
        "nothing",
        "a neighbour sees a model when the two meet",
    ),
    Sight(
        ("token_sgd", "token_sag"),
        "nothing",
        "the client that holds the token sees the model",
    ),
    Sight(
        ("nuclear_norm", "shared_subspace"),
        "vectors that each client makes from its gradients",
        "the averages of these vectors",
        "refused",
    ),
    Sight(
        ("spag",),
        "nothing",
        "the client with the reference sample sees a gradient of each client",
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
    "Server": "Sees what the table of methods says, knows the settings of the study, "
    "and follows the protocol. With [privacy], epsilon bounds what it can learn.",
    "Partner": "Another client. Sees its own model, and what the table of methods "
    "says.",
    "Colluders": "Several partners who share everything they see with each other, "
    "and perhaps with the server. With secure sums, the report has one epsilon for "
    "each such group. Otherwise one epsilon holds against the server and all other "
    "clients together.",
    "Reader of the report": "Sees the settings, names of clients, numbers of samples, "
    "and who learned with whom. Also sees scores and losses of every client and of its "
    "baselines, which are trained without noise. No epsilon covers "
    "scores and losses. Give the report only to people who may see them.",
    "Recipient of a model": "Sees one client's model, its card, scores of that client, "
    "names of partners, and the medians, means and scales that prepare features. "
    "Epsilon covers the data of other clients in this model. It does not cover the "
    "client's own data: a personal model may reveal them.",
    "Owner of the run folder": "Sees everything: all models, exact losses, outcomes of "
    "test samples, the ledger and its key.",
}

NOT_COVERED = (
    "The number of samples of each client, which decides its weight in averages.",
    "With the unit sample: which samples are for training, validation and test. This "
    "depends on the content of the samples. If one sample is removed, one other sample "
    "may move from each part to the next, for example from training to validation.",
    "Numbers that prepare columns: exact medians that fill gaps, means, scales and "
    "categories. They are in `preparation-<seed>.json` and in every exported model.",
    "Scores, losses and training curves of every client in `metrics.csv`, the report, "
    "progress on the terminal and logs.",
    "The choice of an algorithm in `coterie export`, which uses validation scores of "
    "all clients.",
    "Warnings about odd data on the terminal, such as a column that reveals the "
    "target. The person who runs the study sees them. They are not stored.",
    "`coterie init`, `coterie plan`, `coterie audit` and studies without [privacy], "
    "which use the data without noise.",
    "Which columns are left out or read as dates, if the study file does not list "
    "them.",
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
