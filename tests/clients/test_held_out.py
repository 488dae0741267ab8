"""Claims about held-out data in client programs, and about averages of groups."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from coterie import models
from coterie.data.federation import Part
from coterie.types import SERVER
from support.oracles import over_links
from support.plain_clients import EXACT, mine
from support.simulated import REAL, in_round, module, rows, simulate, simulated
from support.six_clients import SHARES, SOME, D, N, everybody_or_some, who

# Names need not follow each other; of the last group nobody is in SOME.
GROUPS = torch.tensor([4, 4, 0, 4, 0, 5])


def losses_by_loop(federation, row, index) -> torch.Tensor:
    """Of each sample, on an nn.Module of its own."""
    outputs = models.with_row(module(federation), row)(federation.features[index])
    if federation.task == "regression":
        return (outputs[:, 0] - federation.targets[index]).square().detach()
    targets = federation.targets[index]
    return nn.functional.cross_entropy(outputs, targets, reduction="none").detach()


def with_validation(federation, sizes):
    """The federation where clients have so many validation samples of theirs."""
    index, start, _ = federation.validation
    return replace(federation, validation=Part(index, start, torch.tensor(sizes)))


def of_validation(clients, losses, x):
    """A client program: the losses of all validation samples."""
    return clients.validation().losses(x)


def of_minibatch(clients, losses, x):
    """A client program: those of a minibatch."""
    return clients.losses(x)


@pytest.mark.parametrize("loop", [False, True])
@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_losses_of_validation_data_come_sample_by_sample(kind, loop, request):
    federation = request.getfixturevalue(kind)
    oracle, x = in_round(federation, 2, loop=loop)
    (found,) = oracle.each(of_validation, torch.zeros(N, 2, dtype=REAL), x)
    for i in range(N):
        index = mine(federation, i, "validation")
        assert_close(found[i], losses_by_loop(federation, x[i], index), **EXACT)
    assert (oracle.gradients == 0).all()
    assert oracle.sent == []


def test_who_has_fewer_samples_has_nan_behind_them(classification):
    """Also the last client, who has none, and whose samples would begin at the end."""
    sizes = [2, 1, 0, 2, 1, 0]
    federation = with_validation(classification, sizes)
    simulation, x = simulated(federation)
    (found,) = simulation.at(2).each(of_validation, torch.zeros(N, 2, dtype=REAL), x)
    for i, size in enumerate(sizes):
        index = mine(federation, i, "validation")
        expected = losses_by_loop(federation, x[i], index)
        assert_close(found[i, :size], expected, **EXACT)
        assert found[i, size:].isnan().all()


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_where_nobody_has_samples_there_are_no_losses(kind, request):
    federation = with_validation(request.getfixturevalue(kind), [0] * N)
    simulation, x = simulated(federation)
    (found,) = simulation.at(2).each(of_validation, x[:, :0], x)
    assert found.shape == (N, 0)


def test_losses_of_a_minibatch_have_its_loss_as_mean(classification):
    simulation, x = simulated(classification)
    (found,) = simulation.at(2).each(of_minibatch, torch.zeros(N, 3, dtype=REAL), x)
    assert found.shape == (N, 3)

    def mean(clients, loss, x):
        return clients.loss(x)

    (loss,) = simulation.at(2).each(mean, torch.zeros(N, dtype=REAL), x)
    assert_close(found.mean(1), loss, **EXACT)


def test_the_loss_of_a_model_that_is_not_finite_is_infinite(classification):
    """Not NaN, which stands for samples that are not there."""
    simulation, x = simulated(classification)
    x[1], x[2] = torch.nan, torch.inf
    (found,) = simulation.at(2).each(of_validation, torch.zeros(N, 2, dtype=REAL), x)
    assert (found[1:3] == torch.inf).all()
    assert found[[0, 3, 4, 5]].isfinite().all()


def test_validation_data_are_no_training_data(classification):
    """Programs that do not ask for them do not see them, and the other way round."""
    spoilt = classification.features.clone()
    spoilt[classification.train.index] = torch.nan
    simulation, x = simulated(replace(classification, features=spoilt))
    (found,) = simulation.at(2).each(of_validation, torch.zeros(N, 2, dtype=REAL), x)
    assert found.isfinite().all()


def test_rows_of_a_part_mark_who_has_how_many(classification):
    index, mask = with_validation(classification, [2, 1, 0, 2, 1, 0]).validation.rows(
        torch.tensor([5, 0, 4])
    )
    assert mask.tolist() == [[False, False], [True, True], [True, False]]
    assert index[1].tolist() == mine(classification, 0, "validation").tolist()
    assert index[2, 0] == mine(classification, 4, "validation")[0]
    none, mask = classification.validation._replace(
        size=torch.zeros(N, dtype=torch.long)
    ).rows(torch.arange(N))
    assert none.shape == mask.shape == (N, 0)


@everybody_or_some
def test_everybody_gets_the_average_of_its_group(classification, active):
    oracle, x = in_round(classification, 1, active)
    found = oracle.average(SHARES, x, GROUPS)
    for i in range(N):
        mates = [k for k in who(active) if GROUPS[k] == GROUPS[i]]
        total = sum(float(SHARES[k]) for k in mates)
        expected = sum(
            (float(SHARES[k]) / total * x[k] for k in mates), torch.zeros(D, dtype=REAL)
        )
        assert_close(found[i], expected, **EXACT)
    assert bool((found[5] == 0).all()) == (active is not None)
    # A row up and a row down, however many groups there are.
    assert over_links(oracle.sent) == {
        **{("average", i, SERVER): D for i in who(active)},
        **{("average", SERVER, i): D for i in who(active)},
    }


def test_one_group_is_everybody(classification):
    simulation, x = simulated(classification)
    one = simulation.at(1, SOME).average(SHARES, x, torch.full((N,), 3))
    assert_close(one, simulation.at(1, SOME).average(SHARES, x), **EXACT)
    assert one.stride(0) == 0  # one row in memory


def test_averages_of_groups_keep_everybodys_personal_columns(classification):
    home = torch.arange(D) % 3 == 0
    x = rows(simulate(classification))
    shared = simulate(classification).at(1).average(SHARES, x, GROUPS)
    oracle = simulate(classification, home=home).at(1)
    found = oracle.average(SHARES, x, GROUPS)
    assert torch.equal(found[:, home], x[:, home])
    assert_close(found[:, ~home], shared[:, ~home], **EXACT)
    assert {one.values for one in oracle.sent} == {int((~home).sum())}
