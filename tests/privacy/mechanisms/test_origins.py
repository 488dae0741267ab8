"""Claims about following where values come from, and about what is refused by it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from coterie.algorithms.spag import spag
from coterie.checks import InputError
from coterie.privacy.mechanisms import plan_calls
from coterie.privacy.mechanisms.dry_run.origins import (
    is_of_data,
    of_data,
    track_marks,
    unmarked_copy,
)
from support.private_runs import method, one_start, seen


def theirs() -> Tensor:
    """Numbers of clients."""
    return of_data(torch.arange(12.0).reshape(3, 4) - 5)


MADE = {
    "arithmetic": lambda a, k: (a * 0 + k).sum(1, keepdim=True),
    "a choice": lambda a, k: torch.where(a > 0, k, k),
    "places": lambda a, k: k[(a[:, 0] > 0).nonzero()[:, 0]],
    "a column written": lambda a, k: declaration(k, (slice(None), 1), a[:, 0]),
    "cells written": lambda a, k: declaration(k, k > 0, a.sum()),
    "a sparse matrix": lambda a, k: sparse(a[0, :2]) @ k,
    "many rows at once": lambda a, k: torch.func.vmap(torch.dot)(k, a),
}


def declaration(rows, places, values):
    """The rows with other values at these places."""
    made = rows.clone()
    made[places] = values
    return made


def sparse(values):
    """A matrix with two entries."""
    places = torch.tensor([[0, 1], [1, 0]])
    return torch.sparse_coo_tensor(places, values, (3, 3), check_invariants=False)


@pytest.mark.parametrize("name", MADE)
def test_what_is_made_of_clients_numbers_is_known_by_it(name):
    ours = torch.ones(3, 4)
    with track_marks():
        assert is_of_data(MADE[name](theirs(), ours.clone()))
        assert not is_of_data(MADE[name](ours, ours.clone()))


def test_a_shape_tells_nothing_and_a_copy_of_what_is_released_is_known():
    with track_marks() as following:
        a = theirs()
        alike = torch.zeros_like(a), a.new_ones(2), torch.full_like(a, 2.0)
        assert not any(map(is_of_data, alike))
        mean = a.mean(0).expand(3, 4)
        assert is_of_data(mean) and not is_of_data(unmarked_copy(mean))
        assert len(a) == a.shape[0] and not following.read
    assert unmarked_copy(mean).stride(0) == 0 and torch.equal(unmarked_copy(mean), mean)


@pytest.mark.parametrize(
    "look",
    [
        lambda a: bool((a > 0).any()),
        lambda a: a[0, 0].item(),
        lambda a: a[0].tolist(),
        lambda a: a.numpy(),
        lambda a: torch.equal(a, a.clone()),
    ],
)
def test_a_number_that_is_read_is_noticed(look):
    with track_marks() as following:
        look(torch.ones(2, 2))
        assert not following.read
        look(theirs())
        assert following.read


# Methods.


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_spag_is_refused_however_many_clients_and_rounds_there_are(n):
    # Its clients send a yes or no, which two worlds may have in common by chance.
    holders, everybody = torch.arange(n) == 0, torch.ones(n, dtype=torch.bool)
    algorithm = spag(torch.ones(n), holders, newton=1, inner=1)
    for rounds in range(1, 9):
        with pytest.raises(InputError, match=r"spag cannot .* and that nothing bounds"):
            plan_calls(algorithm, [everybody] * rounds, seed=rounds, label="spag")


ACCEPTED = (
    "adaptive_all_for_one all_for_all all_for_one apfl aruba cobo decentralised_sgd "
    "ditto extra fedala fedavg fedavg_finetune fedbabu fedbn feddyn fedper fedprox "
    "fedrep gradient_tracking karula lg_fedavg local low_rank_corrections per_fedavg "
    "pfedme scaffold time_adaptive_all_for_all wga_bc"
)


@pytest.mark.parametrize("name", ACCEPTED.split())
def test_methods_of_models_and_gradients_are_not_refused(name):
    foreseen = seen(method(name), rounds=1, columns=one_start().shape[1])
    assert len(foreseen.rounds) == 2 and foreseen.by_key is None
