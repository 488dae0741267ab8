"""Claims about drawings: neighbours stand together, and nothing is left to chance."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from coterie.graphs import edges_of, places


@pytest.mark.parametrize(("text", "n"), [("grid", 30), ("ring", 100), ("torus", 900)])
def test_neighbours_stand_nearer_than_others(text, n):
    edges = edges_of(text, n)
    found = places(edges, n)
    assert found.shape == (n, 2) and np.abs(found).max() == pytest.approx(1)
    np.testing.assert_array_equal(found, places(edges, n))
    apart = np.linalg.norm(found[:, None] - found[None], axis=2)
    v, w = edges.T.numpy()
    assert apart[v, w].mean() < 0.5 * apart.mean()


def test_a_large_ring_is_drawn_as_a_circle():
    found = places(edges_of("ring", 2000), 2000)
    radius = np.linalg.norm(found, axis=1)
    assert radius.max() / radius.min() == pytest.approx(1, abs=1e-3)
    step = np.linalg.norm(np.diff(found, axis=0), axis=1) / radius[0]
    np.testing.assert_allclose(step, 2 * math.sin(math.pi / 2000), rtol=1e-3)


def test_ten_thousand_nodes_of_an_expander_have_places():
    found = places(edges_of("random_regular(4)", 10_000), 10_000)
    assert np.isfinite(found).all() and len(np.unique(found, axis=0)) == 10_000


def test_nodes_without_edges_have_places_too():
    found = places(torch.tensor([[0, 1]]), 4)
    assert np.isfinite(found).all()
