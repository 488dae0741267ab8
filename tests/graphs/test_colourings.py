"""Claims about graphs as matchings."""

from __future__ import annotations

import pytest
import torch

from coterie.graphs import colouring, degrees, edges_of

NAMES = ("barbell", "complete", "erdos_renyi(0.4)", "expander(3)", "grid", "star")


@pytest.mark.parametrize("text", [*NAMES, "line", "ring"])
def test_every_edge_is_in_one_of_few_matchings(text):
    edges = edges_of(text, 12)
    partners, nobody = colouring(edges, 12), torch.arange(12)
    found = []
    for partner in partners:
        assert torch.equal(partner[partner], nobody)  # who is met meets back
        found += [(v, w) for v, w in enumerate(partner.tolist()) if v < w]
    assert sorted(found) == [tuple(edge) for edge in edges.tolist()]
    most = int(degrees(edges).max())
    assert most <= len(partners) < 2 * most
