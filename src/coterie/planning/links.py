"""Which links of a network to leave out, so that gossip converges faster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from ..checks import InputError, expand_path
from ..graphs.families import edges_of
from ..graphs.files import FileLinks, nodes_in, read_links
from ..graphs.intensities import delayed_gap, refuse_many, tuned_rates


class MessageNetwork(NamedTuple):
    """The links between clients, and the delay of a message on each."""

    edges: Int[Tensor, "e 2"]
    delays: Float64[Tensor, " e"]  # in seconds
    names: tuple[str, ...]


class Speed(NamedTuple):
    """How fast averaging over a network with delays is."""

    links: int
    messages: float  # exchanges per second, over all links
    gap: float  # lambda_2(Delta(K))
    rate: float  # of the bound: min(gap / 2, 1 / longest delay)


class LinkPlan(NamedTuple):
    """A network, how often to use each link, and how much faster it gets."""

    network: MessageNetwork
    rates: Float64[Tensor, " e"]  # exchanges per second; 0: left out
    before: Speed  # every link is used again as soon as an exchange ends
    without: Speed  # the same with only the links that stay
    after: Speed  # the links that stay are used at their `rates`

    @property
    def removed_links(self) -> list[tuple[str, str, float]]:
        """Ends and delay of every link to leave out, the slowest first."""
        edges, delays, names = self.network
        gone = [e for e, rate in enumerate(self.rates.tolist()) if rate == 0]
        found = [(*edges[e].tolist(), float(delays[e])) for e in gone]
        ordered = sorted(found, key=lambda link: (-link[2], link[:2]))
        return [(names[v], names[w], delay) for v, w, delay in ordered]

    def summary(self) -> str:
        """The plan in a sentence or two."""
        before, after = self.before, self.after
        count = before.links - after.links
        if not count:
            return f"Keep all {before.links} links: leaving some out gains nothing."
        links = "1 link" if count == 1 else f"{count} links"
        return (
            f"Leave out {links} of {before.links}: this alone multiplies the eigengap, "
            f"which sets the pace, by {_ratio(self.without, before)}. If the other "
            "links are also used at their best rates, the eigengap is multiplied by "
            f"another {_ratio(after, self.without)}, with "
            f"{after.messages / before.messages:.2g} times the messages of now."
        )


def plan_links(network: MessageNetwork) -> LinkPlan:
    """The links to leave out, found by tuning how often each link is used."""
    edges, delays, _ = network
    usual = 1 / delays
    rates = tuned_rates(edges, delays)
    before, after = _speed(network, usual), _speed(network, rates)
    without = _speed(network, torch.where(rates > 0, usual, 0.0))
    # Leaving links out must help by itself, not only with other rates.
    if without.gap <= before.gap * (1 + 1e-9) or after.links == before.links:
        return LinkPlan(network, usual, before, before, before)
    return LinkPlan(network, rates, before, without, after)


def _ratio(speed: Speed, other: Speed) -> str:
    """The ratio of two eigengaps."""
    return f"{speed.gap / other.gap:.4g}"


def _speed(network: MessageNetwork, rates: Tensor) -> Speed:
    edges, delays, _ = network
    gap, used = delayed_gap(edges, rates, delays), rates > 0
    rate = min(gap / 2, 1 / float(delays[used].max()))
    return Speed(int(used.sum()), float(rates.sum()), gap, rate)


def network_of(
    graph: str, nodes: int | None = None, delays: Path | None = None, seed: int = 0
) -> MessageNetwork:
    """The network of a named graph or of a graph file, with delays from a file.

    Args:
        graph: a name of `GRAPHS` with its numbers, or a CSV file with the columns v, w
            and optionally delay.
        nodes: number of nodes of a named graph.
        delays: a CSV file with the columns v, w and delay, in seconds. None takes the
            delays in the graph's file, or 1 for all edges.
        seed: the seed of random graphs.

    Raises:
        InputError: if a file cannot be read or does not fit.
    """
    path = expand_path("--graph", graph) if Path(graph).suffix == ".csv" else None
    if path is None:
        if nodes is None:
            raise InputError(
                f"the graph {graph!r} needs `--nodes`, the number of nodes."
            )
        refuse_many(nodes)  # before a graph of that size is made
        names = tuple(str(v) for v in range(nodes))
        edges = edges_of(graph, nodes, seed)
        known = None if delays is None else read_links(delays, (), "delay")
        return MessageNetwork(edges, _delays(edges, known, delays, names), names)
    if nodes is not None:
        raise InputError("`--nodes` is for named graphs only: a file lists them.")
    names, columns = nodes_in(path)
    refuse_many(len(names))
    edges = edges_of(str(path), len(names), names=names)
    if delays is not None:
        known = read_links(delays, names, "delay")
    else:
        known = read_links(path, names, "delay") if "delay" in columns else None
    return MessageNetwork(edges, _delays(edges, known, delays or path, names), names)


def _delays(
    edges: Tensor, known: FileLinks | None, path: Path | None, names: Sequence[str]
) -> Tensor:
    """(E,) the delay of each edge, 1 if no file has delays."""
    if known is None:
        return torch.ones(len(edges), dtype=torch.float64)
    told: dict[tuple[int, int], float] = {}
    for (v, w), delay in zip(known.pairs, known.values, strict=True):
        pair = (min(v, w), max(v, w))
        if told.setdefault(pair, delay) != delay:
            raise InputError(
                f"{path} has two delays between {names[v]} and {names[w]}, "
                f"{told[pair]:g} and {delay:g}."
            )
    found = [told.get((v, w)) for v, w in edges.tolist()]
    if None in found:
        v, w = edges[found.index(None)].tolist()
        raise InputError(f"{path} has no delay between {names[v]} and {names[w]}.")
    return torch.tensor(found, dtype=torch.float64)
