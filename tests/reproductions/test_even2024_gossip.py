"""Claims about the reproduction of gossip in chapters 2 and 4 of Even's thesis."""

from __future__ import annotations

import math
import sys
from importlib import import_module

import pytest
import torch
from torch.testing import assert_close

from coterie.cli.reproductions import items_of
from coterie.graphs import eigengap
from support.thesis_claims import check_written

ITEMS = items_of("even2024")
races, speedups = (
    import_module(f"reproduce_even2024.{name}") for name in ("gossip_races", "speedups")
)
REAL = torch.float64


def test_chapter_4_makes_claims_and_records_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(speedups, "FROM", 0.02)
    monkeypatch.setattr(speedups, "UNTIL", 0.06)
    monkeypatch.setattr(speedups, "OMEGAS", (0.01,))
    items = sys.modules["reproduce_even2024"]  # Braess has a test of its own
    monkeypatch.setattr(items, "braess_claims", list)
    claims = ITEMS["chapter4"](["share=0.01"])
    assert {claim.agrees for claim in claims} == {None}  # so small a share
    check_written(claims, "chapter4", "figure41.html")


def test_exact_rates_of_races_agree_at_every_share(monkeypatch):
    monkeypatch.setattr(races, "ROWS", races.ROWS[-1:])
    claims = races.gossip_claims(0.02, 0)
    exact, *others = claims
    assert exact.agrees and len(others) == 4
    assert [c.agrees for c in others if "slope" in c.what] == [None, None]


def test_random_points_are_joined_however_few_they_are():
    for seed in range(3):
        for n in (20, 84):
            edges = races.geometric(n, seed)
            assert eigengap(edges, torch.ones(len(edges), dtype=REAL)) > 0


def test_a_race_is_won_as_the_mean_of_a_single_mode_says():
    found = races.race("ring", 36, 0)
    mu, theta = found.rates
    assert mu == pytest.approx((2 - 2 * math.cos(2 * math.pi / 36)) / 36)
    assert found.seen <= races.LEFT
    s = found.accelerated * theta
    left = math.exp(-2 * s) * (1 + s) ** 2
    assert math.log(left) == pytest.approx(math.log(races.LEFT), rel=0.25)
    assert found.randomised * mu == pytest.approx(-math.log(races.LEFT), rel=0.25)


def test_an_arrival_is_between_two_looks_or_foreseen():
    at = torch.linspace(0, 10, 11, dtype=REAL)
    left = torch.exp(-2.2 * at)
    assert races._arrival(at, left) == pytest.approx(math.log(1e6) / 2.2)
    assert races._arrival(at[:3], left[:3]) == pytest.approx(math.log(1e6) / 2.2)


def test_geometric_graphs_join_points_that_are_near():
    edges = races.geometric(60, 3)
    assert (edges[:, 0] < edges[:, 1]).all() and int(edges.max()) == 59
    assert torch.equal(edges, races.geometric(60, 3))


def test_ascent_finds_better_rates_and_leaves_slow_edges_out():
    network = speedups.first(0)
    found = speedups.sparsified(network, 0.01, 600)
    assert found.gap > 1.2 * network.gap
    assert found.slow < network.slow
    assert len(found.edges) < len(network.edges)
    assert (found.rates > 0).all()


def test_a_course_costs_what_its_rates_say():
    network = speedups.first(0)
    few = speedups.only(network, network.delays > speedups.FAST)
    assert few.slow == len(few.edges) == network.slow
    assert_close(few.rates, torch.ones(len(few.edges), dtype=REAL))
