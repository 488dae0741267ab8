"""Claims about accounts: an event that they do not support is refused, not ignored."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
import torch

from coterie.checks import InputError
from coterie.privacy import sampled_epsilons
from coterie.privacy.accounts import by_pairs, totals
from coterie.privacy.ledger import Input, Ledger, Release
from coterie.types import SERVER

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
    with pytest.raises(InputError, match="Whispered"):
        account([Whispered(1)], 2)


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
    with pytest.raises(InputError, match=message):
        account([Release(1, "mix", LINKS, *sizes)], 2)


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
