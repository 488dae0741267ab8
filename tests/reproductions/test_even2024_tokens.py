"""Claims about the reproduction of chapter 7 of Even's thesis, tiny."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest
import torch

from coterie.cli.reproductions import items_of
from coterie.graphs import Visits, oldest, oldest_by_epochs

ITEMS = items_of("even2024")
tokens = import_module("reproduce_even2024.tokens")
token_races = import_module("reproduce_even2024.token_races")
REAL = torch.float64


def test_a_small_share_of_chapter_7_judges_nothing_wrongly(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    claims = ITEMS["chapter7"](["share=0.01"])
    for label in ("times", "V1", "V2", "V3", "V4", "V5", "V6", "V7", "V8"):
        assert any(claim.what.startswith(label) for claim in claims), label
    exact = ("times", "V2, common", "V7", "Theorem 7.6, 12-cycle, delays e")
    assert all(c.agrees for c in claims if c.what.startswith(exact))
    table = (tmp_path / "runs" / "even2024-chapter7" / "chapter7.csv").read_text()
    assert table.count("\n") == 1 + len(claims)


@pytest.mark.parametrize("kind", ["exact", "epoch", "printed"])
def test_delays_of_many_walks_are_those_of_each(kind):
    rng = np.random.default_rng(0)
    path = rng.integers(4, size=(60, 3))
    many = token_races.Delay(kind, 3, 4)
    visits = [Visits([0] * 4) for _ in range(3)]
    rule = {"exact": oldest, "epoch": oldest_by_epochs}.get(kind)
    for t, at in enumerate(path):
        found = many.at(at).tolist()
        if rule is None:
            assert found == [t] * 3
        else:
            each = zip(visits, at.tolist(), strict=True)
            assert found == [rule(one, v, t) for one, v in each]


def test_logistic_losses_have_the_gradients_of_their_definition():
    problem = token_races.logistic(3, 1.0, 0)
    rows, x = torch.tensor(problem.features), torch.ones(5, dtype=REAL) / 3
    x.requires_grad_()
    losses = torch.nn.functional.softplus(-(rows @ x)).mean(1)
    losses = losses + problem.ridge * x.square().sum() / 2
    point = x.detach().numpy()[None]
    for v in range(3):
        (g,) = torch.autograd.grad(losses[v], x, retain_graph=True)
        assert problem.of(np.array([v]), point)[0] == pytest.approx(g.numpy())
    (g,) = torch.autograd.grad(losses.mean(), x)
    assert problem.norm(point)[0] == pytest.approx(float(g.square().sum()))
    assert problem.beta > problem.ridge


def test_tori_have_four_neighbours_everywhere():
    edges = tokens.torus(4)
    assert len(edges) == 32 and (torch.bincount(edges.flatten()) == 4).all()
