"""Ingredients about links between clients, and about the columns of a model."""

from __future__ import annotations

import re

import torch
from jaxtyping import Int
from torch import Tensor

from ...checks import InputError, stochastic
from ...data.federation import Federation
from ...graphs.families import edges_of, refuse_apart
from ...graphs.fastest import MIXINGS, mixing_of
from ...models import batch_norm_columns, columns, matrices
from .contexts import Context, file_of, from_file, places_in_files


def mixing(choice: str, context: Context) -> Tensor:
    """(N, N) weights to gossip with on a graph, sparse; a kind, a graph, or a file.

        `metropolis`, `max_degree`, `lazy` and `fastest` are kinds of weights
            for the edges of [graph].
        `complete`, `ring`, `grid` and so on (`coterie list graphs`) are graphs
            that join the clients in the order of their numbers.
        A CSV file with the columns v and w has edges, by names or numbers of
            clients.
        A NumPy file has a doubly stochastic matrix.

    Edges of a graph or a CSV file have weights of the kind that [graph] names (by
    default Metropolis).
    """
    n, file = len(context.federation), file_of(choice)
    if file and file.suffix == ".npy":
        return stochastic("mixing", from_file("mixing", file), n)
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
    """The edges of a graph between these clients, by their positions.

    A graph with a name joins these clients in their order. A file also has the clients
    that are held out of training; without them, the graph must still be connected.
    """
    n, file = len(federation), file_of(choice)
    if file is None:
        return edges_of(choice, n)
    total, mine = places_in_files(federation)
    place = torch.full((total,), -1).index_put_((mine,), torch.arange(n))
    edges = place[edges_of(str(file), total, names=federation.names)]
    edges = edges[(edges >= 0).all(1)]
    refuse_apart("graph without newcomers", edges, n)
    return edges


def head(choice: str, context: Context) -> Tensor:
    """(D,) which columns of a model are its head: modules or patterns, with commas."""
    return columns(context.layout, re.split(r",\s*", choice))


def norm(choice: str, context: Context) -> Tensor:
    """(D,) which columns of a model are batch normalisation: `batch`, or as `head`."""
    if choice == "batch":
        return batch_norm_columns(context.layout)
    return head(choice, context)


def layers(choice: str, context: Context) -> Tensor:
    """(L, 3) where matrices of a model begin, rows and columns: `all`, or names."""
    named = None if choice == "all" else re.split(r",\s*", choice)
    return matrices(context.layout, named)
