"""Splits: ways to divide a table among clients, by name.

A split is `name(table, rng, *, options) -> Assignment`. No split draws again and again
until a draw fits: each split ends after a fixed amount of work. A split is refused if a
client would have fewer than `min_size` samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .. import checks
from ..checks import InputError, integer, number, one_of, parameters_of
from ..seeds import generator
from .federation import Federation, Table, client_name, federate, short_name
from .fitting import prepare_here
from .parts import (
    FEWEST,
    check_classes,
    check_room,
    check_table,
    classes_of,
    contents,
    fixed_roles,
    large_enough,
    random_roles,
    ranks,
    streams,
    too_small,
)


class Assignment(NamedTuple):
    """The client of every sample, and what is known about the clients."""

    owner: Int[Tensor, " m"]  # -1 for samples of nobody
    clusters: Int[Tensor, " n"] | None = None
    targets: Tensor | None = None  # (M,), if the split changes labels
    optima: Float[Tensor, "n d"] | None = None
    is_test: Bool[Tensor, " m"] | None = None  # if the source fixes the test part
    names: tuple[str, ...] = ()  # of the clients, if they have names
    left_out: tuple[str, ...] = ()  # clients that were too small, and why


def iid(
    table: Table, rng: torch.Generator, *, clients: int = 20, min_size: int = 10
) -> Assignment:
    """Equal random shares: the clients differ by chance only."""
    check_room(table, clients, min_size)
    owner = _deal(len(table.targets), torch.arange(clients), rng)
    return Assignment(large_enough(table, owner, clients, min_size))


def size_skew(
    table: Table,
    rng: torch.Generator,
    *,
    clients: int = 20,
    exponent: float = 1.0,
    min_size: int = 10,
) -> Assignment:
    """Random shares of different sizes, proportional to (i + 1)^-exponent.

    Every client first gets `min_size` samples. The rest is divided in proportion.
    """
    check_room(table, clients, min_size)
    number("exponent", exponent, at_least=0)
    law = torch.arange(1, clients + 1, dtype=torch.float64) ** -exponent
    spare = torch.tensor([len(table.targets) - clients * min_size])
    sizes = min_size + _counts((law / law.sum())[None], spare)[0]
    owner = torch.empty(len(table.targets), dtype=torch.int64)
    order = torch.randperm(len(owner), generator=rng)
    owner[order] = torch.arange(clients).repeat_interleave(sizes)
    return Assignment(large_enough(table, owner, clients, min_size))


def dirichlet(
    table: Table,
    rng: torch.Generator,
    *,
    clients: int = 20,
    alpha: float = 0.5,
    min_size: int = 10,
) -> Assignment:
    """Each class is divided among the clients by a Dirichlet(alpha) law.

    With a small alpha, few clients have samples of a class, and sizes differ widely. A
    client with fewer than `min_size` samples then takes more samples, one by one. Each
    of these samples comes from the client that is then the largest, and from the most
    frequent class of that client.
    """
    labels, classes = classes_of(table, "dirichlet")
    check_room(table, clients, min_size)
    number("alpha", alpha, at_least=1e-6)
    shares = _dirichlet(alpha, classes, clients, rng)
    counts = _counts(shares, torch.bincount(labels, minlength=classes))
    owner = _deal_by_class(labels, _top_up(counts, min_size), rng)
    return Assignment(large_enough(table, owner, clients, min_size))


def shards(
    table: Table,
    rng: torch.Generator,
    *,
    clients: int = 20,
    labels_per_client: int = 2,
    min_size: int = 10,
) -> Assignment:
    """Samples are sorted by label and cut into equal shards, a few per client.

    McMahan et al., "Communication-efficient learning of deep networks from
    decentralized data", AISTATS 2017.
    """
    labels, _ = classes_of(table, "shards")
    check_room(table, clients, min_size)
    integer("labels_per_client", labels_per_client, at_least=1)
    count = clients * labels_per_client
    if count > len(labels):
        raise InputError(
            f"{clients} clients with {labels_per_client} shards each need {count} "
            f"samples, but `{table.name}` has {len(labels)}."
        )
    shard = torch.arange(len(labels)) * count // len(labels)
    keeper = torch.randperm(count, generator=rng) % clients
    owner = torch.empty_like(labels)
    owner[_by_class(labels, rng)] = keeper[shard]
    return Assignment(large_enough(table, owner, clients, min_size))


def label_clusters(
    table: Table,
    rng: torch.Generator,
    *,
    clients: int = 20,
    clusters: int = 2,
    min_size: int = 10,
) -> Assignment:
    """Labels are divided into C groups; client i only has labels of group i mod C.

    Samples of a group are shared equally among its clients. With two clusters, even
    clients have the lower half of the labels and odd clients the upper half.

    This is Definition S1 of Philippenko, Le Bars, Scaman and Massoulié,
    "Adaptive collaboration for online personalized distributed learning with
    heterogeneous clients", 2025.

    Differences: our K classes count from 0, and the lower group is 0 .. ceil(K/2) - 1.
    The groups that the paper prints are unequal, and include a class that does not
    exist.
    """
    labels, classes = classes_of(table, "label_clusters")
    check_room(table, clients, min_size)
    integer("clusters", clusters, at_least=1, at_most=classes)
    cluster = torch.arange(clients) % clusters
    owner = torch.full_like(labels, -1)
    for c, group in enumerate(torch.arange(classes).tensor_split(clusters)):
        samples = torch.isin(labels, group).nonzero()[:, 0]
        members = (cluster == c).nonzero()[:, 0]
        if len(members):
            owner[samples] = _deal(len(samples), members, rng)
    owner = large_enough(table, owner, clients, min_size)
    return Assignment(owner, clusters=cluster)


def label_swap(
    table: Table, rng: torch.Generator, *, clients: int = 20, min_size: int = 10
) -> Assignment:
    """Equal random shares, but odd clients give every class the label of another class.

    All odd clients use the same new labels, from one random cycle through all classes.
    So the labels that even clients learn are always wrong for odd clients.
    """
    labels, classes = classes_of(table, "label_swap")
    if classes < 2:
        raise InputError(f"label_swap needs two classes, `{table.name}` has {classes}.")
    assignment = iid(table, rng, clients=clients, min_size=min_size)
    cycle = torch.randperm(classes, generator=rng)
    renamed = torch.empty_like(cycle)
    renamed[cycle] = cycle.roll(1)
    odd = assignment.owner % 2 == 1
    targets = torch.where(odd, renamed[labels], labels)
    return assignment._replace(clusters=torch.arange(clients) % 2, targets=targets)


def fallah(
    table: Table,
    rng: torch.Generator,
    *,
    clients: int = 50,
    a: int = 196,
    low: float = 0.5,
    min_size: int = 10,
) -> Assignment:
    """Half the clients have all lower classes, the rest one lower and one upper class.

    Even clients have `a` images of each class of the lower half. Each odd client has
    low * a images of one of these classes and 2 a images of one class of the upper
    half. Odd clients take turns through the pairs of classes, so that the pairs differ
    as much as possible.

    Fallah, Mokhtari and Ozdaglar, "Personalized federated learning with theoretical
    guarantees", NeurIPS 2020, section 5; low=0 is their "different heterogeneity".

    Differences: `a` counts all images of a client, with its validation and test parts.
    The paper divides the test set of the source separately.
    """
    labels, classes = classes_of(table, "fallah")
    if classes < 2:
        raise InputError(f"fallah needs two classes, `{table.name}` has {classes}.")
    integer("clients", clients, at_least=1)
    integer("a", a, at_least=1)
    integer("min_size", min_size, at_least=FEWEST)
    few = round(number("low", low, at_least=0) * a)
    half = -(-classes // 2)
    turn = torch.arange(clients // 2)  # of the odd clients
    lower, upper = turn % half, half + (turn + turn // half) % (classes - half)
    counts = torch.zeros(classes, clients, dtype=torch.int64)
    counts[:half, ::2] = a
    counts[lower, 2 * turn + 1] = few
    counts[upper, 2 * turn + 1] = 2 * a
    short = counts.sum(1) - torch.bincount(labels, minlength=classes)
    if (short > 0).any():
        worst = int(short.argmax())
        raise InputError(
            f"fallah with {clients} clients and a={a} needs {int(counts[worst].sum())} "
            f"samples of class {worst}, {int(short[worst])} more than `{table.name}` "
            "has: use fewer clients or a smaller a."
        )
    clusters = torch.zeros(clients, dtype=torch.int64)
    kind = upper + (lower * classes if few else 0)
    clusters[1::2] = 1 + torch.unique(kind, return_inverse=True)[1]
    owner = _deal_by_class(labels, counts, rng)
    owner = large_enough(table, owner, clients, min_size)
    return Assignment(owner, clusters=clusters)


def natural(
    table: Table,
    rng: torch.Generator,
    *,
    clients: int | None = None,
    min_size: int = FEWEST,
) -> Assignment:
    """The clients that the data come from, all of them or the first `clients`.

    Clients with fewer than `min_size` samples are left out if at least two other
    clients remain. A notice names the clients that are left out.
    """
    if table.group is None:
        raise InputError(
            f"`{table.name}` has no natural clients: choose another split, such as iid."
        )
    owner = table.group.clone()
    present = int(owner.max()) + 1
    kept = present if clients is None else clients
    integer("clients", kept, at_least=1, at_most=present)
    owner[owner >= kept] = -1
    integer("min_size", min_size, at_least=FEWEST)
    everybody = Assignment(
        owner,
        clusters=None if table.clusters is None else table.clusters[:kept],
        optima=None if table.optima is None else table.optima[:kept],
        is_test=table.is_test,
        names=table.names[:kept],
    )
    reasons = too_small(owner, kept, min_size, table.is_test)
    found = _leave_out_clients(everybody, reasons)
    count = len(found.names) or int(found.owner.max()) + 1
    large_enough(table, found.owner, count, min_size, found.names)
    return found


def _leave_out_clients(given: Assignment, reasons: Mapping[int, str]) -> Assignment:
    """The assignment without these clients, if at least two others remain."""
    clients = int(given.owner.max()) + 1
    kept = [client for client in range(clients) if client not in reasons]
    if not reasons or len(kept) < 2:
        return given
    place = torch.full((clients + 1,), -1)  # of nobody, last
    place[kept] = torch.arange(len(kept))
    out = [
        f"{client_name(given.names, k)} ({why})" for k, why in sorted(reasons.items())
    ]
    return given._replace(
        owner=place[given.owner],
        clusters=None if given.clusters is None else given.clusters[kept],
        optima=None if given.optima is None else given.optima[kept],
        names=tuple(short_name(given.names, client) for client in kept),
        left_out=tuple(out),
    )


SPLITS: dict[str, Callable[..., Assignment]] = {
    "dirichlet": dirichlet,
    "fallah": fallah,
    "iid": iid,
    "label_clusters": label_clusters,
    "label_swap": label_swap,
    "natural": natural,
    "shards": shards,
    "size_skew": size_skew,
}


def divide(
    table: Table,
    name: str,
    /,
    *,
    seed: int,
    validation: float = 0.1,
    test: float = 0.2,
    max_samples: int | None = None,
    min_classes: int = 1,
    **options: object,
) -> Federation:
    """The federation that a split makes of a table, with raw columns prepared.

    Every client has at least two training samples, one validation sample and one test
    sample. With `validation=0`, no client has validation samples. If the source fixes a
    test part, the split `natural` uses it, and validation is a share of the rest. Other
    splits pool all samples.

    The order of the samples and of raw columns changes nothing. The parts of a client
    depend only on its own samples, its name and the seed.

    Args:
        table: the data.
        name: a key of SPLITS.
        seed: names the random streams.
        validation: share of each client's samples for validation; 0: none.
        test: share of each client's samples for testing.
        max_samples: the most samples that a client keeps, chosen at random.
        min_classes: the fewest classes that a training part may have.
        options: the keyword arguments of the split.
    """
    one_of("split.name", name, SPLITS)
    checks.options("split", name, parameters_of(SPLITS[name]), options)
    number("validation", validation, at_least=0, below=1)
    number("test", test, above=0, below=1 - validation)
    check_table(table)
    content = contents(table)
    order = content.argsort(stable=True)
    assignment = _assign(table, order, name, generator(seed, "split", name), options)
    owner, names = assignment.owner, assignment.names
    clients = range(int(owner.max()) + 1)
    if max_samples is not None:
        integer("max_samples", max_samples, at_least=FEWEST)
        drawn = streams(clients, names, seed, "split", "max_samples")
        rank, _ = ranks(owner, content, drawn)
        owner = torch.where(rank < max_samples, owner, -1)
    drawn = streams(clients, names, seed, "split", "parts")
    fixed = assignment.is_test
    if fixed is None:
        role = random_roles(owner, content, drawn, validation, test)
    else:
        role = fixed_roles(table, owner, content, drawn, fixed, validation, names)
    if assignment.targets is not None:
        table = table._replace(targets=assignment.targets)
    check_classes(table, owner, role, min_classes, names)
    known = {key: getattr(assignment, key) for key in ("clusters", "optima", "names")}
    made = federate(table, owner, role, order=order, **known)
    return prepare_here(_note_left_out(made, assignment.left_out))


def _note_left_out(made: Federation, left_out: tuple[str, ...]) -> Federation:
    """The federation with a note about clients that were left out."""
    if not left_out:
        return made
    before = f"{made.note.rstrip('.')}; " if made.note else ""
    note = f"{before}left out, because they are too small: {', '.join(left_out)}."
    return replace(made, left_out=left_out, note=note)


def _assign(
    table: Table,
    order: Int[Tensor, " m"],
    name: str,
    rng: torch.Generator,
    options: dict[str, object],
) -> Assignment:
    """The assignment by a split, which gets the samples in this order."""

    def take_rows(fields: tuple[str, ...], rows: Tensor, of: Any) -> dict[str, Any]:
        found = {field: getattr(of, field) for field in fields}
        return {key: None if v is None else v[rows] for key, v in found.items()}

    # No split looks at features.
    in_order = take_rows(("targets", "group", "is_test"), order, table)
    found = SPLITS[name](table._replace(**in_order), rng, **options)
    back = order.argsort()
    return found._replace(**take_rows(("owner", "targets", "is_test"), back, found))


def _deal(
    samples: int, members: Int[Tensor, " c"], rng: torch.Generator
) -> Int[Tensor, " m"]:
    """(M,) random owners among `members`, with equal numbers of samples."""
    owner = torch.empty(samples, dtype=torch.int64)
    order = torch.randperm(samples, generator=rng)
    owner[order] = members[torch.arange(samples) % len(members)]
    return owner


def _by_class(labels: Int[Tensor, " m"], rng: torch.Generator) -> Int[Tensor, " m"]:
    """(M,) the samples sorted by class, in random order within a class."""
    order = torch.randperm(len(labels), generator=rng)
    return order[labels[order].argsort(stable=True)]


def _deal_by_class(
    labels: Int[Tensor, " m"], counts: Int[Tensor, "k n"], rng: torch.Generator
) -> Int[Tensor, " m"]:
    """(M,) random owners such that client i has counts[k, i] samples of class k."""
    classes, clients = counts.shape
    total = torch.bincount(labels, minlength=classes)
    nobody = total - counts.sum(1)
    names = torch.cat([torch.arange(clients), torch.tensor([-1])])
    sizes = torch.cat([counts, nobody[:, None]], dim=1)
    owner = torch.empty_like(labels)
    order = _by_class(labels, rng)
    owner[order] = names.repeat(classes).repeat_interleave(sizes.flatten())
    return owner


def _dirichlet(
    alpha: float, rows: int, columns: int, rng: torch.Generator
) -> Float[Tensor, "k n"]:
    """Independent Dirichlet(alpha) rows, exact for any small alpha.

    A Gamma(alpha) variable is Gamma(alpha + 1) times U^(1 / alpha), with U uniform in
    (0, 1]. The product underflows for small alpha, and its logarithm does not.
    """
    seed = int(torch.randint(2**62, (), generator=rng))
    draw = np.random.default_rng(seed)
    size = (rows, columns)
    # 1 - U lies in (0, 1], so that the logarithm is finite.
    logs = (
        np.log(draw.gamma(alpha + 1, size=size)) + np.log1p(-draw.random(size)) / alpha
    )
    return torch.softmax(torch.from_numpy(logs), dim=1)


def _counts(
    shares: Float[Tensor, "k n"], totals: Int[Tensor, " k"]
) -> Int[Tensor, "k n"]:
    """Whole numbers close to totals[k] * shares[k] that add up to totals[k]."""
    cuts = (shares.cumsum(1) * totals[:, None]).round().long()
    cuts[:, -1] = totals
    cuts = cuts.minimum(totals[:, None])
    return torch.diff(cuts, dim=1, prepend=torch.zeros_like(cuts[:, :1]))


def _top_up(counts: Int[Tensor, "k n"], min_size: int) -> Int[Tensor, "k n"]:
    """The counts after clients with too few samples took some from the largest client.

    While a client has fewer than `min_size` samples, the largest has more than the
    mean, and so more than `min_size`. So no move makes a client too small, and the
    number of moves is the number of missing samples.
    """
    table = counts.numpy().copy()
    size = table.sum(0)
    for needy in np.flatnonzero(size < min_size):
        for _ in range(min_size - size[needy]):
            donor = size.argmax()
            label = table[:, donor].argmax()
            table[label, [donor, needy]] += (-1, 1)
            size[[donor, needy]] += (-1, 1)
    return torch.from_numpy(table)
