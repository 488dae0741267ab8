"""Ingredients about clients: sizes, weights, biases, radii, precisions, a reference."""

from __future__ import annotations

import torch
from torch import Tensor

from ...checks import (
    InputError,
    call,
    dissimilarity,
    integer,
    number,
    one_of,
    positive,
    square,
    stochastic,
)
from ...collaboration.weights import (
    interpolation,
    restrict_to_active,
    restrict_to_neighbours,
    same_cluster,
    threshold_weights,
    water_filling,
)
from ...data.federation import Federation, short_name
from ...graphs.fastest import MIXINGS
from ...graphs.matrices import adjacency
from ...privacy.mechanisms.partners import private_weights
from ...similarity.partners import ESTIMATES, estimated_weights
from ...similarity.transport import dissimilarities
from .contexts import (
    ON_GRAPH,
    Context,
    file_of,
    from_file,
    places_in_files,
    without_graph,
)


def sizes(choice: str, context: Context) -> Tensor:
    """(N,) training samples of each client."""
    one_of("sizes", choice, ("samples",))
    return context.federation.train.size


def weights(choice: str, context: Context) -> Tensor:
    """(N, N) weights whose rows sum to 1, by one of these names, or from a file.

        `clusters`, `uniform` and `alone`.
        `mixture(alpha)`: alpha for the others, and the rest for the client
            itself.
        `biases(threshold)`: joins clients whose known optima are at most that
            far apart.
        `water_filling(c)`: weighs squared distances of known optima against the
            variance.
        `means(S)`, `moments(S)`, `mmd(S)` and `sliced(S)`: join clients that
            are near by these distances, from S training samples of each.
        `unlabelled_means(S)` and so on: as above, without labels.

    The last two kinds may have a second number: the threshold for squared distances.
    Without it, the threshold is in the widest gap among them (see
    `coterie.similarity.partners`).

    With `on graph` after a name, as in `clusters on graph`, only the weights of the
    client and its neighbours on [graph] are kept, divided by their sum.
    """
    federation, n = context.federation, len(context.federation)
    if choice.endswith(ON_GRAPH):
        if context.edges is None:
            raise InputError(f"`weights` {choice!r} needs the table [graph].")
        near = adjacency(MIXINGS["metropolis"](context.edges, n))
        return restrict_to_neighbours(weights(without_graph(choice), context), near)
    if file := file_of(choice):
        total, mine = places_in_files(federation)
        given = stochastic("weights", from_file("weights", file), total)
        if n < total:
            present = torch.zeros(total, dtype=torch.bool).index_fill(0, mine, True)
            given = restrict_to_active(given, present)
        return given[mine][:, mine]
    name, arguments = call("weights", choice)
    numbers = ("biases", "mixture", "water_filling")
    estimates = (*ESTIMATES, *(f"unlabelled_{estimate}" for estimate in ESTIMATES))
    one_of("weights", name, ("clusters", "uniform", "alone", *numbers, *estimates))
    if name in estimates:
        return _estimate(name, arguments, choice, context)
    if arguments and name not in numbers:
        raise InputError(f"`weights` {name} takes no numbers, got {choice!r}.")
    if name == "uniform":
        return torch.full((n, n), 1 / n)
    if name == "alone":
        return torch.eye(n)
    if name == "clusters":
        return same_cluster(_clusters("weights", federation))
    return _by_number(name, arguments, choice, federation)


def _by_number(
    name: str, arguments: tuple[float, ...], choice: str, federation: Federation
) -> Tensor:
    """`mixture`, `biases` and `water_filling`, which take one number."""
    if len(arguments) != 1 or (name != "mixture" and federation.optima is None):
        needs = "" if name == "mixture" else " and a federation with known optima"
        raise InputError(
            f"`weights` {name} needs one number{needs}, "
            f"got {choice!r} for `{federation.name}`."
        )
    if name == "mixture":
        alpha = number("weights", arguments[0], at_least=0, at_most=1)
        return interpolation(alpha, len(federation))
    if name == "biases":
        threshold = number("weights", arguments[0], at_least=0)
        return threshold_weights(_distances("weights", federation), threshold)
    c = number("weights", arguments[0], above=0)
    return water_filling(_distances("weights", federation).square() / 2, c)


def _estimate(
    name: str, arguments: tuple[float, ...], choice: str, context: Context
) -> Tensor:
    """Weights from S samples of every client."""
    if len(arguments) not in (1, 2) or arguments[0] % 1:
        raise InputError(
            f"`weights` {name} needs a whole number of samples, and may have a "
            f"threshold, got {choice!r}."
        )
    samples = integer("weights", int(arguments[0]), at_least=4, at_most=1e9)
    federation, choosing, given = context.federation, context.choosing, arguments[1:]
    try:
        if choosing is None:
            found = estimated_weights(name, federation, samples, *given)
        else:
            found = private_weights(name, federation, samples, choosing, *given)
        return found.to(torch.float32)
    except InputError as error:
        raise InputError(f"`weights` {choice!r} cannot be made: {error}") from error


def biases(choice: str, context: Context) -> Tensor:
    """(N, N) bounds b_ik on the gap f_i(x_k^*) - f_i(x_i^*) >= 0, or a file of them.

    `clusters`: 0 within a cluster, and 1 (or the number in brackets)
        between two.
    `optima`: half the squared distance of known optima, times the curvature
        of the losses in brackets. A loss |x - x_i^*|^2 without a factor 1/2
        has `optima(2)`.
    """
    federation = context.federation
    if file := file_of(choice):
        total, mine = places_in_files(federation)
        given = square("biases", from_file("biases", file), total)
        return given[mine][:, mine]
    name, arguments = call("biases", choice)
    one_of("biases", name, ("clusters", "optima"))
    if len(arguments) > 1:
        raise InputError(f"`biases` {name} takes one number at most, got {choice!r}.")
    scale = number("biases", arguments[0] if arguments else 1.0, above=0)
    if name == "clusters":
        return scale * _across_clusters("biases", federation)
    return scale * _distances("biases", federation).square() / 2


def radius(choice: str, context: Context) -> Tensor:
    """(N, N) how far apart two models may be, squared and up to a factor, or a file.

        `transport(size, most)`: how differently the training data of two clients lie
            around a reference of `size` samples (100). Each client uses at most `most`
            samples (0: all).
        `cosine(size, most)`: as `transport`, with another ground cost, for classes (see
            `similarity.transport`).
        `clusters`: 0 within a true cluster, and 1 between two.
        `optima`: the squared distance of known optima.

    A file may have infinite entries.
    """
    federation = context.federation
    if file := file_of(choice):
        total, mine = places_in_files(federation)
        given = dissimilarity("radius", from_file("radius", file), total)
        return given[mine][:, mine]
    name, arguments = call("radius", choice)
    one_of("radius", name, ("transport", "cosine", "clusters", "optima"))
    if len(arguments) > (2 if name in ("transport", "cosine") else 0):
        raise InputError(f"`radius` {name} takes fewer numbers, got {choice!r}.")
    if name == "clusters":
        return _across_clusters("radius", federation)
    if name == "optima":
        return _distances("radius", federation).square()
    size, most = (*arguments, *(100.0, 0.0)[len(arguments) :])
    if size % 1 or most % 1:
        raise InputError(f"`radius` {name} takes whole numbers, got {choice!r}.")
    return dissimilarities(
        federation,
        size=integer("radius", int(size), at_least=1, at_most=1e6),
        most=integer("radius", int(most), at_least=0),
        cosine=name == "cosine",
    )


def _clusters(name: str, federation: Federation) -> Tensor:
    """(N,) the known clusters."""
    if federation.clusters is None:
        raise InputError(
            f"`{name}` clusters needs known clusters, but `{federation.name}` has none."
        )
    return federation.clusters


def _across_clusters(name: str, federation: Federation) -> Tensor:
    """(N, N) 0 within a known cluster and 1 between two."""
    label = _clusters(name, federation)
    return (label[:, None] != label[None, :]).to(torch.float32)


def _distances(name: str, federation: Federation) -> Tensor:
    """(N, N) distances between known optima, exactly 0 where these are the same."""
    if federation.optima is None:
        raise InputError(
            f"`{name}` optima needs known optima, but `{federation.name}` has none."
        )
    mode = "donot_use_mm_for_euclid_dist"
    return torch.cdist(federation.optima, federation.optima, compute_mode=mode)


def precision(choice: str, context: Context) -> Tensor | None:
    """(N,) from `samples`, `equal`, `estimated` during training, or a file's name."""
    federation = context.federation
    if file := file_of(choice):
        values = from_file("precision", file).flatten()
        total, mine = places_in_files(federation)
        return positive("precision", values, total)[mine]
    one_of("precision", choice, ("samples", "equal", "estimated"))
    if choice == "estimated":
        return None
    size = federation.train.size.to(torch.float32)
    return size if choice == "samples" else torch.ones_like(size)


def reference(choice: str, context: Context) -> Tensor:
    """(N,) who holds the server's sample: the `largest` client, or a client by name."""
    federation = context.federation
    names = [short_name(federation.names, int(i)) for i in federation.clients]
    if choice == "largest" and "largest" not in names:
        place = int(federation.train.size.argmax())
    else:
        place = names.index(one_of("reference", choice, names))
    return torch.arange(len(federation)) == place
