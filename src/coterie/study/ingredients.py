"""What a study gives an algorithm beside numbers: sizes, weights, biases, precisions.

A factory's positional parameters are ingredients. Each has a recipe here, which makes
it from a short text of the study, such as `weights = "clusters"`, in its context.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from ..checks import (
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
from ..collaboration.weights import (
    among,
    among_neighbours,
    interpolation,
    same_cluster,
    water_filling,
    within,
)
from ..data.federation import Federation, short_name
from ..graphs.families import edges_of, refuse_apart
from ..graphs.fastest import MIXINGS, mixing_of
from ..graphs.matrices import neighbouring, refuse_unjoined
from ..models import Layout, columns, matrices
from ..similarity.partners import ESTIMATES, estimated_weights
from ..similarity.transport import dissimilarities


class Context(NamedTuple):
    """What there is to make an ingredient from, beside its text."""

    federation: Federation
    layout: Layout  # the columns of a model
    seed: int  # of the study
    edges: Int[Tensor, "e 2"] | None = None  # places of clients whom [graph] joins
    kind: str = "metropolis"  # of gossip matrices


_ON_GRAPH = " on graph"

Ingredients = Callable[[str, str | None, str], Any]
"""Gives an ingredient by its name, its text if there is one, and whom it is for."""


def sizes(choice: str, context: Context) -> Tensor:
    """(N,) training samples of each client."""
    one_of("sizes", choice, ("samples",))
    return context.federation.train.size


def weights(choice: str, context: Context) -> Tensor:
    """(N, N) weights whose rows sum to 1, by one of these names, or from a file.

    `clusters`, `uniform` and `alone`; `mixture(alpha)` is alpha for the others and the
    rest for oneself; from known optima, `biases(threshold)` joins those no further than
    that, and `water_filling(c)` weighs their squared distances against the variance.
    From S training samples of every client, `means(S)`, `moments(S)`, `mmd(S)` and
    `sliced(S)` join those who are near by these distances, and `unlabelled_means(S)`
    and so on do without labels; a second number is the threshold for squared distances
    in place of the widest gap among them (see `coterie.similarity.partners`).

    Each of them with `on graph` behind it, as in `clusters on graph`, is what is left
    of it for oneself and one's neighbours on [graph], divided by its sum.
    """
    federation, n = context.federation, len(context.federation)
    if choice.endswith(_ON_GRAPH):
        if context.edges is None:
            raise InputError(f"`weights` {choice!r} needs the table [graph].")
        near = neighbouring(MIXINGS["metropolis"](context.edges, n))
        return among_neighbours(weights(_named(choice), context), near)
    if file := file_of(choice):
        total, mine = _in_files(federation)
        given = stochastic("weights", _from_file("weights", file), total)
        if n < total:
            present = torch.zeros(total, dtype=torch.bool).index_fill(0, mine, True)
            given = among(given, present)
        return given[mine][:, mine]
    name, arguments = call("weights", choice)
    numbers = ("biases", "mixture", "water_filling")
    estimates = (*ESTIMATES, *(f"unlabelled_{estimate}" for estimate in ESTIMATES))
    one_of("weights", name, ("clusters", "uniform", "alone", *numbers, *estimates))
    if name in estimates:
        return _estimated(name, arguments, choice, federation)
    if arguments and name not in numbers:
        raise InputError(f"`weights` {name} takes no numbers, got {choice!r}.")
    if name == "uniform":
        return torch.full((n, n), 1 / n)
    if name == "alone":
        return torch.eye(n)
    if name == "clusters":
        return same_cluster(_clusters("weights", federation))
    if len(arguments) != 1 or (name != "mixture" and federation.optima is None):
        needs = "" if name == "mixture" else " and a federation with known optima"
        raise InputError(
            f"`weights` {name} needs one number{needs}, "
            f"got {choice!r} for `{federation.name}`."
        )
    if name == "mixture":
        alpha = number("weights", arguments[0], at_least=0, at_most=1)
        return interpolation(alpha, n)
    if name == "biases":
        threshold = number("weights", arguments[0], at_least=0)
        return within(_distances(federation), threshold)
    c = number("weights", arguments[0], above=0)
    return water_filling(_distances(federation).square() / 2, c)


def _estimated(
    name: str, arguments: tuple[float, ...], choice: str, federation: Federation
) -> Tensor:
    """Weights from S samples of every client."""
    if len(arguments) not in (1, 2) or arguments[0] % 1:
        raise InputError(
            f"`weights` {name} needs a whole number of samples, and may have a "
            f"threshold, got {choice!r}."
        )
    samples = integer("weights", int(arguments[0]), at_least=4, at_most=1e9)
    try:
        found = estimated_weights(name, federation, samples, *arguments[1:])
        return found.to(torch.float32)
    except InputError as error:
        raise InputError(f"`weights` {choice!r} cannot be made: {error}") from error


def biases(choice: str, context: Context) -> Tensor:
    """(N, N) bounds b_ik on the gap f_i(x_k^*) - f_i(x_i^*) >= 0, or a file of them.

    `clusters` is 0 within a cluster and 1 between two, or the number in brackets;
    `optima` is half the squared distance of known optima, times the curvature of the
    losses in brackets: a loss |x - x_i^*|^2 without a factor 1/2 has `optima(2)`.
    """
    federation = context.federation
    if file := file_of(choice):
        total, mine = _in_files(federation)
        given = square("biases", _from_file("biases", file), total)
        return given[mine][:, mine]
    name, arguments = call("biases", choice)
    one_of("biases", name, ("clusters", "optima"))
    if len(arguments) > 1:
        raise InputError(f"`biases` {name} takes one number at most, got {choice!r}.")
    scale = number("biases", arguments[0] if arguments else 1.0, above=0)
    if name == "clusters":
        label = _clusters("biases", federation)
        return scale * (label[:, None] != label[None, :]).to(torch.float32)
    if federation.optima is None:
        raise InputError(
            f"`biases` optima needs known optima, but `{federation.name}` has none."
        )
    return scale * _distances(federation).square() / 2


def radius(choice: str, context: Context) -> Tensor:
    """(N, N) how far apart two models may be, squared and up to a factor, or a file.

    `transport(size, most)` is how differently the training data of two clients lie to
    a reference of that size (100), from at most so many samples of each (0: all), and
    `cosine(size, most)` the same with another ground cost, for classes (see
    `similarity.transport`). `clusters` is 0 within a true cluster and 1 between two,
    `optima` the squared distance of known optima. A file may have infinite entries.
    """
    federation = context.federation
    if file := file_of(choice):
        total, mine = _in_files(federation)
        given = dissimilarity("radius", _from_file("radius", file), total)
        return given[mine][:, mine]
    name, arguments = call("radius", choice)
    one_of("radius", name, ("transport", "cosine", "clusters", "optima"))
    if len(arguments) > (2 if name in ("transport", "cosine") else 0):
        raise InputError(f"`radius` {name} takes fewer numbers, got {choice!r}.")
    if name == "clusters":
        label = _clusters("radius", federation)
        return (label[:, None] != label[None, :]).to(torch.float32)
    if name == "optima":
        if federation.optima is None:
            raise InputError(
                f"`radius` optima needs known optima, but `{federation.name}` has none."
            )
        return _distances(federation).square()
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


def _distances(federation: Federation) -> Tensor:
    """(N, N) distances between known optima, exactly 0 where these are the same."""
    assert federation.optima is not None  # the caller has refused that
    mode = "donot_use_mm_for_euclid_dist"
    return torch.cdist(federation.optima, federation.optima, compute_mode=mode)


def precision(choice: str, context: Context) -> Tensor | None:
    """(N,) `samples`, `equal`, `estimated` during training, or a file's name."""
    federation = context.federation
    if file := file_of(choice):
        values = _from_file("precision", file).flatten()
        total, mine = _in_files(federation)
        return positive("precision", values, total)[mine]
    one_of("precision", choice, ("samples", "equal", "estimated"))
    if choice == "estimated":
        return None
    size = federation.train.size.to(torch.float32)
    return size if choice == "samples" else torch.ones_like(size)


def reference(choice: str, context: Context) -> Tensor:
    """(N,) who holds the server's sample: `largest` of all clients, or its name."""
    federation = context.federation
    names = [short_name(federation.names, int(i)) for i in federation.clients]
    if choice == "largest" and "largest" not in names:
        place = int(federation.train.size.argmax())
    else:
        place = names.index(one_of("reference", choice, names))
    return torch.arange(len(federation)) == place


def _in_files(federation: Federation) -> tuple[int, Tensor]:
    """How many clients a file is about, and where in it these clients stand.

    Where clients are held out of training, a file is about them too.
    """
    if federation.everybody is None:
        return len(federation), torch.arange(len(federation))
    return federation.everybody, federation.clients


def _named(choice: str) -> str:
    """What a choice names, without whether it is for a graph."""
    return choice.removesuffix(_ON_GRAPH)


def file_of(choice: str) -> Path | None:
    """The file that a choice names, if it names one."""
    choice = _named(choice)
    is_file = Path(choice).suffix in (".csv", ".npy")
    return Path(os.path.expanduser(choice)) if is_file else None


def _from_file(name: str, path: Path) -> Tensor:
    try:
        with warnings.catch_warnings():  # that a file is empty, which its shape tells
            warnings.simplefilter("ignore", UserWarning)
            is_csv = path.suffix == ".csv"
            values = np.loadtxt(path, delimiter=",") if is_csv else np.load(path)
        if not np.isrealobj(values):
            raise TypeError("it must hold real numbers, got complex ones")
        return torch.tensor(values, dtype=torch.float32)
    except (OSError, EOFError, ValueError, TypeError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise InputError(f"`{name}` cannot be read from {path}: {reason}.") from None


def mixing(choice: str, context: Context) -> Tensor:
    """(N, N) weights to gossip with on a graph, sparse; a kind, a graph, or a file.

    `metropolis`, `max_degree`, `lazy` and `fastest` are kinds of weights for the edges
    of [graph]. `complete`, `ring`, `grid` and so on (`coterie list graphs`) join the
    clients in the order of their numbers; a CSV file with the columns v and w names the
    edges, by names of clients or their numbers: these have weights of the kind that
    [graph] names, Metropolis otherwise. A NumPy file has a doubly stochastic matrix
    itself.
    """
    n, file = len(context.federation), file_of(choice)
    if file and file.suffix == ".npy":
        return stochastic("mixing", _from_file("mixing", file), n)
    if choice not in MIXINGS:
        edges = edges_between(choice, context.federation)
        return mixing_of(context.kind, edges, n)
    if context.edges is None:
        raise InputError(f"`mixing` {choice} needs a table [graph] with `edges`.")
    return mixing_of(choice, context.edges, n)


def graph(choice: str, context: Context) -> Tensor | None:
    """(N, N) who may learn from whom: `everybody`, or a graph as for `mixing`."""
    return None if choice == "everybody" else mixing(choice, context)


def edges_between(choice: str, federation: Federation) -> Int[Tensor, "e 2"]:
    """The edges of a graph of these clients, by their places.

    A graph by name joins those who are there in their order. A file is about all
    clients, also those held out of training, without whom it must hold together too.
    """
    n, file = len(federation), file_of(choice)
    if file is None:
        return edges_of(choice, n)
    total, mine = _in_files(federation)
    place = torch.full((total,), -1).index_put_((mine,), torch.arange(n))
    edges = place[edges_of(str(file), total, names=federation.names)]
    edges = edges[(edges >= 0).all(1)]
    refuse_apart("graph without newcomers", edges, n)
    return edges


def head(choice: str, context: Context) -> Tensor:
    """(D,) which columns of a model are its head: modules or patterns, with commas."""
    return columns(context.layout, re.split(r",\s*", choice))


def layers(choice: str, context: Context) -> Tensor:
    """(L, 3) where matrices of a model begin, rows and columns: `all`, or names."""
    named = None if choice == "all" else re.split(r",\s*", choice)
    return matrices(context.layout, named)


RECIPES: dict[str, tuple[Callable[[str, Context], Any], str]] = {
    "sizes": (sizes, "samples"),
    "weights": (weights, "clusters"),
    "biases": (biases, "clusters"),
    "graph": (graph, "everybody"),
    "mixing": (mixing, "ring"),
    "precision": (precision, "samples"),
    "radius": (radius, "transport"),
    "head": (head, "head"),
    "layers": (layers, "all"),
    "reference": (reference, "largest"),
}
"""Name of an ingredient -> its recipe and what it is made from by default."""

OF_MODELS = ("head", "layers")
"""Ingredients that are about the columns of a model, whoever the clients are."""


def ingredients_of(factory: Callable[..., Any]) -> list[str]:
    """The names of a factory's positional parameters, each with a recipe."""
    names = [
        name
        for name, p in inspect.signature(factory).parameters.items()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    for name in names:
        if name not in RECIPES:
            raise InputError(
                f"the ingredient `{name}` is not known; a factory may ask for "
                f"{', '.join(sorted(RECIPES))} and takes options by keyword only."
            )
    return names


def is_told(name: str, choice: str) -> bool:
    """Whether an ingredient is made from what nobody knows: true clusters or optima.

    >>> is_told("weights", "water_filling(2)"), is_told("weights", "uniform")
    (True, False)
    """
    # A client's name may be any text.
    if name in ("reference", *OF_MODELS) or file_of(choice):
        return False
    told = ("clusters", "optima", "biases", "water_filling")
    return name in RECIPES and call(name, _named(choice))[0] in told


def is_measured(name: str, choice: str) -> bool:
    """Whether an ingredient is made from the clients' data, beyond their sizes.

    >>> is_measured("radius", "transport"), is_measured("weights", "clusters")
    (True, False)
    """
    if file_of(choice) or name not in ("weights", "radius"):
        return False
    word = call(name, _named(choice))[0].removeprefix("unlabelled_")
    return word in (*ESTIMATES, "transport", "cosine")


def once(context: Context) -> Ingredients:
    """Ingredients for this context, each of them made when it is asked for first."""

    @functools.cache
    def made(name: str, choice: str | None) -> Any:
        if choice is None:
            choice = context.kind  # of the edges of [graph]
        recipe, _ = RECIPES[name]
        return recipe(choice, context)

    def ingredient(name: str, choice: str | None, label: str) -> Any:
        edges = context.edges if name in ("graph", "mixing", "weights") else None
        if choice is None and (name == "weights" or edges is None):
            _, choice = RECIPES[name]
        found = made(name, choice)
        if edges is not None:
            if found is None:
                found = torch.ones(len(context.federation), len(context.federation))
            clients = context.federation.clients
            refuse_unjoined(f"`{name}` of {label}", found, edges, clients)
        return found

    return ingredient
