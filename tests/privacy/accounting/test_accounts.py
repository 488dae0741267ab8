"""Claims about accounts: an event that they do not support is refused, not ignored."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
import torch

from coterie.checks import InputError
from coterie.privacy import sampled_epsilons
from coterie.privacy.accounting.accounts import by_pairs, totals
from coterie.privacy.accounting.ledger import Input, Ledger, Release
from coterie.privacy.mechanisms.receivers import Receipts, reach
from coterie.types import SERVER
from support.refusals import refuses

LINKS = torch.tensor([[0, 1], [1, SERVER]])


class Whispered(NamedTuple):
    """An event that no accountant knows."""

    round: int


def sampled(events, clients):
    """The account of single samples."""
    return sampled_epsilons(Ledger(clients, tuple(events)), delta=1e-5)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("account", [totals, by_pairs, sampled])
def test_an_event_that_nobody_knows_is_refused(account):
    refuses("Whispered", account, [Whispered(1)], 2)


@pytest.mark.parametrize("account", [totals, by_pairs, sampled])
@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((1.0, -2.0), "`noise` must be at least 0, got -2"),
        ((1.0, math.nan), "`noise` must be a finite number, got nan"),
        ((1.0, math.inf), "`noise` must be a finite number, got inf"),
        ((-1.0, 2.0), "`sensitivity` must be at least 0, got -1"),
        ((math.nan, 2.0), "`sensitivity` must be a finite number, got nan"),
    ],
)
def test_noise_and_sensitivity_that_are_none_are_refused(account, sizes, message):
    refuses(message, account, [Release(1, "mix", LINKS, *sizes)], 2)


@pytest.mark.parametrize("account", [totals, by_pairs])
def test_inputs_are_refused_like_releases(account):
    with pytest.raises(InputError, match="`noise` must be at least 0, got -2"):
        account([Input(1, torch.ones(2, dtype=torch.bool), 1.0, -2.0)], 2)


def test_rows_without_bound_and_noise_tell_everything():
    release = Release(1, "mix", LINKS, math.inf, 0.0)
    assert totals([release], 2).tolist() == [math.inf, math.inf]
    assert by_pairs([release], 2)[0].tolist() == [0, math.inf, 0]
    assert sampled([release], 2).tolist() == [math.inf, math.inf]


def test_noise_whose_square_is_no_number_tells_everything():
    assert totals([Release(1, "mix", LINKS, 1.0, 1e-300)], 2).tolist() == [math.inf] * 2


def in_pairs(*pairs, apart=False, t=1):
    """A release along these links, of mu^2 4."""
    return Release(t, "mix", torch.tensor(pairs), 2.0, 1.0, apart=apart)


@pytest.mark.parametrize("rounds", [2, 3])
def test_a_pair_has_the_total_of_the_client_where_any_chain_of_links_joins_them(rounds):
    """What the middle of a line receives is in its next row; client 3 is alone."""
    line = in_pairs((0, 1), (1, 0), (1, 2), (2, 1))
    found = by_pairs([line._replace(round=t) for t in range(rounds)], 4)
    expected = torch.zeros(4, 5, dtype=torch.float64)
    expected[:3, :3] = 4 * rounds * (1 - torch.eye(3))
    assert torch.equal(found, expected)


def test_readers_with_noise_of_their_own_hear_of_each_other_s_answers():
    """Client 0 answers two readers, of whom one sends on what it made of that."""
    answers = in_pairs((0, 1), (0, 2), apart=True)
    assert by_pairs([answers], 3)[0].tolist() == [0, 8, 8, 0]
    assert by_pairs([answers], 3)[1:].sum() == 0


def test_what_all_were_told_joins_nobody_to_what_few_are_told_later():
    everybody = [(u, v) for u in range(4) for v in range(4) if u != v]
    first, few = in_pairs(*everybody, t=0), in_pairs((0, 1), (1, 0))
    found = by_pairs([first, few], 4)
    assert found[0].tolist() == [0, 8, 4, 4, 0]
    # Afterwards, everybody hears what was made of it.
    found = by_pairs([first, few, in_pairs(*everybody, t=2)], 4)
    assert found[0].tolist() == [0, 12, 12, 12, 0]


def test_of_samples_rows_come_to_whom_others_send_them():
    received = torch.zeros(4, 5, dtype=torch.bool)
    received[0, 1] = received[1, 2] = received[2, 3] = received[3, 4] = True
    none = [[] for _ in range(4)]
    found = reach(Receipts(none, received, none))
    assert found[:, :4].tolist() == torch.ones(4, 4).triu(1).bool().tolist()
    assert found[:, 4].tolist() == [False, False, False, True]
