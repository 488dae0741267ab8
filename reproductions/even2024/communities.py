"""Figures 6.1b and 6.5: friends on Facebook, where communities keep what is told."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import networkx as nx
import numpy as np
import torch
from torch import Tensor

from coterie.cli import Claim
from coterie.graphs import edges_of
from coterie.seeds import generator
from coterie_theory.privacy import printed_losses

from .gossip_losses import Graph, drawn, graph, ledger, seen_by_one

EGOS = (1912, 0, 107, 348, 414, 686, 698, 1684, 3437, 3980)
NOISE = 1.94  # of the authors' script, which enters the number of rounds


NODES = 20


class Friends(NamedTuple):
    """An ego's friends, and what is told of and to some of them."""

    ego: str
    graph: Graph
    nodes: list[int]  # some at random, and before them one with few friends
    community: Tensor  # (n,) number of each
    printed: Tensor  # (nodes, n) what others learn of them by (6.6)
    exact: Tensor  # (n,) what the first of them learns of others


def read_friends(ego: int, data_dir: str) -> nx.Graph | None:
    """The largest connected part of SNAP's ego network, if its file is there."""
    folder = Path(data_dir or os.environ.get("COTERIE_DATA", "")).expanduser()
    path = folder / "facebook" / f"{ego}.edges"
    if not path.is_file():
        return None
    rows = path.read_text().splitlines()
    network = nx.Graph(tuple(map(int, row.split())) for row in rows)
    part = max(nx.connected_components(network), key=len)
    return nx.convert_node_labels_to_integers(network.subgraph(sorted(part)))


def substitute(seed: int) -> nx.Graph:
    """Six groups of 50, where there are no files."""
    edges = edges_of("stochastic_block(6, 0.3, 0.003)", 300, seed)
    return nx.Graph(edges.tolist())


def losses(ego: str, network: nx.Graph, seed: int) -> Friends:
    """Of some nodes; the first has few friends, so that exact ones are soon found."""
    n = len(network)
    found = graph(ego, drawn(network), n, NOISE)
    few = max(3, min(dict(network.degree).values()))
    first = next(v for v in range(n) if network.degree[v] <= few)
    order = torch.randperm(n, generator=generator(seed, "friends", ego)).tolist()
    nodes = [first, *(v for v in order if v != first)][:NODES]
    community = torch.zeros(n, dtype=torch.long)
    parts = nx.community.louvain_communities(network, seed=seed + 1)
    for number, part in enumerate(parts):
        community[list(part)] = number
    printed = printed_losses(ledger(found), clients=nodes).share[nodes]
    return Friends(ego, found, nodes, community, printed, seen_by_one(found, first))


def contrast(values: Tensor, node: int, community: Tensor) -> float:
    """The mean loss in the node's own community over that elsewhere."""
    own = community == community[node]
    others = torch.arange(len(own)) != node
    return float(values[own & others].mean() / values[~own].mean())


def friends_claims(
    full: bool, seed: int, data_dir: str
) -> tuple[list[Claim], list[Friends]]:
    """Loss in one's own community over that elsewhere, for each ego network."""
    found, claims = [], []
    for ego in EGOS if full else (1912, 0, 348, 414, 686, 3437):
        network = read_friends(ego, data_dir)
        if network is not None:
            found.append(losses(str(ego), network, seed))
    where = "Figure 6.1b"
    if not found:
        found.append(losses("six groups, for want of files", substitute(seed), seed))
    for each in found:
        claims.append(_claim(where, each))
        where = "Figure 6.5"
    return claims, found


def _claim(where: str, each: Friends) -> Claim:
    n, first = each.graph.n, each.nodes[0]
    pairs = list(zip(each.printed, each.nodes, strict=True))
    whole = [contrast(row, node, each.community) for row, node in pairs]
    capped = [contrast(row.clamp(max=1), v, each.community) for row, v in pairs]
    middle = float(np.median(whole))
    exact = contrast(each.exact, first, each.community)
    own = each.community == each.community[first]
    outside = float((each.printed[0][~own] >= 1).double().mean())
    return Claim(
        f"{where}, ego {each.ego}, {n} friends: (6.6) in the own community over that "
        "elsewhere",
        "high inside alone, clearer for larger n",
        f"{middle:.2g}; capped at 1 {np.median(capped):.2g}",
        middle > 2 if n > 300 else None,
        f"medians of {len(whole)} nodes, judged: above 2 from 300 friends on; of node "
        f"{first} {outside:.0%} of those outside learn all, and it learns {exact:.2g} "
        f"times as much inside, exactly; {each.graph.rounds} rounds, gap "
        f"{each.graph.gap:.2g}",
    )
