"""Claims about who meets whom."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from coterie.graphs import matchings


def drawn(active: torch.Tensor, meetings: int, seed: int = 0) -> list[list[int]]:
    rng = torch.Generator().manual_seed(seed)
    return matchings(active, meetings, rng).tolist()


def pairs(matching: list[int]) -> list[tuple[int, int]]:
    return [(i, j) for i, j in enumerate(matching) if i < j]


@pytest.mark.parametrize("clients", range(2, 10))
@pytest.mark.parametrize("extra", [0, 5])
def test_every_pair_meets_exactly_once_in_a_whole_tournament(clients, extra):
    everybody = torch.ones(clients, dtype=torch.bool)
    rounds = drawn(everybody, clients - 1 + extra)
    # Of an odd number one rests in every round, which takes one round more.
    assert len(rounds) == clients - 1 + clients % 2
    met = Counter(pair for matching in rounds for pair in pairs(matching))
    assert met == {(i, j): 1 for i in range(clients) for j in range(i + 1, clients)}


@pytest.mark.parametrize("clients", range(2, 10))
def test_partners_are_mutual_nobody_meets_twice_and_one_rests_at_most(clients):
    everybody = torch.ones(clients, dtype=torch.bool)
    for meetings in range(clients - 1):
        rounds = drawn(everybody, meetings, seed=meetings)
        assert len(rounds) == meetings
        for matching in rounds:
            assert all(matching[j] == i for i, j in enumerate(matching))
            assert sum(i == j for i, j in enumerate(matching)) == clients % 2
        met = [pair for matching in rounds for pair in pairs(matching)]
        assert len(set(met)) == len(met)


def test_inactive_clients_meet_nobody_and_the_others_all():
    active = torch.tensor([True, False, True, True, False, True, False])
    rounds = drawn(active, 3)
    met = {pair for matching in rounds for pair in pairs(matching)}
    assert met == {(0, 2), (0, 3), (0, 5), (2, 3), (2, 5), (3, 5)}


def test_nobody_meets_where_one_is_alone_or_no_meetings_are_wanted():
    assert drawn(torch.tensor([True]), 5) == []
    assert drawn(torch.tensor([False, True]), 1) == []
    assert drawn(torch.tensor([True, True]), 0) == []


def test_all_matchings_are_equally_likely():
    everybody = torch.ones(6, dtype=torch.bool)
    draws = 1500
    met = Counter(tuple(drawn(everybody, 1, seed)[0]) for seed in range(draws))
    # Six clients can be paired in 5 * 3 = 15 ways: counts are binomial with mean 100
    # and a standard deviation of 9.7, and 5 of these are room for 15 of them.
    assert len(met) == 15
    assert all(abs(count - draws / 15) < 50 for count in met.values())
